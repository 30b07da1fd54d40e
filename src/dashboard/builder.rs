//! A dashboard, to mount and to close, and its settings.

use std::{fmt, sync::Arc};

use axum::Router;

use crate::{
    clock::Clock,
    error::{Error, ErrorKind},
    extract::{ClientIp, KeyExtractor},
    key::HashSecret,
    limiter::RateLimiter,
    middleware::layer::RateLimitLayer,
    overload::Overload,
};

#[cfg(feature = "reload")]
use crate::config::reload::RulesHandle;

use super::{
    guard::{ApiGuard, TokenHash},
    requested_host::Hosts,
    router, sampler,
    shared::SharedDashboard,
    watched::Watched,
    wrong_tokens::WrongTokens,
};

/// A web page and an API for operators. Clones show the same limiter.
///
/// See the [module docs](super) for its routes and its guards.
#[derive(Clone)]
pub struct Dashboard {
    shared: Arc<SharedDashboard>,
    guard: Arc<ApiGuard>,
}

impl Dashboard {
    /// Returns the default settings of a dashboard for a layer and its limiter.
    pub fn builder(layer: &RateLimitLayer) -> DashboardBuilder {
        DashboardBuilder::new(Watched::layer(layer))
    }

    /// Returns the default settings of a dashboard for a limiter without a layer, which has no modes to change.
    pub fn builder_for_limiter(limiter: &RateLimiter) -> DashboardBuilder {
        DashboardBuilder::new(Watched::limiter_alone(limiter))
    }

    /// Returns the routes, to be mounted anywhere: `app.nest_service("/ops/limits", dashboard.router::<()>())`.
    ///
    /// Mount them outside of the rate limit layer, so that operators are not limited. With axum's `nest`, the page is at the
    /// path itself only. With `nest_service` it is also there with a slash at its end.
    pub fn router<S: Clone + Send + Sync + 'static>(&self) -> Router<S> {
        router::routes(Arc::clone(&self.shared), Arc::clone(&self.guard)).with_state(())
    }

    /// Ends the streams of all pages, and accepts no more.
    ///
    /// Call it when the server shuts down: a graceful shutdown waits for all responses, and a stream lasts up to ten
    /// minutes.
    pub fn close(&self) {
        self.shared.close();
    }
}

impl fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dashboard")
            .field("title", &self.shared.title)
            .finish_non_exhaustive()
    }
}

// === DashboardBuilder ===

/// Settings of a [`Dashboard`].
#[must_use = "a builder does nothing until build() is called"]
pub struct DashboardBuilder {
    watched: Watched,
    title: String,
    read_token: Option<String>,
    write_token: Option<String>,
    trusts_extension: bool,
    trusted_proxies: ClientIp,
    allowed_hosts: Option<Vec<String>>,
    /// `None` for the address.
    client_key: Option<Box<dyn KeyExtractor>>,
    hash_secret: Option<HashSecret>,
    overload: Option<Overload>,
    #[cfg(feature = "reload")]
    rules: Option<RulesHandle>,
    max_clients: usize,
    clock: Clock,
}

impl DashboardBuilder {
    fn new(watched: Watched) -> Self {
        Self {
            watched,
            title: "tollgate".to_owned(),
            read_token: None,
            write_token: None,
            trusts_extension: false,
            trusted_proxies: ClientIp::peer(),
            allowed_hosts: None,
            client_key: None,
            hash_secret: None,
            overload: None,
            #[cfg(feature = "reload")]
            rules: None,
            max_clients: 16,
            clock: Clock::system(),
        }
    }

