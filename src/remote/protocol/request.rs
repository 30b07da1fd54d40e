//! Requests to the decision script, and the command that carries several of them.
//!
//! ```text
//! EVALSHA hash 3   keys of request 1, keys of request 2   [@ time]   arguments of request 1, arguments of request 2
//! ```
//!
//! Example: a decision by two buckets (`w`) in one request, and a refund (`-`) of one charge in another one. `*` and
//! the number of charges begin a request with several. Four bytes of each `w` are the tag of its quota.
//!
//! ```text
//! keys       tollgate:{ada}:user tollgate:{ada}:search              tollgate:{bob}:user
//! arguments  * 2 w.... 6000000 60000000 w.... 1000000 10000000      - 1700000006000000 0 w.... 6000000 60000000
//! ```
//!
//! A request is a group of charges to decide together, or one job on one key: a correction, a release or a renewal of
//! slots. The script handles the requests of a call one after the other, as if each had come alone.

use std::{collections::HashMap, fmt, mem, sync::Arc, time::Duration};

use redis::Cmd;
use smallvec::SmallVec;

use crate::{
    algorithm::{Algorithm, Counter, Quota, WindowStart},
    charge::{Charge, Merge, Settlement},
    clock::Timestamp,
    key::{Key, slot::slot_of},
    policy::Policy,
    task::Mutex,
};

use super::{
    arguments::{Argument, Arguments, Tag},
    codec::{self, MAX_TICKETS},
    keyspace::{Keyspace, RedisKey, hash_tag},
    lease::LeaseReport,
    pot::PotStep,
    script::Script,
};

/// Keys and arguments of the script for one request.
pub(in crate::remote) struct Request {
    /// One key per charge, then one per penalty.
    keys: SmallVec<[RedisKey; 1]>,
    /// The arguments of all charges, after the mark of a group if there are several.
    arguments: Arguments,
    /// Per charge, the number of integers in the reply that describe its state.
    reply_lens: SmallVec<[u8; 1]>,
    /// Set for a caller that must clean up if it leaves before the reply.
    cancel_handle: Option<CancelHandle>,
    /// How a cluster gets the request.
    delivery: Delivery,
    is_probe: bool,
    /// The run of the server that it is meant for.
    run_number: Option<u64>,
}

/// How a request is sent to a node of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::remote) enum Delivery {
    /// Sent alone in a command, after ASKING: its slot is being moved to the node.
    Asking,
    /// Sent alone in a command: its slot is being moved, and the keys of one command must be at one node.
    Alone,
    /// Sent in one command with other requests for its slot.
    #[default]
    Shared,
}

/// Requests for one or more jobs, and for each the indexes of the items that it carries.
type IndexedRequests = Vec<(Box<Request>, Vec<usize>)>;

