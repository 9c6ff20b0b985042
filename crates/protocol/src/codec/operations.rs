//! The operations of a request on the wire.

use super::DecodeError;
use super::attrs;
use super::wire::{Put, Reader};
use crate::cache::CacheHint;
use crate::handle::{CredHandle, SessionId, SlotId};
use crate::lock::{LockKind, LockRange, LockRequest, LockTicket, OwnerKey};
use crate::opcode as op;
use crate::operation::{
    CommitLevel, CreateMode, Extent, ExtentList, OpenFlags, Operation, Stability,
};

impl Operation<'_> {
    /// The number on the wire.
    pub fn opcode(&self) -> u16 {
        use Operation as O;
        match self {
            O::Null => op::NULL,
            O::GetRoot { .. } => op::GET_ROOT,
            O::Lookup { .. } => op::LOOKUP,
            O::LookupParent { .. } => op::LOOKUP_PARENT,
            O::Open { .. } => op::OPEN,
            O::Close { .. } => op::CLOSE,
            O::OpenDowngrade { .. } => op::OPEN_DOWNGRADE,
            O::Create { .. } => op::CREATE,
            O::Link { .. } => op::LINK,
            O::Remove { .. } => op::REMOVE,
            O::Rename { .. } => op::RENAME,
            O::ReadDir { .. } => op::READ_DIR,
            O::ReadLink { .. } => op::READ_LINK,
            O::GetAttr { .. } => op::GET_ATTR,
            O::SetAttr { .. } => op::SET_ATTR,
            O::Access { .. } => op::ACCESS,
            O::StatFs { .. } => op::STAT_FS,
            O::GetXattr { .. } => op::GET_XATTR,
            O::SetXattr { .. } => op::SET_XATTR,
            O::ListXattr { .. } => op::LIST_XATTR,
            O::RemoveXattr { .. } => op::REMOVE_XATTR,
            O::Read { .. } => op::READ,
            O::Write { .. } => op::WRITE,
            O::Append { .. } => op::APPEND,
            O::Commit { .. } => op::COMMIT,
            O::SyncFs { .. } => op::SYNC_FS,
            O::SyncDir { .. } => op::SYNC_DIR,
            O::Fallocate { .. } => op::FALLOCATE,
            O::Seek { .. } => op::SEEK,
            O::Advise { .. } => op::ADVISE,
            O::Extents { .. } => op::EXTENTS,
            O::CacheQuery { .. } => op::CACHE_QUERY,
            O::RefsGet { .. } => op::REFS_GET,
            O::CopyRange { .. } => op::COPY_RANGE,
            O::CloneRange { .. } => op::CLONE_RANGE,
            O::Lock { .. } => op::LOCK,
            O::LockTest { .. } => op::LOCK_TEST,
            O::Unlock { .. } => op::UNLOCK,
            O::LockCancel { .. } => op::LOCK_CANCEL,
            O::OwnerRelease { .. } => op::OWNER_RELEASE,
            O::ReclaimComplete => op::RECLAIM_COMPLETE,
            O::SlotQuery { .. } => op::SLOT_QUERY,
            O::CredRegister { .. } => op::CRED_REGISTER,
            O::CredRelease { .. } => op::CRED_RELEASE,
            O::SessionStats => op::SESSION_STATS,
            O::SessionDestroy => op::SESSION_DESTROY,
            O::Unknown { opcode, .. } => *opcode,
        }
    }
}

