//! The reply of the decision script.

use redis::Value;
use smallvec::SmallVec;

use crate::{
    charge::OwnedCharge,
    clock::Timestamp,
    decision::Decision,
    error::{Error, ErrorKind},
    state::CountedBy,
};

use super::{
    super::connection::classify,
    codec::{self, ChargeReply},
};

/// The part of the script's reply that belongs to one request.
#[derive(Debug)]
pub(in crate::remote) struct Reply {
    decided_at: Timestamp,
    outcome: u64,
    charges: SmallVec<[ChargeReply; 1]>,
}

impl Reply {
    /// Returns whether all charges were made.
    pub(in crate::remote) fn is_admitted(&self) -> bool {
        self.outcome == ADMITTED
    }

    /// Returns the time that the script decided by.
    pub(in crate::remote) fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Returns a bit per ticket of a [renewal](super::Request::renew) that has no slots, the first ticket's the lowest.
    pub(in crate::remote) fn missing(&self) -> u64 {
        self.charges.first().map_or(0, |charge| charge.numbers[0])
    }

    /// Returns an error if the script found a value that tollgate did not write, and so did not decide.
    pub(in crate::remote) fn check(&self) -> Result<(), Error> {
        if self.outcome == FOREIGN {
            return Err(Error::new(
                ErrorKind::ForeignValue,
                "a redis key of tollgate's holds a value that tollgate did not write: choose another prefix",
            ));
        }
        Ok(())
    }

    /// Returns the decision on these charges, which are those of the request.
    pub(in crate::remote) fn into_decision(
        self,
        charges: &[OwnedCharge],
    ) -> Result<Decision, Error> {
        self.check()?;
        let states = charges
            .iter()
            .zip(self.charges)
            .map(|(charge, reply)| codec::read(&charge.borrow(), &reply, self.decided_at));
        Ok(Decision::new(CountedBy::Shared, self.decided_at, states))
    }
}

/// Parses the reply to a call: one part per request, in order. `reply_lens` yields [`Request::reply_lens`] of each.
///
/// A request fails alone: its part is the error with which the server refused one of its commands. Nothing of it was
/// charged.
///
/// [`Request::reply_lens`]: crate::remote::protocol::Request::reply_lens
pub(in crate::remote) fn parse<'a>(
    reply: &Value,
    reply_lens: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<Result<Reply, Error>>, Error> {
    let (packed, texts) = match reply {
        Value::BulkString(packed) => (packed, [].as_slice()),
        Value::Array(parts) => match parts.as_slice() {
            [Value::BulkString(packed), texts @ ..] => (packed, texts),
            _ => return Err(malformed()),
        },
        _ => return Err(malformed()),
    };
    let mut numbers = Numbers { packed };
    let mut texts = texts.iter();
    let decided_at = Timestamp::from_micros(numbers.next()?);
    let replies = reply_lens
        .map(|lens| {
            let reply = numbers.reply(decided_at, lens)?;
            match reply.outcome {
                FAILED => texts
                    .next()
                    .ok_or_else(malformed)
                    .and_then(refusal)
                    .map(Err),
                _ => Ok(Ok(reply)),
            }
        })
        .collect::<Result<Vec<_>, _>>()?;
    match (numbers.packed, texts.next()) {
        ([], None) => Ok(replies),
        _ => Err(malformed()),
    }
}

/// Returns the error with which the server refused a command of the script, as if it had refused the script itself.
fn refusal(text: &Value) -> Result<Error, Error> {
    let Value::BulkString(text) = text else {
        return Err(malformed());
    };
    let text = String::from_utf8_lossy(text).replace(['\r', '\n'], " ");
    // Some errors come without a code when they arise in a script.
    let code = text.split(' ').next().unwrap_or_default();
    let has_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
    let prefix = if has_code { "-" } else { "-ERR " };
    let error = redis::parse_redis_value(format!("{prefix}{text}\r\n").as_bytes());
    match error.and_then(Value::extract_error) {
        Err(error) => Ok(classify::classify(error)),
        Ok(_) => Err(malformed()),
    }
}

/// The integers of a reply that are not parsed yet: 8 bytes each, the highest first.
struct Numbers<'a> {
    packed: &'a [u8],
}

impl Numbers<'_> {
    /// Returns the next integer, which is below 2^53 because the script computes in doubles.
    fn next(&mut self) -> Result<u64, Error> {
        let (bytes, rest) = self.packed.split_first_chunk().ok_or_else(malformed)?;
        self.packed = rest;
        let number = u64::from_be_bytes(*bytes);
        match number < 1 << 53 {
            true => Ok(number),
            false => Err(malformed()),
        }
    }

    fn reply(&mut self, decided_at: Timestamp, lens: &[u8]) -> Result<Reply, Error> {
        let outcome = self.next()?;
        let charges = lens
            .iter()
            .map(|len| self.charge(usize::from(*len)))
            .collect::<Result<SmallVec<[ChargeReply; 1]>, Error>>()?;
        let all_have_room = charges.iter().all(|charge| charge.has_room);
        let fits = match outcome {
            ADMITTED => all_have_room,
            DENIED | FOREIGN => !all_have_room,
            FAILED => true,
            _ => false,
        };
        let reply = Reply {
            decided_at,
            outcome,
            charges,
        };
        if fits { Ok(reply) } else { Err(malformed()) }
    }

    fn charge(&mut self, len: usize) -> Result<ChargeReply, Error> {
        let flags = self.next()?;
        if flags > ROOM + RETURNED {
            return Err(malformed());
        }
        let mut numbers = [0; 3];
        for number in &mut numbers[..len] {
            *number = self.next()?;
        }
        let returned = if flags < RETURNED { 0 } else { self.next()? };
        Ok(ChargeReply {
            has_room: flags & ROOM > 0,
            numbers,
            returned,
        })
    }
}

fn malformed() -> Error {
    Error::new(
        ErrorKind::Protocol,
        "the decision script returned a reply that tollgate cannot parse: does something between it and the server change replies?",
    )
}

/// Flags of a charge: it had room on its own, and one integer more follows, the total refunded before.
const ROOM: u64 = 1;
const RETURNED: u64 = 2;

const DENIED: u64 = 0;
const ADMITTED: u64 = 1;
const FOREIGN: u64 = 2;
const FAILED: u64 = 3;
