//! Settings of an overload limit.

use std::{fmt, sync::Arc, time::Duration};

use http::{HeaderName, Response};

use crate::{
    clock::Clock,
    decision::PolicyName,
    error::{Error, ErrorKind},
    extract::KeyExtractor,
    key::Key,
    matching::{IntoMatcher, Matcher},
    priority::priority::Priority,
    rejection::{MakeRejection, Rejection, RejectionBody, RejectionFormat},
    request::RequestHead,
    rules::{ModeSwitch, RuleMode},
    task::lane::lanes,
    telemetry::OverloadMetrics,
};

#[cfg(feature = "reload")]
use crate::limiter::{RateLimiter, Replaceable};

use super::{
    adaptive::{AdaptiveLimit, IsCrowded},
    classes::{Classes, MOST_CLASSES},
    lag::ExecutorLag,
    overload::{Core, Overload},
    request_rules::{RequestRules, TrustedHeader},
    setup::{Current, Setup},
    shares::Shares,
};

impl Overload {
    /// Begins the settings of a limit that adapts to what the service can do.
    pub fn adaptive() -> OverloadBuilder {
        OverloadBuilder {
            name: Arc::from("default"),
            classes: vec![Priority::Critical, Priority::Normal, Priority::Sheddable],
            rules: RequestRules::default(),
            mode: ModeSwitch::default(),
            format: Arc::new(RejectionFormat::json()),
            max_retry_after: Duration::from_secs(10),
            header: None,
            crowded: None,
            clock: Clock::system(),
            #[cfg(feature = "reload")]
            limiter: None,
        }
    }
}

/// Settings of an [`Overload`].
#[derive(Clone)]
#[must_use = "call `build` to get the limit"]
pub struct OverloadBuilder {
    name: Arc<str>,
    classes: Vec<Priority>,
    rules: RequestRules,
    mode: ModeSwitch,
    format: Arc<dyn MakeRejection>,
    max_retry_after: Duration,
    /// Its name, until it is checked.
    header: Option<(String, Arc<dyn Matcher>)>,
    crowded: Option<Arc<IsCrowded>>,
    clock: Clock,
    /// That of rules in Redis.
    #[cfg(feature = "reload")]
    limiter: Option<RateLimiter>,
}

impl OverloadBuilder {
    /// Sets the name: the label `overload` of the [metrics](crate::telemetry).
    ///
    /// Default: `default`. If a process has several limits, give each a name. Metrics of limits with the same name are mixed up.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the classes in order: those that are shed last first.
    ///
    /// Default: critical, normal, sheddable. `Normal` must be among them, for requests without a class.
    pub fn classes(mut self, classes: impl IntoIterator<Item = Priority>) -> Self {
        self.classes = classes.into_iter().collect();
        self
    }

    /// Sets whose requests share the places of a class: each key gets its part.
    ///
    /// Default: none, and only the class counts, so the loudest client gets the most. Requests without a key share one. The key must
    /// be in the head of the request, and not in its body.
    pub fn key(mut self, key: impl KeyExtractor) -> Self {
        self.rules.key = Some(Arc::new(key));
        self
    }

    /// Gives requests that match a class. The first that matches decides. A path that may or may not match takes the lower class of
    /// both.
    ///
    /// Default: none.
    pub fn priority_when(mut self, matcher: impl IntoMatcher, priority: Priority) -> Self {
        let matcher = Arc::new(matcher.into_matcher());
        self.rules.when.push((matcher, priority));
        self
    }

