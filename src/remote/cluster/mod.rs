//! Redis Cluster: which node decides a key, and decisions on keys of several nodes.
//!
//! ```text
//! RedisStore ── keys in one slot ───────▶ Cluster::node_of ──▶ node
//!            └─ keys in several slots ──▶ split::decide ─────▶ nodes, all at once
//! ```

mod nodes;
mod slot_map;
pub(crate) mod split;
mod topology;

pub(super) use self::nodes::{Cluster, MakeLanes};
