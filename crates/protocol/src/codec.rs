//! Bytes of requests, replies, set-up messages and directory entries.
//!
//! Little-endian; every length is checked; unknown values are errors, never panics.

mod attrs;
mod cached;
mod callback;
mod check;
mod dir;
mod extents;
mod hash;
mod operations;
mod outcomes;
mod read;
mod references;
pub(crate) mod setup;
mod wire;

use smallvec::{SmallVec, smallvec};

use crate::handle::{CredHandle, SlotId};
use crate::operation::{
    CHAIN_MAX, HEADER_BYTES_MAX, OpResult, Operation, Outcome, REPLY_BYTES_MAX,
};
use crate::status::Status;
use crate::told_reads::ToldReads;

pub use cached::{CACHED_RANGE_BYTES, decode_cached_ranges, encode_cached_range};
pub use callback::{
    decode_callback, decode_callback_reply, encode_callback, encode_callback_reply,
};
pub use dir::{DirEntries, decode_dir_entries, dir_entries, dir_entry_bytes, encode_dir_entry};
pub use extents::{FILE_EXTENT_BYTES, decode_file_extents, encode_file_extent};
pub use read::{
    PLAIN_READ_BYTES, PLAIN_READ_REPLY_BYTES, PlainRead, decode_plain_read, decode_read_reply,
    encode_plain_read_reply,
};
pub use references::{decode_references, encode_references};
pub use setup::{
    add_proof, before_proof, decode_setup_reply, decode_setup_request, encode_setup_reply,
    encode_setup_request,
};
use wire::{Put, Reader, with_length};

/// Bytes before the operations of a request, or the results of a reply.
const HEAD_BYTES: usize = 12;
/// The trailer of a request that has [`ToldReads`], and the bytes of all of it.
const TRAILER_TOLD_READS: u16 = 1;
const TOLD_READS_BYTES: usize = 6 + 24;

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The message ends too early.
    #[error("message ends too early")]
    Short,
    /// A field has a value that it may not have.
    #[error("bad value in {0}")]
    Value(&'static str),
    /// Bytes are left over.
    #[error("bytes left over")]
    Trailing,
    /// More than a limit allows.
    #[error("too many or too long: {0}")]
    Limit(&'static str),
    /// A hello of another protocol version.
    #[error("protocol version {0}")]
    Version(u32),
}

impl DecodeError {
    /// A range of bytes that no file can have.
    pub fn is_of_range(&self) -> bool {
        matches!(self, DecodeError::Value("extent" | "range"))
    }
}

/// What stands before the operations of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestHead {
    /// The slot.
    pub slot: SlotId,
    /// The sequence on it.
    pub sequence: u32,
    /// Under which credential all operations run.
    pub cred: CredHandle,
}

/// A decoded request; names are borrowed from the message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request<'a> {
    /// Slot, sequence, credential.
    pub head: RequestHead,
    /// The chain, 1 to [`crate::CHAIN_MAX`].
    pub operations: SmallVec<[Operation<'a>; 1]>,
    /// Of the operations' bytes, for [`crate::ServerSlots::begin`].
    pub hash: u64,
    /// What the client tells of its own reads, with whatever it asks for.
    pub told: Option<ToldReads>,
}

/// A decoded reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Echo.
    pub slot: SlotId,
    /// Echo.
    pub sequence: u32,
    /// `Err`: nothing was executed. `Ok`: results of the operations that ran; the last may be
    /// an error, those after it did not run.
    pub results: Result<Vec<OpResult>, Status>,
}

/// Appends a request to `out`, or nothing.
///
/// # Errors
/// [`DecodeError::Limit`] when names, lists or data are too long for a message, and
/// [`DecodeError::Value`] where [`decode_request`] would refuse what is to be sent.
pub fn encode_request(
    head: &RequestHead,
    operations: &[Operation<'_>],
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let count = chain_length(operations.len())?;
    let mut checker = check::Checker::default();
    for operation in operations {
        checker.operation(operation)?;
    }
    let start = out.len();
    put_head(out, head.slot, count, [head.sequence, head.cred.0]);
    operations.iter().for_each(|operation| read::put_operation(out, operation));
    if out.len() - start > HEADER_BYTES_MAX {
        out.truncate(start);
        return Err(DecodeError::Limit("request"));
    }
    Ok(())
}

/// Takes a request apart.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_request(bytes: &[u8]) -> Result<Request<'_>, DecodeError> {
    let Some(read) = read::decode_plain_read(bytes) else { return decode_chain(bytes) };
    let (head, operations, hash) = (read.head, smallvec![read.operation()], read.hash());
    Ok(Request { head, operations, hash, told: None })
}

