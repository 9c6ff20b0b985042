//! A client that reads and writes at random and knows what must come out.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use dafs_client::{Call, Done, File, OpenOptions, Session, SessionOptions};
use dafs_fabric::{Address, Buffer, Provider};
use dafs_protocol::{Extent, Stability};

use crate::client::unbroken;
use crate::dice::Dice;
use crate::tree::pattern;

/// Sizes of reads and writes.
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
/// A prime, so that what is written is the same in no two places.
const TEXT_BYTES: usize = 3_145_739;
/// Pieces of a list, and how far apart they begin.
const PIECES: usize = 16;
const PIECE: usize = 12 << 10;
const STRIDE: usize = 40 << 10;

/// How data goes: by tags, and by RDMA read where it does not.
pub(super) const WAYS: [(bool, bool); 4] =
    [(true, true), (false, true), (true, false), (false, false)];

/// A session with a large file and a directory of its own, and a model of both.
pub(super) struct Load {
    session: Session,
    file: File,
    name: String,
    /// What the file holds.
    model: Vec<u8>,
    /// What the small file of the directory holds, if it is there.
    small: Option<Vec<u8>>,
    text: Vec<u8>,
    dice: Dice,
    buffer: Buffer,
}

type Outcome<T = ()> = Result<T, String>;

fn ok<T>(what: &str, result: dafs_client::Result<T>) -> Outcome<T> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn same(what: &str, found: &[u8], right: &[u8]) -> Outcome {
    if found == right {
        return Ok(());
    }
    let at = found.iter().zip(right).position(|(found, right)| found != right);
    Err(format!("{what}: {} of {} bytes, wrong from {at:?} on", found.len(), right.len()))
}

/// Makes the file of a load, on disk.
pub(super) fn make_file(dir: &Path, number: usize, bytes: usize) -> Outcome {
    let made = fs::write(dir.join(format!("file{number}")), pattern(number as u64 + 1, bytes));
    made.map_err(|error| error.to_string())
}

impl Load {
    /// Of a file that [`make_file`] made.
    pub(super) fn new(
        provider: Arc<dyn Provider>,
        address: &Address,
        number: usize,
        bytes: usize,
    ) -> Outcome<Load> {
        let (tags, rdma_read) = WAYS[number % WAYS.len()];
        let options = SessionOptions { tags, rdma_read, ..unbroken() };
        let session = Session::connect(provider, address, options);
        let session = session.map_err(|error| format!("connect: {error}"))?;
        let name = format!("file{number}");
        let both = OpenOptions { write: true, ..OpenOptions::read() };
        let file = ok("open", session.open(name.as_bytes(), both))?;
        ok("mkdir", session.mkdir(format!("dir{number}").as_bytes(), 0o755))?;
        Ok(Load {
            session,
            file,
            name,
            model: pattern(number as u64 + 1, bytes),
            small: None,
            text: pattern(77, TEXT_BYTES),
            dice: Dice::new(number as u64 + 1),
            buffer: Buffer::new(1 << 20).map_err(|error| error.to_string())?,
        })
    }

    /// One operation, with all that it answers looked at.
    pub(super) fn step(&mut self) -> Outcome {
        match self.dice.weighted(&[6, 6, 2, 2, 3, 2, 1]) {
            0 => self.read(),
            1 => self.write(),
            2 => self.read_list(),
            3 => self.write_list(),
            4 => self.small_file(),
            5 => self.names(),
            _ => ok("commit", self.file.commit()),
        }
    }

    /// Where the next bytes go, or come from: as often anywhere as at a block.
    fn range(&mut self) -> (usize, usize) {
        let mut len = self.dice.one(&SIZES);
        let mut at = self.dice.below(self.model.len() - len + 1);
        match self.dice.once_in(2) {
            true => at -= at % 4096,
            false => len -= self.dice.below(100),
        }
        (at, len)
    }

    fn read(&mut self) -> Outcome {
        let (at, len) = self.range();
        let right = at..at + len;
        if self.dice.once_in(2) {
            let read = ok("read", self.file.read_at(&mut self.buffer[..len], at as u64))?;
            return same("read of lent memory", &self.buffer[..read], &self.model[right]);
        }
        let call = |file, buffer| Call::Read { file, offset: at as u64, buffer, len: len as u32 };
        self.with_buffer("read", call)?;
        same("read", &self.buffer[..len], &self.model[right])
    }

    fn write(&mut self) -> Outcome {
        let (at, len) = self.range();
        let from = self.dice.below(TEXT_BYTES - len);
        self.buffer[..len].copy_from_slice(&self.text[from..from + len]);
        self.model[at..at + len].copy_from_slice(&self.text[from..from + len]);
        if self.dice.once_in(2) {
            let written = ok("write", self.file.write_at(&self.buffer[..len], at as u64))?;
            return if written == len {
                Ok(())
            } else {
                Err(format!("{written} of {len} written"))
            };
        }
        let (offset, len, stability) = (at as u64, len as u32, Stability::Unstable);
        self.with_buffer("write", |file, buffer| Call::Write {
            file,
            offset,
            buffer,
            len,
            stability,
        })
    }

