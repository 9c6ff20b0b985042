//! A file that says which clients may have locks.
//!
//! One client a line: 32 digits of its id, a blank, its uid; the last line is a checksum of those
//! before it. A change replaces the file. A lock on a file beside it keeps a second server of the
//! same directories away.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use dafs_protocol::ClientId;
use dafs_store::{Completer, Pending, pending};
use nix::fcntl::{Flock, FlockArg};
use sha2::{Digest, Sha256};

use crate::clean_end::FileMark;
use crate::clients::ClientRecords;
use crate::intent_log::LogFile;
use crate::locks::Client;

/// Records in a file of a state directory. A thread of its own writes.
#[derive(Debug)]
pub(crate) struct FileRecords {
    path: PathBuf,
    jobs: Sender<Job>,
    _lock: Flock<File>,
}

type Job = (String, Completer<io::Result<()>>);

/// Stands for records that cannot be kept.
#[derive(Debug)]
pub(crate) struct NoRecords(pub String);

impl ClientRecords for NoRecords {
    fn load(&self) -> io::Result<BTreeSet<Client>> {
        Err(io::Error::other(self.0.clone()))
    }
    fn save(&self, _: &BTreeSet<Client>) -> Pending<io::Result<()>> {
        Pending::ready(Ok(()))
    }
}

impl FileRecords {
    /// In `directory`, which is made; for a server of the directories `served`.
    ///
    /// # Errors
    /// The directory cannot be used, or another server of the same directories runs.
    pub(crate) fn open<'a>(
        directory: &Path,
        served: impl Iterator<Item = &'a Path>,
    ) -> io::Result<FileRecords> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let mut hash = Sha256::new();
        for path in served {
            let path = path.canonicalize()?;
            hash.update(path.as_os_str().as_encoded_bytes());
            hash.update([0]);
        }
        let name = format!("clients-{}", digits(hash.finalize().get(..8).unwrap_or_default()));
        let lock = directory.join(format!("{name}.lock"));
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(lock)?;
        let lock = Flock::lock(lock, FlockArg::LockExclusiveNonblock)
            .map_err(|_| io::Error::other("another server of the same directories runs"))?;
        let path = directory.join(name);
        let (jobs, work) = channel();
        let (target, directory) = (path.clone(), directory.to_owned());
        let run = move || write_jobs(&target, &directory, &work);
        std::thread::Builder::new().name("dafs-records".into()).spawn(run)?;
        Ok(FileRecords { path, jobs, _lock: lock })
    }

    /// What became of changes, in a file beside this one. Only while this one is locked.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn intent_log(&self) -> io::Result<LogFile> {
        LogFile::open(&self.path.with_extension("notes"))
    }
}

impl FileRecords {
    /// Whether the last server ended in order, in a file beside this one. Only while this one is locked.
    pub(crate) fn end_mark(&self) -> FileMark {
        FileMark::new(self.path.with_extension("ended"))
    }

    /// Numbers of objects, in a file beside this one. Only while this one is locked.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn numbers(&self) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        options.open(self.path.with_extension("numbers"))
    }
}

impl ClientRecords for FileRecords {
    fn load(&self) -> io::Result<BTreeSet<Client>> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) => parse(&text).ok_or_else(|| {
                let text = format!("{}: damaged", self.path.display());
                io::Error::new(io::ErrorKind::InvalidData, text)
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(error),
        }
    }

    fn save(&self, clients: &BTreeSet<Client>) -> Pending<io::Result<()>> {
        let (completer, saved) = pending();
        if let Err(lost) = self.jobs.send((text_of(clients), completer)) {
            lost.0.1.complete(Err(io::Error::other("the thread that records clients has ended")));
        }
        saved
    }
}

/// What came while one was written is written together: the last says all.
fn write_jobs(path: &Path, directory: &Path, jobs: &Receiver<Job>) {
    while let Ok((mut text, first)) = jobs.recv() {
        let mut waiting = vec![first];
        for (newer, completer) in jobs.try_iter() {
            text = newer;
            waiting.push(completer);
        }
        let result = replace(path, directory, &text);
        for completer in waiting {
            completer.complete(match &result {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            });
        }
    }
}

fn replace(path: &Path, directory: &Path, text: &str) -> io::Result<()> {
    let new = path.with_extension("new");
    let mut file =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?; // not payload: names of clients
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    File::open(directory)?.sync_all()
}

/// In hexadecimal.
pub(crate) fn digits(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn text_of(clients: &BTreeSet<Client>) -> String {
    let mut text = String::new();
    for client in clients {
        let _ = writeln!(text, "{} {}", digits(&client.id.0), client.uid);
    }
    let sum = digits(&Sha256::digest(&text));
    text + &sum + "\n"
}

fn parse(text: &str) -> Option<BTreeSet<Client>> {
    let lines = text.strip_suffix('\n')?;
    let body = lines.rfind('\n').map_or(0, |at| at + 1);
    let (body, sum) = text.split_at_checked(body)?;
    if sum.trim_end() != digits(&Sha256::digest(body)) {
        return None;
    }
    body.lines().map(client).collect()
}

fn client(line: &str) -> Option<Client> {
    let (id, uid) = line.split_once(' ')?;
    let id = ClientId(u128::from_str_radix(id, 16).ok()?.to_be_bytes());
    Some(Client { id, uid: uid.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(count: u8) -> BTreeSet<Client> {
        (0..count).map(|n| Client { id: ClientId([n; 16]), uid: u32::from(n) }).collect()
    }

    #[test]
    fn text_says_it_all_and_damage_shows() {
        for count in [0, 1, 5] {
            let text = text_of(&clients(count));
            assert_eq!(parse(&text), Some(clients(count)));
            for at in 0..text.len() {
                assert_eq!(parse(&text[..at]), None, "cut at {at}");
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1;
                let damaged = String::from_utf8(bytes).expect("still ASCII");
                assert_eq!(parse(&damaged), None, "changed at {at}");
            }
        }
    }

    #[test]
    fn they_are_there_after_a_restart_and_one_server_has_them() {
        let work = tempfile::tempdir().expect("tempdir");
        let (state, served) = (work.path().join("a/b"), work.path().to_owned());
        let open = |served: &Path| FileRecords::open(&state, [served].into_iter());
        let records = open(&served).expect("open");
        assert_eq!(records.load().expect("none yet"), BTreeSet::new());
        let saves: Vec<_> = (0..9).map(|count| records.save(&clients(count))).collect();
        saves.into_iter().for_each(|saved| saved.wait().expect("saved"));
        open(&served).expect_err("there is one already");
        open(&state).expect("of other directories");
        drop(records);
        let records = open(&served).expect("open");
        assert_eq!(records.load().expect("load"), clients(8));
        std::fs::write(&records.path, "nonsense\n").expect("write");
        let error = records.load().expect_err("damaged");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
