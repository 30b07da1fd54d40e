//! A kit for tests of your own limits, without Redis (feature `test-util`).

mod answer;
mod asked;
#[cfg(feature = "redis")]
mod breakers;
mod findings;
mod macros;
#[cfg(feature = "redis")]
mod outage;
mod pending;
mod replay;
mod replayed;
mod scripted;
mod test_request;

pub use self::asked::AskedCharge;
pub use self::findings::Checked;
#[doc(hidden)]
pub use self::findings::{ExpectedWait, Findings};
pub use self::pending::PendingDecision;
pub use self::replay::replay;
pub use self::replayed::{Count, Replay, Replayed};
pub use self::scripted::ScriptedStore;
pub use self::test_request::TestRequest;
