//! From the results of a chain to the answer of a call, believing nothing.

use dafs_message::ConnId;
use dafs_protocol::{
    CachedRange, CommitLevel, DirEntry, FileExtent, Locked, OpResult, Outcome, Stability, StateId,
    Status, WriteVerifier,
};

use super::Core;
use super::call::{Beside, CallRecord, Flight, Made};
use super::chain;
use super::files::OpenFile;
use super::ids::FileKey;
use super::output::Advised;
use super::output::{Object, Opened, Output};
use super::replay_log::ReplayId;
use super::work::{Memory, Work};
use crate::error::{Error, Result};

/// An answer, or what is wrong with it.
type Parsed<T> = std::result::Result<T, Wrong>;

/// Why there is no answer.
enum Wrong {
    Status(Status),
    /// The peer's fault.
    Peer(&'static str),
}

impl From<Status> for Wrong {
    fn from(status: Status) -> Wrong {
        Wrong::Status(status)
    }
}

pub(super) const TOO_MANY_BYTES: &str = "more bytes than there is room for";
const UNEXPECTED: Wrong = Wrong::Peer("a result of another kind");

impl Core {
    /// The chain of a flight ran. Its slot is free again.
    pub(super) fn on_results(
        &mut self,
        conn: ConnId,
        mut flight: Flight,
        results: &[OpResult],
        data_len: u32,
    ) {
        if matches!(flight.call.work, Work::GiveBack { .. }) {
            return self.gave_back(flight.call, results);
        }
        if let (Work::Lend { .. }, [Ok(Outcome::Read { bytes, end_of_file })]) =
            (&flight.call.work, results)
        {
            return self.on_lent(conn, flight, (*bytes, *end_of_file), data_len);
        }
        if let (
            Work::Read { .. } | Work::ReadList { .. },
            [Ok(Outcome::Read { bytes, end_of_file })],
        ) = (&flight.call.work, results)
        {
            return self.on_read(conn, flight.call, (*bytes, *end_of_file), data_len);
        }
        if let (Work::References { .. }, [Ok(Outcome::References(info))]) =
            (&flight.call.work, results)
        {
            return self.on_references(conn, flight, info, data_len);
        }
        if let (Work::References { .. }, [Ok(Outcome::Named(reference))]) =
            (&flight.call.work, results)
        {
            return self.on_named_reference(flight, reference);
        }
        let own = flight.operations - flight.beside;
        let failed = results.iter().take(own).find_map(|result| result.as_ref().err().copied());
        if let Some(status) = failed {
            self.on_failed(flight, results, status);
            return;
        }
        let cut_beside = results.len() > own && results.last().is_some_and(Result::is_err);
        if results.len() != flight.operations && !cut_beside {
            return self.fault(conn, flight.call, "a wrong number of results");
        }
        let (outcomes, beside) = results.split_at(own);
        if flight.beside > 0 {
            self.found_beside(&mut flight, beside);
        }
        if let (Work::Remove { .. } | Work::Rename { .. }, Some(beside), Some(Ok(outcome))) =
            (&flight.call.work, &mut flight.call.beside, outcomes.last())
            && let Outcome::Attributes { attr } = outcome
        {
            beside.gone = Some(*attr);
        }
        if let Some(step) = flight.step {
            let Some(Ok(Outcome::Found { handle, .. })) = outcomes.first() else {
                return self.fault(conn, flight.call, "a result of another kind");
            };
            chain::step_found(&mut flight.call.work, step, *handle);
            self.requeue(flight.call);
            return;
        }
        if flight.call.work.is_internal() {
            self.on_internal(conn, flight.call, outcomes);
            return;
        }
        if let (Work::Lock { .. }, [Ok(Outcome::Lock(locked))]) = (&flight.call.work, outcomes) {
            return match locked {
                Locked::Granted => self.lock_granted(flight.call),
                Locked::Waiting(ticket) => self.lock_waits(flight.call, *ticket),
            };
        }
        match self.output(&mut flight, outcomes, data_len) {
            Ok(Some(output)) => self.finish(flight.call, Ok(output)),
            // The second part of a file that is put in two.
            Ok(None) => self.requeue(flight.call),
            Err(Wrong::Status(status)) => self.finish(flight.call, Err(status.into())),
            Err(Wrong::Peer(what)) => self.fault(conn, flight.call, what),
        }
    }

