//! Modes of rules: off, in shadow, or enforced for all keys or some of them.

use std::sync::atomic::{AtomicU64, Ordering};

use siphasher::sip::SipHasher13;

use crate::{
    charge::Enforcement,
    error::{Error, ErrorKind},
    key::Key,
};

/// The effect of a rule, or of a whole layer, on requests.
///
/// A rule has the weaker of two modes: the one set on it, and that of its layer. Both can be changed while the service runs:
/// [`RateLimitLayer::set_mode`](crate::RateLimitLayer::set_mode),
/// [`set_rule_mode`](crate::RateLimitLayer::set_rule_mode).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RuleMode {
    /// Counts nothing and denies nothing. Nothing is read from the store.
    Off,
    /// Counts as if it were enforced, and denies nothing: neither a request over the limit, nor one without a key, nor a
    /// caller whose tier is forbidden.
    ///
    /// [`Decision::would_deny`](crate::Decision::would_deny) returns what would have been denied.
    Shadow,
    /// Denies requests over the limit.
    #[default]
    Enforce,
}

impl RuleMode {
    /// Returns the name in rule files, log events and metrics, such as `shadow`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Shadow => "shadow",
            Self::Enforce => "enforce",
        }
    }
}

// === ModeSwitch ===

/// The mode and the rollout of a rule or a layer, which change while requests are decided.
///
/// One word, so that a request reads both at once:
///
/// ```text
/// bits 0 and 1: the mode        bits 2 to 34: the rollout, as a part of 2^32 keys
/// ```
#[derive(Debug)]
pub(crate) struct ModeSwitch(AtomicU64);

impl ModeSwitch {
    /// Returns the present mode and rollout.
    #[inline]
    pub fn get(&self) -> ModeSetting {
        ModeSetting(self.0.load(Ordering::Relaxed))
    }

    /// Changes mode and rollout from the next request on.
    #[cfg(feature = "reload")]
    pub fn set(&self, setting: ModeSetting) {
        self.0.store(setting.0, Ordering::Relaxed);
    }

    /// Changes the mode from the next request on.
    pub fn set_mode(&self, mode: RuleMode) {
        self.change(|setting| setting.with_mode(mode));
    }

    /// Changes the rollout from the next request on.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if `percent` is not a number from 0 to 100.
    pub fn set_rollout(&self, percent: f64) -> Result<(), Error> {
        let keys = keys_of(percent)?;
        self.change(|setting| setting.with_rollout(keys));
        Ok(())
    }

    fn change(&self, change: impl Fn(ModeSetting) -> ModeSetting) {
        let changed = |word| Some(change(ModeSetting(word)).0);
        // The closure always returns a word, so this cannot fail.
        let _ = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, changed);
    }
}

impl Clone for ModeSwitch {
    /// Returns a switch in the same position, which is changed on its own.
    fn clone(&self) -> Self {
        Self(AtomicU64::new(self.get().0))
    }
}

impl Default for ModeSwitch {
    fn default() -> Self {
        let setting = ModeSetting(0).with_rollout(ALL_KEYS);
        Self(AtomicU64::new(setting.with_mode(RuleMode::Enforce).0))
    }
}

// === ModeSetting ===

/// A mode and a rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ModeSetting(u64);

impl ModeSetting {
    /// Returns the mode.
    #[inline]
    pub fn mode(self) -> RuleMode {
        match self.0 & MODE_BITS {
            0 => RuleMode::Off,
            1 => RuleMode::Shadow,
            _ => RuleMode::Enforce,
        }
    }

    /// Returns whether the rule counts nothing.
    #[inline]
    pub fn is_off(self) -> bool {
        self.0 & MODE_BITS == RuleMode::Off as u64
    }

    /// Returns the setting of a rule in a layer of this mode.
    #[inline]
    pub fn within(self, layer: RuleMode) -> Self {
        // Asked first, because nearly all layers are enforced.
        if layer == RuleMode::Enforce || self.mode() <= layer {
            self
        } else {
            self.with_mode(layer)
        }
    }

    /// Returns whether the rule denies requests of all keys.
    #[inline]
    pub fn is_enforced(self) -> bool {
        self.0 == ALL_KEYS << ROLLOUT_SHIFT | RuleMode::Enforce as u64
    }

    /// Returns whether the rule can deny a request of this key. A key is always in or out, in all instances, and a larger
    /// rollout only adds keys.
    #[inline]
    pub fn enforcement(self, policy: &[u8], key: &Key) -> Enforcement {
        if self.is_enforced() || self.mode() == RuleMode::Enforce && self.includes(policy, key) {
            Enforcement::Enforced
        } else {
            Enforcement::Shadow
        }
    }

