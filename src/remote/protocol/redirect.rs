//! Replies of a cluster that send a request elsewhere.
//!
//! ```text
//! reply                      meaning                                          the request is sent again
//! MOVED 3999 10.0.0.2:6379   another node has the slot                        there; later requests too
//! ASK 3999 10.0.0.2:6379     the key has moved there, the slot has not yet    there, once, after ASKING
//! TRYAGAIN                   the keys of one command are on two nodes         after a wait, alone
//! CROSSSLOT                  the server turned out to be a cluster            at once, by slots
//! ```
//!
//! None of them executes the command, so no charge is made twice.

use std::fmt;

use redis::{RedisError, ServerErrorKind};

use crate::{diagnosis::outside_text::shown, error::Error};

/// The host and port of a node.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in crate::remote) struct NodeAddress {
    /// Empty if it is that of the node that sent the address.
    pub host: String,
    pub port: u16,
}

/// A reply that sends a request elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::remote) enum Redirect {
    /// The key is at this node while its slot is moved there.
    Ask(NodeAddress),
    /// The slot is at this node.
    Moved { slot: u16, to: NodeAddress },
    /// The same node can decide the request in a command with fewer keys.
    Split,
    /// The same node can decide the request once the slot has moved.
    TryAgain,
}

impl Redirect {
    /// Returns the redirect in an error; `None` for any other error.
    ///
    /// `requests` is the number of requests in the command. CROSSSLOT is a redirect only if there were several: each of
    /// them may have its keys in one slot.
    pub fn of(error: &Error, requests: usize) -> Option<Self> {
        let source = std::error::Error::source(error)?;
        let error: &RedisError = source.downcast_ref()?;
        match error.kind() {
            redis::ErrorKind::Server(ServerErrorKind::CrossSlot) if requests > 1 => {
                Some(Self::Split)
            }
            redis::ErrorKind::Server(ServerErrorKind::TryAgain) => Some(Self::TryAgain),
            redis::ErrorKind::Server(ServerErrorKind::Ask) => {
                let (to, _) = error.redirect_node()?;
                NodeAddress::parse(to).map(Self::Ask)
            }
            redis::ErrorKind::Server(ServerErrorKind::Moved) => {
                let (to, slot) = error.redirect_node()?;
                let to = NodeAddress::parse(to)?;
                Some(Self::Moved { slot, to })
            }
            _ => None,
        }
    }
}

impl NodeAddress {
    /// Returns the address with a host: without one, that of the node that sent the address. `None` if neither has one.
    pub fn resolved(self, from: Option<&Self>) -> Option<Self> {
        if !self.host.is_empty() {
            return Some(self);
        }
        let host = from?.host.clone();
        Some(Self { host, ..self })
    }

    /// Parses `host:port`. The host may be an IPv6 address, with or without brackets, or empty.
    fn parse(text: &str) -> Option<Self> {
        // A node that does not know a name or an address writes `?`.
        let (host, port) = text.rsplit_once(':').filter(|(host, _)| *host != "?")?;
        let host = host.strip_prefix('[').unwrap_or(host);
        let host = host.strip_suffix(']').unwrap_or(host);
        Some(Self {
            host: host.to_owned(),
            port: port.parse().ok()?,
        })
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Servers and sentinels send hosts.
        let host = shown(&self.host, MAX_HOST);
        if host.contains(':') {
            write!(f, "[{host}]:{}", self.port)
        } else {
            write!(f, "{host}:{}", self.port)
        }
    }
}

impl fmt::Debug for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The most bytes of a host that is shown: a name in the DNS has at most 253.
const MAX_HOST: usize = 253;

#[cfg(test)]
mod tests {
    use crate::remote::connection::classify::classify;

    use super::*;

    fn redirect(reply: &str, requests: usize) -> Option<Redirect> {
        let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes());
        let error = reply.and_then(redis::Value::extract_error);
        Redirect::of(&classify(error.expect_err("an error reply")), requests)
    }

    #[test]
    fn redirects_are_read_from_error_replies() {
        let at = |host: &str| NodeAddress {
            host: host.to_owned(),
            port: 6_379,
        };
        for (reply, expected) in [
            (
                "MOVED 3999 10.0.0.2:6379",
                Some(Redirect::Moved {
                    slot: 3_999,
                    to: at("10.0.0.2"),
                }),
            ),
            (
                "ASK 3999 2001:db8::1:6379",
                Some(Redirect::Ask(at("2001:db8::1"))),
            ),
            ("ASK 3999 :6379", Some(Redirect::Ask(at("")))),
            (
                "TRYAGAIN Multiple keys request during rehashing of slot",
                Some(Redirect::TryAgain),
            ),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                Some(Redirect::Split),
            ),
            ("MOVED 3999", None),
            ("MOVED 3999 ?:6379", None),
            ("MOVED 3999 host:none", None),
            ("CLUSTERDOWN Hash slot not served", None),
        ] {
            assert_eq!(redirect(reply, 2), expected, "{reply}");
        }
        assert_eq!(redirect("CROSSSLOT of one request", 1), None);
    }

    #[test]
    fn host_that_a_server_sends_stays_on_one_line_of_bounded_length() {
        let shown = |host: &str| {
            let host = host.to_owned();
            NodeAddress { host, port: 6_379 }.to_string()
        };
        assert_eq!(shown("a\r\nINFO b\u{1b}"), "a\\r\\nINFO b\\u{1b}:6379");
        assert!(shown(&"x".repeat(1 << 20)).len() < 300);
    }
}
