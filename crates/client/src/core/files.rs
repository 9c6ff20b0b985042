//! The files that are open, and what is not yet safe of each.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use dafs_protocol::{Attr, FileHandle, Identity, StateId, Status, WriteVerifier};

use super::call::CallRecord;
use super::ids::{FileId, FileKey, Owner};
use super::named::Named;
use super::open_options::OpenOptions;
use super::opens::Opens;
use super::output::Object;
use super::place::Place;
use super::replay_log::ReplayLog;
use crate::planted::{Defect, planted};

/// Says where a file is at the moment: a path from the root.
pub(super) struct Finder(Box<dyn Fn() -> Option<Vec<u8>> + Send + Sync>);

impl Finder {
    pub(super) fn new(find: impl Fn() -> Option<Vec<u8>> + Send + Sync + 'static) -> Finder {
        Finder(Box::new(find))
    }
}

impl std::fmt::Debug for Finder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Finder")
    }
}

/// Files open at a time.
const FILES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct OpenFile {
    /// From the root, for opening it again where its handle is no longer known.
    pub(super) place: Place,
    /// Who knows a better one, then.
    finder: Option<Finder>,
    pub(super) options: OpenOptions,
    /// Who opened it; `None`: the session's own user. Its calls act for them.
    pub(super) user: Option<Arc<Identity>>,
    /// For whom its data is changed; `None`: who opened it.
    writer: Option<Arc<Identity>>,
    pub(super) handle: FileHandle,
    /// Of this session.
    pub(super) state: StateId,
    /// When it was opened.
    pub(super) attr: Attr,
    /// It could not be opened again.
    pub(super) broken: Option<Status>,
    /// Under which verifier writes were acknowledged that no commit covers.
    uncommitted: Option<WriteVerifier>,
    /// Writes acknowledged so far: a commit covers those before it was sent.
    writes: u64,
    /// Some of them are in the server's memory alone: neither flushed nor kept here.
    in_memory_only: bool,
    /// Some are not on its disk, and not kept here.
    not_on_disk: bool,
    /// Writes that are done again where the server's process ends.
    pub(super) kept: ReplayLog,
    /// Such writes went down with a server, and nobody was told yet.
    lost: bool,
    /// By what it is read without requests.
    pub(super) named: Named,
    /// Calls that name it.
    in_flight: u32,
    /// No new calls.
    closing: bool,
    /// To be sent when no other call is under way.
    close: Option<Box<CallRecord>>,
}

impl OpenFile {
    pub(super) fn new(
        place: Place,
        options: OpenOptions,
        user: Option<Arc<Identity>>,
        node: Object,
        state: StateId,
    ) -> OpenFile {
        OpenFile {
            place,
            finder: None,
            options,
            user,
            writer: None,
            handle: node.handle,
            state,
            attr: node.attr,
            broken: None,
            uncommitted: None,
            in_memory_only: false,
            not_on_disk: false,
            kept: ReplayLog::default(),
            writes: 0,
            lost: false,
            named: Named::new(),
            in_flight: 0,
            closing: false,
            close: None,
        }
    }

    /// Which file it is, while it is open.
    pub(super) fn id(&self) -> FileId {
        (self.attr.device, self.attr.inode)
    }

    pub(super) fn written_for(&mut self, user: Arc<Identity>) {
        self.writer = Some(user);
    }

    /// For whom its data is changed.
    pub(super) fn writer(&self) -> Option<Arc<Identity>> {
        self.writer.clone().or_else(|| self.user.clone())
    }

    pub(super) fn found_by(&mut self, finder: Finder) {
        self.finder = Some(finder);
    }

    /// Its handle is not known any more.
    pub(super) fn look_for_place(&mut self) {
        let path = self.finder.as_ref().and_then(|finder| (finder.0)());
        if let Some(place) = path.and_then(|path| Place::new(&path).ok()) {
            self.place = place;
        }
    }

    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    /// A write was acknowledged that is only in the server's memory.
    pub(super) fn wrote(&mut self, verifier: WriteVerifier) {
        self.wrote_kept(verifier);
        self.in_memory_only = true;
        self.not_on_disk = true;
    }

    /// As `wrote`, of a write that is kept here.
    pub(super) fn wrote_kept(&mut self, verifier: WriteVerifier) {
        self.saw(verifier);
        self.uncommitted = Some(verifier);
        self.writes += 1;
    }

    /// As `wrote`, of what is in the server's file system already.
    pub(super) fn wrote_and_flushed(&mut self, verifier: WriteVerifier) {
        self.wrote_kept(verifier);
        self.not_on_disk = true;
    }