fn decode_chain(bytes: &[u8]) -> Result<Request<'_>, DecodeError> {
    if bytes.len() > HEADER_BYTES_MAX {
        return Err(DecodeError::Limit("request"));
    }
    let mut r = Reader::new(bytes);
    let (slot, count, [sequence, cred]) = head(&mut r)?;
    let cred = CredHandle(cred);
    chain_length(count)?;
    let hash = hash::hash(cred.0, r.rest());
    let mut checker = check::Checker::default();
    let head = RequestHead { slot, sequence, cred };
    let mut request = Request { head, operations: SmallVec::new(), hash, told: None };
    for _ in 0..count {
        let opcode = r.u16()?;
        let mut body = Reader::new(r.long()?);
        let operation = operations::get(opcode, &mut body)?;
        body.end()?;
        checker.operation(&operation)?;
        request.operations.push(operation);
    }
    trailers(&mut r, count, |kind, mut body| {
        if kind == TRAILER_TOLD_READS {
            request.told = Some(told_reads(&mut body)?);
        }
        Ok(())
    })?;
    Ok(request)
}

/// Appends what a client tells of its own reads to a request, as far as there is room for it: true if there was. Only for
/// a server that has said [`Features::TOLD_READS`](crate::Features::TOLD_READS).
pub fn encode_told_reads(told: &ToldReads, request: &mut Vec<u8>) -> bool {
    if request.len() + TOLD_READS_BYTES > HEADER_BYTES_MAX {
        return false;
    }
    // About no operation in particular: there is always a first one.
    request.u16(TRAILER_TOLD_READS);
    request.u16(0);
    with_length(request, |out| told.fields().into_iter().for_each(|field| out.u64(field)));
    true
}

fn told_reads(body: &mut Reader<'_>) -> Result<ToldReads, DecodeError> {
    let fields = [body.u64()?, body.u64()?, body.u64()?];
    body.end()?;
    Ok(ToldReads::of_fields(fields))
}

/// Appends a reply to `out`: at most [`REPLY_BYTES_MAX`] bytes. There must be 1 to
/// [`CHAIN_MAX`] results.
pub fn encode_reply(reply: &Reply, out: &mut Vec<u8>) {
    let results = reply.results.as_deref().map_err(|status| *status);
    encode_results(reply.slot, reply.sequence, results, out);
}

/// As [`encode_reply`], of results that are in no [`Reply`].
pub fn encode_results(
    slot: SlotId,
    sequence: u32,
    results: Result<&[OpResult], Status>,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    let (results, status) = match results {
        Ok(results) => (results, 0),
        Err(status) => (&[][..], status_code(status)),
    };
    debug_assert!(status != 0 || chain_length(results.len()).is_ok(), "{results:?}");
    let results = results.get(..CHAIN_MAX).unwrap_or(results);
    let count = u16::try_from(results.len()).unwrap_or(u16::MAX);
    put_head(out, slot, count, [sequence, status]);
    results.iter().for_each(|result| put_result(out, result));
    debug_assert!(out.len() - start <= REPLY_BYTES_MAX);
}

/// Takes a reply apart.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_reply(bytes: &[u8]) -> Result<Reply, DecodeError> {
    let mut results = Vec::new();
    let (slot, sequence, done) = decode_results(bytes, &mut results)?;
    Ok(Reply { slot, sequence, results: done.map(|()| results) })
}

/// As [`decode_reply`], with the results in place of what `results` had: slot, sequence, and whether
/// there are any.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_results(
    bytes: &[u8],
    results: &mut Vec<OpResult>,
) -> Result<(SlotId, u32, Result<(), Status>), DecodeError> {
    results.clear();
    if let Some((slot, sequence, bytes, end_of_file)) = read::decode_read_reply(bytes) {
        results.push(Ok(Outcome::Read { bytes, end_of_file }));
        return Ok((slot, sequence, Ok(())));
    }
    decode_any_results(bytes, results)
}

fn decode_any_results(
    bytes: &[u8],
    results: &mut Vec<OpResult>,
) -> Result<(SlotId, u32, Result<(), Status>), DecodeError> {
    if bytes.len() > REPLY_BYTES_MAX {
        return Err(DecodeError::Limit("reply"));
    }
    let mut r = Reader::new(bytes);
    let (slot, count, [sequence, status]) = head(&mut r)?;
    if status != 0 {
        if count != 0 {
            return Err(DecodeError::Value("results"));
        }
        r.end()?;
        return Ok((slot, sequence, Err(Status::from_code(status))));
    }
    chain_length(count)?;
    for _ in 0..count {
        let number = r.u16()?;
        results.push(result(number, Reader::new(r.long()?))?);
    }
    trailers(&mut r, count, |_, _| Ok(()))?;
    Ok((slot, sequence, Ok(())))
}

