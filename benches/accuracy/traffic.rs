//! Requests in the order of time: when, and from which caller.

#![expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "microseconds and random numbers, for which a double is good enough"
)]

/// 1,000 callers for 20 minutes, each at a rate of its own with independent gaps (a Poisson process). The rates lie
/// between 1 and 200 a minute, as many between 1 and 2 as between 100 and 200.
pub(crate) fn steady() -> Vec<(u64, u32)> {
    let mut random = Random(1);
    let callers = (0..1_000).flat_map(|caller| {
        let gap = MINUTE as f64 / 200_f64.powf(random.portion());
        let mut at = START as f64;
        let mut times = Vec::new();
        loop {
            at += gap * random.gap();
            if at >= (START + 20 * MINUTE) as f64 {
                break times;
            }
            times.push((at as u64, caller));
        }
    });
    in_order(callers.collect())
}

/// The same callers, who come in bursts of 1 to 40 within two seconds, with independent gaps between the bursts.
pub(crate) fn bursty() -> Vec<(u64, u32)> {
    let mut random = Random(2);
    let callers = (0..1_000).flat_map(|caller| {
        let gap = 20.5 * MINUTE as f64 / 200_f64.powf(random.portion());
        let mut at = START as f64;
        let mut times = Vec::new();
        loop {
            at += gap * random.gap();
            if at >= (START + 20 * MINUTE) as f64 {
                break times;
            }
            let size = 1 + random.below(40);
            times.extend((0..size).map(|_| (at as u64 + random.below(2 * SECOND), caller)));
        }
    });
    in_order(callers.collect())
}

/// 2,000,000 requests in 20 minutes at independent moments, from 100,000 callers: the n-th comes 1/n as often as the
/// first (Zipf).
pub(crate) fn skewed() -> Vec<(u64, u32)> {
    let mut random = Random(3);
    let mut sums = Vec::with_capacity(100_000);
    let mut sum = 0.0;
    for rank in 1..=100_000_u32 {
        sum += 1.0 / f64::from(rank);
        sums.push(sum);
    }
    let requests = (0..2_000_000).map(|_| {
        let at = START + random.below(20 * MINUTE);
        let wanted = random.portion() * sum;
        let caller = sums.partition_point(|sum| *sum < wanted);
        (at, u32::try_from(caller).expect("below 100,000"))
    });
    in_order(requests.collect())
}

/// 1,000 callers who know when windows open: in each second minute 100 requests in the last half second, and in the
/// minute after it one each 300 ms.
pub(crate) fn adversarial() -> Vec<(u64, u32)> {
    let mut random = Random(4);
    let callers = (0..1_000).flat_map(|caller| {
        let mut times = Vec::new();
        for pair in 0..10 {
            let edge = START + (2 * pair + 1) * MINUTE;
            times.extend((0..100).map(|_| (edge - 1 - random.below(SECOND / 2), caller)));
            times.extend(
                (0..200).map(|step| (edge + step * 300_000 + random.below(300_000), caller)),
            );
        }
        times
    });
    in_order(callers.collect())
}

fn in_order(mut requests: Vec<(u64, u32)>) -> Vec<(u64, u32)> {
    requests.sort_unstable();
    requests
}

// === Random ===

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to 1.
    fn portion(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A gap between independent events, 1 in the mean.
    fn gap(&mut self) -> f64 {
        -(1.0 - self.portion()).ln()
    }
}

pub(crate) const SECOND: u64 = 1_000_000;
pub(crate) const MINUTE: u64 = 60 * SECOND;
/// A moment at which a minute begins.
pub(crate) const START: u64 = 28_333_334 * MINUTE;