/// Appends the body of an operation that was checked.
#[expect(clippy::too_many_lines, reason = "a table of operations")]
pub(super) fn put(out: &mut Vec<u8>, operation: &Operation<'_>) {
    use Operation as O;
    match operation {
        O::Read { state, extents } => {
            out.state(*state);
            out.flags([]);
            put_extents(out, extents);
        }
        O::Write { state, extents, stability, within } => {
            out.state(*state);
            out.u8(*stability as u8);
            out.u8(u8::from(*within));
            put_extents(out, extents);
        }
        O::Append { state, bytes, stability } => {
            out.state(*state);
            out.u8(*stability as u8);
            out.u32(*bytes);
        }
        O::Commit { state, offset, len, level } => {
            out.state(*state);
            out.u64(*offset);
            out.u64(*len);
            out.u8(*level as u8);
        }
        O::CacheQuery { handle, state, offset, len, bytes_max } => {
            out.handle(handle);
            out.state(*state);
            out.u64(*offset);
            out.u64(*len);
            out.u32(*bytes_max);
        }
        O::RefsGet { state, first, count, accessed } => {
            out.state(*state);
            out.u64(*first);
            out.u32(*count);
            out.u64(*accessed);
        }
        O::Extents { state, offset, len, bytes_max } => {
            out.state(*state);
            out.u64(*offset);
            out.u64(*len);
            out.u32(*bytes_max);
        }
        O::CopyRange { from, from_offset, to, to_offset, len }
        | O::CloneRange { from, from_offset, to, to_offset, len } => {
            out.state(*from);
            out.u64(*from_offset);
            out.state(*to);
            out.u64(*to_offset);
            out.u64(*len);
        }
        O::Lock { state, lock, wait, reclaim } => {
            out.state(*state);
            out.flags([*wait, *reclaim]);
            put_lock(out, lock);
        }
        O::LockTest { state, lock } => {
            out.state(*state);
            put_lock(out, lock);
        }
        O::Unlock { state, owner, range } => {
            out.state(*state);
            put_owner(out, owner);
            put_range(out, range);
        }
        O::LockCancel { ticket } => out.u64(ticket.0),
        O::OwnerRelease { owner } => put_owner(out, owner),
        O::Fallocate { state, mode, offset, len } => {
            out.state(*state);
            out.u32(*mode);
            out.u64(*offset);
            out.u64(*len);
        }
        O::Seek { state, offset, hole } => {
            out.state(*state);
            out.u64(*offset);
            out.flags([*hole]);
        }
        O::Advise { state, offset, len, advice, cache } => {
            out.state(*state);
            out.u64(*offset);
            out.u64(*len);
            out.u8(*advice);
            put_cache(out, cache);
        }
        O::Close { state } => out.state(*state),
        O::OpenDowngrade { state, read, write } => {
            out.state(*state);
            out.flags([*read, *write]);
        }
        O::CredRegister { uid, gid, groups } => {
            out.u32(*uid);
            out.u32(*gid);
            out.long(groups);
        }
        O::CredRelease { cred } => out.u32(cred.0),
        O::SlotQuery { session, slot, sequence } => {
            out.bytes(&session.0);
            out.u16(slot.0);
            out.u32(*sequence);
        }
        O::Null | O::SessionStats | O::SessionDestroy | O::ReclaimComplete => {}
        O::Unknown { body, .. } => out.bytes(body),
        names => put_names(out, names),
    }
}

/// Those that name an object by handle.
fn put_names(out: &mut Vec<u8>, operation: &Operation<'_>) {
    use Operation as O;
    match operation {
        O::GetRoot { export } => out.short(export),
        O::Lookup { dir, path, no_follow } => {
            out.handle(dir);
            out.flags([*no_follow]);
            out.long(path);
        }
        O::Open { dir, path, flags, mode, cache } => {
            out.handle(dir);
            put_open_flags(out, *flags);
            out.u32(*mode);
            put_cache(out, cache);
            out.long(path);
        }
        O::Create { dir, name, kind, mode, rdev, target_bytes } => {
            out.handle(dir);
            out.u8(*kind as u8);
            out.u32(*mode);
            out.u64(*rdev);
            out.u32(*target_bytes);
            out.short(name);
        }
        O::Link { handle, state, dir, name } => {
            out.handle(handle);
            out.state(*state);
            out.handle(dir);
            out.short(name);
        }
        O::Remove { dir, name, directory } => {
            out.handle(dir);
            out.flags([*directory]);
            out.short(name);
        }
        O::Rename { from_dir, from, to_dir, to, no_replace, exchange, whiteout } => {
            out.handle(from_dir);
            out.handle(to_dir);
            out.flags([*no_replace, *exchange, *whiteout]);
            out.short(from);
            out.short(to);
        }
        O::ReadDir { dir, cookie, bytes_max, attributes, handles } => {
            out.handle(dir);
            out.u64(*cookie);
            out.u32(*bytes_max);
            out.flags([*attributes, *handles]);
        }
        O::LookupParent { handle }
        | O::ReadLink { handle }
        | O::StatFs { handle }
        | O::SyncFs { handle }
        | O::SyncDir { dir: handle } => out.handle(handle),
        attributes => put_attributes(out, attributes),
    }
}

