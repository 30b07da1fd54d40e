//! Decisions under leased policies, and the calls that report leased units, lease more, and give them back.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::sync::oneshot::Receiver;

use crate::{
    charge::{Charge, Charges, OwnedCharge},
    clock::{Clock, Timestamp},
    decision::{CountedBy, Decision, PolicyState, Retry},
    error::Error,
    store::{StoreFuture, waited::TimeLeft},
    task::{
        Running, home,
        timer::{sleep, timeout},
    },
    telemetry::ReportResult,
};

use super::{
    super::{
        cluster::Cluster,
        denial_cache::Validity,
        node::Node,
        protocol::{LeaseReply, LeaseReport, Purpose, Reply, Request},
        route,
    },
    key::LeaseKey,
    table::{self, Attempt, HeldUnits, Leases, TakenUnits},
    waiters::Answer,
};

/// A decision on charges of which some are under leased policies.
pub(in crate::remote) enum LeasedDecision {
    Decided(StoreFuture<Decision>),
    Waits(Box<Waiting>),
}

/// Decides charges of which some are under leased policies: with the units that are here, and the rest by `ask`.
pub(in crate::remote) fn decide(
    cluster: &Arc<Cluster>,
    charges: &[Charge<'_>],
    ask: impl FnOnce(&[Charge<'_>]) -> StoreFuture<Decision>,
) -> LeasedDecision {
    use LeasedDecision::{Decided, Waits};

    let leases = cluster.leases();
    // Shadow charges and candidates are made with the others or not at all, and a peek needs the state in Redis.
    let is_plain = |charge: &Charge<'_>| !charge.is_shadow() && charge.units() > 0;
    if !charges.iter().all(is_plain) {
        return Decided(ask(charges));
    }
    let now = Clock::system().now();
    let decision = match charges {
        [charge] => {
            // Dropped once no lock is held: it may be the last one of its kind.
            let mut node = None;
            let may_wait = || {
                let node: &mut Node = node.insert(cluster.node_for(charge.key()));
                !node.has_denial(charges)
            };
            match leases.take(charge, now, may_wait) {
                Attempt::Taken(units) => {
                    let decision =
                        Decision::of_one(CountedBy::Lease, units.decided_at, units.state);
                    Decided(StoreFuture::ready(Ok(decision)))
                }
                Attempt::Waits(answer) => {
                    leases.metrics.missed();
                    Waits(Box::new(Waiting {
                        cluster: Arc::clone(cluster),
                        charge: charge.to_owned(),
                        node,
                        answer,
                        time: TimeLeft::of_request(Some(leases.longest_wait)),
                    }))
                }
                Attempt::Missing => Decided(ask_missing(leases, true, || ask(charges))),
                Attempt::Unleased => Decided(ask(charges)),
            }
        }
        charges => Decided(decide_several(cluster, charges, now, ask)),
    };
    if leases.has_due() {
        report_due(cluster);
    }
    decision
}

/// Holds the units of all charges that have some here, until the others are decided.
fn decide_several(
    cluster: &Arc<Cluster>,
    charges: &[Charge<'_>],
    now: Timestamp,
    ask: impl FnOnce(&[Charge<'_>]) -> StoreFuture<Decision>,
) -> StoreFuture<Decision> {
    let leases = cluster.leases();
    let mut has_missed = false;
    let taken: SmallVec<[Option<TakenUnits>; 4]> = charges
        .iter()
        .map(|charge| {
            let is_leased = charge.policy().is_leased();
            match is_leased.then(|| leases.hold(charge, now))? {
                Attempt::Taken(units) => return Some(units),
                Attempt::Missing => has_missed = true,
                Attempt::Unleased | Attempt::Waits(_) => {}
            }
            None
        })
        .collect();
    if taken.iter().all(Option::is_none) {
        return ask_missing(leases, has_missed, || ask(charges));
    }
    let held = Held {
        leases: Arc::clone(leases),
        units: taken.iter().flatten().map(|units| units.held).collect(),
        is_admitted: true,
    };
    let rest: Charges<'_> = charges
        .iter()
        .zip(&taken)
        .filter(|(_, units)| units.is_none())
        .map(|(charge, _)| *charge)
        .collect();
    if rest.is_empty() {
        let decided_at = taken.iter().flatten().map(|units| units.decided_at);
        let decided_at = decided_at.min().unwrap_or(now);
        let states = taken.iter().flatten().map(|units| units.state);
        let decision = Decision::new(CountedBy::Lease, decided_at, states);
        drop(held);
        note_decided(cluster, 1);
        return StoreFuture::ready(Ok(decision));
    }
    let charges: SmallVec<[OwnedCharge; 4]> = charges.iter().map(Charge::to_owned).collect();
    ask_missing(leases, has_missed, || ask(&rest))
        .map(move |result| held.end(result, &charges, taken))
}

/// Asks Redis, and counts the request if it had too few leased units. What is decided at once takes no call.
fn ask_missing(
    leases: &Leases,
    has_missed: bool,
    ask: impl FnOnce() -> StoreFuture<Decision>,
) -> StoreFuture<Decision> {
    let decision = ask();
    if has_missed && decision.as_ready().is_none() {
        leases.metrics.missed();
    }
    decision
}

/// Counts decisions by leased units, or in reply to a report, for the health of the store.
fn note_decided(cluster: &Cluster, count: u64) {
    // All nodes share the count.
    if let Some(guard) = cluster.first().guard().filter(|_| count > 0) {
        guard.note_decided(count);
    }
}

/// Counts the decisions by leased units since the last call, for the health of the store.
pub(in crate::remote) fn note_all_decided(cluster: &Cluster) {
    note_decided(cluster, cluster.leases().take_decided());
}

/// A decision that waits for the report of its key.
pub(in crate::remote) struct Waiting {
    cluster: Arc<Cluster>,
    charge: OwnedCharge,
    /// The node of its key.
    node: Option<Node>,
    answer: Receiver<Answer>,
    time: TimeLeft,
}

impl Waiting {
    /// Waits until the report has ended.
    ///
    /// # Errors
    ///
    /// The charge, if Redis is to be asked for it in the time that is left.
    pub async fn end(self) -> Result<Decision, (OwnedCharge, TimeLeft)> {
        let charge = self.charge.borrow();
        let time = self.time.restarted();
        let answer = time.limit(self.answer).await;
        if answer.is_none() {
            let now = Clock::system().now();
            self.cluster.leases().note_vain_wait(&charge, now);
        }
        match answer {
            Some(Ok(Answer::Taken(taken))) => {
                let decided_at = taken.known.server_time(Clock::system().now());
                let state = table::state(&charge, &taken, decided_at);
                note_decided(&self.cluster, 1);
                Ok(Decision::of_one(CountedBy::Lease, decided_at, state))
            }
            Some(Ok(Answer::Denied { decided_at, state })) => {
                let state = table::denied(&charge, decided_at, state);
                let denial = Decision::of_one(CountedBy::Lease, decided_at, state);
                note_decided(&self.cluster, 1);
                Ok(match self.node.as_ref().and_then(Node::guard) {
                    Some(guard) => denial.timed_by(&guard.server_clock),
                    None => denial,
                })
            }
            Some(Ok(Answer::Unknown) | Err(_)) | None => Err((self.charge, time)),
        }
    }
}

/// Units that a decision under way holds. If nobody learns how it ended, they count as spent.
struct Held {
    leases: Arc<Leases>,
    units: SmallVec<[HeldUnits; 4]>,
    is_admitted: bool,
}

impl Held {
    /// Ends the decision on the other charges, and puts the states in the order of all charges.
    fn end(
        mut self,
        result: Result<Decision, Error>,
        charges: &[OwnedCharge],
        taken: SmallVec<[Option<TakenUnits>; 4]>,
    ) -> Result<Decision, Error> {
        let rest = result.inspect_err(|error| self.is_admitted = !error.was_not_executed())?;
        self.is_admitted = rest.is_allowed();
        let mut others = rest.states().iter();
        let states = charges
            .iter()
            .zip(taken)
            .map(|(charge, units)| match units {
                Some(units) if rest.is_allowed() => units.state,
                Some(units) => charge.borrow().after_denial(units.state, &rest),
                None => {
                    let state = *others.next().expect("one state per charge");
                    state.with_counted_by(state.counted_by().unwrap_or(rest.counted_by()))
                }
            });
        let decision = Decision::new(rest.counted_by(), rest.decided_at(), states).timed_as(&rest);
        Ok(match rest.ticket() {
            Some(ticket) => decision.with_ticket(ticket),
            None => decision,
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for units in &self.units {
            self.leases.end_hold(*units, self.is_admitted);
        }
    }
}

// === Reports ===

/// Reports the units of all keys that are due, in the background: at home, since a caller's runtime may be driven now and then only.
fn report_due(cluster: &Arc<Cluster>) {
    let leases = cluster.leases();
    start_sweep(cluster);
    if !leases.begin_reporting() {
        return;
    }
    let reporting = {
        let cluster = Arc::clone(cluster);
        async move {
            let (leases, now) = (cluster.leases(), Clock::system().now());
            let due = leases.take_due();
            let instances = cluster.instances();
            let reports = due.into_iter().filter_map(|key| {
                let (charge, report) = leases.begin_report(key, instances, now)?;
                Some(send(&cluster, key, charge, report))
            });
            join_all(reports).await;
        }
    };
    if home::spawn(reporting).is_none() {
        // Without a thread, requests ask Redis.
        leases.forget_due();
    }
}

fn start_sweep(cluster: &Arc<Cluster>) {
    let sweep = |running| sweep(Arc::clone(cluster), running);
    cluster.leases().sweep.start(sweep);
}

/// Gives back the units of idle keys, until no key is left.
async fn sweep(cluster: Arc<Cluster>, running: Running) {
    while cluster.leases().has_keys() {
        sleep(SWEEP_INTERVAL).await;
        give_back(&cluster, false).await;
    }
    drop(running);
    // A key may have been added just before.
    if cluster.leases().has_keys() {
        start_sweep(&cluster);
    }
}

/// Gives all units back, within the deadline of a decision.
pub(in crate::remote) async fn drain(cluster: Arc<Cluster>) {
    let draining = async {
        loop {
            give_back(&cluster, true).await;
            if !cluster.leases().has_keys() {
                return;
            }
            // Those that a decision under way has are next, or that a report under way brings.
            sleep(DRAIN_PAUSE).await;
        }
    };
    let _ = timeout(cluster.first().client.deadline, draining).await;
}

async fn give_back(cluster: &Arc<Cluster>, is_all: bool) {
    note_all_decided(cluster);
    let reports = cluster.leases().give_back(is_all, Clock::system().now());
    let sent = reports
        .into_iter()
        .map(|(key, charge, report)| send(cluster, key, charge, report));
    join_all(sent).await;
}

/// Sends a report, and takes its reply over. The future ends the report also if it is never polled.
fn send(
    cluster: &Arc<Cluster>,
    key: LeaseKey,
    charge: OwnedCharge,
    report: LeaseReport,
) -> impl Future<Output = ()> {
    let under_way = UnderWay {
        leases: cluster.leases(),
        key,
        was_sent: false,
        has_ended: false,
    };
    async move {
        // Else its fields would be captured, and it would not be dropped with the future.
        let mut under_way = under_way;
        let charge = charge.borrow();
        let node = cluster.node_for(charge.key());
        let is_down = node.guard().is_some_and(|guard| guard.is_open());
        if is_down {
            return;
        }
        let request = Request::lease(&node.client.keyspace, &charge, report);
        let (sent_at, validity) = (Clock::system().now(), node.client.denials.validity());
        under_way.was_sent = true;
        let reply = route::submit(&node.client, Box::new(request)).await;
        if let Err(error) = &reply {
            under_way.was_sent = !error.was_not_executed();
        }
        let Some(reply) = reply.ok().and_then(Reply::into_lease) else {
            cluster.leases().metrics.reported(ReportResult::Failed);
            return;
        };
        let result = match reply.is_late {
            true => ReportResult::Late,
            false => ReportResult::Accepted,
        };
        cluster.leases().metrics.reported(result);
        if !reply.is_late {
            note(&node, &charge, &reply, report);
            keep_denial(&node, &charge, &reply, (sent_at, validity));
        }
        under_way.has_ended = true;
        cluster
            .leases()
            .end_report(key, &reply, Clock::system().now());
        if cluster.leases().has_due() {
            report_due(cluster);
        }
    }
}

/// A report under way. One that ends without a reply has failed.
struct UnderWay<'a> {
    leases: &'a Leases,
    key: LeaseKey,
    was_sent: bool,
    has_ended: bool,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let now = Clock::system().now();
            self.leases.fail_report(self.key, self.was_sent, now);
        }
    }
}

/// Notes the state of a key for an outage, as if all leased units were spent.
fn note(node: &Node, charge: &Charge<'_>, reply: &LeaseReply, report: LeaseReport) {
    let Some(guard) = node.guard() else {
        return;
    };
    let kept = match report.purpose {
        Purpose::Keep | Purpose::OfRegion => report.kept,
        Purpose::GiveBack | Purpose::Reset => 0,
    };
    let (counter, now) = (charge.policy().counter(), reply.decided_at);
    let leased = reply.leased(kept.into()).cast_signed();
    let (usage, _) = reply
        .state
        .after(leased, counter, now)
        .usage_and_retry(counter, 0, now);
    let state = PolicyState::counted(*charge.policy().name(), usage, Retry::Now);
    let decision = Decision::of_one(CountedBy::Shared, now, counter.annotate(state));
    guard.note_reply(&decision, &mut std::iter::once(charge.cost(0)));
}

/// Keeps the denial of a request if the state alone denies it: leased units that come back cannot admit it.
fn keep_denial(
    node: &Node,
    charge: &Charge<'_>,
    reply: &LeaseReply,
    (sent_at, validity): (Timestamp, Validity),
) {
    let (counter, now) = (charge.policy().counter(), reply.decided_at);
    // It covers requests of every cost, since none costs less.
    let charge = charge.cost(1);
    let (usage, retry) = reply.state.usage_and_retry(counter, charge.units(), now);
    if usage.remaining > 0 {
        return;
    }
    let state = PolicyState::counted(*charge.policy().name(), usage, retry);
    let denials = &node.client.denials;
    denials.put(&charge, &state, (sent_at, now), validity);
}

/// The wait of a drain for what is under way.
const DRAIN_PAUSE: Duration = Duration::from_millis(1);
/// How often idle keys are looked for.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use futures_util::FutureExt;

    use crate::{
        algorithm::Quota,
        diagnosis::SilencedCodes,
        key::Key,
        policy::{Consistency, Policy},
        remote::{
            client::Client,
            connection::{Address, Endpoint, Lane, ServerCheck},
            protocol::{KeyState, Keyspace, LeaseId},
        },
        store::waited,
    };

    use super::*;

    /// An instance without a server, and a key of 100 units that it is asked for.
    struct World {
        cluster: Arc<Cluster>,
        policy: Policy,
        now: Timestamp,
    }

    impl World {
        /// Returns an instance to which a report was replied now, with this many units.
        fn leased(granted: u64) -> Self {
            let keyspace = Keyspace::new("tollgate").expect("a prefix");
            let check = ServerCheck::new(SilencedCodes::default());
            let endpoint = Endpoint::Server(Address::Unix(PathBuf::new()), Arc::default());
            let lanes = Box::new([Lane::new(endpoint, DEADLINE)]);
            let client = Client::new(None, lanes, keyspace, DEADLINE, None, check, true);
            let policy = Policy::new("api", Quota::per_hour(100).burst(100));
            let world = Self {
                cluster: Cluster::new(client, Box::new(|_| None), None),
                policy: policy.consistency(Consistency::Leased),
                now: Clock::system().now(),
            };
            world.ask_often(world.now - ROUND_TRIP);
            let report = world.begin_report(world.now - ROUND_TRIP);
            let (key, ..) = report.expect("units are missing");
            let second = world.now.as_micros() / 1_000_000;
            let reply = LeaseReply {
                decided_at: Timestamp::from_micros(second * 1_000_000),
                state: KeyState([world.now.as_micros() + 3_600_000_000, 0, 0]),
                granted,
                is_late: false,
                leased_elsewhere: 0,
                lease: LeaseId {
                    turn: second.try_into().expect("a turn"),
                    born: 0,
                },
                asked: 0,
            };
            world.leases().end_report(key, &reply, world.now);
            world
        }

        fn leases(&self) -> &Leases {
            self.cluster.leases()
        }

        fn charge(&self) -> Charge<'_> {
            self.policy.charge(Key::new("ada"))
        }

        fn take(&self, now: Timestamp) -> Attempt {
            self.leases().take(&self.charge(), now, || true)
        }

        /// Asks for more units than one in a round trip, of which there are none.
        fn ask_often(&self, now: Timestamp) {
            for _ in 0..200 {
                self.leases().take(&self.charge().cost(6), now, || false);
            }
        }

        fn begin_report(&self, now: Timestamp) -> Option<(LeaseKey, OwnedCharge, LeaseReport)> {
            let key = LeaseKey::of(&self.charge());
            let (charge, report) = self.leases().begin_report(key, 1, now)?;
            Some((key, charge, report))
        }

        /// Returns a decision that waits, of a request that has waited for this long before.
        fn waiting(&self, waited: Duration) -> Waiting {
            let Attempt::Waits(answer) = self.take(self.now) else {
                panic!("it must wait")
            };
            waited::after(waited, || Waiting {
                cluster: Arc::clone(&self.cluster),
                charge: self.charge().to_owned(),
                node: None,
                answer,
                time: TimeLeft::of_request(Some(self.leases().longest_wait)),
            })
        }
    }

    #[test]
    fn request_waits_for_a_quarter_of_its_deadline_at_most() {
        let world = World::leased(0);
        let longest = DEADLINE / 4;
        // Two round trips must be left.
        for (left, waits) in [(2 * ROUND_TRIP, true), (ROUND_TRIP, false)] {
            let attempt = waited::after(longest - left, || world.take(world.now));
            assert_eq!(matches!(attempt, Attempt::Waits(_)), waits, "{left:?}");
        }
        let early = world.waiting(longest - DEADLINE / 8);
        let late = world.waiting(longest);
        assert!(early.end().now_or_never().is_none());
        let ended = late.end().now_or_never().expect("its time is over");
        assert!(ended.is_err(), "Redis is asked");
        let next = world.take(world.now);
        assert!(matches!(next, Attempt::Missing), "it would wait in vain");
    }

    #[test]
    fn report_that_is_dropped_before_it_is_polled_has_failed() {
        let world = World::leased(0);
        let Attempt::Waits(mut answer) = world.take(world.now) else {
            panic!("it must wait")
        };
        let (key, charge, report) = world.begin_report(world.now).expect("a request waits");
        assert!(world.begin_report(world.now).is_none(), "one is under way");
        drop(send(&world.cluster, key, charge, report));
        assert!(matches!(answer.try_recv(), Ok(Answer::Unknown)));
        let later = Clock::system().now() + Duration::from_millis(100);
        world.ask_often(later);
        assert!(matches!(world.take(later), Attempt::Waits(_)));
        assert!(world.begin_report(later).is_some(), "the key is not stuck");
    }

    #[test]
    fn units_of_an_idle_key_go_back() {
        let world = World::leased(20);
        assert!(matches!(world.take(world.now), Attempt::Taken(_)));
        let after = |millis| world.now + Duration::from_millis(millis);
        assert!(world.leases().give_back(false, after(99)).is_empty());
        let reports = world.leases().give_back(false, after(101));
        let [(_, _, report)] = reports.as_slice() else {
            panic!("one key: {reports:?}")
        };
        assert_eq!((report.spent, report.kept), (1, 19));
        assert_eq!(report.purpose, Purpose::GiveBack);
    }

    // Regression: units that Redis granted during the drain stayed here until their key was idle.
    #[test]
    fn drain_waits_for_the_units_that_a_report_under_way_brings() {
        let world = World::leased(0);
        let Attempt::Waits(_answer) = world.take(world.now) else {
            panic!("it must wait")
        };
        world.begin_report(world.now).expect("a request waits");
        let draining = drain(Arc::clone(&world.cluster));
        assert!(draining.now_or_never().is_none());
    }

    #[test]
    fn first_leased_key_starts_the_task_that_gives_units_back() {
        let world = World::leased(20);
        assert!(!world.leases().sweep.is_running());
        let charges = [world.charge()];
        let decided = decide(&world.cluster, &charges, |_| unreachable!("it has units"));
        assert!(matches!(decided, LeasedDecision::Decided(_)));
        assert!(world.leases().sweep.is_running());
    }

    const DEADLINE: Duration = Duration::from_secs(3_600);
    const ROUND_TRIP: Duration = Duration::from_millis(10);
}
