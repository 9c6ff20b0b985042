//! Locks and callbacks of the scripted server.

use dafs_fabric::SgList;
use dafs_message::ConnId;
use dafs_protocol::*;

use super::{Chain, Fake};

/// Whose locks they are: a session's owner, or somebody else's.
type Holder = (Option<SessionId>, OwnerKey);

struct Waiting {
    ticket: LockTicket,
    path: Vec<u8>,
    session: SessionId,
    lock: LockRequest,
    origin: (SlotId, u32),
}

/// A callback without an answer.
struct Asked {
    session: SessionId,
    request: CallbackRequest,
    /// The connection on which it was sent.
    sent: Option<ConnId>,
}

#[derive(Default)]
pub struct FakeLocks {
    held: std::collections::HashMap<Vec<u8>, RangeLocks<Holder>>,
    waiting: Vec<Waiting>,
    asked: Vec<Asked>,
    sequences: [u32; CALLBACK_SLOTS as usize],
    next_ticket: u64,
    /// The request that runs.
    pub origin: (SlotId, u32),
    /// What clients answered to callbacks, in order.
    pub answers: Vec<CallbackReply>,
    /// Reclaims that were granted.
    pub reclaimed: usize,
}

const FOREIGN: OwnerKey = OwnerKey { kind: LockKind::Posix, number: u64::MAX };

impl Fake {
    /// Somebody else locks all of a file.
    pub fn lock_foreign(&mut self, path: &[u8]) {
        let held = self.locks.held.entry(path.to_vec()).or_default();
        held.set((None, FOREIGN), LockRange::ALL, true, 1);
    }

    /// Somebody else unlocks it, and who waits gets it.
    pub fn unlock_foreign(&mut self, path: &[u8]) {
        self.locks.held.entry(path.to_vec()).or_default().clear_owners(|(by, _)| by.is_none());
        self.grant();
    }

    fn grant(&mut self) {
        for waiting in std::mem::take(&mut self.locks.waiting) {
            let Waiting { ticket, path, session, lock, origin } = waiting;
            let held = self.locks.held.entry(path.clone()).or_default();
            let holder = (Some(session), lock.owner);
            if held.conflict(holder, lock.range, lock.exclusive).is_some() {
                self.locks.waiting.push(Waiting { ticket, path, session, lock, origin });
                continue;
            }
            held.set(holder, lock.range, lock.exclusive, lock.pid);
            self.call_back(0, Callback::Lock { ticket, result: Ok(()) }, Some(origin));
        }
    }

    /// Asks the only session.
    pub fn call_back(
        &mut self,
        slot: u16,
        what: Callback,
        referring: Option<(SlotId, u32)>,
    ) -> CallbackRequest {
        let sequence = &mut self.locks.sequences[usize::from(slot)];
        *sequence += 1;
        let (slot, sequence) = (SlotId(slot), *sequence);
        let request = CallbackRequest { slot, sequence, referring, what };
        let session = *self.sessions.keys().next().expect("a session");
        self.locks.asked.push(Asked { session, request, sent: None });
        self.send_callbacks();
        request
    }

    /// Asks once more, as if the answer had been lost.
    pub fn call_back_again(&mut self, request: CallbackRequest) {
        let session = *self.sessions.keys().next().expect("a session");
        self.locks.asked.push(Asked { session, request, sent: None });
    }

    /// Asks nothing any more.
    pub fn forget_callbacks(&mut self) {
        self.locks.asked.clear();
    }

    /// Sends what has no answer, and was not sent on a connection that stands.
    pub fn send_callbacks(&mut self) {
        for asked in &mut self.locks.asked {
            let stands = asked.sent.is_some_and(|conn| self.conns.contains_key(&conn));
            let conn = self.conns.iter().find(|(_, session)| **session == asked.session);
            let Some((conn, _)) = conn.filter(|_| !stands) else { continue };
            let mut header = Vec::new();
            encode_callback(&asked.request, &mut header);
            let tag = u32::from(asked.request.slot.0);
            let sent = self.node.submit(*conn, tag, &header, SgList::new(), SgList::new());
            asked.sent = sent.is_ok().then_some(*conn);
        }
    }

