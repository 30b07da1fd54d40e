//! `--name value` on the command line.

use std::{env, fmt::Display, str::FromStr, time::Duration};

/// The words of the command line.
#[derive(Debug)]
pub(crate) struct Arguments {
    words: Vec<String>,
}

impl Arguments {
    /// Reads the arguments of this process.
    ///
    /// # Panics
    ///
    /// Panics on a `--name` that is not in `known`: ignoring a setting would mislead.
    pub(crate) fn of_process(known: &[&str]) -> Self {
        // `cargo bench` adds `--bench` itself
        let words = env::args().skip(1).filter(|word| word != "--bench");
        let words: Vec<String> = words.collect();
        let mut names = words.iter().filter(|word| word.starts_with("--"));
        if let Some(name) = names.find(|name| !known.contains(&name.as_str())) {
            panic!("{name} is unknown; there are {}", known.join(", "));
        }
        Self { words }
    }

    /// Returns whether the command line contains this word.
    pub(crate) fn has(&self, word: &str) -> bool {
        self.words.iter().any(|found| found == word)
    }

    /// Returns the value after `--name`, or the default.
    pub(crate) fn value<T>(&self, name: &str, default: T) -> T
    where
        T: FromStr,
        T::Err: Display,
    {
        self.text(name).map_or(default, |text| parse(name, text))
    }

    /// Returns the comma-separated values after `--name`, or the default.
    pub(crate) fn list<T>(&self, name: &str, default: &[T]) -> Vec<T>
    where
        T: Clone + FromStr,
        T::Err: Display,
    {
        match self.text(name) {
            Some(text) => text.split(',').map(|part| parse(name, part)).collect(),
            None => default.to_vec(),
        }
    }

    /// Returns the number of seconds after `--name`, or the default.
    pub(crate) fn seconds(&self, name: &str, default: f64) -> Duration {
        Duration::from_secs_f64(self.value(name, default))
    }

    fn text(&self, name: &str) -> Option<&str> {
        let place = self.words.iter().position(|word| word == name)?;
        Some(self.words.get(place + 1).map_or("", String::as_str))
    }
}

fn parse<T>(name: &str, text: &str) -> T
where
    T: FromStr,
    T::Err: Display,
{
    text.parse()
        .unwrap_or_else(|error| panic!("{name} {text:?}: {error}"))
}
