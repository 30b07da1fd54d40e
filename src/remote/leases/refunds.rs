//! Refunds of leased units.

use std::time::Duration;

use crate::{
    charge::{Correction, Settlement},
    decision::CountedBy,
    task::timer::{sleep, timeout},
};

use super::super::cluster::Cluster;

/// Refunds charges of leased units: here, what was not reported, which is removed. The others get what Redis needs to refund them.
///
/// One that is in the report under way waits for its end, at most for the deadline of a decision: Redis can refund it then.
pub(in crate::remote) async fn settle_here(cluster: &Cluster, settlements: &mut Vec<Settlement>) {
    let leases = cluster.leases();
    let ending = async {
        for settlement in settlements
            .iter()
            .filter(|settlement| is_refund(settlement))
        {
            let (charge, token) = (settlement.charge(), settlement.mark().refunded_before);
            let mut pause = FIRST_PAUSE;
            while leases.is_reporting(&charge, token) {
                sleep(pause).await;
                pause *= 2;
            }
        }
    };
    let _ = timeout(cluster.first().client.deadline, ending).await;
    settlements.retain_mut(|settlement| {
        let (Correction::Refund(units), CountedBy::Lease) =
            (settlement.correction(), settlement.counted_by())
        else {
            return true;
        };
        let token = settlement.mark().refunded_before;
        match leases.refund(&settlement.charge(), units, token) {
            Ok(()) => false,
            Err(total) => {
                settlement.set_refunded_before(total);
                true
            }
        }
    });
}

/// Returns whether a settlement refunds leased units.
pub(in crate::remote) fn is_refund(settlement: &Settlement) -> bool {
    let is_refund = matches!(settlement.correction(), Correction::Refund(_));
    is_refund && settlement.counted_by() == CountedBy::Lease
}

/// The first wait for a report under way. The next ones are longer.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
