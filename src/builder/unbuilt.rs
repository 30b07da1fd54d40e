//! The compiler's message for a builder that is used as a layer.

use tower::Layer;

use super::layer::RateLimitLayerBuilder;

/// Not implemented by any service: the bound whose message the compiler shows.
#[diagnostic::on_unimplemented(
    message = "a `RateLimitLayerBuilder` is not a layer: it has to be built first",
    label = "call `.build()?` on the builder",
    note = "`build` checks the settings and returns a `Result<RateLimitLayer, tollgate::Error>`"
)]
pub trait AroundBuilder {}

// A missing impl of a foreign trait has the message of that trait. This one cannot be used, and has ours.
#[doc(hidden)]
impl<S: AroundBuilder> Layer<S> for RateLimitLayerBuilder {
    type Service = S;

    fn layer(&self, _: S) -> S {
        unreachable!("no service implements AroundBuilder")
    }
}
