//! Attributes as C sees them.

use dafs_protocol::{Attr, FsAttr, SetAttr, SetTime, Timestamp};

use crate::failure::{Failure, Outcome};
use crate::types::{
    DAP_SET_ACCESSED, DAP_SET_ACCESSED_NOW, DAP_SET_GID, DAP_SET_MODE, DAP_SET_MODIFIED,
    DAP_SET_MODIFIED_NOW, DAP_SET_SIZE, DAP_SET_UID, dap_setattr_t, dap_stat_t, dap_statfs_t,
    dap_time_t,
};

fn time(time: Timestamp) -> dap_time_t {
    dap_time_t { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 }
}

pub fn stat_of(attr: &Attr) -> dap_stat_t {
    dap_stat_t {
        size: 0,
        kind: u32::from(attr.kind as u8),
        mode: attr.mode,
        links: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        bytes: attr.size,
        allocated_bytes: attr.allocated,
        inode: attr.inode,
        device: attr.device,
        rdev: attr.rdev,
        change: attr.change,
        block_bytes: attr.block_size,
        reserved: 0,
        accessed: time(attr.accessed),
        modified: time(attr.modified),
        changed: time(attr.changed),
        created: attr.created.map(time).unwrap_or_default(),
    }
}

pub fn statfs_of(attr: &FsAttr) -> dap_statfs_t {
    dap_statfs_t {
        size: 0,
        block_bytes: attr.block_size,
        bytes_total: attr.bytes_total,
        bytes_free: attr.bytes_free,
        bytes_available: attr.bytes_available,
        files_total: attr.files_total,
        files_free: attr.files_free,
        name_bytes_max: attr.name_bytes_max,
        read_only: attr.read_only.into(),
    }
}

/// What to change.
///
/// # Errors
/// `EINVAL`, `EFBIG`.
pub fn set_attr_of(set: &dap_setattr_t) -> Outcome<SetAttr> {
    const ALL: u32 = 0xff;
    let has = |flag| set.set & flag != 0;
    if set.set & !ALL != 0 || set.reserved != 0 {
        return Err(Failure::invalid(
            "dap_setattr_t: unknown bits in 'set', or 'reserved' is not 0",
        ));
    }
    if has(DAP_SET_MODE) && set.mode > 0o7777 {
        return Err(Failure::invalid(
            "dap_setattr_t: 'mode' has permission bits only, up to 07777",
        ));
    }
    let moment = |flag, now, value: dap_time_t| match (has(flag), has(now)) {
        (true, true) => Err(Failure::invalid("dap_setattr_t: a time is given, or now: not both")),
        (_, true) => Ok(Some(SetTime::Now)),
        (true, _) if value.nanoseconds > 999_999_999 || value.reserved != 0 => {
            let text = "dap_setattr_t: nanoseconds are 0 to 999,999,999, and 'reserved' is 0";
            Err(Failure::invalid(text))
        }
        (true, _) => {
            let time = Timestamp { seconds: value.seconds, nanoseconds: value.nanoseconds };
            Ok(Some(SetTime::To(time)))
        }
        _ => Ok(None),
    };
    if has(DAP_SET_SIZE) {
        size(set.bytes)?;
    }
    Ok(SetAttr {
        size: has(DAP_SET_SIZE).then_some(set.bytes),
        mode: has(DAP_SET_MODE).then_some(set.mode),
        uid: has(DAP_SET_UID).then_some(set.uid),
        gid: has(DAP_SET_GID).then_some(set.gid),
        accessed: moment(DAP_SET_ACCESSED, DAP_SET_ACCESSED_NOW, set.accessed)?,
        modified: moment(DAP_SET_MODIFIED, DAP_SET_MODIFIED_NOW, set.modified)?,
    })
}

/// A size that a file can have.
///
/// # Errors
/// `EFBIG`.
pub fn size(bytes: u64) -> Outcome<u64> {
    if bytes > i64::MAX as u64 {
        return Err(Failure::new(libc::EFBIG, "a file has at most 2^63 - 1 bytes"));
    }
    Ok(bytes)
}

/// That only these flags are set.
///
/// # Errors
/// `EINVAL`.
pub fn check_flags(flags: u32, known: u32) -> Outcome<()> {
    if flags & !known == 0 {
        return Ok(());
    }
    let unknown = flags & !known;
    Err(Failure::about(
        libc::EINVAL,
        format!("unknown flags {unknown:#x}: use those of dafs.h only"),
    ))
}
