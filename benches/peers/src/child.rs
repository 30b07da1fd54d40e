//! A child process that does not outlive the program.

use std::process::Child;

/// Kills the process when dropped.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
