//! An end in order: the next server is told of it, and keeps the write verifier, so that no client is
//! told of losses that were none.
//!
//! The mark says that whatever was acknowledged under a verifier is safe, and that nobody serves under
//! it. So it is left last, when nobody can be answered any more, and is gone from the disk before the
//! next server answers anybody.

use std::fs::{File as StdFile, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dafs_protocol::{Status, WriteVerifier};
use dafs_store::File;

use crate::ended_sessions::EndedSessions;
use crate::exports::Exports;
use crate::planted::{Defect, planted};

/// Where a server leaves the mark for the next one of the same directories.
pub trait EndMark: Send + Sync {
    /// What the last server left. When this returns it is gone, also after a crash of the machine.
    ///
    /// # Errors
    /// It cannot be read, or may be there again later.
    fn take(&self) -> io::Result<Option<WriteVerifier>>;

    /// Leaves it: whole, or not at all.
    ///
    /// # Errors
    /// It is not there, or may be gone after a crash of the machine.
    fn leave(&self, verifier: WriteVerifier) -> io::Result<()>;
}

/// In memory that lives as long as its clones: over restarts within one process.
#[derive(Debug, Clone, Default)]
pub struct MemoryMark(Arc<Mutex<Option<WriteVerifier>>>);

impl EndMark for MemoryMark {
    fn take(&self) -> io::Result<Option<WriteVerifier>> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).take())
    }

    fn leave(&self, verifier: WriteVerifier) -> io::Result<()> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(verifier);
        Ok(())
    }
}

/// In a file of the state directory, which the records of clients beside it keep other servers from.
#[derive(Debug)]
pub(crate) struct FileMark {
    path: PathBuf,
}

const BEGIN: &str = "ended in order 1 ";

impl FileMark {
    pub(crate) fn new(path: PathBuf) -> FileMark {
        FileMark { path }
    }

    fn directory(&self) -> io::Result<StdFile> {
        StdFile::open(self.path.parent().unwrap_or(Path::new(".")))
    }
}

impl EndMark for FileMark {
    fn take(&self) -> io::Result<Option<WriteVerifier>> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            // What cannot be read, as where it is not text, is still removed.
            Err(_) => String::new(),
        };
        std::fs::remove_file(&self.path)?;
        self.directory()?.sync_all()?;
        Ok(parse(&text))
    }

    fn leave(&self, verifier: WriteVerifier) -> io::Result<()> {
        let new = self.path.with_extension("ended-new");
        let mut options = OpenOptions::new();
        let mut file = options.create(true).truncate(true).write(true).mode(0o600).open(&new)?;
        file.write_all(text_of(verifier).as_bytes())?; // not payload: 50 bytes
        file.sync_all()?;
        std::fs::rename(&new, &self.path)?;
        self.directory()?.sync_all()
    }
}

fn text_of(verifier: WriteVerifier) -> String {
    format!("{BEGIN}{:032x}\n", u128::from_be_bytes(verifier.0))
}

/// `None` for all that is not exactly what [`text_of`] writes.
fn parse(text: &str) -> Option<WriteVerifier> {
    let digits = text.strip_prefix(BEGIN)?.strip_suffix('\n')?;
    let verifier = WriteVerifier(u128::from_str_radix(digits, 16).ok()?.to_be_bytes());
    (text_of(verifier) == text).then_some(verifier)
}

/// The verifier of a server that starts: that of the last one, where it ended in order within this run
/// of the machine, otherwise `new`. To be asked before anybody is served.
pub fn first_verifier(mark: &dyn EndMark, new: WriteVerifier) -> WriteVerifier {
    match mark.take() {
        // In another run of the machine much else is not as it was: what was logged, for instance.
        Ok(kept) => {
            if planted(Defect::EndMarkStays) {
                let _ = kept.map(|kept| mark.leave(kept));
            }
            kept.filter(|kept| kept.same_machine_run(&new)).unwrap_or(new)
        }
        Err(error) => {
            tracing::warn!(%error, "whether the last server ended in order is not known");
            new
        }
    }
}

