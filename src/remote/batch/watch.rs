//! The thread that keeps deadlines.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Thread},
    time::Duration,
};

use crate::{
    clock::{Clock, Timestamp},
    error::{Error, ErrorKind, Phase},
    spawn::contain_panic,
    sync::Mutex,
};

use super::{
    super::node::Node,
    queue::{answer, hand_back},
};

/// Handle on the thread that ends what is overdue: decisions, calls, dials and mute connections.
///
/// A thread and not timers of the runtime: it keeps deadlines also while a runtime is busy, blocked, ended, not driven or
/// built without timers, and one thread for all costs less than a timer for each decision. While requests come it looks
/// about three times per deadline, else it sleeps.
#[derive(Debug, Default)]
pub(in crate::remote) struct Watch {
    /// Read by every decision; whether the thread looks without being woken.
    is_awake: AtomicBool,
    thread: Mutex<Option<Thread>>,
}

impl Watch {
    /// Makes sure that the thread looks. Starts it when it is first needed.
    #[inline]
    pub(super) fn ensure(&self, node: &Arc<Node>) -> Result<(), Error> {
        match self.is_awake.load(Ordering::Acquire) {
            true => Ok(()),
            false => self.start(node),
        }
    }

    /// Has the thread look now.
    pub(in crate::remote) fn wake(&self) {
        self.is_awake.store(true, Ordering::Release);
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }

    #[cold]
    fn start(&self, node: &Arc<Node>) -> Result<(), Error> {
        let mut thread = self.thread.lock();
        self.is_awake.store(true, Ordering::Release);
        if let Some(thread) = &*thread {
            thread.unpark();
            return Ok(());
        }
        let node = Arc::downgrade(node);
        let started = thread::Builder::new()
            .name("tollgate-watch".to_owned())
            .stack_size(STACK)
            .spawn(move || run(&node));
        match started {
            Ok(handle) => {
                *thread = Some(handle.thread().clone());
                Ok(())
            }
            Err(error) => {
                self.is_awake.store(false, Ordering::Release);
                Err(Error::new(
                    ErrorKind::Unavailable,
                    "the thread that keeps deadlines cannot be started: this process has too many threads",
                )
                .with_source(error))
            }
        }
    }
}

fn run(node: &Weak<Node>) {
    let mut idle_looks = 0;
    // Not kept while it sleeps: the store may be dropped meanwhile.
    while let Some(strong) = node.upgrade() {
        let now = Clock::system().now();
        let next = look(&strong, now);
        let longest = (strong.deadline / 3).clamp(SHORTEST, LONGEST);
        let Some(next) = next else {
            idle_looks += 1;
            if idle_looks > IDLE_LOOKS {
                strong.watch.is_awake.store(false, Ordering::Release);
                // A decision may have come in before that was stored, and have relied on this thread.
                if look(&strong, now).is_none() {
                    drop(strong);
                    thread::park();
                    idle_looks = 0;
                    continue;
                }
                strong.watch.is_awake.store(true, Ordering::Release);
            }
            drop(strong);
            thread::park_timeout(longest);
            continue;
        };
        idle_looks = 0;
        drop(strong);
        thread::park_timeout(next.since(now).clamp(SHORTEST, longest));
    }
}

/// Ends what is overdue. Returns when something will be next; `None` if nothing is under way.
fn look(node: &Arc<Node>, now: Timestamp) -> Option<Timestamp> {
    let overdue = node.traffic.overdue(now);
    let phase = match node.traffic.is_up() {
        true => Phase::Queue,
        false => Phase::Connect,
    };
    // A dial that outlasts the deadline of a decision is a failure of the server; a full queue is not.
    if phase == Phase::Connect && !overdue.unsent.is_empty() {
        contain_panic(|| node.report_failure(&node.late(phase)));
    }
    for unsent in overdue.unsent {
        contain_panic(|| answer(unsent, Err(node.late(phase))));
    }
    for job in overdue.stranded {
        contain_panic(|| hand_back(job.answer, job.request));
    }
    let late = || node.late(Phase::Reply);
    for unpolled in overdue.calls.unpolled {
        contain_panic(|| answer(unpolled, Err(late())));
    }
    for (lane, generation) in &overdue.calls.mute {
        node.traffic.lanes()[*lane].disconnect(*generation, Some(&late()));
    }
    for alarm in overdue.calls.woken {
        contain_panic(|| alarm.ring());
    }
    if overdue.calls.is_unreported {
        contain_panic(|| node.report_failure(&late()));
    }
    // A command that such a connection took as its runtime ended may never be answered, nor dropped.
    for (lane, held) in node.traffic.lanes().iter().enumerate() {
        if let Some(generation) = held.disconnect_orphan() {
            contain_panic(|| node.traffic.end_connection(lane, generation));
        }
    }
    let dials = node.traffic.lanes().iter();
    let dial = dials.filter_map(|lane| lane.end_late_dial(now)).min();
    overdue.next.into_iter().chain(dial).min()
}

/// Looks that find nothing under way before the thread sleeps until it is woken.
const IDLE_LOOKS: u32 = 20;
const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_millis(100);
const STACK: usize = 128 * 1_024;
