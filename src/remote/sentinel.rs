//! Settings of the sentinels that name the primary.

use std::fmt;

use crate::error::{Error, ErrorKind};

use super::{
    connection::{ConnectionSettings, Credentials, Login, Security, Session},
    protocol::NodeAddress,
    url::Location,
};

#[cfg(feature = "tls-rustls-no-provider")]
use super::connection::TlsConfig;

/// The sentinels of a primary, and the name that they have for it.
///
/// Each dial asks all of them at once and uses the first address that is a primary. The store dials again when a
/// connection is lost and when the server becomes a replica, and so it follows a failover. For a primary that is only cut
/// off, see the [module docs](super#servers).
///
/// User, password, database and TLS of the server are settings of the [`RedisStoreBuilder`](super::RedisStoreBuilder).
/// Formatting it shows no password.
///
/// # Examples
///
/// ```
/// use tollgate::remote::{RedisStoreBuilder, Sentinel};
///
/// # fn example() -> Result<(), tollgate::Error> {
/// let sentinel = Sentinel::new("limits")
///     .address("10.0.0.1", 26379)
///     .address("10.0.0.2", 26379)
///     .address("10.0.0.3", 26379)
///     .password("of the sentinels");
/// let store = RedisStoreBuilder::over_sentinel(sentinel)
///     .username("limiter")
///     .password("of the server")
///     .build()?;
/// # Ok(())
/// # }
/// # example().unwrap();
/// ```
#[derive(Clone)]
#[must_use]
pub struct Sentinel {
    primary: String,
    addresses: Vec<NodeAddress>,
    username: Option<String>,
    password: Option<String>,
    #[cfg(feature = "tls-rustls-no-provider")]
    tls: Option<TlsConfig>,
}

impl Sentinel {
    /// Returns settings for the primary that the sentinels watch under this name.
    pub fn new(primary: impl Into<String>) -> Self {
        Self {
            primary: primary.into(),
            addresses: Vec::new(),
            username: None,
            password: None,
            #[cfg(feature = "tls-rustls-no-provider")]
            tls: None,
        }
    }

    /// Adds a sentinel. Its usual port is 26379.
    ///
    /// Default: none; at least one is needed. Add all of them: the store does not look for others.
    pub fn address(mut self, host: impl Into<String>, port: u16) -> Self {
        let host = host.into();
        self.addresses.push(NodeAddress { host, port });
        self
    }

    /// Sets the ACL user of connections to the sentinels.
    ///
    /// Default: the default user.
    pub fn username(mut self, username: impl Into<String>) -> Self {
        self.username = Some(username.into());
        self
    }

    /// Sets the password of connections to the sentinels.
    ///
    /// Default: none. That of the server is not used.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Encrypts connections to the sentinels.
    ///
    /// Default: not encrypted, whatever the connections to the server are.
    #[cfg(feature = "tls-rustls-no-provider")]
    pub fn tls(mut self, tls: TlsConfig) -> Self {
        self.tls = Some(tls);
        self
    }

    /// Returns the sentinels to ask.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if there is none, or the name is empty.
    pub(super) fn location(&self) -> Result<Location, Error> {
        if self.addresses.is_empty() || self.primary.is_empty() {
            return Err(Error::new(
                ErrorKind::InvalidConfig,
                "sentinels need a name of the primary and at least one address: Sentinel::new(name).address(host, 26379)",
            ));
        }
        Ok(Location::Sentinels {
            primary: self.primary.clone(),
            addresses: self.addresses.clone(),
        })
    }

    /// Returns the settings of connections to the sentinels.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for a user without a password, and for unusable certificates.
    pub(super) fn settings(&self) -> Result<ConnectionSettings, Error> {
        let login = match (self.username.clone(), self.password.clone()) {
            (None, None) => Login::None,
            (None, Some(password)) => Login::Fixed(Credentials::password(password)),
            (Some(username), Some(password)) => Login::Fixed(Credentials::new(username, password)),
            (Some(_), None) => {
                return Err(Error::new(
                    ErrorKind::InvalidConfig,
                    "a sentinel has a user name without a password: set the password too",
                ));
            }
        };
        Ok(ConnectionSettings {
            security: self.security()?,
            login,
            session: Session::default(),
        })
    }

    #[cfg(feature = "tls-rustls-no-provider")]
    fn security(&self) -> Result<Security, Error> {
        match &self.tls {
            Some(tls) => tls.build().map(Security::Tls),
            None => Ok(Security::Plain),
        }
    }

    #[cfg(not(feature = "tls-rustls-no-provider"))]
    #[expect(
        clippy::unused_self,
        clippy::unnecessary_wraps,
        reason = "the same method with and without TLS"
    )]
    fn security(&self) -> Result<Security, Error> {
        Ok(Security::Plain)
    }
}

impl fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinel")
            .field("primary", &self.primary)
            .field("addresses", &self.addresses)
            .field("username", &self.username)
            .finish_non_exhaustive()
    }
}
