//! Warnings about misconfigurations, each reported once.

use std::fmt;

use super::{code::Code, log, outside_text::shown};
use crate::{decision::PolicyName, task::Mutex};

/// A misconfiguration that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    code: Code,
    policy: Option<PolicyName>,
    detail: String,
}

impl Warning {
    /// Creates a warning, for a custom [`Store`](crate::store::Store).
    ///
    /// `detail` describes the finding. It must not contain a key or an address. It is kept on one line, and without its
    /// middle above 1,024 bytes.
    #[must_use]
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            policy: None,
            detail: shown(&detail.into(), MAX_DETAIL),
        }
    }

    /// Sets the policy that the warning is about.
    ///
    /// Default: none.
    #[must_use]
    pub fn with_policy(mut self, policy: PolicyName) -> Self {
        self.policy = Some(policy);
        self
    }

    /// Returns the code.
    #[must_use]
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns the policy that the warning is about, if it is a single one.
    #[must_use]
    pub fn policy(&self) -> Option<&PolicyName> {
        self.policy.as_ref()
    }

    /// Returns the description of the finding. It never contains a key or an address.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

impl fmt::Display for Warning {
    /// Writes the policy, the finding and the remedy.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(policy) = &self.policy {
            write!(f, "policy {policy}: ")?;
        }
        write!(f, "{}; {}", self.detail, self.code.remedy())
    }
}

const MAX_DETAIL: usize = 1_024;

// === WarningLog ===

/// The warnings of one layer or store: each code at most once per policy.
#[derive(Debug, Default)]
pub(crate) struct WarningLog {
    silenced: SilencedCodes,
    warnings: Mutex<Vec<Warning>>,
}

impl WarningLog {
    pub fn new(silenced: SilencedCodes) -> Self {
        Self {
            silenced,
            warnings: Mutex::default(),
        }
    }

    /// Logs and keeps a warning, unless it is a repetition or silenced.
    #[cold]
    pub fn report(&self, warning: Warning) {
        if self.is_silenced(warning.code) {
            return;
        }
        let mut warnings = self.warnings.lock();
        let same = |other: &Warning| other.code == warning.code && other.policy == warning.policy;
        if warnings.iter().any(same) {
            return;
        }
        warnings.push(warning.clone());
        drop(warnings);
        let (code, detail, remedy) = (warning.code, &warning.detail, warning.code.remedy());
        match warning.policy {
            Some(policy) => log::event!(
                WARN,
                "possible misconfiguration",
                code = code,
                policy = policy,
                detail = detail,
                remedy = remedy,
            ),
            None => log::event!(
                WARN,
                "possible misconfiguration",
                code = code,
                detail = detail,
                remedy = remedy,
            ),
        }
    }

    /// Returns whether a code is silenced.
    pub fn is_silenced(&self, code: Code) -> bool {
        self.silenced.contains(code)
    }

    pub fn warnings(&self) -> Vec<Warning> {
        self.warnings.lock().clone()
    }
}

/// A set of codes that are not reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SilencedCodes(u32);

impl SilencedCodes {
    pub fn with(self, code: Code) -> Self {
        Self(self.0 | code.bit())
    }

    fn contains(self, code: Code) -> bool {
        self.0 & code.bit() > 0
    }
}
