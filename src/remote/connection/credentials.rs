//! The user that connections authenticate as: fixed, or from a provider that is asked at each dial.
//!
//! # Why are credentials renewed by AUTH, and not by a new connection?
//!
//! A token that expires ends its connection at some servers. AUTH on a live connection changes the user of later commands only,
//! and if it fails nothing changes: no decision waits, and no connection is lost. A task per connection does it after 75 % to
//! 85 % of the token's lifetime, by the timer of this crate, and ends with the connection. The mechanism of the client library
//! gives up after the first AUTH that fails.

use std::{
    error, fmt,
    future::{Future, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use crate::error::{Error, ErrorKind};

/// A password, or a token in its place, and the user that it belongs to.
///
/// Formatting it shows the user name alone.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::remote::{Credentials, RedisStore};
///
/// async fn token() -> Result<String, std::io::Error> {
///     std::fs::read_to_string("/var/run/secrets/redis-token")
/// }
///
/// let store = RedisStore::builder("redis://cache.internal").credentials(|| async {
///     let token = token().await?;
///     // The service rotates it every 15 minutes.
///     Ok::<_, std::io::Error>(Credentials::new("limiter", token).expires_in(Duration::from_secs(900)))
/// });
/// # let _ = store;
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use]
pub struct Credentials {
    pub(super) username: Option<String>,
    pub(super) password: String,
    pub(super) expires_in: Option<Duration>,
}

impl Credentials {
    /// Returns the credentials of an ACL user.
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            username: Some(username.into()),
            password: password.into(),
            expires_in: None,
        }
    }

    /// Returns the credentials of the default user.
    pub fn password(password: impl Into<String>) -> Self {
        Self {
            username: None,
            password: password.into(),
            expires_in: None,
        }
    }

    /// Sets the time from now until the server ends connections that these credentials opened.
    ///
    /// Default: none, for servers that check credentials only when a connection is made. With a time, each connection
    /// asks the provider again after 75 % to 85 % of it, and authenticates anew without a pause. Without a provider it
    /// has no effect.
    pub fn expires_in(mut self, lifetime: Duration) -> Self {
        self.expires_in = Some(lifetime);
        self
    }

    /// Returns the user name and the password.
    pub(in crate::remote) fn into_parts(self) -> (Option<String>, Option<String>) {
        (self.username, Some(self.password))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("username", &self.username)
            .field("expires_in", &self.expires_in)
            .finish_non_exhaustive()
    }
}

// === Login ===

/// Where the credentials of a connection come from.
#[derive(Clone, Default)]
pub(in crate::remote) enum Login {
    Fixed(Credentials),
    #[default]
    None,
    Provider(Provider),
}

/// A function of the application that returns credentials.
#[derive(Clone)]
pub(in crate::remote) struct Provider(Arc<dyn Fn() -> ProviderFuture + Send + Sync>);

type ProviderFuture = Pin<Box<dyn Future<Output = Result<Credentials, BoxError>> + Send>>;
type BoxError = Box<dyn error::Error + Send + Sync>;

impl Login {
    /// Returns the credentials to use now; `None` to send none.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Connect`] if the provider fails or panics.
    pub async fn credentials(&self) -> Result<Option<Credentials>, Error> {
        match self {
            Self::Fixed(credentials) => Ok(Some(credentials.clone())),
            Self::None => Ok(None),
            Self::Provider(provider) => provider.ask().await.map(Some),
        }
    }

    /// Returns whether another call may return other credentials.
    pub fn is_renewable(&self) -> bool {
        matches!(self, Self::Provider(_))
    }
}

impl Provider {
    /// Returns a provider over a function of the application.
    pub fn new<F, Fut, E>(provide: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Credentials, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        Self(Arc::new(move || {
            let provided = provide();
            Box::pin(async move { provided.await.map_err(Into::into) })
        }))
    }

    /// Asks the application. A panic there is an error: it must not end the task of a lane.
    async fn ask(&self) -> Result<Credentials, Error> {
        let started = catch_unwind(AssertUnwindSafe(|| (self.0)()));
        let mut future = started.map_err(|_| panicked())?;
        let provided = poll_fn(|context| {
            let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context)));
            match polled {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(provided)) => Poll::Ready(Ok(provided)),
                Err(_) => Poll::Ready(Err(panicked())),
            }
        });
        provided.await?.map_err(|error| {
            let message = "the provider of redis credentials failed";
            Error::new(ErrorKind::Connect, message).with_source(error)
        })
    }
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(credentials) => credentials.fmt(f),
            Self::None => f.write_str("None"),
            Self::Provider(provider) => provider.fmt(f),
        }
    }
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provider")
    }
}

fn panicked() -> Error {
    Error::new(
        ErrorKind::Connect,
        "the provider of redis credentials panicked",
    )
}
