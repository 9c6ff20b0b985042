//! The results of a reply on the wire.

use super::DecodeError;
use super::wire::{Put, Reader};
use super::{attrs, operations, references};
use crate::cache::CacheInfo;
use crate::handle::CredHandle;
use crate::lock::{LockTicket, Locked};
use crate::opcode::outcome;
use crate::operation::{CHAIN_MAX, Outcome, RequestOutcome, SessionStats};
use crate::status::Status;

/// The number on the wire.
pub(super) fn number(result: &Outcome) -> u16 {
    match result {
        Outcome::Done => outcome::DONE,
        Outcome::Found { .. } => outcome::FOUND,
        Outcome::Opened { .. } => outcome::OPENED,
        Outcome::Closed { .. } => outcome::CLOSED,
        Outcome::Attributes { .. } => outcome::ATTRIBUTES,
        Outcome::Granted { .. } => outcome::GRANTED,
        Outcome::FileSystem { .. } => outcome::FILE_SYSTEM,
        Outcome::Data { .. } => outcome::DATA,
        Outcome::Read { .. } => outcome::READ,
        Outcome::Written { .. } => outcome::WRITTEN,
        Outcome::Committed { .. } => outcome::COMMITTED,
        Outcome::Offset { .. } => outcome::OFFSET,
        Outcome::Credential { .. } => outcome::CREDENTIAL,
        Outcome::Stats(_) => outcome::STATS,
        Outcome::Copied { .. } => outcome::COPIED,
        Outcome::Lock(_) => outcome::LOCK,
        Outcome::Conflict { .. } => outcome::CONFLICT,
        Outcome::RequestOutcome(_) => outcome::REQUEST_OUTCOME,
        Outcome::Advised { .. } => outcome::ADVISED,
        Outcome::Cached(_) => outcome::CACHED,
        Outcome::References(_) => outcome::REFS,
        Outcome::Named(_) => outcome::NAMED,
    }
}

/// Appends the body.
pub(super) fn put(out: &mut Vec<u8>, result: &Outcome) {
    match result {
        Outcome::Done => {}
        Outcome::Found { handle, attr } => {
            out.handle(handle);
            attrs::put_attr(out, attr);
        }
        Outcome::Opened { handle, state, attr, created } => {
            out.handle(handle);
            out.state(*state);
            out.flags([*created]);
            attrs::put_attr(out, attr);
        }
        Outcome::Closed { attr, verifier } => {
            out.verifier(verifier);
            attrs::put_attr(out, attr);
        }
        Outcome::Attributes { attr } => attrs::put_attr(out, attr),
        Outcome::Granted { mask } => out.u8(*mask),
        Outcome::FileSystem { attr } => attrs::put_fs_attr(out, attr),
        Outcome::Data { bytes, end } => {
            out.u32(*bytes);
            out.flags([*end]);
        }
        Outcome::Read { bytes, end_of_file } => {
            out.u32(*bytes);
            out.flags([*end_of_file]);
        }
        Outcome::Written { bytes, offset, stability, verifier } => {
            out.u32(*bytes);
            out.u64(*offset);
            out.u8(*stability as u8);
            out.verifier(verifier);
        }
        Outcome::Committed { verifier } => out.verifier(verifier),
        Outcome::Offset { offset } => {
            out.flags([offset.is_some()]);
            if let Some(offset) = offset {
                out.u64(*offset);
            }
        }
        Outcome::Credential { cred } => out.u32(cred.0),
        Outcome::Stats(stats) => put_stats(out, stats),
        Outcome::Copied { bytes } => out.u64(*bytes),
        Outcome::Lock(Locked::Granted) => out.u64(0),
        Outcome::Lock(Locked::Waiting(ticket)) => out.u64(ticket.0),
        Outcome::Conflict { held } => {
            out.flags([held.is_some(), held.is_some_and(|(_, ours)| ours)]);
            if let Some((lock, _)) = held {
                operations::put_lock(out, lock);
            }
        }
        Outcome::RequestOutcome(request_outcome) => put_request_outcome(out, request_outcome),
        Outcome::Advised { bytes, cache } => {
            out.u64(*bytes);
            operations::put_cache(out, cache);
        }
        Outcome::Cached(info) => put_cached(out, info),
        Outcome::References(info) => references::put(out, info),
        Outcome::Named(named) => references::put_named(out, named),
    }
}

