//! What this mount removed, and a program still holds: a directory that is open or current, a fifo,
//! whatever was opened with `O_PATH`. Nobody else can reach it, so its last attributes, kept here
//! until the kernel forgets it, are all that there is of it. (A file that is open lives at the
//! server.)

use dafs_protocol::{Attr, SetAttr, SetTime};

use super::error::Errno;
use super::nodes::{Node, now};

/// Who may do it was checked by the kernel.
fn with(attr: &Attr, set: &SetAttr) -> Result<Attr, Errno> {
    if set.size.is_some() {
        return Err(Errno::STALE);
    }
    let now = now();
    let time = |set: Option<SetTime>, old| match set {
        Some(SetTime::Now) => now,
        Some(SetTime::To(time)) => time,
        None => old,
    };
    Ok(Attr {
        mode: set.mode.unwrap_or(attr.mode),
        uid: set.uid.unwrap_or(attr.uid),
        gid: set.gid.unwrap_or(attr.gid),
        accessed: time(set.accessed, attr.accessed),
        modified: time(set.modified, attr.modified),
        changed: now,
        ..*attr
    })
}

impl Node {
    /// Sets attributes of what is gone; `None` where it is not.
    pub(super) fn set_gone(&self, set: &SetAttr) -> Option<Result<Attr, Errno>> {
        let new = with(&self.gone()?, set);
        if let Ok(attr) = &new {
            self.set_last(*attr);
        }
        Some(new)
    }
}