    /// The server showed its verifier: what was written under another is lost.
    pub(super) fn saw(&mut self, verifier: WriteVerifier) {
        let Some(old) = self.uncommitted.filter(|old| *old != verifier) else { return };
        let at_risk =
            if old.same_machine_run(&verifier) { self.in_memory_only } else { self.not_on_disk };
        if at_risk {
            self.lost = !planted(Defect::LostWritesForgotten);
            self.in_memory_only = false;
            self.not_on_disk = false;
        }
        // What is kept is written again, what was flushed stays to be committed.
        let rest = self.not_on_disk || !self.kept.is_empty();
        self.uncommitted = rest.then_some(verifier);
    }

    /// What no commit covers is lost.
    pub(super) fn lose(&mut self) {
        self.lost |= self.uncommitted.take().is_some();
        self.in_memory_only = false;
        self.not_on_disk = false;
        self.kept.clear();
    }

    /// It could not be opened again, so nothing is written again through it. The number of its
    /// inode may soon be another file's, and what becomes of that one is no loss of this. True:
    /// something was kept that was acknowledged.
    pub(super) fn end(&mut self, status: Status) -> bool {
        let any = !self.kept.is_empty() && self.uncommitted.is_some();
        self.broken = Some(status);
        self.kept.clear();
        any
    }

    /// As `lose`, if anything is kept. True: that was acknowledged.
    pub(super) fn lose_kept(&mut self) -> bool {
        let any = !self.kept.is_empty() && self.uncommitted.is_some();
        if !self.kept.is_empty() {
            self.lose();
        }
        any
    }

    /// Some of what was kept is so no more, and not safe: it may be gone, or is so already.
    pub(super) fn keeps_less(&mut self, gone: bool) {
        self.in_memory_only = true;
        self.not_on_disk = true;
        self.lost |= gone;
    }

    /// Kept writes up to the so-manieth of the session are in the server's file system, or even
    /// on its disk.
    pub(super) fn keep_after(&mut self, kept_writes: u64, on_disk: bool) {
        let some = self.kept.safe(kept_writes);
        self.not_on_disk |= some && !on_disk;
    }

    /// A flush succeeded that was sent when `writes` were acknowledged.
    ///
    /// # Errors
    /// [`Status::WritesLost`], once.
    pub(super) fn flushed(&mut self, verifier: WriteVerifier, writes: u64) -> Result<(), Status> {
        self.saw(verifier);
        if self.writes == writes {
            self.in_memory_only = false;
        }
        self.take_lost()
    }

    /// A flush or commit of the file failed, through this open or another, and its caller learns
    /// of it: kept writes up to the so-manieth of the session, which it did not make safe, are kept
    /// no longer. Some may be stored all the same, and older ones must not be written over them.
    pub(super) fn flush_failed(&mut self, kept_writes: u64) {
        if self.kept.safe(kept_writes) {
            self.keeps_less(false);
        }
    }

    /// A commit succeeded that was sent when `writes` were acknowledged.
    ///
    /// # Errors
    /// [`Status::WritesLost`], once.
    pub(super) fn committed(&mut self, verifier: WriteVerifier, writes: u64) -> Result<(), Status> {
        self.saw(verifier);
        if self.writes == writes || planted(Defect::CommitCoversLaterWrites) {
            self.uncommitted = None;
            self.in_memory_only = false;
            self.not_on_disk = false;
        }
        self.take_lost()
    }

    pub(super) fn take_lost(&mut self) -> Result<(), Status> {
        if std::mem::take(&mut self.lost) { Err(Status::WritesLost) } else { Ok(()) }
    }
}

#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    file: Option<Box<OpenFile>>,
}

/// A table with generations, so that keys of closed files are recognized.
#[derive(Debug, Default)]
pub(super) struct Files {
    entries: Vec<Entry>,
    free: Vec<u32>,
    pub(super) of_file: HashMap<FileId, Opens>,
    /// Bytes of memory of all kept writes.
    pub(super) kept_memory: Arc<AtomicUsize>,
}

