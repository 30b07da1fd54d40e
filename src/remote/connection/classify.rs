//! Turns errors of the Redis client library into errors of this crate, and decides which of them end a connection.
//!
//! ```text
//! the library's error                     kind                             ends the connection
//! I/O, closed, refused                    Connect                          yes
//! bytes that are not a reply              Protocol                         yes
//! an error that is not UTF-8              Script                           yes: it repeats our arguments
//! READONLY                                Unavailable                      yes: a demoted primary
//! NOAUTH, unauthenticated                 Unavailable                      yes
//! NOREPLICAS                              Unavailable                      yes: another primary may be elected
//! MOVED, ASK, TRYAGAIN, CROSSSLOT         Script                           no: see `protocol/redirect.rs`
//! CLUSTERDOWN of one slot                 Unavailable                      no: see `resilience/stuck_slots.rs`
//! LOADING, BUSY, OOM, MISCONF, ...        Unavailable                      no
//! NOPERM, ACL, anything else              Script                           no
//! WRONGTYPE, a value of another program   ForeignValue                     no
//! DB index is out of range                InvalidConfig                    no
//! ```

use std::sync::LazyLock;

use redis::RedisError;
use tokio::runtime::TryCurrentError;

use crate::{
    diagnosis::outside_text::shown,
    error::{Error, ErrorKind},
};

use super::super::protocol::Redirect;

/// Returns the error of this crate for an error of the client library, which becomes its source.
///
/// The error of a server without a command repeats the arguments, which contain keys. So it is not the source.
pub(in crate::remote) fn classify(error: RedisError) -> Error {
    if let Some(command) = unknown_command(&error) {
        let advice = if command.starts_with("EVAL") {
            ": if it is a sentinel, its url begins with redis-sentinel://"
        } else {
            ""
        };
        let command = shown(command, MAX_COMMAND);
        let message =
            format!("redis does not have the command {command}, which tollgate needs{advice}");
        return Error::new(ErrorKind::Script, message);
    }
    let (kind, message) = kind_and_message(&error);
    Error::new(kind, message).with_source(error)
}

/// The most bytes of a command's name that are shown.
const MAX_COMMAND: usize = 40;

/// Returns the name of a command that the server does not have.
fn unknown_command(error: &RedisError) -> Option<&str> {
    let (_, named) = error.detail()?.split_once("unknown command")?;
    let name = named.trim_start_matches([' ', '\'', '`', '"']);
    let end = name.find(|c: char| !c.is_ascii_alphanumeric());
    Some(&name[..end.unwrap_or(name.len())])
}

/// Returns the error of this crate for an error to AUTH or HELLO. It has no source: the text may repeat the password.
pub(super) fn login_error(error: &RedisError) -> Error {
    let (kind, message) = match (error.code(), error.detail().unwrap_or_default()) {
        (Some("ERR"), detail) if detail.contains("without any password configured") => {
            (ErrorKind::InvalidConfig, UNUSED_PASSWORD)
        }
        (Some("ERR"), detail) if !detail.contains("max number of clients") => {
            (ErrorKind::Unavailable, WRONG_LOGIN)
        }
        (Some("DENIED"), _) => (
            ErrorKind::Unavailable,
            "redis is in protected mode: it takes no connection from another host until it has a password",
        ),
        _ => kind_and_message(error),
    };
    Error::new(kind, message)
}

/// Returns the error of this crate for an error to SELECT.
pub(super) fn select_error(error: RedisError) -> Error {
    if error.code() != Some("NOPERM") {
        return classify(error);
    }
    let message = "the user may not select the database: grant it +select, or use database 0";
    Error::new(ErrorKind::Script, message).with_source(error)
}

/// Returns whether the connection that returned this error must not be used again.
pub(in crate::remote) fn ends_connection(error: &Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref());
    // After a reply that cannot be parsed, requests and replies may be out of step.
    error.kind() == ErrorKind::Protocol || source.is_some_and(breaks_connection)
}

/// Returns whether the server refused one hash slot and may serve the others.
pub(in crate::remote) fn is_of_one_slot(error: &Error) -> bool {
    unserved(error).is_some()
}

/// Returns why the server refused a hash slot, if it may serve the others.
pub(in crate::remote) fn unserved(error: &Error) -> Option<&'static str> {
    let source = std::error::Error::source(error)?;
    let error: &RedisError = source.downcast_ref()?;
    let detail = error.detail().unwrap_or_default();
    match error.code()? {
        "CLUSTERDOWN" if detail.contains("slot not served") => {
            Some("no node of the redis cluster serves one of its slots")
        }
        // One with an address is followed, and is no error.
        "ASK" | "MOVED" => Some("the redis cluster has slots at a node without an address"),
        _ => None,
    }
}

