//! Calls about locks. Owners are like processes: each has one call at a time, and takes, waits
//! for, gives up and gives back locks whatever the others do.

use dafs_client::core::{FileKey, Place, Work};
use dafs_client::{Error, OpenOptions, Output};
use dafs_protocol::{LockKind, LockRange, LockRequest, OwnerKey, Status};

use crate::calls::{Call, Kind};
use crate::checker::Answer;
use crate::lockers::{Door, LockOpen, Locker};
use crate::model::Span;
use crate::model::locks::{Asker, CELLS, Want};
use crate::plan::LOCK_FILES;
use crate::sim::Sim;

/// Bytes of a cell; the last one has no end.
const CELL_BYTES: u64 = 10;

fn place(file: usize) -> Place {
    Place::new(format!("locks/l{file}").as_bytes()).expect("a short name")
}

fn range(want: &Want) -> LockRange {
    let last = match want.last {
        last if want.whole || last + 1 == CELLS => u64::MAX,
        last => (last as u64 + 1) * CELL_BYTES - 1,
    };
    LockRange::new(want.first as u64 * CELL_BYTES, last).expect("in order")
}

impl Sim {
    /// One call about locks. False: the owner whose turn it is cannot do anything.
    pub(crate) fn lock_call(&mut self, client: usize) -> bool {
        let locker = self.rng.index(self.clients[client].lockers.len());
        let Locker { key, file, busy, .. } = self.clients[client].lockers[locker];
        let file = file.unwrap_or_else(|| self.rng.index(LOCK_FILES));
        if busy || !self.is_settled(client, locker) {
            return false;
        }
        let open = match self.clients[client].doors[file] {
            Door::Shut => return self.open_lock_file(client, file),
            Door::Moving => return false,
            Door::Open(open) if open.broken => return self.close_lock_file(client, file),
            Door::Open(open) => open,
        };
        let asker = Asker { who: self.clients[client].who, key };
        let has_any = self.locks.has_any(asker);
        match self.rng.below(100) {
            0..=9 => self.look_at_lock_file(client, file, open),
            10..=14 if has_any => self.release(client, locker),
            10..=49 if has_any => self.unlock(client, locker),
            50..=57 => self.test_lock(client, locker, file, open),
            58 | 59 => return self.close_lock_file(client, file),
            // See `lockers`.
            _ if has_any && key.kind == LockKind::Ofd => self.unlock(client, locker),
            _ => self.lock(client, locker, file, open),
        }
        true
    }

    /// Owners give up what they have when no more is asked for.
    pub(crate) fn release_idle_lockers(&mut self) {
        for client in 0..self.clients.len() {
            for locker in 0..self.clients[client].lockers.len() {
                let Locker { key, busy, .. } = self.clients[client].lockers[locker];
                let asker = Asker { who: self.clients[client].who, key };
                if !busy && self.is_settled(client, locker) && self.locks.has_any(asker) {
                    self.release(client, locker);
                }
            }
        }
    }

    /// Nothing that the owner gave up is on its way.
    fn is_settled(&mut self, client: usize, locker: usize) -> bool {
        let now = self.tick();
        let client = &mut self.clients[client];
        let locker = &mut client.lockers[locker];
        if locker.unsettled && !client.core.gives_back(locker.key) {
            locker.unsettled = false;
            self.locks.settled(Asker { who: client.who, key: locker.key }, now);
        }
        !locker.unsettled
    }

    fn open_lock_file(&mut self, client: usize, file: usize) -> bool {
        self.clients[client].doors[file] = Door::Moving;
        let options = OpenOptions { read: true, write: true, ..OpenOptions::default() };
        let call = self.call(client, Kind::LockOpen { file }, 0);
        self.clients[client].submit(call, Work::Open { place: place(file), options }, None);
        true
    }

    /// Closes a file of locks unless somebody waits for one of it.
    pub(crate) fn close_lock_file(&mut self, client: usize, file: usize) -> bool {
        let Door::Open(open) = self.clients[client].doors[file] else { return false };
        let unsettled = self.clients[client].lockers.iter().any(|locker| locker.unsettled);
        if unsettled || self.clients[client].calls.values().any(|call| call.kind.is_of_locks(file))
        {
            return false;
        }
        self.clients[client].doors[file] = Door::Moving;
        let call = self.call(client, Kind::LockClose { file }, 0);
        self.locks.lost(self.clients[client].who, file);
        self.clients[client].submit(call, Work::Close { file: open.key }, None);
        true
    }