/// Takes the body of the outcome `number`, and nothing after it.
pub(super) fn get(number: u16, r: &mut Reader<'_>) -> Result<Outcome, DecodeError> {
    Ok(match number {
        outcome::READ => Outcome::Read { bytes: r.u32()?, end_of_file: r.bool("result flags")? },
        outcome::DONE => Outcome::Done,
        outcome::FOUND => Outcome::Found { handle: r.handle()?, attr: attrs::attr(r)? },
        outcome::OPENED => Outcome::Opened {
            handle: r.handle()?,
            state: r.state()?,
            created: r.bool("result flags")?,
            attr: attrs::attr(r)?,
        },
        outcome::CLOSED => Outcome::Closed { verifier: r.verifier()?, attr: attrs::attr(r)? },
        outcome::ATTRIBUTES => Outcome::Attributes { attr: attrs::attr(r)? },
        outcome::GRANTED => Outcome::Granted { mask: r.u8()? },
        outcome::FILE_SYSTEM => Outcome::FileSystem { attr: attrs::fs_attr(r)? },
        outcome::DATA => Outcome::Data { bytes: r.u32()?, end: r.bool("result flags")? },
        outcome::WRITTEN => Outcome::Written {
            bytes: r.u32()?,
            offset: r.u64()?,
            stability: operations::stability(r)?,
            verifier: r.verifier()?,
        },
        outcome::COMMITTED => Outcome::Committed { verifier: r.verifier()? },
        outcome::OFFSET => {
            let is = r.bool("result flags")?;
            Outcome::Offset { offset: if is { Some(r.u64()?) } else { None } }
        }
        outcome::CREDENTIAL => Outcome::Credential { cred: CredHandle(r.u32()?) },
        outcome::STATS => Outcome::Stats(Box::new(stats(r)?)),
        outcome::COPIED => Outcome::Copied { bytes: r.u64()? },
        outcome::LOCK => Outcome::Lock(match r.u64()? {
            0 => Locked::Granted,
            ticket => Locked::Waiting(LockTicket(ticket)),
        }),
        outcome::CONFLICT => match r.flags("result flags")? {
            [true, ours] => Outcome::Conflict { held: Some((operations::lock(r)?, ours)) },
            [false, false] => Outcome::Conflict { held: None },
            [false, true] => return Err(DecodeError::Value("result flags")),
        },
        outcome::REQUEST_OUTCOME => Outcome::RequestOutcome(request_outcome(r)?),
        outcome::ADVISED => Outcome::Advised { bytes: r.u64()?, cache: operations::cache(r)? },
        outcome::CACHED => Outcome::Cached(cached(r)?),
        outcome::REFS => Outcome::References(references::get(r)?),
        outcome::NAMED => Outcome::Named(references::get_named(r)?),
        _ => return Err(DecodeError::Value("outcome")),
    })
}

fn put_cached(out: &mut Vec<u8>, info: &CacheInfo) {
    out.u32(info.bytes);
    out.flags([info.next.is_some()]);
    out.u64(info.next.unwrap_or(0));
    out.u64(info.size);
    out.u64(info.clean_bytes);
    out.u64(info.dirty_bytes);
    operations::put_cache(out, &info.cache);
}

fn cached(r: &mut Reader<'_>) -> Result<CacheInfo, DecodeError> {
    let (bytes, goes_on, next) = (r.u32()?, r.bool("result flags")?, r.u64()?);
    if !goes_on && next != 0 {
        return Err(DecodeError::Value("next offset"));
    }
    Ok(CacheInfo {
        bytes,
        next: goes_on.then_some(next),
        size: r.u64()?,
        clean_bytes: r.u64()?,
        dirty_bytes: r.u64()?,
        cache: operations::cache(r)?,
    })
}

fn put_request_outcome(out: &mut Vec<u8>, request_outcome: &RequestOutcome) {
    match request_outcome {
        RequestOutcome::Unknown => out.u8(0),
        RequestOutcome::NotBegun => out.u8(1),
        RequestOutcome::Begun => out.u8(2),
        RequestOutcome::Done { operations, status, value, created } => {
            out.u8(3);
            out.u16(*operations);
            out.u32(status.err().map_or(0, Status::code));
            out.u64(*value);
            out.flags([*created]);
        }
    }
}

fn request_outcome(r: &mut Reader<'_>) -> Result<RequestOutcome, DecodeError> {
    Ok(match r.u8()? {
        0 => RequestOutcome::Unknown,
        1 => RequestOutcome::NotBegun,
        2 => RequestOutcome::Begun,
        3 => {
            let operations = r.u16()?;
            if usize::from(operations) > CHAIN_MAX {
                return Err(DecodeError::Limit("operations"));
            }
            let status = match r.u32()? {
                0 => Ok(()),
                code => Err(Status::from_code(code)),
            };
            RequestOutcome::Done {
                operations,
                status,
                value: r.u64()?,
                created: r.bool("result flags")?,
            }
        }
        _ => return Err(DecodeError::Value("request outcome")),
    })
}

fn put_stats(out: &mut Vec<u8>, stats: &SessionStats) {
    for number in [
        stats.session_requests,
        stats.session_replays,
        stats.session_bytes_read,
        stats.session_bytes_written,
        stats.cpu_ns,
        stats.system_calls,
        stats.copied_bytes,
        stats.registrations,
        stats.resident_bytes,
        stats.arena_bytes,
        stats.dirty_bytes,
        stats.cache_hits,
        stats.cache_misses,
        stats.sessions,
        stats.opens,
    ] {
        out.u64(number);
    }
}

fn stats(r: &mut Reader<'_>) -> Result<SessionStats, DecodeError> {
    Ok(SessionStats {
        session_requests: r.u64()?,
        session_replays: r.u64()?,
        session_bytes_read: r.u64()?,
        session_bytes_written: r.u64()?,
        cpu_ns: r.u64()?,
        system_calls: r.u64()?,
        copied_bytes: r.u64()?,
        registrations: r.u64()?,
        resident_bytes: r.u64()?,
        arena_bytes: r.u64()?,
        dirty_bytes: r.u64()?,
        cache_hits: r.u64()?,
        cache_misses: r.u64()?,
        sessions: r.u64()?,
        opens: r.u64()?,
    })
}
