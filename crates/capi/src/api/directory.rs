//! Directories.

use std::sync::{Arc, Mutex, PoisonError};

use dafs_protocol::DirEntry;

use crate::border::{Records, status};
use crate::object::{DirectoryObject, Object};
use crate::operation::session as session_of;
use crate::pointer::{Out, Text};
use crate::table;
use crate::types::{dap_dir_t, dap_dirent_t, dap_session_t};

/// Opens a directory to read its entries
///
/// The handle is put into dir. Blocks.
///
/// Returns 0, or: -ENOENT, -ENOTDIR, -EACCES; -EBADF for the session; -EINVAL; -EMFILE; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_opendir(session: dap_session_t, path: Text, dir: Out<dap_dir_t>) -> i32 {
    status(|| {
        dir.check("dir")?;
        let session = session_of(session)?;
        let entries = session.session.read_dir(&session.path(path.bytes("path")?))?;
        let object = DirectoryObject { entries: Mutex::new(entries), session };
        dir.put(table::insert(Object::Directory(Arc::new(object)))?);
        Ok(())
    })
}

/// The next entry of a directory
///
/// Fills entry, whose field size the caller has set, without "." and "..", in the server's order. An entry that comes or goes
/// meanwhile may be seen or not. Entries are fetched many at a time, with their attributes. Threads that share a handle
/// get different entries.
///
/// Blocks, now and then.
///
/// Returns 1, or 0 at the end, or: -EBADF; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_readdir(dir: dap_dir_t, entry: Records<dap_dirent_t>) -> i32 {
    let mut any = 0;
    let failed = status(|| {
        let stride = entry.stride("entry")?;
        let object = table::get(dir, |object| match object {
            Object::Directory(directory) => Some(directory.clone()),
            _ => None,
        })?;
        let next = object.entries.lock().unwrap_or_else(PoisonError::into_inner).next();
        if let Some(found) = next.transpose()? {
            entry.put(0, stride, &entry_of(&found));
            any = 1;
        }
        Ok(())
    });
    if failed == 0 { any } else { failed }
}

fn entry_of(entry: &DirEntry) -> dap_dirent_t {
    let mut name = [0; 256];
    name.iter_mut().take(255).zip(&entry.name).for_each(|(to, from)| *to = *from);
    let kind = entry.attr.map(|attr| attr.kind).or(entry.kind);
    dap_dirent_t {
        size: 0,
        kind: kind.map_or(0, |kind| u32::from(kind as u8)),
        inode: entry.attr.map_or(0, |attr| attr.inode),
        bytes: entry.attr.map_or(0, |attr| attr.size),
        name_bytes: u32::try_from(entry.name.len().min(255)).unwrap_or(255),
        mode: entry.attr.map_or(0, |attr| attr.mode),
        name,
    }
}

/// Closes a directory
///
/// Does not block.
///
/// Returns 0, or: -EBADF; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_closedir(dir: dap_dir_t) -> i32 {
    status(|| {
        table::remove(dir, |object| match object {
            Object::Directory(_) => Ok(()),
            _ => Err(table::bad_handle()),
        })
    })
}