impl Files {
    pub(super) fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() >= FILES_MAX
    }

    pub(super) fn insert(&mut self, mut file: OpenFile) -> FileKey {
        file.kept.count_in(&self.kept_memory);
        let id = file.id();
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry::default());
            u32::try_from(self.entries.len() - 1).expect("FILES_MAX fits")
        });
        let entry = self.entries.get_mut(index as usize).expect("just made or freed");
        entry.file = Some(Box::new(file));
        let key = FileKey { index, generation: entry.generation };
        self.of_file.entry(id).or_default().keys.push(key);
        key
    }

    pub(super) fn remove(&mut self, key: FileKey) -> Option<Box<OpenFile>> {
        let entry = self.entries.get_mut(key.index as usize)?;
        if entry.generation != key.generation {
            return None;
        }
        let file = entry.file.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(key.index);
        if let Some(opens) = self.of_file.get_mut(&file.id()) {
            opens.keys.retain(|other| *other != key);
            if opens.keys.is_empty() {
                self.of_file.remove(&file.id());
            }
        }
        Some(file)
    }

    /// All opens of a file.
    pub(super) fn opens_of(&self, id: FileId) -> &[FileKey] {
        self.of_file.get(&id).map_or(&[], |opens| &opens.keys)
    }

    /// All opens of the file that `key` is one of.
    pub(super) fn for_opens_of(&mut self, key: FileKey, each: impl FnMut(&mut OpenFile)) {
        if let Some(id) = self.any(key).map(OpenFile::id) {
            self.for_opens(id, each);
        }
    }

    /// All opens of a file.
    pub(super) fn for_opens(&mut self, id: FileId, mut each: impl FnMut(&mut OpenFile)) {
        for index in 0..self.opens_of(id).len() {
            let file = self.opens_of(id).get(index).copied().and_then(|key| self.any_mut(key));
            file.into_iter().for_each(&mut each);
        }
    }

    #[inline]
    pub(super) fn any(&self, key: FileKey) -> Option<&OpenFile> {
        let entry = self.entries.get(key.index as usize)?;
        entry.file.as_deref().filter(|_| entry.generation == key.generation)
    }

    #[inline]
    pub(super) fn any_mut(&mut self, key: FileKey) -> Option<&mut OpenFile> {
        let entry = self.entries.get_mut(key.index as usize)?;
        entry.file.as_deref_mut().filter(|_| entry.generation == key.generation)
    }

    /// For a request.
    pub(super) fn usable(&self, key: FileKey) -> Result<&OpenFile, Status> {
        let file = self.any(key).ok_or(Status::BadF)?;
        file.broken.map_or(Ok(file), Err)
    }

    /// For a close, which is the way out after locks were lost.
    pub(super) fn closable(&self, key: FileKey) -> Result<&OpenFile, Status> {
        let file = self.any(key).ok_or(Status::BadF)?;
        file.broken.filter(|status| *status != Status::LocksLost).map_or(Ok(file), Err)
    }

    /// The file is open here.
    pub(super) fn has(&self, id: FileId) -> bool {
        self.of_file.contains_key(&id)
    }

    pub(super) fn keys(&self) -> Vec<FileKey> {
        let open = self.entries.iter().enumerate().filter(|(_, entry)| entry.file.is_some());
        open.map(|(index, entry)| FileKey {
            index: u32::try_from(index).expect("FILES_MAX fits"),
            generation: entry.generation,
        })
        .collect()
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut OpenFile> {
        self.entries.iter_mut().filter_map(|entry| entry.file.as_deref_mut())
    }

    /// A call on a file begins. Answers for whom it acts.
    ///
    /// # Errors
    /// [`Status::BadF`] for a file that is closed or being closed.
    pub(super) fn begin(&mut self, key: FileKey) -> Result<Option<Arc<Identity>>, Status> {
        let file = self.any_mut(key).filter(|file| !file.closing).ok_or(Status::BadF)?;
        file.in_flight += 1;
        Ok(file.user.clone())
    }

    /// As [`begin`](Self::begin), for a request that can be made at once, of a file that the session's own user has
    /// opened: its state.
    #[inline(always)]
    pub(super) fn begin_own(&mut self, key: FileKey) -> Option<StateId> {
        let file = self.any_mut(key)?;
        let may = !file.closing && file.user.is_none() && file.broken.is_none();
        may.then(|| {
            file.in_flight += 1;
            file.state
        })
    }

    /// A call on a file ended. The close that waited for it, if it was the last.
    pub(super) fn end(&mut self, key: FileKey) -> Option<Box<CallRecord>> {
        let file = self.any_mut(key)?;
        file.in_flight = file.in_flight.saturating_sub(1);
        if file.in_flight == 0 { file.close.take() } else { None }
    }

    /// A close begins: at once (the record comes back), or after the calls under way.
    ///
    /// # Errors
    /// The record, when the file is closed or being closed.
    pub(super) fn begin_close(
        &mut self,
        key: FileKey,
        close: Box<CallRecord>,
    ) -> Result<Option<Box<CallRecord>>, Box<CallRecord>> {
        let Some(file) = self.any_mut(key).filter(|file| !file.closing) else {
            return Err(close);
        };
        file.closing = true;
        if file.in_flight == 0 {
            return Ok(Some(close));
        }
        file.close = Some(close);
        Ok(None)
    }

    /// Closes that wait have no owner any more.
    pub(super) fn disown(&mut self, owner: Owner, background: &mut usize) {
        let closes = self.iter_mut().filter_map(|file| file.close.as_deref_mut());
        for close in closes.filter(|close| close.owner == Some(owner)) {
            close.owner = None;
            *background += 1;
        }
    }

    pub(super) fn is_closing(&self, key: FileKey) -> bool {
        self.any(key).is_none_or(|file| file.closing)
    }
}

