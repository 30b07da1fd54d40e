//! Parses the URLs of servers and sentinels.
//!
//! ```text
//! redis:// rediss:// valkey:// valkeys://   [user[:password]@]host[:port][/database][?protocol=resp3]
//! unix:// redis+unix:// valkey+unix://      /path[?db=0&user=..&pass=..&protocol=resp3]
//! redis-sentinel:// rediss-sentinel://      [user[:password]@]host[:port][,host[:port]..][/database]
//!                                           ?sentinelMasterId=name[&protocol=resp3]
//! ```
//!
//! `rediss`, `valkeys` and `rediss-sentinel` use TLS, the last one for the sentinels too. `redis+sentinel` is another
//! way to write `redis-sentinel`. The client library parses each host, and so decodes the user and the password.

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError};

use crate::error::{Error, ErrorKind};

use super::{connection::Address, protocol::NodeAddress};

/// The contents of a URL.
pub(super) struct ParsedUrl {
    pub location: Location,
    pub username: Option<String>,
    pub password: Option<String>,
    pub database: i64,
    pub is_resp3: bool,
    pub uses_tls: bool,
}

/// Where the server is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Location {
    Sentinels {
        primary: String,
        addresses: Vec<NodeAddress>,
    },
    Server(Address),
}

/// Parses a URL.
///
/// # Errors
///
/// [`ErrorKind::InvalidUrl`]. The error does not contain the URL, since that may contain a password.
pub(super) fn parse(url: &str) -> Result<ParsedUrl, Error> {
    let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
    let uses_tls = matches!(
        scheme,
        "rediss" | "valkeys" | "rediss-sentinel" | "rediss+sentinel"
    );
    if uses_tls && rest.contains('#') {
        return Err(invalid(
            "a rediss url has a fragment, such as #insecure: remove it, since certificates are always verified",
        ));
    }
    match scheme {
        "redis-sentinel" | "redis+sentinel" | "rediss-sentinel" | "rediss+sentinel" => {
            let (server, location) = parse_sentinels(rest)?;
            ParsedUrl::of(&server, location, uses_tls)
        }
        // The library parses them only with its own TLS.
        "rediss" | "valkeys" => {
            let server = parse_server(&format!("redis:{rest}"))?;
            let location = location_of(&server)?;
            ParsedUrl::of(&server, location, true)
        }
        _ => {
            let server = parse_server(url)?;
            let location = location_of(&server)?;
            ParsedUrl::of(&server, location, false)
        }
    }
}

impl ParsedUrl {
    fn of(server: &ConnectionInfo, location: Location, uses_tls: bool) -> Result<Self, Error> {
        let settings = server.redis_settings();
        if settings.password().is_none() && settings.username().is_some() {
            return Err(invalid(
                "the redis url has a user name but no password: write redis://user:password@host, or \
                 redis://:password@host for the default user",
            ));
        }
        Ok(Self {
            location,
            username: settings.username().map(str::to_owned),
            password: settings.password().map(str::to_owned),
            database: settings.db(),
            is_resp3: settings.protocol() == ProtocolVersion::RESP3,
            uses_tls,
        })
    }
}

/// Parses `//[user:password@]host[:port],host[:port]/database?sentinelMasterId=name`. Returns the first host with all
/// else, for the user and the database, and the sentinels.
fn parse_sentinels(rest: &str) -> Result<(ConnectionInfo, Location), Error> {
    let rest = rest.strip_prefix("//").ok_or_else(|| invalid(SENTINEL))?;
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, tail) = rest.split_at(end);
    let (user, hosts) = match authority.rsplit_once('@') {
        Some((user, hosts)) => (format!("{user}@"), hosts),
        None => (String::new(), authority),
    };
    let mut addresses = Vec::new();
    for host in hosts.split(',') {
        let info = parse_server(&format!("redis://{host}"))?;
        let Location::Server(Address::Tcp(mut address)) = location_of(&info)? else {
            return Err(invalid(SENTINEL));
        };
        if !has_port(host) {
            address.port = SENTINEL_PORT;
        }
        addresses.push(address);
    }
    let first = hosts.split(',').next().unwrap_or_default();
    let server = format!("redis://{user}{first}{tail}");
    let parsed = redis::parse_redis_url(&server).ok_or_else(|| invalid(SENTINEL))?;
    let mut query = parsed.query_pairs();
    let (_, primary) = query
        .find(|(name, value)| name == "sentinelMasterId" && !value.is_empty())
        .ok_or_else(|| invalid(SENTINEL))?;
    let location = Location::Sentinels {
        primary: primary.into_owned(),
        addresses,
    };
    Ok((parse_server(&server)?, location))
}

fn has_port(host: &str) -> bool {
    host.rsplit_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && !port.contains(']'))
}

fn parse_server(url: &str) -> Result<ConnectionInfo, Error> {
    check_parts(url)?;
    let info: Result<_, RedisError> = url.into_connection_info();
    info.map_err(|error| match error.detail() {
        // A detail repeats a part of the URL, which may be of a password that is not escaped.
        Some(_) => invalid(FORMS),
        None => invalid(FORMS).with_source(error),
    })
}

