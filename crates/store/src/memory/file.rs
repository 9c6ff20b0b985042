//! An open file in memory.

use std::any::Any;
use std::sync::Arc;

use dafs_fabric::{SgList, sg_bytes};
use dafs_protocol::{Attr, FileHandle, SetAttr, Status};

use super::data::BLOCK;
use super::node::Content;
use super::open_file::MemoryFile;
use super::{FaultKind, Shared, State};
use crate::{Answer, Caller, Extents, File, FileId, Found, Pending, SeekKind};

/// Largest size of a file, as Linux has it.
pub(super) const SIZE_MAX: u64 = i64::MAX as u64;

const ALLOCATE: u32 = 0;
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 3;
const COLLAPSE_RANGE: u32 = 8;
const ZERO_RANGE: u32 = 0x10;
const ZERO_KEEP_SIZE: u32 = 0x11;
const INSERT_RANGE: u32 = 0x20;

/// The open file of `inode`, which is a regular one. Nothing may fail after this: the lock is
/// held, which the file's end needs.
pub(super) fn open(
    shared: &Arc<Shared>,
    state: &mut State,
    inode: u64,
) -> Result<Arc<MemoryFile>, Status> {
    let (boot, device, direct) = (state.boot, state.tree.options.id, state.tree.options.direct);
    let node = state.tree.node_mut(inode)?;
    let generation = node.generation;
    let Content::File { open, .. } = &mut node.content else {
        return Err(Status::BadType);
    };
    if let Some(file) = open.upgrade() {
        return Ok(file);
    }
    let file =
        Arc::new(MemoryFile { shared: shared.clone(), inode, generation, device, boot, direct });
    *open = Arc::downgrade(&file);
    Ok(file)
}

impl MemoryFile {
    /// Work on the file's inode, unless a crash came between.
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State, u64) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let (boot, inode, generation) = (self.boot, self.inode, self.generation);
        self.shared.call(move |state| {
            let same = state.tree.node(inode)?.generation == generation;
            if same && state.boot == boot { work(state, inode) } else { Err(Status::Stale) }
        })
    }

    /// The inode of another open file of this store, opened since the last crash.
    fn sibling(&self, other: &Arc<dyn File>) -> Option<u64> {
        let other = other.as_any().downcast_ref::<MemoryFile>()?;
        let same = Arc::ptr_eq(&self.shared, &other.shared) && self.boot == other.boot;
        same.then_some(other.inode)
    }

    /// As [`call`](Self::call), for what a read-only store refuses.
    fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut State, u64) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        self.call(move |state, inode| {
            state.may_change()?;
            work(state, inode)
        })
    }
}

impl Drop for MemoryFile {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let same = state.tree.node(self.inode).is_ok_and(|n| n.generation == self.generation);
        if same && state.boot == self.boot {
            state.tree.reclaim(self.inode);
        }
    }
}

impl File for MemoryFile {
    fn id(&self) -> FileId {
        FileId { device: self.device, inode: self.inode }
    }

    fn generation(&self) -> Option<u64> {
        Some(self.generation)
    }

    fn read_at(&self, offset: u64, into: SgList) -> Answer<usize> {
        self.call(move |state, inode| {
            state.fault(FaultKind::Read)?;
            Ok(state.tree.node(inode)?.data()?.read(offset, &into))
        })
    }

    fn write_at(&self, offset: u64, from: SgList, clear_privileges: bool) -> Answer<()> {
        self.call(move |state, inode| {
            if state.tree.options.read_only {
                return Err(Status::RoFs);
            }
            write(state, inode, offset, &from)?;
            state.clear_privileges(inode, clear_privileges)
        })
    }

    fn sync(&self, _data_only: bool) -> Answer<()> {
        self.call(|state, inode| {
            state.fault(FaultKind::Sync)?;
            state.tree.node_mut(inode)?.make_durable();
            Ok(())
        })
    }

    fn truncate(&self, size: u64, clear_privileges: bool) -> Answer<()> {
        self.change(move |state, inode| {
            set_size(state, inode, size)?;
            state.clear_privileges(inode, clear_privileges)
        })
    }

    fn fallocate(&self, mode: u32, offset: u64, len: u64, clear_privileges: bool) -> Answer<()> {
        self.change(move |state, inode| {
            fallocate(state, inode, mode, offset, len)?;
            state.clear_privileges(inode, clear_privileges)
        })
    }

    fn copy_range(
        &self,
        offset: u64,
        to: &Arc<dyn File>,
        to_offset: u64,
        len: u64,
        clear_privileges: bool,
    ) -> Answer<u64> {
        let Some(to) = self.sibling(to) else { return Pending::ready(Err(Status::XDev)) };
        self.change(move |state, inode| {
            let bytes = copy(state, inode, offset, to, to_offset, len)?;
            state.clear_privileges(to, clear_privileges)?;
            Ok(bytes)
        })
    }

    fn clone_range(
        &self,
        offset: u64,
        to: &Arc<dyn File>,
        to_offset: u64,
        len: u64,
        clear_privileges: bool,
    ) -> Answer<()> {
        let Some(to) = self.sibling(to) else { return Pending::ready(Err(Status::XDev)) };
        self.change(move |state, inode| {
            let size = state.tree.node(inode)?.data()?.size;
            let len = if len == 0 { size.saturating_sub(offset) } else { len };
            let end = offset.checked_add(len).ok_or(Status::Inval)?;
            let aligned = |at: u64| at.is_multiple_of(BLOCK);
            // The last block of the file may be short.
            let fits = aligned(offset) && aligned(to_offset) && (aligned(end) || end == size);
            if !fits || end > size {
                return Err(Status::Inval);
            }
            copy(state, inode, offset, to, to_offset, len)?;
            state.clear_privileges(to, clear_privileges)
        })
    }

