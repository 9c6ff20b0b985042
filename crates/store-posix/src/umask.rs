//! A caller's umask, which the kernel leaves aside where a directory has a default list (ACL).

use std::cell::OnceCell;

use super::sys;

thread_local! {
    /// This thread's umask is its own.
    static UNSHARED: OnceCell<bool> = const { OnceCell::new() };
}

/// While it lives, new files of this thread are made with a umask.
pub(super) struct Masking {
    is_set: bool,
}

impl Masking {
    /// With the mode to make something with. Where the system gives threads no umask of their own,
    /// it is applied to the mode, whatever lists there are.
    pub(super) fn new(mode: u32) -> (Masking, u32) {
        let (mode, umask) = dafs_protocol::split_mode(mode);
        let is_own = || UNSHARED.with(|own| *own.get_or_init(|| sys::unshare_umask().is_ok()));
        if umask == 0 || !is_own() {
            return (Masking { is_set: false }, mode & !umask);
        }
        sys::set_umask(umask);
        (Masking { is_set: true }, mode)
    }
}

impl Drop for Masking {
    fn drop(&mut self) {
        if self.is_set {
            sys::set_umask(0);
        }
    }
}
