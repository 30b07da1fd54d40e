//! The reply of the decision script.
//!
//! It is one bulk string of integers, 8 bytes each, the highest byte first; each is below 2^53. The first one is the
//! time of the decisions in microseconds. Then each request has its outcome, and each of its charges has flags and the
//! integers that `codec.rs` lists. Example: a request of one bucket charge that was denied, then an admitted one of a
//! bucket and a fixed window:
//!
//! ```text
//!         request 1           request 2
//! time    outcome flags TAT   outcome flags TAT   flags end  used
//! 17...   0       0     17..  1       1     17..  1     17.. 3
//! ```
//!
//! A request whose policies have penalties ends with the end of each key's ban, or 0.
//!
//! If the server refused a command, the outcome of that request is 3, and the reply is an array: that string, then the
//! text of the server's error for each failed request, in order.
//!
//! # Why does a command that Redis refuses fail only one request?
//!
//! Redis does not roll back a script. It can refuse a command in the middle: the user may not run it, memory is full, or the
//! server has become a replica. Earlier charges of the request would stay although it gets an error, and up to 63 other requests
//! in the call would fail with it. So the script runs every command with `redis.pcall`, which returns an error instead of ending
//! the script. The error of a refused read distinguishes it from a foreign value. After a refused write, the script undoes the
//! writes of that request, with commands that the server allowed a moment ago. The breaker counts the error like an error of the
//! whole call, and all other requests are decided.

use redis::Value;
use smallvec::SmallVec;

use crate::{
    charge::OwnedCharge,
    clock::Timestamp,
    decision::{CountedBy, Decision},
    error::{Error, ErrorKind},
};

use super::{
    super::connection::classify,
    codec::{self, ChargeReply, IN_SHADOW, WITH_PENALTY},
    lease::LeaseReply,
    pot::{PotNote, PotReply},
};

/// The part of the script's reply for one request.
#[derive(Debug)]
pub(in crate::remote) struct Reply {
    decided_at: Timestamp,
    /// [`ADMITTED`], [`DENIED`] or [`FOREIGN`]; [`parse`] makes an error of [`FAILED`].
    outcome: u64,
    charges: SmallVec<[ChargeReply; 1]>,
    /// The reply to a request that leases units.
    lease: Option<Box<LeaseReply>>,
    /// The reply to a step in a region's report.
    pot: Option<Box<PotReply>>,
}

impl Reply {
    /// Returns the reply to a request that leases units, unless another program wrote the key.
    pub fn into_lease(self) -> Option<LeaseReply> {
        self.lease.map(|lease| *lease)
    }

    /// Returns the reply to a step in a region's report, unless another program wrote the key.
    pub fn into_pot(self) -> Option<PotReply> {
        self.pot.map(|pot| *pot)
    }

    /// Returns the reply to a refund of units that another region has leased to this one: what was done, and the total of refunds
    /// at the home.
    pub fn pot_refund(&self) -> Option<(PotNote, u64)> {
        let [_, number, refunded] = self.charges.first()?.numbers;
        Some((PotNote(number), refunded))
    }

    /// Returns whether all charges were made.
    pub fn is_admitted(&self) -> bool {
        self.outcome == ADMITTED
    }

    /// Returns the time that the script decided by.
    pub fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// Returns a bit for each ticket of a renewal that has no slots. The first ticket has the lowest bit.
    pub fn missing(&self) -> u64 {
        self.charges.first().map_or(0, |charge| charge.numbers[0])
    }

    /// Checks that the script decided the request.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::ForeignValue`] if a key holds a value that tollgate did not write.
    pub fn check(&self) -> Result<(), Error> {
        if self.outcome == FOREIGN {
            return Err(classify::foreign_value());
        }
        Ok(())
    }

    /// Returns the decision on these charges, which are the charges of the request.
    ///
    /// # Errors
    ///
    /// See [`check`](Self::check).
    pub fn into_decision(self, charges: &[OwnedCharge]) -> Result<Decision, Error> {
        self.check()?;
        let decided = (self.decided_at, self.is_admitted());
        let states = charges
            .iter()
            .zip(self.charges)
            .map(|(charge, reply)| codec::decode(&charge.borrow(), &reply, decided));
        Ok(Decision::new(CountedBy::Shared, self.decided_at, states))
    }
}

/// The reply to one request, or the error with which the server refused one of its commands. That error concerns no
/// other request of the call, and nothing of this request was charged.
pub(in crate::remote) type RequestResult = Result<Reply, Error>;

