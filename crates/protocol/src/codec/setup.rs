//! Set-up messages on the wire.

use super::DecodeError;
use super::wire::{Put, Reader, with_length};
use crate::handle::{ClientId, SessionId, WriteVerifier};
use crate::setup::{
    ADDRESS_BYTES_MAX, ADDRESSES_MAX, Dialled, Features, PROTOCOL_VERSION, PROTOCOL_VERSION_OLDEST,
    Proof, Purpose, REFUSAL_BYTES_MAX, SessionAttr, SetupReply, SetupRequest, SizeClass, WaitMode,
};
use crate::status::Status;

/// First bytes of every set-up message.
const MAGIC: [u8; 4] = *b"DAFS";

const HELLO: u16 = 1;
const PROVE: u16 = 2;
const READY: u16 = 1;
const CHALLENGE: u16 = 2;
const REFUSED: u16 = 3;

/// How a client proves itself: by a pre-shared key. Other numbers and bits are for keys of users and
/// hosts, and for certificates.
const METHOD_SHARED_KEY: u16 = 1;

/// An option whose kind has this bit must be understood; others that are not known are left out.
const OPTION_CRITICAL: u16 = 0x8000;
/// An address of the server.
const OPTION_ADDRESS: u16 = 1;
/// By what clients of its host find it.
const OPTION_SAME_HOST: u16 = 2;

/// Appends a set-up message.
pub fn encode_setup_request(request: &SetupRequest, out: &mut Vec<u8>) {
    out.bytes(&MAGIC);
    match request {
        SetupRequest::Hello {
            version,
            oldest,
            features,
            attempt,
            nonce,
            class,
            keyed,
            purpose,
        } => {
            out.u16(HELLO);
            out.u32(*version);
            out.u32(*oldest);
            out.u64(features.0);
            out.u64(*attempt);
            out.bytes(nonce);
            out.u8(*class as u8);
            out.u16(if *keyed { METHOD_SHARED_KEY } else { 0 });
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
            out.u16(METHOD_SHARED_KEY);
            out.bytes(&dialled.0);
            out.bytes(proof);
        }
    }
}

/// Takes it apart.
///
/// # Errors
/// [`DecodeError`]; [`DecodeError::Version`] for a hello of a version before
/// [`PROTOCOL_VERSION_OLDEST`], or of a newer one with another form.
pub fn decode_setup_request(bytes: &[u8]) -> Result<SetupRequest, DecodeError> {
    let mut r = Reader::new(bytes);
    match message_kind(&mut r)? {
        HELLO => {
            let version = r.u32()?;
            if version < PROTOCOL_VERSION_OLDEST {
                return Err(DecodeError::Version(version));
            }
            hello(version, &mut r).map_err(|error| match version {
                ..=PROTOCOL_VERSION => error,
                newer => DecodeError::Version(newer),
            })
        }
        PROVE => {
            method(&mut r)?;
            let (dialled, proof) = (Dialled(r.array()?), r.array()?);
            r.end()?;
            Ok(SetupRequest::Prove { dialled, proof })
        }
        _ => Err(DecodeError::Value("set-up message")),
    }
}

/// How to prove who one is, in a challenge and in its answer. What follows is of this method.
fn method(r: &mut Reader<'_>) -> Result<(), DecodeError> {
    match r.u16()? {
        METHOD_SHARED_KEY => Ok(()),
        _ => Err(DecodeError::Value("way to prove who one is")),
    }
}

/// All options that are left in `r`; `take` says whether it knows the kind.
fn options(
    r: &mut Reader<'_>,
    mut take: impl FnMut(u16, &[u8]) -> Result<bool, DecodeError>,
) -> Result<(), DecodeError> {
    while !r.is_empty() {
        let (kind, body) = (r.u16()?, r.long()?);
        if !take(kind, body)? && kind & OPTION_CRITICAL != 0 {
            return Err(DecodeError::Value("option that must be understood"));
        }
    }
    Ok(())
}

