//! Settings of the server: where it is, and how connections to it are made.

use deadpool_redis::Pool;

use std::sync::Arc;

use crate::error::{Error, ErrorKind};

use super::{
    connection::{
        Address, ConnectionSettings, Credentials, Endpoint, Login, Provider, Security, Sentinels,
        Session,
    },
    sentinel::Sentinel,
    url::{self, Location},
};

#[cfg(feature = "tls-rustls-no-provider")]
use super::connection::TlsConfig;

/// Settings of the server. Those that are set take the place of those in the URL.
#[derive(Clone)]
pub(super) struct ServerSettings {
    pub source: ServerSource,
    pub username: Option<String>,
    pub password: Option<String>,
    pub provider: Option<Provider>,
    pub database: Option<u32>,
    pub is_resp3: Option<bool>,
    #[cfg(feature = "tls-rustls-no-provider")]
    pub tls: Option<TlsConfig>,
}

/// Where the connections come from.
#[derive(Clone)]
pub(super) enum ServerSource {
    Address(Address),
    /// A pool of the application.
    Pool(Pool),
    Sentinel(Sentinel),
    /// A URL. It is parsed when the store is built.
    Url(String),
}

/// A server and its settings in full.
struct Target {
    location: Location,
    /// The settings of connections to the sentinels, if they differ from those of the server.
    sentinel: Option<ConnectionSettings>,
    login: Login,
    session: Session,
    uses_tls: bool,
}

impl ServerSettings {
    /// Returns the default settings.
    pub fn new(source: ServerSource) -> Self {
        Self {
            source,
            username: None,
            password: None,
            provider: None,
            database: None,
            is_resp3: None,
            #[cfg(feature = "tls-rustls-no-provider")]
            tls: None,
        }
    }

    /// Returns the endpoint of the first server.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidUrl`], and [`ErrorKind::InvalidConfig`] for settings that contradict each other or cannot be
    /// used.
    pub fn endpoint(&self) -> Result<Endpoint, Error> {
        let target = match &self.source {
            ServerSource::Pool(pool) => return self.over_pool(pool),
            ServerSource::Url(url) => Target::of_url(url)?,
            ServerSource::Address(address) => Target::at(Location::Server(address.clone())),
            ServerSource::Sentinel(sentinel) => {
                let mut target = Target::at(sentinel.location()?);
                target.sentinel = Some(sentinel.settings()?);
                target
            }
        };
        let security = self.security(&target)?;
        let settings = Arc::new(ConnectionSettings {
            security: security.clone(),
            login: self.login(target.login)?,
            session: Session {
                database: self.database.map_or(target.session.database, i64::from),
                is_resp3: self.is_resp3.unwrap_or(target.session.is_resp3),
            },
        });
        Ok(match target.location {
            Location::Server(address) => Endpoint::Server(address, settings),
            Location::Sentinels { primary, addresses } => {
                // A URL has no user for the sentinels, and its TLS is for them too.
                let sentinel = target.sentinel.unwrap_or_else(|| ConnectionSettings {
                    security,
                    ..ConnectionSettings::default()
                });
                let sentinels = Sentinels {
                    primary,
                    addresses,
                    settings: Arc::new(sentinel),
                };
                Endpoint::Sentinels(Arc::new(sentinels), settings)
            }
        })
    }

    /// Returns the endpoint over a pool. The pool has its own settings.
    fn over_pool(&self, pool: &Pool) -> Result<Endpoint, Error> {
        let has_login = self.username.is_some() || self.password.is_some();
        let has_session = self.database.is_some() || self.is_resp3.is_some();
        if has_login || has_session || self.provider.is_some() || self.has_tls() {
            return Err(invalid(
                "settings of connections are set for a pool, which has its own: set them there, or use a url",
            ));
        }
        Ok(Endpoint::Pool(pool.clone()))
    }