/// Returns the error of a connection that was closed before anything was sent on it.
pub(in crate::remote) fn closed() -> Error {
    Error::new(ErrorKind::Connect, CLOSED)
}

/// Returns the error for a key whose value another program wrote.
pub(in crate::remote) fn foreign_value() -> Error {
    Error::new(ErrorKind::ForeignValue, FOREIGN)
}

/// Returns the error of a caller outside a Tokio runtime.
pub(in crate::remote) fn no_runtime(error: TryCurrentError) -> Error {
    Error::new(
        ErrorKind::Connect,
        "no tokio runtime: request decisions from inside one",
    )
    .with_source(error)
}

/// Returns the error of a request that is shed, since this process or the server is too slow. It is made once: an overload is
/// not the time to allocate.
pub(in crate::remote) fn overloaded(is_process_slow: bool) -> Error {
    static PROCESS: LazyLock<Error> = LazyLock::new(|| {
        Error::new(
            ErrorKind::Overloaded,
            "shed: this process is too busy to have all decisions made in time, whatever redis does: it needs more cpu time",
        )
    });
    static SERVER: LazyLock<Error> = LazyLock::new(|| {
        Error::new(
            ErrorKind::Overloaded,
            "shed: more decisions wait for redis than it and the network can make in time",
        )
    });
    Error::clone(if is_process_slow { &PROCESS } else { &SERVER })
}

/// Returns the error of a request whose call ended with its runtime or its connection.
pub(in crate::remote) fn runtime_ended() -> Error {
    Error::new(
        ErrorKind::Connect,
        "the runtime or the connection that carried the decision to redis ended",
    )
}

/// Returns the error of a request that was made before the server was found to be another one. It was not sent.
pub(in crate::remote) fn replaced() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "redis was restarted or replaced: what waited for it was not sent",
    )
}

/// Returns the error of a request whose redirects lead nowhere in time. `redirects` is their number.
pub(in crate::remote) fn unresolved(redirect: &Redirect, redirects: u32) -> Error {
    let message = match redirect {
        Redirect::Ask(to) | Redirect::Moved { to, .. } if redirects <= 2 => {
            format!(
                "the redis cluster redirected the decision to {to}, which did not decide it in time"
            )
        }
        Redirect::Ask(to) | Redirect::Moved { to, .. } => format!(
            "the nodes of the redis cluster redirected the decision {redirects} times, at last to {to}: they disagree \
             about its slot, or one announces the address of another"
        ),
        Redirect::Split | Redirect::TryAgain => {
            "the redis cluster moves the slot of the decision (TRYAGAIN), which took longer than the deadline"
                .to_owned()
        }
    };
    Error::new(ErrorKind::Unavailable, message)
}

/// Returns the error of a request that was redirected to a node with settings that only the application's pool has.
pub(in crate::remote) fn unreachable(redirect: &Redirect) -> Error {
    let to = match redirect {
        Redirect::Ask(to) | Redirect::Moved { to, .. } => to.to_string(),
        Redirect::Split | Redirect::TryAgain => "another node".to_owned(),
    };
    let message = format!(
        "the redis cluster redirected the decision to {to}, which a pool of the application cannot reach: use the url of \
         a node in place of the pool"
    );
    Error::new(ErrorKind::InvalidConfig, message)
}

/// Returns whether the server does not have the script cached.
pub(in crate::remote) fn is_unknown_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

/// Returns whether the connection must not be used again.
///
/// A demoted primary replies to PING and keeps its connections. Only a READONLY error shows that the connections are
/// useless.
fn breaks_connection(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || error.code().is_none()
        || ["READONLY", "NOREPLICAS", "NOAUTH", "unauthenticated"]
            .iter()
            .any(|text| has_code_or_text(error, text))
}

