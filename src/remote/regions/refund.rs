//! Refunds of units that another region has leased to this one.

use std::sync::Arc;

use crate::{
    charge::{Settlement, Site},
    clock::Clock,
    error::Error,
    remote::{
        protocol::{PotNote, Reply, Request, malformed},
        route,
        store::RedisStore,
    },
    task::timer::sleep,
};

use super::pots::Pots;

/// Refunds a charge: here, if its units were not reported, and else at the home. If they are just being reported, waits for the end of
/// that.
pub(super) async fn run(pots: Arc<Pots>, mut settlement: Settlement) -> Result<(), Error> {
    let key = *settlement.charge().key();
    let Some(home) = pots.home_of(&key) else {
        return Ok(());
    };
    let until = Clock::system().now() + pots.wait;
    let note = PotNote(settlement.mark().refunded_before);
    let refunded = loop {
        let reply = send(&pots.here, &settlement).await?;
        let (done, refunded) = reply.pot_refund().ok_or_else(malformed)?;
        if !done.is_of_home() {
            return Ok(());
        }
        if !done.is_under_way() || Clock::system().now() >= until {
            break refunded;
        }
        sleep(home.round_trip() / 4).await;
    };
    let Some(reset_at) = home.time_there(settlement.mark().reset_at) else {
        return Ok(());
    };
    settlement.set_site(Site::Home);
    settlement.set_mark(reset_at, note.refunded_before(refunded));
    send(&home.store, &settlement).await.map(drop)
}

async fn send(store: &RedisStore, settlement: &Settlement) -> Result<Reply, Error> {
    let node = store.node_for(settlement.charge().key());
    let requests = Request::settle_all(&node.client.keyspace, std::slice::from_ref(settlement));
    let (request, _) = requests.into_iter().next().ok_or_else(malformed)?;
    let reply = route::submit(&node.client, request).await?;
    reply.check()?;
    Ok(reply)
}