    /// Pieces at equal distances, and one somewhere else.
    fn list(&mut self) -> (Vec<Extent>, Vec<std::ops::Range<usize>>) {
        let first = self.dice.below(self.model.len() / 2 - PIECES * STRIDE);
        let last = self.model.len() / 2 + self.dice.below(self.model.len() / 2 - PIECE);
        let (len, count, stride) = (PIECE as u32, PIECES as u32, STRIDE as u64);
        let extents = vec![
            Extent { offset: first as u64, len, count, stride },
            Extent::one(last as u64, len),
        ];
        let starts = (0..PIECES).map(|piece| first + piece * STRIDE).chain([last]);
        (extents, starts.map(|start| start..start + PIECE).collect())
    }

    fn read_list(&mut self) -> Outcome {
        let (extents, ranges) = self.list();
        self.with_buffer("read a list", |file, buffer| Call::ReadList { file, extents, buffer })?;
        for (found, right) in self.buffer.chunks(PIECE).zip(ranges) {
            same("read of a list", found, &self.model[right])?;
        }
        Ok(())
    }

    fn write_list(&mut self) -> Outcome {
        let (extents, ranges) = self.list();
        let from = self.dice.below(TEXT_BYTES - (PIECES + 1) * PIECE);
        for (piece, range) in ranges.into_iter().enumerate() {
            let data = &self.text[from + piece * PIECE..][..PIECE];
            self.buffer[piece * PIECE..][..PIECE].copy_from_slice(data);
            self.model[range].copy_from_slice(data);
        }
        let stability = Stability::Unstable;
        self.with_buffer("write a list", |file, buffer| Call::WriteList {
            file,
            extents,
            buffer,
            stability,
        })
    }

    /// A whole file in one round trip, or what the last one said.
    fn small_file(&mut self) -> Outcome {
        let path = format!("dir{}/small", &self.name[4..]).into_bytes();
        let Some(right) = self.small.clone() else {
            let len = self.dice.size(64 << 10);
            let from = self.dice.below(TEXT_BYTES - len);
            self.buffer[..len].copy_from_slice(&self.text[from..from + len]);
            self.small = Some(self.text[from..from + len].to_vec());
            return self.with_buffer("make a small file", |_, buffer| Call::PutFile {
                path,
                buffer: Some(buffer),
                len: len as u32,
                mode: 0o644,
                exclusive: true,
                times: None,
                owner: None,
                rename_to: None,
                commit: false,
            });
        };
        if self.dice.once_in(3) {
            self.small = None;
            return ok("remove", self.session.remove(&path));
        }
        self.with_buffer("get a small file", |_, buffer| Call::GetFile { path, buffer })?;
        same("small file", &self.buffer[..right.len()], &right)
    }

    fn names(&mut self) -> Outcome {
        let dir = format!("dir{}", &self.name[4..]);
        let name = |name: &str| format!("{dir}/{name}").into_bytes();
        ok("mkdir", self.session.mkdir(&name("a"), 0o755))?;
        ok("symlink", self.session.symlink(b"target", &name("link")))?;
        ok("rename", self.session.rename(&name("a"), &name("b")))?;
        let names = ok("list", self.session.read_dir(dir.as_bytes()))?.count();
        let target = ok("readlink", self.session.read_link(&name("link")))?;
        ok("remove", self.session.remove(&name("link")))?;
        ok("rmdir", self.session.remove_dir(&name("b")))?;
        let right = 2 + usize::from(self.small.is_some());
        match names == right && target == b"target" {
            true => Ok(()),
            false => Err(format!("{names} names, not {right}; a link to {target:?}")),
        }
    }

    /// A call that has the buffer.
    fn with_buffer(&mut self, what: &str, call: impl FnOnce(File, Buffer) -> Call) -> Outcome {
        let none = Buffer::new(1).map_err(|error| error.to_string())?;
        let buffer = std::mem::replace(&mut self.buffer, none);
        let Done { result, buffer, .. } = self.session.call(call(self.file.clone(), buffer)).wait();
        self.buffer = buffer.ok_or("the buffer was not given back")?;
        ok(what, result).map(drop)
    }

    /// Everything is on disk, and the session has ended: what must be found there.
    pub(super) fn end(self) -> Outcome<Model> {
        ok("close", self.file.close())?;
        ok("sync", self.session.sync())?;
        if self.session.info().reconnects > 0 {
            return Err("a connection broke".into());
        }
        self.session.close();
        Ok(Model { name: self.name, data: self.model, small: self.small })
    }
}

/// What a load has written.
pub(super) struct Model {
    name: String,
    data: Vec<u8>,
    small: Option<Vec<u8>>,
}

impl Model {
    /// Compares it with what is on disk.
    pub(super) fn compare(&self, dir: &Path) -> Outcome {
        let found = fs::read(dir.join(&self.name)).map_err(|error| error.to_string())?;
        same(&self.name, &found, &self.data)?;
        let small = dir.join(format!("dir{}/small", &self.name[4..]));
        match (fs::read(&small), &self.small) {
            (Ok(found), Some(right)) => same("small file", &found, right),
            (Err(_), None) => Ok(()),
            (found, _) => Err(format!("small file: {:?}", found.map(|bytes| bytes.len()))),
        }
    }
}