    /// Returns whether the key belongs to the rollout.
    #[cold]
    fn includes(self, policy: &[u8], key: &Key) -> bool {
        // With the policy, so that the same clients are not the first of every rollout.
        let mut bytes = policy.to_vec();
        bytes.push(0);
        bytes.extend_from_slice(key.as_bytes());
        let hash = SipHasher13::new_with_keys(0, 0).hash(&bytes);
        hash >> 32 < self.0 >> ROLLOUT_SHIFT
    }

    /// Returns the percentage of keys for which the rule denies requests.
    #[expect(clippy::cast_precision_loss, reason = "at most 2^32")]
    pub fn rollout(self) -> f64 {
        let percent = (self.0 >> ROLLOUT_SHIFT) as f64 * 100.0 / ALL_KEYS as f64;
        // As it was set: a part of 2^32 has more digits than a percentage.
        (percent * 1e6).round() / 1e6
    }

    fn with_mode(self, mode: RuleMode) -> Self {
        Self(self.0 & !MODE_BITS | mode as u64)
    }

    fn with_rollout(self, keys: u64) -> Self {
        Self(self.0 & MODE_BITS | keys << ROLLOUT_SHIFT)
    }
}

/// Returns a percentage as a part of [`ALL_KEYS`].
fn keys_of(percent: f64) -> Result<u64, Error> {
    if !(0.0..=100.0).contains(&percent) {
        return Err(Error::new(
            ErrorKind::InvalidConfig,
            format!("a rollout of {percent} %: use a number from 0 to 100"),
        ));
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "from 0 to 2^32, which a double holds exactly"
    )]
    let keys = (percent / 100.0 * ALL_KEYS as f64).round() as u64;
    Ok(keys)
}

const MODE_BITS: u64 = 0b11;
const ROLLOUT_SHIFT: u32 = 2;
const ALL_KEYS: u64 = 1 << 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_rollouts_are_kept_apart() {
        let switch = ModeSwitch::default();
        assert!(switch.get().is_enforced());
        for percent in [0.0, 0.001, 30.0, 99.999, 100.0] {
            switch.set_rollout(percent).expect("a percentage");
            for mode in [RuleMode::Off, RuleMode::Shadow, RuleMode::Enforce] {
                switch.set_mode(mode);
                assert_eq!(switch.get().mode(), mode);
                let is_all = percent == 100.0 && mode == RuleMode::Enforce;
                assert_eq!(switch.get().is_enforced(), is_all, "{percent} {mode:?}");
            }
        }
        for percent in [-0.1, 100.1, f64::NAN, f64::INFINITY] {
            let error = switch.set_rollout(percent).expect_err("not a percentage");
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        }
    }

    #[test]
    fn mode_of_a_layer_weakens_that_of_its_rules() {
        let (off, shadow, enforce) = (RuleMode::Off, RuleMode::Shadow, RuleMode::Enforce);
        let switch = ModeSwitch::default();
        for (rule, layer, expected) in [
            (enforce, enforce, enforce),
            (enforce, shadow, shadow),
            (shadow, enforce, shadow),
            (enforce, off, off),
            (off, shadow, off),
        ] {
            switch.set_mode(rule);
            assert_eq!(switch.get().within(layer).mode(), expected);
        }
    }

    #[test]
    fn rollout_enforces_its_share_of_the_keys_and_a_larger_one_only_adds_keys() {
        let switch = ModeSwitch::default();
        let enforced = |percent| {
            switch.set_rollout(percent).expect("a percentage");
            let setting = switch.get();
            let keys = (0..20_000_u64).filter(|&key| {
                setting.enforcement(b"api", &Key::from(key)) == Enforcement::Enforced
            });
            keys.collect::<Vec<_>>()
        };
        let (none, some, more) = (enforced(0.0), enforced(30.0), enforced(31.0));
        assert!(none.is_empty());
        // Six standard deviations are 389.
        assert!((5_611..=6_389).contains(&some.len()), "{}", some.len());
        assert!(some.iter().all(|key| more.contains(key)));
        assert_eq!(some, enforced(30.0));
        assert_eq!(enforced(100.0).len(), 20_000);
    }

    #[test]
    fn keys_of_a_rollout_are_the_same_in_every_version() {
        let switch = ModeSwitch::default();
        switch.set_rollout(50.0).expect("a percentage");
        let is_in =
            |key| switch.get().enforcement(b"api", &Key::from(key)) == Enforcement::Enforced;
        let keys: Vec<u64> = (0..16).filter(|&key| is_in(key)).collect();
        assert_eq!(
            keys,
            [2, 4, 7, 11, 13, 14, 15],
            "another hash puts other keys into a rollout that is under way"
        );
    }
}
