//! Extended attributes and access control lists: those of users, and POSIX ACLs.

use super::side::Side;
use crate::failure::Cause;
use crate::text;

const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// What other programs keep for themselves is left alone.
fn is_copied(name: &[u8]) -> bool {
    let acl = name == b"system.posix_acl_access" || name == DEFAULT_ACL;
    acl || (name.starts_with(b"user.") && !name.starts_with(OURS))
}

/// Attributes that copies have while they are not complete.
pub const OURS: &[u8] = b"user.dafs.";

/// True where what is made in the directory `path` gets an access control list from there.
pub fn are_inherited(side: &Side, path: &[u8]) -> bool {
    let names = side.list_xattr(path);
    names.map_or(true, |names| names.iter().any(|name| name == DEFAULT_ACL))
}

/// Those of `path` that a copy keeps.
pub fn names(side: &Side, path: &[u8]) -> Result<Vec<Vec<u8>>, Cause> {
    let mut names = side.list_xattr(path)?;
    names.retain(|name| is_copied(name));
    names.sort();
    Ok(names)
}

/// Gives `to` those of `from`, and (where it may `have` some) takes others away. True: something was
/// changed.
pub fn copy(
    (from_side, from): (&Side, &[u8]),
    (to_side, to): (&Side, &[u8]),
    have: bool,
) -> Result<bool, Cause> {
    let wanted = names(from_side, from)?;
    let there = if have { names(to_side, to)? } else { Vec::new() };
    let mut changed = false;
    for name in &wanted {
        let value = from_side.get_xattr(from, name)?;
        if there.contains(name) && to_side.get_xattr(to, name)? == value {
            continue;
        }
        changed = true;
        to_side.set_xattr(to, name, &value).map_err(|cause| about(name, &cause))?;
    }
    for name in there.iter().filter(|name| !wanted.contains(name)) {
        changed = true;
        match to_side.remove_xattr(to, name) {
            Err(cause) if cause.errno() == libc::ENODATA => {}
            other => other.map_err(|cause| about(name, &cause))?,
        }
    }
    Ok(changed)
}

/// True when both have the same.
pub fn are_same(a: (&Side, &[u8]), b: (&Side, &[u8])) -> Result<bool, Cause> {
    let (names_a, names_b) = (names(a.0, a.1)?, names(b.0, b.1)?);
    if names_a != names_b {
        return Ok(false);
    }
    for name in &names_a {
        if a.0.get_xattr(a.1, name)? != b.0.get_xattr(b.1, name)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn about(name: &[u8], cause: &Cause) -> Cause {
    let told = match cause.errno() {
        libc::EOPNOTSUPP => "the file system there takes no such attribute".to_owned(),
        _ => cause.text(),
    };
    Cause::Text(format!("extended attribute {}: {told}", text::escape(name)))
}