    pub fn on_callback_reply(&mut self, header: &[u8]) {
        let reply = decode_callback_reply(header).expect("an answer to a callback");
        let answered = |asked: &Asked| {
            (asked.request.slot, asked.request.sequence) == (reply.slot, reply.sequence)
        };
        self.locks.asked.retain(|asked| !answered(asked));
        self.locks.answers.push(reply);
    }

    /// Without the locks of sessions, which are gone.
    pub fn drop_session_locks(&mut self) {
        let foreign = std::mem::take(&mut self.locks.held);
        self.locks = FakeLocks { next_ticket: self.locks.next_ticket, ..FakeLocks::default() };
        for (path, mut held) in foreign {
            held.clear_owners(|(by, _)| by.is_some());
            self.locks.held.insert(path, held);
        }
    }

    /// What sessions hold of a file: first and last byte, and whether exclusive.
    pub fn held(&self, path: &[u8]) -> Vec<(u64, u64, bool)> {
        let held = self.locks.held.get(path).into_iter().flat_map(RangeLocks::iter);
        let ours = held.filter(|held| held.owner.0.is_some());
        let mut all: Vec<_> =
            ours.map(|held| (held.range.first(), held.range.last(), held.exclusive)).collect();
        all.sort_unstable();
        all
    }

    pub fn waiting(&self) -> usize {
        self.locks.waiting.len()
    }

    pub(super) fn lock_operation(
        &mut self,
        session: SessionId,
        chain: &Chain,
        operation: &Operation<'_>,
    ) -> OpResult {
        match operation {
            Operation::Lock { state, lock, wait, reclaim } => {
                if *reclaim && !self.script.grace {
                    return Err(Status::NoGrace);
                }
                let (path, _) = self.open_file(session, chain, *state)?;
                let holder = (Some(session), lock.owner);
                let held = self.locks.held.entry(path.clone()).or_default();
                if held.conflict(holder, lock.range, lock.exclusive).is_none() {
                    held.set(holder, lock.range, lock.exclusive, lock.pid);
                    self.locks.reclaimed += usize::from(*reclaim);
                    return Ok(Outcome::Lock(Locked::Granted));
                }
                if !wait {
                    return Err(Status::Again);
                }
                self.locks.next_ticket += 1;
                let (ticket, origin) = (LockTicket(self.locks.next_ticket), self.locks.origin);
                let waiting = Waiting { ticket, path: path.clone(), session, lock: *lock, origin };
                self.locks.waiting.push(waiting);
                if self.script.grant_before_reply {
                    self.unlock_foreign(&path);
                    self.node.ring();
                }
                Ok(Outcome::Lock(Locked::Waiting(ticket)))
            }
            Operation::LockTest { state, lock } => {
                let (path, _) = self.open_file(session, chain, *state)?;
                let held = self.locks.held.entry(path).or_default();
                let holder = (Some(session), lock.owner);
                let held = held.conflict(holder, lock.range, lock.exclusive);
                Ok(Outcome::Conflict {
                    held: held.map(|held| {
                        let (range, exclusive, pid) = (held.range, held.exclusive, held.pid);
                        let owner = held.owner.1;
                        (LockRequest { owner, range, exclusive, pid }, held.owner.0.is_some())
                    }),
                })
            }
            Operation::Unlock { state, owner, range } => {
                let (path, _) = self.open_file(session, chain, *state)?;
                self.locks.held.entry(path).or_default().clear((Some(session), *owner), *range);
                self.grant();
                Ok(Outcome::Done)
            }
            Operation::LockCancel { ticket } => {
                let position = self.locks.waiting.iter().position(|w| w.ticket == *ticket);
                self.locks.waiting.remove(position.ok_or(Status::NoEnt)?);
                Ok(Outcome::Done)
            }
            Operation::OwnerRelease { owner } => {
                for held in self.locks.held.values_mut() {
                    held.clear_owners(|holder| holder == (Some(session), *owner));
                }
                Ok(Outcome::Done)
            }
            Operation::ReclaimComplete => Ok(Outcome::Done),
            Operation::RefsGet { .. } => Err(Status::NotSupp),
            other => panic!("not scripted: {other:?}"),
        }
    }
}
