//! Settings of layers and limiters: policies, where they are counted, what is answered.
//!
//! Both begin at [`RateLimitLayer::builder`] or [`RateLimiter::builder`] and end at `build()`, which fails for what cannot
//! work and says what to do.
//!
//! [`RateLimitLayer::builder`]: crate::RateLimitLayer::builder
//! [`RateLimiter::builder`]: crate::RateLimiter::builder

mod backend;
mod layer;
mod limiter;

pub use self::layer::RateLimitLayerBuilder;
pub use self::limiter::RateLimiterBuilder;