fn put_attributes(out: &mut Vec<u8>, operation: &Operation<'_>) {
    use Operation as O;
    match operation {
        O::GetAttr { handle, state } => {
            out.handle(handle);
            out.state(*state);
        }
        O::SetAttr { handle, state, set } => {
            out.handle(handle);
            out.state(*state);
            attrs::put_set_attr(out, set);
        }
        O::Access { handle, mask } => {
            out.handle(handle);
            out.u8(*mask);
        }
        O::GetXattr { handle, name, size_max } => {
            out.handle(handle);
            out.u32(*size_max);
            out.short(name);
        }
        O::SetXattr { handle, name, value_bytes, flags } => {
            out.handle(handle);
            out.u32(*value_bytes);
            out.u8(*flags);
            out.short(name);
        }
        O::ListXattr { handle, size_max } => {
            out.handle(handle);
            out.u32(*size_max);
        }
        O::RemoveXattr { handle, name } => {
            out.handle(handle);
            out.short(name);
        }
        other => unreachable!("{other:?} was handled before"),
    }
}

/// Takes the body of the operation `opcode`, and nothing after it.
pub(super) fn get<'a>(opcode: u16, r: &mut Reader<'a>) -> Result<Operation<'a>, DecodeError> {
    use Operation as O;
    Ok(match opcode {
        op::READ => {
            let state = r.state()?;
            let [] = r.flags("read flags")?;
            O::Read { state, extents: extents(r)? }
        }
        op::WRITE => {
            let (state, stability) = (r.state()?, stability(r)?);
            let within = r.bool("within")?;
            O::Write { state, stability, within, extents: extents(r)? }
        }
        op::APPEND => O::Append { state: r.state()?, stability: stability(r)?, bytes: r.u32()? },
        op::COMMIT => O::Commit {
            state: r.state()?,
            offset: r.u64()?,
            len: r.u64()?,
            level: commit_level(r)?,
        },
        op::FALLOCATE => {
            let (state, mode) = (r.state()?, r.u32()?);
            O::Fallocate { state, mode, offset: r.u64()?, len: r.u64()? }
        }
        op::SEEK => O::Seek { state: r.state()?, offset: r.u64()?, hole: r.bool("seek flags")? },
        op::ADVISE => {
            let (state, offset, len) = (r.state()?, r.u64()?, r.u64()?);
            O::Advise { state, offset, len, advice: r.u8()?, cache: cache(r)? }
        }
        op::EXTENTS => {
            let (state, offset, len) = (r.state()?, r.u64()?, r.u64()?);
            O::Extents { state, offset, len, bytes_max: r.u32()? }
        }
        op::CACHE_QUERY => {
            let (handle, state, offset) = (r.handle()?, r.state()?, r.u64()?);
            O::CacheQuery { handle, state, offset, len: r.u64()?, bytes_max: r.u32()? }
        }
        op::REFS_GET => {
            let (state, first, count) = (r.state()?, r.u64()?, r.u32()?);
            O::RefsGet { state, first, count, accessed: r.u64()? }
        }
        op::COPY_RANGE => {
            let (from, from_offset, to, to_offset) = (r.state()?, r.u64()?, r.state()?, r.u64()?);
            O::CopyRange { from, from_offset, to, to_offset, len: r.u64()? }
        }
        op::CLONE_RANGE => {
            let (from, from_offset, to, to_offset) = (r.state()?, r.u64()?, r.state()?, r.u64()?);
            O::CloneRange { from, from_offset, to, to_offset, len: r.u64()? }
        }
        op::LOCK | op::LOCK_TEST | op::UNLOCK | op::LOCK_CANCEL | op::OWNER_RELEASE => {
            get_lock(opcode, r)?
        }
        op::RECLAIM_COMPLETE => O::ReclaimComplete,
        op::CLOSE => O::Close { state: r.state()? },
        op::OPEN_DOWNGRADE => {
            let (state, [read, write]) = (r.state()?, r.flags("downgrade flags")?);
            O::OpenDowngrade { state, read, write }
        }
        op::CRED_REGISTER => O::CredRegister { uid: r.u32()?, gid: r.u32()?, groups: r.long()? },
        op::CRED_RELEASE => O::CredRelease { cred: CredHandle(r.u32()?) },
        op::SLOT_QUERY => {
            let (session, slot) = (SessionId(r.array()?), SlotId(r.u16()?));
            O::SlotQuery { session, slot, sequence: r.u32()? }
        }
        op::NULL => O::Null,
        op::SESSION_STATS => O::SessionStats,
        op::SESSION_DESTROY => O::SessionDestroy,
        _ => return get_names(opcode, r),
    })
}

