//! The client's address behind proxies: which header is read (`source`), what its entries say (`element`, `node`), who
//! is believed (`trust`), and how far that leads (`walk`).

mod address;
mod element;
mod node;
mod source;
mod trust;
mod walk;

pub use self::address::ClientIp;
pub use self::source::SingleHeader;
