//! Markdown tables of medians.

/// A median with its spread.
#[derive(Clone, Copy, Debug)]
pub struct Summary {
    /// Median of the samples.
    pub median: f64,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
}

impl Summary {
    /// Summarises samples, of which there must be at least one.
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

    /// Summarises the ratios of one row to another, round by round: samples of one round saw the same machine.
    pub fn of_ratios<S>(row: &[S], base: &[S], field: impl Fn(&S) -> f64) -> Self {
        Self::of(
            row.iter()
                .zip(base)
                .map(|(row, base)| field(row) / field(base)),
        )
    }

    /// Summarises the differences between one row and another, round by round.
    pub fn of_differences<S>(row: &[S], base: &[S], field: impl Fn(&S) -> f64) -> Self {
        Self::of(
            row.iter()
                .zip(base)
                .map(|(row, base)| field(row) - field(base)),
        )
    }

    /// Formats as `median (min..max)` with this number of decimal places.
    pub fn show(&self, digits: usize) -> String {
        let Self { median, min, max } = self;
        format!("{median:.digits$} ({min:.digits$}..{max:.digits$})")
    }
}

/// A table that grows column by column.
#[derive(Debug)]
pub struct Table {
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table of one column.
    pub fn new(column: &str, cells: impl IntoIterator<Item = String>) -> Self {
        Self {
            columns: vec![column.to_owned()],
            rows: cells.into_iter().map(|cell| vec![cell]).collect(),
        }
    }

    /// Adds a column, whose cells are in the order of the rows.
    pub fn add_column(&mut self, column: &str, cells: impl IntoIterator<Item = String>) {
        self.columns.push(column.to_owned());
        for (row, cell) in self.rows.iter_mut().zip(cells) {
            row.push(cell);
        }
    }

    /// Prints the table under a heading.
    pub fn print(&self, heading: &str) {
        let columns: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        print(heading, &columns, &self.rows);
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