fn hello(version: u32, r: &mut Reader<'_>) -> Result<SetupRequest, DecodeError> {
    let (oldest, features) = (r.u32()?, Features(r.u64()?));
    if oldest > version {
        return Err(DecodeError::Value("oldest version"));
    }
    let (attempt, nonce) = (r.u64()?, r.array()?);
    let class = match r.u8()? {
        0 => SizeClass::Any,
        1 => SizeClass::Small,
        2 => SizeClass::Bulk,
        _ => return Err(DecodeError::Value("size class")),
    };
    let keyed = r.u16()? & METHOD_SHARED_KEY != 0;
    let purpose = match r.u8()? {
        1 => {
            let client = ClientId(r.array()?);
            Purpose::Create { attr: session_attr(r)?, client }
        }
        2 => Purpose::Bind { session: SessionId(r.array()?), secret: r.array()? },
        _ => return Err(DecodeError::Value("purpose")),
    };
    options(r, |_, _| Ok(false))?;
    Ok(SetupRequest::Hello { version, oldest, features, attempt, nonce, class, keyed, purpose })
}

/// Appends a set-up answer. The text of a refusal is cut after [`REFUSAL_BYTES_MAX`] bytes and an address
/// after [`ADDRESS_BYTES_MAX`], and their control characters become spaces; addresses beyond
/// [`ADDRESSES_MAX`] are left out. The proof of a Ready is the end of it.
pub fn encode_setup_reply(reply: &SetupReply, out: &mut Vec<u8>) {
    out.bytes(&MAGIC);
    match reply {
        SetupReply::Ready {
            version,
            features,
            session,
            secret,
            attr,
            verifier,
            proof,
            uid,
            addresses,
            same_host,
        } => {
            out.u16(READY);
            out.u32(*version);
            out.u64(features.0);
            out.bytes(&session.0);
            out.bytes(secret);
            put_session_attr(out, attr);
            out.verifier(verifier);
            out.u32(*uid);
            with_length(out, |out| {
                for address in addresses.iter().take(ADDRESSES_MAX) {
                    out.u16(OPTION_ADDRESS);
                    out.long(printable(address, ADDRESS_BYTES_MAX).as_bytes());
                }
                if let Some(token) = same_host {
                    out.u16(OPTION_SAME_HOST);
                    out.long(token);
                }
            });
            put_proof(out, proof.as_ref());
        }
        SetupReply::Challenge { nonce } => {
            out.u16(CHALLENGE);
            out.u16(METHOD_SHARED_KEY);
            out.bytes(nonce);
        }
        SetupReply::Refused { status, text, proof } => {
            out.u16(REFUSED);
            out.u32(super::status_code(*status));
            out.short(printable(text, REFUSAL_BYTES_MAX).as_bytes());
            with_length(out, |_| {});
            put_proof(out, proof.as_ref());
        }
    }
}

fn put_proof(out: &mut Vec<u8>, proof: Option<&Proof>) {
    out.flags([proof.is_some()]);
    out.bytes(proof.map_or(&[], |proof| &proof[..]));
}

fn proof(r: &mut Reader<'_>) -> Result<Option<Proof>, DecodeError> {
    let proof = if r.bool("proof")? { Some(r.array()?) } else { None };
    r.end()?;
    Ok(proof)
}

/// Adds a proof to an encoded Ready or Refused without one: `prove` is told all that it covers.
pub fn add_proof(reply: &mut Vec<u8>, prove: impl FnOnce(&[u8]) -> Proof) {
    if let Some(flags) = reply.last_mut() {
        *flags = 1;
        let proof = prove(reply);
        reply.extend_from_slice(&proof);
    }
}

/// What the proof of an encoded Ready or Refused covers.
pub fn before_proof(reply: &[u8]) -> &[u8] {
    reply.split_last_chunk::<{ size_of::<Proof>() }>().map_or(reply, |(said, _)| said)
}