    /// Looks at all open files of locks: who lost one is told.
    pub(crate) fn look_at_lock_files(&mut self) {
        for client in 0..self.clients.len() {
            for file in 0..LOCK_FILES {
                if let Door::Open(open) = self.clients[client].doors[file]
                    && !open.broken
                {
                    self.look_at_lock_file(client, file, open);
                }
            }
        }
    }

    fn look_at_lock_file(&mut self, client: usize, file: usize, open: LockOpen) {
        let call = self.call(client, Kind::LockLook { file }, 0);
        self.clients[client].submit(call, Work::FileAttr { file: open.key }, None);
    }

    /// A lock of a file, as an owner may want it.
    fn want(&mut self, owner: OwnerKey, file: usize) -> Want {
        let whole = owner.kind == LockKind::Whole;
        let exclusive = self.rng.below(3) > 0;
        let (a, b) = (self.rng.index(CELLS), self.rng.index(CELLS));
        let (first, last) = if whole { (0, 0) } else { (a.min(b), a.max(b)) };
        Want { file, whole, first, last, exclusive }
    }

    fn request(&self, client: usize, locker: usize, want: &Want) -> LockRequest {
        let owner = self.clients[client].lockers[locker].key;
        let pid = 100 + owner.number as u32;
        LockRequest { owner, range: range(want), exclusive: want.exclusive, pid }
    }

    fn lock(&mut self, client: usize, locker: usize, file: usize, open: LockOpen) {
        let key = self.clients[client].lockers[locker].key;
        let want = self.want(key, file);
        let wait = self.rng.below(5) > 0;
        if wait && self.is_wild {
            self.break_at_wait(client);
        }
        let lock = self.request(client, locker, &want);
        let call = self.call(client, Kind::Lock { locker, file, wait }, 0);
        let asker = Asker { who: self.clients[client].who, key };
        self.locks.ask(call.tag, asker, want, wait, (call.start, call.since));
        self.clients[client].lockers[locker].busy = true;
        self.clients[client].submit(call, Work::Lock { file: open.key, lock, wait }, None);
    }

    fn test_lock(&mut self, client: usize, locker: usize, file: usize, open: LockOpen) {
        let key = self.clients[client].lockers[locker].key;
        let want = self.want(key, file);
        let lock = self.request(client, locker, &want);
        let call = self.call(client, Kind::LockTest { locker, want }, 0);
        self.clients[client].lockers[locker].busy = true;
        self.clients[client].submit(call, Work::LockTest { file: open.key, lock }, None);
    }

    /// Mostly all that it has in a place.
    fn unlock(&mut self, client: usize, locker: usize) {
        let key = self.clients[client].lockers[locker].key;
        let asker = Asker { who: self.clients[client].who, key };
        let Some(held) = self.locks.first_of(asker) else { return };
        let Door::Open(open) = self.clients[client].doors[held.file] else { return };
        let all = held.whole || self.rng.below(5) > 0;
        let last = if held.whole { 0 } else { CELLS - 1 };
        let want = match all {
            true => Want { first: 0, last, ..held },
            false => self.want(key, held.file),
        };
        if all && self.locks.is_waited_for(asker, &want) {
            self.unlock_trap(client);
        }
        let call = self.call(client, Kind::Unlock { locker, want, all }, 0);
        self.locks.give_back(asker, &want);
        self.clients[client].lockers[locker].busy = true;
        let work = Work::Unlock { file: open.key, owner: key, range: range(&want) };
        self.clients[client].submit(call, work, None);
    }

    fn release(&mut self, client: usize, locker: usize) {
        let key = self.clients[client].lockers[locker].key;
        let call = self.call(client, Kind::Release { locker }, 0);
        self.locks.release(Asker { who: self.clients[client].who, key });
        self.clients[client].lockers[locker].busy = true;
        self.clients[client].submit(call, Work::OwnerRelease { owner: key }, None);
    }

    // --- answers ---

    pub(crate) fn lock_answered(
        &mut self,
        client: usize,
        call: &Call,
        answer: Answer,
        end: u64,
    ) -> Result<(), String> {
        if let Some(locker) = call.kind.locker() {
            self.clients[client].lockers[locker].busy = false;
        }
        let who = self.clients[client].who;
        let answer = match (&call.kind, answer) {
            (Kind::LockOpen { file }, answer) => {
                return self.lock_file_opened(client, call, *file, answer);
            }
            (Kind::LockClose { file }, answer) => {
                self.clients[client].doors[*file] = Door::Shut;
                self.locks.closed(who, *file, end);
                answer
            }
            (_, answer) => answer,
        };
        match answer {
            Ok(output) => self.lock_succeeded(client, call, output, end),
            Err(error) => self.lock_failed(client, call, &error, end),
        }
    }

