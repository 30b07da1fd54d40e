//! Callers by name, their tiers, and a database of tiers.

use std::{
    convert::Infallible,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::body::Body;
use http::{Request, Response};
use tokio::{sync::Semaphore, time};
use tollgate::{
    Decision, Key, Policy, Quota, RequestHead,
    extract::Header,
    rules::Rule,
    tiers::{Tier, TierCache, TierCacheBuilder},
};
use tower::{Service, ServiceExt};

/// A database of tiers that counts who is asked for, and can be made slow or wrong.
#[derive(Clone)]
pub(crate) struct Lookups {
    asked: Arc<Mutex<Vec<String>>>,
    pub(super) answer: Arc<Mutex<Answer>>,
    pub(super) gate: Arc<Semaphore>,
}

pub(crate) type Answer = Result<Option<Tier>, &'static str>;

impl Default for Lookups {
    fn default() -> Self {
        Self {
            asked: Arc::default(),
            answer: Arc::new(Mutex::new(Ok(Some(pro())))),
            gate: Arc::new(Semaphore::new(GATE)),
        }
    }
}

impl Lookups {
    pub(crate) fn cache(
        &self,
        set: impl FnOnce(TierCacheBuilder) -> TierCacheBuilder,
    ) -> TierCache {
        let lookups = self.clone();
        let resolver = move |_: &RequestHead, key: &Key| {
            lookups
                .asked
                .lock()
                .expect("nobody panics")
                .push(key.as_str().to_owned());
            let answer = lookups.answer.lock().expect("nobody panics").clone();
            let gate = Arc::clone(&lookups.gate);
            async move {
                let _open = gate.acquire().await;
                answer.map_err(io::Error::other)
            }
        };
        set(TierCache::builder(resolver))
            .build()
            .expect("a usable cache")
    }

    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("nobody panics").clone()
    }
}

pub(crate) const GATE: usize = 1_000;

pub(crate) fn api() -> Rule {
    Policy::new("api", Quota::per_hour(10)).key(Header::new("x-caller"))
}

pub(crate) fn pro() -> Tier {
    Tier::new("pro", Quota::per_hour(100)).expect("a usable tier")
}

pub(crate) fn by_name() -> impl Fn(&RequestHead, &Key) -> Option<Tier> {
    let (pro, top) = (
        pro(),
        Tier::new("top", Quota::per_hour(1_000)).expect("a usable tier"),
    );
    move |_: &RequestHead, key: &Key| match key.as_str().split('-').next() {
        Some("pro") => Some(pro.clone()),
        Some("top") => Some(top.clone()),
        _ => None,
    }
}

/// Answers with the request's decision in the extensions, if there is one.
pub(crate) async fn fine(request: Request<()>) -> Result<Response<Body>, Infallible> {
    let mut response = Response::new(Body::from("fine"));
    if let Some(decision) = request.extensions().get::<Decision>() {
        response.extensions_mut().insert(decision.clone());
    }
    Ok(response)
}

pub(crate) fn request(caller: &str) -> Request<()> {
    let request = Request::get("/").header("x-caller", caller);
    request.body(()).expect("a request")
}

pub(crate) async fn ask<S, B>(app: &S, caller: &str) -> Response<B>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
{
    let answer = time::timeout(PATIENCE, app.clone().oneshot(request(caller))).await;
    answer.expect("in time").expect("it answers")
}

pub(crate) fn header<B>(response: &Response<B>, name: &str) -> Option<u64> {
    let value = response.headers().get(name)?.to_str().expect("text");
    Some(value.parse().expect("a number"))
}

pub(crate) const PATIENCE: Duration = Duration::from_secs(10);
