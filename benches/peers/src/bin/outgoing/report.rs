//! The counts of one process, as it prints them.

use std::{
    io::{BufRead, BufReader},
    process::Child,
    time::Duration,
};

/// Outcomes of the calls, their waits, and the calls of each task.
#[derive(Debug, Default)]
pub struct Report {
    pub admitted: u64,
    /// Responses with 429.
    pub refused: u64,
    pub failed: u64,
    /// The time from asking for a turn to the call.
    pub waits: Vec<Duration>,
    /// Calls of each task.
    pub starts: Vec<u64>,
}

impl Report {
    /// Reads the report of a process when it has ended.
    ///
    /// # Panics
    ///
    /// Panics if it prints something else.
    pub fn read(mut child: Child) -> Self {
        let output = child.stdout.take().expect("it is piped");
        let mut lines = BufReader::new(output).lines();
        let mut numbers = || -> Vec<u64> {
            let line = lines.next().expect("the client prints a report");
            let line = line.expect("it is text");
            let numbers = line.split_whitespace().map(str::parse);
            let numbers: Result<_, _> = numbers.collect();
            numbers.unwrap_or_else(|error| panic!("{line:?}: {error}"))
        };
        let [admitted, refused, failed] = numbers()[..] else {
            panic!("a report begins with three counts");
        };
        let waits = numbers().into_iter().map(Duration::from_micros).collect();
        let starts = numbers();
        let status = child.wait().expect("it is ours to wait for");
        assert!(status.success(), "the client ended with {status}");
        Self {
            admitted,
            refused,
            failed,
            waits,
            starts,
        }
    }

    /// Prints three lines: the counts, the waits in microseconds, and the starts.
    pub fn print(&self) {
        println!("{} {} {}", self.admitted, self.refused, self.failed);
        let line = |numbers: &mut dyn Iterator<Item = u128>| {
            let numbers: Vec<_> = numbers.map(|number| number.to_string()).collect();
            println!("{}", numbers.join(" "));
        };
        line(&mut self.waits.iter().map(Duration::as_micros));
        line(&mut self.starts.iter().map(|starts| u128::from(*starts)));
    }

    pub fn add(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.refused += other.refused;
        self.failed += other.failed;
        self.waits.extend(other.waits);
        self.starts.extend(other.starts);
    }

    pub fn calls(&self) -> u64 {
        self.admitted + self.refused + self.failed
    }

    /// Returns a quantile of the waits; zero without any.
    pub fn wait(&self, share: f64) -> Duration {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        let place = (waits.len() as f64 * share) as usize;
        waits.get(place).copied().unwrap_or_default()
    }

    /// Returns the fewest and the most calls of a task.
    pub fn starts(&self) -> (u64, u64) {
        let least = self.starts.iter().min().copied();
        let most = self.starts.iter().max().copied();
        (least.unwrap_or_default(), most.unwrap_or_default())
    }
}
