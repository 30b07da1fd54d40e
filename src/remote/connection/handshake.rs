//! The first commands on a connection: AUTH or HELLO, SELECT, INFO, and the name of this library.
//!
//! All are sent at once, so the handshake takes one round trip. Each is sent on its own: if the server closes the
//! connection, its last reply is still read.
//!
//! A server that does not have a command repeats its arguments in the error, and so the password. Therefore the text of
//! an error to AUTH or HELLO never leaves this file; its code does.

use std::{collections::HashMap, net::SocketAddr};

use futures_util::future::join_all;
use redis::{Cmd, RedisResult, Value, aio::MultiplexedConnection, cmd};

use crate::error::Error;

use super::{
    classify,
    credentials::Credentials,
    server_run::{ServerRun, info_server},
};

/// The database and the protocol of a connection.
#[derive(Clone, Debug, Default)]
pub(in crate::remote) struct Session {
    /// The number of the database.
    pub database: i64,
    /// Whether replies come in RESP3.
    pub is_resp3: bool,
}

/// The reply of a server to the handshake.
pub(super) struct Greeting {
    /// `master` or `replica`, if it was asked for.
    pub role: Option<String>,
    pub run: Option<ServerRun>,
}

/// Performs the handshake on a connection to `peer`. Asks for the role of the server if `asks_role` is set.
///
/// # Errors
///
/// Those of the connection, the server's errors to AUTH, HELLO and SELECT, and that it runs a slow script: nothing could
/// be decided, and the run of the server would stay unknown.
pub(super) async fn perform(
    connection: &MultiplexedConnection,
    peer: Option<SocketAddr>,
    credentials: Option<&Credentials>,
    session: &Session,
    asks_role: bool,
) -> Result<Greeting, Error> {
    let mut commands = Vec::new();
    let mut add = |command: Cmd| {
        commands.push(command);
        commands.len() - 1
    };
    let login = if session.is_resp3 {
        Some(add(hello_3(credentials)))
    } else {
        credentials.map(|credentials| add(auth(credentials)))
    };
    let role = match (asks_role, session.is_resp3) {
        (true, true) => login,
        (true, false) => Some(add(cmd("HELLO"))),
        (false, _) => None,
    };
    let select = (session.database != 0).then(|| {
        let mut select = cmd("SELECT");
        select.arg(session.database);
        add(select)
    });
    let info = Some(add(info_server()));
    // Redis before 7.2, and users without the right, refuse these two. They are only for the list of clients.
    for (name, value) in [("LIB-NAME", "tollgate"), ("LIB-VER", VERSION)] {
        let mut set = cmd("CLIENT");
        set.arg("SETINFO").arg(name).arg(value);
        add(set);
    }
    let replies = commands.iter().map(|command| {
        let mut connection = connection.clone();
        async move { connection.send_packed_command(command).await }
    });
    let replies = join_all(replies).await;
    if let Some(refusal) = refusal(&replies) {
        return Err(refusal);
    }
    let replies: Vec<Value> = replies
        .into_iter()
        .collect::<Result<_, _>>()
        .map_err(classify::classify)?;
    let reply = |index: Option<usize>| index.and_then(|index| replies.get(index));
    if let Some(Value::ServerError(error)) = reply(login) {
        return Err(classify::login_error(&error.clone().into()));
    }
    if let Some(Value::ServerError(error)) = reply(select) {
        return Err(classify::select_error(error.clone().into()));
    }
    let run = reply(info).map(|info| ServerRun::of(info, peer));
    Ok(Greeting {
        role: reply(role).and_then(|hello| hello_field(hello, "role")),
        run: run.transpose()?.flatten(),
    })
}

/// Returns the error with which the server closed the connection, if it sent one first.
fn refusal(replies: &[RedisResult<Value>]) -> Option<Error> {
    let is_closed = replies.last()?.is_err();
    match replies.first()? {
        Ok(Value::ServerError(error)) if is_closed => {
            Some(classify::login_error(&error.clone().into()))
        }
        Ok(_) | Err(_) => None,
    }
}

/// Returns the command that authenticates.
pub(super) fn auth(credentials: &Credentials) -> Cmd {
    let mut auth = cmd("AUTH");
    auth.arg(credentials.username.as_deref())
        .arg(&credentials.password);
    auth
}

/// Returns the command that switches to RESP3, and authenticates if there are credentials.
fn hello_3(credentials: Option<&Credentials>) -> Cmd {
    let mut hello = cmd("HELLO");
    hello.arg(3);
    if let Some(credentials) = credentials {
        let username = credentials.username.as_deref().unwrap_or("default");
        hello.arg("AUTH").arg(username).arg(&credentials.password);
    }
    hello
}

/// Returns a field of the reply to HELLO: a flat list of names and values, or a map in RESP3.
pub(super) fn hello_field(hello: &Value, name: &str) -> Option<String> {
    let mut fields: HashMap<String, Value> = redis::from_redis_value_ref(hello).ok()?;
    redis::from_redis_value(fields.remove(name)?).ok()
}

const VERSION: &str = env!("CARGO_PKG_VERSION");
