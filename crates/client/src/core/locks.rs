//! Locks: what is held, what waits, what is given back, and what a new session reclaims.

use std::collections::{BTreeMap, HashMap};

use dafs_protocol::{
    HeldLock, LockKind, LockRange, LockRequest, LockTicket, OpResult, OwnerKey, RangeLocks, Status,
};

use super::call::CallRecord;
use super::give_back::GiveBack;
use super::ids::{FileId, FileKey, Owner};
use super::output::Output;
use super::work::Work;
use super::{Core, Phase};
use crate::error::Error;
use crate::planted::{Defect, planted};

/// The locks of a session.
#[derive(Debug, Default)]
pub(super) struct Locks {
    files: HashMap<FileId, FileLocks>,
    /// Calls that wait for a callback, the oldest first.
    waits: BTreeMap<LockTicket, Wait>,
}

#[derive(Debug, Default)]
struct FileLocks {
    /// POSIX and OFD locks.
    ranges: RangeLocks<OwnerKey>,
    whole: RangeLocks<OwnerKey>,
    /// Through which opens an owner locked.
    through: Vec<(OwnerKey, FileKey)>,
}

#[derive(Debug)]
struct Wait {
    call: Box<CallRecord>,
    /// The server was asked to end it.
    cancelled: bool,
}

impl FileLocks {
    fn of(&mut self, kind: LockKind) -> &mut RangeLocks<OwnerKey> {
        match kind {
            LockKind::Whole => &mut self.whole,
            LockKind::Posix | LockKind::Ofd => &mut self.ranges,
        }
    }

    fn held(&self) -> impl Iterator<Item = &HeldLock<OwnerKey>> {
        self.ranges.iter().chain(self.whole.iter())
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.whole.is_empty()
    }

    fn clear_owner(&mut self, owner: OwnerKey) {
        self.of(owner.kind).clear_owners(|held| held == owner);
        self.through.retain(|(other, _)| *other != owner);
    }
}

impl Locks {
    fn granted(&mut self, id: FileId, file: FileKey, lock: &LockRequest) {
        let entry = self.files.entry(id).or_default();
        entry.of(lock.owner.kind).set(lock.owner, lock.range, lock.exclusive, lock.pid);
        if !entry.through.contains(&(lock.owner, file)) {
            entry.through.push((lock.owner, file));
        }
    }

    pub(super) fn released(&mut self, id: FileId, owner: OwnerKey, range: LockRange) {
        if let Some(entry) = self.files.get_mut(&id) {
            entry.of(owner.kind).clear(owner, range);
            self.forget_if_empty(id);
        }
    }

    /// A whole-file lock of another mode is given up before the new one is asked for, as
    /// flock(2) does it: what did not succeed at once lost the old one.
    fn converted(&mut self, id: FileId, lock: &LockRequest) {
        let Some(entry) = self.files.get_mut(&id) else { return };
        let other = |held: &HeldLock<OwnerKey>| {
            held.owner == lock.owner && held.exclusive != lock.exclusive
        };
        if entry.whole.iter().any(other) {
            entry.clear_owner(lock.owner);
            self.forget_if_empty(id);
        }
    }

    /// What an owner holds alone of the range is shared.
    fn shared(&mut self, id: FileId, lock: &LockRequest) {
        let Some(entry) = self.files.get_mut(&id) else { return };
        let alone = |held: &&HeldLock<OwnerKey>| held.owner == lock.owner && held.exclusive;
        let held: Vec<_> = entry.ranges.iter().filter(alone).copied().collect();
        for HeldLock { owner, range, pid, .. } in held {
            let first = range.first().max(lock.range.first());
            if let Some(both) = LockRange::new(first, range.last().min(lock.range.last())) {
                entry.ranges.set(owner, both, false, pid);
            }
        }
    }

    fn forget_if_empty(&mut self, id: FileId) {
        if self.files.get(&id).is_some_and(FileLocks::is_empty) {
            self.files.remove(&id);
        }
    }

