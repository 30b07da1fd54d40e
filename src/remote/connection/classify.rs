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

/// Whether the connection on which one request of a call failed with this error must not be used again.
pub(in crate::remote) fn ends_connection(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let error = source.and_then(|source| source.downcast_ref::<RedisError>());
    error.is_some_and(breaks_connection)
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
const UNAVAILABLE: [(&str, &str); 16] = [
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
    ("NOPERM", NO_PERMISSION),
    // The same for a command inside a script: Redis and Valkey have each a text and no code for it.
    ("The user executing the script can't", NO_PERMISSION),
    ("ACL failure in script", NO_PERMISSION),
];
const NO_PERMISSION: &str =
    "the redis user may not run a command or touch a key that decisions need";
const NO_PASSWORD: &str = "redis needs a password: put it in the url, as in redis://:password@host";
const CLOSED: &str = "the connection to redis broke or could not be made";
const CLUSTER: &str =
    "redis is part of a cluster, which tollgate does not speak to: name a server that stands alone";
