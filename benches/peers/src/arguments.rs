//! `--name value` on the command line.

use std::{env, fmt::Display, str::FromStr, time::Duration};

/// What the command line says.
#[derive(Debug)]
pub struct Arguments {
    words: Vec<String>,
}

impl Arguments {
    /// The arguments of this process; those of `cargo bench` and the like are no concern.
    pub fn of_process() -> Self {
        Self {
            words: env::args().skip(1).collect(),
        }
    }

    /// The value behind `--name`, or the default.
    ///
    /// # Panics
    ///
    /// Panics when there is a value and it cannot be read: a bench that ignores a setting misleads.
    pub fn value<T>(&self, name: &str, default: T) -> T
    where
        T: FromStr,
        T::Err: Display,
    {
        let Some(place) = self.words.iter().position(|word| word == name) else {
            return default;
        };
        let text = self.words.get(place + 1).map_or("", String::as_str);
        text.parse()
            .unwrap_or_else(|error| panic!("{name} {text:?}: {error}"))
    }

    /// A number of seconds behind `--name`, or the default.
    pub fn seconds(&self, name: &str, default: f64) -> Duration {
        Duration::from_secs_f64(self.value(name, default))
    }

    /// Whether `--only` leaves this name in: its text is part of the name.
    pub fn picks(&self, name: &str) -> bool {
        name.contains(&self.value("--only", String::new()))
    }
}
