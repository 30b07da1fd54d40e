//! Each behaviour by each way of counting on each store: in process, Redis, Redis 6.2, Valkey, clusters of one node and
//! of three, a primary behind Sentinel, and a server by TLS in RESP3 as an ACL user.

/// Tests of these behaviours on every store, each with what `$subject` makes of the place.
macro_rules! on_every_store {
    ($module:ident, $subject:expr, { $($behaviour:ident)* }) => {
        on_store! { memory, Place::memory(), $module, $subject, { $($behaviour)* } }
        on_every_server! { $module, $subject, { $($behaviour)* } }
    };
}

/// Tests of behaviours that a store in process has no part in.
macro_rules! on_every_server {
    ($module:ident, $subject:expr, { $($behaviour:ident)* }) => {
        on_store! { redis, Place::redis(), $module, $subject, { $($behaviour)* } }
        on_store! {
            redis_6_2, Place::named("TOLLGATE_REDIS62_SERVER"), $module, $subject, { $($behaviour)* }
        }
        on_store! { cluster, Place::cluster(), $module, $subject, { $($behaviour)* } }
        on_store! { secured, Place::secured(), $module, $subject, { $($behaviour)* } }
        on_store! { sentinel, Place::sentinel(), $module, $subject, { $($behaviour)* } }
        on_store! { one_shard, Place::one_shard(), $module, $subject, { $($behaviour)* } }
        on_store! {
            valkey, Place::named("TOLLGATE_VALKEY_SERVER"), $module, $subject, { $($behaviour)* }
        }
    };
}

macro_rules! on_store {
    ($store:ident, $place:expr, $module:ident, $subject:expr, { $($behaviour:ident)* }) => {
        mod $store {
            use crate::conformance::place::Place;

            $(#[tokio::test]
            async fn $behaviour() {
                crate::conformance::$module::$behaviour(($subject)($place)).await;
            })*
        }
    };
}

/// Tests of these behaviours by every way of counting, on every store.
///
/// What is in flight comes back with whoever took it and not with time, so `slots` says what each of them comes to there:
/// a behaviour that it does not know does not compile.
macro_rules! by_every_way {
    ($module:ident, $behaviours:tt) => {
        by_every_way! { slots, $behaviours, { concurrency } }
        by_every_way! { $module, $behaviours, {
            token_bucket
            leaky_bucket
            fixed_window_by_clock
            fixed_window_by_first_hit
            fixed_window_by_month
            sliding_window
            sliding_log
        } }
    };
    ($module:ident, $behaviours:tt, { $($way:ident)* }) => {
        $(mod $way {
            on_every_store! {
                $module,
                |place| crate::conformance::ways::Trial::of(stringify!($way), place),
                $behaviours
            }
        })*
    };
}

mod backoffs;
mod blocks;
mod by_itself;
mod changes;
mod leases;
mod lines;
mod loans;
mod penalties;
mod place;
mod refunds;
mod reserves;
mod shadow;
mod slots;
mod together;
mod walk;
mod ways;