    /// A read ended well.
    #[inline]
    pub(super) fn on_read(
        &mut self,
        conn: ConnId,
        call: Box<CallRecord>,
        (bytes, end_of_file): (u32, bool),
        data_len: u32,
    ) {
        let room = call.work.reply_bytes().min(call.memory.len()).min(data_len as usize);
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= room => {
                self.finish(call, Ok(Output::Read { bytes, end_of_file }))
            }
            _ => self.fault(conn, call, TOO_MANY_BYTES),
        }
    }

    /// What the operations after the work's own found. One that failed ended the chain.
    fn found_beside(&mut self, flight: &mut Flight, results: &[OpResult]) {
        let mut beside = Beside { dirs: [None; 2], gone: None, flushed: Ok(()) };
        if let Some(file) = flight.call.work.file_to_flush() {
            beside.flushed = match results.first() {
                Some(Ok(Outcome::Committed { verifier })) => {
                    self.flushed_is_safe(file, flight.kept_writes, false);
                    let file = self.files.any_mut(file);
                    file.map_or(Ok(()), |file| file.flushed(*verifier, flight.writes))
                }
                result => {
                    self.flush_failed(file, flight.kept_writes);
                    Err(result
                        .and_then(|result| result.as_ref().err().copied())
                        .unwrap_or(Status::Io))
                }
            };
        } else {
            for (dir, result) in beside.dirs.iter_mut().zip(results) {
                if let Ok(Outcome::Attributes { attr }) = result {
                    *dir = Some(*attr);
                }
            }
        }
        flight.call.beside = Some(Box::new(beside));
    }

    /// The server answers what no server may: the call fails, the connection ends.
    pub(super) fn fault(&mut self, conn: ConnId, call: Box<CallRecord>, what: &str) {
        self.node.disconnect(conn, what);
        let root_or_file = call.work.is_internal();
        self.finish(call, Err(Error::PeerProtocol(what.into())));
        if root_or_file {
            self.fail_all(Error::PeerProtocol(what.into()));
        }
    }

    /// An operation of the chain failed; those after it did not run.
    fn on_failed(&mut self, flight: Flight, results: &[OpResult], status: Status) {
        let (call, kept_writes) = (flight.call, flight.kept_writes);
        if call.work.is_internal() {
            self.on_internal_failed(call, status);
            return;
        }
        match call.work {
            Work::Commit { file, offset: 0, len: 0, .. } | Work::Close { file } => {
                self.flush_failed(file, kept_writes);
            }
            // Copied, and then not flushed.
            Work::CopyRange { to, .. } | Work::CloneRange { to, .. } if results.len() > 1 => {
                self.flush_failed(to, kept_writes);
            }
            _ => {}
        }
        let opened = results.iter().find_map(|result| match result {
            Ok(Outcome::Opened { state, .. }) => Some(*state),
            _ => None,
        });
        let closed = results.iter().any(|result| matches!(result, Ok(Outcome::Closed { .. })));
        let chain_closes = matches!(call.work, Work::Get { .. } | Work::Put(_));
        if let (Some(state), true, false) = (opened, chain_closes, closed) {
            // The chain stopped before its own close.
            self.close_state(state);
        }
        if call.made.is_some() {
            return self.finish(call, Err(Made::lost(status).into()));
        }
        if status == Status::Again {
            self.lock_not_granted(&call.work);
        }
        let mut status = status;
        if let Work::Close { file } = call.work {
            // Closed in any case; the error is about what was written.
            if let Some(mut file) = self.remove_file(file)
                && file.take_lost().is_err()
            {
                status = Status::WritesLost;
            }
        }
        if let (Work::Put(put), true) = (&call.work, closed) {
            self.recovery.unsynced.saw_chain(results, put.commit);
        }
        self.finish(call, Err(status.into()));
    }

