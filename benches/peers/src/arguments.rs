//! Command line arguments: an optional subcommand, then `--name value` pairs.

use std::{env, fmt::Display, str::FromStr, time::Duration};

/// The command line of this process.
#[derive(Debug)]
pub struct Arguments {
    words: Vec<String>,
}

impl Arguments {
    /// Reads the arguments of this process.
    pub fn of_process() -> Self {
        Self {
            words: env::args().skip(1).collect(),
        }
    }

    /// The words after the subcommand `name`, or `None` if the command line starts with another word.
    pub fn subcommand(&self, name: &str) -> Option<&[String]> {
        let (first, rest) = self.words.split_first()?;
        (first == name).then_some(rest)
    }

    /// The value after `--name`, or the default.
    ///
    /// # Panics
    ///
    /// Panics if the value cannot be parsed: a bench that ignores a setting misleads.
    pub fn value<T>(&self, name: &str, default: T) -> T
    where
        T: FromStr,
        T::Err: Display,
    {
        self.optional(name).unwrap_or(default)
    }

    /// The value after `--name`, if that argument is present.
    ///
    /// # Panics
    ///
    /// Panics if the value cannot be parsed.
    pub fn optional<T>(&self, name: &str) -> Option<T>
    where
        T: FromStr,
        T::Err: Display,
    {
        let place = self.words.iter().position(|word| word == name)?;
        let text = self.words.get(place + 1).map_or("", String::as_str);
        let value = text.parse();
        Some(value.unwrap_or_else(|error| panic!("{name} {text:?}: {error}")))
    }

    /// The number of seconds after `--name`, or the default.
    pub fn seconds(&self, name: &str, default: f64) -> Duration {
        Duration::from_secs_f64(self.value(name, default))
    }

    /// Whether `--only` selects this name: its text is part of the name, or it is absent.
    pub fn picks(&self, name: &str) -> bool {
        name.contains(&self.value("--only", String::new()))
    }
}
