//! The trait: what is answered in the calling thread, and what goes to the pool.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use dafs_protocol::{AccessMask, Attr, FileHandle, FileKind, FsAttr, OpenFlags, SetAttr, Status};

use super::attr::{self, Stat};
use super::identity::keep_identity_between_calls;
use super::names::{Creation, Rename};
use super::ring::ThreadRing;
use super::{PosixStore, Shared, list, open, sys};
use dafs_store::{
    Answer, Blocking, Caller, FileSystem, Found, Listing, Opened, Pending, Store, ThreadIo,
};

impl PosixStore {
    /// In the pool.
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        self.inner.call(work)
    }

    /// A change of names or attributes: in the pool, unless the calling thread may be used.
    fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Shared) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        if self.inner.local && self.inner.options.inline_metadata {
            return Pending::ready(work(&self.inner));
        }
        self.inner.call(work)
    }

    /// At once if possible: `quick` answers `None` where it would block.
    fn quick<T: Send + 'static>(
        &self,
        quick: impl FnOnce(&Shared) -> Option<Result<T, Status>>,
        work: impl FnOnce(&Shared) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        if self.inner.local
            && let Some(result) = quick(&self.inner)
        {
            return Pending::ready(result);
        }
        self.inner.call(work)
    }
}

impl Store for PosixStore {
    fn root(&self, caller: &Caller) -> Answer<Found> {
        self.lookup(caller, &self.inner.objects.root_handle(), b"", true)
    }

    fn lookup(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        path: &[u8],
        no_follow: bool,
    ) -> Answer<Found> {
        let cached = |inner: &Shared| inner.lookup_cached(caller, dir, path, !no_follow);
        if self.inner.local
            && let Some(result) = cached(&self.inner)
        {
            return Pending::ready(result);
        }
        let (caller, dir, path) = (caller.clone(), *dir, path.to_vec());
        self.call(move |inner| inner.lookup(&caller, &dir, &path, !no_follow))
    }

    fn object(&self, caller: &Caller, dir: &FileHandle, name: &[u8]) -> Answer<Attr> {
        let (caller, dir, name) = (caller.clone(), *dir, name.to_vec());
        self.change(move |inner| inner.object(&caller, &dir, &name))
    }

    fn lookup_parent(&self, caller: &Caller, handle: &FileHandle) -> Answer<Found> {
        let (caller, handle) = (caller.clone(), *handle);
        self.call(move |inner| inner.lookup_parent(&caller, &handle))
    }