    /// Sets the token of clients that may see everything and change nothing.
    ///
    /// Default: no token. At least 16 characters; better 32 random ones, such as those of `openssl rand -hex 16`.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.read_token = Some(token.into());
        self
    }

    /// Sets the token of clients that may also change modes and keys.
    ///
    /// Default: no token, so nobody may change anything. It has the same minimum length as [`token`](Self::token), and
    /// must be another one.
    pub fn write_token(mut self, token: impl Into<String>) -> Self {
        self.write_token = Some(token.into());
        self
    }

    /// Grants each request the [`Access`](super::Access) that the application's own authentication puts into its extensions.
    ///
    /// Default: only tokens count. A request without the extension is refused, so a layer that was forgotten opens nothing.
    ///
    /// Do not grant it by the peer's address alone. With DNS rebinding, a page of another site makes its own host name resolve
    /// to this server, and the browser of an operator then sends that page's requests from the operator's address. A login
    /// withstands this: browsers do not send the cookies and tokens of one host name to another.
    pub fn access_by_extension(mut self) -> Self {
        self.trusts_extension = true;
        self
    }

    /// Sets the proxies in front of the dashboard, such as `ClientIp::behind(["10.0.0.0/8"])`.
    ///
    /// Default: [`ClientIp::peer`], no proxy. The dashboard reads the host, the port and the scheme that the browser asked
    /// for in `X-Forwarded-Host`, `X-Forwarded-Port` and `X-Forwarded-Proto`, and only from these proxies. They must set
    /// or remove all three, since a client could send them too. Clients are distinguished by the address that the proxies
    /// name, unless [`client_key`](Self::client_key) is set. See [behind a proxy](super#behind-a-proxy).
    pub fn trusted_proxies(mut self, proxies: ClientIp) -> Self {
        self.trusted_proxies = proxies;
        self
    }

    /// Sets the host names by which the dashboard is reached, such as `ops.example.com` or `*.example.com`, without ports.
    ///
    /// Default: any. Requests to other hosts get a 421, also for the page. This stops DNS rebinding: a page of another site
    /// makes its own host name resolve to this server, and is then of the same origin. Set it where the network gives
    /// access, such as on a developer's machine or in a private network, and if the application grants access by
    /// [extension](Self::access_by_extension). Behind a proxy that changes `Host`, see
    /// [`trusted_proxies`](Self::trusted_proxies).
    pub fn allowed_hosts<H: Into<String>>(mut self, hosts: impl IntoIterator<Item = H>) -> Self {
        self.allowed_hosts = Some(hosts.into_iter().map(Into::into).collect());
        self
    }

    /// Sets how clients are distinguished when wrong tokens and streams are counted.
    ///
    /// Default: by address, behind [`trusted_proxies`](Self::trusted_proxies) by the one that they name. Without either, a
    /// client with wrong tokens keeps all others behind its proxy out. The same happens if the extractor finds no key, so
    /// serve with `into_make_service_with_connect_info::<SocketAddr>()`. See [wrong tokens](super#wrong-tokens).
    pub fn client_key(mut self, extractor: impl KeyExtractor) -> Self {
        self.client_key = Some(Box::new(extractor));
        self
    }

    /// Sets the title of the page, such as the name of the service.
    ///
    /// Default: `tollgate`.
    pub fn title(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// Sets the secret with which closures of the application hash API keys, so that operators can look them up.
    ///
    /// Default: tollgate's constant, which [`Key::secret`](crate::Key::secret) uses. Extractors of tollgate use their own.
    pub fn hash_secret(mut self, secret: HashSecret) -> Self {
        self.hash_secret = Some(secret);
        self
    }

    /// Shows the requests in flight and those that were shed, and lets operators change the mode of the limit.
    ///
    /// Default: none.
    pub fn overload(mut self, overload: &Overload) -> Self {
        self.overload = Some(overload.clone());
        self
    }

    /// Shows the versions of the rules, and lets operators replace them: the handle of the layer's
    /// [`build_reloading`](crate::builder::RateLimitLayerBuilder::build_reloading).
    ///
    /// Default: none.
    #[cfg(feature = "reload")]
    pub fn rules(mut self, rules: &RulesHandle) -> Self {
        self.rules = Some(rules.clone());
        self
    }

    /// Sets the number of pages that can follow the state at the same time.
    ///
    /// Default: 16. If all places are taken, a client with fewer pages than another one takes the place of the oldest page
    /// of the client with most, so none can keep the others out. Otherwise it gets a 503. Clients are distinguished by the
    /// name of their operator, or else by [`client_key`](Self::client_key).
    pub fn max_clients(mut self, clients: usize) -> Self {
        self.max_clients = clients;
        self
    }

    /// Sets the clock by which numbers are assigned to seconds and minutes.
    ///
    /// Default: [`Clock::system`].
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the dashboard, and begins to count the decisions of the limiter for it.
    ///
    /// # Errors
    ///
    /// - [`ErrorKind::InvalidConfig`] without a guard, for a token that is too short or used twice, and for 0 clients.
    /// - The error of the [`client_key`](Self::client_key), the [`trusted_proxies`](Self::trusted_proxies) or the
    ///   [`allowed_hosts`](Self::allowed_hosts) for their settings.
    pub fn build(self) -> Result<Dashboard, Error> {
        self.validate()?;
        let client_key = self
            .client_key
            .unwrap_or_else(|| Box::new(self.trusted_proxies.clone()));
        let guard = ApiGuard {
            read_token: self.read_token.as_deref().map(TokenHash::of),
            write_token: self.write_token.as_deref().map(TokenHash::of),
            trusts_extension: self.trusts_extension,
            wrong_tokens: WrongTokens::new(client_key, self.clock.clone())?,
            hosts: Hosts::new(self.trusted_proxies, self.allowed_hosts)?,
        };
        let shared = Arc::new(SharedDashboard::new(
            self.watched,
            self.title.into(),
            self.hash_secret,
            self.overload,
            #[cfg(feature = "reload")]
            self.rules,
            self.clock,
            self.max_clients,
        ));
        sampler::start(&shared);
        Ok(Dashboard {
            shared,
            guard: Arc::new(guard),
        })
    }

    fn validate(&self) -> Result<(), Error> {
        let tokens = [&self.read_token, &self.write_token];
        let fault = if tokens.iter().all(|token| token.is_none()) && !self.trusts_extension {
            "the dashboard has no guard: set token(..), write_token(..) or access_by_extension()"
        } else if tokens.into_iter().flatten().any(|token| !is_strong(token)) {
            "a token of the dashboard is too weak: use at least 16 printable ASCII characters without spaces"
        } else if self.read_token.is_some() && self.read_token == self.write_token {
            "token(..) and write_token(..) are equal: use two tokens, so that not everybody may change limits"
        } else if self.max_clients == 0 {
            "max_clients(0): use at least 1, or no page can follow the state"
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::InvalidConfig, fault))
    }
}

/// Returns whether the token is long enough, and can be sent in a header as it is.
fn is_strong(token: &str) -> bool {
    token.len() >= MIN_TOKEN && token.bytes().all(|byte| byte.is_ascii_graphic())
}

// By hand: no token may be logged.
impl fmt::Debug for DashboardBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DashboardBuilder")
            .field("watched", &self.watched)
            .field("title", &self.title)
            .finish_non_exhaustive()
    }
}

/// In characters.
const MIN_TOKEN: usize = 16;