    /// As the server does: the last close of a file ends its locks, and a close those of owners
    /// of opens that locked through no other one.
    pub(super) fn closed(&mut self, id: FileId, file: FileKey, is_last: bool) {
        let Some(entry) = self.files.get_mut(&id) else { return };
        entry.through.retain(|(_, through)| *through != file);
        let through = std::mem::take(&mut entry.through);
        let ends = |owner: OwnerKey| {
            let elsewhere = through.iter().any(|(other, _)| *other == owner);
            is_last || (owner.kind != LockKind::Posix && !elsewhere)
        };
        entry.ranges.clear_owners(ends);
        entry.whole.clear_owners(ends);
        entry.through = through;
        self.forget_if_empty(id);
    }

    fn clear_owner(&mut self, owner: OwnerKey) {
        self.files.values_mut().for_each(|entry| entry.clear_owner(owner));
        self.files.retain(|_, entry| !entry.is_empty());
    }

    pub(super) fn any(&self, id: FileId) -> bool {
        self.files.contains_key(&id)
    }

    /// What a grant of `lock` changed, as far as it was not held before.
    fn give_back(&self, id: FileId, lock: &LockRequest) -> Vec<GiveBack> {
        let step = |range, before| GiveBack { owner: lock.owner, range, before, granted: *lock };
        let held = self.files.get(&id).into_iter().flat_map(FileLocks::held);
        let (first, last) = (lock.range.first(), lock.range.last());
        let within = |held: &&HeldLock<OwnerKey>| {
            held.owner == lock.owner && held.range.first() <= last && held.range.last() >= first
        };
        let mut pieces: Vec<HeldLock<OwnerKey>> = held.filter(within).copied().collect();
        pieces.sort_by_key(|piece| piece.range.first());
        let (mut steps, mut next) = (Vec::new(), Some(first));
        for piece in pieces {
            let begin = piece.range.first().max(first);
            let end = piece.range.last().min(last);
            if let (Some(from), Some(to)) = (next, begin.checked_sub(1))
                && let Some(gap) = LockRange::new(from, to)
            {
                steps.push(step(gap, None));
            }
            if piece.exclusive != lock.exclusive
                && let Some(range) = LockRange::new(begin, end)
            {
                steps.push(step(range, Some(piece)));
            }
            next = end.checked_add(1);
        }
        steps.extend(next.and_then(|from| LockRange::new(from, last)).map(|gap| step(gap, None)));
        steps
    }

    /// All calls that wait, the oldest first; nothing waits any more.
    pub(super) fn take_waits(&mut self) -> Vec<Box<CallRecord>> {
        std::mem::take(&mut self.waits).into_values().map(|wait| wait.call).collect()
    }
}

impl Core {
    /// LOCK did not succeed at once.
    pub(super) fn lock_not_granted(&mut self, work: &Work) {
        let Work::Lock { file, lock, .. } = work else { return };
        if let (LockKind::Whole, Some(file)) = (lock.owner.kind, self.files.any(*file)) {
            self.locks.converted(file.id(), lock);
        }
    }

    /// LOCK answered that it waits.
    pub(super) fn lock_waits(&mut self, mut call: Box<CallRecord>, ticket: LockTicket) {
        self.lock_not_granted(&call.work);
        // However often the server restarts while it waits.
        call.sessions_lost = 0;
        let unwanted = call.owner.is_none() || call.cancelled;
        let wait = Wait { call, cancelled: false };
        if let Some(wait) = self.locks.waits.insert(ticket, wait) {
            let what = "the ticket of another wait";
            self.finish(wait.call, Err(Error::PeerProtocol(what.into())));
        }
        if unwanted {
            self.cancel_wait(ticket);
        }
    }

