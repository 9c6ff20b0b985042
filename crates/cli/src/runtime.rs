//! Where servers leave word of themselves: `PID.json` in a runtime directory.

use std::fs;
use std::io;
use std::net::SocketAddr;
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
    /// When that process began, as the system counts: numbers of processes are used again.
    pub started: u64,
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
    /// Of this process.
    pub fn new(urls: &[String], admin: SocketAddr) -> Note {
        let pid = std::process::id();
        Note { pid, started: started(pid).unwrap_or(0), urls: urls.to_vec(), admin }
    }

    /// Leaves the note for `dafs status`.
    ///
    /// # Errors
    /// There is no directory for it.
    pub fn post(&self) -> io::Result<Posted> {
        let directory = own_directory();
        dafs_server::make_own_directory(&directory)?;
        remove_stale(&directory);
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
    entries.take(NOTES_MAX).filter_map(|entry| note(&entry.ok()?.path())).collect()
}

/// What the file says, if the server that wrote it is still there.
fn note(path: &Path) -> Option<Note> {
    let pid: u32 = path.file_stem()?.to_str()?.parse().ok()?;
    if path.extension()? != "json" || fs::metadata(path).ok()?.len() > NOTE_BYTES_MAX {
        return None;
    }
    let note: Note = serde_json::from_slice(&fs::read(path).ok()?).ok()?;
    let lives = note.pid == pid && started(pid) == Some(note.started);
    (lives && note.admin.ip().is_loopback()).then_some(note)
}

/// Removes notes of servers that had no time for it.
fn remove_stale(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.take(NOTES_MAX).flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "json") && note(&path).is_none() {
            let _ = fs::remove_file(path);
        }
    }
}

/// When a process began, in ticks since the machine did; `None`: it has ended, whether or not its
/// parent has asked how.
fn started(pid: u32) -> Option<u64> {
    started_by(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// As `/proc/PID/stat` says.
fn started_by(stat: &str) -> Option<u64> {
    // After the name, which is in parentheses and may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    if matches!(fields.next()?, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_ended_is_gone_before_its_parent_asks() {
        assert!(started(std::process::id()).is_some());
        let stat = |state| {
            format!("7 (a) Z (b) {state} 1 7 7 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 8125 0 0")
        };
        assert_eq!(started_by(&stat('S')), Some(8125));
        for ended in ['Z', 'X'] {
            assert_eq!(started_by(&stat(ended)), None);
        }
    }

    #[test]
    fn notes_of_processes_that_are_gone_are_not_believed() {
        let dir = std::env::temp_dir().join(format!("dafs-notes-{}", std::process::id()));
        fs::create_dir(&dir).expect("directory");
        let admin = SocketAddr::from(([127, 0, 0, 1], 1));
        let own = Note::new(&["dafs://127.0.0.1:1/".into()], admin);
        let reused = Note { started: own.started + 1, ..own.clone() };
        let file = dir.join(format!("{}.json", own.pid));
        fs::write(&file, serde_json::to_vec(&own).expect("JSON")).expect("written");
        assert_eq!(read(&dir), [own]);
        fs::write(&file, serde_json::to_vec(&reused).expect("JSON")).expect("written");
        assert_eq!(read(&dir), []);
        remove_stale(&dir);
        fs::remove_dir(&dir).expect("nothing is left in it");
    }
}