    fn lock_file_opened(
        &mut self,
        client: usize,
        call: &Call,
        file: usize,
        answer: Answer,
    ) -> Result<(), String> {
        match answer {
            Ok(Output::File(key, _)) => {
                // The session may have been lost since it was asked for.
                let excused = self.clients[client].cut_off;
                let open = LockOpen { key, broken: false, excused };
                self.clients[client].doors[file] = Door::Open(open);
                Ok(())
            }
            Err(error) if self.is_excused(client, call, &error) => {
                self.clients[client].doors[file] = Door::Shut;
                self.report.excused += 1;
                self.without_server(client, &error);
                Ok(())
            }
            other => Err(format!("a file of locks was not opened: {other:?}")),
        }
    }

    fn lock_succeeded(
        &mut self,
        client: usize,
        call: &Call,
        output: Output<FileKey>,
        end: u64,
    ) -> Result<(), String> {
        let who = self.clients[client].who;
        let asker = |locker: usize| Asker { who, key: self.clients[client].lockers[locker].key };
        let span = Span { start: call.start, end };
        match (&call.kind, output) {
            (Kind::LockClose { .. }, Output::Attr(_)) => Ok(()),
            (Kind::LockLook { file }, Output::Attr(_)) => self.locks.worked(who, *file, call.start),
            (Kind::Lock { file, .. }, Output::Unit) => {
                self.locks.worked(who, *file, call.start)?;
                self.locks.granted(call.tag, end, call.sessions);
                Ok(())
            }
            (Kind::Unlock { locker, want, all }, Output::Unit) => {
                if *all {
                    self.locks.released(asker(*locker), Some(want), end);
                }
                self.locks.worked(who, want.file, call.start)
            }
            (Kind::Release { locker }, Output::Unit) => {
                self.locks.released(asker(*locker), None, end);
                Ok(())
            }
            (Kind::LockTest { locker, want }, Output::Conflict(found)) => {
                self.locks.worked(who, want.file, call.start)?;
                match found {
                    None => {
                        self.locks.seen_free(asker(*locker), want, span);
                        Ok(())
                    }
                    Some((held, _)) => self.locks.seen_held(asker(*locker), want, held.owner, span),
                }
            }
            (_, other) => Err(format!("an answer of another kind: {other:?}")),
        }
    }

    fn lock_failed(
        &mut self,
        client: usize,
        call: &Call,
        error: &Error,
        end: u64,
    ) -> Result<(), String> {
        let (who, file) = (self.clients[client].who, call.kind.lock_file());
        match (error.status(), &call.kind) {
            (Some(Status::Again), Kind::Lock { file, wait: false, .. }) => {
                self.locks.worked(who, *file, call.start)?;
                return self.locks.refused(call.tag, end);
            }
            (Some(Status::Deadlock), Kind::Lock { file, wait: true, .. }) => {
                self.report.deadlocks += 1;
                self.locks.worked(who, *file, call.start)?;
                return self.locks.deadlock(call.tag, end);
            }
            (Some(Status::Grace), Kind::LockTest { want, .. }) if self.restarted => {
                return self.locks.worked(who, want.file, call.start);
            }
            (Some(Status::LocksLost), _) => {
                let door = file.map(|file| self.clients[client].doors[file]);
                if !matches!(door, Some(Door::Open(LockOpen { excused: true, .. }))) {
                    return Err("locks are lost without a cause".into());
                }
            }
            _ if self.is_excused(client, call, error) => {}
            _ => return Err(format!("an error without a cause: {error} ({error:?})")),
        }
        self.report.excused += 1;
        if matches!(call.kind, Kind::Lock { .. }) {
            self.locks.failed(call.tag, end);
        }
        // Nothing can be done with it but to close it.
        if let Some(file) = file {
            self.locks.lost(who, file);
            if let Door::Open(open) = &mut self.clients[client].doors[file] {
                open.broken = true;
            }
        }
        Ok(())
    }

    /// The caller does not wait for its lock any more.
    pub(crate) fn lock_given_up(&mut self, client: usize, locker: usize, tag: u64) {
        self.locks.give_up(tag);
        let locker = &mut self.clients[client].lockers[locker];
        (locker.busy, locker.unsettled) = (false, true);
    }
}
