//! Names, and what is behind them.

use dafs_protocol::{AccessMask, SetAttr};

use super::record::{check_flags, set_attr_of, size as checked_size, stat_of, statfs_of};
use crate::border::{In, Records, count, status};
use crate::failure::{Failure, Outcome};
use crate::object::SessionObject;
use crate::operation::session as named;
use crate::pointer::{Bytes, Room, Text};
use crate::types::{
    DAP_NOFOLLOW, DAP_RENAME_EXCHANGE, DAP_RENAME_NOREPLACE, DAP_XATTR_CREATE, DAP_XATTR_REPLACE,
    dap_session_t, dap_setattr_t, dap_stat_t, dap_statfs_t,
};

/// The session, and a name in it.
fn at(session: dap_session_t, path: Text) -> Outcome<(std::sync::Arc<SessionObject>, Vec<u8>)> {
    let session = named(session)?;
    let path = session.path(path.bytes("path")?);
    Ok((session, path))
}

/// As [`at`], with two names.
fn at_both(
    session: dap_session_t,
    from: Text,
    to: Text,
) -> Outcome<(std::sync::Arc<SessionObject>, Vec<u8>, Vec<u8>)> {
    let session = named(session)?;
    let from = session.path(from.bytes("from")?);
    let to = session.path(to.bytes("to")?);
    Ok((session, from, to))
}

/// Attributes of a name
///
/// Fills stat, whose field size the caller has set. A symbolic link is followed, unless flags has DAP_NOFOLLOW. Blocks.
///
/// Returns 0, or: -ENOENT, -ENOTDIR, -EACCES, -ELOOP; -EBADF for the session; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_stat(
    session: dap_session_t,
    path: Text,
    flags: u32,
    stat: Records<dap_stat_t>,
) -> i32 {
    status(|| {
        let stride = stat.stride("stat")?;
        check_flags(flags, DAP_NOFOLLOW)?;
        let (session, path) = at(session, path)?;
        let attr = match flags {
            0 => session.session.stat(&path)?,
            _ => session.session.lstat(&path)?,
        };
        stat.put(0, stride, &stat_of(&attr));
        Ok(())
    })
}

/// Changes attributes of a name
///
/// Those that the bits in set->set name. A symbolic link is followed, unless flags has DAP_NOFOLLOW. Blocks.
///
/// Returns 0, or: -ENOENT, -EPERM, -EACCES; -EBADF for the session; -EINVAL; -EFBIG; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_setattr(
    session: dap_session_t,
    path: Text,
    flags: u32,
    set: In<dap_setattr_t>,
) -> i32 {
    status(|| {
        check_flags(flags, DAP_NOFOLLOW)?;
        let set = set_attr_of(&set.get("set")?)?;
        let (session, path) = at(session, path)?;
        session.session.set_attr(&path, set, flags & DAP_NOFOLLOW != 0)?;
        Ok(())
    })
}

/// Truncates or extends a file
///
/// To size bytes; what is added reads as zeros. Blocks.
///
/// Returns 0, or: -ENOENT, -EACCES, -EISDIR; -EBADF for the session; -EFBIG; -ENOSPC; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_truncate(session: dap_session_t, path: Text, size: u64) -> i32 {
    status(|| {
        let set = SetAttr { size: Some(checked_size(size)?), ..SetAttr::default() };
        let (session, path) = at(session, path)?;
        session.session.set_attr(&path, set, false)?;
        Ok(())
    })
}

/// What the session's user may do
///
/// With the object that path names; mask has 4 for reading, 2 for writing, 1 for executing or searching. Blocks.
///
/// Returns those bits of mask that are allowed (0 to 7), or: -ENOENT, -EACCES; -EBADF for the session; -EINVAL; the session's
/// errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_access(session: dap_session_t, path: Text, mask: u32) -> i64 {
    count(|| {
        check_flags(mask, 7)?;
        let (session, path) = at(session, path)?;
        let mask = AccessMask::try_from(mask).unwrap_or(7);
        Ok(session.session.access(&path, mask)?.into())
    })
}