#[cfg(test)]
mod tests {
    use super::super::replay_log::{Acknowledged, ReplayId};
    use super::*;
    use dafs_protocol::{FileKind, Timestamp};

    fn file() -> OpenFile {
        let time = Timestamp::default();
        let attr = Attr {
            kind: FileKind::File,
            mode: 0,
            links: 1,
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            inode: 1,
            device: 1,
            number: 0,
            rdev: 0,
            block_size: 4096,
            change: 0,
            accessed: time,
            modified: time,
            changed: time,
            created: None,
        };
        let place = Place::new(b"f").expect("place");
        let node = Object { handle: FileHandle::default(), attr };
        OpenFile::new(place, OpenOptions::write(), None, node, StateId(1))
    }

    const OLD: WriteVerifier = WriteVerifier([1; 16]);
    const NEW: WriteVerifier = WriteVerifier([2; 16]);

    #[test]
    fn a_changed_verifier_is_told_once() {
        let mut file = file();
        file.wrote(OLD);
        assert_eq!(file.committed(NEW, 1), Err(Status::WritesLost));
        assert_eq!(file.committed(NEW, 1), Ok(()));
    }

    const SAME_MACHINE: WriteVerifier =
        WriteVerifier([1, 1, 1, 1, 1, 1, 1, 1, 9, 9, 9, 9, 9, 9, 9, 9]);

    #[test]
    fn what_was_flushed_survives_the_process_but_not_the_machine() {
        let mut file = file();
        file.wrote(OLD);
        assert_eq!(file.flushed(OLD, 1), Ok(()));
        file.saw(SAME_MACHINE);
        assert_eq!(file.take_lost(), Ok(()));
        file.saw(NEW);
        assert_eq!(file.take_lost(), Err(Status::WritesLost));
    }

    #[test]
    fn kept_writes_are_not_lost_until_they_are_flushed() {
        let mut file = file();
        for (id, verifier) in [(1, OLD), (2, SAME_MACHINE), (3, NEW)] {
            file.kept.add(ReplayId(id), vec![7]);
            file.wrote_kept(verifier);
            let (number, together_from) = (file.writes(), 1);
            file.kept.acknowledge(ReplayId(id), Acknowledged { number, offset: 0, together_from });
            assert_eq!(file.take_lost(), Ok(()));
        }
        file.keep_after(2, false);
        assert_eq!(file.flushed(NEW, 2), Ok(()));
        assert_eq!(file.kept.acknowledged().next(), Some((3, 0..1)));
        file.saw(OLD);
        assert_eq!(file.take_lost(), Err(Status::WritesLost), "two were flushed and not committed");
        file.kept.add(ReplayId(4), vec![7]);
        file.wrote(OLD);
        file.saw(SAME_MACHINE);
        assert_eq!(file.take_lost(), Err(Status::WritesLost), "one was not kept");
    }

    #[test]
    fn a_commit_makes_kept_writes_safe() {
        let mut file = file();
        file.kept.add(ReplayId(1), vec![7]);
        file.wrote_kept(OLD);
        let answer = Acknowledged { number: 1, offset: 0, together_from: 1 };
        file.kept.acknowledge(ReplayId(1), answer);
        file.keep_after(1, true);
        assert_eq!(file.committed(OLD, 1), Ok(()));
        assert!(file.kept.is_empty());
        file.saw(NEW);
        assert_eq!(file.take_lost(), Ok(()));
    }

    #[test]
    fn committed_writes_are_not_lost() {
        let mut file = file();
        file.wrote(OLD);
        assert_eq!(file.committed(OLD, 1), Ok(()));
        assert_eq!(file.committed(NEW, 1), Ok(()));
    }

    #[test]
    fn a_write_after_the_commit_was_sent_is_not_covered() {
        let mut file = file();
        file.wrote(OLD);
        let sent = file.writes();
        file.wrote(OLD);
        assert_eq!(file.committed(OLD, sent), Ok(()));
        file.saw(NEW);
        assert_eq!(file.take_lost(), Err(Status::WritesLost));
    }

    #[test]
    fn a_write_to_the_new_server_does_not_hide_the_loss() {
        let mut file = file();
        file.wrote(OLD);
        file.wrote(NEW);
        assert_eq!(file.committed(NEW, 2), Err(Status::WritesLost));
    }

    #[test]
    fn old_keys_are_recognized() {
        let mut files = Files::default();
        let key = files.insert(file());
        assert!(files.remove(key).is_some());
        let again = files.insert(file());
        assert_eq!(key.index, again.index);
        assert!(files.any(key).is_none() && files.any(again).is_some());
        assert!(files.remove(key).is_none());
    }
}
