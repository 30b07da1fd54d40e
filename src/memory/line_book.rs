//! The lines of callers that wait for keys in this process. Twin of `lua/line_open.lua`, which describes the rules.

use std::{collections::HashMap, time::Duration};

use smallvec::SmallVec;

use crate::{
    charge::{Fingerprint, Priority, TurnRequest},
    clock::Timestamp,
};

/// The lines of all keys that somebody waits for, or that are paused.
#[derive(Debug, Default)]
pub(super) struct LineBook {
    lines: HashMap<Fingerprint, KeyLine>,
    /// The number of lines at which those whose pauses have ended are dropped.
    next_sweep: usize,
}

/// The line of one key.
#[derive(Debug, Default)]
struct KeyLine {
    queues: Vec<(u64, Entry)>,
    paused_until: Timestamp,
    /// Units owed to lower priorities, in hundredths.
    owed: u64,
}

/// A queue in a line.
#[derive(Clone, Debug)]
struct Entry {
    due: Timestamp,
    class: u8,
    /// Microseconds that a caller takes of a bucket; 0 for other algorithms.
    step: u64,
    callers: u64,
    /// When the first callers came.
    came: SmallVec<[Timestamp; LISTED]>,
}

/// A caller whose turn it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub queue: u64,
    pub class: u8,
    pub came: Timestamp,
    pub start: Timestamp,
}

impl LineBook {
    /// Returns whether no key has a line.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns when the key is no longer paused, if that is later than `now`.
    pub fn paused_until(&self, key: Fingerprint, now: Timestamp) -> Option<Timestamp> {
        let line = self.lines.get(&key)?;
        Some(line.paused_until).filter(|until| *until > now)
    }

    /// Pauses a key. An earlier pause that ends later stays.
    pub fn pause(&mut self, key: Fingerprint, until: Timestamp, now: Timestamp) {
        // Not at each pause: it visits all of them.
        if self.lines.len() >= self.next_sweep {
            self.lines
                .retain(|_, line| !line.queues.is_empty() || line.paused_until > now);
            self.next_sweep = (2 * self.lines.len()).max(LEAST_SWEEP);
        }
        let line = self.lines.entry(key).or_default();
        line.paused_until = line.paused_until.max(until);
    }

    /// Drops queues that were due and did not come.
    pub fn drop_absent(&mut self, key: Fingerprint, queue: u64, now: Timestamp) {
        if let Some(line) = self.lines.get_mut(&key) {
            let is_present = |(other, entry): &(u64, Entry)| {
                *other == queue || entry.due + GRACE >= now && entry.due <= now + FURTHEST
            };
            line.queues.retain(is_present);
            if line.queues.is_empty() && line.paused_until <= now {
                self.lines.remove(&key);
            }
        }
    }

    /// Returns the index of the first key in whose line others go before the caller.
    pub fn blocked_at(
        &self,
        keys: &[Fingerprint],
        steps: &[u64],
        caller: &Caller,
    ) -> Option<usize> {
        let blocks = |(key, step): (&Fingerprint, &u64)| {
            let Some(line) = self.lines.get(key) else {
                return false;
            };
            let is_owed = line.owed >= 100;
            line.others(caller.queue).any(|entry| {
                let is_before = if entry.class == caller.class {
                    entry.came[0] + EPSILON < caller.came
                } else {
                    (entry.class < caller.class) != is_owed
                };
                is_before && (entry.due <= caller.start || *step > 0 && entry.step > *step)
            })
        };
        keys.iter().zip(steps).position(blocks)
    }

    /// Notes that a caller has its turn.
    pub fn note_turn(&mut self, keys: &[Fingerprint], caller: &Caller) {
        for key in keys {
            let Some(line) = self.lines.get_mut(key) else {
                continue;
            };
            let mut owed = line.owed;
            if line
                .others(caller.queue)
                .any(|entry| entry.class > caller.class)
            {
                owed = line.owed + 10;
            }
            let is_higher = |entry: &Entry| entry.class < caller.class && entry.due <= caller.start;
            if line.others(caller.queue).any(is_higher) {
                owed = line.owed.saturating_sub(100);
            }
            line.owed = owed.min(300);
        }
    }

