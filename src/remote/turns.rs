//! Turns of callers that wait, over all instances that share the server.
//!
//! ```text
//! RedisStore::take_turns --> Node::take_turns --> the breaker is open: decides on the first caller here
//!                                             '-> one call of Script::ACQUIRE, whose states the guard notes
//! ```
//!
//! A question is never sent again after it may have been executed: its turns would be lost, but not charged twice. The slots of such
//! turns are released.

use std::sync::Arc;

use redis::Cmd;

use crate::{
    algorithm::{MicroRate, RateReport},
    charge::{Charge, OwnedCharge, TurnRequest, Turns},
    clock::{self, Clock},
    error::{Error, ErrorKind, Phase},
    resilience::Before,
    store::StoreFuture,
};

use super::{
    batch,
    client::Client,
    node::{Node, check_clock},
    protocol::{Request, Script, TurnsCall, adapt, parse_rate, pause, takes_slots},
    route,
    script_call::run,
    slot_guard,
};

impl Node {
    /// Gives turns to the callers of a question, whose keys are all at this server.
    pub fn take_turns(&self, request: TurnRequest) -> StoreFuture<Turns> {
        if let Err(error) = check_clock(&self.client) {
            return StoreFuture::ready(Err(error));
        }
        let client = Arc::clone(&self.client);
        let Some(guard) = self.guard().cloned() else {
            return StoreFuture::boxed(async move { ask(&client, &request).await });
        };
        if request.callers() == 0 {
            if guard.is_open() {
                return StoreFuture::ready(Ok(Turns::default()));
            }
            return StoreFuture::boxed(async move { ask(&client, &request).await });
        }
        if guard.is_open()
            && let Some(turns) = Turns::in_pause(&request, Clock::system().now())
        {
            return StoreFuture::ready(Ok(turns));
        }
        let before = guard.before(&request.charges_of(0), client.scheduler.run_number());
        if let Before::Decided(decided) = before {
            return decided.map(move |decision| Ok(Turns::from_decision(decision?, &request)));
        }
        StoreFuture::boxed(async move {
            match ask(&client, &request).await {
                Ok(turns) => {
                    for turn in &turns.turns {
                        let mut charges = request.charges.iter().map(OwnedCharge::borrow);
                        guard.note_reply(&turn.decision, &mut charges);
                        guard.note_decided(1);
                    }
                    Ok(turns)
                }
                // Whoever can wait asks again: a decision without the server could admit too much.
                Err(error) if request.may_wait() && is_late(&error) && !guard.is_open() => {
                    Err(error)
                }
                Err(error) => {
                    if let Some(turns) = Turns::in_pause(&request, Clock::system().now()) {
                        return Ok(turns);
                    }
                    let charges = request.charges_of(0);
                    let decision = guard.conclude(Err(error), &mut charges.iter().copied());
                    Ok(Turns::from_decision(decision, &request))
                }
            }
        })
    }

    /// Pauses the key of a charge.
    pub fn pause(&self, charge: &Charge<'_>, length: std::time::Duration) -> StoreFuture<()> {
        let (client, charge) = (Arc::clone(&self.client), charge.to_owned());
        if self.guard().is_some_and(|guard| guard.is_open()) {
            let message = "the shared store is unavailable: nothing was paused";
            return StoreFuture::ready(Err(Error::new(ErrorKind::Unavailable, message)));
        }
        StoreFuture::boxed(async move {
            let command = |start: fn(&Script, usize) -> Cmd| {
                let now = client.clock.as_ref().map(Clock::now);
                let micros = clock::micros(length);
                pause(&client.keyspace, &charge.borrow(), micros, start, now)
            };
            run(&client, command).await.map(drop)
        })
    }

    /// Reports how the key of a charge was used, and returns its rate.
    pub fn adapt(&self, charge: &Charge<'_>, report: RateReport) -> StoreFuture<MicroRate> {
        let (client, charge) = (Arc::clone(&self.client), charge.to_owned());
        if self.guard().is_some_and(|guard| guard.is_open()) {
            let message = "the shared store is unavailable: no rate was adapted";
            return StoreFuture::ready(Err(Error::new(ErrorKind::Unavailable, message)));
        }
        StoreFuture::boxed(async move {
            let command = |start: fn(&Script, usize) -> Cmd| {
                let now = client.clock.as_ref().map(Clock::now);
                adapt(&client.keyspace, &charge.borrow(), &report, start, now)
            };
            parse_rate(&run(&client, command).await?)
        })
    }

    /// Lowers what is left of a charge's quota.
    pub fn lower(&self, charge: &Charge<'_>, remaining: u64) -> StoreFuture<()> {
        let client = Arc::clone(&self.client);
        if self.guard().is_some_and(|guard| guard.is_open()) {
            let message = "the shared store is unavailable: nothing was lowered";
            return StoreFuture::ready(Err(Error::new(ErrorKind::Unavailable, message)));
        }
        let guard = self.guard();
        let now = guard.map_or_else(|| client.now(), |guard| guard.server_clock.now());
        let Some(request) = Request::lower(&client.keyspace, charge, remaining, now) else {
            return StoreFuture::ready(Ok(()));
        };
        StoreFuture::boxed(async move { route::submit(&client, Box::new(request)).await?.check() })
    }
}

/// Asks the server for turns.
async fn ask(client: &Arc<Client>, request: &TurnRequest) -> Result<Turns, Error> {
    let call = TurnsCall::new(&client.keyspace, request);
    let command = |start: fn(&Script, usize) -> Cmd| {
        let now = client.clock.as_ref().map(Clock::now);
        call.command(start, now)
    };
    let sent_at = Clock::system().now();
    let reply = run(client, command).await;
    let turns = reply.and_then(|reply| call.parse(&reply, request));
    match &turns {
        Ok(turns) => {
            let took = Clock::system().now().since(sent_at);
            client.report_reply(took, Some(turns.now));
            // An instance whose callers all wait is one of the fleet, too.
            batch::after_reply(client, sent_at, || {
                let mut lanes = client.scheduler.lanes().iter();
                lanes.find_map(|lane| lane.connection(lane.connection_id()?))
            });
        }
        Err(error) => {
            // A late reply is reported where it is awaited.
            if !matches!(error.kind(), ErrorKind::Timeout(Phase::Reply)) {
                client.report_failure(error);
            }
            release_all(client, request);
        }
    }
    turns
}

/// Releases slots that may have been taken.
fn release_all(client: &Arc<Client>, request: &TurnRequest) {
    for caller in 0..request.callers() {
        let slots = request.charges_of(caller).into_iter();
        let slots: Vec<OwnedCharge> = slots
            .filter(takes_slots)
            .map(|charge| charge.to_owned())
            .collect();
        if !slots.is_empty() {
            slot_guard::release(client, slots, true);
        }
    }
}

/// Returns whether the server had no time for the question.
fn is_late(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Overloaded | ErrorKind::Timeout(_))
}
