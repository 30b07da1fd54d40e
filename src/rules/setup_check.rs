//! Looks at the first requests for signs of a wrong set-up.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
};

use http::{
    HeaderName,
    header::{AUTHORIZATION, FORWARDED, USER_AGENT},
    request::Parts,
};
use smallvec::SmallVec;

use crate::{
    diagnosis::{Code, Ledger, Warning},
    error::Error,
    extract::{KeyExtractor, PeerIp},
    key::Key,
    policy_name::PolicyName,
    sync::Mutex,
};

use super::on_missing_key::OnMissingKey;

/// What a rule has seen of its first requests. Afterwards it costs one load per request.
#[derive(Debug)]
pub(super) struct FirstRequests {
    left: AtomicU32,
    diversity: Mutex<KeyDiversity>,
    has_reported_missing: AtomicBool,
    has_reported_ambiguous: AtomicBool,
    has_reported_unfit: AtomicBool,
    /// The layer's, once the rule is on one.
    ledger: Arc<Ledger>,
}

impl FirstRequests {
    /// Reports to this ledger from now on.
    pub(super) fn report_to(&mut self, ledger: &Arc<Ledger>) {
        self.ledger = Arc::clone(ledger);
    }

    /// Looks at a request whose key was found.
    #[inline]
    pub(super) fn check(
        &self,
        policy: &PolicyName,
        extractor: &dyn KeyExtractor,
        (parts, key): (&Parts, &Key),
    ) {
        if self.left.load(Ordering::Relaxed) > 0 {
            self.check_closely(policy, extractor, (parts, key));
        }
    }

    #[cold]
    fn check_closely(
        &self,
        policy: &PolicyName,
        extractor: &dyn KeyExtractor,
        (parts, key): (&Parts, &Key),
    ) {
        let Some(left) = self.count_down() else {
            return;
        };
        let label = extractor.label();
        if let Some(code) = extractor.diagnose(parts) {
            self.report(policy, code, describe(code, label));
        }
        if extractor.tells_callers_apart() {
            self.compare((policy, label), (parts, key), left);
        }
    }

    /// Looks at a request whose key was looked up.
    #[inline]
    pub(super) fn check_found(
        &self,
        policy: &PolicyName,
        label: &str,
        (parts, key): (&Parts, &Key),
    ) {
        if self.left.load(Ordering::Relaxed) > 0
            && let Some(left) = self.count_down()
        {
            self.compare((policy, label), (parts, key), left);
        }
    }

    /// How many are to be looked at, this one included.
    fn count_down(&self) -> Option<u32> {
        let less = |left: u32| left.checked_sub(1);
        let left = &self.left;
        left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .ok()
    }

    /// Looks whether all have one key, and says so at the last.
    fn compare(
        &self,
        (policy, label): (&PolicyName, &str),
        (parts, key): (&Parts, &Key),
        left: u32,
    ) {
        if *key == Key::GLOBAL {
            return;
        }
        let mut diversity = self.diversity.lock();
        diversity.add(parts, key);
        if left == 1 && diversity.is_one_bucket() {
            drop(diversity);
            let detail = format!(
                "the first {CHECKED} requests had one key, found by {label}, though they came from {CLIENTS} clients \
                 or more"
            );
            self.report(policy, Code::OneBucket, detail);
        }
    }

    /// Reports the first tier that the policy cannot count.
    #[cold]
    pub(super) fn report_unfit_tier(&self, policy: &PolicyName, error: &Error) {
        if !self.has_reported_unfit.swap(true, Ordering::Relaxed) {
            self.report(policy, Code::UnfitTier, error.to_string());
        }
    }

    pub(super) fn report(&self, policy: &PolicyName, code: Code, detail: String) {
        let warning = Warning::new(code, detail);
        self.ledger.report(warning.about(*policy));
    }