/// Refuses parts of a URL that would be ignored. In other clients, some of them change the security or the database.
fn check_parts(url: &str) -> Result<(), Error> {
    let (before, fragment) = url.split_once('#').unwrap_or((url, ""));
    let (place, query) = before.split_once('?').unwrap_or((before, ""));
    let names = query.split('&').filter(|part| !part.is_empty());
    let mut names = names.map(|part| part.split('=').next().unwrap_or_default());
    let is_tcp = place.starts_with("redis:") || place.starts_with("valkey:");
    let known: &[&str] = if is_tcp {
        &["protocol", "sentinelMasterId"]
    } else {
        &["db", "user", "pass", "protocol"]
    };
    let host = place.rsplit('@').next().unwrap_or_default();
    let has_hosts = is_tcp && host.contains(',');
    if names.any(|name| !known.contains(&name)) || !fragment.is_empty() || has_hosts {
        return Err(invalid(UNKNOWN_PART));
    }
    Ok(())
}

fn location_of(server: &ConnectionInfo) -> Result<Location, Error> {
    match server.addr() {
        ConnectionAddr::Tcp(host, port) => Ok(Location::Server(Address::Tcp(NodeAddress {
            host: host.clone(),
            port: *port,
        }))),
        ConnectionAddr::Unix(path) => Ok(Location::Server(Address::Unix(path.clone()))),
        _ => Err(invalid(FORMS)),
    }
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidUrl, message)
}

const FORMS: &str = "the redis url cannot be parsed: write redis://[user:password@]host[:port][/number of the database], \
                     with % escapes for special characters in the password; rediss:// for TLS, unix:///path for a socket, \
                     redis-sentinel:// for sentinels, and redis:// with any node for a cluster";
const UNKNOWN_PART: &str = "the redis url has a part that nothing reads: remove a fragment (#), a second host, and what follows the \
                            ? but for protocol (TCP), db, user, pass and protocol (sockets), sentinelMasterId (sentinels)";
const SENTINEL: &str = "the sentinel url cannot be parsed: write redis-sentinel://[user:password@]host:port,host:port\
                        [/number of the database]?sentinelMasterId=name";
/// The port of a sentinel in a URL without one.
const SENTINEL_PORT: u16 = 26_379;

#[cfg(test)]
mod tests {
    use super::*;

    // Regression: each was ignored, and some promise encryption or another database.
    #[test]
    fn parts_that_would_be_ignored_are_refused() {
        for url in [
            "redis://host/?ssl=true",
            "redis://host/?db=3",
            "redis://host/0#insecure",
            "redis://a,b:6379",
            "rediss://host?verify=none",
            "redis-sentinel://h?sentinelMasterId=x&sentinelPassword=p",
            "unix:///socket?ssl=true",
        ] {
            let error = parse(url).err().expect(url);
            assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
        }
        for url in [
            "redis://host/3?protocol=resp3",
            "redis://user:p,q@host",
            "redis-sentinel://h,i?sentinelMasterId=x&protocol=resp3",
            "unix:///socket,one?db=3&user=u&pass=p",
        ] {
            parse(url).map(drop).expect(url);
        }
    }

    fn tcp(host: &str, port: u16) -> NodeAddress {
        NodeAddress {
            host: host.to_owned(),
            port,
        }
    }

    #[test]
    fn sentinel_url_has_several_hosts_a_primary_and_the_settings_of_the_server() {
        let url = "rediss-sentinel://ada:p%40ss@a.internal,[2001:db8::1]:5000,c:26380/3?sentinelMasterId=my%20primary&protocol=resp3";
        let parsed = parse(url).expect("a url");
        let expected = Location::Sentinels {
            primary: "my primary".to_owned(),
            addresses: vec![
                tcp("a.internal", 26_379),
                tcp("2001:db8::1", 5_000),
                tcp("c", 26_380),
            ],
        };
        assert_eq!(parsed.location, expected);
        assert_eq!(parsed.username.as_deref(), Some("ada"));
        assert_eq!(parsed.password.as_deref(), Some("p@ss"));
        assert_eq!(
            (parsed.database, parsed.is_resp3, parsed.uses_tls),
            (3, true, true)
        );
    }

    #[test]
    fn urls_of_single_servers_are_those_of_the_client_library() {
        for (url, expected, uses_tls) in [
            ("redis://a", Address::Tcp(tcp("a", 6_379)), false),
            ("rediss://a:1/", Address::Tcp(tcp("a", 1)), true),
            ("valkeys://a:1/", Address::Tcp(tcp("a", 1)), true),
            (
                "unix:///run/redis.sock?db=2",
                Address::Unix("/run/redis.sock".into()),
                false,
            ),
            (
                "redis+unix:///run/redis.sock",
                Address::Unix("/run/redis.sock".into()),
                false,
            ),
        ] {
            let parsed = parse(url).expect(url);
            assert_eq!(parsed.location, Location::Server(expected), "{url}");
            assert_eq!(parsed.uses_tls, uses_tls, "{url}");
        }
    }

    #[test]
    fn error_of_a_url_has_no_part_of_it() {
        for url in [
            "redis://:hunter2#x@host/hunter2",
            "redis://host/hunter2",
            "redis://host/?protocol=hunter2",
            "rediss://host/#hunter2",
            "hunter2",
            "hunter2://host",
            "redis-sentinel://:hunter2@host",
            "redis-sentinel://:hunter2@host:hunter2?sentinelMasterId=x",
            "redis-sentinel:hunter2",
            "redis://hunter2@host",
        ] {
            let error = parse(url).err().expect(url);
            assert_eq!(error.kind(), ErrorKind::InvalidUrl, "{url}");
            assert!(
                !format!("{error:?} {error}").contains("hunter2"),
                "{error:?}"
            );
        }
    }
}