    fn cancel_wait(&mut self, ticket: LockTicket) {
        let Some(wait) = self.locks.waits.get_mut(&ticket) else { return };
        if !std::mem::replace(&mut wait.cancelled, true) {
            self.requests.background += 1;
            self.requests.urgent.push_back(CallRecord::internal(Work::CancelLock { ticket }));
            self.wants_progress = true;
        }
    }

    /// The waits of `owner` are to end. True: there are such.
    pub(super) fn cancel_waits(&mut self, owner: Owner, abandon: bool) -> bool {
        let mut tickets = Vec::new();
        for (ticket, wait) in &mut self.locks.waits {
            if wait.call.owner == Some(owner) {
                tickets.push(*ticket);
                wait.call.cancelled = true;
                if abandon {
                    wait.call.owner = None;
                    self.requests.background += 1;
                }
            }
        }
        for ticket in &tickets {
            self.cancel_wait(*ticket);
        }
        !tickets.is_empty()
    }

    /// The server took a call out of its queue.
    pub(super) fn wait_cancelled(&mut self, ticket: LockTicket) {
        if let Some(wait) = self.locks.waits.remove(&ticket) {
            self.finish(wait.call, Err(Error::Interrupted));
        }
    }

    /// A callback says how a wait ended.
    ///
    /// # Errors
    /// [`Status::NoEnt`]: nobody waits for it.
    pub(super) fn wait_ended(
        &mut self,
        ticket: LockTicket,
        result: Result<(), Status>,
    ) -> Result<(), Status> {
        let wait = self.locks.waits.remove(&ticket).ok_or(Status::NoEnt)?;
        match result {
            Ok(()) => self.lock_granted(wait.call),
            Err(status) => self.finish(wait.call, Err(status.into())),
        }
        Ok(())
    }

    /// The lock of a call is held; given back where nobody wants it any more.
    pub(super) fn lock_granted(&mut self, mut call: Box<CallRecord>) {
        let Work::Lock { file, lock, .. } = call.work else { return };
        let id = self.files.any(file).map(super::files::OpenFile::id);
        let Some(id) = id else { return self.finish(call, Err(Status::BadF.into())) };
        if call.owner.is_some() {
            self.locks.granted(id, file, &lock);
            return self.finish(call, Ok(Output::Unit));
        }
        let steps = self.locks.give_back(id, &lock);
        if steps.is_empty() {
            return self.finish(call, Ok(Output::Unit));
        }
        call.work = Work::GiveBack { file, steps };
        self.requeue(call);
        self.wants_progress = true;
    }

    /// Steps of a give-back were answered; what could not be restored stays as it was granted.
    pub(super) fn gave_back(&mut self, mut call: Box<CallRecord>, results: &[OpResult]) {
        let Work::GiveBack { file, steps } = &mut call.work else { return };
        let done = results.len().clamp(1, steps.len().max(1));
        let (file, id) = (*file, self.files.any(*file).map(super::files::OpenFile::id));
        for (step, result) in steps.drain(..done.min(steps.len())).zip(results) {
            if let (Err(_), Some(_), Some(id)) = (result, step.before, id) {
                self.locks.granted(id, file, &LockRequest { range: step.range, ..step.granted });
            }
        }
        if steps.is_empty() {
            self.finish(call, Ok(Output::Unit));
        } else {
            self.requeue(call);
        }
    }

    /// A lock of `owner` that nobody wants any more is still to be given back.
    pub fn gives_back(&self, owner: OwnerKey) -> bool {
        let of_owner = |call: &CallRecord| match &call.work {
            Work::Lock { lock, .. } => call.owner.is_none() && lock.owner == owner,
            Work::GiveBack { steps, .. } => steps.iter().any(|step| step.owner == owner),
            _ => false,
        };
        self.requests.background > 0
            && (self.requests.flights.others().any(|flight| of_owner(&flight.call))
                || self.requests.queues.iter().flatten().any(|call| of_owner(call))
                || self.locks.waits.values().any(|wait| of_owner(&wait.call)))
    }