    /// From outcomes to an answer; `None`: the call goes on.
    #[expect(clippy::too_many_lines, reason = "a table of operations")]
    fn output(
        &mut self,
        flight: &mut Flight,
        outcomes: &[OpResult],
        data_len: u32,
    ) -> Parsed<Option<Output>> {
        let (writes, kept_writes) = (flight.writes, flight.kept_writes);
        let kept = flight.call.kept;
        let CallRecord { work, memory, .. } = &mut *flight.call;
        let room = work.reply_bytes().min(memory.len()).min(data_len as usize);
        let last = match (&*work, outcomes) {
            (
                Work::CopyRange { .. } | Work::CloneRange { .. },
                [Ok(copied), Ok(Outcome::Committed { .. })],
            ) => copied,
            (Work::CopyRange { .. } | Work::CloneRange { .. }, _) => return Err(UNEXPECTED),
            (_, [.., Ok(last)]) => last,
            _ => return Err(UNEXPECTED),
        };
        let made = flight.call.made;
        if made.is_some_and(|made| !made.is(last)) {
            self.close_opened(last);
            return Err(Status::Stale.into());
        }
        if kept.is_none() && self.files.keep_any() {
            self.note_replaced(&flight.call.work, outcomes, kept_writes);
        }
        let CallRecord { work, memory, user, beside, .. } = &mut *flight.call;
        Ok(Some(match work {
            Work::Put(put) => {
                self.recovery.unsynced.saw_chain(outcomes, put.commit);
                let closed = outcomes.iter().find_map(|outcome| match outcome {
                    Ok(Outcome::Closed { attr, .. }) => Some(*attr),
                    _ => None,
                });
                let attr = put.made.or(closed).ok_or(UNEXPECTED)?;
                if put.rename_to.is_some() && matches!(last, Outcome::Closed { .. }) {
                    put.made = Some(attr);
                    return Ok(None);
                }
                Output::Attr(attr)
            }
            Work::Get { .. } => match outcomes {
                [Ok(Outcome::Opened { attr, .. }), Ok(Outcome::Read { bytes, .. }), _] => {
                    Output::Got { attr: *attr, bytes: fit(*bytes, room)? }
                }
                _ => return Err(UNEXPECTED),
            },
            Work::Open { place, options } => match last {
                Outcome::Opened { handle, state, attr, created } => {
                    let node = Object { handle: *handle, attr: *attr };
                    let place = if options.unlinked {
                        super::Place::at(node.handle)
                    } else {
                        place.rewound()
                    };
                    let user = user.clone();
                    let file = OpenFile::new(place, *options, user, node, *state);
                    let created = made.map_or(*created, |made| made.created);
                    Output::File(self.opened(file)?, Opened { node, created })
                }
                _ => return Err(UNEXPECTED),
            },
            Work::Find { place } => {
                let (handle, attr) = match last {
                    Outcome::Found { handle, attr } => (*handle, *attr),
                    Outcome::Attributes { attr } => (place.base(self.session.root), *attr),
                    _ => return Err(UNEXPECTED),
                };
                Output::Object(Object { handle, attr })
            }
            Work::ReadDir { place, .. } => {
                let handle = match outcomes.first() {
                    Some(Ok(Outcome::Found { handle, .. })) => *handle,
                    _ => place.base(self.session.root),
                };
                let Outcome::Data { bytes, end } = *last else { return Err(UNEXPECTED) };
                let bytes = fit(bytes, room)?;
                Output::Entries { handle, entries: entries(memory, bytes)?, end }
            }
            Work::Extents { .. } => {
                let Outcome::Data { bytes, end } = *last else { return Err(UNEXPECTED) };
                Output::Extents { extents: extents(memory, fit(bytes, room)?)?, end }
            }
            Work::CacheQuery { .. } | Work::CacheQueryAt { .. } => {
                let Outcome::Cached(info) = *last else { return Err(UNEXPECTED) };
                let ranges = cached_ranges(memory, fit(info.bytes, room)?)?;
                Output::Cached { info, ranges }
            }
            Work::WriteFlush { file, offset, .. } => {
                let Outcome::Written { bytes, verifier, .. } = *last else {
                    return Err(UNEXPECTED);
                };
                let flushed = beside.as_ref().is_some_and(|beside| beside.flushed.is_ok());
                let (file, offset) = (*file, *offset);
                self.wrote_here(file, verifier, flushed);
                Output::Written { bytes: fit(bytes, work.request_bytes())?, offset }
            }
            _ if work.file().is_some() => {
                self.kept_is_safe(work, last, kept_writes);
                self.file_output(work, last, writes, kept)?
            }
            Work::Sync => {
                let Outcome::Committed { verifier } = last else { return Err(UNEXPECTED) };
                self.recovery.unsynced.synced(*verifier, writes)?;
                Output::Unit
            }
            _ => self.plain_output(work, memory, last, room)?,
        }))
    }

