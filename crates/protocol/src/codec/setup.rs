//! Set-up messages on the wire.

use super::DecodeError;
use super::wire::{Put, Reader};
use crate::handle::{ClientId, SessionId, WriteVerifier};
use crate::setup::{
    Dialled, PROTOCOL_VERSION, Purpose, REFUSAL_BYTES_MAX, SessionAttr, SetupReply, SetupRequest,
    SizeClass, WaitMode,
};
use crate::status::Status;

/// First bytes of every set-up message.
const MAGIC: [u8; 4] = *b"DAFS";

const HELLO: u16 = 1;
const PROVE: u16 = 2;
const READY: u16 = 1;
const CHALLENGE: u16 = 2;
const REFUSED: u16 = 3;

/// Appends a set-up message.
pub fn encode_setup_request(request: &SetupRequest, out: &mut Vec<u8>) {
    out.bytes(&MAGIC);
    match request {
        SetupRequest::Hello { version, nonce, class, keyed, purpose } => {
            out.u16(HELLO);
            out.u32(*version);
            out.bytes(nonce);
            out.u8(*class as u8);
            out.u8(u8::from(*keyed));
            match purpose {
                Purpose::Create { attr, client } => {
                    out.u8(1);
                    out.bytes(&client.0);
                    put_session_attr(out, attr);
                }
                Purpose::Bind { session, secret } => {
                    out.u8(2);
                    out.bytes(&session.0);
                    out.bytes(secret);
                }
            }
        }
        SetupRequest::Prove { dialled, proof } => {
            out.u16(PROVE);
            out.bytes(&dialled.0);
            out.bytes(proof);
        }
    }
}

/// Takes it apart.
///
/// # Errors
/// [`DecodeError`]; [`DecodeError::Version`] for a hello of another version, unless it happens to
/// have the form of ours: then `version` tells.
pub fn decode_setup_request(bytes: &[u8]) -> Result<SetupRequest, DecodeError> {
    let mut r = Reader::new(bytes);
    match message_kind(&mut r)? {
        HELLO => {
            let version = r.u32()?;
            hello(version, &mut r).map_err(|error| match version {
                PROTOCOL_VERSION => error,
                other => DecodeError::Version(other),
            })
        }
        PROVE => {
            let (dialled, proof) = (Dialled(r.array()?), r.array()?);
            r.end()?;
            Ok(SetupRequest::Prove { dialled, proof })
        }
        _ => Err(DecodeError::Value("set-up message")),
    }
}

fn hello(version: u32, r: &mut Reader<'_>) -> Result<SetupRequest, DecodeError> {
    let nonce = r.array()?;
    let class = match r.u8()? {
        0 => SizeClass::Any,
        1 => SizeClass::Small,
        2 => SizeClass::Bulk,
        _ => return Err(DecodeError::Value("size class")),
    };
    let keyed = match r.u8()? {
        0 => false,
        1 => true,
        _ => return Err(DecodeError::Value("keyed")),
    };
    let purpose = match r.u8()? {
        1 => {
            let client = ClientId(r.array()?);
            Purpose::Create { attr: session_attr(r)?, client }
        }
        2 => Purpose::Bind { session: SessionId(r.array()?), secret: r.array()? },
        _ => return Err(DecodeError::Value("purpose")),
    };
    r.end()?;
    Ok(SetupRequest::Hello { version, nonce, class, keyed, purpose })
}

/// Appends a set-up answer. The text of a refusal is cut after [`REFUSAL_BYTES_MAX`] bytes, and
/// its control characters become spaces.
pub fn encode_setup_reply(reply: &SetupReply, out: &mut Vec<u8>) {
    out.bytes(&MAGIC);
    match reply {
        SetupReply::Ready { session, secret, attr, verifier, proof, uid } => {
            out.u16(READY);
            out.bytes(&session.0);
            out.bytes(secret);
            put_session_attr(out, attr);
            out.verifier(verifier);
            out.u32(*uid);
            out.flags([proof.is_some()]);
            if let Some(proof) = proof {
                out.bytes(proof);
            }
        }
        SetupReply::Challenge { nonce } => {
            out.u16(CHALLENGE);
            out.bytes(nonce);
        }
        SetupReply::Refused { status, text } => {
            out.u16(REFUSED);
            out.u32(super::status_code(*status));
            out.short(printable(text).as_bytes());
        }
    }
}

/// Takes it apart.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_setup_reply(bytes: &[u8]) -> Result<SetupReply, DecodeError> {
    let mut r = Reader::new(bytes);
    let reply = match message_kind(&mut r)? {
        READY => SetupReply::Ready {
            session: SessionId(r.array()?),
            secret: r.array()?,
            attr: session_attr(&mut r)?,
            verifier: WriteVerifier(r.array()?),
            uid: r.u32()?,
            proof: if r.bool("proof")? { Some(r.array()?) } else { None },
        },
        CHALLENGE => SetupReply::Challenge { nonce: r.array()? },
        REFUSED => {
            let code = r.u32()?;
            if code == 0 {
                return Err(DecodeError::Value("status"));
            }
            let text = refusal(r.short()?)?;
            SetupReply::Refused { status: Status::from_code(code), text }
        }
        _ => return Err(DecodeError::Value("set-up message")),
    };
    r.end()?;
    Ok(reply)
}

/// What goes to a terminal must not command it.
fn refusal(bytes: &[u8]) -> Result<String, DecodeError> {
    if bytes.len() > REFUSAL_BYTES_MAX {
        return Err(DecodeError::Limit("text"));
    }
    let text = std::str::from_utf8(bytes).map_err(|_| DecodeError::Value("text"))?;
    if text.contains(char::is_control) {
        return Err(DecodeError::Value("text"));
    }
    Ok(text.to_owned())
}

fn printable(text: &str) -> String {
    let mut kept = String::new();
    for c in text.chars() {
        if kept.len() + c.len_utf8() > REFUSAL_BYTES_MAX {
            break;
        }
        kept.push(if c.is_control() { ' ' } else { c });
    }
    kept
}

fn message_kind(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    if r.array()? != MAGIC {
        return Err(DecodeError::Value("set-up message"));
    }
    r.u16()
}

pub(crate) fn put_session_attr(out: &mut Vec<u8>, attr: &SessionAttr) {
    out.u16(attr.slots);
    out.u32(attr.data_bytes_max);
    out.u32(attr.inline_bytes);
    out.u8(attr.wait as u8);
    out.u32(attr.lease_ms);
    out.flags([attr.tagged, attr.rdma_read, attr.read_ahead]);
}

fn session_attr(r: &mut Reader<'_>) -> Result<SessionAttr, DecodeError> {
    let (slots, data_bytes_max, inline_bytes) = (r.u16()?, r.u32()?, r.u32()?);
    let wait = match r.u8()? {
        0 => WaitMode::Adaptive,
        1 => WaitMode::Polled,
        2 => WaitMode::Sleeping,
        _ => return Err(DecodeError::Value("waiting mode")),
    };
    let lease_ms = r.u32()?;
    let [tagged, rdma_read, read_ahead] = r.flags("session attributes")?;
    Ok(SessionAttr {
        slots,
        data_bytes_max,
        inline_bytes,
        wait,
        lease_ms,
        tagged,
        rdma_read,
        read_ahead,
    })
}
