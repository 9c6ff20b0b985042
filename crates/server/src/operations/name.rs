//! Operations on names and attributes.

use dafs_protocol::{
    Attr, FileHandle, FileKind, Identity, OpenFlags, Operation, Outcome, SessionStats, SetAttr,
    StateId, Status,
};
use dafs_store::{FileId, Found, Store};
use dafs_unifier::{Mark, Opening, Placement};
use std::sync::atomic::Ordering;

use crate::chain::{Chain, Stop};
use crate::exports::{Export, Exports, Place};
use crate::paths::FileData;

impl Chain {
    pub(crate) async fn name_operation(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Stop> {
        match operation {
            Operation::GetRoot { export } => Ok(self.root(export).await?),
            Operation::Lookup { dir, path, no_follow } => {
                Ok(self.lookup(dir, path, *no_follow).await?)
            }
            Operation::LookupParent { handle } => Ok(self.parent(handle).await?),
            Operation::Create { dir, name, kind, mode, rdev, .. } => {
                let target = std::mem::take(&mut self.target);
                Ok(self.create(dir, name, *kind, *mode, *rdev, &target).await?)
            }
            Operation::Link { state, dir, name, .. } if *state != StateId::NONE => {
                Ok(self.link_open(*state, dir, name).await?)
            }
            Operation::Link { handle, dir, name, .. } => Ok(self.link(handle, dir, name).await?),
            Operation::Remove { dir, name, directory } => {
                let dir = self.handle(dir)?;
                let (_, export, dir) = self.writable(&dir)?;
                let (was, touched) = self.before_by_name(&*export.store, &dir, name).await;
                let removed = export.store.remove(&self.who, &dir, name, *directory).await;
                self.after_change(&*export.store, touched).await;
                removed?;
                // A directory that can be removed has nothing in it.
                self.paths_changed(&[was.filter(is_no_directory)]).await;
                Ok(ended(was))
            }
            Operation::Rename { .. } => Ok(self.rename(operation).await?),
            Operation::GetAttr { handle, state } => Ok(self.attributes(handle, *state).await?),
            Operation::SetAttr { handle, state, set } => {
                let attr = self.set_attributes(handle, *state, set).await?;
                Ok(Outcome::Attributes { attr })
            }
            Operation::Access { handle, mask } => Ok(self.access(handle, *mask).await?),
            Operation::StatFs { handle } => Ok(self.file_system(handle).await?),
            Operation::SyncFs { handle } => Ok(self.sync_fs(handle).await?),
            Operation::SyncDir { dir } => {
                let dir = self.handle(dir)?;
                // The names of exports are in no file system.
                if !(dir == Exports::virtual_root() && self.context.shared.exports.only().is_none())
                {
                    let (_, export, inner) = self.context.shared.exports.of(&dir)?;
                    export.store.sync_dir(&inner).await?;
                }
                Ok(Outcome::Done)
            }
            _ => Err(Status::NotSupp.into()),
        }
    }

    fn mark(&self) -> Mark {
        self.context.shared.unifier.mark()
    }

    /// The export of a handle that is to be changed.
    pub(crate) fn writable(
        &self,
        handle: &FileHandle,
    ) -> Result<(u8, &Export, FileHandle), Status> {
        let exports = &self.context.shared.exports;
        if *handle == Exports::virtual_root() && exports.only().is_none() {
            return Err(Status::RoFs);
        }
        let (number, export, inner) = exports.of(handle)?;
        if export.read_only {
            return Err(Status::RoFs);
        }
        Ok((number, export, inner))
    }

    fn found(&self, number: u8, mark: Mark, mut found: Found) -> Outcome {
        self.context.shared.unifier.overlay(mark, &mut found.attr);
        Outcome::Found { handle: Exports::mark(number, found.handle), attr: found.attr }
    }

    async fn root(&self, name: &[u8]) -> Result<Outcome, Status> {
        let exports = &self.context.shared.exports;
        let (number, export) = if name.is_empty() {
            match exports.only() {
                Some(export) => (0, export),
                None => return Ok(virtual_root()),
            }
        } else {
            exports.named(name).ok_or(Status::NoEnt)?
        };
        let mark = self.mark();
        Ok(self.found(number, mark, export.store.root(&self.who).await?))
    }

    async fn lookup(
        &self,
        dir: &FileHandle,
        path: &[u8],
        no_follow: bool,
    ) -> Result<Outcome, Status> {
        let dir = self.handle(dir)?;
        let mark = self.mark();
        match self.context.shared.exports.place(&dir, path)? {
            Place::Virtual => Ok(virtual_root()),
            Place::In { export, number, dir, path } => {
                let found = export.store.lookup(&self.who, &dir, path, no_follow).await?;
                Ok(self.found(number, mark, found))
            }
            Place::Root { export, number, path } => {
                let root = export.store.root(&self.who).await?;
                if path.is_empty() {
                    return Ok(self.found(number, mark, root));
                }
                let found = export.store.lookup(&self.who, &root.handle, path, no_follow).await?;
                Ok(self.found(number, mark, found))
            }
        }
    }

    async fn parent(&self, handle: &FileHandle) -> Result<Outcome, Status> {
        let exports = &self.context.shared.exports;
        let handle = self.handle(handle)?;
        if handle == Exports::virtual_root() && exports.only().is_none() {
            return Ok(virtual_root());
        }
        let (number, export, inner) = exports.of(&handle)?;
        let mark = self.mark();
        Ok(self.found(number, mark, export.store.lookup_parent(&self.who, &inner).await?))
    }

    async fn create(
        &self,
        dir: &FileHandle,
        name: &[u8],
        kind: FileKind,
        mode: u32,
        rdev: u64,
        target: &[u8],
    ) -> Result<Outcome, Status> {
        let dir = self.handle(dir)?;
        let (number, export, dir) = self.writable(&dir)?;
        let made = export.store.create(&self.who, &dir, name, kind, mode, rdev, target).await?;
        Ok(self.found(number, self.mark(), made))
    }

    async fn link(
        &self,
        handle: &FileHandle,
        dir: &FileHandle,
        name: &[u8],
    ) -> Result<Outcome, Status> {
        let handle = self.handle(handle)?;
        let dir = self.handle(dir)?;
        let (number, export, inner) = self.writable(&handle)?;
        let (other, _, dir) = self.writable(&dir)?;
        if number != other {
            return Err(Status::XDev);
        }
        let touched = self.before_by_handle(&*export.store, &inner).await;
        let mark = self.mark();
        let linked = export.store.link(&self.who, &inner, &dir, name).await;
        self.after_change(&*export.store, touched).await;
        Ok(self.found(number, mark, linked?))
    }

    /// Gives an open file a name.
    async fn link_open(
        &self,
        state: StateId,
        dir: &FileHandle,
        name: &[u8],
    ) -> Result<Outcome, Status> {
        let open = self.session.open(self.state(state)?)?;
        let dir = self.handle(dir)?;
        let (number, export, inner) = self.writable(&open.handle)?;
        let (other, _, dir) = self.writable(&dir)?;
        if number != other {
            return Err(Status::XDev);
        }
        let touched = self.before_by_handle(&*export.store, &inner).await;
        let mark = self.mark();
        let linked = open.stored.link(&self.who, &dir, name).await;
        self.after_change(&*export.store, touched).await;
        Ok(self.found(number, mark, linked?))
    }

    async fn rename(&self, operation: &Operation<'_>) -> Result<Outcome, Status> {
        let Operation::Rename { from_dir, from, to_dir, to, no_replace, exchange, whiteout } =
            operation
        else {
            return Err(Status::ServerFault);
        };
        let from_dir = self.handle(from_dir)?;
        let to_dir = self.handle(to_dir)?;
        let (number, export, from_dir) = self.writable(&from_dir)?;
        let (other, _, to_dir) = self.writable(&to_dir)?;
        if number != other {
            return Err(Status::XDev);
        }
        let store = &*export.store;
        let (source, moved) = self.before_by_name(store, &from_dir, from).await;
        let (was, replaced) = self.before_by_name(store, &to_dir, to).await;
        let how = (*no_replace, *exchange, *whiteout);
        let renamed = store.rename(&self.who, &from_dir, from, &to_dir, to, how).await;
        self.after_change(store, moved).await;
        self.after_change(store, replaced).await;
        renamed?;
        let source = source.filter(|_| from_dir != to_dir);
        let replaced = was.filter(|was| match exchange {
            true => from_dir != to_dir,
            // As one that is removed.
            false => is_no_directory(was),
        });
        self.paths_changed(&[source, replaced]).await;
        Ok(if *exchange { Outcome::Done } else { ended(was) })
    }

    async fn attributes(&self, handle: &FileHandle, state: StateId) -> Result<Outcome, Status> {
        if state != StateId::NONE {
            let open = self.session.open(self.state(state)?)?;
            let attr = open.attr(&self.context.shared.unifier).await?;
            return Ok(Outcome::Attributes { attr });
        }
        let handle = self.handle(handle)?;
        let exports = &self.context.shared.exports;
        if handle == Exports::virtual_root() && exports.only().is_none() {
            return Ok(Outcome::Attributes { attr: Exports::virtual_attr() });
        }
        let (_, export, inner) = exports.of(&handle)?;
        let mark = self.mark();
        let mut attr = export.store.attr(&self.who, &inner).await?;
        self.context.shared.unifier.overlay(mark, &mut attr);
        Ok(Outcome::Attributes { attr })
    }

    /// Sizes change through the cache, times after a flush, so that neither is undone by a
    /// later write-back.
    async fn set_attributes(
        &self,
        handle: &FileHandle,
        state: StateId,
        set: &SetAttr,
    ) -> Result<Attr, Status> {
        let open = match state {
            StateId::NONE => None,
            state => Some(self.session.open(self.state(state)?)?),
        };
        let handle = match &open {
            Some(open) => open.handle,
            None => self.handle(handle)?,
        };
        let (_, export, inner) = self.writable(&handle)?;
        if let Some(size) = set.size {
            match &open {
                Some(open) if open.write.get() => {
                    open.file.truncate(size, self.clears(open)).await?;
                    self.note_size(&open.file, size);
                }
                Some(_) => return Err(Status::BadF),
                None => self.truncate_by_handle(export, &inner, size).await?,
            }
        }
        let rest = SetAttr { size: None, ..*set };
        if rest == SetAttr::default() {
            if let Some(open) = &open {
                return open.attr(&self.context.shared.unifier).await;
            }
            let mark = self.mark();
            let mut attr = export.store.attr(&self.who, &inner).await?;
            self.context.shared.unifier.overlay(mark, &mut attr);
            return Ok(attr);
        }
        let unifier = &self.context.shared.unifier;
        if let Some(open) = &open {
            let mark = unifier.mark();
            unifier.look(mark, &open.stored.attr().await?);
            // What cannot be written is told to those who wrote it.
            let _ = open.file.flush().await;
        } else {
            self.flush_by_handle(&export.store, &inner).await?;
        }
        let mark = unifier.mark();
        let outcome = match &open {
            Some(open) => open.stored.set_attr(&self.who, &rest).await,
            None => export.store.set_attr(&self.who, &inner, &rest).await,
        };
        if rest.mode.is_some() || rest.uid.is_some() || rest.gid.is_some() {
            // A part of it may have been done, though it failed.
            let now = match (&outcome, &open) {
                (Ok(attr), _) => Some(*attr),
                (Err(_), Some(open)) => open.stored.attr().await.ok(),
                (Err(_), None) => export.store.attr(&self.who, &inner).await.ok(),
            };
            if let Some(attr) = now {
                self.rights_changed(&attr, false).await?;
            }
        }
        let mut attr = outcome?;
        match rest.modified {
            Some(_) => unifier.note(mark, &attr),
            None => unifier.note_unmodified(mark, &attr),
        }
        unifier.overlay(mark, &mut attr);
        Ok(attr)
    }

    fn note_size(&self, file: &FileData, size: u64) {
        if let (Some(recorder), Some(file)) = (&self.context.shared.recorder, file.cached()) {
            recorder.resize(file, size);
        }
    }

    async fn truncate_by_handle(
        &self,
        export: &Export,
        handle: &FileHandle,
        size: u64,
    ) -> Result<(), Status> {
        let flags = OpenFlags {
            read: false,
            write: true,
            create: dafs_protocol::CreateMode::No,
            truncate: false,
            append: false,
            no_follow: false,
            unlinked: false,
            again: false,
        };
        let mark = self.mark();
        let opened = export.store.open(&self.who, handle, b"", flags, 0).await?;
        let writer = self.session.writer();
        let place = Placement::default();
        let file = self.open_data((export, place), mark, writer, &opened, Opening::Existing);
        let result = file.truncate(size, self.who.uid != 0).await;
        self.note_size(&file, size);
        let closed = file.close(writer).await;
        result.and(closed)
    }

    /// Dirty data of a file that somebody else has open goes out before its times are set.
    async fn flush_by_handle(
        &self,
        store: &std::sync::Arc<dyn Store>,
        handle: &FileHandle,
    ) -> Result<(), Status> {
        let unifier = &self.context.shared.unifier;
        let mark = unifier.mark();
        let attr = store.attr(&self.who, handle).await?;
        let id = FileId { device: attr.device, inode: attr.inode };
        unifier.look(mark, &attr);
        match unifier.find(id) {
            Some(file) => {
                // What cannot be written is told to those who wrote it.
                let _ = file.flush().await;
                Ok(())
            }
            None => Ok(()),
        }
    }

    async fn access(&self, handle: &FileHandle, mask: u8) -> Result<Outcome, Status> {
        let handle = self.handle(handle)?;
        let exports = &self.context.shared.exports;
        if handle == Exports::virtual_root() && exports.only().is_none() {
            return Ok(Outcome::Granted { mask: mask & 5 });
        }
        let (_, export, inner) = exports.of(&handle)?;
        let mask = if export.read_only { mask & !2 } else { mask };
        let mask = export.store.access(&self.who, &inner, mask).await?;
        Ok(Outcome::Granted { mask })
    }

    async fn file_system(&self, handle: &FileHandle) -> Result<Outcome, Status> {
        let handle = self.handle(handle)?;
        let exports = &self.context.shared.exports;
        let virtual_root = handle == Exports::virtual_root() && exports.only().is_none();
        let mut attr = if virtual_root {
            dafs_protocol::FsAttr { read_only: true, name_bytes_max: 255, ..Default::default() }
        } else {
            let (_, export, inner) = exports.of(&handle)?;
            let mut attr = export.store.fs_attr(&self.who, &inner).await?;
            attr.read_only |= export.read_only;
            attr
        };
        attr.lease_seconds = self.context.shared.limits.lease_seconds;
        Ok(Outcome::FileSystem { attr })
    }

    async fn sync_fs(&self, handle: &FileHandle) -> Result<Outcome, Status> {
        let handle = self.handle(handle)?;
        let shared = &self.context.shared;
        let all = handle == Exports::virtual_root() && shared.exports.only().is_none();
        let only = if all { None } else { Some(shared.exports.of(&handle)?.1) };
        let failed = shared.unifier.flush_all().await;
        // What could be written is synced all the same.
        let mut outcome = Ok(());
        for export in shared.exports.iter() {
            if only.is_none_or(|only| std::ptr::eq(only, export)) {
                outcome = outcome.and(export.store.sync_fs().await);
            }
        }
        // What is certainly of other exports only is no matter of this one.
        let elsewhere = |device: u64| {
            let others = || shared.exports.iter().any(|export| export.store.has_device(device));
            only.is_some_and(|only| !only.store.has_device(device)) && others()
        };
        let unwritten = failed.iter().find(|(file, _)| !elsewhere(file.device));
        unwritten.map_or(outcome, |(_, status)| Err(*status))?;
        Ok(Outcome::Committed { verifier: shared.verifier() })
    }

    pub(crate) fn register_credential(
        &self,
        uid: u32,
        gid: u32,
        groups: &[u8],
    ) -> Result<Outcome, Status> {
        let groups: Vec<u32> = groups
            .chunks_exact(4)
            .filter_map(|bytes| Some(u32::from_le_bytes(bytes.try_into().ok()?)))
            .collect();
        if groups.len() > dafs_protocol::GROUPS_MAX {
            return Err(Status::Inval);
        }
        let identity = Identity { uid, gid, groups };
        let max = self.context.shared.limits.credentials;
        Ok(Outcome::Credential { cred: self.session.register(identity, max)? })
    }

    pub(crate) fn stats(&self) -> Outcome {
        let shared = &self.context.shared;
        let counters = &shared.counters;
        let (cpu_ns, resident_bytes) = shared.process.stats();
        let cache = shared.unifier.stats();
        let session = &self.session.counters;
        Outcome::Stats(Box::new(SessionStats {
            session_requests: session.requests.load(Ordering::Relaxed),
            session_replays: session.replays.load(Ordering::Relaxed),
            session_bytes_read: session.bytes_read.load(Ordering::Relaxed),
            session_bytes_written: session.bytes_written.load(Ordering::Relaxed),
            cpu_ns,
            system_calls: counters.system_calls.load(Ordering::Relaxed),
            copied_bytes: dafs_fabric::mem::copied_bytes(),
            registrations: dafs_fabric::mem::registrations(),
            resident_bytes,
            arena_bytes: shared.process.arena_bytes as u64,
            dirty_bytes: cache.dirty_bytes,
            cache_hits: cache.hits + shared.counters.cache_hits(),
            cache_misses: cache.misses,
            sessions: counters.sessions.load(Ordering::Relaxed) as u64,
            opens: counters.opens.load(Ordering::Relaxed) as u64,
        }))
    }
}

fn is_no_directory(attr: &Attr) -> bool {
    attr.kind != FileKind::Directory
}

/// What a removal answers: the last attributes of what has no name any more.
fn ended(was: Option<Attr>) -> Outcome {
    match was.filter(|attr| attr.kind == FileKind::Directory || attr.links <= 1) {
        Some(attr) => Outcome::Attributes { attr },
        None => Outcome::Done,
    }
}

fn virtual_root() -> Outcome {
    Outcome::Found { handle: Exports::virtual_root(), attr: Exports::virtual_attr() }
}
