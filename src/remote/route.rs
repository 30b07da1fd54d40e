//! Requests and commands on their way to the server that has their keys.
//!
//! ```text
//! submit, run_command --> batch: one server --> reply, or error ------> result
//!                            ^              '-> redirect, as a value --.
//!                            '------- the server that it leads to <----'
//! ```
//!
//! # Redirects
//!
//! Two redirects in a row are usual: `MOVED` by a node that has given the slot away, then `ASK` while it moves on. Nodes that
//! disagree about a slot redirect in a circle, as one does that announces the address of another. So each further redirect
//! waits first, as after `TRYAGAIN`, and at most 16 in a row are followed. The error of a request that nobody decides names its
//! hash slot. The fallback collects these.

use std::{sync::Arc, time::Duration};

use redis::{Cmd, Value};

use crate::{
    clock::{Clock, Timestamp},
    error::Error,
    task::{backoff::jittered, timer::sleep},
};

use super::{
    batch::{self, Answer},
    client::Client,
    connection::classify,
    protocol::{Delivery, Redirect, Request, RequestResult},
};

/// Sends a request to where a cluster redirects it, and returns its reply.
///
/// # Errors
///
/// Those of [`batch::submit`], and [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no node decides.
///
/// # Cancel safety
///
/// That of [`batch::submit`].
pub(super) async fn submit(client: &Arc<Client>, request: Box<Request>) -> RequestResult {
    submit_since(client, request, Clock::system().now()).await
}

/// As [`submit`], for a request whose deadline began at `submitted_at`.
pub(super) async fn submit_since(
    client: &Arc<Client>,
    mut request: Box<Request>,
    submitted_at: Timestamp,
) -> RequestResult {
    let slot = request.slot();
    let in_slot = |error: Error| match slot {
        Some(slot) => error.with_slot(slot),
        None => error,
    };
    let mut route = RequestRoute::new(client, submitted_at, request.run_number());
    loop {
        request.set_run_number(route.run_number);
        let redirect;
        match batch::submit(route.node(), request, submitted_at).await? {
            Answer::Replied(Err(error)) if classify::is_of_one_slot(&error) => {
                return Err(in_slot(error));
            }
            Answer::Replied(result) => return result,
            Answer::Redirected(handed_back, to) => (request, redirect) = (handed_back, to),
        }
        route.follow(&redirect).await.map_err(in_slot)?;
        if !request.is_probe() && route.is_through_promotion() {
            return Err(classify::replaced());
        }
        request.set_delivery(match redirect {
            Redirect::Ask(_) => Delivery::Asking,
            Redirect::Moved { .. } | Redirect::Split => Delivery::Shared,
            Redirect::TryAgain => Delivery::Alone,
        });
    }
}

/// Sends a command that is not a decision to where a cluster redirects it, and returns its reply.
///
/// # Errors
///
/// Those of [`batch::run_command`], and [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if no node executes it.
pub(super) async fn run_command(client: &Arc<Client>, command: &Cmd) -> Result<Value, Error> {
    let began_at = Clock::system().now();
    let mut route = RequestRoute::new(client, began_at, None);
    let mut is_asking = false;
    loop {
        let sent = batch::run_command(route.node(), command, is_asking, began_at).await;
        let redirect = sent.as_ref().err().and_then(|error| Redirect::of(error, 1));
        let Some(redirect) = redirect else {
            return sent;
        };
        is_asking = matches!(redirect, Redirect::Ask(_));
        route.follow(&redirect).await?;
    }
}

/// The way of one request from server to server.
struct RequestRoute<'a> {
    first: &'a Arc<Client>,
    /// The server that the latest redirect leads to, unless that is the first one.
    redirected: Option<Arc<Client>>,
    /// The run of the present server that the request is meant for. It may be replaced meanwhile.
    run_number: u64,
    run_number_of_first: u64,
    submitted_at: Timestamp,
    redirects_in_a_row: u32,
    /// Whether a node has found the slot half moved.
    is_half_moved: bool,
    /// Redirects that were followed after a wait.
    waits: u32,
}

impl<'a> RequestRoute<'a> {
    /// Returns the way of a request that is meant for this run of the first server, or for the present one.
    fn new(first: &'a Arc<Client>, submitted_at: Timestamp, run_number: Option<u64>) -> Self {
        let run_number = run_number.unwrap_or_else(|| first.scheduler.run_number());
        Self {
            first,
            redirected: None,
            run_number,
            run_number_of_first: run_number,
            submitted_at,
            redirects_in_a_row: 0,
            is_half_moved: false,
            waits: 0,
        }
    }

    /// Returns the server that is to have the request.
    fn node(&self) -> &Arc<Client> {
        self.redirected.as_ref().unwrap_or(self.first)
    }

    /// Returns whether a redirect leads to a node that was promoted since the request was submitted.
    fn is_through_promotion(&self) -> bool {
        let node = self.redirected.as_ref();
        node.is_some_and(|node| node.was_promoted_since(self.submitted_at))
    }

    /// Goes to the server that a redirect leads to. Waits first if that is not usual.
    ///
    /// # Errors
    ///
    /// That of too many redirects, of a wait that is longer than the time that is left, and
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a node that cannot be reached.
    async fn follow(&mut self, redirect: &Redirect) -> Result<(), Error> {
        if let Some(wait) = self.wait_before(redirect)? {
            sleep(wait).await;
        }
        self.redirected = match redirect {
            Redirect::Ask(_) | Redirect::Moved { .. } => Some(self.node_of(redirect)?),
            Redirect::Split => {
                self.node().note_mode(true);
                None
            }
            Redirect::TryAgain => None,
        };
        self.run_number = match &self.redirected {
            Some(node) => node.scheduler.run_number(),
            None => self.run_number_of_first,
        };
        Ok(())
    }

    /// Returns the wait before a redirect is followed, if any.
    fn wait_before(&mut self, redirect: &Redirect) -> Result<Option<Duration>, Error> {
        let is_moving = *redirect == Redirect::TryAgain;
        self.redirects_in_a_row = if is_moving {
            0
        } else {
            self.redirects_in_a_row + 1
        };
        self.is_half_moved |= is_moving;
        let waits = is_moving || self.redirects_in_a_row > USUAL_REDIRECTS;
        self.waits += u32::from(waits);
        let wait = waits.then(|| jittered(FIRST_WAIT * (1 << self.waits.min(4))));
        let left = (self.submitted_at + self.first.deadline).since(Clock::system().now());
        let is_late = left.is_zero() || wait.is_some_and(|wait| wait > left);
        if is_late || self.redirects_in_a_row > MAX_REDIRECTS {
            // The redirect to the other half may come last, and is not the reason.
            let is_circle = self.redirects_in_a_row > MAX_REDIRECTS;
            let reason = if self.is_half_moved && !is_circle {
                &Redirect::TryAgain
            } else {
                redirect
            };
            return Err(classify::unresolved(reason, self.redirects_in_a_row));
        }
        Ok(wait)
    }

    fn node_of(&self, redirect: &Redirect) -> Result<Arc<Client>, Error> {
        let node = self.node();
        node.follow(redirect).ok_or_else(|| {
            let finding =
                "the redis cluster has slots at nodes that a pool of the application cannot reach";
            node.check.warn_of_unreachable(finding);
            classify::unreachable(redirect)
        })
    }
}

/// Redirects in a row that are followed at once.
const USUAL_REDIRECTS: u32 = 2;
/// The most redirects that one request follows in a row.
const MAX_REDIRECTS: u32 = 16;
/// Half of the first wait. The waits double four times, and are jittered.
const FIRST_WAIT: Duration = Duration::from_millis(1);