    fn close_state(&mut self, state: StateId) {
        self.requests.background += 1;
        self.requests.urgent.push_back(CallRecord::internal(Work::CloseState { state }));
    }

    fn close_opened(&mut self, outcome: &Outcome) {
        if let Outcome::Opened { state, .. } = outcome {
            self.close_state(*state);
        }
    }

    /// As if the server had answered so.
    pub(super) fn written(
        &mut self,
        work: &Work,
        outcome: &Outcome,
        kept: Option<ReplayId>,
    ) -> Option<Output> {
        self.file_output(work, outcome, 0, kept).ok()
    }

    fn opened(&mut self, file: OpenFile) -> std::result::Result<FileKey, Status> {
        if self.files.is_full() {
            self.close_state(file.state);
            return Err(Status::NFile);
        }
        Ok(self.files.insert(file))
    }

    fn file_output(
        &mut self,
        work: &Work,
        outcome: &Outcome,
        writes: u64,
        kept: Option<ReplayId>,
    ) -> Parsed<Output> {
        let key = work.file().ok_or(UNEXPECTED)?;
        Ok(match (work, outcome) {
            (
                Work::Write { .. } | Work::WriteList { .. } | Work::Append { .. },
                Outcome::Written { bytes, offset, stability, verifier },
            ) => {
                let bytes = fit(*bytes, work.request_bytes())?;
                let offset = match work {
                    Work::Write { offset, .. } => *offset,
                    _ => *offset,
                };
                if *stability == Stability::Unstable {
                    let keeps = kept.is_some_and(|id| self.acknowledge_kept(key, id, offset));
                    if let Some(file) = self.files.any_mut(key) {
                        match keeps {
                            true => file.wrote_kept(*verifier),
                            false => file.wrote(*verifier),
                        }
                    }
                    self.recovery.unsynced.wrote(*verifier, !keeps);
                }
                Output::Written { bytes, offset }
            }
            (Work::Commit { offset, len, level, .. }, Outcome::Committed { verifier }) => {
                if let Some(file) = self.files.any_mut(key) {
                    let all = (*offset, *len) == (0, 0);
                    match level {
                        CommitLevel::Flush if all => file.flushed(*verifier, writes)?,
                        _ if all => file.committed(*verifier, writes)?,
                        // Part of a file leaves the rest as it is.
                        _ => {
                            file.saw(*verifier);
                            file.take_lost()?;
                        }
                    }
                }
                Output::Unit
            }
            (Work::Close { .. }, Outcome::Closed { attr, verifier }) => {
                if let Some(mut file) = self.remove_file(key) {
                    file.saw(*verifier);
                    file.take_lost()?;
                }
                Output::Attr(*attr)
            }
            (
                Work::FileAttr { .. } | Work::FileSetAttr { .. } | Work::SetAttrOpen { .. },
                Outcome::Attributes { attr },
            ) => Output::Attr(*attr),
            (Work::Seek { .. }, Outcome::Offset { offset }) => Output::Offset(*offset),
            (Work::Fallocate { .. }, Outcome::Done) => Output::Unit,
            (Work::Advise { .. }, Outcome::Advised { bytes, cache }) => {
                Output::Advised(Advised { bytes: *bytes, cache: *cache })
            }
            (Work::LinkFile { .. }, Outcome::Found { handle, attr }) => {
                Output::Object(Object { handle: *handle, attr: *attr })
            }
            (Work::Unlock { owner, range, .. }, Outcome::Done) => {
                if let Some(file) = self.files.any(key) {
                    self.locks.released(file.id(), *owner, *range);
                }
                Output::Unit
            }
            (Work::LockTest { .. }, Outcome::Conflict { held }) => Output::Conflict(*held),
            (Work::CopyRange { len, .. }, Outcome::Copied { bytes }) => {
                if bytes > len {
                    return Err(Wrong::Peer("more bytes than were to be copied"));
                }
                self.wrote_to(work.target());
                Output::Copied { bytes: *bytes }
            }
            (Work::CloneRange { .. }, Outcome::Done) => {
                self.wrote_to(work.target());
                Output::Unit
            }
            _ => return Err(UNEXPECTED),
        })
    }

