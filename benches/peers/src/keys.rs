//! The same names for everybody, in the same random order.

/// `count` names of 11 characters.
pub fn names(count: usize) -> Vec<String> {
    (0..count).map(name).collect()
}

/// One name of 11 characters, up to a million; longer above.
pub fn name(number: usize) -> String {
    format!("user:{number:06}")
}

/// A pseudo-random walk over names (PCG's multiplier): a multiplication or two per step.
#[derive(Debug)]
pub struct Walk {
    state: u64,
}

impl Walk {
    /// A walk of its own per seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next name.
    #[inline]
    pub fn pick<'a>(&mut self, names: &'a [String]) -> &'a String {
        self.state = self
            .state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let place = (u128::from(self.state) * names.len() as u128) >> 64;
        &names[place as usize]
    }
}
