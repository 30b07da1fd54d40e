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
mod scripted;

pub use self::asked::AskedCharge;
pub use self::findings::Checked;
#[doc(hidden)]
pub use self::findings::{ExpectedWait, Findings};
pub use self::pending::PendingDecision;
pub use self::scripted::ScriptedStore;
