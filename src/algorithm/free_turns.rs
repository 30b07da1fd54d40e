//! Turns in a queue that were given up while others were behind them.
//!
//! A queue hands out its turns one after the other, so only the end of the queue can move back: later callers already have
//! their turns. A turn that is given up earlier is kept here. The next caller takes it, or it comes back as soon as all turns behind
//! it are given up too.
//!
//! ```text
//!                     now                               TAT
//!                      |--- A ---|--- B ---|--- C ---|
//! A is given up        |---------|--- B ---|--- C ---|    kept: A
//! D comes              |--- D ---|--- B ---|--- C ---|
//! D is given up        |---------|--- B ---|--- C ---|    kept: D
//! C is given up        |---------|--- B ---|              back: C
//! B is given up        |                                  back: B and D
//! ```
//!
//! At most 32 spans of adjacent turns are kept for a key. If there are more, the earliest one is lost: it comes back last,
//! and its time passes first.
//!
//! # Why does a newcomer get a turn before those who wait?
//!
//! A request gets its turn when it is admitted, and waits on its own: no store can wake it earlier. Where several requests of one
//! instance wait, the instance itself keeps them in order: it gives the earliest of their turns to the one that came first
//! (`src/hold/turns.rs`). So the newcomer gets the last of them. Without the spans that are kept here, a turn that was given up
//! stayed empty, and a queue whose callers are impatient served next to nobody.

/// The turns of one queue that were given up, as spans of time before its TAT.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FreeTurns {
    /// Start and end of each span in microseconds since the Unix epoch, in order. They neither overlap nor touch.
    spans: Vec<(u64, u64)>,
    /// The quota under which they were given up: under another one, the turns are elsewhere.
    quota_tag: u32,
}

impl FreeTurns {
    /// Returns whether no turn is kept.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns when the last of them would have been over, in microseconds; 0 if there are none.
    pub(crate) fn end(&self) -> u64 {
        self.spans.last().map_or(0, |(_, end)| *end)
    }

    /// Number of spans that memory is allocated for.
    pub(crate) fn allocated(&self) -> usize {
        self.spans.capacity()
    }

    /// Moves all times forward by `micros` microseconds.
    pub(crate) fn shift(&mut self, micros: u64) {
        for (start, end) in &mut self.spans {
            *start = start.saturating_add(micros);
            *end = end.saturating_add(micros);
        }
    }

    /// Forgets turns that were given up under another quota.
    pub(super) fn keep_under(&mut self, quota_tag: u32) {
        if self.quota_tag != quota_tag {
            *self = Self {
                spans: Vec::new(),
                quota_tag,
            };
        }
    }

    /// Keeps a turn that others are behind. Turns that are over at `now` are dropped.
    pub(super) fn keep(&mut self, (mut start, mut end): (u64, u64), now: u64) {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for span in self.spans.drain(..) {
            if span.1 < start {
                before.push(span);
            } else if span.0 > end {
                after.push(span);
            } else {
                (start, end) = (start.min(span.0), end.max(span.1));
            }
        }
        let mut kept: Vec<_> = before.into_iter().filter(|span| span.1 > now).collect();
        kept.push((start, end));
        kept.extend(after);
        let lost = kept.len().saturating_sub(MAX_SPANS);
        self.spans = kept.split_off(lost);
        self.spans.shrink_to_fit();
    }

    /// Takes the first turn that is long enough, and over by `latest`. Returns when it is over. `after` returns when a turn is over
    /// that begins at this time.
    pub(super) fn take(
        &mut self,
        (now, latest): (u64, u64),
        after: impl Fn(u64) -> u64,
    ) -> Option<u64> {
        let mut spans = self.spans.iter().enumerate();
        let (index, over) = spans.find_map(|(index, (start, end))| {
            let over = after(now.max(*start));
            (over <= latest.min(*end)).then_some((index, over))
        })?;
        if over < self.spans[index].1 {
            self.spans[index].0 = over;
        } else {
            self.spans.remove(index);
            self.spans.shrink_to_fit();
        }
        Some(over)
    }

    /// Returns where the queue ends after its end has moved back to `end`: earlier if the turns before it are free.
    pub(super) fn take_back(&mut self, mut end: u64) -> u64 {
        while let Some((start, _)) = self.spans.pop_if(|(_, span_end)| *span_end >= end) {
            end = end.min(start);
        }
        end
    }
}

/// The most spans that are kept. `lua/token_bucket.lua` has the same number.
const MAX_SPANS: usize = 32;