/// What stands before the operations of a request and the results of a reply.
fn put_head(out: &mut Vec<u8>, slot: SlotId, count: u16, [a, b]: [u32; 2]) {
    let mut bytes = [0; HEAD_BYTES];
    bytes[0..2].copy_from_slice(&slot.0.to_le_bytes());
    bytes[2..4].copy_from_slice(&count.to_le_bytes());
    bytes[4..8].copy_from_slice(&a.to_le_bytes());
    bytes[8..12].copy_from_slice(&b.to_le_bytes());
    out.bytes(&bytes);
}

fn head(r: &mut Reader<'_>) -> Result<(SlotId, usize, [u32; 2]), DecodeError> {
    let mut head = Reader::new(r.take(HEAD_BYTES)?);
    let (slot, count) = (SlotId(head.u16()?), usize::from(head.u16()?));
    Ok((slot, count, [head.u32()?, head.u32()?]))
}

fn put_result(out: &mut Vec<u8>, result: &OpResult) {
    if read::put_result(out, result) {
        return;
    }
    let (number, status) = match result {
        Ok(outcome) => (outcomes::number(outcome), 0),
        Err(status) => (crate::opcode::outcome::NONE, status_code(*status)),
    };
    out.u16(number);
    with_length(out, |out| {
        out.u32(status);
        if let Ok(outcome) = result {
            outcomes::put(out, outcome);
        }
    });
}

/// Results of a chain, some of which may be missing, as bytes: there may be many, for long.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeptResults {
    count: u8,
    /// Bit `n`: the `n`-th is there.
    present: u16,
    encoded: Box<[u8]>,
}

/// Keeps the first [`CHAIN_MAX`] of `results`. `scratch` spares allocations.
pub(crate) fn keep_results<'a>(
    results: impl IntoIterator<Item = Option<&'a OpResult>>,
    scratch: &mut Vec<u8>,
) -> KeptResults {
    let (mut count, mut present) = (0, 0u16);
    scratch.clear();
    for result in results.into_iter().take(CHAIN_MAX) {
        if let Some(result) = result {
            present |= 1 << count;
            put_result(scratch, result);
        }
        count += 1;
    }
    KeptResults { count, present, encoded: scratch.as_slice().into() }
}

impl KeptResults {
    /// As they were.
    pub fn results(&self) -> Vec<Option<OpResult>> {
        let mut r = Reader::new(&self.encoded);
        let mut next = || -> Result<OpResult, DecodeError> {
            let number = r.u16()?;
            result(number, Reader::new(r.long()?))
        };
        // Reading what was encoded here does not fail; if it did, nothing must be done twice.
        let mut get = |is: bool| is.then(|| next().unwrap_or(Err(Status::ServerFault)));
        (0..self.count).map(|at| get(self.present & (1u16 << at) != 0)).collect()
    }

    /// Bytes that the encoded ones take.
    pub fn bytes(&self) -> usize {
        self.encoded.len()
    }
}

const _: () = assert!(CHAIN_MAX <= 16, "a bit for each");

fn result(number: u16, mut body: Reader<'_>) -> Result<OpResult, DecodeError> {
    let result = match body.u32()? {
        0 => Ok(outcomes::get(number, &mut body)?),
        code if number == crate::opcode::outcome::NONE => Err(Status::from_code(code)),
        _ => return Err(DecodeError::Value("outcome")),
    };
    body.end()?;
    Ok(result)
}

/// Trailers: what stands behind the `count` operations of a request, or its results, and says more about
/// one of them: `each` gets kind and body. Who does not know a kind goes on without it.
fn trailers<'a>(
    r: &mut Reader<'a>,
    count: usize,
    mut each: impl FnMut(u16, Reader<'a>) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    while !r.is_empty() {
        let (kind, operation) = (r.u16()?, usize::from(r.u16()?));
        let body = Reader::new(r.long()?);
        if operation >= count {
            return Err(DecodeError::Value("trailer"));
        }
        each(kind, body)?;
    }
    Ok(())
}

fn chain_length(count: usize) -> Result<u16, DecodeError> {
    match u16::try_from(count) {
        Ok(0) => Err(DecodeError::Value("chain")),
        Ok(count) if usize::from(count) <= CHAIN_MAX => Ok(count),
        _ => Err(DecodeError::Limit("chain")),
    }
}

/// A failure is never 0 on the wire, where that says success.
fn status_code(status: Status) -> u32 {
    match status.code() {
        0 => Status::ServerFault.code(),
        code => code,
    }
}