/// Renames
///
/// The name from becomes to, and replaces what is there; with DAP_RENAME_NOREPLACE in flags it does not, with
/// DAP_RENAME_EXCHANGE the two are swapped. Blocks.
///
/// Returns 0, or: -ENOENT, -EEXIST, -ENOTEMPTY, -EISDIR, -ENOTDIR, -EACCES, -EXDEV; -EBADF for the session; -EINVAL; the session's
/// errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_rename(session: dap_session_t, from: Text, to: Text, flags: u32) -> i32 {
    status(|| {
        check_flags(flags, DAP_RENAME_NOREPLACE | DAP_RENAME_EXCHANGE)?;
        let no_replace = flags & DAP_RENAME_NOREPLACE != 0;
        let exchange = flags & DAP_RENAME_EXCHANGE != 0;
        if no_replace && exchange {
            return Err(Failure::invalid("DAP_RENAME_NOREPLACE or DAP_RENAME_EXCHANGE: not both"));
        }
        let (session, from, to) = at_both(session, from, to)?;
        session.session.rename_with(&from, &to, no_replace, exchange)?;
        Ok(())
    })
}

/// Gives a file another name
///
/// What from names (a symbolic link is not followed) gets the name to, too. Blocks.
///
/// Returns 0, or: -ENOENT, -EEXIST, -EPERM, -EACCES, -EMLINK, -EXDEV; -EBADF for the session; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_link(session: dap_session_t, from: Text, to: Text) -> i32 {
    status(|| {
        let (session, from, to) = at_both(session, from, to)?;
        session.session.link(&from, &to)?;
        Ok(())
    })
}

/// Makes a symbolic link
///
/// Under the name path, which says target: any text. Blocks.
///
/// Returns 0, or: -EEXIST, -ENOENT, -EACCES, -ENAMETOOLONG; -EBADF for the session; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_symlink(session: dap_session_t, target: Text, path: Text) -> i32 {
    status(|| {
        let (session, path) = at(session, path)?;
        session.session.symlink(target.bytes("target")?, &path)?;
        Ok(())
    })
}

/// What a symbolic link says
///
/// Puts it into buffer, at most size bytes, without NUL. Blocks.
///
/// Returns the bytes of the whole text: where they are more than size, it was cut; or: -ENOENT, -EACCES; -EINVAL where it is no
/// symbolic link; -EBADF for the session; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_readlink(
    session: dap_session_t,
    path: Text,
    buffer: Room,
    size: usize,
) -> i64 {
    let mut buffer = buffer;
    count(|| {
        let room = buffer.slice(size, "buffer")?;
        let (session, path) = at(session, path)?;
        let target = session.session.read_link(&path)?;
        Ok(put(room, &target))
    })
}

/// Puts what there is room for; the bytes of all.
fn put(room: &mut [u8], bytes: &[u8]) -> i64 {
    room.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    i64::try_from(bytes.len()).unwrap_or(i64::MAX)
}

/// Removes a name that is not a directory
///
/// Blocks.
///
/// Returns 0, or: -ENOENT, -EISDIR, -EACCES, -EPERM; -EBADF for the session; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_remove(session: dap_session_t, path: Text) -> i32 {
    status(|| {
        let (session, path) = at(session, path)?;
        Ok(session.session.remove(&path)?)
    })
}

/// Makes a directory
///
/// With the permission bits in mode. Blocks.
///
/// Returns 0, or: -EEXIST, -ENOENT, -EACCES, -ENOSPC; -EBADF for the session; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_mkdir(session: dap_session_t, path: Text, mode: u32) -> i32 {
    status(|| {
        check_flags(mode, 0o7777)?;
        let (session, path) = at(session, path)?;
        session.session.mkdir(&path, mode)?;
        Ok(())
    })
}

/// Removes an empty directory
///
/// Blocks.
///
/// Returns 0, or: -ENOENT, -ENOTEMPTY, -ENOTDIR, -EACCES; -EBADF for the session; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_rmdir(session: dap_session_t, path: Text) -> i32 {
    status(|| {
        let (session, path) = at(session, path)?;
        Ok(session.session.remove_dir(&path)?)
    })
}