/// Takes it apart. What goes to people comes without characters that change how a terminal shows text.
///
/// # Errors
/// [`DecodeError`].
pub fn decode_setup_reply(bytes: &[u8]) -> Result<SetupReply, DecodeError> {
    let mut r = Reader::new(bytes);
    match message_kind(&mut r)? {
        READY => ready(&mut r),
        CHALLENGE => {
            method(&mut r)?;
            let nonce = r.array()?;
            r.end()?;
            Ok(SetupReply::Challenge { nonce })
        }
        REFUSED => {
            let code = r.u32()?;
            if code == 0 {
                return Err(DecodeError::Value("status"));
            }
            let text = r.short()?;
            let text = match plain_text(text, REFUSAL_BYTES_MAX) {
                Some(text) => text.to_owned(),
                None => return Err(DecodeError::Value("text")),
            };
            options(&mut Reader::new(r.long()?), |_, _| Ok(false))?;
            let proof = proof(&mut r)?;
            Ok(SetupReply::Refused { status: Status::from_code(code), text, proof })
        }
        _ => Err(DecodeError::Value("set-up message")),
    }
}

fn ready(r: &mut Reader<'_>) -> Result<SetupReply, DecodeError> {
    let (version, features) = (r.u32()?, Features(r.u64()?));
    if !(PROTOCOL_VERSION_OLDEST..=PROTOCOL_VERSION).contains(&version) {
        return Err(DecodeError::Version(version));
    }
    let (session, secret, attr) = (SessionId(r.array()?), r.array()?, session_attr(r)?);
    let (verifier, uid) = (WriteVerifier(r.array()?), r.u32()?);
    let (mut addresses, mut same_host) = (Vec::new(), None);
    options(&mut Reader::new(r.long()?), |kind, body| {
        match kind {
            // Those that are too many, too long or no plain text are left out.
            OPTION_ADDRESS if addresses.len() < ADDRESSES_MAX => {
                addresses.extend(plain_text(body, ADDRESS_BYTES_MAX).map(str::to_owned));
            }
            // One of another length is none that this end knows.
            OPTION_SAME_HOST => same_host = same_host.or(body.try_into().ok()),
            _ => {}
        }
        Ok(matches!(kind, OPTION_ADDRESS | OPTION_SAME_HOST))
    })?;
    let proof = proof(r)?;
    Ok(SetupReply::Ready {
        version,
        features,
        session,
        secret,
        attr,
        verifier,
        proof,
        uid,
        addresses,
        same_host,
    })
}

/// What goes to a terminal must not command it.
fn plain_text(bytes: &[u8], bytes_max: usize) -> Option<&str> {
    let text = std::str::from_utf8(bytes.get(..bytes.len().min(bytes_max + 1))?).ok()?;
    (text.len() <= bytes_max && !text.contains(is_command)).then_some(text)
}

/// Control characters, and those that turn the direction of text.
fn is_command(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn printable(text: &str, bytes_max: usize) -> String {
    let mut kept = String::new();
    for c in text.chars() {
        if kept.len() + c.len_utf8() > bytes_max {
            break;
        }
        kept.push(if is_command(c) { ' ' } else { c });
    }
    kept
}

fn message_kind(r: &mut Reader<'_>) -> Result<u16, DecodeError> {
    if r.array()? != MAGIC {
        return Err(DecodeError::Value("set-up message"));
    }
    r.u16()
}

/// With a length before them: later versions have more, which earlier ones do not read.
fn put_session_attr(out: &mut Vec<u8>, attr: &SessionAttr) {
    with_length(out, |out| {
        out.u16(attr.slots);
        out.u32(attr.data_bytes_max);
        out.u32(attr.inline_bytes);
        out.u8(attr.wait as u8);
        out.u32(attr.lease_ms);
        out.flags([attr.tagged, attr.rdma_read, attr.read_ahead]);
    });
}

fn session_attr(r: &mut Reader<'_>) -> Result<SessionAttr, DecodeError> {
    let mut r = Reader::new(r.long()?);
    let (slots, data_bytes_max, inline_bytes) = (r.u16()?, r.u32()?, r.u32()?);
    let wait = match r.u8()? {
        0 => WaitMode::Adaptive,
        1 => WaitMode::Polled,
        2 => WaitMode::Sleeping,
        _ => return Err(DecodeError::Value("waiting mode")),
    };
    let (lease_ms, flags) = (r.u32()?, r.u8()?);
    let flag = |bit: u8| flags >> bit & 1 == 1;
    let (tagged, rdma_read, read_ahead) = (flag(0), flag(1), flag(2));
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
