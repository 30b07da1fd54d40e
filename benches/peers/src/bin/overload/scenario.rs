//! A service, the requests that come to it, and what happens meanwhile.

/// A run. Times are in seconds since its start.
#[derive(Clone, Copy)]
pub struct Scenario {
    pub name: &'static str,
    pub meaning: &'static str,
    pub service: &'static str,
    /// Demand as a multiple of what the service can serve.
    pub load: f64,
    pub seconds: f64,
    pub event: Event,
    /// When the event begins and ends. Without one, parts of the run that are to be compared.
    pub from: f64,
    pub until: f64,
    /// The handler of a pool gives up after this time, and responds with 504.
    pub time_out: f64,
    /// A client hangs up after this time.
    pub patience: f64,
}

#[derive(Clone, Copy, PartialEq)]
pub enum Event {
    /// All requests of a second come in its first quarter, in the whole run.
    Bursts,
    None,
    /// Requests of one quiet tenant, one in 190, take 2 s of the pool.
    Poison,
    /// The downstream of the pool takes this many times as long.
    Slow(f64),
}

impl Scenario {
    /// A service without an event.
    pub const fn steady(service: &'static str, load: f64, seconds: f64) -> Self {
        Self {
            name: "steady",
            meaning: "nothing happens",
            service,
            load,
            seconds,
            event: Event::None,
            from: seconds / 3.0,
            until: seconds * 2.0 / 3.0,
            time_out: 5.0,
            patience: 1.0,
        }
    }

    /// Returns one of the [`EVENTS`].
    pub fn named(name: &str) -> Option<Self> {
        EVENTS.into_iter().find(|scenario| scenario.name == name)
    }

    /// Shortens the run and its event. The service and its clients stay as quick as they are.
    #[must_use]
    pub fn at_pace(self, pace: f64) -> Self {
        // In whole tenths, as it is measured.
        let at_pace = |seconds: f64| (seconds * pace * 10.0).round() / 10.0;
        Self {
            seconds: at_pace(self.seconds),
            from: at_pace(self.from),
            until: at_pace(self.until),
            ..self
        }
    }

    pub fn is_during(&self, at: f64) -> bool {
        (self.from..self.until).contains(&at)
    }

    /// Returns whether something ends from which the service can recover.
    pub fn recovers(&self) -> bool {
        matches!(self.event, Event::Poison | Event::Slow(_))
    }

    /// Returns how many times as long as usual the downstream takes.
    pub fn slowness(&self, at: f64) -> f64 {
        match self.event {
            Event::Slow(times) if self.is_during(at) => times,
            _ => 1.0,
        }
    }

    /// Returns when a request comes that is due at this time if there are no bursts.
    pub fn comes_at(&self, due: f64) -> f64 {
        match self.event {
            Event::Bursts => due.floor() + due.fract() / 4.0,
            _ => due,
        }
    }
}

const POOL: Scenario = Scenario::steady("pool", 2.0, 40.0);

pub const EVENTS: [Scenario; 8] = [
    Scenario {
        name: "slow",
        meaning: "the downstream takes ten times as long",
        seconds: 110.0,
        event: Event::Slow(10.0),
        from: 20.0,
        until: 80.0,
        ..POOL
    },
    Scenario {
        name: "stuck",
        meaning: "the downstream does not respond, and the handler gives up after 5 s",
        seconds: 80.0,
        event: Event::Slow(1e6),
        from: 20.0,
        until: 50.0,
        ..POOL
    },
    Scenario {
        name: "cold",
        meaning: "the downstream takes ten times as long at first",
        event: Event::Slow(10.0),
        from: 0.0,
        until: 5.0,
        ..POOL
    },
    Scenario {
        name: "bursts",
        meaning: "all requests of a second come in its first quarter",
        load: 0.5,
        event: Event::Bursts,
        ..POOL
    },
    Scenario {
        name: "mix",
        meaning: "2 ms of work, and one request in twenty waits for 2 s",
        ..Scenario::steady("mix", 1.5, 60.0)
    },
    Scenario {
        name: "poison",
        meaning: "one request in 190, of one tenant, takes 2 s of the pool",
        load: 0.9,
        seconds: 70.0,
        event: Event::Poison,
        from: 20.0,
        until: 50.0,
        ..POOL
    },
    Scenario {
        name: "drift",
        meaning: "an overload that lasts for 10 minutes",
        from: 60.0,
        until: 540.0,
        ..Scenario::steady("pool", 3.0, 600.0)
    },
    Scenario {
        name: "timeout",
        meaning: "the downstream does not respond, and the handler gives up after 1 s, as regular as a latency",
        seconds: 80.0,
        event: Event::Slow(1e6),
        from: 20.0,
        until: 50.0,
        time_out: 1.0,
        // Else they hang up before the 504.
        patience: 2.0,
        ..POOL
    },
];
