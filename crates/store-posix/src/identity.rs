//! Under whose rights a thread acts on files.
//!
//! Each thread has its own fsuid, fsgid and supplementary groups, set by raw system calls (the C
//! library's functions would change all threads). Away from uid 0 the kernel drops the file
//! capabilities (CAP_DAC_OVERRIDE and the others of its "fs" set) with the fsuid, and gives them
//! back with it. CAP_SYS_RESOURCE, which would override quotas, is not in that set: every
//! thread that acts here gives it up. (Data is written as root, for whom ext4 keeps some blocks.)
//!
//! Threads of the pool keep their last identity, so calls of one user in a row cost nothing.
//! A caller's thread is given back as it was, unless it says that it need not be.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use dafs_protocol::{Identity, Status};

use super::sys;
use dafs_store::Caller;

thread_local! {
    /// What was set last; `None`: the thread is as the server was started, or nothing is known.
    static CURRENT: RefCell<Option<Caller>> = const { RefCell::new(None) };
    static PREPARED: Cell<bool> = const { Cell::new(false) };
    static KEEPS: Cell<bool> = const { Cell::new(false) };
}

/// Whom this server can act as.
#[derive(Debug)]
pub(super) struct Identities {
    /// The server's own.
    server: Caller,
    can_switch: bool,
}

/// While it lives, this thread acts as somebody.
pub(super) struct Acting<'a> {
    restore: Option<&'a Identities>,
}

/// Lets this thread keep the identity of its last caller between calls of a [`PosixStore`], which
/// saves some ten microseconds where callers are many and not root. For threads of a server that
/// open no files but by the store.
///
/// [`PosixStore`]: super::PosixStore
pub(super) fn keep_identity_between_calls() {
    KEEPS.set(true);
}

impl Identities {
    /// Finds out by trying, in a thread of its own.
    pub(super) fn probe() -> Identities {
        let (uid, gid) = sys::effective_ids();
        let groups = sys::groups().unwrap_or_default();
        let server = Arc::new(Identity { uid, gid, groups });
        let other = Identity { uid: 65_534, gid: 65_534, groups: vec![65_534] };
        let trial = std::thread::spawn(move || set(&other, None).is_ok());
        let can_switch = uid == 0 && trial.join().unwrap_or(false);
        Identities { server, can_switch }
    }

    pub(super) fn can_switch(&self) -> bool {
        self.can_switch
    }

    pub(super) fn is_server(&self, caller: &Identity) -> bool {
        caller.uid == self.server.uid
    }

    /// Fails as [`act_as`](Self::act_as) would, for what needs no rights.
    pub(super) fn may_act_as(&self, caller: &Identity) -> Result<(), Status> {
        if self.can_switch || self.is_server(caller) { Ok(()) } else { Err(Status::Perm) }
    }

    /// Acts as the server itself.
    pub(super) fn as_server(&self) -> Result<Acting<'_>, Status> {
        let server = self.server.clone();
        self.act_as(&server)
    }

    /// Acts as `caller` until the answer is dropped.
    ///
    /// # Errors
    /// PERM where the server cannot: it is not root and `caller` is somebody else.
    pub(super) fn act_as(&self, caller: &Caller) -> Result<Acting<'_>, Status> {
        if !self.can_switch {
            return if self.is_server(caller) {
                Ok(Acting { restore: None })
            } else {
                Err(Status::Perm)
            };
        }
        prepare();
        // Groups give root nothing that it has not: no switch to and fro for other ones.
        let is_server = caller.uid == self.server.uid && caller.gid == self.server.gid;
        let caller = if is_server { &self.server } else { caller };
        let is_current = CURRENT.with_borrow(|current| match current {
            Some(current) => Arc::ptr_eq(current, caller) || current == caller,
            None => false,
        });
        if !is_current {
            self.switch(caller)?;
        }
        Ok(Acting { restore: (!KEEPS.get()).then_some(self) })
    }

    /// Does one thing as the server within what is done as `caller`.
    ///
    /// # Errors
    /// This thread is not `caller` any more: nothing may be done for `caller` after.
    pub(super) fn as_server_for<T>(
        &self,
        caller: &Caller,
        work: impl FnOnce() -> T,
    ) -> Result<T, Status> {
        let server = self.as_server()?;
        let result = work();
        drop(server);
        // The guard of what is done as `caller` is the one that ends it.
        std::mem::forget(self.act_as(caller)?);
        Ok(result)
    }

    fn switch(&self, caller: &Caller) -> Result<(), Status> {
        // Until all is done nothing is known of this thread.
        let before = CURRENT.take();
        set(caller, before.as_deref()).inspect_err(|_| {
            tracing::error!(uid = caller.uid, gid = caller.gid, "cannot act as this user");
        })?;
        CURRENT.set(Some(caller.clone()));
        Ok(())
    }
}