impl Request {
    /// Returns a request to decide these charges together: the script makes all of them or none.
    pub fn decide(keyspace: &Keyspace, charges: &[Charge<'_>]) -> Self {
        let mut arguments = codec::group_of(charges.len());
        for charge in charges {
            codec::decide(&mut arguments, charge);
        }
        let mut keys: SmallVec<[RedisKey; 1]> = charges
            .iter()
            .map(|charge| keyspace.key_of(charge))
            .collect();
        let banned = charges
            .iter()
            .filter(|charge| codec::penalty_of(charge).is_some());
        keys.extend(banned.map(|charge| keyspace.ban_key(charge.policy(), charge.key())));
        Self {
            keys,
            arguments,
            reply_lens: charges.iter().map(codec::decided_len).collect(),
            cancel_handle: None,
            delivery: Delivery::Shared,
            is_probe: false,
            run_number: None,
        }
    }

    /// Returns requests that correct charges. Slots of one key are released by one request.
    ///
    /// The indexes are those of the settlements; a settlement that needs no correction is in no request.
    pub fn settle_all(keyspace: &Keyspace, settlements: &[Settlement]) -> IndexedRequests {
        let mut requests = Vec::new();
        for (index, settlement) in settlements.iter().enumerate() {
            let charge = settlement.charge();
            if !takes_slots(&charge)
                && let Some(arguments) = codec::correct(settlement)
            {
                let request = Self::for_key_of(&charge, keyspace, arguments);
                requests.push((Box::new(request), vec![index]));
            }
        }
        for pending in [false, true] {
            let released = settlements.iter().enumerate();
            let released = released
                .filter(|(_, settlement)| settlement.is_acquire_pending() == pending)
                .map(|(index, settlement)| (index, settlement.charge()))
                .filter(|(_, charge)| takes_slots(charge));
            requests.extend(Self::slot_upkeep(keyspace, released, |charges| {
                codec::release(charges, pending)
            }));
        }
        requests
    }

    /// Returns a request that makes a merge once; `None` for slots, which are not merged.
    ///
    /// Together with the units, the script charges a key of one unit that only this merge has. Sent again while that key
    /// lives, all of it is denied.
    pub fn merge(keyspace: &Keyspace, merge: &Merge) -> Option<Self> {
        let charge = merge.charge();
        let arguments = codec::merge(&charge, merge.admitted())?;
        let mark = keyspace.merge_key(charge.policy(), charge.key(), merge.id());
        Some(Self {
            keys: SmallVec::from_iter([mark, keyspace.key_of(&charge)]),
            arguments,
            reply_lens: SmallVec::from_iter([codec::MERGE_MARK_LEN, codec::reply_len(&charge)]),
            cancel_handle: None,
            delivery: Delivery::Shared,
            is_probe: false,
            run_number: None,
        })
    }

    /// Returns a request that lowers what is left of a key's quota; `None` for slots.
    pub fn lower(
        keyspace: &Keyspace,
        charge: &Charge<'_>,
        remaining: u64,
        now: Timestamp,
    ) -> Option<Self> {
        let arguments = codec::lower(charge, remaining, now)?;
        Some(Self::for_key_of(charge, keyspace, arguments))
    }

    /// Returns a request that reports the leased units of a key, and leases more.
    pub fn lease(keyspace: &Keyspace, charge: &Charge<'_>, report: LeaseReport) -> Self {
        let mut request = Self::for_key_of(charge, keyspace, codec::lease(charge, report));
        request.reply_lens = SmallVec::from_iter([codec::OF_LEASE]);
        request
    }

    /// Returns a request for a step in a report of units that another region has leased to this one; `None` unless the policy is a
    /// bucket.
    pub fn pot_report(keyspace: &Keyspace, charge: &Charge<'_>, step: &PotStep) -> Option<Self> {
        let Counter::Bucket(bucket) = charge.policy().counter() else {
            return None;
        };
        let mut request = Self::for_key_of(charge, keyspace, codec::pot_report(bucket, step));
        request.reply_lens = SmallVec::from_iter([codec::OF_POT]);
        Some(request)
    }

    /// Returns requests that renew the leases of slots, one for each key.
    ///
    /// The indexes are those of the charges, in the order of the bits of [`Reply::missing`]. With `take_again`, slots
    /// whose lease has ended are taken again.
    ///
    /// [`Reply::missing`]: super::reply::Reply::missing
    pub fn renew_all(
        keyspace: &Keyspace,
        charges: &[Charge<'_>],
        take_again: bool,
    ) -> IndexedRequests {
        let charges = charges.iter().copied().enumerate();
        let slots = charges.filter(|(_, charge)| takes_slots(charge));
        Self::slot_upkeep(keyspace, slots, |charges| codec::renew(charges, take_again))
    }

    /// Returns a request that succeeds only where decisions would: one charge per algorithm that was used so far, by the
    /// same commands. It charges keys of an identity that no caller has.
    pub fn probe(keyspace: &Keyspace, identity: &[u8]) -> Self {
        let mut policies = probe_policies();
        let is_used = |policy: &Policy| keyspace.is_used(policy.counter());
        if policies.iter().any(is_used) {
            policies.retain(is_used);
        } else {
            policies.truncate(1);
        }
        let mut request = Self {
            keys: SmallVec::new(),
            arguments: codec::group_of(policies.len()),
            reply_lens: SmallVec::new(),
            cancel_handle: None,
            delivery: Delivery::Shared,
            is_probe: true,
            run_number: None,
        };
        for policy in &policies {
            let charge = policy.charge(Key::GLOBAL);
            request
                .keys
                .push(keyspace.probe_key(identity, policy.counter()));
            codec::probe(&mut request.arguments, &charge);
            request.reply_lens.push(codec::reply_len(&charge));
        }
        request
    }

    /// Returns requests for slots, each for at most [`MAX_TICKETS`] charges to one key.
    ///
    /// `slots` yields the charges with their indexes, and `arguments` makes the arguments for those of one key.
    fn slot_upkeep<'a>(
        keyspace: &Keyspace,
        slots: impl Iterator<Item = (usize, Charge<'a>)>,
        arguments: impl Fn(&[Charge<'a>]) -> Arguments,
    ) -> IndexedRequests {
        let mut by_key: HashMap<_, (Vec<Charge<'a>>, Vec<usize>)> = HashMap::new();
        for (index, charge) in slots {
            let (charges, indexes) = by_key
                .entry((*charge.policy().name(), *charge.key()))
                .or_default();
            charges.push(charge);
            indexes.push(index);
        }
        let mut requests = Vec::new();
        for (charges, indexes) in by_key.into_values() {
            let parts = charges.chunks(MAX_TICKETS).zip(indexes.chunks(MAX_TICKETS));
            requests.extend(parts.map(|(charges, indexes)| {
                let request = Self::for_key_of(&charges[0], keyspace, arguments(charges));
                (Box::new(request), indexes.to_vec())
            }));
        }
        requests
    }

    /// Returns a request for the key of one charge.
    fn for_key_of(charge: &Charge<'_>, keyspace: &Keyspace, arguments: Arguments) -> Self {
        Self {
            keys: SmallVec::from_iter([keyspace.key_of(charge)]),
            arguments,
            reply_lens: SmallVec::from_iter([codec::reply_len(charge)]),
            cancel_handle: None,
            delivery: Delivery::Shared,
            is_probe: false,
            run_number: None,
        }
    }

    /// Returns a handle that shows whether the request was sent.
    pub fn cancel_handle(&mut self) -> CancelHandle {
        self.cancel_handle.get_or_insert_default().clone()
    }

    /// Returns the number of charges. A penalty counts as one more: it has a key, too.
    pub fn charges(&self) -> usize {
        self.keys.len()
    }

    /// Returns, per charge, the number of integers in the reply that describe its state.
    pub fn reply_lens(&self) -> &[u8] {
        &self.reply_lens
    }

    /// Sets how a cluster gets the request.
    pub fn set_delivery(&mut self, delivery: Delivery) {
        self.delivery = delivery;
    }

    /// Returns whether the command of this request follows ASKING.
    pub fn is_asking(&self) -> bool {
        self.delivery == Delivery::Asking
    }

    /// Returns whether it only tries what decisions need.
    pub fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// Returns the run of the server that the request is meant for, if it was set.
    pub fn run_number(&self) -> Option<u64> {
        self.run_number
    }

    /// Sets the run of the server that the request is meant for: the present one when the guard was asked, or what a merge
    /// restores was chosen. A later run would decide it without what the guard knows of the loss.
    pub fn set_run_number(&mut self, run_number: u64) {
        self.run_number = Some(run_number);
    }

    /// Returns the slot of the request's keys; `None` if they are in several, so that a cluster refuses the command.
    pub fn slot(&self) -> Option<u16> {
        let mut slots = self.keys.iter().map(|key| slot_of(hash_tag(key)));
        let slot = slots.next()?;
        slots.all(|other| other == slot).then_some(slot)
    }

    /// Returns the slot of the request's keys, if other requests for that slot may be in the same command.
    pub fn shared_slot(&self) -> Option<u16> {
        self.slot().filter(|_| self.delivery == Delivery::Shared)
    }

    /// Returns the command that runs the script for these requests, and notes them as sent.
    ///
    /// `start` is [`Script::by_hash`] or [`Script::by_text`]. Without `now` the script takes the server's time.
    pub fn command<'a>(
        requests: impl Iterator<Item = &'a Self> + Clone,
        start: fn(&Script, usize) -> Cmd,
        now: Option<Timestamp>,
    ) -> Cmd {
        let charges: usize = requests.clone().map(Self::charges).sum();
        let arguments: usize = requests
            .clone()
            .map(|request| request.arguments.len())
            .sum();
        let mut command = start(Script::DECIDE, charges + arguments);
        command.arg(charges);
        for key in requests.clone().flat_map(|request| &request.keys) {
            command.arg(key.as_slice());
        }
        if let Some(now) = now {
            Argument::mark(Tag::CallerTime).write(&mut command);
            command.arg(now.as_micros());
        }
        for request in requests {
            if let Some(handle) = &request.cancel_handle {
                handle.note_sent();
            }
            for argument in &request.arguments {
                argument.write(&mut command);
            }
        }
        command
    }

    /// Notes that the command of this request was not sent after all.
    pub fn note_not_sent(&self) {
        if let Some(handle) = &self.cancel_handle {
            handle.note_not_sent();
        }
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(handle) = &self.cancel_handle {
            handle.finish();
        }
    }
}

/// Returns whether a charge takes slots, which must be released.
pub(in crate::remote) fn takes_slots(charge: &Charge<'_>) -> bool {
    charge.policy().is_concurrency() && charge.units() > 0
}

/// Returns one policy per algorithm, each with its widest limit and shortest time, so that probes leave next to
/// nothing.
fn probe_policies() -> Vec<Policy> {
    let policy = |count| Policy::new("probe", Quota::per_second(count));
    let lease = Duration::from_millis(100);
    vec![
        policy(1_000_000),
        policy(1_000_000).algorithm(Algorithm::FixedWindow(WindowStart::Clock)),
        policy(1_000_000).algorithm(Algorithm::SlidingWindow),
        policy(10_000).algorithm(Algorithm::SlidingLog),
        Policy::concurrency("probe", 10_000).algorithm(Algorithm::Concurrency { lease }),
    ]
}

// === CancelHandle ===

/// A handle of a caller on its request, for cleaning up if the caller leaves before the reply.
///
/// ```text
/// the caller leaves   before the request is sent      nothing is charged: the queue drops the request
///                     while a call takes the request  `clean_up` runs when that call has ended
///                     after the request was sent      `cancel` returns false: the caller must wait for the reply
/// ```
#[derive(Clone, Debug, Default)]
pub(in crate::remote) struct CancelHandle(Arc<Mutex<CancelState>>);

/// The state that the caller and the call share.
#[derive(Default)]
struct CancelState {
    /// Whether the request was written to a command.
    is_sent: bool,
    /// Runs after the call if the request is sent although its caller has left.
    clean_up: Option<Box<dyn FnOnce() + Send>>,
}

impl CancelHandle {
    /// Cancels the request, unless it was sent. Returns whether it was not sent.
    ///
    /// A call may take the request at the same time and send it all the same. `clean_up` runs when that call has ended.
    pub fn cancel(&self, clean_up: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.0.lock();
        if !state.is_sent {
            state.clean_up = Some(Box::new(clean_up));
        }
        !state.is_sent
    }

    /// Notes that the request is written to a command.
    fn note_sent(&self) {
        self.0.lock().is_sent = true;
    }

    /// Notes that the command was not sent after all.
    fn note_not_sent(&self) {
        self.0.lock().is_sent = false;
    }

    /// Runs the clean-up, if it is due. The request is dropped.
    fn finish(&self) {
        let mut state = self.0.lock();
        let clean_up = mem::take(&mut state.clean_up).filter(|_| state.is_sent);
        drop(state);
        if let Some(clean_up) = clean_up {
            clean_up();
        }
    }
}

// By hand: keys must not get into logs.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("charges", &self.keys.len())
            .field("delivery", &self.delivery)
            .field("is_probe", &self.is_probe)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for CancelState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelState")
            .field("is_sent", &self.is_sent)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashSet,
        sync::atomic::{AtomicU32, Ordering},
    };

    use super::*;

    #[test]
    fn debug_output_has_no_key() {
        let policy = Policy::new("api", Quota::per_minute(10));
        let keyspace = Keyspace::new("tollgate").expect("a prefix");
        let request = Request::decide(&keyspace, &[policy.charge(Key::new("ada"))]);
        let text = format!("{request:?}");
        assert!(text.contains("charges: 1"), "{text}");
        // As text, and as a list of bytes.
        assert!(!text.contains("ada") && !text.contains("97"), "{text}");
    }

    #[test]
    fn every_algorithm_can_be_probed() {
        let keyspace = Keyspace::new("t").expect("a usable prefix");
        let mut keys = HashSet::new();
        for policy in probe_policies() {
            policy.validate().expect("a usable policy");
            keys.insert(keyspace.probe_key(b"!", policy.counter()));
        }
        let of_one_policy = Policy::new("p", Quota::per_minute(1));
        let kinds = keyspace.all_keys(&of_one_policy, &Key::GLOBAL).count();
        // Units of another region are not a kind of their own: without them, there are others.
        assert_eq!(keys.len() + 1, kinds, "one for each kind of key");
    }

    #[test]
    fn probe_charges_a_key_per_algorithm_in_use() {
        let keyspace = Keyspace::new("t").expect("a usable prefix");
        let charges = || Request::probe(&keyspace, b"!").charges();
        assert_eq!(charges(), 1, "a bucket, at first");
        for (used, policy) in probe_policies().iter().skip(1).enumerate() {
            let _ = Request::decide(&keyspace, &[policy.charge(Key::GLOBAL)]);
            assert_eq!(charges(), used + 1);
        }
    }

    // Regression: a request that was handed back counted as sent, and was sent although its caller had left.
    #[test]
    fn request_that_was_not_sent_after_all_can_be_cancelled() {
        let handle = CancelHandle::default();
        handle.note_sent();
        assert!(!handle.cancel(|| {}), "it is under way");
        handle.note_not_sent();
        assert!(handle.cancel(|| panic!("nothing is to be cleaned up")));
        handle.finish();
    }

    #[test]
    fn request_is_cleaned_up_after_if_it_is_sent_when_its_caller_has_left() {
        for is_sent in [true, false] {
            let handle = CancelHandle::default();
            let runs = Arc::new(AtomicU32::new(0));
            let counted = Arc::clone(&runs);
            let clean_up = move || {
                counted.fetch_add(1, Ordering::Relaxed);
            };
            assert!(handle.cancel(clean_up), "in time");
            if is_sent {
                handle.note_sent();
            }
            assert_eq!(runs.load(Ordering::Relaxed), 0, "not before it has ended");
            handle.finish();
            handle.finish();
            assert_eq!(runs.load(Ordering::Relaxed), u32::from(is_sent));
        }
    }

    #[test]
    fn caller_who_leaves_after_the_request_cleans_up_itself() {
        let handle = CancelHandle::default();
        handle.note_sent();
        assert!(!handle.cancel(|| unreachable!("nothing was noted")));
        handle.finish();
    }
}