/// Parses the reply to a call. `reply_lens` yields [`Request::reply_lens`] for each request of the call, in order.
///
/// # Errors
///
/// [`ErrorKind::Protocol`] if it is not a reply to such a call.
///
/// [`Request::reply_lens`]: crate::remote::protocol::Request::reply_lens
pub(in crate::remote) fn parse<'a>(
    reply: &Value,
    reply_lens: impl Iterator<Item = &'a [u8]>,
) -> Result<Vec<RequestResult>, Error> {
    let (packed, errors) = parts_of(reply)?;
    let mut integers = Integers {
        packed,
        is_of_line: false,
    };
    let mut errors = errors.iter();
    let decided_at = Timestamp::from_micros(integers.next()?);
    let mut results = Vec::with_capacity(reply_lens.size_hint().0);
    for lens in reply_lens {
        let reply = integers.reply(decided_at, lens)?;
        results.push(if reply.outcome == FAILED {
            Err(refusal(errors.next().ok_or_else(malformed)?)?)
        } else {
            Ok(reply)
        });
    }
    match (integers.packed, errors.next()) {
        ([], None) => Ok(results),
        _ => Err(malformed()),
    }
}

/// The reply to a question of a queue.
#[derive(Debug)]
pub(in crate::remote) struct LineReply {
    pub decided_at: Timestamp,
    /// Start and part of the reply of each caller that has its turn.
    pub turns: Vec<(Timestamp, Reply)>,
    /// Why the next caller was not decided, if the server refused a command or a key holds a foreign value.
    pub error: Option<Error>,
    /// When to ask again, if callers are left.
    pub due: Option<Timestamp>,
    /// The index of the charge that they wait for.
    pub waits_for: usize,
}

/// Parses the reply to a question for so many callers, each with charges of these [`Request::reply_lens`].
///
/// # Errors
///
/// [`ErrorKind::Protocol`] if it is not a reply to such a call.
///
/// [`Request::reply_lens`]: crate::remote::protocol::Request::reply_lens
pub(in crate::remote) fn parse_line(
    reply: &Value,
    reply_lens: &[u8],
    callers: usize,
) -> Result<LineReply, Error> {
    let (packed, errors) = parts_of(reply)?;
    let mut integers = Integers {
        packed,
        is_of_line: true,
    };
    let mut line = LineReply {
        decided_at: Timestamp::from_micros(integers.next()?),
        turns: Vec::new(),
        error: None,
        due: None,
        waits_for: 0,
    };
    for _ in 0..callers {
        let start = Timestamp::from_micros(integers.next()?);
        let reply = integers.reply(start, reply_lens)?;
        match reply.outcome {
            ADMITTED => {
                line.turns.push((start, reply));
                continue;
            }
            FAILED => line.error = Some(refusal(errors.first().ok_or_else(malformed)?)?),
            _ => line.error = reply.check().err(),
        }
        break;
    }
    line.due = Some(integers.next()?)
        .filter(|due| *due > 0)
        .map(Timestamp::from_micros);
    line.waits_for = usize::try_from(integers.next()?).map_err(|_| malformed())?;
    if integers.packed.is_empty() {
        Ok(line)
    } else {
        Err(malformed())
    }
}

/// Returns the integers of a reply, and the errors after them.
fn parts_of(reply: &Value) -> Result<(&[u8], &[Value]), Error> {
    match reply {
        Value::BulkString(packed) => Ok((packed, &[])),
        Value::Array(parts) => match parts.as_slice() {
            [Value::BulkString(packed), errors @ ..] => Ok((packed, errors)),
            _ => Err(malformed()),
        },
        _ => Err(malformed()),
    }
}

/// Returns the error with which the server refused a command of the script, as if it had refused the script itself.
fn refusal(text: &Value) -> Result<Error, Error> {
    let Value::BulkString(text) = text else {
        return Err(malformed());
    };
    let text = String::from_utf8_lossy(text).replace(['\r', '\n'], " ");
    // In a script, some errors have no code.
    let code = text.split(' ').next().unwrap_or_default();
    let has_code = !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase());
    let prefix = if has_code { "-" } else { "-ERR " };
    let error = redis::parse_redis_value(format!("{prefix}{text}\r\n").as_bytes());
    match error.and_then(Value::extract_error) {
        Err(error) => Ok(classify::classify(error)),
        Ok(_) => Err(malformed()),
    }
}

/// The integers of a reply that are not parsed yet.
struct Integers<'a> {
    packed: &'a [u8],
    /// Whether a charge that fits may be denied, since others go before.
    is_of_line: bool,
}

