//! The services that can be limited.

/// A service that can be limited: every service that is `Clone`.
///
/// While a request waits for its decision, it keeps the service that was polled ready, and a clone takes its place.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not `Clone`, so a limit cannot be put around it",
    label = "this service is not `Clone`",
    note = "derive or implement `Clone` for the service, box it with `BoxCloneService` in place of `BoxService`, or put a \
            `tower::buffer::BufferLayer` between the limit and the service"
)]
pub trait CloneService: Clone {}

#[diagnostic::do_not_recommend]
impl<S: Clone> CloneService for S {}
