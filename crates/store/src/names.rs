//! What a name or path may be, alike in all stores, before any file system sees it.

use dafs_protocol::{NAME_BYTES_MAX, Status};

/// Bytes of a path that a store takes, as Linux has it.
pub const PATH_MAX: usize = 4095;

/// One new name: not empty, `.` or `..`, without `/` and NUL.
pub fn check_name(name: &[u8]) -> Result<(), Status> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Status::NameTooLong);
    }
    let special = name.is_empty() || name == b"." || name == b"..";
    if special || name.iter().any(|byte| matches!(byte, 0 | b'/')) {
        return Err(Status::Inval);
    }
    Ok(())
}

/// A path to walk from a directory: relative, and nowhere above where it starts. (Symlinks on
/// the way are another matter: they may lead anywhere within the tree.)
pub fn check_path(path: &[u8]) -> Result<(), Status> {
    if path.len() > PATH_MAX {
        return Err(Status::NameTooLong);
    }
    if path.contains(&0) {
        return Err(Status::Inval);
    }
    if path.first() == Some(&b'/') {
        return Err(Status::XDev);
    }
    let mut depth = 0usize;
    for component in path.split(|byte| *byte == b'/') {
        match component {
            b"" | b"." => {}
            b".." => depth = depth.checked_sub(1).ok_or(Status::XDev)?,
            name if name.len() > NAME_BYTES_MAX => return Err(Status::NameTooLong),
            _ => depth += 1,
        }
    }
    Ok(())
}

/// A name of an extended attribute.
pub fn check_xattr_name(name: &[u8]) -> Result<(), Status> {
    if name.is_empty() || name.contains(&0) {
        return Err(Status::Inval);
    }
    if name.len() > NAME_BYTES_MAX { Err(Status::Range) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_paths_are_checked() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(check_name(bad), Err(Status::Inval));
        }
        assert_eq!(check_name(&[b'x'; 255]), Ok(()));
        assert_eq!(check_name(&[b'x'; 256]), Err(Status::NameTooLong));
        assert_eq!(check_path(b"a/../b/./c//d"), Ok(()));
        assert_eq!(check_path(b"a/../../b"), Err(Status::XDev));
        assert_eq!(check_path(b"/a"), Err(Status::XDev));
        assert_eq!(check_path(b"a\0b"), Err(Status::Inval));
        assert_eq!(check_path(&[b'x'; 256]), Err(Status::NameTooLong));
    }
}