    /// Returns the time of the first unit that nobody before the caller expects, from the `start` of the next one.
    pub fn due(&self, key: Fingerprint, caller: &Caller, now: Timestamp) -> Timestamp {
        let mut due = caller.start;
        if let Some(line) = self.lines.get(&key) {
            let mut others: Vec<&Entry> = line.others(caller.queue).collect();
            others.sort_by_key(|entry| entry.due);
            for entry in others
                .into_iter()
                .filter(|entry| entry.due <= caller.start.max(entry.due))
            {
                if entry.due > due {
                    continue;
                }
                let before = match entry.class {
                    class if class == caller.class => {
                        let came = entry.came.iter();
                        came.filter(|came| **came < caller.came).count() as u64
                    }
                    class if class < caller.class => entry.callers.min(10),
                    _ => 0,
                };
                if before > 0 && entry.step > 0 {
                    due = due + Duration::from_micros(entry.step * before);
                } else if before > 0 {
                    due = due.max(entry.due) + MILLISECOND;
                }
            }
        }
        due.max(now + MILLISECOND).min(now + FURTHEST)
    }

    /// Lists the callers that are left in the lines of these keys, and ends the place of the queue elsewhere.
    ///
    /// `waits_for` is the index of the key that the first caller waits for, and when it is due; `None` if nobody waits.
    pub fn list(
        &mut self,
        keys: &[Fingerprint],
        steps: &[u64],
        request: &TurnRequest,
        (granted, waits_for): (usize, Option<(usize, Timestamp)>),
        now: Timestamp,
    ) {
        for (index, key) in keys.iter().enumerate() {
            let own = self
                .lines
                .get(key)
                .and_then(|line| line.place(request.queue));
            let listed = waits_for.filter(|(at, _)| *at == index || own.is_some() && granted == 0);
            if let Some((_, due)) = listed {
                let callers = &request.callers[granted..];
                let entry = Entry {
                    due,
                    class: request.priority.class(),
                    // Where it only keeps its place, it expects no units yet that others must leave.
                    step: if waits_for.is_some_and(|(at, _)| at == index) {
                        steps[index]
                    } else {
                        0
                    },
                    callers: callers.len() as u64,
                    came: callers
                        .iter()
                        .take(LISTED)
                        .map(|caller| now - caller.age)
                        .collect(),
                };
                let line = self.lines.entry(*key).or_default();
                match own {
                    Some(place) => line.queues[place].1 = entry,
                    None => line.queues.push((request.queue, entry)),
                }
            } else if let Some(place) = own
                && let Some(line) = self.lines.get_mut(key)
            {
                line.queues.swap_remove(place);
                if line.queues.is_empty() && line.paused_until <= now {
                    self.lines.remove(key);
                }
            }
        }
    }
}

impl KeyLine {
    fn others(&self, queue: u64) -> impl Iterator<Item = &Entry> {
        let others = self.queues.iter().filter(move |(other, _)| *other != queue);
        others.map(|(_, entry)| entry)
    }

    fn place(&self, queue: u64) -> Option<usize> {
        self.queues.iter().position(|(other, _)| *other == queue)
    }
}

impl Caller {
    /// Returns a caller of a request.
    pub fn of(request: &TurnRequest, index: usize, now: Timestamp, start: Timestamp) -> Self {
        let priority: Priority = request.priority;
        Self {
            queue: request.queue,
            class: priority.class(),
            came: now - request.callers[index].age,
            start,
        }
    }
}

/// As in `lua/line_open.lua`: for how long a queue that is due may be late.
const GRACE: Duration = Duration::from_millis(20);
/// Callers that came within this time of each other are in no order.
const EPSILON: Duration = Duration::from_millis(10);
const MILLISECOND: Duration = Duration::from_millis(1);
/// As in `lua/decide.lua`.
const FURTHEST: Duration = Duration::from_micros(1 << 50);
const LEAST_SWEEP: usize = 64;
/// The most callers of a queue whose times a line keeps.
const LISTED: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{algorithm::Quota, key::Key, policy::Policy};

    // Reproducer: each pause visited all keys that were ever paused.
    #[test]
    fn pauses_that_have_ended_are_dropped_now_and_then() {
        let policy = Policy::new("api", Quota::per_second(1));
        let (mut book, mut now) = (LineBook::default(), Timestamp::from_micros(1 << 50));
        let (mut sweeps, mut most) = (0, 0);
        for number in 0..10_000_u64 {
            let before = book.lines.len();
            let key = Fingerprint::of(&policy, &Key::from(number));
            book.pause(key, now + MILLISECOND * 10, now);
            now = now + MILLISECOND;
            sweeps += usize::from(book.lines.len() <= before);
            most = most.max(book.lines.len());
        }
        assert!(most <= LEAST_SWEEP, "{most} keys");
        assert!((1..=10_000 / 50).contains(&sweeps), "{sweeps} sweeps");
    }
}
