//! Findings of assertions in a response or a decision.

use std::{fmt, time::Duration};

use http::{HeaderMap, Response, StatusCode, header::RETRY_AFTER};

use crate::{
    clock::whole_seconds,
    decision::{Decision, Outcome, PolicyName, PolicyState},
    rejection::{Reason, Rejection},
};

/// A result that assertions such as [`assert_allowed!`](crate::assert_allowed) look at.
pub trait Checked {
    /// Returns what an assertion looks at.
    #[doc(hidden)]
    fn findings(&self) -> Findings<'_>;
}

impl<T: Checked + ?Sized> Checked for &T {
    fn findings(&self) -> Findings<'_> {
        (**self).findings()
    }
}

impl Checked for Decision {
    fn findings(&self) -> Findings<'_> {
        Findings {
            decision: Some(self),
            rejection: None,
            head: None,
            states: Vec::new(),
        }
    }
}

impl<B> Checked for Response<B> {
    /// A rejection by the layer is in the extensions.
    fn findings(&self) -> Findings<'_> {
        let rejection = self.extensions().get::<Rejection>();
        Findings {
            decision: rejection.and_then(Rejection::decision),
            rejection,
            head: Some((self.status(), self.headers())),
            states: Vec::new(),
        }
    }
}

// === Findings ===

/// The parts of a result that assertions compare. They display as lines.
#[derive(Debug)]
pub struct Findings<'a> {
    decision: Option<&'a Decision>,
    rejection: Option<&'a Rejection>,
    head: Option<(StatusCode, &'a HeaderMap)>,
    /// The states of policies that are known without a decision.
    states: Vec<&'a PolicyState>,
}

impl<'a> Findings<'a> {
    /// Returns what is found in a result.
    pub fn of(result: &'a (impl Checked + ?Sized)) -> Self {
        result.findings()
    }

    /// Adds the states of the policies that decided.
    pub(super) fn with_states(mut self, states: impl Iterator<Item = &'a PolicyState>) -> Self {
        self.states.extend(states);
        self
    }

    /// As the macro of this name.
    #[track_caller]
    pub fn assert_allowed(&self) {
        if self.verdict() != Verdict::Allowed {
            self.fail("expected an allowed request");
        }
    }

    /// As the macro of this name.
    #[track_caller]
    pub fn assert_limited(&self, policy: Option<&str>, wait: Option<ExpectedWait>) {
        let is_policy = |policy: &str| self.policy().is_some_and(|found| found.as_str() == policy);
        let is_wait = |wait: &ExpectedWait| match wait {
            ExpectedWait::Exact(wait) => self.wait() == Some(*wait),
            ExpectedWait::Seconds(seconds) => self.wait_seconds() == Some(*seconds),
        };
        let is_limited = self.verdict() == Verdict::Limited;
        if is_limited && policy.is_none_or(is_policy) && wait.as_ref().is_none_or(is_wait) {
            return;
        }
        let policy = policy.map_or(String::new(), |policy| format!(" by policy {policy}"));
        let wait = wait.map_or(String::new(), |wait| format!(", to retry in {wait}"));
        self.fail(&format!("expected a request that is limited{policy}{wait}"));
    }

    /// As the macro of this name.
    #[track_caller]
    pub fn assert_remaining(&self, policy: Option<&str>, units: u64) {
        if self.remaining(policy) != Some(units) {
            let name = policy.unwrap_or("the narrowest policy");
            self.fail(&format!("expected {units} units left of {name}"));
        }
    }

    /// As the macro of this name.
    #[track_caller]
    pub fn assert_unavailable(&self) {
        if self.verdict() != Verdict::Unavailable {
            self.fail("expected a request that is unavailable");
        }
    }

    #[track_caller]
    fn fail(&self, expected: &str) -> ! {
        panic!("{expected}, found:\n{self}");
    }

    fn verdict(&self) -> Verdict {
        if let Some(rejection) = self.rejection {
            return match rejection.reason() {
                Reason::Limited { .. } => Verdict::Limited,
                Reason::Overloaded { .. } | Reason::Unavailable => Verdict::Unavailable,
                _ => Verdict::Rejected,
            };
        }
        match (self.decision.map(Decision::outcome), self.head) {
            (Some(Outcome::Allowed), _) => Verdict::Allowed,
            (Some(Outcome::Limited), _) => Verdict::Limited,
            (Some(Outcome::Unavailable), _) => Verdict::Unavailable,
            // A response that came over a network has no rejection in its extensions.
            (None, Some((StatusCode::TOO_MANY_REQUESTS, _))) => Verdict::Limited,
            (None, Some((StatusCode::SERVICE_UNAVAILABLE, _))) => Verdict::Unavailable,
            (None, _) => Verdict::Allowed,
        }
    }

