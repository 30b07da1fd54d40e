//! A server as its guard sees it.

use std::{sync::Arc, time::Duration};

use crate::{
    charge::{Charge, Merge},
    decision::Decision,
    diagnosis::Warning,
    error::{Error, ErrorKind},
    key::Key,
    resilience::Primary,
    store::StoreFuture,
};

use super::{
    client::Client,
    cluster::split,
    node::{check_clock, send},
    protocol::Request,
    route,
};

impl Primary for Client {
    fn run_number(&self) -> u64 {
        self.scheduler.run_number()
    }

    fn decide(self: Arc<Self>, charges: &[Charge<'_>], run_number: u64) -> StoreFuture<Decision> {
        send(&self, charges, Some(run_number), split::decide_in_parts)
    }

    fn merge(self: Arc<Self>, merge: &Merge, run_number: u64) -> StoreFuture<()> {
        if let Err(error) = check_clock(&self) {
            return StoreFuture::ready(Err(error));
        }
        let Some(mut request) = Request::merge(&self.keyspace, merge) else {
            return StoreFuture::ready(Ok(()));
        };
        request.set_run_number(run_number);
        // A merge that was made before is denied, which is as good.
        StoreFuture::boxed(async move { route::submit(&self, Box::new(request)).await?.check() })
    }

    fn probe(self: Arc<Self>) -> StoreFuture<()> {
        if let Err(error) = check_clock(&self) {
            return StoreFuture::ready(Err(error));
        }
        StoreFuture::boxed(async move {
            self.skip_next_backoff();
            let request = Request::probe(&self.keyspace, self.probe_identity().as_bytes());
            let reply = route::submit(&self, Box::new(request)).await?;
            if reply.is_admitted() {
                return Ok(());
            }
            Err(Error::new(
                ErrorKind::ForeignValue,
                "a key of tollgate's probe holds a value that tollgate did not write",
            ))
        })
    }

    fn serves(&self, key: &Key) -> bool {
        let owner = self.client_of(key.slot());
        owner.is_none_or(|owner| std::ptr::eq(&raw const *owner, self))
    }

    fn deadline(&self) -> Option<Duration> {
        Some(self.deadline)
    }

    fn server(&self) -> Option<String> {
        Client::server(self)
    }

    fn warnings(&self) -> Vec<Warning> {
        self.check.warnings()
    }
}