    fn extents(&self, offset: u64, len: u64, most: usize) -> Answer<Extents> {
        self.call(move |state, inode| {
            Ok(state.tree.node(inode)?.data()?.extents(offset, len, most))
        })
    }

    fn link(&self, caller: &Caller, dir: &FileHandle, name: &[u8]) -> Answer<Found> {
        let (caller, dir, name) = (caller.clone(), *dir, name.to_vec());
        self.call(move |state, inode| state.link_inode(&caller, inode, &dir, &name))
    }

    fn seek(&self, offset: u64, kind: SeekKind) -> Answer<Option<u64>> {
        self.call(move |state, inode| Ok(state.tree.node(inode)?.data()?.seek(offset, kind)))
    }

    fn attr(&self) -> Answer<Attr> {
        self.call(|state, inode| state.tree.attr(inode))
    }

    fn set_attr(&self, caller: &Caller, set: &SetAttr) -> Answer<Attr> {
        let (caller, set) = (caller.clone(), *set);
        self.change(move |state, inode| state.set_attr(&caller, inode, &set))
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Copies bytes to another file or another place; how many there were.
fn copy(
    state: &mut State,
    from: u64,
    offset: u64,
    to: u64,
    to_offset: u64,
    len: u64,
) -> Result<u64, Status> {
    let source = state.tree.node(from)?.data()?;
    let len = len.min(source.size.saturating_sub(offset));
    let end = to_offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Status::FBig)?;
    if from == to && offset < end && to_offset < offset + len {
        return Err(Status::Inval);
    }
    let source = source.clone();
    state.room(state.tree.node(to)?.data()?.blocks_missing(to_offset, len))?;
    if len > 0 {
        change_data(state, to, |data| data.copy_from(&source, offset, to_offset, len))?;
    }
    Ok(len)
}

/// Writes all, or (with a short write injected) half.
fn write(state: &mut State, inode: u64, offset: u64, from: &SgList) -> Result<(), Status> {
    let bytes = sg_bytes(from);
    offset.checked_add(bytes as u64).filter(|end| *end <= SIZE_MAX).ok_or(Status::FBig)?;
    state.fault(FaultKind::Write)?;
    let short = state.fault(FaultKind::ShortWrite);
    let limit = if short.is_err() { bytes / 2 } else { bytes };
    let missing = state.tree.node(inode)?.data()?.blocks_missing(offset, limit as u64);
    state.room(missing)?;
    state.tree.used_blocks += missing;
    state.tree.node_mut(inode)?.data_mut()?.write(offset, from, limit);
    state.tree.touch(inode, true);
    short
}

pub(super) fn set_size(state: &mut State, inode: u64, size: u64) -> Result<(), Status> {
    if size > SIZE_MAX {
        return Err(Status::FBig);
    }
    change_data(state, inode, |data| data.set_size(size))
}

fn fallocate(
    state: &mut State,
    inode: u64,
    mode: u32,
    offset: u64,
    len: u64,
) -> Result<(), Status> {
    let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX).ok_or(Status::FBig)?;
    if len == 0 {
        return Err(Status::Inval);
    }
    if mode == ALLOCATE || mode == KEEP_SIZE {
        let data = state.tree.node(inode)?.data()?;
        state.room(data.blocks_missing(offset, len))?;
    }
    let grow = mode == ALLOCATE || mode == ZERO_RANGE;
    match mode {
        ALLOCATE | KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE | ZERO_KEEP_SIZE => {}
        COLLAPSE_RANGE | INSERT_RANGE => return shift(state, inode, mode, offset, len),
        _ => return Err(Status::NotSupp),
    }
    change_data(state, inode, |data| {
        match mode {
            ALLOCATE | KEEP_SIZE => data.allocate(offset, len),
            _ => data.punch(offset, len),
        }
        if grow && end > data.size {
            data.set_size(end);
        }
    })
}

/// Takes a range out, or puts a hole in: all that follows moves.
fn shift(state: &mut State, inode: u64, mode: u32, offset: u64, len: u64) -> Result<(), Status> {
    let size = state.tree.node(inode)?.data()?.size;
    if !offset.is_multiple_of(BLOCK) || !len.is_multiple_of(BLOCK) || offset >= size {
        return Err(Status::Inval);
    }
    if mode == COLLAPSE_RANGE {
        if offset + len >= size {
            return Err(Status::Inval);
        }
        return change_data(state, inode, |data| data.collapse(offset, len));
    }
    size.checked_add(len).filter(|size| *size <= SIZE_MAX).ok_or(Status::FBig)?;
    change_data(state, inode, |data| data.insert(offset, len))
}

/// Changes the contents and keeps the count of blocks.
fn change_data(
    state: &mut State,
    inode: u64,
    change: impl FnOnce(&mut super::data::Data),
) -> Result<(), Status> {
    let data = state.tree.node_mut(inode)?.data_mut()?;
    let before = data.blocks();
    change(data);
    let after = data.blocks();
    state.tree.used_blocks = state.tree.used_blocks + after - before;
    state.tree.touch(inode, true);
    Ok(())
}

impl State {
    fn clear_privileges(&mut self, inode: u64, clear: bool) -> Result<(), Status> {
        if clear {
            self.tree.node_mut(inode)?.clear_privileges();
        }
        Ok(())
    }
}
