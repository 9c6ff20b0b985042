//! Callbacks on the wire.

use super::DecodeError;
use super::wire::{Put, Reader};
use crate::callback::{CALLBACK_SLOTS, Callback, CallbackReply, CallbackRequest};
use crate::handle::SlotId;
use crate::lock::LockTicket;
use crate::opcode as op;
use crate::status::Status;

/// Appends a callback.
pub fn encode_callback(callback: &CallbackRequest, out: &mut Vec<u8>) {
    out.u16(callback.slot.0);
    out.u32(callback.sequence);
    out.flags([callback.referring.is_some()]);
    if let Some((slot, sequence)) = callback.referring {
        out.u16(slot.0);
        out.u32(sequence);
    }
    match callback.what {
        Callback::Null => out.u16(op::CB_NULL),
        Callback::Lock { ticket, result } => {
            out.u16(op::CB_LOCK);
            out.u64(ticket.0);
            put_result(out, result);
        }
    }
}

/// Takes it apart. The slot is below [`CALLBACK_SLOTS`].
///
/// # Errors
/// [`DecodeError`].
pub fn decode_callback(bytes: &[u8]) -> Result<CallbackRequest, DecodeError> {
    let mut r = Reader::new(bytes);
    let (slot, sequence) = (slot(&mut r)?, r.u32()?);
    let referring = match r.bool("callback flags")? {
        true => Some((SlotId(r.u16()?), r.u32()?)),
        false => None,
    };
    let what = match r.u16()? {
        op::CB_NULL => Callback::Null,
        op::CB_LOCK => {
            let ticket = LockTicket(r.u64()?);
            if ticket.0 == 0 {
                return Err(DecodeError::Value("ticket"));
            }
            Callback::Lock { ticket, result: result(&mut r)? }
        }
        _ => return Err(DecodeError::Value("callback")),
    };
    r.end()?;
    Ok(CallbackRequest { slot, sequence, referring, what })
}

/// Appends the answer.
pub fn encode_callback_reply(reply: &CallbackReply, out: &mut Vec<u8>) {
    out.u16(reply.slot.0);
    out.u32(reply.sequence);
    put_result(out, reply.result);
}

/// Takes it apart. The slot is below [`CALLBACK_SLOTS`].
///
/// # Errors
/// [`DecodeError`].
pub fn decode_callback_reply(bytes: &[u8]) -> Result<CallbackReply, DecodeError> {
    let mut r = Reader::new(bytes);
    let (slot, sequence) = (slot(&mut r)?, r.u32()?);
    let result = result(&mut r)?;
    r.end()?;
    Ok(CallbackReply { slot, sequence, result })
}

fn slot(r: &mut Reader<'_>) -> Result<SlotId, DecodeError> {
    let slot = r.u16()?;
    if slot < CALLBACK_SLOTS { Ok(SlotId(slot)) } else { Err(DecodeError::Value("slot")) }
}

fn put_result(out: &mut Vec<u8>, result: Result<(), Status>) {
    out.u32(result.err().map_or(0, super::status_code));
}

fn result(r: &mut Reader<'_>) -> Result<Result<(), Status>, DecodeError> {
    Ok(match r.u32()? {
        0 => Ok(()),
        code => Err(Status::from_code(code)),
    })
}
