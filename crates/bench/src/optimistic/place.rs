//! Where it is measured: a directory of a server, and how its files are read.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_client::{File, OpenOptions, OptimisticWay, Session};
use dafs_fabric::Buffer;

use crate::target::{below, remove_tree};
use crate::wait::Wait;

/// Bytes of a block.
pub(super) const BLOCK: usize = 4096;
/// Pieces in which files are written.
const FILL_BYTES: usize = 1 << 20;
/// Passes over files until what is read needs no server.
const WARM_PASSES: usize = 12;

/// How reads go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The server is asked; its data comes to memory of the connection, out of which the client copies it.
    Inline,
    /// The server is asked, and places the data where it is wanted.
    Direct,
    /// The client reads the server's cache by itself, and asks for what it does not find there.
    Optimistic,
}

impl Way {
    /// All, in the order of the paper's table.
    pub(super) const ALL: [Way; 3] = [Way::Inline, Way::Direct, Way::Optimistic];
    /// Those whose servers differ.
    pub(super) const TWO: [Way; 2] = [Way::Direct, Way::Optimistic];

    /// The name in output.
    pub fn name(self) -> &'static str {
        match self {
            Way::Inline => "rpc-inline",
            Way::Direct => "rpc-direct",
            Way::Optimistic => "optimistic",
        }
    }
}

/// What a session is to be like.
#[derive(Debug, Clone, Copy)]
pub struct Wish {
    /// How both ends wait.
    pub wait: Wait,
    /// Whether it may read without the server.
    pub optimistic: bool,
}

/// Makes sessions of one server, by one network.
pub type Connect = Box<dyn Fn(Wish) -> io::Result<Session> + Send + Sync>;

/// A directory of its own at a server, which goes when this is dropped.
pub struct Place {
    connect: Connect,
    directory: Vec<u8>,
    transport: &'static str,
}

impl Place {
    /// Makes the directory `.dafs-bench-optimistic-PID` below `path`.
    ///
    /// # Errors
    /// There is no session, or the directory cannot be made.
    pub fn new(connect: Connect, path: &[u8]) -> io::Result<Place> {
        let session = connect(Wish { wait: Wait::Adaptive, optimistic: false })?;
        let transport = session.info().transport;
        let name = format!(".dafs-bench-optimistic-{}-{transport}", std::process::id());
        let directory = below(path, &name);
        session.mkdir(&directory, 0o700)?;
        Ok(Place { connect, directory, transport })
    }

    /// By which network.
    pub fn transport(&self) -> &'static str {
        self.transport
    }

    pub(super) fn session(&self, wait: Wait, optimistic: bool) -> io::Result<Session> {
        (self.connect)(Wish { wait, optimistic })
    }

    pub(super) fn path(&self, name: &str) -> Vec<u8> {
        below(&self.directory, name)
    }

    /// Makes a file of so many bytes, as far as it is to go on.
    pub(super) fn make(&self, name: &str, bytes: u64, stop: &AtomicBool) -> io::Result<()> {
        let session = self.session(Wait::Adaptive, false)?;
        self.make_by(&session, name, bytes, stop)
    }

    fn make_by(
        &self,
        session: &Session,
        name: &str,
        bytes: u64,
        stop: &AtomicBool,
    ) -> io::Result<()> {
        let options = OpenOptions { create: true, ..OpenOptions::write() };
        let file = session.open(&self.path(name), options)?;
        let piece = vec![0xa5; FILL_BYTES.min(usize::try_from(bytes).unwrap_or(FILL_BYTES))];
        let mut offset = 0;
        while offset < bytes && !stop.load(Ordering::Relaxed) {
            let len = (bytes - offset).min(piece.len() as u64) as usize;
            file.write_at(piece.get(..len).unwrap_or_default(), offset)?;
            offset += len as u64;
        }
        if bytes > FILL_BYTES as u64 {
            // Not beside what is measured next.
            file.commit()?;
        }
        file.close()?;
        Ok(())
    }

    /// Makes so many files of a block each; their names.
    pub(super) fn make_small(&self, count: usize, stop: &AtomicBool) -> io::Result<Vec<Vec<u8>>> {
        let session = self.session(Wait::Adaptive, false)?;
        let names: Vec<String> = (0..count).map(|number| format!("small-{number}")).collect();
        for name in &names {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            self.make_by(&session, name, BLOCK as u64, stop)?;
        }
        Ok(names.iter().map(|name| self.path(name)).collect())
    }

    pub(super) fn remove(&self, path: &[u8]) -> io::Result<()> {
        Ok(self.session(Wait::Adaptive, false)?.remove(path)?)
    }

    /// Removes all that was made.
    ///
    /// # Errors
    /// The server's.
    pub fn clean_up(&self) -> io::Result<()> {
        remove_tree(&self.session(Wait::Adaptive, false)?, &self.directory)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = self.clean_up();
    }
}

