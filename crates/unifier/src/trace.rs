//! Traces: which bytes of which files were read and written, in order.
//!
//! A trace begins with 8 bytes of [`MAGIC`]. Each record is a few numbers of 1 to 10 bytes (7 bits
//! each, the lowest first, the top bit set in all but the last byte): file × 4 + kind, and then
//!
//! | kind | what | numbers |
//! | --- | --- | --- |
//! | 0 | a read | offset, bytes |
//! | 1 | a write | offset, bytes |
//! | 2 | the size of the file is | bytes |
//! | 3 | the file is gone | |
//!
//! An offset is relative to the end of the read or write before in the same file: twice the
//! distance forward, or twice the distance back less 1. Files are numbered from 0 as they come.

use std::collections::HashMap;
use std::io::{self, Write};

use dafs_store::FileId;

/// The first bytes of a trace.
pub const MAGIC: [u8; 8] = *b"dafstrc1";

/// Files of one trace.
const FILES_MAX: usize = 1 << 20;

/// What happened to a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A read.
    Read {
        /// From this byte on.
        offset: u64,
        /// Bytes asked for.
        len: u64,
    },
    /// A write.
    Write {
        /// From this byte on.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Its size from now on, if no write makes it longer.
    Size(u64),
    /// Nobody has it any more.
    Gone,
}

/// One record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record {
    /// The file, by its number in this trace.
    pub file: u32,
    /// What happened.
    pub event: Event,
}

/// Writes a trace, up to a bound.
pub struct TraceWriter<W> {
    out: W,
    files: HashMap<FileId, Known>,
    bytes_left: u64,
    next: u32,
}

struct Known {
    number: u32,
    size: u64,
    end: u64,
}

impl<W: Write> TraceWriter<W> {
    /// Nothing is recorded that does not fit into `bytes_max`.
    ///
    /// # Errors
    /// What `out` refuses.
    pub fn new(mut out: W, bytes_max: u64) -> io::Result<TraceWriter<W>> {
        out.write_all(&MAGIC)?;
        let bytes_left = bytes_max.saturating_sub(MAGIC.len() as u64);
        Ok(TraceWriter { out, files: HashMap::new(), bytes_left, next: 0 })
    }

    /// A file, with its size when this has happened. False when the trace is full.
    ///
    /// # Errors
    /// What the output refuses.
    pub fn record(&mut self, file: FileId, size: u64, event: Event) -> io::Result<bool> {
        let next = self.next;
        if !self.files.contains_key(&file) && self.files.len() >= FILES_MAX {
            return Ok(false);
        }
        let known = self.files.entry(file).or_insert(Known { number: next, size: 0, end: 0 });
        self.next += u32::from(known.number == next);
        let mut record = Vec::new();
        let head = |kind: u64| u64::from(known.number) << 2 | kind;
        let size_first = match event {
            Event::Write { offset, len } => known.size.max(offset.saturating_add(len)) != size,
            Event::Read { .. } => known.size != size,
            Event::Size(_) | Event::Gone => false,
        };
        if size_first {
            put(&mut record, head(2));
            put(&mut record, size);
        }
        match event {
            Event::Read { offset, len } | Event::Write { offset, len } => {
                put(&mut record, head(u64::from(matches!(event, Event::Write { .. }))));
                put(&mut record, distance(known.end, offset));
                put(&mut record, len);
                known.end = offset.saturating_add(len);
            }
            Event::Size(size) => {
                put(&mut record, head(2));
                put(&mut record, size);
            }
            Event::Gone => put(&mut record, head(3)),
        }
        known.size = size;
        if event == Event::Gone {
            self.files.remove(&file);
        }
        if self.bytes_left < record.len() as u64 {
            self.bytes_left = 0;
            return Ok(false);
        }
        self.bytes_left -= record.len() as u64;
        self.out.write_all(&record)?;
        Ok(true)
    }

