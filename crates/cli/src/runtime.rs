//! Where servers leave word of themselves: `PID.json` in a runtime directory.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::sys;

/// Bytes of a note; more are not read.
const NOTE_BYTES_MAX: u64 = 64 << 10;
/// Notes looked at.
const NOTES_MAX: usize = 10_000;

/// A running server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Its process.
    pub pid: u32,
    /// What clients connect to.
    pub urls: Vec<String>,
    /// Where its counters are.
    pub admin: SocketAddr,
}

/// A note that is taken away when dropped.
#[derive(Debug)]
pub struct Posted {
    file: PathBuf,
}

impl Note {
    /// Leaves the note for `dafs status`.
    ///
    /// # Errors
    /// There is no directory for it.
    pub fn post(&self) -> io::Result<Posted> {
        let directory = own_directory();
        make_own(&directory)?;
        let file = directory.join(format!("{}.json", self.pid));
        let temporary = directory.join(format!("{}.tmp", self.pid));
        fs::write(&temporary, serde_json::to_vec(self)?)?;
        fs::rename(&temporary, &file)?;
        Ok(Posted { file })
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.file);
    }
}

/// Makes the directory, and makes sure that nobody else can put files into it.
fn make_own(directory: &Path) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let meta = fs::symlink_metadata(directory)?;
    if !meta.is_dir() || meta.uid() != sys::effective_uid() || meta.mode() & 0o022 != 0 {
        let text = format!("{} belongs to others", directory.display());
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    }
    Ok(())
}

fn own_directory() -> PathBuf {
    if sys::is_root() {
        return PathBuf::from("/run/dafs");
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir).join("dafs"),
        None => PathBuf::from(format!("/tmp/dafs-{}", sys::effective_uid())),
    }
}

/// The servers of this machine that this user can see, oldest note last.
pub fn servers() -> Vec<Note> {
    let mut directories = vec![PathBuf::from("/run/dafs"), own_directory()];
    directories.dedup();
    let mut notes: Vec<Note> = directories.iter().flat_map(|dir| read(dir)).collect();
    notes.sort_by_key(|note| note.pid);
    notes
}

fn read(directory: &Path) -> Vec<Note> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let note = |entry: io::Result<fs::DirEntry>| {
        let path = entry.ok()?.path();
        let pid: u32 = path.file_stem()?.to_str()?.parse().ok()?;
        let size = fs::metadata(&path).ok()?.len();
        if path.extension()? != "json" || size > NOTE_BYTES_MAX || !sys::process_exists(pid) {
            return None;
        }
        let note: Note = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        (note.pid == pid && note.admin.ip().is_loopback()).then_some(note)
    };
    entries.take(NOTES_MAX).filter_map(note).collect()
}
