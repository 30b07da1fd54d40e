//! The protocol of the decision script: keys, arguments and replies. No I/O.
//!
//! ```text
//! charges -- keyspace --> keys       --+
//!         -- codec -----> arguments  --+--> request --> EVALSHA ... --> reply -- codec --> decision
//! ```

mod arguments;
mod codec;
mod key_state;
mod keyspace;
mod lease;
mod pot;
mod redirect;
pub(crate) mod reply;
mod request;
mod script;
mod turns;

#[cfg(fuzzing)]
pub(super) use self::codec::reply_len;
pub(super) use self::key_state::KeyState;
pub(super) use self::keyspace::{Keyspace, RedisKey};
pub(super) use self::lease::{
    GUARD, LEAST_UNITS, LONGEST_DENIAL, LONGEST_PAUSE, LeaseId, LeaseReply, LeaseReport, Purpose,
    REGION_TURN, can_lease, has_leases,
};
pub(super) use self::pot::{PotEnd, PotNote, PotReply, PotStep, PotUpdate};
pub(super) use self::redirect::{NodeAddress, Redirect};
pub(super) use self::reply::{Reply, RequestResult, malformed};
pub(super) use self::request::{CancelHandle, Delivery, Request, takes_slots};
pub use self::script::Script;
pub(super) use self::turns::{
    TurnsCall, adapt, check_release, failure, parse_rate, pause, release,
};
