//! Run with
//!
//! ```sh
//! cargo run --example jobs
//! ```
//!
//! How is a Tower service without HTTP limited? By fields of its requests, with rejections as its own errors.

#![expect(clippy::print_stdout, reason = "an example prints its results")]

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

/// A running print, which uses a printer until it is dropped.
#[derive(Debug)]
struct Printing {
    pages: u64,
    printer: Option<Hold>,
}

#[derive(Debug)]
enum PrintError {
    Busy,
    OverQuota { retry_after: Option<u64> },
    PaperJam,
}

impl fmt::Display for PrintError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("all printers are busy"),
            Self::OverQuota {
                retry_after: Some(seconds),
            } => write!(f, "quota exceeded, retry in {seconds} s"),
            Self::OverQuota { retry_after: None } => f.write_str("too many pages for one job"),
            Self::PaperJam => f.write_str("paper jam"),
        }
    }
}

impl Error for PrintError {}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    // With `.redis(url)` here, the whole fleet shares the counts.
    let limiter = RateLimiter::builder().build()?;
    let layer = CallLimitLayer::builder(&limiter, reject)
        .policy(
            Policy::new("pages", Quota::per_minute(60).burst(20))
                .key_of(|job: &Job| Some(Key::new(job.tenant)))
                .cost_by(|job| job.pages),
        )
        .policy(Policy::concurrency("printers", 2).key_of(|_| Some(Key::GLOBAL)))
        .hold_with(|printing: &mut Printing, hold| printing.printer = Some(hold))
        .settle(
            |call: &CompletedCall<'_, Printing, PrintError>| match call.outcome {
                CallOutcome::Failed(PrintError::PaperJam) => 0, // nothing was printed
                _ => call.charged,
            },
        )
        .build()?;
    let mut printers = ServiceBuilder::new()
        .layer(layer)
        .service(service_fn(print));

    let mut submit = async |tenant, pages| {
        let result = printers.ready().await?.call(Job { tenant, pages }).await;
        match &result {
            Ok(printing) => println!("{tenant:<7} {:>2} pages: printing", printing.pages),
            Err(error) => println!("{tenant:<7} {pages:>2} pages: {error}"),
        }
        Ok::<_, PrintError>(result.ok())
    };
    let first = submit("acme", 15).await?;
    submit("acme", 10).await?;
    let second = submit("globex", 3).await?;
    println!("both printers are in use");
    submit("globex", 3).await?;
    drop(first);
    println!("the first print is done");
    submit("globex", 13).await?;
    submit("globex", 17).await?;
    drop(second);
    Ok(())
}

async fn print(job: Job) -> Result<Printing, PrintError> {
    match job.pages {
        13 => Err(PrintError::PaperJam),
        pages => Ok(Printing {
            pages,
            printer: None,
        }),
    }
}

fn reject(_: Job, rejection: &Rejection) -> Result<Printing, PrintError> {
    Err(match rejection.reason() {
        Reason::Limited { policy } if policy.as_str() == "printers" => PrintError::Busy,
        _ => PrintError::OverQuota {
            retry_after: rejection.retry_after_secs(),
        },
    })
}
