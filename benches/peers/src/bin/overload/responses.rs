//! The responses that the clients got.

use std::time::Duration;

pub struct Outcome {
    pub in_time: f64,
    pub p50: f64,
    pub p99: f64,
    pub classes: [f64; 3],
    pub jain: f64,
    pub quiet_p99: f64,
}

#[derive(Default)]
pub struct Seen {
    /// Came and answered in time, by tenant and class.
    counts: [[(f64, f64); 3]; TENANTS],
    times: Vec<(usize, f64)>,
}

impl Seen {
    pub fn note(&mut self, (tenant, class): (usize, usize), took: Option<Duration>) {
        let count = &mut self.counts[tenant][class];
        count.0 += 1.0;
        if let Some(took) = took {
            count.1 += 1.0;
            self.times.push((tenant, took.as_secs_f64() * 1e3));
        }
    }

    pub fn outcome(&self, span: Duration) -> Outcome {
        let total = |class: usize| {
            let of_class = self.counts.iter().map(|tenant| tenant[class]);
            of_class.fold((0.0, 0.0), |all, one| (all.0 + one.0, all.1 + one.1))
        };
        let totals = [0, 1, 2].map(total);
        // Of a class that gets next to nothing, and so of its tenants, only the noise would be seen.
        let contended = (0..3).filter(|class| totals[*class].1 > 0.05 * totals[*class].0);
        let indices = contended.map(|class| jain(&self.counts.map(|tenant| tenant[class])));
        let quantile = |share: f64, picks: fn(usize) -> bool| {
            let mut times: Vec<f64> = self
                .times
                .iter()
                .filter(|(tenant, _)| picks(*tenant))
                .map(|(_, took)| *took)
                .collect();
            times.sort_by(f64::total_cmp);
            let place = (times.len().saturating_sub(1) as f64 * share) as usize;
            times.get(place).copied().unwrap_or(f64::NAN)
        };
        Outcome {
            in_time: self.times.len() as f64 / span.as_secs_f64(),
            p50: quantile(0.5, |_| true),
            p99: quantile(0.99, |_| true),
            classes: totals.map(|(came, served)| served / f64::max(came, 1.0)),
            jain: indices.fold(1.0, f64::min),
            quiet_p99: quantile(0.99, |tenant| tenant > 0),
        }
    }
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
