//! How a lock that nobody wants any more is given back.

use dafs_protocol::{CHAIN_MAX, HeldLock, LockRange, LockRequest, Operation, OwnerKey, StateId};

/// A part of a lock that nobody wants: what was there before comes back.
#[derive(Debug, Clone, Copy)]
pub struct GiveBack {
    /// Whose.
    pub(super) owner: OwnerKey,
    /// Of what.
    pub(super) range: LockRange,
    /// What the owner held there; `None`: nothing.
    pub(super) before: Option<HeldLock<OwnerKey>>,
    /// The lock that is given back.
    pub(super) granted: LockRequest,
}

impl GiveBack {
    fn operation<'a>(&self, state: StateId) -> Operation<'a> {
        match self.before {
            None => Operation::Unlock { state, owner: self.owner, range: self.range },
            Some(before) => {
                let lock = LockRequest {
                    owner: self.owner,
                    range: self.range,
                    exclusive: before.exclusive,
                    pid: before.pid,
                };
                Operation::Lock { state, lock, wait: false, reclaim: false }
            }
        }
    }
}

/// The operations of the first steps.
pub(super) fn operations<'a>(
    steps: &[GiveBack],
    state: StateId,
) -> impl Iterator<Item = Operation<'a>> {
    steps.iter().take(CHAIN_MAX).map(move |step| step.operation(state))
}