    /// Reports the first request whose key is absent, with the code that its extractor has for it.
    ///
    /// Nothing is wrong with one that is skipped by choice, unless the extractor knows better.
    #[cold]
    pub(super) fn report_missing_key<'a>(
        &self,
        policy: &PolicyName,
        label: impl FnOnce() -> &'a str,
        code: impl FnOnce() -> Option<Code>,
        then: OnMissingKey,
    ) {
        if self.has_reported_missing.swap(true, Ordering::Relaxed) {
            return;
        }
        // Of several extractors, another than the one that found nothing may have something to say.
        let code = code().filter(|code| matches!(code, Code::NoPeerAddress | Code::NoRoute));
        if code.is_none() && then == OnMissingKey::Skip {
            return;
        }
        let label = label();
        let detail =
            format!("{label} is missing from a request; such requests are handled as {then:?}");
        self.report(policy, code.unwrap_or(Code::MissingKey), detail);
    }

    /// Reports the first request whose key is ambiguous.
    #[cold]
    pub(super) fn report_ambiguous_key(&self, policy: &PolicyName, label: &str) {
        if !self.has_reported_ambiguous.swap(true, Ordering::Relaxed) {
            let detail = format!("{label} is in a request more than once, or contradicts itself");
            self.report(policy, Code::AmbiguousKey, detail);
        }
    }
}

impl Default for FirstRequests {
    fn default() -> Self {
        Self {
            left: AtomicU32::new(CHECKED),
            diversity: Mutex::default(),
            has_reported_missing: AtomicBool::new(false),
            has_reported_ambiguous: AtomicBool::new(false),
            has_reported_unfit: AtomicBool::new(false),
            ledger: Arc::default(),
        }
    }
}

// A rule that is put on another layer has seen nothing there.
impl Clone for FirstRequests {
    fn clone(&self) -> Self {
        Self::default()
    }
}

/// What was seen at a request, in words.
pub(super) fn describe(code: Code, label: &str) -> String {
    match code {
        Code::NoPeerAddress => {
            format!("{label} looks for an address, and a request does not tell that of its peer")
        }
        Code::ForwardedIgnored => format!(
            "a request bears X-Forwarded-For or Forwarded, and {label} does not look at them"
        ),
        Code::ForwardedUntrusted => format!(
            "a request bears a header that {label} looks at, from a peer that is not trusted"
        ),
        Code::NoRoute => {
            format!("{label} looks for the matched route, and no router has seen a request")
        }
        Code::NestedPath => format!(
            "a path pattern of {label} begins with the prefix that nest() takes off the path, so it never matches"
        ),
        _ => format!("{label} found a request that is not as it should be"),
    }
}

// === FirstMatches ===

/// Whether matchers too are looked at: for the first requests they are.
#[derive(Debug)]
pub(super) struct FirstMatches {
    left: AtomicU32,
}

impl FirstMatches {
    #[inline]
    pub(super) fn is_due(&self) -> bool {
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

/// Whether one key is all there is, and how many clients stand behind it.
#[derive(Debug, Default)]
struct KeyDiversity {
    first: Option<Key>,
    has_others: bool,
    /// Hashes of what clients differ in, under a key of this process.
    clients: SmallVec<[u64; CLIENTS]>,
    hasher: RandomState,
}

impl KeyDiversity {
    fn add(&mut self, parts: &Parts, key: &Key) {
        self.has_others |= *self.first.get_or_insert(*key) != *key;
        if self.has_others || self.clients.len() == CLIENTS {
            return;
        }
        let headers = CLIENT_HEADERS.iter().flat_map(|name| {
            let values = parts.headers.get_all(name).iter();
            values.map(move |value| (name, value))
        });
        let client = (PeerIp.address(parts), headers.collect::<Vec<_>>());
        let client = self.hasher.hash_one(client);
        if !self.clients.contains(&client) {
            self.clients.push(client);
        }
    }

    fn is_one_bucket(&self) -> bool {
        !self.has_others && self.clients.len() == CLIENTS
    }
}

/// Headers that most clients do not share, and that one client does not change with every request.
static CLIENT_HEADERS: [HeaderName; 6] = [
    AUTHORIZATION,
    FORWARDED,
    USER_AGENT,
    HeaderName::from_static("x-api-key"),
    HeaderName::from_static("x-forwarded-for"),
    HeaderName::from_static("x-real-ip"),
];
/// How many requests of a rule are looked at.
const CHECKED: u32 = 1_000;
/// From how many clients on one key is too few.
const CLIENTS: usize = 8;
