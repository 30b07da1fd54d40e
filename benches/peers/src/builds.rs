//! Builds of one program: the running one, and the one that `--before` names.
//!
//! Both builds measure in the same interleaved rounds, so the ratio of two rows shows the effect of a change in tollgate.
//! Rows of both builds run in child processes, so that their conditions are equal.

use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    arguments::Arguments,
    table::{Summary, Table},
};

/// One row of a table: a contender, and the build that runs it.
#[derive(Debug)]
pub struct Entrant {
    /// Name of the row; that of the other build ends in `(before)`.
    pub label: String,
    /// Name of the contender, the same in both builds.
    pub name: String,
    build: PathBuf,
}

impl Entrant {
    /// Whether `--before` runs this row.
    pub fn is_before(&self) -> bool {
        self.label != self.name
    }

    /// A command line of the build that runs this row.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.build);
        command.args(words);
        command
    }

    /// Takes a sample in a new process, which prints `N` numbers to stdout.
    ///
    /// # Panics
    ///
    /// Panics if the process fails or prints anything else.
    pub fn sample<const N: usize>(&self, words: &[&str]) -> [f64; N] {
        let mut command = self.command(words);
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
        assert!(output.status.success(), "{command:?}: {}", output.status);
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Result<Vec<f64>, _> = text.split_whitespace().map(str::parse).collect();
        let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
        numbers.unwrap_or_else(|| panic!("{command:?} printed {text:?}, not {N} numbers"))
    }
}

/// The entrants of a table: each name, and after each of tollgate's the same name run by the build that `--before` names.
pub fn entrants<'a>(
    names: impl IntoIterator<Item = &'a str>,
    arguments: &Arguments,
) -> Vec<Entrant> {
    let this = env::current_exe().expect("the running program has a path");
    let before: Option<PathBuf> = arguments.optional("--before");
    let entrant = |name: &str, suffix: &str, build: &Path| Entrant {
        label: format!("{name}{suffix}"),
        name: name.to_owned(),
        build: build.to_owned(),
    };
    let mut entrants = Vec::new();
    for name in names {
        entrants.push(entrant(name, "", &this));
        if let Some(before) = before.as_ref().filter(|_| name.starts_with("tollgate")) {
            entrants.push(entrant(name, " (before)", before));
        }
    }
    entrants
}

/// Adds the ratio of each row to the same row of the other build, round by round, if there is another build.
pub fn add_ratio_to_before<S>(
    table: &mut Table,
    entrants: &[Entrant],
    samples: &[Vec<S>],
    field: impl Fn(&S) -> f64,
) {
    if !entrants.iter().any(Entrant::is_before) {
        return;
    }
    let cells = (0..entrants.len()).map(|row| {
        // The other build's row comes right after.
        let before = row + 1;
        if entrants.get(before).is_some_and(Entrant::is_before) {
            Summary::of_ratios(&samples[row], &samples[before], &field).show(2)
        } else {
            String::new()
        }
    });
    table.add_column("ratio to before", cells);
}