fn get_names<'a>(opcode: u16, r: &mut Reader<'a>) -> Result<Operation<'a>, DecodeError> {
    use Operation as O;
    Ok(match opcode {
        op::GET_ROOT => O::GetRoot { export: r.short()? },
        op::LOOKUP => {
            let (dir, no_follow) = (r.handle()?, r.bool("lookup flags")?);
            O::Lookup { dir, no_follow, path: r.long()? }
        }
        op::OPEN => {
            let (dir, flags, mode, cache) = (r.handle()?, open_flags(r)?, r.u32()?, cache(r)?);
            O::Open { dir, flags, mode, cache, path: r.long()? }
        }
        op::CREATE => {
            let (dir, kind, mode) = (r.handle()?, attrs::kind(r)?, r.u32()?);
            let (rdev, target_bytes) = (r.u64()?, r.u32()?);
            O::Create { dir, kind, mode, rdev, target_bytes, name: r.short()? }
        }
        op::LINK => {
            let (handle, state) = (r.handle()?, r.state()?);
            O::Link { handle, state, dir: r.handle()?, name: r.short()? }
        }
        op::REMOVE => {
            let (dir, directory) = (r.handle()?, r.bool("remove flags")?);
            O::Remove { dir, directory, name: r.short()? }
        }
        op::RENAME => {
            let (from_dir, to_dir) = (r.handle()?, r.handle()?);
            let [no_replace, exchange, whiteout] = r.flags("rename flags")?;
            let (from, to) = (r.short()?, r.short()?);
            O::Rename { from_dir, from, to_dir, to, no_replace, exchange, whiteout }
        }
        op::READ_DIR => {
            let (dir, cookie, bytes_max) = (r.handle()?, r.u64()?, r.u32()?);
            let [attributes, handles] = r.flags("readdir flags")?;
            O::ReadDir { dir, cookie, bytes_max, attributes, handles }
        }
        op::LOOKUP_PARENT => O::LookupParent { handle: r.handle()? },
        op::READ_LINK => O::ReadLink { handle: r.handle()? },
        op::STAT_FS => O::StatFs { handle: r.handle()? },
        op::SYNC_FS => O::SyncFs { handle: r.handle()? },
        op::SYNC_DIR => O::SyncDir { dir: r.handle()? },
        _ => return get_attributes(opcode, r),
    })
}

fn get_attributes<'a>(opcode: u16, r: &mut Reader<'a>) -> Result<Operation<'a>, DecodeError> {
    use Operation as O;
    Ok(match opcode {
        op::GET_ATTR => O::GetAttr { handle: r.handle()?, state: r.state()? },
        op::SET_ATTR => {
            let (handle, state) = (r.handle()?, r.state()?);
            O::SetAttr { handle, state, set: attrs::set_attr(r)? }
        }
        op::ACCESS => O::Access { handle: r.handle()?, mask: r.u8()? },
        op::GET_XATTR => {
            let (handle, size_max) = (r.handle()?, r.u32()?);
            O::GetXattr { handle, size_max, name: r.short()? }
        }
        op::SET_XATTR => {
            let (handle, value_bytes, flags) = (r.handle()?, r.u32()?, r.u8()?);
            O::SetXattr { handle, value_bytes, flags, name: r.short()? }
        }
        op::LIST_XATTR => O::ListXattr { handle: r.handle()?, size_max: r.u32()? },
        op::REMOVE_XATTR => O::RemoveXattr { handle: r.handle()?, name: r.short()? },
        _ => O::Unknown { opcode, body: r.take_all() },
    })
}

fn get_lock<'a>(opcode: u16, r: &mut Reader<'a>) -> Result<Operation<'a>, DecodeError> {
    use Operation as O;
    Ok(match opcode {
        op::LOCK => {
            let (state, [wait, reclaim]) = (r.state()?, r.flags("lock flags")?);
            O::Lock { state, wait, reclaim, lock: lock(r)? }
        }
        op::LOCK_TEST => O::LockTest { state: r.state()?, lock: lock(r)? },
        op::UNLOCK => O::Unlock { state: r.state()?, owner: owner(r)?, range: lock_range(r)? },
        op::LOCK_CANCEL => O::LockCancel { ticket: LockTicket(r.u64()?) },
        op::OWNER_RELEASE => O::OwnerRelease { owner: owner(r)? },
        _ => return Err(DecodeError::Value("opcode")),
    })
}