impl Integers<'_> {
    /// Returns the next integer. The script computes in doubles, so one of 2^53 or above is malformed.
    fn next(&mut self) -> Result<u64, Error> {
        let (bytes, rest) = self.packed.split_first_chunk().ok_or_else(malformed)?;
        self.packed = rest;
        let integer = u64::from_be_bytes(*bytes);
        if integer < 1 << 53 {
            Ok(integer)
        } else {
            Err(malformed())
        }
    }

    /// Returns the next request's part: its outcome, then its charges.
    fn reply(&mut self, decided_at: Timestamp, lens: &[u8]) -> Result<Reply, Error> {
        let outcome = self.next()?;
        if lens == [codec::OF_LEASE] {
            return self.lease(decided_at, outcome);
        }
        if lens == [codec::OF_POT] {
            return self.pot(decided_at, outcome);
        }
        let mut charges = lens
            .iter()
            .map(|len| self.charge(usize::from(len & !(IN_SHADOW | WITH_PENALTY))))
            .collect::<Result<SmallVec<[ChargeReply; 1]>, Error>>()?;
        for (charge, len) in charges.iter_mut().zip(lens) {
            if len & WITH_PENALTY > 0 {
                charge.banned_until = self.next()?;
                if charge.banned_until > 0 && charge.has_room {
                    return Err(malformed());
                }
            }
        }
        let can_deny =
            |(charge, len): &(&ChargeReply, &u8)| !charge.has_room && **len & IN_SHADOW == 0;
        let is_denied = charges.iter().zip(lens).any(|charge| can_deny(&charge));
        let is_consistent = match outcome {
            ADMITTED => !is_denied,
            DENIED => is_denied || self.is_of_line,
            FOREIGN => !charges.iter().all(|charge| charge.has_room),
            FAILED => true,
            _ => false,
        };
        let reply = Reply {
            decided_at,
            outcome,
            charges,
            lease: None,
            pot: None,
        };
        if is_consistent {
            Ok(reply)
        } else {
            Err(malformed())
        }
    }

    /// Returns the rest of a reply to a request that leases units.
    fn lease(&mut self, decided_at: Timestamp, outcome: u64) -> Result<Reply, Error> {
        self.next()?;
        let mut numbers = [0; LeaseReply::LEN];
        for number in &mut numbers {
            *number = self.next()?;
        }
        let lease = LeaseReply::of(decided_at, numbers).ok_or_else(malformed)?;
        Ok(Reply {
            decided_at,
            outcome,
            charges: SmallVec::new(),
            lease: (outcome == ADMITTED).then(|| Box::new(lease)),
            pot: None,
        })
    }

    /// Returns the rest of a reply to a step in a region's report.
    fn pot(&mut self, decided_at: Timestamp, outcome: u64) -> Result<Reply, Error> {
        self.next()?;
        let mut numbers = [0; PotReply::LEN];
        for number in &mut numbers {
            *number = self.next()?;
        }
        let pot = PotReply::of(decided_at, numbers).ok_or_else(malformed)?;
        Ok(Reply {
            decided_at,
            outcome,
            charges: SmallVec::new(),
            lease: None,
            pot: (outcome == ADMITTED).then(|| Box::new(pot)),
        })
    }

    /// Returns the next charge: its flags, `len` integers, and one more if the flags require it.
    fn charge(&mut self, len: usize) -> Result<ChargeReply, Error> {
        let flags = self.next()?;
        if flags > ROOM + MORE {
            return Err(malformed());
        }
        let mut numbers = [0; 3];
        for number in &mut numbers[..len] {
            *number = self.next()?;
        }
        let refunded_or_leased = if flags < MORE { 0 } else { self.next()? };
        Ok(ChargeReply {
            has_room: flags & ROOM > 0,
            numbers,
            refunded_or_leased,
            banned_until: 0,
        })
    }
}

/// Returns the error of a reply that the script cannot have sent.
pub(in crate::remote) fn malformed() -> Error {
    Error::new(
        ErrorKind::Protocol,
        "tollgate cannot parse the reply of its script: check whether a proxy before redis changes replies",
    )
}

/// Flag of a charge: it fits on its own.
const ROOM: u64 = 1;
/// Flag of a charge: one more integer follows. For a bucket, these are microseconds: the refunds of the key so far, when a turn of a
/// queue is over that was given up, or of a denied charge the leased units in its TAT. For a window, it is the number of leased units
/// in a denied charge's state.
const MORE: u64 = 2;

/// Outcome of a request: at least one charge that can deny did not fit, and nothing was charged but candidates.
const DENIED: u64 = 0;
/// Outcome of a request: all charges were made, apart from those in shadow that did not fit.
const ADMITTED: u64 = 1;
/// Outcome of a request: a key holds a value that tollgate did not write.
const FOREIGN: u64 = 2;
/// Outcome of a request: the server refused a command, and nothing was charged.
const FAILED: u64 = 3;
