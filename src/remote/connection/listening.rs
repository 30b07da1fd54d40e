//! A separate connection for the messages of a channel, and for commands with large replies.
//!
//! Its protocol is RESP3, in which messages come between the replies. Lanes carry decisions only: a large reply on one of them
//! would delay the decisions behind it.
//!
//! # Why do rules in Redis have a connection for themselves?
//!
//! A set can have 1 MiB. On a lane, its reply would delay the decisions behind it beyond their deadline. A connection for
//! announcements is needed anyway, and in RESP3 it can carry commands too. An announcement has no content: each leads to a read
//! of the version, so a lost, late or doubled one does no harm, and a poll takes the same way. A version is its number and its
//! time, since a failover may lose a version whose number is then given again.
//!
//! A push compares the version and stores the set in one script, so of two authors who have edited one version, one gets a
//! conflict. The script announces before it writes. A user who may not announce then stores nothing, instead of a set that the
//! other instances find late.

use std::convert::Infallible;

use redis::{
    AsyncConnectionConfig, Cmd, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo,
    RedisError, Value, aio::MultiplexedConnection,
};
use tokio::sync::watch;

use crate::{
    error::{Error, ErrorKind},
    task::Mutex,
};

use super::{
    address::Address, classify, credentials::Credentials, direct::ConnectionSettings,
    endpoint::Endpoint, multiplexed::Tasks, stream, write_first::WriteFirst,
};

/// A connection that listens to one channel.
pub(in crate::remote) struct Listening {
    connection: MultiplexedConnection,
    /// Changes with each message, and is closed with the connection. `None` if the user may not listen.
    messages: Option<Mutex<watch::Receiver<()>>>,
    _tasks: Tasks,
}

impl Listening {
    /// Connects and listens. `received` is called with each message. It has no timeout: the caller drops the future.
    ///
    /// # Errors
    ///
    /// Those of the dial, the server's errors to the handshake, and [`ErrorKind::InvalidConfig`] for a pool, whose
    /// connections have other settings.
    pub async fn open(
        endpoint: &Endpoint,
        channel: &[u8],
        received: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        match endpoint {
            Endpoint::Pool(_) => Err(Error::new(
                ErrorKind::InvalidConfig,
                "connections of a pool cannot listen",
            )),
            Endpoint::Sentinels(sentinels, settings) => {
                // Only for the address: the connection has no channel for messages.
                let (address, _) = sentinels.connect(settings).await?;
                Self::dial(&Address::Tcp(address), settings, channel, received).await
            }
            Endpoint::Server(address, settings) => {
                Self::dial(address, settings, channel, received).await
            }
        }
    }

    async fn dial(
        address: &Address,
        settings: &ConnectionSettings,
        channel: &[u8],
        received: impl Fn(&[u8]) + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let (stream, _) = stream::open(address, &settings.security).await?;
        let credentials = settings.login.credentials().await?;
        let (sender, messages) = watch::channel(());
        let on_push = move |push: PushInfo| -> Result<(), Infallible> {
            if push.kind == PushKind::Message {
                if let Some(Value::BulkString(message)) = push.data.last() {
                    received(message);
                }
                sender.send_replace(());
            }
            Ok(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_push_sender(on_push);
        let login = login(credentials, settings.session.database);
        let connected =
            MultiplexedConnection::new_with_config(&login, WriteFirst::new(stream), config);
        let (connection, driver) = connected.await.map_err(|error| refused(address, &error))?;
        let mut opened = Self {
            connection,
            messages: None,
            _tasks: Tasks::of(driver),
        };
        let mut subscribe = redis::cmd("SUBSCRIBE");
        subscribe.arg(channel);
        match opened.send(&subscribe).await {
            Ok(_) => opened.messages = Some(Mutex::new(messages)),
            Err(error) if error.code() == Some("NOPERM") => {}
            Err(error) => return Err(classify::classify(error)),
        }
        Ok(opened)
    }

    /// Returns whether the user may listen.
    pub fn may_listen(&self) -> bool {
        self.messages.is_some()
    }

    /// Sends a command and waits for its reply.
    ///
    /// # Errors
    ///
    /// Those of the connection, and error replies.
    pub async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        let mut connection = self.connection.clone();
        let reply = connection.send_packed_command(command).await?;
        reply.extract_error()
    }

    /// Waits for a message that no earlier call has returned for. `false` at once if the user may not listen.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Connect`] at the end of the connection.
    pub async fn message(&self) -> Result<bool, Error> {
        let Some(shared) = &self.messages else {
            return Ok(false);
        };
        let mut messages = shared.lock().clone();
        messages.changed().await.map_err(|_| classify::closed())?;
        *shared.lock() = messages;
        Ok(true)
    }
}

/// Returns the settings of the handshake, which the client library performs.
fn login(credentials: Option<Credentials>, database: i64) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(database)
        .set_skip_set_lib_name();
    if let Some(Credentials {
        username, password, ..
    }) = credentials
    {
        login = login.set_password(password);
        if let Some(username) = username {
            login = login.set_username(username);
        }
    }
    login
}

/// Names the server in the error of a handshake. The text of the server is left out: it may repeat the password.
fn refused(address: &Address, error: &RedisError) -> Error {
    let error = classify::login_error(error);
    let message = format!("no connection for messages to redis at {address}: {error}");
    Error::new(error.kind(), message)
}