/// Returns the kind and the message for an error of the client library, by its code or its text.
fn kind_and_message(error: &RedisError) -> (ErrorKind, &'static str) {
    if error.is_io_error() || error.is_connection_dropped() || error.is_connection_refusal() {
        return (ErrorKind::Connect, CLOSED);
    }
    if error.code().is_none() {
        return match error.kind() {
            redis::ErrorKind::Parse if error.to_string().contains("utf-8") => {
                (ErrorKind::Script, NOT_TEXT)
            }
            redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => {
                (ErrorKind::Protocol, "redis sent bytes that are not a reply")
            }
            redis::ErrorKind::AuthenticationFailed => (ErrorKind::Unavailable, WRONG_PASSWORD),
            _ => (
                ErrorKind::Connect,
                "the connection to redis could not be used",
            ),
        };
    }
    let matches = |text: &&str| has_code_or_text(error, text);
    if ["TOLLGATE foreign value", "WRONGTYPE"].iter().any(matches) {
        return (ErrorKind::ForeignValue, FOREIGN);
    }
    if ["ASK", "MOVED"].iter().any(matches) {
        return (ErrorKind::Script, NO_ADDRESS);
    }
    if ["CROSSSLOT", "TRYAGAIN"].iter().any(matches) {
        return (ErrorKind::Script, SEVERAL_NODES);
    }
    if matches(&"SELECT is not allowed in cluster mode") {
        return (
            ErrorKind::InvalidConfig,
            "a redis cluster has only database 0: remove the number from the url",
        );
    }
    if matches(&"DB index is out of range") {
        return (
            ErrorKind::InvalidConfig,
            "redis does not have the database in the url: use one that it has, as in redis://host/0, or raise its \
             setting databases",
        );
    }
    if FORBIDDEN.iter().any(matches) {
        return (
            ErrorKind::Script,
            "the redis user may not run the script or a command in it, or touch these keys: grant it these rights",
        );
    }
    match UNAVAILABLE.iter().find(|(text, _)| matches(text)) {
        Some((_, message)) => (ErrorKind::Unavailable, message),
        None => (ErrorKind::Script, "redis refused the decision script"),
    }
}

/// Returns whether the error has this code. An error inside a script has code ERR before Redis 7, so its text is
/// searched.
fn has_code_or_text(error: &RedisError, text: &str) -> bool {
    match error.code() {
        Some("ERR") => error.detail().is_some_and(|detail| detail.contains(text)),
        Some(code) => code == text,
        None => false,
    }
}

/// Errors of a server that is up but cannot serve now.
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
    // Before authentication a server accepts only short commands. It checks the length first.
    ("unauthenticated multibulk length", NO_PASSWORD),
    ("unauthenticated bulk length", NO_PASSWORD),
    ("WRONGPASS", WRONG_PASSWORD),
];
/// Errors of a missing permission: for the whole call, inside a script of Redis, and inside a script of Valkey.
const FORBIDDEN: [&str; 3] = [
    "NOPERM",
    "The user executing the script can't",
    "ACL failure in script",
];
/// A connection that is lost may have been refused, reset or closed: the source has the details.
const CLOSED: &str = "the connection to redis was lost or could not be made";
const NO_ADDRESS: &str = "the redis cluster redirected to a node without an address: set cluster-announce-hostname, or use \
     another cluster-preferred-endpoint-type";
const SEVERAL_NODES: &str = "the keys of one decision are on several nodes of the redis cluster";
const FOREIGN: &str =
    "a redis key of tollgate holds a value that tollgate did not write: choose another prefix";
/// The server repeats the arguments of a command that it lacks, which are no text.
const NOT_TEXT: &str = "redis replied with an error that is no text, as a server does that lacks EVALSHA or EVAL, which tollgate \
     needs";
const NO_PASSWORD: &str = "redis needs a password: put it in the url, as in redis://:password@host";
const UNUSED_PASSWORD: &str =
    "redis has no password for its default user: remove the password, or set one in redis";
const WRONG_LOGIN: &str =
    "redis does not accept the login, or does not have the command for it (AUTH, HELLO)";
const WRONG_PASSWORD: &str = "redis refused the user name or password";

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the error for an error reply with this text.
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
            ("NOREPLICAS Not enough good replicas to write.", true),
            ("MOVED 3999 127.0.0.1:6379", false),
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
        for (kind, ends) in [(ErrorKind::Protocol, true), (ErrorKind::Script, false)] {
            assert_eq!(ends_connection(&Error::new(kind, "ours")), ends, "{kind:?}");
        }
    }

    // Regression: the error and the log contained the keys of callers.
    #[test]
    fn missing_command_is_named_without_its_arguments() {
        for text in [
            "ERR unknown command 'EVALSHA', with args beginning with: '86d2' '1' 'tollgate:{ada}:api' ",
            "ERR unknown command `EVALSHA`, with args beginning with: `tollgate:{ada}:api`, ",
        ] {
            let error = error(text);
            let expected = "redis does not have the command EVALSHA, which tollgate needs";
            assert!(error.to_string().starts_with(expected), "{error}");
            assert!(!format!("{error:?}").contains("ada"), "{error:?}");
        }
        let long = error(&format!("ERR unknown command '{}'", "x".repeat(1 << 20)));
        assert!(long.to_string().len() < 200, "{long}");
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
