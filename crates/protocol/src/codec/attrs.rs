//! Attributes of files and file systems on the wire.

use super::DecodeError;
use super::wire::{Put, Reader};
use crate::attr::{Attr, FileKind, FsAttr, ObjectId, SetAttr, SetTime, Timestamp};

pub(super) fn kind(reader: &mut Reader<'_>) -> Result<FileKind, DecodeError> {
    optional_kind(reader)?.ok_or(DecodeError::Value("kind of file"))
}

/// 0 where it is not known.
pub(super) fn optional_kind(reader: &mut Reader<'_>) -> Result<Option<FileKind>, DecodeError> {
    Ok(Some(match reader.u8()? {
        0 => return Ok(None),
        1 => FileKind::File,
        2 => FileKind::Directory,
        3 => FileKind::Symlink,
        4 => FileKind::Fifo,
        5 => FileKind::Socket,
        6 => FileKind::CharDevice,
        7 => FileKind::BlockDevice,
        _ => return Err(DecodeError::Value("kind of file")),
    }))
}

fn put_time(out: &mut Vec<u8>, time: Timestamp) {
    out.i64(time.seconds);
    out.u32(time.nanoseconds);
}

fn time(reader: &mut Reader<'_>) -> Result<Timestamp, DecodeError> {
    let time = Timestamp { seconds: reader.i64()?, nanoseconds: reader.u32()? };
    if time.nanoseconds > 999_999_999 {
        return Err(DecodeError::Value("nanoseconds"));
    }
    Ok(time)
}

/// Bytes that [`put_attr`] appends.
pub(super) fn attr_bytes(attr: &Attr) -> usize {
    114 + if attr.created.is_some() { 12 } else { 0 }
}

pub(super) fn put_attr(out: &mut Vec<u8>, attr: &Attr) {
    out.u8(attr.kind as u8);
    for number in [attr.mode, attr.links, attr.uid, attr.gid, attr.block_size] {
        out.u32(number);
    }
    for number in [attr.size, attr.allocated] {
        out.u64(number);
    }
    put_id(out, &attr.id());
    for number in [attr.rdev, attr.change] {
        out.u64(number);
    }
    for time in [attr.accessed, attr.modified, attr.changed] {
        put_time(out, time);
    }
    out.flags([attr.created.is_some()]);
    if let Some(time) = attr.created {
        put_time(out, time);
    }
}

/// Bytes that [`put_id`] appends.
pub(super) const ID_BYTES: usize = 24;

pub(super) fn put_id(out: &mut Vec<u8>, id: &ObjectId) {
    for number in [id.inode, id.device, id.number] {
        out.u64(number);
    }
}

pub(super) fn id(reader: &mut Reader<'_>) -> Result<ObjectId, DecodeError> {
    Ok(ObjectId { inode: reader.u64()?, device: reader.u64()?, number: reader.u64()? })
}

pub(super) fn attr(reader: &mut Reader<'_>) -> Result<Attr, DecodeError> {
    let kind = kind(reader)?;
    let (mode, links, uid, gid) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
    let block_size = reader.u32()?;
    Ok(Attr {
        kind,
        mode,
        links,
        uid,
        gid,
        block_size,
        size: reader.u64()?,
        allocated: reader.u64()?,
        inode: reader.u64()?,
        device: reader.u64()?,
        number: reader.u64()?,
        rdev: reader.u64()?,
        change: reader.u64()?,
        accessed: time(reader)?,
        modified: time(reader)?,
        changed: time(reader)?,
        created: if reader.bool("attributes")? { Some(time(reader)?) } else { None },
    })
}

pub(super) fn put_set_attr(out: &mut Vec<u8>, set: &SetAttr) {
    let to = |time: Option<SetTime>| match time {
        Some(SetTime::To(time)) => Some(time),
        _ => None,
    };
    let (accessed, modified) = (to(set.accessed), to(set.modified));
    out.flags([
        set.size.is_some(),
        set.mode.is_some(),
        set.uid.is_some(),
        set.gid.is_some(),
        set.accessed == Some(SetTime::Now),
        accessed.is_some(),
        set.modified == Some(SetTime::Now),
        modified.is_some(),
    ]);
    if let Some(size) = set.size {
        out.u64(size);
    }
    for number in [set.mode, set.uid, set.gid].into_iter().flatten() {
        out.u32(number);
    }
    for time in [accessed, modified].into_iter().flatten() {
        put_time(out, time);
    }
}

pub(super) fn set_attr(reader: &mut Reader<'_>) -> Result<SetAttr, DecodeError> {
    let [size, mode, uid, gid, now_a, to_a, now_m, to_m] = reader.flags("attributes to set")?;
    let size = if size { Some(reader.u64()?) } else { None };
    let mut number = |wanted: bool| if wanted { reader.u32().map(Some) } else { Ok(None) };
    let (mode, uid, gid) = (number(mode)?, number(uid)?, number(gid)?);
    let mut set_time = |now: bool, to: bool| match (now, to) {
        (true, true) => Err(DecodeError::Value("time to set")),
        (true, false) => Ok(Some(SetTime::Now)),
        (false, true) => Ok(Some(SetTime::To(time(reader)?))),
        (false, false) => Ok(None),
    };
    let (accessed, modified) = (set_time(now_a, to_a)?, set_time(now_m, to_m)?);
    Ok(SetAttr { size, mode, uid, gid, accessed, modified })
}

pub(super) fn put_fs_attr(out: &mut Vec<u8>, attr: &FsAttr) {
    for number in [attr.bytes_total, attr.bytes_free, attr.bytes_available] {
        out.u64(number);
    }
    for number in [attr.files_total, attr.files_free] {
        out.u64(number);
    }
    for number in [attr.name_bytes_max, attr.block_size, attr.lease_seconds] {
        out.u32(number);
    }
    out.flags([attr.read_only]);
}

pub(super) fn fs_attr(reader: &mut Reader<'_>) -> Result<FsAttr, DecodeError> {
    Ok(FsAttr {
        bytes_total: reader.u64()?,
        bytes_free: reader.u64()?,
        bytes_available: reader.u64()?,
        files_total: reader.u64()?,
        files_free: reader.u64()?,
        name_bytes_max: reader.u32()?,
        block_size: reader.u32()?,
        lease_seconds: reader.u32()?,
        read_only: reader.bool("file system attributes")?,
    })
}
