//! Checks the first requests of a rule for misconfigurations.
//!
//! # Why do only the first 1,000 requests look for misconfigurations?
//!
//! A misconfiguration shows at once and stays. After 1,000 requests, a rule pays one load of a counter per request. A
//! count of the instructions of a request did not show this load. The check finds signs and not proofs: a client may
//! send `X-Forwarded-For` to a server without a proxy. So a warning describes what was seen, and what to do if it is a
//! mistake. `silence(Code)` is for a setup that is intended.
//!
//! "One bucket" (TG005) requires a key that should differ between callers (`Global` and `Route` need not), 1,000 requests in a
//! row with one key, and at least eight clients that differ in address, `X-Forwarded-For`, `Forwarded`, `X-Real-IP`,
//! `Authorization`, `X-API-Key` or `User-Agent`. Only hashes of them are kept (SipHash, with a key per process): eight words per
//! rule. A load test from one machine, or one user in a browser, gives no warning.
//!
//! # Why does an extractor diagnose, and the layer report?
//!
//! An extractor sees what it reads and what it ignores. The layer has the policy, the warnings that were reported already, and
//! the silenced codes. So `KeyExtractor::diagnose` returns a code and keeps no state, and extractors stay `Copy` and testable.

use std::{
    env,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use http::{
    HeaderName,
    header::{AUTHORIZATION, FORWARDED, USER_AGENT},
};
use smallvec::SmallVec;

use crate::{
    decision::PolicyName,
    diagnosis::{Code, Warning, WarningLog},
    error::Error,
    extract::{KeyExtractor, PeerIp},
    key::Key,
    request::RequestHead,
    task::Mutex,
};

use super::on_missing_key::OnMissingKey;

/// Checks the first requests of a rule. Each later request costs one atomic load.
#[derive(Debug)]
pub(super) struct FirstRequests {
    left: AtomicU32,
    diversity: Mutex<KeyDiversity>,
    has_reported_missing: AtomicBool,
    has_reported_ambiguous: AtomicBool,
    has_reported_unfit: AtomicBool,
    has_reported_upgrade: AtomicBool,
    /// Those of the layer that has the rule.
    warnings: Arc<WarningLog>,
}

impl FirstRequests {
    /// Reports to these warnings from now on.
    pub fn report_to(&mut self, warnings: &Arc<WarningLog>) {
        self.warnings = Arc::clone(warnings);
    }

    /// Returns whether all requests that are to be checked have been.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    /// Checks a request whose key an extractor found.
    #[inline]
    pub fn check(
        &self,
        policy: &PolicyName,
        extractor: &dyn KeyExtractor,
        (head, key): (&RequestHead<'_>, &Key),
    ) {
        if !self.is_done() {
            self.check_closely(policy, extractor, (head, key));
        }
    }

    #[cold]
    fn check_closely(
        &self,
        policy: &PolicyName,
        extractor: &dyn KeyExtractor,
        (head, key): (&RequestHead<'_>, &Key),
    ) {
        let Some(left) = self.count_down() else {
            return;
        };
        let label = extractor.label();
        if let Some(code) = extractor.diagnose(head) {
            self.report(policy, code, describe(code, label));
        }
        if extractor.is_per_caller() {
            self.compare((policy, label), (head, key), left);
        }
    }

    /// Checks a request whose key a lookup found.
    #[inline]
    pub fn check_found(
        &self,
        policy: &PolicyName,
        label: &str,
        (head, key): (&RequestHead<'_>, &Key),
    ) {
        if !self.is_done()
            && let Some(left) = self.count_down()
        {
            self.compare((policy, label), (head, key), left);
        }
    }

    /// Returns the number of requests left to check, this one included.
    fn count_down(&self) -> Option<u32> {
        let less = |left: u32| left.checked_sub(1);
        let left = &self.left;
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .ok()
    }

    /// Adds the request, and reports at the last one if all had the same key.
    fn compare(
        &self,
        (policy, label): (&PolicyName, &str),
        (head, key): (&RequestHead<'_>, &Key),
        left: u32,
    ) {
        if *key == Key::GLOBAL {
            return;
        }
        let mut diversity = self.diversity.lock();
        diversity.add(head, key);
        if left == 1 && diversity.is_one_bucket() {
            drop(diversity);
            let detail = format!(
                "the first {CHECKED} requests had the same {label} key, although their addresses and headers \
                 differ as those of {CLIENTS} clients or more"
            );
            self.report(policy, Code::SingleKey, detail);
        }
    }

    /// Reports the first tier whose quota the policy cannot count.
    #[cold]
    pub fn report_unfit_tier(&self, policy: &PolicyName, error: &Error) {
        if !self.has_reported_unfit.swap(true, Ordering::Relaxed) {
            self.report(policy, Code::IncompatibleTier, error.to_string());
        }
    }

    /// Reports the first slot that was released because a connection was upgraded.
    #[cold]
    pub fn report_upgrade(&self, policy: &PolicyName) {
        if !self.has_reported_upgrade.swap(true, Ordering::Relaxed) {
            let detail = "a connection was upgraded, which released its slot while it is open";
            self.report(policy, Code::UpgradedConnection, detail.to_owned());
        }
    }

    pub fn report(&self, policy: &PolicyName, code: Code, detail: String) {
        let warning = Warning::new(code, detail);
        self.warnings.report(warning.with_policy(*policy));
    }

    /// Reports the first request without a key, with the extractor's code for it.
    ///
    /// A rule that skips such requests is not reported, unless the extractor has a code.
    #[cold]
    pub fn report_missing_key<'a>(
        &self,
        policy: &PolicyName,
        label: impl FnOnce() -> &'a str,
        code: impl FnOnce() -> Option<Code>,
        choice: OnMissingKey,
    ) {
        if self.has_reported_missing.swap(true, Ordering::Relaxed) {
            return;
        }
        // In a combination of extractors, the code may come from another one than the one without a key.
        let code = code().filter(|code| matches!(code, Code::NoPeerAddress | Code::NoRoute));
        if code.is_none() && choice == OnMissingKey::Skip {
            return;
        }
        let label = label();
        let effect = choice.effect();
        let detail = format!("{label} found no key in a request; such requests {effect}");
        self.report(policy, code.unwrap_or(Code::MissingKey), detail);
    }

    /// Reports the first request whose key is ambiguous.
    #[cold]
    pub fn report_ambiguous_key(&self, policy: &PolicyName, label: &str) {
        if !self.has_reported_ambiguous.swap(true, Ordering::Relaxed) {
            let detail = format!("{label} found several keys in a request, or contradictory ones");
            self.report(policy, Code::AmbiguousKey, detail);
        }
    }
}

impl Default for FirstRequests {
    fn default() -> Self {
        Self {
            left: AtomicU32::new(if checks() { CHECKED } else { 0 }),
            diversity: Mutex::default(),
            has_reported_missing: AtomicBool::new(false),
            has_reported_ambiguous: AtomicBool::new(false),
            has_reported_unfit: AtomicBool::new(false),
            has_reported_upgrade: AtomicBool::new(false),
            warnings: Arc::default(),
        }
    }
}

// A clone is for another layer, which has checked nothing yet.
impl Clone for FirstRequests {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// Returns whether first requests are checked. `TOLLGATE_SKIP_SETUP_CHECKS` lets the tests of all settings pass the
/// [gate](crate::middleware::gate), which is closed to checked requests.
fn checks() -> bool {
    !cfg!(feature = "test-util") || env::var_os("TOLLGATE_SKIP_SETUP_CHECKS").is_none()
}

/// Returns the detail of a warning about an extractor or a list.
pub(super) fn describe(code: Code, label: &str) -> String {
    match code {
        Code::NoPeerAddress => {
            format!("{label} needs the address of the peer, and a request does not contain it")
        }
        Code::ForwardedIgnored => {
            format!("a request has a header such as X-Forwarded-For, and {label} ignores it")
        }
        Code::ForwardedUntrusted => {
            format!("a request has a header that {label} reads, from a peer that is not trusted")
        }
        Code::NoRoute => {
            format!("{label} needs the matched route, and no router has handled the request before")
        }
        Code::NestedPath => format!(
            "a path pattern of {label} begins with the prefix that nest() removes from the path, so it never matches"
        ),
        _ => format!("{label} found an unexpected request"),
    }
}

// === FirstMatches ===

/// Counts the first requests, whose matchers are checked.
#[derive(Debug)]
pub(super) struct FirstMatches {
    left: AtomicU32,
}

impl FirstMatches {
    #[inline]
    pub fn is_due(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0 && self.count_down()
    }

    #[cold]
    fn count_down(&self) -> bool {
        let less = |left: u32| left.checked_sub(1);
        let left = &self.left;
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}

impl Default for FirstMatches {
    fn default() -> Self {
        Self {
            left: AtomicU32::new(CHECKED),
        }
    }
}

// As with `FirstRequests`: on another layer nothing was seen yet.
impl Clone for FirstMatches {
    fn clone(&self) -> Self {
        Self::default()
    }
}

// === KeyDiversity ===

/// The keys and clients of the first requests: one key for many clients is suspicious.
#[derive(Debug, Default)]
struct KeyDiversity {
    first: Option<Key>,
    has_others: bool,
    /// Hashes of the headers and addresses that differ between clients, under a key of this process.
    clients: SmallVec<[u64; CLIENTS]>,
    hasher: RandomState,
}

impl KeyDiversity {
    fn add(&mut self, head: &RequestHead<'_>, key: &Key) {
        self.has_others |= *self.first.get_or_insert(*key) != *key;
        if self.has_others || self.clients.len() == CLIENTS {
            return;
        }
        let headers = CLIENT_HEADERS.iter().flat_map(|name| {
            let values = head.headers.get_all(name).iter();
            values.map(move |value| (name, value))
        });
        let client = (PeerIp.address(head), headers.collect::<Vec<_>>());
        let client = self.hasher.hash_one(client);
        if !self.clients.contains(&client) {
            self.clients.push(client);
        }
    }

    fn is_one_bucket(&self) -> bool {
        !self.has_others && self.clients.len() == CLIENTS
    }
}

/// Headers that differ between most clients and that one client does not change per request.
static CLIENT_HEADERS: [HeaderName; 6] = [
    AUTHORIZATION,
    FORWARDED,
    USER_AGENT,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
];
/// Number of requests of a rule that are checked.
const CHECKED: u32 = 1_000;
/// At least this many clients with one key are suspicious.
const CLIENTS: usize = 8;