impl Drop for Acting<'_> {
    fn drop(&mut self) {
        let Some(identities) = self.restore else { return };
        let is_server = CURRENT.with_borrow(|current| {
            current.as_ref().is_some_and(|caller| *caller == identities.server)
        });
        if !is_server && identities.switch(&identities.server).is_err() {
            // The thread is the caller's, and would go on with rights that are not its own.
            tracing::error!("cannot return to the server's own identity");
            std::process::abort();
        }
    }
}

/// Once per thread: quotas hold for it.
pub(super) fn prepare() {
    if !PREPARED.replace(true)
        && let Err(errno) = sys::drop_resource_capability()
    {
        tracing::warn!(errno = errno.0, "cannot drop CAP_SYS_RESOURCE: quotas will not hold");
    }
}

/// `before`: what is known to be set.
fn set(caller: &Identity, before: Option<&Identity>) -> Result<(), Status> {
    // u32::MAX means "no change" to the kernel, and is nobody.
    if caller.uid == u32::MAX || caller.gid == u32::MAX || caller.groups.contains(&u32::MAX) {
        return Err(Status::Perm);
    }
    if before.is_none_or(|before| before.groups != caller.groups) {
        sys::set_groups(&caller.groups)?;
    }
    let gid = before.is_some_and(|before| before.gid == caller.gid) || sys::set_fs_gid(caller.gid);
    let uid = before.is_some_and(|before| before.uid == caller.uid) || sys::set_fs_uid(caller.uid);
    if gid && uid { Ok(()) } else { Err(Status::Perm) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of this thread: real, effective, saved, fs.
    fn ids(line: &str) -> Vec<u32> {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("status");
        let line = status.lines().find_map(|l| l.strip_prefix(line)).expect("a line");
        line.split_whitespace().map(|id| id.parse().expect("a number")).collect()
    }

    #[test]
    fn a_thread_is_given_back_as_it_was() {
        let identities = Identities::probe();
        if !identities.can_switch() {
            return eprintln!("skipped: needs root");
        }
        let groups = ids("Groups:");
        let caller = Arc::new(Identity { uid: 4711, gid: 4712, groups: vec![1, 2, 3] });
        let acting = identities.act_as(&caller).expect("root may");
        assert_eq!((ids("Uid:"), ids("Gid:")), (vec![0, 0, 0, 4711], vec![0, 0, 0, 4712]));
        assert_eq!(ids("Groups:"), [1, 2, 3]);
        drop(acting);
        assert_eq!((ids("Uid:"), ids("Gid:")), (vec![0; 4], vec![0; 4]));
        assert_eq!(ids("Groups:"), groups);
        let nobody = Arc::new(Identity { uid: u32::MAX, gid: 1, groups: vec![] });
        assert_eq!(identities.act_as(&nobody).err(), Some(Status::Perm));
        assert_eq!(ids("Uid:"), [0; 4]);
    }

    #[test]
    fn a_thread_that_acts_has_no_say_over_quotas() {
        let identities = Identities::probe();
        if !identities.can_switch() {
            return eprintln!("skipped: needs root");
        }
        drop(identities.as_server().expect("itself"));
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("status");
        let caps = status.lines().find_map(|l| l.strip_prefix("CapEff:")).expect("a line");
        let caps = u64::from_str_radix(caps.trim(), 16).expect("a number");
        assert_eq!(caps >> 24 & 1, 0);
        assert_eq!(caps >> 1 & 1, 1, "CAP_DAC_OVERRIDE is the server's");
    }

    #[test]
    fn who_is_not_root_acts_as_itself_only() {
        let server = Arc::new(Identity { uid: 1000, gid: 1000, groups: vec![] });
        let identities = Identities { server: server.clone(), can_switch: false };
        assert!(identities.act_as(&server).is_ok());
        let root = Arc::new(Identity::root());
        assert_eq!(identities.act_as(&root).err(), Some(Status::Perm));
    }
}