/// Opens a file to be read.
pub(super) fn open(session: &Session, path: &[u8]) -> io::Result<File> {
    Ok(session.open(path, OpenOptions::read())?)
}

/// Reads without a request are copies that this process makes by itself, one after the other; else the server's
/// transport answers them, and many may be under way.
pub(super) fn reads_by_itself(file: &File) -> io::Result<bool> {
    Ok(file.optimistic_way()? == Ok(OptimisticWay::Trusted))
}

/// Reads blocks one after the other, in one way.
pub(super) struct Reader {
    pub session: Session,
    pub way: Way,
    /// Memory of the connection, for what comes beside an answer.
    landing: Buffer,
}

impl Reader {
    /// With a session of its own; reads up to `bytes` at a time.
    pub(super) fn new(place: &Place, way: Way, wait: Wait, bytes: usize) -> io::Result<Reader> {
        let session = place.session(wait, way == Way::Optimistic)?;
        let landing = session.buffer(bytes).map_err(io::Error::other)?;
        Ok(Reader { session, way, landing })
    }

    /// Reads into memory of the session; `None`: to wherever it comes first.
    #[inline]
    pub(super) fn read(
        &mut self,
        file: &File,
        offset: u64,
        into: Option<&mut [u8]>,
    ) -> io::Result<()> {
        let wanted = into.as_ref().map_or(self.landing.len(), |into| into.len());
        let found = match into {
            Some(into) if self.way == Way::Inline => {
                let landing =
                    self.landing.get_mut(..into.len()).ok_or(io::ErrorKind::InvalidInput)?;
                let found = file.read_at(landing, offset)?;
                into.copy_from_slice(landing);
                found
            }
            Some(into) => file.read_at(into, offset)?,
            None => file.read_at(&mut self.landing, offset)?,
        };
        if found < wanted {
            return Err(io::Error::other("a read was short: somebody else changes the file"));
        }
        Ok(())
    }

    /// Reads all of these files until that needs no server, or some times. False: it always does.
    pub(super) fn warm(&mut self, files: &[(&File, u64)], stop: &AtomicBool) -> io::Result<bool> {
        if self.way != Way::Optimistic {
            self.pass(files, stop)?;
            return Ok(true);
        }
        let all: u64 = files.iter().map(|(_, blocks)| blocks).sum();
        let mut had = self.hits();
        let first = had;
        for _ in 0..WARM_PASSES {
            self.pass(files, stop)?;
            let hits = self.hits() - had;
            had += hits;
            if hits == all || stop.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(had > first)
    }

    fn pass(&mut self, files: &[(&File, u64)], stop: &AtomicBool) -> io::Result<()> {
        let mut into = vec![0; BLOCK];
        for (file, blocks) in files {
            for block in 0..*blocks {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                self.read(file, block * BLOCK as u64, Some(&mut into))?;
            }
        }
        Ok(())
    }

    /// Reads so far that needed no server.
    pub(super) fn hits(&self) -> u64 {
        self.session.info().optimistic.hits
    }
}
