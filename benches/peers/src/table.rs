//! Markdown tables of medians.

/// A median with its spread.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// The middle sample.
    pub median: f64,
    /// The least sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
}

impl Summary {
    /// The summary of samples, of which there must be one at least.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Self {
        let mut samples: Vec<f64> = samples.into_iter().collect();
        samples.sort_by(f64::total_cmp);
        let middle = samples.len() / 2;
        let median = if samples.len() % 2 == 1 {
            samples[middle]
        } else {
            (samples[middle - 1] + samples[middle]) / 2.0
        };
        Self {
            median,
            min: samples[0],
            max: samples[samples.len() - 1],
        }
    }

    /// `median (min..max)`, with so many digits behind the point.
    pub fn show(&self, digits: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.digits$} ({min:.digits$}..{max:.digits$})")
    }
}

/// Prints a table: a heading, the column names, the rows.
pub fn print(heading: &str, columns: &[&str], rows: &[Vec<String>]) {
    println!("\n### {heading}\n");
    println!("| {} |", columns.join(" | "));
    println!("|{}", "---|".repeat(columns.len()));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
}
