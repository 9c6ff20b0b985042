//! Calls on open files, which all clients share.

use dafs_client::OpenOptions;
use dafs_client::core::{Place, Work};
use dafs_fabric::Buffer;
use dafs_protocol::{CommitLevel, Extent, ExtentList, SetAttr, Stability};

use crate::calls::{Call, Kind, Piece};
use crate::client::{Open, Stream};
use crate::model::file::{STEP, Shape, WORD};
use crate::plan::DATA_FILES;
use crate::sim::Sim;

/// Files that a client has open at a time.
const OPENS_MAX: usize = 5;

/// Fills a buffer with words that name the change.
pub fn fill(piece: &Piece, bytes: &mut [u8]) {
    for (index, word) in bytes.chunks_exact_mut(WORD as usize).enumerate() {
        word.copy_from_slice(&(u64::from(piece.change) << 32 | index as u64).to_le_bytes());
    }
}

/// The bytes are still what was filled in.
pub fn is_filled(piece: &Piece, bytes: &[u8]) -> bool {
    bytes
        .chunks_exact(WORD as usize)
        .enumerate()
        .all(|(index, word)| word == (u64::from(piece.change) << 32 | index as u64).to_le_bytes())
}

pub(crate) fn data_place(slot: usize) -> Place {
    Place::new(format!("data/f{slot}").as_bytes()).expect("a short name")
}

impl Sim {
    /// One call on open files.
    pub(crate) fn data_call(&mut self, client: usize) -> Result<(), String> {
        let usable: Vec<Open> =
            self.clients[client].opens.iter().filter(|open| !open.closing).cloned().collect();
        let opens = self.clients[client].opens.len();
        if usable.is_empty() || (opens < OPENS_MAX && self.rng.below(12) == 0) {
            let slot = self.rng.index(DATA_FILES);
            if !self.slots[slot].replacing {
                self.ask_open(client, slot);
                return Ok(());
            }
            if usable.is_empty() {
                let call = self.call(client, Kind::Ping, 0);
                self.clients[client].submit(call, Work::Null, None);
                return Ok(());
            }
        }
        let open = usable[self.rng.index(usable.len())].clone();
        let cache = self.plan.cache_percent;
        if cache > 0 && self.rng.below(100) < cache {
            return self.ask_cache(client, &open);
        }
        if self.plan.hits && open.read && self.rng.below(3) == 0 {
            self.ask_where(client, &open);
            return Ok(());
        }
        match self.rng.below(100) {
            0..=33 if open.read => self.ask_read(client, &open),
            34..=67 if open.write && !open.append => self.ask_write(client, &open),
            68..=75 if open.write => self.ask_append(client, &open),
            76..=78 if open.write => {
                self.ask_cut(client, &open);
                Ok(())
            }
            79..=86 => {
                self.ask_commit(client, &open);
                Ok(())
            }
            87..=89 => {
                let call = self.call(client, Kind::Size { file: open.file }, 0);
                self.clients[client].submit(call, Work::FileAttr { file: open.key }, None);
                Ok(())
            }
            90..=93 => {
                self.ask_sync(client);
                Ok(())
            }
            94..=98 => {
                self.ask_close(client, open.number);
                Ok(())
            }
            _ if self.rng.coin() && self.slots[open.slot].is_free() => {
                self.ask_replace(client, open.slot)
            }
            _ => {
                let call = self.call(client, Kind::Ping, 0);
                self.clients[client].submit(call, Work::Null, None);
                Ok(())
            }
        }
    }

    /// Opens a data file.
    pub(crate) fn ask_open(&mut self, client: usize, slot: usize) {
        let write = self.rng.below(7) > 0;
        let append = write && self.rng.below(8) == 0;
        let truncate = write && self.rng.below(16) == 0;
        let read = !write || self.rng.below(4) > 0;
        let create = write && self.rng.below(4) == 0;
        let options =
            OpenOptions { read, write, create, truncate, append, ..OpenOptions::default() };
        self.open_file(client, slot, options);
    }

    pub(crate) fn open_file(&mut self, client: usize, slot: usize, options: OpenOptions) {
        let file = self.slots[slot].file;
        self.slots[slot].opening += 1;
        let cut = options.truncate.then(|| self.new_change());
        let how = (options.read, options.write, options.append);
        let call = self.call(client, Kind::Open { slot, file, how, cut }, 0);
        if let Some(change) = cut {
            let who = self.clients[client].who;
            self.files[file].begin(change, Shape::Cut { size: 0 }, who, None, call.start);
        }
        self.clients[client].submit(call, Work::Open { place: data_place(slot), options }, None);
    }

