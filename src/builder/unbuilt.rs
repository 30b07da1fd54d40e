//! The compiler's message for a builder that is used as a layer.

use tower::Layer;

use crate::overload::OverloadBuilder;

use super::layer::RateLimitLayerBuilder;

/// Not implemented by any service: the bound whose message the compiler shows.
#[diagnostic::on_unimplemented(
    message = "a builder is not a layer: it has to be built first",
    label = "call `.build()?` on the builder",
    note = "`build` checks the settings and returns a `Result` with the layer"
)]
pub trait AroundBuilder {}

// A missing impl of a foreign trait has the message of that trait. These cannot be used, and have ours.
macro_rules! not_layers {
    ($($builder:ty),*) => {$(
        #[doc(hidden)]
        impl<S: AroundBuilder> Layer<S> for $builder {
            type Service = S;

            fn layer(&self, _: S) -> S {
                unreachable!("no service implements AroundBuilder")
            }
        }
    )*};
}

not_layers!(OverloadBuilder, RateLimitLayerBuilder);