    fn open(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Answer<Opened> {
        let (caller, dir, path) = (caller.clone(), *dir, path.to_vec());
        let request = open::Request { caller, dir, path, flags, mode };
        if self.inner.local
            && let Some(result) = open::open_cached(&self.inner, &request)
        {
            return Pending::ready(result);
        }
        // What a lease of a local program keeps from being done at once is done in the pool.
        let blocking = self.inner.local && self.inner.options.inline_metadata;
        if blocking || self.inner.may_block(Blocking::Names) {
            match self.inner.paced(|inner| open::open(inner, &request)) {
                Err(Status::Again) => {}
                result => return Pending::ready(result),
            }
        }
        self.inner.in_pool(move |inner| inner.leases.wait(|| open::open(inner, &request)))
    }

    fn create(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
        target: &[u8],
    ) -> Answer<Found> {
        let (caller, dir, name) = (caller.clone(), *dir, name.to_vec());
        let what = Creation { kind, mode, rdev, target: target.to_vec() };
        self.change(move |inner| inner.create(&caller, &dir, &name, &what))
    }

    fn link(
        &self,
        caller: &Caller,
        from: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> Answer<Found> {
        let (caller, from, dir, name) = (caller.clone(), *from, *dir, name.to_vec());
        self.change(move |inner| inner.link(&caller, &from, &dir, &name))
    }

    fn remove(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        name: &[u8],
        directory: bool,
    ) -> Answer<()> {
        let (caller, dir, name) = (caller.clone(), *dir, name.to_vec());
        self.change(move |inner| inner.remove(&caller, &dir, &name, directory))
    }

    fn rename(
        &self,
        caller: &Caller,
        from_dir: &FileHandle,
        from: &[u8],
        to_dir: &FileHandle,
        to: &[u8],
        (no_replace, exchange, whiteout): (bool, bool, bool),
    ) -> Answer<()> {
        let (caller, from_dir, to_dir) = (caller.clone(), *from_dir, *to_dir);
        let (from, to) = (from.to_vec(), to.to_vec());
        let what = Rename { from_dir, from, to_dir, to, no_replace, exchange, whiteout };
        self.change(move |inner| inner.rename(&caller, &what))
    }

    fn read_dir(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        cookie: u64,
        bytes_max: usize,
        attributes: bool,
        handles: bool,
    ) -> Answer<Listing> {
        let (caller, dir) = (caller.clone(), *dir);
        let request = list::Request { cookie, bytes_max, attributes, handles };
        self.call(move |inner| inner.read_dir(&caller, &dir, &request))
    }

    fn read_link(&self, caller: &Caller, handle: &FileHandle) -> Answer<Vec<u8>> {
        let (caller, handle) = (caller.clone(), *handle);
        self.call(move |inner| {
            let object = inner.objects.resolve(&inner.identities, &handle)?;
            if object.kind != FileKind::Symlink {
                return Err(Status::Inval);
            }
            inner.identities.may_act_as(&caller)?;
            Ok(sys::readlink(&object.fd)?)
        })
    }

    fn attr(&self, caller: &Caller, handle: &FileHandle) -> Answer<Attr> {
        let (later, handle) = (caller.clone(), *handle);
        self.quick(
            |inner| {
                let object = inner.objects.cached(&handle)?;
                Some(inner.itself(caller, &handle, &object.fd, true).map(|found| found.attr))
            },
            move |inner| {
                let object = inner.objects.resolve(&inner.identities, &handle)?;
                inner.itself(&later, &handle, &object.fd, false).map(|found| found.attr)
            },
        )
    }

    fn set_attr(&self, caller: &Caller, handle: &FileHandle, set: &SetAttr) -> Answer<Attr> {
        let (caller, handle, set) = (caller.clone(), *handle, *set);
        self.change(move |inner| {
            inner.may_change()?;
            let object = inner.objects.resolve(&inner.identities, &handle)?;
            let _acting = inner.identities.act_as(&caller)?;
            attr::set(&object.fd, object.kind, &caller, &set)?;
            let stat = Stat::of(&object.fd, false)?;
            inner.still_there(&stat)?;
            Ok(stat.attr())
        })
    }

    fn access(&self, caller: &Caller, handle: &FileHandle, mask: AccessMask) -> Answer<AccessMask> {
        let (later, handle) = (caller.clone(), *handle);
        self.quick(
            |inner| Some(inner.granted(caller, &*inner.objects.cached(&handle)?, mask)),
            move |inner| {
                let object = inner.objects.resolve(&inner.identities, &handle)?;
                inner.granted(&later, &object, mask)
            },
        )
    }

    fn fs_attr(&self, caller: &Caller, handle: &FileHandle) -> Answer<FsAttr> {
        let (caller, handle) = (caller.clone(), *handle);
        self.call(move |inner| {
            let object = inner.objects.resolve(&inner.identities, &handle)?;
            inner.identities.may_act_as(&caller)?;
            attr::fs_attr(&object.fd, inner.options.read_only)
        })
    }

    fn xattr(&self, caller: &Caller, handle: &FileHandle, name: &[u8]) -> Answer<Vec<u8>> {
        let (caller, handle, name) = (caller.clone(), *handle, name.to_vec());
        self.call(move |inner| inner.xattr(&caller, &handle, &name))
    }

    fn set_xattr(
        &self,
        caller: &Caller,
        handle: &FileHandle,
        name: &[u8],
        value: &[u8],
        flags: u8,
    ) -> Answer<()> {
        let (caller, handle, name, value) =
            (caller.clone(), *handle, name.to_vec(), value.to_vec());
        self.change(move |inner| inner.set_xattr(&caller, &handle, &name, &value, flags))
    }

    fn list_xattr(&self, caller: &Caller, handle: &FileHandle) -> Answer<Vec<u8>> {
        let (caller, handle) = (caller.clone(), *handle);
        self.call(move |inner| inner.list_xattr(&caller, &handle))
    }

    fn remove_xattr(&self, caller: &Caller, handle: &FileHandle, name: &[u8]) -> Answer<()> {
        let (caller, handle, name) = (caller.clone(), *handle, name.to_vec());
        self.change(move |inner| inner.remove_xattr(&caller, &handle, &name))
    }

    fn sync_dir(&self, dir: &FileHandle) -> Answer<()> {
        let dir = *dir;
        self.inner.call_long(move |inner| inner.sync_dir(&dir))
    }

    fn sync_fs(&self) -> Answer<()> {
        self.inner.call_long(|inner| inner.objects.sync())
    }

    fn has_device(&self, device: u64) -> bool {
        self.inner.objects.has_device(device)
    }

    fn file_system(&self, device: u64) -> Option<FileSystem> {
        self.inner.objects.file_system(device)
    }

    fn is_mounted(&self, device: u64) -> Option<bool> {
        self.inner.objects.is_mounted(device)
    }

    fn count_file_systems(&self, met: &Arc<AtomicU64>) {
        self.inner.objects.count_file_systems(met);
    }

    fn attach_thread(&self) -> std::io::Result<Option<Box<dyn ThreadIo>>> {
        // It opens no files of its own.
        keep_identity_between_calls();
        if !self.is_direct() {
            return Ok(None);
        }
        Ok(ThreadRing::attach()?.map(|ring| Box::new(ring) as Box<dyn ThreadIo>))
    }

    fn disk(&self) -> &'static str {
        if self.inner.direct { "direct" } else { "buffered" }
    }
}