    /// The session was lost under a call. What the server may have taken from an owner by it,
    /// and given to another, is not reclaimed.
    pub(super) fn may_have_given_up(&mut self, work: &Work) {
        if planted(Defect::UnlockedReclaimed) {
            return;
        }
        let file = work.file().and_then(|key| self.files.any(key));
        match (work, file.map(super::files::OpenFile::id)) {
            (Work::Unlock { owner, range, .. }, Some(id)) => {
                self.locks.released(id, *owner, *range);
            }
            (Work::Close { file }, Some(id)) => {
                let mut others = self.files.keys().into_iter().filter(|key| key != file);
                let of_file = |key: &FileKey| self.files.any(*key).is_some_and(|f| f.id() == id);
                let is_last = !others.any(|key| of_file(&key));
                self.locks.closed(id, *file, is_last);
            }
            (Work::Lock { lock, .. }, Some(id)) if lock.owner.kind == LockKind::Whole => {
                self.locks.converted(id, lock);
            }
            (Work::Lock { lock, .. }, Some(id)) if !lock.exclusive => self.locks.shared(id, lock),
            (Work::OwnerRelease { owner }, _) => self.locks.clear_owner(*owner),
            _ => {}
        }
    }

    /// An owner holds nothing any more, and waits for nothing.
    pub(super) fn owner_released(&mut self, owner: OwnerKey) {
        self.locks.clear_owner(owner);
        let of_owner =
            |wait: &Wait| matches!(&wait.call.work, Work::Lock { lock, .. } if lock.owner == owner);
        let waits = self.locks.waits.iter().filter(|(_, wait)| of_owner(wait));
        let tickets: Vec<LockTicket> = waits.map(|(ticket, _)| *ticket).collect();
        for ticket in tickets {
            self.wait_cancelled(ticket);
        }
    }

    /// All files are open in the new session: asks for what they held.
    pub(super) fn begin_reclaim(&mut self) {
        if self.session.facts.new_sessions == 0 {
            return self.become_ready();
        }
        let mut works = Vec::new();
        let mut lost = Vec::new();
        for (id, entry) in &self.locks.files {
            for held in entry.held() {
                let HeldLock { owner, range, exclusive, pid } = *held;
                let lock = LockRequest { owner, range, exclusive, pid };
                match self.file_to_reclaim(*id, entry, held) {
                    Some(file) => works.push(Work::Reclaim { file, lock }),
                    None => lost.push((*id, owner)),
                }
            }
        }
        for (id, owner) in lost {
            self.lock_lost(id, owner);
        }
        if planted(Defect::LocksForgotten) {
            works.clear();
        }
        self.phase = Phase::Reclaiming(works.len());
        for work in works {
            self.requests.background += 1;
            let file = match work {
                Work::Reclaim { file, .. } => file,
                _ => continue,
            };
            self.requests.urgent.push_back(self.for_user_of(file, work));
        }
        self.reclaims_answered();
    }

    /// An open through which the owner locked, with the rights that it takes.
    fn file_to_reclaim(
        &self,
        id: FileId,
        entry: &FileLocks,
        held: &HeldLock<OwnerKey>,
    ) -> Option<FileKey> {
        let fits = |file: &FileKey| {
            let Ok(file) = self.files.usable(*file) else { return false };
            let writes = file.options.write || file.options.append;
            let right = if held.exclusive { writes } else { file.options.read };
            file.id() == id && (right || held.owner.kind == LockKind::Whole)
        };
        let own = entry.through.iter().filter(|(owner, _)| *owner == held.owner);
        own.map(|(_, file)| *file).find(fits).or_else(|| {
            // A process may have closed the open through which it locked.
            let any = held.owner.kind == LockKind::Posix;
            self.files.keys().into_iter().filter(|_| any).find(fits)
        })
    }

    /// One reclaim was answered.
    pub(super) fn reclaimed(&mut self, file: FileKey, lock: &LockRequest, granted: bool) {
        if !granted && let Some(file) = self.files.any(file) {
            self.lock_lost(file.id(), lock.owner);
        }
        if let Phase::Reclaiming(left) = &mut self.phase {
            *left = left.saturating_sub(1);
        }
        self.reclaims_answered();
    }