    /// The server flushes a file for all who have it open: what they wrote before is not written
    /// again, which could undo what this one wrote.
    fn kept_is_safe(&mut self, work: &Work, outcome: &Outcome, kept_writes: u64) {
        let on_disk = match (work, outcome) {
            (Work::Commit { offset: 0, len: 0, level, .. }, Outcome::Committed { .. }) => {
                *level != CommitLevel::Flush
            }
            (Work::Close { .. }, Outcome::Closed { .. }) => false,
            (Work::CopyRange { .. } | Work::CloneRange { .. }, _) => false,
            _ => return,
        };
        if let Some(key) = work.flushes() {
            self.flushed_is_safe(key, kept_writes, on_disk);
        }
    }

    pub(super) fn flushed_is_safe(&mut self, key: FileKey, kept_writes: u64, on_disk: bool) {
        self.files.keep_no_more(key, kept_writes, |file| file.keep_after(kept_writes, on_disk));
    }

    fn flush_failed(&mut self, key: FileKey, kept_writes: u64) {
        self.files.keep_no_more(key, kept_writes, |file| file.flush_failed(kept_writes));
    }

    /// The server wrote to a file by itself, and flushed it.
    fn wrote_to(&mut self, file: Option<FileKey>) {
        if let Some(file) = file {
            self.wrote_here(file, self.session.facts.verifier, true);
        }
    }

    /// A write that nobody keeps, `flushed` or in the server's memory alone.
    fn wrote_here(&mut self, file: FileKey, verifier: WriteVerifier, flushed: bool) {
        if let Some(file) = self.files.any_mut(file) {
            match flushed {
                true => file.wrote_and_flushed(verifier),
                false => file.wrote(verifier),
            }
        }
        self.recovery.unsynced.wrote(verifier, !flushed);
    }

