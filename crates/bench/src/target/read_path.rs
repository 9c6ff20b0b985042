//! Reads one after the other by the blocking call, which does without the server where it may.

use std::io;
use std::str::FromStr;
use std::time::Instant;

use dafs_client::File;
use dafs_fabric::Buffer;

use super::Work;
use crate::offsets::Offsets;
use crate::slice::Slice;

/// How reads of a server's files go.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReadPath {
    /// Each asks the server, which places the data.
    #[default]
    RpcDirect,
    /// Each asks the server, and copies what came into the session's memory once more, to where it is wanted.
    RpcInline,
    /// Out of the server's cache without a request: by this process, one at a time, or by a reference.
    Optimistic,
}

impl ReadPath {
    const ALL: [(ReadPath, &str); 3] = [
        (ReadPath::RpcDirect, "rpc-direct"),
        (ReadPath::RpcInline, "rpc-inline"),
        (ReadPath::Optimistic, "optimistic"),
    ];

    /// Memory to copy reads of so many bytes to, where they are.
    pub(super) fn copies_to(self, bytes: usize) -> Option<Vec<u8>> {
        (self == ReadPath::RpcInline).then(|| vec![0xa5; bytes])
    }
}

impl FromStr for ReadPath {
    type Err = String;
    fn from_str(text: &str) -> Result<ReadPath, String> {
        let found = ReadPath::ALL.into_iter().find(|(_, name)| *name == text);
        let expected =
            || format!("expected one of {}", ReadPath::ALL.map(|(_, name)| name).join(", "));
        found.map(|(path, _)| path).ok_or_else(expected)
    }
}

/// Measures reads of `file` into `buffer`.
pub(super) fn measure(
    work: &Work<'_>,
    file: &File,
    mut offsets: Offsets,
    buffer: &mut Buffer,
) -> io::Result<Slice> {
    let into = buffer.get_mut(..work.size).ok_or(io::ErrorKind::InvalidInput)?;
    let mut slice = Slice::default();
    let started = Instant::now();
    let mut now = started;
    while work.goes_on(started, now) {
        if file.read_at(into, offsets.next())? < work.size {
            return Err(io::Error::other("a read was short: somebody else changes the file"));
        }
        let before = std::mem::replace(&mut now, Instant::now());
        slice.latency.record(now - before);
        slice.ops += 1;
        slice.bytes += work.size as u64;
    }
    slice.seconds = (now - started).as_secs_f64();
    Ok(slice)
}