    pub(crate) fn ask_close(&mut self, client: usize, number: u64) {
        let Some(open) = self.clients[client].open(number) else { return };
        open.closing = true;
        open.references.end();
        let (key, file) = (open.key, open.file);
        let call = self.call(client, Kind::Close { open: number, file }, 0);
        self.clients[client].submit(call, Work::Close { file: key }, None);
    }

    /// A place for so many bytes, often near an edge of a page.
    pub(crate) fn offset(&mut self, file: usize, len: u64) -> u64 {
        let size = self.files[file].size_max();
        let most =
            (size + self.plan.io_max + 4096).min(self.plan.file_max.saturating_sub(len).max(STEP));
        let at = self.rng.below(most);
        match self.rng.below(4) {
            0 => at / 4096 * 4096,
            1 => (at / 4096 * 4096).saturating_sub(STEP * self.rng.below(4)),
            _ => at / STEP * STEP,
        }
    }

    pub(crate) fn len(&mut self) -> u64 {
        let most = match self.rng.below(8) {
            0..=2 => 512,
            3 | 4 => 4096,
            5 | 6 => self.plan.io_max / 3,
            _ => self.plan.io_max,
        };
        match self.rng.below(4) {
            0 if most > 4096 => self.rng.range(1, most / 4096) * 4096,
            _ => self.rng.range(1, most / STEP) * STEP,
        }
    }

    /// One to four pieces of a file.
    fn pieces(&mut self, file: usize) -> Vec<Piece> {
        let mut count = if self.rng.below(6) == 0 { self.rng.range(2, 4) } else { 1 };
        let len = (self.len() / count / STEP * STEP).max(STEP);
        let pages_max = self.plan.write_pages_max();
        if count * (len / 4096 + 2) > pages_max {
            count = 1;
        }
        (0..count).map(|_| Piece { offset: self.offset(file, len), len, change: 0 }).collect()
    }

    pub(crate) fn ask_read(&mut self, client: usize, open: &Open) -> Result<(), String> {
        let pieces = match self.next_of_stream(client, open) {
            Some(piece) => vec![piece],
            None => self.pieces(open.file),
        };
        self.read_pieces(client, open, pieces)
    }

    /// Where files are read ahead, many reads go on where the last one ended, or a distance
    /// behind it.
    fn next_of_stream(&mut self, client: usize, open: &Open) -> Option<Piece> {
        if !self.plan.direct || self.rng.below(4) == 0 {
            return None;
        }
        let size = self.files[open.file].size_max();
        let going_on = open.stream.filter(|stream| stream.offset < size);
        let stream = going_on.unwrap_or_else(|| {
            let len = self.len();
            let stride = len * [1, 1, 1, 2, 5][self.rng.index(5)];
            Stream { offset: self.rng.below(size / STEP + 1) * STEP / 4096 * 4096, len, stride }
        });
        let next = Stream { offset: stream.offset + stream.stride, ..stream };
        self.clients[client].open(open.number)?.stream = Some(next);
        Some(Piece { offset: stream.offset, len: stream.len, change: 0 })
    }

    pub(crate) fn read_pieces(
        &mut self,
        client: usize,
        open: &Open,
        pieces: Vec<Piece>,
    ) -> Result<(), String> {
        let total: u64 = pieces.iter().map(|piece| piece.len).sum();
        let buffer = self.clients[client].buffers.take()?;
        let (file, len) = (open.key, total as u32);
        let work = match pieces.as_slice() {
            [one] if self.plan.lends && self.rng.coin() => {
                Work::Lend { file, offset: one.offset, len }
            }
            [one] => Work::Read { file, offset: one.offset, len },
            many => Work::ReadList { file, extents: extents(many)?, len },
        };
        let call = self.call(client, Kind::Read { file: open.file, pieces }, total as usize);
        self.clients[client].submit(call, work, Some(buffer));
        Ok(())
    }

    fn stability(&mut self, client: usize) -> Stability {
        match self.rng.below(12) {
            _ if self.clients[client].keeps => Stability::Unstable,
            0 => Stability::Data,
            1 => Stability::File,
            _ => Stability::Unstable,
        }
    }

    fn ask_write(&mut self, client: usize, open: &Open) -> Result<(), String> {
        let pieces = self.pieces(open.file);
        self.write_pieces(client, open, pieces)
    }