    /// Returns the user, from the settings or from the URL.
    fn login(&self, of_url: Login) -> Result<Login, Error> {
        let is_fixed = self.username.is_some() || self.password.is_some();
        match (&self.provider, of_url) {
            (Some(_), Login::Fixed(_)) => Err(invalid(TWO_LOGINS)),
            (Some(_), _) if is_fixed => Err(invalid(TWO_LOGINS)),
            (Some(provider), _) => Ok(Login::Provider(provider.clone())),
            (None, of_url) if is_fixed => self.fixed(of_url),
            (None, of_url) => Ok(of_url),
        }
    }

    /// Returns the user of the settings, with what they do not set from the URL.
    fn fixed(&self, of_url: Login) -> Result<Login, Error> {
        let (username, password) = match of_url {
            Login::Fixed(credentials) => credentials.into_parts(),
            Login::None | Login::Provider(_) => (None, None),
        };
        let username = self.username.clone().or(username);
        match self.password.clone().or(password) {
            Some(password) => Ok(login(username, password)),
            None => Err(invalid(
                "a redis user name is set without a password: set the password too",
            )),
        }
    }

    #[cfg(feature = "tls-rustls-no-provider")]
    fn has_tls(&self) -> bool {
        self.tls.is_some()
    }

    #[cfg(not(feature = "tls-rustls-no-provider"))]
    #[expect(clippy::unused_self, reason = "the same method with and without TLS")]
    fn has_tls(&self) -> bool {
        false
    }

    #[cfg(feature = "tls-rustls-no-provider")]
    fn security(&self, target: &Target) -> Result<Security, Error> {
        if matches!(target.location, Location::Server(Address::Unix(_))) && self.has_tls() {
            return Err(invalid(
                "TLS is set for a unix socket, which is not encrypted: remove it",
            ));
        }
        match (&self.tls, target.uses_tls) {
            (Some(tls), _) => tls.build().map(Security::Tls),
            (None, true) => TlsConfig::new().build().map(Security::Tls),
            (None, false) => Ok(Security::Plain),
        }
    }

    #[cfg(not(feature = "tls-rustls-no-provider"))]
    #[expect(clippy::unused_self, reason = "the same method with and without TLS")]
    fn security(&self, target: &Target) -> Result<Security, Error> {
        if target.uses_tls {
            return Err(Error::new(
                ErrorKind::InvalidUrl,
                "a rediss url needs TLS: enable the feature tls-rustls of tollgate",
            ));
        }
        Ok(Security::Plain)
    }
}

impl Target {
    /// Returns a target with the default settings.
    fn at(location: Location) -> Self {
        Self {
            location,
            sentinel: None,
            login: Login::None,
            session: Session::default(),
            uses_tls: false,
        }
    }

    fn of_url(url: &str) -> Result<Self, Error> {
        let parsed = url::parse(url)?;
        Ok(Self {
            location: parsed.location,
            sentinel: None,
            login: match parsed.password {
                Some(password) => login(parsed.username, password),
                None => Login::None,
            },
            session: Session {
                database: parsed.database,
                is_resp3: parsed.is_resp3,
            },
            uses_tls: parsed.uses_tls,
        })
    }
}

/// Returns a fixed user; the default one without a name.
pub(super) fn login(username: Option<String>, password: String) -> Login {
    Login::Fixed(match username {
        Some(username) => Credentials::new(username, password),
        None => Credentials::password(password),
    })
}

fn invalid(message: &'static str) -> Error {
    Error::new(ErrorKind::InvalidConfig, message)
}

const TWO_LOGINS: &str =
    "both a redis password and a provider of credentials are set: remove one of them";

#[cfg(all(test, not(feature = "tls-rustls-no-provider")))]
mod tests {
    use super::*;

    #[test]
    fn url_for_tls_without_the_feature_is_an_error_with_its_name() {
        for url in ["rediss://host", "rediss-sentinel://host?sentinelMasterId=x"] {
            let settings = ServerSettings::new(ServerSource::Url(url.to_owned()));
            let error = settings.endpoint().expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidUrl);
            assert!(error.to_string().contains("feature tls-rustls"), "{error}");
        }
    }
}
