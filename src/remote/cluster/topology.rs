//! The reply to `CLUSTER SLOTS`: ranges of slots, each with its primary and its replicas.
//!
//! ```text
//! 1) 1) 0                       first slot
//!    2) 5460                    last slot
//!    3) 1) "10.0.0.1"  2) 6379  3) "07c3.."  the primary, and its id; more fields may follow
//!    4) 1) "10.0.0.4"  2) 6379  a replica
//! ```
//!
//! The command is old, so that every server has it: `CLUSTER SHARDS` needs Redis 7.

use redis::Value;

use crate::{
    error::{Error, ErrorKind},
    key::SLOTS,
};

use super::super::protocol::NodeAddress;

/// Slots, and the nodes that have them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    pub first: u16,
    pub last: u16,
    pub primary: NodeAddress,
    /// The id of the primary: it stays when a node gets another address, or is given under another name.
    pub primary_id: Option<String>,
    pub replicas: Vec<NodeAddress>,
}

/// Parses the reply to `CLUSTER SLOTS` of a node at `from`. Ranges without a known primary are left out.
///
/// # Errors
///
/// [`ErrorKind::Protocol`] if it is not a reply to that command.
pub(super) fn parse(reply: &Value, from: Option<&NodeAddress>) -> Result<Vec<SlotRange>, Error> {
    let Value::Array(ranges) = reply else {
        return Err(malformed());
    };
    if ranges.len() > usize::from(SLOTS) {
        return Err(malformed());
    }
    let ranges = ranges.iter().map(|range| {
        let Value::Array(fields) = range else {
            return Err(malformed());
        };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = fields.as_slice() else {
            return Err(malformed());
        };
        let slot = |number: &i64| {
            let slot = u16::try_from(*number).ok();
            slot.filter(|slot| *slot < SLOTS).ok_or_else(malformed)
        };
        let (first, last) = (slot(first)?, slot(last)?);
        if first > last {
            return Err(malformed());
        }
        let primary_id = nodes.first().and_then(id);
        let mut nodes = nodes.iter().map(|node| address(node, from));
        let primary = nodes.next().ok_or_else(malformed)??;
        let replicas = nodes.filter_map(Result::transpose);
        let replicas = replicas.collect::<Result<_, _>>()?;
        Ok(primary.map(|primary| SlotRange {
            first,
            last,
            primary,
            primary_id,
            replicas,
        }))
    });
    ranges.filter_map(Result::transpose).collect()
}

/// Returns the address of a node; `None` if the node does not know it.
fn address(node: &Value, from: Option<&NodeAddress>) -> Result<Option<NodeAddress>, Error> {
    let Value::Array(fields) = node else {
        return Err(malformed());
    };
    let [host, Value::Int(port), ..] = fields.as_slice() else {
        return Err(malformed());
    };
    let port = u16::try_from(*port).map_err(|_| malformed())?;
    // Null or an empty host means the host that the client used, and `?` one that the node does not know.
    let host = match host {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::SimpleString(text) => text.clone(),
        Value::Nil => String::new(),
        _ => return Err(malformed()),
    };
    if host == "?" || port == 0 {
        return Ok(None);
    }
    Ok(NodeAddress { host, port }.resolved(from))
}

/// Returns the id of a node. Servers before Redis 4 send none.
fn id(node: &Value) -> Option<String> {
    match node {
        Value::Array(fields) => match fields.get(2)? {
            Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
            Value::SimpleString(text) => Some(text.clone()),
            _ => None,
        },
        _ => None,
    }
}

fn malformed() -> Error {
    Error::new(
        ErrorKind::Protocol,
        "tollgate cannot parse the reply to CLUSTER SLOTS",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![
            host,
            Value::Int(port),
            text("id"),
            Value::Array(vec![]),
        ])
    }

    fn at(host: &str, port: u16) -> NodeAddress {
        NodeAddress {
            host: host.to_owned(),
            port,
        }
    }

    #[test]
    fn ranges_have_a_primary_and_its_replicas() {
        let reply = Value::Array(vec![
            Value::Array(vec![
                Value::Int(0),
                Value::Int(5_460),
                node(text("10.0.0.1"), 6_379),
                node(Value::Nil, 6_380),
                node(text("?"), 6_381),
            ]),
            Value::Array(vec![
                Value::Int(5_461),
                Value::Int(16_383),
                node(text("?"), 6_379),
            ]),
        ]);
        let ranges = parse(&reply, Some(&at("seed", 1))).expect("a reply");
        let expected = SlotRange {
            first: 0,
            last: 5_460,
            primary: at("10.0.0.1", 6_379),
            primary_id: Some("id".to_owned()),
            replicas: vec![at("seed", 6_380)],
        };
        assert_eq!(ranges, [expected]);
    }

    #[test]
    fn other_replies_are_errors() {
        let range = |fields: Vec<Value>| Value::Array(vec![Value::Array(fields)]);
        for reply in [
            Value::Nil,
            Value::Array(vec![Value::Nil]),
            range(vec![Value::Int(0), Value::Int(1)]),
            range(vec![Value::Int(0), Value::Int(16_384), node(text("a"), 1)]),
            range(vec![Value::Int(10), Value::Int(5), node(text("a"), 1)]),
            Value::Array(vec![Value::Nil; 16_385]),
            range(vec![Value::Int(-1), Value::Int(1), node(text("a"), 1)]),
            range(vec![Value::Int(0), Value::Int(1), node(text("a"), 65_536)]),
            range(vec![Value::Int(0), Value::Int(1), node(Value::Int(7), 1)]),
        ] {
            assert!(parse(&reply, None).is_err(), "{reply:?}");
        }
    }
}