    pub(crate) fn write_pieces(
        &mut self,
        client: usize,
        open: &Open,
        mut pieces: Vec<Piece>,
    ) -> Result<(), String> {
        let stability = self.stability(client);
        pieces.truncate(if self.clients[client].keeps { 1 } else { pieces.len() });
        let mut buffer = self.clients[client].buffers.take()?;
        let total = self.fill_pieces(&mut pieces, &mut buffer);
        let (file, len) = (open.key, total as u32);
        let work = match pieces.as_slice() {
            [one] => Work::Write { file, offset: one.offset, len, stability, within: false },
            many => Work::WriteList { file, extents: extents(many)?, len, stability },
        };
        let stable = stability != Stability::Unstable;
        let kind = Kind::Write { file: open.file, pieces: pieces.clone(), stable };
        let call = self.call(client, kind, total);
        let who = self.clients[client].who;
        for piece in pieces {
            let shape = Shape::Write { offset: piece.offset, len: piece.len };
            self.files[open.file].begin(piece.change, shape, who, Some(open.number), call.start);
        }
        self.submit_write(client, open, call, work, buffer);
        Ok(())
    }

    fn fill_pieces(&mut self, pieces: &mut [Piece], buffer: &mut Buffer) -> usize {
        let mut at = 0;
        for piece in pieces {
            piece.change = self.new_change();
            let end = at + piece.len as usize;
            if let Some(bytes) = buffer.get_mut(at..end) {
                fill(piece, bytes);
            }
            at = end;
        }
        at
    }

    fn ask_append(&mut self, client: usize, open: &Open) -> Result<(), String> {
        if self.files[open.file].size_max() > self.plan.file_max {
            self.ask_cut(client, open);
            return Ok(());
        }
        let stability = self.stability(client);
        let mut pieces = [Piece { offset: 0, len: self.len() / 2 / STEP * STEP + STEP, change: 0 }];
        let mut buffer = self.clients[client].buffers.take()?;
        let total = self.fill_pieces(&mut pieces, &mut buffer);
        let [piece] = pieces;
        let stable = stability != Stability::Unstable;
        let call = self.call(client, Kind::Append { file: open.file, piece, stable }, total);
        let (who, len) = (self.clients[client].who, piece.len);
        let shape = Shape::Append { len, offset: None };
        self.files[open.file].begin(piece.change, shape, who, Some(open.number), call.start);
        let work = Work::Append { file: open.key, len: len as u32, stability };
        self.submit_write(client, open, call, work, buffer);
        Ok(())
    }

    /// A write, kept where its client keeps them.
    fn submit_write(&mut self, client: usize, open: &Open, call: Call, work: Work, buffer: Buffer) {
        if !self.clients[client].keeps || open.append {
            return self.clients[client].submit(call, work, Some(buffer));
        }
        let pieces = match &call.kind {
            Kind::Write { pieces, .. } => pieces.as_slice(),
            Kind::Append { piece, .. } => std::slice::from_ref(piece),
            _ => &[],
        };
        pieces.iter().for_each(|piece| self.files[open.file].keep(piece.change));
        self.clients[client].submit_kept(call, work, buffer);
    }

    fn ask_cut(&mut self, client: usize, open: &Open) {
        let size = self.offset(open.file, 0);
        let change = self.new_change();
        let call = self.call(client, Kind::Cut { file: open.file, change }, 0);
        let who = self.clients[client].who;
        self.files[open.file].begin(change, Shape::Cut { size }, who, None, call.start);
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.clients[client].submit(call, Work::FileSetAttr { file: open.key, set }, None);
    }

    pub(crate) fn ask_sync(&mut self, client: usize) {
        let call = self.call(client, Kind::Sync, 0);
        self.clients[client].submit(call, Work::Sync, None);
    }

    pub(crate) fn commit_all(&mut self, client: usize, open: &Open) {
        let kind = Kind::Commit { open: open.number, file: open.file, range: None, flush: false };
        let call = self.call(client, kind, 0);
        let level = CommitLevel::File;
        let work = Work::Commit { file: open.key, offset: 0, len: 0, level };
        self.clients[client].submit(call, work, None);
    }

    fn ask_commit(&mut self, client: usize, open: &Open) {
        let part = self.rng.below(6) == 0;
        let (offset, len) = match part {
            true => (self.offset(open.file, 0), self.len()),
            false => (0, 0),
        };
        let range = part.then_some((offset, offset + len));
        let level = match self.rng.below(4) {
            0 if !part => CommitLevel::Flush,
            0 | 1 => CommitLevel::Data,
            _ => CommitLevel::File,
        };
        let flush = level == CommitLevel::Flush;
        let kind = Kind::Commit { open: open.number, file: open.file, range, flush };
        let call = self.call(client, kind, 0);
        let work = Work::Commit { file: open.key, offset, len, level };
        self.clients[client].submit(call, work, None);
    }
}

fn extents(pieces: &[Piece]) -> Result<ExtentList, String> {
    let list: Vec<Extent> =
        pieces.iter().map(|piece| Extent::one(piece.offset, piece.len as u32)).collect();
    ExtentList::new(&list).ok_or_else(|| "too many extents".into())
}