    fn reclaims_answered(&mut self) {
        if matches!(self.phase, Phase::Reclaiming(0)) {
            self.begin_asking();
        }
    }

    /// Locks are back, and kept writes are written again: others may have other locks now.
    pub(super) fn complete_reclaim(&mut self) {
        self.phase = Phase::Completing;
        self.requests.background += 1;
        self.requests.urgent.push_back(CallRecord::internal(Work::ReclaimComplete));
    }

    /// Others may have had the lock meanwhile: whoever works under it must learn of it.
    fn lock_lost(&mut self, id: FileId, owner: OwnerKey) {
        let Some(entry) = self.locks.files.get_mut(&id) else { return };
        let own = entry.through.iter().filter(|(other, _)| *other == owner);
        let own: Vec<FileKey> = own.map(|(_, file)| *file).collect();
        let files = if own.is_empty() { self.files.opens_of(id).to_vec() } else { own };
        for file in files {
            if let Some(file) = self.files.any_mut(file).filter(|file| file.id() == id) {
                file.broken.get_or_insert(Status::LocksLost);
                if self.recovery.rewrites && file.lose_kept() {
                    self.recovery.unsynced.lose();
                }
            }
        }
        entry.clear_owner(owner);
        self.locks.forget_if_empty(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: OwnerKey = OwnerKey { kind: LockKind::Posix, number: 1 };
    const ID: FileId = (1, 1);
    const FILE: FileKey = FileKey { index: 0, generation: 0 };

    fn lock(first: u64, last: u64, exclusive: bool) -> LockRequest {
        let range = LockRange::new(first, last).expect("in order");
        LockRequest { owner: OWNER, range, exclusive, pid: 1 }
    }

    #[test]
    fn what_is_given_back_is_what_was_not_held() {
        for (first, last) in [(0, u64::MAX), (5, 30), (10, 12), (12, 40), (0, 5), (20, u64::MAX)] {
            for exclusive in [false, true] {
                let mut locks = Locks::default();
                for held in [lock(10, 14, true), lock(20, 24, false), lock(26, 26, true)] {
                    locks.granted(ID, FILE, &held);
                }
                let before = locks.files[&ID].ranges.clone();
                let granted = lock(first, last, exclusive);
                let steps = locks.give_back(ID, &granted);
                let server = &mut locks.files.get_mut(&ID).expect("held").ranges;
                server.set(OWNER, granted.range, exclusive, 1);
                for step in steps {
                    match step.before {
                        None => assert!(server.clear(OWNER, step.range), "no step without need"),
                        Some(held) => server.set(OWNER, step.range, held.exclusive, held.pid),
                    }
                }
                let sorted = |locks: &RangeLocks<OwnerKey>| {
                    let mut all: Vec<_> = locks
                        .iter()
                        .map(|l| (l.range.first(), l.range.last(), l.exclusive))
                        .collect();
                    all.sort_unstable();
                    all
                };
                assert_eq!(sorted(server), sorted(&before), "{granted:?}");
            }
        }
    }

    #[test]
    fn a_close_ends_what_was_locked_through_it_alone() {
        let other = FileKey { index: 1, generation: 0 };
        let ofd = OwnerKey { kind: LockKind::Ofd, number: 2 };
        let mut locks = Locks::default();
        locks.granted(ID, FILE, &lock(0, 9, true));
        locks.granted(ID, FILE, &LockRequest { owner: ofd, ..lock(10, 19, true) });
        locks.closed(ID, FILE, false);
        let owners: Vec<_> = locks.files[&ID].held().map(|held| held.owner).collect();
        assert_eq!(owners, [OWNER], "a process keeps its locks while the file is open");
        locks.closed(ID, other, true);
        assert!(!locks.any(ID));
    }
}
