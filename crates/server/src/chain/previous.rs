//! What the operation before found.

use dafs_protocol::{FileHandle, OpResult, Outcome, StateId, Status};

/// The handle and the open that the next operations may refer to.
#[derive(Default)]
pub(super) struct Previous {
    pub handle: Option<FileHandle>,
    state: Option<StateId>,
}

impl Previous {
    /// An operation ended so.
    pub(super) fn remember(&mut self, result: &OpResult) {
        match result {
            Ok(Outcome::Found { handle, .. }) => self.handle = Some(*handle),
            Ok(Outcome::Opened { handle, state, .. }) => {
                self.handle = Some(*handle);
                self.state = Some(*state);
            }
            _ => {}
        }
    }

    /// A handle from the wire; the one of the operation before, if it says so.
    pub(super) fn handle(&self, handle: &FileHandle) -> Result<FileHandle, Status> {
        if *handle == FileHandle::PREVIOUS {
            return self.handle.ok_or(Status::ChainForm);
        }
        Ok(*handle)
    }

    /// A state from the wire; the one of the operation before, if it says so.
    pub(super) fn state(&self, state: StateId) -> Result<StateId, Status> {
        if state == StateId::PREVIOUS {
            return self.state.ok_or(Status::ChainForm);
        }
        Ok(state)
    }
}
