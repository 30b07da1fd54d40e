//! Redis Cluster: which node decides a key, and decisions on keys of several nodes.
//!
//! ```text
//! RedisStore ── keys in one slot ───────▶ Cluster::node_of ──▶ store of the node
//!            └─ keys in several slots ──▶ split::decide ─────▶ stores of the nodes, all at once
//! ```

mod nodes;
mod slot_map;
pub(crate) mod split;
mod topology;

pub(super) use self::nodes::{Cluster, NodeSettings};
pub(super) use self::slot_map::Node;
