//! Builders of layers and limiters.
//!
//! They begin at [`RateLimitLayer::builder`] and [`RateLimiter::builder`] and end at `build()`, which fails for settings
//! that cannot work, with the remedy in the message.
//!
//! [`RateLimitLayer::builder`]: crate::RateLimitLayer::builder
//! [`RateLimiter::builder`]: crate::RateLimiter::builder

mod backend;
mod layer;
mod limiter;
mod unbuilt;

pub use self::layer::RateLimitLayerBuilder;
pub use self::limiter::RateLimiterBuilder;
