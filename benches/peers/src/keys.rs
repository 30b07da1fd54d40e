//! Names of clients, the same for all contenders, in the same pseudo-random order.

/// Makes `count` names.
pub fn names(count: usize) -> Vec<String> {
    (0..count).map(name).collect()
}

/// Makes one name: 11 characters below number 1,000,000, longer from there.
pub fn name(number: usize) -> String {
    format!("user:{number:06}")
}

/// A pseudo-random walk over names, by a linear congruential generator: two multiplications per step.
#[derive(Debug)]
pub struct Walk {
    state: u64,
}

impl Walk {
    /// Starts a walk; equal seeds give equal walks.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns the next name.
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
