//! What was written under which verifier, and what of it no sync covers.

use dafs_protocol::{OpResult, Outcome, Stability, Status, WriteVerifier};

use crate::planted::{Defect, planted};

/// Writes that no sync covers.
#[derive(Default)]
pub(super) struct Unsynced {
    /// Under which verifier there are some.
    verifier: Option<WriteVerifier>,
    /// An end of the server's process loses some.
    in_memory: bool,
    /// Some were lost.
    lost: bool,
    /// Such writes so far.
    writes: u64,
}

impl Unsynced {
    /// Notes what a chain wrote outside of any open file.
    pub(super) fn saw_chain(&mut self, results: &[OpResult], commit: bool) {
        let chain_closed = results.iter().flatten().any(|o| matches!(o, Outcome::Closed { .. }));
        for outcome in results.iter().flatten() {
            if let Outcome::Written { stability: Stability::Unstable, verifier, .. } = outcome
                && !commit
            {
                // The close of the chain hands it to the file system.
                self.wrote(*verifier, !chain_closed);
            }
        }
    }

    /// `in_memory`: an end of the server's process loses it.
    pub(super) fn wrote(&mut self, verifier: WriteVerifier, in_memory: bool) {
        self.saw(verifier);
        self.verifier = Some(verifier);
        self.in_memory |= in_memory;
        self.writes += 1;
    }

    /// What no sync covers is lost with the server's machine, or with its process.
    fn saw(&mut self, verifier: WriteVerifier) {
        let Some(old) = self.verifier.filter(|old| *old != verifier) else { return };
        self.lost |= self.in_memory || !old.same_machine_run(&verifier);
        self.in_memory = false;
        self.verifier = Some(verifier);
    }

    /// A sync succeeded that was sent when `writes` were acknowledged: later ones are not in it.
    ///
    /// # Errors
    /// [`Status::WritesLost`], once.
    pub(super) fn synced(&mut self, verifier: WriteVerifier, writes: u64) -> Result<(), Status> {
        self.saw(verifier);
        if self.writes == writes || planted(Defect::SyncCoversLaterWrites) {
            self.verifier = None;
            self.in_memory = false;
        }
        if std::mem::take(&mut self.lost) { Err(Status::WritesLost) } else { Ok(()) }
    }

    /// Nobody knows what became of them.
    pub(super) fn lose(&mut self) {
        self.lost |= self.verifier.is_some();
    }

    /// Some are in the server's memory alone, which were kept before.
    pub(super) fn keeps_less(&mut self) {
        self.in_memory |= self.verifier.is_some();
    }

    /// Such writes so far.
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }
}
