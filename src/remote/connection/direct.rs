//! Makes a connection to one address: stream, handshake, and the renewal of its credentials.
//!
//! ```text
//! stream::open         resolves the host, connects, and sets the socket's options
//! Login::credentials   asks the provider, if there is one
//! handshake::perform   authenticates, and selects the database
//! Renewal::run         authenticates again before the credentials expire, until the connection ends
//! ```
//!
//! Nothing before the renewal waits for a timer: the lane drops the future when its time is up.

use std::{sync::Arc, time::Duration};

use redis::aio::MultiplexedConnection;

use crate::{
    diagnosis::{ErrorChain, log},
    error::{Error, ErrorKind, Phase},
    task::{
        Backoff,
        backoff::jittered,
        timer::{sleep, timeout},
    },
};

use super::{
    address::Address,
    classify,
    credentials::Login,
    handshake::{self, Session},
    multiplexed::{self, Connection},
    stream::{self, Security},
};

/// Settings of connections, for any address.
#[derive(Clone, Debug, Default)]
pub(in crate::remote) struct ConnectionSettings {
    pub security: Security,
    pub login: Login,
    pub session: Session,
}

/// The role that a server must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expects {
    Anything,
    Primary,
}

/// Makes a connection that is ready for commands. It has no timeout: the caller drops the future.
///
/// # Errors
///
/// Those of [`stream::open`], of the provider of credentials, and of the handshake. [`ErrorKind::Unavailable`] for a
/// replica where a primary is expected.
pub(super) async fn connect(
    address: &Address,
    settings: &Arc<ConnectionSettings>,
    expects: Expects,
) -> Result<Connection, Error> {
    let (stream, peer) = stream::open(address, &settings.security).await?;
    let credentials = settings.login.credentials().await?;
    let (connection, mut tasks) = multiplexed::multiplex(stream).await?;
    let asks_role = expects == Expects::Primary;
    let login = credentials.as_ref();
    let greeting = handshake::perform(&connection, peer, login, &settings.session, asks_role)
        .await
        .map_err(|error| explain(address, &settings.security, error))?;
    if asks_role && greeting.role.is_some_and(|role| role != "master") {
        return Err(Error::new(
            ErrorKind::Unavailable,
            format!("redis at {address} is a replica: a sentinel still returns it as the primary"),
        ));
    }
    let lifetime = credentials.and_then(|credentials| credentials.expires_in);
    if let Some(lifetime) = lifetime
        && settings.login.is_renewable()
    {
        let renewal = Renewal {
            address: address.clone(),
            settings: Arc::clone(settings),
            connection: connection.clone(),
        };
        tasks.add(renewal.run(lifetime));
    }
    Ok(Connection::new(connection, tasks, greeting.run))
}

/// Names the server in the error of a handshake, and explains the end of a connection: the message of the server is often
/// lost.
///
/// Over TLS 1.3 a server checks the client's certificate only after the client has ended its part of the TLS handshake.
fn explain(address: &Address, security: &Security, error: Error) -> Error {
    // A TLS port replies to plain text with an alert, or closes the connection.
    let is_alert = error.kind() == ErrorKind::Protocol && !security.is_encrypted();
    if error.kind() != ErrorKind::Connect && !is_alert {
        let message = format!("no connection to redis at {address}: {error}");
        return Error::new(error.kind(), message).with_source(error);
    }
    let advice = if security.is_encrypted() {
        "it closed the connection after the TLS handshake, perhaps for the client certificate: check \
         TlsConfig::client_certificate"
    } else {
        "it sent no reply during the handshake: does this port need TLS (rediss://), or has the server too many \
         clients?"
    };
    let message = format!("no connection to redis at {address}: {advice}");
    Error::new(ErrorKind::Connect, message).with_source(error)
}

// === Renewal ===

/// Authenticates a connection again before its credentials expire.
///
/// AUTH changes the user of later commands only, and if it fails nothing changes. So no decision waits or fails.
struct Renewal {
    address: Address,
    settings: Arc<ConnectionSettings>,
    connection: MultiplexedConnection,
}

/// The result of an attempt to renew the credentials.
enum Renewed {
    /// The connection has ended.
    Closed,
    Failed(Error),
    /// The new credentials expire after this time, if ever.
    Until(Option<Duration>),
}

impl Renewal {
    async fn run(mut self, lifetime: Duration) {
        let mut backoff = Backoff::new(FIRST_RETRY, MAX_RETRY);
        let mut is_failing = false;
        let mut wait = time_to_renewal(lifetime);
        loop {
            sleep(wait).await;
            let renewed = timeout(RENEWAL_TIMEOUT, self.renew()).await;
            match renewed.unwrap_or_else(|| Renewed::Failed(too_slow())) {
                Renewed::Closed | Renewed::Until(None) => return,
                Renewed::Failed(error) => {
                    if !is_failing {
                        log::event!(
                            WARN,
                            "the credentials of a redis connection could not be renewed",
                            server = self.address,
                            error = ErrorChain(&error),
                        );
                    }
                    is_failing = true;
                    wait = backoff.wait();
                }
                Renewed::Until(Some(lifetime)) => {
                    is_failing = false;
                    backoff.reset();
                    wait = time_to_renewal(lifetime);
                }
            }
        }
    }

    /// Asks for credentials, and authenticates with them.
    async fn renew(&mut self) -> Renewed {
        let credentials = match self.settings.login.credentials().await {
            Ok(Some(credentials)) => credentials,
            Ok(None) => return Renewed::Until(None),
            Err(error) => return Renewed::Failed(error),
        };
        let auth = handshake::auth(&credentials);
        match self.connection.send_packed_command(&auth).await {
            Err(_) => Renewed::Closed,
            Ok(reply) => match reply.extract_error() {
                Ok(_) => Renewed::Until(credentials.expires_in),
                Err(error) => Renewed::Failed(classify::login_error(&error)),
            },
        }
    }
}

/// Returns when to renew credentials: after 75 % to 85 % of their lifetime, at random, so that a fleet does not ask in
/// step.
fn time_to_renewal(lifetime: Duration) -> Duration {
    // "Never" may be the longest duration there is.
    let lifetime = lifetime.min(LONGEST_LIFETIME);
    (lifetime * 13 / 20 + jittered(lifetime / 5)).max(MIN_TIME)
}

fn too_slow() -> Error {
    Error::new(
        ErrorKind::Timeout(Phase::Connect),
        format!("no new credentials, or no reply to AUTH, within {RENEWAL_TIMEOUT:?}"),
    )
}

/// Credentials with a longer lifetime are renewed as if they had this one: a year.
const LONGEST_LIFETIME: Duration = Duration::from_secs(366 * 86_400);
/// The least time between two renewals.
const MIN_TIME: Duration = Duration::from_millis(100);
/// The longest time of an attempt: nobody waits for it.
const RENEWAL_TIMEOUT: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);
