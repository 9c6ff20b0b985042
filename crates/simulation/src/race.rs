//! A name that many change at once, and what came of it.

use std::time::Duration;

/// A name and those who try to change it.
#[derive(Debug, Default)]
pub struct Race {
    pub present: bool,
    /// It is a directory, not a file.
    pub directory: bool,
    pub running: usize,
    pub started: usize,
    pub won: usize,
    /// Answered that somebody else was faster.
    pub beaten: usize,
    /// No answer, or one that says nothing.
    pub lost: usize,
    pub not_before: Duration,
    /// It must be looked at to know.
    pub unclear: bool,
    pub looking: bool,
}

impl Race {
    /// Nobody runs and everything is known.
    pub fn is_idle(&self) -> bool {
        self.running == 0 && !self.unclear && !self.looking
    }

    /// When it is time to look, if that is to come.
    pub fn not_before(&self, now: Duration) -> Option<Duration> {
        (self.unclear && self.not_before > now).then_some(self.not_before)
    }

    /// A runner died.
    pub fn lost(&mut self, not_before: Duration) {
        self.lost += 1;
        self.not_before = self.not_before.max(not_before);
        self.ended();
    }

    /// Who looked died.
    pub fn look_again(&mut self) {
        (self.looking, self.unclear) = (false, true);
    }

    /// A runner is through.
    pub fn ended(&mut self) {
        self.running -= 1;
        if self.running == 0 {
            // Whose answer was lost may come late.
            self.unclear = self.lost > 0;
            self.present ^= self.won > 0;
            (self.started, self.won, self.beaten, self.lost) = (0, 0, 0, 0);
        }
    }
}
