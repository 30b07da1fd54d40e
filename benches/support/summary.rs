//! Median and range of the rounds of a measurement.

/// Median, minimum and maximum of some rounds. Rounds without a finite value are left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Summary {
    pub(crate) median: f64,
    min: f64,
    max: f64,
}

impl Summary {
    pub(crate) fn of(samples: impl IntoIterator<Item = f64>) -> Self {
        let samples = samples.into_iter().filter(|sample| sample.is_finite());
        let mut samples: Vec<f64> = samples.collect();
        samples.sort_by(f64::total_cmp);
        let last = samples.len().saturating_sub(1);
        let at = |index: usize| samples.get(index).copied().unwrap_or(f64::NAN);
        Self {
            median: (at(last / 2) + at(last.div_ceil(2))) / 2.0,
            min: at(0),
            max: at(last),
        }
    }

    /// Returns the median as text.
    pub(crate) fn show(&self, decimals: usize) -> String {
        match self.median.is_finite() {
            true => format!("{:.decimals$}", self.median),
            false => "-".to_owned(),
        }
    }

    /// Returns the median as text, with the range if the rounds differ.
    pub(crate) fn show_range(&self, decimals: usize) -> String {
        let (min, max) = (self.min, self.max);
        match self.show(decimals) {
            median if min < max => format!("{median} ({min:.decimals$}..{max:.decimals$})"),
            median => median,
        }
    }
}
