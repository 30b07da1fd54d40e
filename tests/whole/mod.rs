//! The environment of the tests does what they rely on.

mod support;
