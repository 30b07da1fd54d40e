//! Run with
//!
//! ```sh
//! cargo run --example jobs
//! ```
//!
//! How is a Tower service limited that speaks no HTTP? By what its requests say, with denials in its own types.

#![expect(clippy::print_stdout, reason = "an example talks to its reader")]

use std::{error::Error, fmt};

use tollgate::{
    Hold, Key, Policy, Quota, RateLimiter,
    call::{CallLimitLayer, CallOutcome, CompletedCall},
    rejection::{Reason, Rejection},
};
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};

#[derive(Debug)]
struct Job {
    tenant: &'static str,
    pages: u64,
}

/// A print that runs on after it was answered; it takes a printer until it is dropped.
#[derive(Debug)]
struct Printing {
    pages: u64,
    printer: Option<Hold>,
}

#[derive(Debug)]
enum Refusal {
    Busy,
    OverQuota { retry_after: Option<u64> },
    PaperJam,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("all printers are taken"),
            Self::OverQuota {
                retry_after: Some(seconds),
            } => write!(f, "over the quota, for {seconds} s"),
            Self::OverQuota { retry_after: None } => f.write_str("too many pages for one job"),
            Self::PaperJam => f.write_str("paper jam"),
        }
    }
}

impl Error for Refusal {}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // `.redis(url)` here, and the whole fleet counts together.
    let limiter = RateLimiter::builder().build()?;
    let layer = CallLimitLayer::builder(&limiter, refuse)
        .policy(
            Policy::new("pages", Quota::per_minute(60).burst(20))
                .key_of(|job: &Job| Some(Key::new(job.tenant)))
                .cost_by(|job| job.pages),
        )
        .policy(Policy::concurrency("printers", 2).key_of(|_| Some(Key::GLOBAL)))
        .hold_with(|printing: &mut Printing, hold| printing.printer = Some(hold))
        .settle(
            |call: &CompletedCall<'_, Printing, Refusal>| match call.outcome {
                CallOutcome::Failed(Refusal::PaperJam) => 0, // nothing was printed
                _ => call.charged,
            },
        )
        .build()?;
    let mut printers = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(print));

    let mut work = async |tenant, pages| {
        let answer = printers.ready().await?.call(Job { tenant, pages }).await;
        match &answer {
            Ok(printing) => println!("{tenant:<7} {:>2} pages: printing", printing.pages),
            Err(refusal) => println!("{tenant:<7} {pages:>2} pages: {refusal}"),
        }
        Ok::<_, Refusal>(answer.ok())
    };
    let first = work("acme", 15).await?;
    work("acme", 10).await?;
    let second = work("globex", 3).await?;
    println!("both printers are taken");
    work("globex", 3).await?;
    drop(first);
    println!("one is done");
    work("globex", 13).await?;
    work("globex", 17).await?;
    drop(second);
    Ok(())
}

async fn print(job: Job) -> Result<Printing, Refusal> {
    match job.pages {
        13 => Err(Refusal::PaperJam),
        pages => Ok(Printing {
            pages,
            printer: None,
        }),
    }
}

fn refuse(_: Job, rejection: &Rejection) -> Result<Printing, Refusal> {
    Err(match rejection.reason() {
        Reason::Limited { policy } if policy.as_str() == "printers" => Refusal::Busy,
        _ => Refusal::OverQuota {
            retry_after: rejection.retry_after_secs(),
        },
    })
}
