//! Calls that go out to APIs with rate limits.

mod observed;
