//! Who is counted.

mod hash_key;
mod identity;
mod spelling;

pub use self::hash_key::HashSecret;
pub use self::identity::Key;
