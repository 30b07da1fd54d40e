//! The responses that clients got, and measures of them.

/// A request, and its response if that came in time.
#[derive(Clone, Copy)]
pub struct Seen {
    pub tenant: usize,
    pub class: usize,
    /// Seconds since the start.
    pub came_at: f64,
    /// Seconds by which it was sent too late, since the machine was busy.
    pub delay: f64,
    /// Seconds, of a response in time.
    pub took: Option<f64>,
}

/// The measures of a time without events.
pub struct Outcome {
    pub in_time: f64,
    pub p50: f64,
    pub p99: f64,
    pub classes: [f64; 3],
    pub jain: f64,
    pub quiet_p99: f64,
}

impl Outcome {
    /// Counts the requests that came after the warm-up, in this many seconds.
    pub fn of(seen: &[Seen], warm_up: f64, seconds: f64) -> Self {
        // Came and served in time, by tenant and class.
        let mut counts = [[(0.0, 0.0); 3]; TENANTS];
        let measured = || seen.iter().filter(|seen| seen.came_at > warm_up);
        for request in measured() {
            let count = &mut counts[request.tenant][request.class];
            count.0 += 1.0;
            count.1 += f64::from(u8::from(request.took.is_some()));
        }
        let total = |class: usize| {
            let of_class = counts.iter().map(|tenant| tenant[class]);
            of_class.fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1))
        };
        let totals = [0, 1, 2].map(total);
        // Of a class that gets next to nothing, and so of its tenants, only the noise would be seen.
        let contended = (0..3).filter(|class| totals[*class].1 > 0.05 * totals[*class].0);
        let indices = contended.map(|class| jain(&counts.map(|tenant| tenant[class])));
        Self {
            in_time: totals.iter().map(|(_, served)| served).sum::<f64>() / seconds,
            p50: quantile(0.5, measured()),
            p99: quantile(0.99, measured()),
            classes: totals.map(|(came, served)| served / f64::max(came, 1.0)),
            jain: indices.fold(1.0, f64::min),
            quiet_p99: quantile(0.99, measured().filter(|seen| seen.tenant > 0)),
        }
    }
}

/// Returns the milliseconds that this share of the responses took at most.
pub fn quantile<'a>(share: f64, seen: impl Iterator<Item = &'a Seen>) -> f64 {
    let mut times: Vec<f64> = seen.filter_map(|seen| seen.took).collect();
    times.sort_by(f64::total_cmp);
    let place = (times.len().saturating_sub(1) as f64 * share) as usize;
    times.get(place).map_or(f64::NAN, |seconds| seconds * 1e3)
}

/// Jain's index of what tenants got, as a part of what each would get if all were served equally (max-min).
fn jain(tenants: &[(f64, f64)]) -> f64 {
    let mut fair = vec![0.0; tenants.len()];
    let mut left: f64 = tenants.iter().map(|(_, served)| served).sum();
    let mut open: Vec<usize> = (0..fair.len()).collect();
    while !open.is_empty() {
        let level = left / open.len() as f64;
        let (small, large): (Vec<usize>, Vec<usize>) = open
            .into_iter()
            .partition(|tenant| tenants[*tenant].0 <= level);
        if small.is_empty() {
            large.iter().for_each(|tenant| fair[*tenant] = level);
            break;
        }
        for tenant in small {
            fair[tenant] = tenants[tenant].0;
            left -= fair[tenant];
        }
        open = large;
    }
    let parts = fair.iter().zip(tenants).filter(|(fair, _)| **fair > 0.0);
    let parts: Vec<f64> = parts.map(|(fair, (_, served))| served / fair).collect();
    let squares: f64 = parts.iter().map(|part| part * part).sum();
    parts.iter().sum::<f64>().powi(2) / (parts.len() as f64 * squares)
}

pub const TENANTS: usize = 20;