/// What an end must make safe before it leaves the mark.
#[derive(Default)]
pub(crate) struct CleanEnd {
    mark: Option<Box<dyn EndMark>>,
    /// Written by sessions that had them open when the server ended.
    unsynced: Mutex<Vec<Arc<dyn File>>>,
    /// Sessions ended before, without their clients, that had written.
    left: AtomicBool,
}

impl CleanEnd {
    pub(crate) fn new(mark: Option<Box<dyn EndMark>>) -> CleanEnd {
        CleanEnd { mark, ..CleanEnd::default() }
    }

    /// The end of the server has closed this file, which its session has written.
    pub(crate) fn closed(&self, file: &Arc<dyn File>) {
        if self.mark.is_some() {
            self.unsynced.lock().unwrap_or_else(PoisonError::into_inner).push(file.clone());
        }
    }

    /// A session that had written ended, and its client may be back and ask for a commit.
    pub(crate) fn left(&self) {
        self.left.store(true, Ordering::Relaxed);
    }

    /// Syncs what was written and leaves the mark, if it may. `written`: the cache never lost anything,
    /// and all of it is in the store. True: the mark is left.
    pub(crate) fn conclude(
        &self,
        exports: &Exports,
        ended: &EndedSessions,
        (verifier, written): (WriteVerifier, bool),
    ) -> bool {
        let unsynced =
            std::mem::take(&mut *self.unsynced.lock().unwrap_or_else(PoisonError::into_inner));
        let Some(mark) = &self.mark else { return false };
        let is_written = written && ended.all_is_written();
        if !is_written && !planted(Defect::VerifierKeptThoughUnwritten) {
            return false;
        }
        let synced = unsynced.iter().try_for_each(|file| file.sync(false).wait());
        let all_synced = || {
            let wanted = self.left.load(Ordering::Relaxed);
            let stores = exports.iter().filter(|export| wanted && !export.read_only);
            stores.map(|export| export.store.sync_fs()).try_for_each(dafs_store::Pending::wait)
        };
        let outcome: Result<(), Status> = synced.and_then(|()| all_synced());
        if let Err(status) = outcome {
            tracing::error!(%status, "what was written could not be synced");
            return planted(Defect::VerifierKeptThoughUnwritten) && mark.leave(verifier).is_ok();
        }
        mark.leave(verifier)
            .inspect_err(|error| tracing::warn!(%error, "an end in order cannot be noted"))
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use dafs_protocol::{CreateMode, Identity, OpenFlags, SessionId};
    use dafs_store::Store;
    use dafs_store::memory::{FaultKind, MemoryStore};

    use super::*;
    use crate::exports::Export;

    const VERIFIER: WriteVerifier =
        WriteVerifier([1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 0xab, 0, 0, 0, 0, 0xcd]);
    const NEW: WriteVerifier = WriteVerifier([1, 2, 3, 4, 5, 6, 7, 8, 1, 1, 1, 1, 1, 1, 1, 1]);
    const OTHER_RUN: WriteVerifier = WriteVerifier([9; 16]);

    fn mark_in(directory: &Path) -> FileMark {
        FileMark::new(directory.join("clients-0.ended"))
    }

    #[test]
    fn it_is_taken_once() {
        let directory = tempfile::tempdir().expect("tempdir");
        let marks: [Box<dyn EndMark>; 2] =
            [Box::new(mark_in(directory.path())), Box::new(MemoryMark::default())];
        for mark in marks {
            assert_eq!(mark.take().expect("none"), None);
            mark.leave(OTHER_RUN).expect("left");
            mark.leave(VERIFIER).expect("left again");
            assert_eq!(first_verifier(&*mark, NEW), VERIFIER);
            assert_eq!(first_verifier(&*mark, NEW), NEW, "it is gone");
        }
    }

    #[test]
    fn another_run_of_the_machine_has_another_verifier() {
        let mark = MemoryMark::default();
        mark.leave(VERIFIER).expect("left");
        assert_eq!(first_verifier(&mark, OTHER_RUN), OTHER_RUN);
        assert_eq!(first_verifier(&mark, NEW), NEW, "nor has a later one the old one");
    }

    #[test]
    fn what_is_not_whole_is_no_mark_and_goes() {
        let text = text_of(VERIFIER);
        assert_eq!(parse(&text), Some(VERIFIER));
        let directory = tempfile::tempdir().expect("tempdir");
        let mark = mark_in(directory.path());
        let cut = (0..text.len()).map(|at| text.as_bytes()[..at].to_vec());
        let odd = [text.replace("ab", "AB"), text.replace("01", "+1"), text.clone() + "\n"];
        let odd = odd.into_iter().map(String::into_bytes).chain([vec![0xff; 50], vec![0; 50]]);
        for bytes in cut.chain(odd) {
            std::fs::write(&mark.path, &bytes).expect("written");
            assert_eq!(mark.take().expect("removed"), None, "{bytes:?}");
            assert!(!mark.path.exists());
        }
    }

    #[test]
    fn what_is_not_on_disk_leaves_no_mark() {
        let store = MemoryStore::new();
        let who = Arc::new(Identity::root());
        let root = store.root(&who).wait().expect("root").handle;
        let flags = OpenFlags {
            read: false,
            write: true,
            create: CreateMode::Exclusive,
            truncate: false,
            append: false,
            no_follow: false,
            unlinked: false,
            again: false,
        };
        let opened = store.open(&who, &root, b"file", flags, 0o644).wait().expect("opened");
        let exports = Exports::new(vec![Export {
            name: String::new(),
            store: Arc::new(store.clone()),
            read_only: false,
            policy: crate::Policy::default(),
            data_path: crate::DataPath::Unifier,
            path: "memory".into(),
            domain: dafs_unifier::DomainId::FIRST,
            share_cache: false,
            optimistic: Default::default(),
        }]);
        let (lost, flushing) = (EndedSessions::default(), EndedSessions::default());
        let session = SessionId([1; 16]);
        lost.flushing(session);
        lost.lost(session);
        flushing.flushing(session);
        let unflushed = EndedSessions::default();
        unflushed.add_unflushed(1);
        let well = EndedSessions::default();
        well.flushing(session);
        well.forget(session);
        // What ended how, whether the cache had lost anything, whether a sync fails of the file, or of all.
        let cases = [
            (&well, true, false, false),
            (&well, false, false, false),
            (&lost, true, false, false),
            (&flushing, true, false, false),
            (&unflushed, true, false, false),
            (&well, true, true, false),
            (&well, true, false, true),
        ];
        for (number, (ended, written, of_file, of_all)) in cases.into_iter().enumerate() {
            let mark = MemoryMark::default();
            let end = CleanEnd::new(Some(Box::new(mark.clone())));
            if !of_all {
                end.closed(&opened.file);
            }
            if of_all {
                end.left();
            }
            if of_file || of_all {
                store.inject(FaultKind::Sync, 0, 1, Status::Io);
            }
            let left = end.conclude(&exports, ended, (VERIFIER, written));
            store.clear_faults();
            assert_eq!(left, number == 0, "case {number}");
            assert_eq!(mark.take().expect("memory"), (number == 0).then_some(VERIFIER));
        }
    }

    /// A server that ended while it left one has left none.
    #[test]
    fn one_that_was_not_renamed_is_no_mark() {
        let directory = tempfile::tempdir().expect("tempdir");
        let mark = mark_in(directory.path());
        mark.leave(VERIFIER).expect("left");
        std::fs::rename(&mark.path, mark.path.with_extension("ended-new")).expect("renamed");
        assert_eq!(first_verifier(&mark, NEW), NEW);
    }

    #[test]
    fn one_that_cannot_be_removed_is_not_believed() {
        let directory = tempfile::tempdir().expect("tempdir");
        let mark = mark_in(directory.path());
        // Not even root can unlink this.
        std::fs::create_dir(&mark.path).expect("made");
        mark.take().expect_err("not removed");
        assert_eq!(first_verifier(&mark, NEW), NEW);
        mark.leave(VERIFIER).expect_err("nor is one left there");
    }
}
