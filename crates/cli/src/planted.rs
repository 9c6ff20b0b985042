//! Defects on purpose, for the bars of the mount: of the kernel's side of a mount, and of what local
//! programs change beside a server.

use dafs_fuse as fuse;
use dafs_unifier as unifier;

/// Plants one by its name; false where there is none of that name.
pub(crate) fn plant(name: &str) -> bool {
    let of_fuse = fuse::Defect::ALL.into_iter().find(|defect| format!("{defect:?}") == name);
    let of_unifier =
        unifier::Defect::LOCAL.into_iter().find(|defect| format!("{defect:?}") == name);
    if of_fuse.is_some() {
        fuse::plant(of_fuse);
    }
    if of_unifier.is_some() {
        unifier::plant(of_unifier);
    }
    of_fuse.is_some() || of_unifier.is_some()
}