    /// Hands on what is buffered.
    ///
    /// # Errors
    /// What the output refuses.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A trace is not one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no trace, or a broken one, at byte {0}")]
pub struct BrokenTrace(pub usize);

/// All records of a trace; an incomplete last one is left out.
///
/// # Errors
/// [`BrokenTrace`].
pub fn read_trace(bytes: &[u8]) -> Result<Vec<Record>, BrokenTrace> {
    if !bytes.starts_with(&MAGIC) {
        return Err(BrokenTrace(0));
    }
    let mut reader = Reader { bytes, at: MAGIC.len() };
    let mut ends: HashMap<u32, u64> = HashMap::new();
    let mut records = Vec::new();
    loop {
        let start = reader.at;
        let broken = BrokenTrace(start);
        let Some(record) = reader.record(&mut ends) else {
            let complete = reader.at < bytes.len();
            return if complete { Err(broken) } else { Ok(records) };
        };
        records.push(record);
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn number(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = *self.bytes.get(self.at)?;
            self.at += 1;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return None;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn record(&mut self, ends: &mut HashMap<u32, u64>) -> Option<Record> {
        let head = self.number()?;
        let file = u32::try_from(head >> 2).ok()?;
        let event = match head & 3 {
            kind @ (0 | 1) => {
                let code = self.number()?;
                let len = self.number()?;
                let end = ends.entry(file).or_default();
                let half = code >> 1;
                let offset = match code & 1 {
                    0 => end.checked_add(half)?,
                    _ => end.checked_sub(half.checked_add(1)?)?,
                };
                *end = offset.checked_add(len)?;
                if kind == 0 { Event::Read { offset, len } } else { Event::Write { offset, len } }
            }
            2 => Event::Size(self.number()?),
            _ => Event::Gone,
        };
        Some(Record { file, event })
    }
}

fn put(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Offsets are below 2^63.
fn distance(from: u64, to: u64) -> u64 {
    if to >= from { (to - from) << 1 } else { ((from - to - 1) << 1) | 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(inode: u64) -> FileId {
        FileId { device: 1, inode }
    }

    #[test]
    fn what_is_recorded_is_read() {
        let mut out = Vec::new();
        let mut writer = TraceWriter::new(&mut out, 1 << 20).expect("memory");
        let read = Event::Read { offset: 1 << 40, len: 70_000 };
        let write = Event::Write { offset: 5, len: 10 };
        let events = [(7, 2 << 40, read), (9, 15, write), (7, 2 << 40, read), (7, 0, Event::Gone)];
        for (inode, size, event) in events {
            assert!(writer.record(id(inode), size, event).expect("memory"));
        }
        assert!(writer.record(id(7), 15, write).expect("memory"));
        let records = read_trace(&out).expect("a trace");
        let record = |file, event| Record { file, event };
        let want = [
            record(0, Event::Size(2 << 40)),
            record(0, read),
            record(1, write),
            record(0, read),
            record(0, Event::Gone),
            record(2, write),
        ];
        assert_eq!(records, want);
        for len in 0..out.len() {
            let cut = read_trace(&out[..len]);
            assert_eq!(cut.is_ok(), len >= MAGIC.len());
            assert!(cut.is_err() || want.starts_with(&cut.expect("checked")));
        }
    }

    #[test]
    fn a_full_trace_takes_nothing_more() {
        let mut out = Vec::new();
        let mut writer = TraceWriter::new(&mut out, 20).expect("memory");
        let write = Event::Write { offset: 0, len: 4096 };
        let taken = (0..10).filter(|_| writer.record(id(1), 4096, write).expect("memory")).count();
        assert!((1..10).contains(&taken));
        assert!(out.len() <= 20);
    }

    #[test]
    fn broken_traces_are_told() {
        assert_eq!(read_trace(b"something else"), Err(BrokenTrace(0)));
        let broken = |record: &[u8]| read_trace(&[&MAGIC, record, &[3; 20]].concat());
        assert_eq!(broken(&[0, 1, 1]), Err(BrokenTrace(8)), "before the beginning");
        assert_eq!(broken(&[0xff; 11]), Err(BrokenTrace(8)), "a number of more than 64 bits");
    }
}