/// Space and limits of a file system
///
/// Of the one in which path is. Fills statfs, whose field size the caller has set. Blocks.
///
/// Returns 0, or: -ENOENT, -EACCES; -EBADF for the session; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_statfs(
    session: dap_session_t,
    path: Text,
    statfs: Records<dap_statfs_t>,
) -> i32 {
    status(|| {
        let stride = statfs.stride("statfs")?;
        let (session, path) = at(session, path)?;
        statfs.put(0, stride, &statfs_of(&session.session.statfs(&path)?));
        Ok(())
    })
}

/// The value of an extended attribute
///
/// Of the object that path names, of the attribute name ("user.x"). Puts it into buffer; with size 0 only asks for the length.
/// Blocks.
///
/// Returns the bytes of the value, or: -ENODATA where there is none; -ERANGE where size is not 0 and too small; -ENOENT, -EACCES,
/// -EOPNOTSUPP; -EBADF for the session; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_getxattr(
    session: dap_session_t,
    path: Text,
    name: Text,
    buffer: Room,
    size: usize,
) -> i64 {
    let mut buffer = buffer;
    count(|| {
        let room = buffer.slice(size, "buffer")?;
        let (session, path) = at(session, path)?;
        whole(room, &session.session.get_xattr(&path, name.bytes("name")?)?)
    })
}

/// All of it, or none where there is no room; into no room nothing.
fn whole(room: &mut [u8], bytes: &[u8]) -> Outcome<i64> {
    if !room.is_empty() && room.len() < bytes.len() {
        let text = "the buffer is too small: ask with size 0 how much room is needed";
        return Err(Failure::new(libc::ERANGE, text));
    }
    Ok(put(room, bytes))
}

/// Sets an extended attribute
///
/// Of the object that path names, to size bytes of value. The flags are 0, DAP_XATTR_CREATE or DAP_XATTR_REPLACE. The value is the
/// caller's, and not used after the call. Blocks.
///
/// Returns 0, or: -EEXIST, -ENODATA for the flags; -E2BIG; -ENOENT, -EACCES, -EPERM, -ENOSPC, -EOPNOTSUPP; -EBADF for the session; -EINVAL;
/// the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_setxattr(
    session: dap_session_t,
    path: Text,
    name: Text,
    value: Bytes,
    size: usize,
    flags: u32,
) -> i32 {
    status(|| {
        let flags = match flags {
            0 => 0,
            DAP_XATTR_CREATE => 1,
            DAP_XATTR_REPLACE => 2,
            _ => return Err(Failure::invalid("flags: 0, DAP_XATTR_CREATE or DAP_XATTR_REPLACE")),
        };
        let value = value.slice(size, "value")?;
        if size > dafs_protocol::XATTR_BYTES_MAX {
            return Err(Failure::new(libc::E2BIG, "an extended attribute has at most 64 KiB"));
        }
        let (session, path) = at(session, path)?;
        Ok(session.session.set_xattr(&path, name.bytes("name")?, value, flags)?)
    })
}

/// The names of the extended attributes
///
/// Of the object that path names. Puts them into buffer, each ended by NUL; with size 0 only asks for the length. Blocks.
///
/// Returns the bytes of all names, or: -ERANGE where size is not 0 and too small; -ENOENT, -EACCES, -EOPNOTSUPP; -EBADF for the
/// session; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_listxattr(
    session: dap_session_t,
    path: Text,
    buffer: Room,
    size: usize,
) -> i64 {
    let mut buffer = buffer;
    count(|| {
        let room = buffer.slice(size, "buffer")?;
        let (session, path) = at(session, path)?;
        let mut names = Vec::new();
        for name in session.session.list_xattr(&path)? {
            names.extend(name);
            names.push(0);
        }
        whole(room, &names)
    })
}

/// Removes an extended attribute
///
/// Of the object that path names. Blocks.
///
/// Returns 0, or: -ENODATA where there is none; -ENOENT, -EACCES, -EPERM, -EOPNOTSUPP; -EBADF for the session; -EINVAL; the session's
/// errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_removexattr(session: dap_session_t, path: Text, name: Text) -> i32 {
    status(|| {
        let (session, path) = at(session, path)?;
        Ok(session.session.remove_xattr(&path, name.bytes("name")?)?)
    })
}