pub(super) fn put_lock(out: &mut Vec<u8>, lock: &LockRequest) {
    put_owner(out, &lock.owner);
    put_range(out, &lock.range);
    out.flags([lock.exclusive]);
    out.u32(lock.pid);
}

pub(super) fn lock(r: &mut Reader<'_>) -> Result<LockRequest, DecodeError> {
    let (owner, range) = (owner(r)?, lock_range(r)?);
    Ok(LockRequest { owner, range, exclusive: r.bool("lock flags")?, pid: r.u32()? })
}

fn put_owner(out: &mut Vec<u8>, owner: &OwnerKey) {
    out.u8(owner.kind as u8);
    out.u64(owner.number);
}

fn owner(r: &mut Reader<'_>) -> Result<OwnerKey, DecodeError> {
    let kind = match r.u8()? {
        1 => LockKind::Posix,
        2 => LockKind::Ofd,
        3 => LockKind::Whole,
        _ => return Err(DecodeError::Value("kind of lock")),
    };
    Ok(OwnerKey { kind, number: r.u64()? })
}

fn put_range(out: &mut Vec<u8>, range: &LockRange) {
    out.u64(range.first());
    out.u64(range.last());
}

fn lock_range(r: &mut Reader<'_>) -> Result<LockRange, DecodeError> {
    LockRange::new(r.u64()?, r.u64()?).ok_or(DecodeError::Value("range of a lock"))
}

fn commit_level(r: &mut Reader<'_>) -> Result<CommitLevel, DecodeError> {
    Ok(match r.u8()? {
        0 => CommitLevel::Flush,
        1 => CommitLevel::Data,
        2 => CommitLevel::File,
        _ => return Err(DecodeError::Value("commit level")),
    })
}

fn put_extents(out: &mut Vec<u8>, list: &ExtentList) {
    let extents = list.as_slice();
    out.u8(u8::try_from(extents.len()).unwrap_or(u8::MAX));
    for extent in extents {
        out.u64(extent.offset);
        out.u32(extent.len);
        out.u32(extent.count);
        if extent.count != 1 {
            out.u64(extent.stride);
        }
    }
}

fn extents(r: &mut Reader<'_>) -> Result<ExtentList, DecodeError> {
    let count = r.u8()?;
    let mut list = ExtentList::empty();
    for _ in 0..count {
        let (offset, len, count) = (r.u64()?, r.u32()?, r.u32()?);
        let stride = if count == 1 { 0 } else { r.u64()? };
        if !list.push(Extent { offset, len, count, stride }) {
            return Err(DecodeError::Limit("extents"));
        }
    }
    Ok(list)
}

pub(super) fn stability(r: &mut Reader<'_>) -> Result<Stability, DecodeError> {
    Ok(match r.u8()? {
        0 => Stability::Unstable,
        1 => Stability::Data,
        2 => Stability::File,
        _ => return Err(DecodeError::Value("stability")),
    })
}

fn put_open_flags(out: &mut Vec<u8>, flags: OpenFlags) {
    let OpenFlags { read, write, truncate, append, no_follow, unlinked, again, create: _ } = flags;
    out.flags([read, write, truncate, append, no_follow, unlinked, again]);
    out.u8(flags.create as u8);
}

fn open_flags(r: &mut Reader<'_>) -> Result<OpenFlags, DecodeError> {
    let [read, write, truncate, append, no_follow, unlinked, again] = r.flags("open flags")?;
    let create = match r.u8()? {
        0 => CreateMode::No,
        1 => CreateMode::Unchecked,
        2 => CreateMode::Exclusive,
        _ => return Err(DecodeError::Value("create mode")),
    };
    Ok(OpenFlags { read, write, create, truncate, append, no_follow, unlinked, again })
}

pub(super) fn put_cache(out: &mut Vec<u8>, hint: &CacheHint) {
    out.u32(hint.unit);
    out.u8(hint.policy);
    out.u8(hint.class);
}

pub(super) fn cache(r: &mut Reader<'_>) -> Result<CacheHint, DecodeError> {
    Ok(CacheHint { unit: r.u32()?, policy: r.u8()?, class: r.u8()? })
}
