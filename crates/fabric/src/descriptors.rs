//! What is said where descriptors run out: which limit that is.

use std::fmt::Display;
use std::io;

/// The limit of a process: what a peer is told, or a caller behind the system's own word for it.
pub const OF_PROCESS: &str = "no descriptor is left (RLIMIT_NOFILE, ulimit -n)";
/// The limit of the machine.
pub const OF_MACHINE: &str = "no descriptor is left on this machine (fs.file-max)";

/// The limit that an error is about; `None`: another error.
pub fn limit(error: &io::Error) -> Option<&'static str> {
    match error.raw_os_error()? {
        libc::EMFILE => Some(OF_PROCESS),
        libc::ENFILE => Some(OF_MACHINE),
        _ => None,
    }
}

/// An error of this machine for people, with the limit where it is about one. Errors that wrap one of the system
/// have its text, and not all of them have it as their source.
pub fn tell(error: &dyn Display) -> String {
    let text = error.to_string();
    let is_about = |number| text.contains(&format!("(os error {number})"));
    let limits = [(libc::EMFILE, OF_PROCESS), (libc::ENFILE, OF_MACHINE)];
    match limits.into_iter().find(|(number, _)| is_about(*number)) {
        Some((_, limit)) => format!("{text}: {limit}"),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ArenaError, OpenError};

    #[test]
    fn the_limit_is_named_also_behind_other_errors() {
        let system = |code| io::Error::from_raw_os_error(code);
        assert_eq!(limit(&system(libc::EMFILE)), Some(OF_PROCESS));
        assert_eq!(limit(&system(libc::ENOMEM)), None);
        assert!(tell(&system(libc::ENFILE)).ends_with("left on this machine (fs.file-max)"));
        let arena = |source| ArenaError::System { bytes: 4096, source };
        let told = tell(&io::Error::other(arena(system(libc::EMFILE))));
        assert!(told.starts_with("arena of 4096 bytes: Too many open files"), "{told}");
        assert!(told.ends_with(OF_PROCESS), "{told}");
        assert!(tell(&OpenError::Io(system(libc::EMFILE))).ends_with(OF_PROCESS));
        let other = arena(system(libc::ENOMEM));
        assert_eq!(tell(&other), other.to_string());
    }
}
