//! Finds the primary through Sentinel, anew at each dial.
//!
//! ```text
//! all sentinels at once   SENTINEL GET-MASTER-ADDR-BY-NAME
//! each address returned   one dial, and HELLO: a replica is given up
//! the first primary       is used; all else is dropped
//! ```
//!
//! A sentinel that is down or cut off, or that returns the primary of an hour ago, does not delay the others. The
//! whole search ends with the connect timeout of the lane, so the sentinels need no other timeout. A dial waits its
//! turn by the backoff of the lane.
//!
//! The client library has a client for Sentinel too. It asks one sentinel after the other, and its connections to them
//! need timers of the runtime and a process-wide cryptography provider.
//!
//! # Why are all sentinels asked at once?
//!
//! The usual way is one sentinel after the other, each with a timeout. A sentinel that does not reply then delays every dial, and
//! one that is cut off may return an old primary. The cost is one connection per sentinel and dial, and dials are rare. Sentinel
//! needs no other crate than a single server does, so it is not a feature.

use std::{fmt, sync::Arc};

use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::cmd;

use crate::error::{Error, ErrorKind};

use super::{
    super::protocol::NodeAddress,
    address::Address,
    classify,
    direct::{self, ConnectionSettings, Expects},
    multiplexed::Connection,
};

/// The sentinels that watch a primary.
#[derive(Clone)]
pub(in crate::remote) struct Sentinels {
    /// The name that they have for the primary.
    pub primary: String,
    pub addresses: Vec<NodeAddress>,
    /// The settings of connections to them.
    pub settings: Arc<ConnectionSettings>,
}

/// The end of one step of a search.
enum SearchStep {
    /// A sentinel returned an address.
    Found(Result<NodeAddress, Error>),
    Dialled(NodeAddress, Result<Box<Connection>, Error>),
}

impl Sentinels {
    /// Connects to the primary, with these settings. Returns its address, too.
    ///
    /// # Errors
    ///
    /// The last error of an address that a sentinel returned, or the first error of a sentinel.
    pub(super) async fn connect(
        &self,
        settings: &Arc<ConnectionSettings>,
    ) -> Result<(NodeAddress, Connection), Error> {
        let mut steps = FuturesUnordered::new();
        for sentinel in &self.addresses {
            let look_up = async { SearchStep::Found(self.look_up(sentinel).await) };
            steps.push(futures_util::future::Either::Left(look_up));
        }
        let mut tried: Vec<NodeAddress> = Vec::new();
        let mut failure = None;
        while let Some(step) = steps.next().await {
            match step {
                SearchStep::Found(Ok(address)) if tried.contains(&address) => {}
                SearchStep::Found(Ok(address)) => {
                    tried.push(address.clone());
                    let dial = async move {
                        let tcp = Address::Tcp(address.clone());
                        let dialled = direct::connect(&tcp, settings, Expects::Primary).await;
                        SearchStep::Dialled(address, dialled.map(Box::new))
                    };
                    steps.push(futures_util::future::Either::Right(dial));
                }
                SearchStep::Found(Err(error)) => failure = failure.or(Some(error)),
                SearchStep::Dialled(address, Ok(connection)) => return Ok((address, *connection)),
                SearchStep::Dialled(_, Err(error)) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(no_sentinels))
    }

    /// Asks one sentinel.
    async fn look_up(&self, sentinel: &NodeAddress) -> Result<NodeAddress, Error> {
        let address = Address::Tcp(sentinel.clone());
        let connection = direct::connect(&address, &self.settings, Expects::Anything);
        let connection = connection
            .await
            .map_err(|error| login_error(sentinel, error))?;
        let mut command = cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.primary);
        let mut handle = connection.handle();
        let reply = handle.multiplexed.send_packed_command(&command).await;
        let reply = reply.and_then(redis::Value::extract_error);
        let reply = reply.map_err(|error| {
            let advice = match error.code() {
                Some("NOAUTH" | "NOPERM") => LOGIN_ADVICE,
                Some("ERR") => ": is it a sentinel?",
                Some(_) | None => "",
            };
            let message = format!("the sentinel at {sentinel} did not return the primary{advice}");
            let error = classify::classify(error);
            Error::new(error.kind(), message).with_source(error)
        })?;
        match redis::from_redis_value::<Option<(String, u16)>>(reply) {
            Ok(Some((host, port))) => Ok(NodeAddress { host, port }),
            Ok(None) => Err(Error::new(
                ErrorKind::InvalidConfig,
                format!(
                    "the sentinel at {sentinel} does not watch a primary named {:?}: use the name in its configuration",
                    self.primary
                ),
            )),
            Err(error) => Err(Error::new(
                ErrorKind::Protocol,
                format!("the sentinel at {sentinel} did not return a host and a port"),
            )
            .with_source(error)),
        }
    }
}

/// Names the sentinels in an error.
impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sentinels at ")?;
        for (index, address) in self.addresses.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{address}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels")
            .field("primary", &self.primary)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

/// Returns the error of a sentinel with which no connection was made.
fn login_error(sentinel: &NodeAddress, error: Error) -> Error {
    let advice = match error.kind() {
        ErrorKind::Connect => "",
        _ => {
            ": its login is that of Sentinel::username and Sentinel::password, not that of the url"
        }
    };
    let message = format!("no connection to the sentinel at {sentinel}{advice}");
    Error::new(error.kind(), message).with_source(error)
}

const LOGIN_ADVICE: &str =
    ": its login is that of Sentinel::username and Sentinel::password, not that of the url";

fn no_sentinels() -> Error {
    Error::new(ErrorKind::InvalidConfig, "no sentinel has an address")
}