    /// Takes the class from a header of requests that `trusted` matches: a gateway of yours, and nobody else. The value is the name of
    /// a class, such as `critical`. Other values are ignored, and of several lines the lowest class counts. gRPC metadata is a header.
    ///
    /// Default: none. It decides before [`priority_when`](Self::priority_when).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{extract::PeerIp, matching::AddressList, overload::Overload};
    ///
    /// let overload = Overload::adaptive()
    ///     .priority_header("x-priority", AddressList::new(PeerIp, ["10.0.0.0/8"]))
    ///     .build()?;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn priority_header(mut self, name: &str, trusted: impl IntoMatcher) -> Self {
        self.header = Some((name.to_owned(), Arc::new(trusted.into_matcher())));
        self
    }

    /// Finds the class of requests that no [`priority_when`](Self::priority_when) matches, by their head and their
    /// [key](Self::key), for example by the caller's plan.
    ///
    /// Default: none, and these are `Normal`. It runs for each request, so it should neither allocate nor block. A class that
    /// is not among the [classes](Self::classes) is `Normal`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, extract::Header, overload::{Overload, Priority}};
    ///
    /// let paying = [Key::new("acme")];
    /// let overload = Overload::adaptive()
    ///     .key(Header::new("x-tenant"))
    ///     .priority_by(move |_, key| match key {
    ///         Some(key) if paying.contains(key) => Priority::Critical,
    ///         _ => Priority::Normal,
    ///     })
    ///     .build()?;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn priority_by(
        mut self,
        find: impl Fn(&RequestHead<'_>, Option<&Key>) -> Priority + Send + Sync + 'static,
    ) -> Self {
        self.rules.by = Some(Arc::new(find));
        self
    }

    /// Gives the [key](Self::key) of requests that match a weight: within its class it gets so many times as much as others. The
    /// first that matches decides. A path that may or may not match takes the lower weight of both.
    ///
    /// Default: none. `build()` fails for 0 and above 1,000, and without a key.
    pub fn weight_when(mut self, matcher: impl IntoMatcher, weight: u32) -> Self {
        let matcher = Arc::new(matcher.into_matcher());
        self.rules.weights.push((matcher, weight));
        self
    }

    /// Finds the weight of keys that no [`weight_when`](Self::weight_when) matches, for example by the caller's plan.
    ///
    /// Default: none, and all weigh 1. It runs for each request, so it should neither allocate nor block. 0 is taken for 1, and more
    /// than 1,000 for 1,000.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, extract::Header, overload::Overload};
    ///
    /// let paying = [Key::new("acme")];
    /// let overload = Overload::adaptive()
    ///     .key(Header::new("x-tenant"))
    ///     .weight_by(move |_, key| if paying.contains(key) { 4 } else { 1 })
    ///     .build()?;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn weight_by(
        mut self,
        find: impl Fn(&RequestHead<'_>, &Key) -> u32 + Send + Sync + 'static,
    ) -> Self {
        self.rules.weight_by = Some(Arc::new(find));
        self
    }

    /// Leaves requests that match alone: they are neither counted nor shed. For health checks, and for requests that wait on purpose,
    /// such as long polls.
    ///
    /// Default: none. If called repeatedly, one exact match is enough.
    pub fn skip(mut self, matcher: impl IntoMatcher) -> Self {
        self.rules.skip.push(Arc::new(matcher.into_matcher()));
        self
    }

    /// Adds a sign that the service is full which the times of its responses show late or not at all: callers that wait for a
    /// connection of a pool, the length of a queue, the memory in use.
    ///
    /// Default: none. It is asked at the end of each window, up to 10 times a second. If it is true, overload begins, and the limit
    /// falls by a sixth a window, also if no response is slow. It must not block. A panic in it counts as false. If called repeatedly,
    /// the last one decides.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicUsize, Ordering}};
    /// use tollgate::overload::Overload;
    ///
    /// let waiting = Arc::new(AtomicUsize::new(0)); // or `pool.status().waiting`
    /// let overload = Overload::adaptive()
    ///     .crowded_when(move || waiting.load(Ordering::Relaxed) > 10)
    ///     .build()?;
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn crowded_when(mut self, crowded: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        self.crowded = Some(Arc::new(crowded));
        self
    }

    /// Sets the longest `Retry-After` of a request that is shed. Each is drawn between 1 s and this, in whole seconds: 1,500 ms is
    /// rounded up to 2 s.
    ///
    /// Default: 10 s. `build()` fails below 1 s and above a day.
    pub fn max_retry_after(mut self, longest: Duration) -> Self {
        self.max_retry_after = longest;
        self
    }

    /// Sets the response to a request that is shed.
    ///
    /// Default: [`RejectionFormat::json`], with status 503.
    pub fn on_rejection(mut self, format: impl MakeRejection) -> Self {
        self.format = Arc::new(format);
        self
    }

    /// [`on_rejection`](Self::on_rejection) with a closure whose argument needs no type.
    pub fn on_rejection_fn<F, T>(self, make: F) -> Self
    where
        F: Fn(&Rejection) -> Response<T> + Send + Sync + 'static,
        T: RejectionBody,
    {
        self.on_rejection(make)
    }

    /// Sets the mode. In shadow nothing is shed, and what would have been is [counted](Overload::shed).
    ///
    /// Default: enforce. [`Overload::set_mode`] changes it later. In shadow the limit sees what happens without it, so it is a
    /// measure of the overload, and not of what it will do.
    pub fn mode(self, mode: RuleMode) -> Self {
        self.mode.set_mode(mode);
        self
    }

    /// Sets the limiter in whose Redis the settings are, for
    /// [`build_reloading`](Self::build_reloading) from [`RuleSource::redis`](crate::config::reload::RuleSource::redis).
    ///
    /// Default: none. It decides nothing here.
    #[cfg(feature = "reload")]
    pub fn limiter(mut self, limiter: &RateLimiter) -> Self {
        self.limiter = Some(limiter.clone());
        self
    }

    /// Sets the clock.
    ///
    /// Default: that of the system.
    #[cfg(feature = "test-util")]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Builds the limit.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] for classes without `Normal`, with one twice, or for more than 16; for a class of
    /// [`priority_when`](Self::priority_when) that is not among them; for a key in the body; for an impossible header or wait; and what
    /// extractors and matchers refuse.
    pub fn build(self) -> Result<Overload, Error> {
        let (clock, crowded) = (self.clock.clone(), self.crowded.clone());
        let setup = Current::Fixed(self.build_setup()?);
        Ok(Self::over(setup, crowded, clock))
    }

    /// Builds a limit whose settings can be replaced.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    #[cfg(feature = "reload")]
    pub(crate) fn build_replaceable(self) -> Result<(Overload, Arc<Replaceable<Setup>>), Error> {
        let (clock, crowded) = (self.clock.clone(), self.crowded.clone());
        let limiter = self.limiter.clone();
        let replaceable = Arc::new(Replaceable::new(self.build_setup()?, limiter));
        let current = Current::Replaceable(Arc::clone(&replaceable));
        Ok((Self::over(current, crowded, clock), replaceable))
    }

    /// Builds the settings that follow others.
    ///
    /// # Errors
    ///
    /// As [`build`](Self::build).
    #[cfg(feature = "reload")]
    pub(crate) fn build_successor(self, old: &Setup) -> Result<Setup, Error> {
        let mut setup = self.build_setup()?;
        setup.take_over(old);
        Ok(setup)
    }

    fn over(setup: Current, crowded: Option<Arc<IsCrowded>>, clock: Clock) -> Overload {
        let (lanes, now) = (lanes(MOST_LANES), clock.now());
        let core = Core {
            setup,
            limit: AdaptiveLimit::new(lanes, crowded, now),
            shares: Shares::new(lanes, now),
            lag: ExecutorLag::default(),
            clock,
        };
        Overload::new(Arc::new(core), lanes)
    }

    pub(crate) fn build_setup(mut self) -> Result<Setup, Error> {
        self.check_classes()?;
        self.check_wait()?;
        if let Some((name, from)) = self.header.take() {
            let name = header_name(&name)?;
            self.rules.header = Some(TrustedHeader { name, from });
        }
        self.rules.validate(&self.classes)?;
        let names = self.classes.iter().map(|class| class.name());
        Ok(Setup {
            metrics: OverloadMetrics::new(self.name, names),
            classes: Classes::new(&self.classes),
            rules: self.rules,
            #[cfg(feature = "reload")]
            written_mode: self.mode.get(),
            mode: self.mode,
            format: self.format,
            max_retry_after: self.max_retry_after,
        })
    }

    fn check_classes(&self) -> Result<(), Error> {
        if !self.classes.contains(&Priority::Normal) {
            return invalid(
                "`normal` is not one of the classes: add it, for requests without a class".into(),
            );
        }
        if self.classes.len() > MOST_CLASSES {
            let count = self.classes.len();
            return invalid(format!("{count} classes: name at most {MOST_CLASSES}"));
        }
        for (place, class) in self.classes.iter().enumerate() {
            if PolicyName::new(class.name()).is_err() {
                let name = class.name();
                return invalid(format!(
                    "{name:?} is not the name of a class: use 1 to 39 of A-Z a-z 0-9 . _ -"
                ));
            }
            let mut before = self.classes[..place].iter();
            if before.any(|other| other.name() == class.name()) {
                return invalid(format!("the class {class} twice: name each class once"));
            }
        }
        Ok(())
    }

    fn check_wait(&self) -> Result<(), Error> {
        let longest = self.max_retry_after;
        if !(Duration::from_secs(1)..=LONGEST_WAIT).contains(&longest) {
            return invalid(format!(
                "max_retry_after of {longest:?}: set 1 s to 24 h, for example 10 s"
            ));
        }
        Ok(())
    }
}

fn header_name(name: &str) -> Result<HeaderName, Error> {
    name.parse().or_else(|_| {
        invalid(format!(
            "priority_header {name:?} is not the name of a header: use letters, digits and hyphens, such as \"x-priority\""
        ))
    })
}

fn invalid<T>(message: String) -> Result<T, Error> {
    Err(Error::new(ErrorKind::InvalidConfig, message))
}

impl fmt::Debug for OverloadBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OverloadBuilder")
            .field("name", &self.name)
            .field("classes", &self.classes)
            .field("mode", &self.mode.get().mode())
            .field("max_retry_after", &self.max_retry_after)
            .finish_non_exhaustive()
    }
}

/// Bounds the memory of a limit: 1.5 KiB for each.
const MOST_LANES: usize = 16;
const LONGEST_WAIT: Duration = Duration::from_secs(24 * 60 * 60);