    /// Returns the policy that denies or rejects the request.
    fn policy(&self) -> Option<&'a PolicyName> {
        match self.rejection {
            Some(rejection) => rejection.reason().policy(),
            None => Some(self.decision?.denying()?.policy()),
        }
    }

    /// Returns the exact wait of the decision.
    fn wait(&self) -> Option<Duration> {
        self.decision?.retry_after()
    }

    /// Returns the wait as the client sees it.
    fn wait_seconds(&self) -> Option<u64> {
        match (self.rejection, self.head) {
            (Some(rejection), _) => rejection.retry_after_secs(),
            (None, Some((_, headers))) => number(headers, RETRY_AFTER.as_str()),
            (None, None) => self.wait().map(whole_seconds),
        }
    }

    fn remaining(&self, policy: Option<&str>) -> Option<u64> {
        if let Some(decision) = self.decision {
            let state = match policy {
                Some(policy) => decision.state(policy),
                None => decision.narrowest(),
            };
            return Some(state?.usage()?.remaining);
        }
        let is_meant = |state: &&&PolicyState| policy == Some(state.policy().as_str());
        if let Some(state) = self.states.iter().find(is_meant) {
            return Some(state.usage()?.remaining);
        }
        let (_, headers) = self.head?;
        let narrowest = || {
            let names = ["x-ratelimit-remaining", "ratelimit-remaining"];
            names.iter().find_map(|name| number(headers, name))
        };
        match policy {
            Some(_) => listed(headers, policy),
            None => narrowest().or_else(|| listed(headers, None)),
        }
    }
}

impl fmt::Display for Findings<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        if let Some((status, _)) = self.head {
            lines.push(format!("status: {status}"));
        }
        lines.push(match (self.rejection, self.verdict()) {
            (Some(rejection), _) => format!("reason: {:?}", rejection.reason()),
            (None, verdict) => format!("reason: none in the result, {verdict:?}"),
        });
        if let Some(wait) = self.wait() {
            lines.push(format!("retry after: {wait:?}"));
        }
        for state in self.decision.iter().flat_map(|decision| decision.states()) {
            let (name, outcome) = (state.policy(), state.outcome().name());
            let shadow = if state.is_shadow() { " in shadow" } else { "" };
            let usage = state.usage().map_or("not counted".to_owned(), |usage| {
                format!("{} of {} left", usage.remaining, usage.limit)
            });
            lines.push(format!("policy {name}{shadow}: {outcome}, {usage}"));
        }
        if let Some(error) = self.rejection.and_then(Rejection::error) {
            lines.push(format!("error: {error}"));
        }
        for (name, value) in self.head.iter().flat_map(|(_, headers)| headers.iter()) {
            let value = String::from_utf8_lossy(value.as_bytes());
            lines.push(format!("header {name}: {value}"));
        }
        write!(f, "  {}", lines.join("\n  "))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Allowed,
    Limited,
    Rejected,
    Unavailable,
}

/// Returns the number in a header.
fn number(headers: &HeaderMap, name: &str) -> Option<u64> {
    headers.get(name)?.to_str().ok()?.parse().ok()
}

/// Returns what the list of draft 11 has as the units left of a policy, or of the first one.
fn listed(headers: &HeaderMap, policy: Option<&str>) -> Option<u64> {
    let list = headers.get("ratelimit")?.to_str().ok()?;
    // No name of a policy contains a comma, a semicolon or a quote.
    let mut items = list.split(',').map(|item| item.trim().split(';'));
    items.find_map(|mut item| {
        let name = item.next()?.trim_matches('"');
        let is_meant = policy.is_none_or(|policy| policy == name);
        let remaining = item.find_map(|parameter| parameter.strip_prefix("r="));
        is_meant.then_some(remaining?.parse().ok()?)
    })
}

// === ExpectedWait ===

/// The wait that an assertion expects.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ExpectedWait {
    /// The wait of the decision.
    Exact(Duration),
    /// The whole seconds that the client sees.
    Seconds(u64),
}

impl From<Duration> for ExpectedWait {
    fn from(wait: Duration) -> Self {
        Self::Exact(wait)
    }
}

impl From<u64> for ExpectedWait {
    fn from(seconds: u64) -> Self {
        Self::Seconds(seconds)
    }
}

/// For numbers without a type.
impl From<i32> for ExpectedWait {
    /// A negative number is a wait that no client has.
    fn from(seconds: i32) -> Self {
        Self::Seconds(u64::try_from(seconds).unwrap_or(u64::MAX))
    }
}

impl fmt::Display for ExpectedWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(wait) => write!(f, "exactly {wait:?}"),
            Self::Seconds(seconds) => write!(f, "{seconds} s"),
        }
    }
}
