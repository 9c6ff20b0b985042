//! Extended attributes.

use dafs_protocol::{FileHandle, Identity, Status, XATTR_BYTES_MAX};

use super::{Inner, sys};
use dafs_store::Caller;
use dafs_store::names::check_xattr_name;

const LIST_BYTES_MAX: usize = 65_536;
/// What most values and lists fit.
const ROOM: usize = 4096;

/// What the kernel asks of the fsuid alone is left to it. The others it would grant by
/// capabilities (CAP_SYS_ADMIN, CAP_SETFCAP) that the server keeps whoever it acts for.
fn may(caller: &Identity, name: &[u8], writes: bool) -> Result<(), Status> {
    check_xattr_name(name)?;
    let acl = name == b"system.posix_acl_access" || name == b"system.posix_acl_default";
    if name.starts_with(b"user.") || acl {
        return Ok(());
    }
    let trusted = name.starts_with(b"trusted.");
    if !trusted && !name.starts_with(b"security.") {
        return Err(Status::NotSupp);
    }
    match (caller.uid, writes) {
        (0, _) => Ok(()),
        (_, true) => Err(Status::Perm),
        (_, false) if trusted => Err(Status::NoData),
        (_, false) => Ok(()),
    }
}

/// Asks with little room first, and with all there may be where that is too small.
fn with_room(most: usize, ask: impl Fn(usize) -> sys::Outcome<Vec<u8>>) -> Result<Vec<u8>, Status> {
    match ask(ROOM) {
        Err(sys::Errno(libc::ERANGE)) => Ok(ask(most)?),
        other => Ok(other?),
    }
}

impl Inner {
    pub(super) fn xattr(
        &self,
        caller: &Caller,
        handle: &FileHandle,
        name: &[u8],
    ) -> Result<Vec<u8>, Status> {
        may(caller, name, false)?;
        let object = self.objects.resolve(&self.identities, handle)?;
        let _acting = self.identities.act_as(caller)?;
        with_room(XATTR_BYTES_MAX, |room| sys::xattr(&object.fd, name, room))
    }

    pub(super) fn set_xattr(
        &self,
        caller: &Caller,
        handle: &FileHandle,
        name: &[u8],
        value: &[u8],
        flags: u8,
    ) -> Result<(), Status> {
        self.may_change()?;
        may(caller, name, true)?;
        let flags = match flags {
            0 => 0,
            1 => libc::XATTR_CREATE,
            2 => libc::XATTR_REPLACE,
            _ => return Err(Status::Inval),
        };
        let object = self.objects.resolve(&self.identities, handle)?;
        let _acting = self.identities.act_as(caller)?;
        Ok(sys::set_xattr(&object.fd, name, value, flags)?)
    }

    pub(super) fn list_xattr(
        &self,
        caller: &Caller,
        handle: &FileHandle,
    ) -> Result<Vec<u8>, Status> {
        let object = self.objects.resolve(&self.identities, handle)?;
        let _acting = self.identities.act_as(caller)?;
        let mut list = with_room(LIST_BYTES_MAX, |room| sys::list_xattr(&object.fd, room))?;
        if caller.uid != 0 {
            let names = list.split_inclusive(|byte| *byte == 0);
            list = names.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect();
        }
        Ok(list)
    }

    pub(super) fn remove_xattr(
        &self,
        caller: &Caller,
        handle: &FileHandle,
        name: &[u8],
    ) -> Result<(), Status> {
        self.may_change()?;
        may(caller, name, true)?;
        let object = self.objects.resolve(&self.identities, handle)?;
        let _acting = self.identities.act_as(caller)?;
        Ok(sys::remove_xattr(&object.fd, name)?)
    }
}
