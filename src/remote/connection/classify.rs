//! What a failure of the server or the connection means.

use redis::RedisError;
use tokio::runtime::TryCurrentError;

use crate::error::{Error, ErrorKind};

/// An error from the client library in our words.
pub(in crate::remote) fn classify(error: RedisError) -> Error {
    let (kind, message) = meaning(&error);
    Error::new(kind, message).with_source(error)
}

/// The error in our words, and whether the connection must not be used again.
pub(in crate::remote) fn judge(error: RedisError) -> (Error, bool) {
    let is_broken = breaks_connection(&error);
    (classify(error), is_broken)
}

/// Whether an error reply to one request of a call means that the connection must not be used again.
pub(in crate::remote) fn ends_connection(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref());
    source.is_some_and(breaks_connection)
}

/// The error of a connection that was found closed.
pub(in crate::remote) fn closed() -> Error {
    Error::new(ErrorKind::Connect, CLOSED)
}

/// The error of a server that runs in cluster mode, as the server returns it to a decision with keys in several slots.
pub(super) fn cluster_mode() -> RedisError {
    let kind = redis::ErrorKind::Server(redis::ServerErrorKind::CrossSlot);
    RedisError::from((kind, "redis_mode is cluster"))
}

/// The error of a caller outside of any Tokio runtime.
pub(in crate::remote) fn no_runtime(error: TryCurrentError) -> Error {
    Error::new(
        ErrorKind::Connect,
        "no tokio runtime: ask for decisions inside of one",
    )
    .with_source(error)
}

/// Whether the server does not know the script (yet).
pub(in crate::remote) fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Whether the connection must not be used again.
///
/// READONLY among them: a demoted primary answers PING and keeps its connections, so nothing else would end them. After
/// CROSSSLOT a new connection shows whether the server still runs in cluster mode.
fn breaks_connection(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || error.code().is_none()
        || says(error, "CROSSSLOT")
        || says(error, "READONLY")
        || says(error, "NOAUTH")
        || says(error, "unauthenticated")
}

fn meaning(error: &RedisError) -> (ErrorKind, &'static str) {
    if error.is_io_error() || error.is_connection_dropped() || error.is_connection_refusal() {
        return (ErrorKind::Connect, CLOSED);
    }
    if error.code().is_none() {
        return match error.kind() {
            redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => {
                (ErrorKind::Protocol, "redis sent something that is no reply")
            }
            redis::ErrorKind::AuthenticationFailed => (
                ErrorKind::Unavailable,
                "redis refused the user name or password",
            ),
            _ => (
                ErrorKind::Connect,
                "the connection to redis could not be used",
            ),
        };
    }
    if says(error, "TOLLGATE foreign value") || says(error, "WRONGTYPE") {
        return (
            ErrorKind::ForeignValue,
            "a redis key of tollgate's holds a value that tollgate did not write: choose another prefix",
        );
    }
    if ["ASK", "CROSSSLOT", "MOVED"]
        .iter()
        .any(|code| says(error, code))
    {
        return (ErrorKind::Script, CLUSTER);
    }
    if says(error, "DB index is out of range") {
        return (
            ErrorKind::InvalidConfig,
            "redis does not have the database of the url: take one that it has, as in redis://host/0, or raise its \
             setting databases",
        );
    }
    if FORBIDDEN.iter().any(|text| says(error, text)) {
        return (
            ErrorKind::Script,
            "the redis user may not run the script or a command in it, or touch these keys: allow it to",
        );
    }
    match UNAVAILABLE.iter().find(|(code, _)| says(error, code)) {
        Some((_, message)) => (ErrorKind::Unavailable, message),
        None => (ErrorKind::Script, "redis refused the decision script"),
    }
}

/// Whether the server's answer has this code, or, as an error inside a script has before Redis 7, names it in its text.
fn says(error: &RedisError, what: &str) -> bool {
    match error.code() {
        Some("ERR") => error.detail().is_some_and(|detail| detail.contains(what)),
        Some(code) => code == what,
        None => false,
    }
}

/// Answers of a server that lives and cannot serve now.
const UNAVAILABLE: [(&str, &str); 13] = [
    ("READONLY", "redis is a read-only replica now"),
    ("LOADING", "redis is loading its data"),
    ("MASTERDOWN", "the redis replica has lost its primary"),
    ("CLUSTERDOWN", "the redis cluster is down"),
    ("BUSY", "redis is busy with a script"),
    ("OOM", "redis is out of memory"),
    ("MISCONF", "redis cannot save and refuses to write"),
    ("NOREPLICAS", "redis has too few replicas to write"),
    ("max number of clients", "redis has too many clients"),
    ("NOAUTH", NO_PASSWORD),
    // What a client may send before it has said who it is is short, and the server says so first.
    ("unauthenticated multibulk length", NO_PASSWORD),
    ("unauthenticated bulk length", NO_PASSWORD),
    ("WRONGPASS", "redis refused the user name or password"),
];
/// Answers about a user who lacks a permission: to the whole call, and from inside a script by Redis and by Valkey.
const FORBIDDEN: [&str; 3] = [
    "NOPERM",
    "The user executing the script can't",
    "ACL failure in script",
];
const NO_PASSWORD: &str = "redis needs a password: put it in the url, as in redis://:password@host";
const CLOSED: &str = "the connection to redis broke or could not be made";
const CLUSTER: &str =
    "redis is part of a cluster, which tollgate does not speak to: name a server that stands alone";

#[cfg(test)]
mod tests {
    use super::*;

    /// The error that the server sends with this text.
    fn error(text: &str) -> Error {
        let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        let reply = reply.and_then(redis::Value::extract_error);
        classify(reply.expect_err("an error reply"))
    }

    #[test]
    fn replica_ends_the_connection_and_what_the_server_may_recover_from_does_not() {
        for (text, ends) in [
            (
                "READONLY You can't write against a read only replica.",
                true,
            ),
            ("ERR Error running script: -READONLY You can't write", true),
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                true,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                false,
            ),
            (
                "NOPERM this user has no permissions to run the 'set' command",
                false,
            ),
            ("WRONGTYPE Operation against a key", false),
        ] {
            assert_eq!(ends_connection(&error(text)), ends, "{text}");
        }
        assert!(!ends_connection(&Error::new(ErrorKind::Protocol, "ours")));
    }

    #[test]
    fn missing_permission_is_not_cured_by_waiting() {
        for text in [
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "ERR The user executing the script can't run this command or subcommand script",
            "ERR ACL failure in script: User limited has no permissions to run the 'set' command",
        ] {
            let error = error(text);
            assert_eq!(error.kind(), ErrorKind::Script, "{text}");
            assert!(error.to_string().contains("may not"), "{error}");
        }
    }
}