    fn plain_output(
        &mut self,
        work: &Work,
        memory: &Memory,
        outcome: &Outcome,
        room: usize,
    ) -> Parsed<Output> {
        Ok(match (work, outcome) {
            (Work::Stat { .. } | Work::SetAttr { .. }, Outcome::Attributes { attr })
            | (Work::Stat { .. }, Outcome::Found { attr, .. }) => Output::Attr(*attr),
            (
                Work::Make { .. } | Work::Link { .. } | Work::Parent { .. },
                Outcome::Found { handle, attr },
            ) => Output::Object(Object { handle: *handle, attr: *attr }),
            (Work::Access { mask: asked, .. }, Outcome::Granted { mask }) => {
                Output::Access(*mask & *asked)
            }
            (Work::OwnerRelease { owner }, Outcome::Done) => {
                self.owner_released(*owner);
                Output::Unit
            }
            (Work::StatFs { .. }, Outcome::FileSystem { attr }) => Output::FileSystem(*attr),
            (Work::SyncDir { .. }, Outcome::Done) => Output::Unit,
            (Work::Stats, Outcome::Stats(stats)) => Output::Stats(stats.clone()),
            (Work::ReadLink { .. }, Outcome::Data { bytes, .. }) => {
                Output::Target(message(memory, fit(*bytes, room)?))
            }
            (
                Work::GetXattr { size_only: true, .. } | Work::ListXattr { size_only: true, .. },
                Outcome::Data { bytes, .. },
            ) => Output::Bytes { bytes: *bytes as usize, data: Vec::new() },
            (Work::GetXattr { .. } | Work::ListXattr { .. }, Outcome::Data { bytes, .. }) => {
                let bytes = fit(*bytes, room)?;
                Output::Bytes { bytes, data: message(memory, bytes) }
            }
            (
                Work::Null
                | Work::Remove { .. }
                | Work::Rename { .. }
                | Work::SetXattr { .. }
                | Work::RemoveXattr { .. },
                Outcome::Done,
            ) => Output::Unit,
            (Work::Remove { .. } | Work::Rename { .. }, Outcome::Attributes { .. }) => Output::Unit,
            _ => return Err(UNEXPECTED),
        })
    }

    /// An internal call that acts for whom the file was opened.
    pub(super) fn for_user_of(&self, file: FileKey, work: Work) -> Box<CallRecord> {
        let user = self.files.any(file).and_then(|file| file.user.clone());
        Box::new(CallRecord { user, ..*CallRecord::internal(work) })
    }

    /// A file is closed; its locks with it.
    pub(super) fn remove_file(&mut self, key: FileKey) -> Option<Box<OpenFile>> {
        let file = self.files.remove(key)?;
        let id = file.id();
        if self.locks.any(id) {
            self.locks.closed(id, key, !self.files.has(id));
        }
        Some(file)
    }
}

/// No more than there is room for.
fn fit(bytes: u32, room: usize) -> Parsed<usize> {
    match usize::try_from(bytes) {
        Ok(bytes) if bytes <= room => Ok(bytes),
        _ => Err(Wrong::Peer(TOO_MANY_BYTES)),
    }
}

/// Small data that is no payload: names, targets, attributes' values.
pub(super) fn message(memory: &Memory, bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    if let Memory::Buffer(buffer) = memory {
        buffer.span().read_message(bytes, &mut out);
    }
    out
}

fn extents(memory: &Memory, bytes: usize) -> Parsed<Vec<FileExtent>> {
    dafs_protocol::decode_file_extents(&message(memory, bytes))
        .map_err(|_| Wrong::Peer("extents that cannot be read"))
}

fn cached_ranges(memory: &Memory, bytes: usize) -> Parsed<Vec<CachedRange>> {
    dafs_protocol::decode_cached_ranges(&message(memory, bytes))
        .map_err(|_| Wrong::Peer("cached ranges that cannot be read"))
}

fn entries(memory: &Memory, bytes: usize) -> Parsed<Vec<DirEntry>> {
    let entries = dafs_protocol::decode_dir_entries(&message(memory, bytes))
        .map_err(|_| Wrong::Peer("directory entries that cannot be read"))?;
    // A name with a slash could lead a recursive copy anywhere.
    let bad = |entry: &DirEntry| {
        entry.name.is_empty() || entry.name.contains(&b'/') || entry.name.contains(&0)
    };
    if entries.iter().any(bad) {
        return Err(Wrong::Peer("a directory entry with a bad name"));
    }
    Ok(entries)
}
