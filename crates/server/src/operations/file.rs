//! Operations on open files and their data.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_fabric::SgList;
use dafs_protocol::{
    CacheHint, CreateMode, ExtentList, FileHandle, OpResult, OpenFlags, Operation, Outcome,
    StateId, Status,
};
use dafs_store::Opened;
use dafs_unifier::{CachedFile, Mark, Opening, Placement, Writer, WriterId};

use crate::chain::{Chain, Stop};
use crate::context::{Context, Held};
use crate::exports::{Export, Exports, Place};
use crate::metrics::count;
use crate::opens::Open;
use crate::paths::{DataPath, DataPin, FileData, Lent, PageCacheFile, Pieces};
use crate::planted::{Defect, planted};
use crate::session::Session;
use crate::session::open_files::OPENS_MAX;
use crate::shared::{self, Counted};

/// Pieces of one READ or WRITE: limits what strided extents can ask for.
const PIECES_MAX: usize = 1024;
/// Pieces that a chain may hold while a READ of it waits: a piece of one byte holds a page or a
/// frame.
const HELD_MAX: usize = 32;
/// Many pieces of fewer bytes on average are copied: held, each would pin a page or a frame.
const HELD_BYTES_MIN: usize = 512;

/// The pieces of an extent list, each (offset, bytes).
pub(super) fn pieces(
    extents: &ExtentList,
    data_bytes_max: u32,
) -> Result<Vec<(u64, usize)>, Status> {
    let bytes = extents.bytes().ok_or(Status::Inval)?;
    if bytes > u64::from(data_bytes_max) {
        return Err(Status::TooBig);
    }
    let mut list = Vec::new();
    for extent in extents.as_slice() {
        for i in 0..extent.count {
            let skip = extent.stride.checked_mul(u64::from(i)).ok_or(Status::Inval)?;
            let offset = extent.offset.checked_add(skip).ok_or(Status::Inval)?;
            let end = offset.checked_add(u64::from(extent.len)).ok_or(Status::FBig)?;
            if end > i64::MAX as u64 {
                return Err(Status::FBig);
            }
            if list.len() >= PIECES_MAX {
                return Err(Status::Inval);
            }
            list.push((offset, extent.len as usize));
        }
    }
    Ok(list)
}

pub(crate) fn read_result(bytes: usize, end_of_file: bool) -> OpResult {
    Ok(Outcome::Read { bytes: u32::try_from(bytes).unwrap_or(u32::MAX), end_of_file })
}

#[inline(always)]
pub(crate) fn readable(session: &Session, state: StateId) -> Result<Rc<Open>, Status> {
    let open = session.open(state)?;
    if open.read.get() { Ok(open) } else { Err(Status::BadF) }
}

/// All pieces, if the cache has them.
fn try_pieces(file: &CachedFile, pieces: &[(u64, usize)]) -> Option<Pieces> {
    let mut held = Pieces::new();
    for &(offset, len) in pieces {
        let lent = Lent::from(file.try_read(offset, len)?);
        let is_short = lent.len < len;
        held.push(lent);
        if is_short {
            break;
        }
    }
    Some(held)
}

pub(crate) fn note_read(context: &Context, session: &Session, bytes: usize) {
    count(&context.counters.bytes_read, bytes as u64);
    count(&session.counters.bytes_read, bytes as u64);
}

impl Chain {
    pub(crate) async fn data_operation(
        &mut self,
        operation: &Operation<'_>,
    ) -> Result<Outcome, Stop> {
        match operation {
            Operation::Open { dir, path, flags, mode, cache } => {
                Ok(self.open(dir, path, *flags, *mode, *cache).await?)
            }
            Operation::Close { state } => Ok(self.close(*state).await?),
            Operation::OpenDowngrade { state, read, write } => {
                let open = self.session.open(self.state(*state)?)?;
                open.read.set(open.read.get() && *read);
                open.write.set(open.write.get() && *write);
                Ok(Outcome::Done)
            }
            Operation::Read { state, extents } => Ok(self.read(*state, extents).await?),
            Operation::Write { state, extents, stability, within } => {
                self.write(*state, extents, *stability, *within).await
            }
            Operation::Append { state, bytes, stability } => {
                self.append(*state, *bytes, *stability).await
            }
            Operation::Commit { state, offset, len, level } => {
                let open = self.session.open(self.state(*state)?)?;
                let writer = self.session.writer();
                let verifier = open.file.commit(writer, *offset, *len, *level).await?;
                Ok(Outcome::Committed { verifier })
            }
            _ => Err(Status::NotSupp.into()),
        }
    }

    async fn open(
        &mut self,
        dir: &FileHandle,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
        cache: CacheHint,
    ) -> Result<Outcome, Status> {
        // Rights are asked for by the store, which knows of reading and writing.
        if flags.append && !flags.write {
            return Err(Status::Inval);
        }
        let limits = &self.context.shared.limits;
        if self.session.open_count() >= limits.opens_per_session.min(OPENS_MAX) {
            return Err(Status::Resource);
        }
        let user = &self.session.allowance.user;
        let most = (limits.opens, user.part_of(limits.opens));
        let limit = shared::LimitGuard::take(&self.context.shared, user, Counted::Opens, most)
            .ok_or(Status::Resource)?;
        let dir = self.handle(dir)?;
        let context = self.context.clone();
        let (export, number, dir, path) = match context.shared.exports.place(&dir, path)? {
            Place::Virtual => return Err(Status::IsDir),
            Place::In { export, number, dir, path } => (export, number, dir, path),
            Place::Root { export, number, path } => {
                (export, number, export.store.root(&self.who).await?.handle, path)
            }
        };
        let unifier = &context.shared.unifier;
        let (mark, changes) = (unifier.mark(), self.changes_of_rights());
        let opened = self.open_in(export, &dir, path, flags, mode).await?;
        let handle = Exports::mark(number, opened.handle);
        let mut attr = opened.attr;
        let opening = match (flags.truncate, opened.created) {
            (true, _) => Opening::Truncated,
            (false, true) => Opening::Created,
            (false, false) => Opening::Existing,
        };
        // Who may not is not told: the file is open, and the wish is one.
        let may_wish = cache != CacheHint::default()
            && (flags.write || self.may_wish_by(&handle, &attr).await.unwrap_or(false));
        let writer = self.session.writer();
        let placed = self.place(export, &opened, flags.write).await;
        let file = self.open_data((export, placed.place), mark, writer, &opened, opening);
        if let Some(cached) = file.cached()
            && let Err(status) = self.check_place(cached, &opened, placed, changes).await
        {
            file.close(writer).await?;
            return Err(status);
        }
        if let Some(file) = file.cached() {
            if flags.truncate {
                file.cut_at_open().await;
            }
            file.set_default_policy(export.policy);
            if may_wish {
                file.wish(cache);
            }
            if let Some(recorder) = context.shared.recorder.as_ref().filter(|_| flags.truncate) {
                recorder.resize(file, 0);
            }
        }
        if self.session.life.has_ended() {
            // Nobody would close it.
            file.close(writer).await?;
            return Err(Status::BadSession);
        }
        if let Some(file) = file.cached() {
            file.overlay(mark, &mut attr);
        }
        // What passes the kernel's page cache is read ahead there.
        let reads_ahead = self.session.attr.read_ahead && opened.file.is_direct();
        let open = Open {
            file,
            stored: opened.file,
            handle,
            read: Cell::new(flags.read),
            write: Cell::new(flags.write),
            append: flags.append,
            writer: Writer { id: writer, clear_privileges: self.who.uid != 0 },
            read_only_export: export.read_only,
            reader: reads_ahead.then(RefCell::default),
            _limit: limit,
        };
        let state = self.session.add_open(Rc::new(open));
        Ok(Outcome::Opened { handle, state, attr, created: opened.created })
    }

    /// The data of what was opened, by the data path of its export; where it is cached, at this place.
    pub(crate) fn open_data(
        &self,
        (export, place): (&Export, Placement),
        mark: Mark,
        writer: WriterId,
        opened: &Opened,
        opening: Opening,
    ) -> FileData {
        let shared = &self.context.shared;
        match &shared.page_cache {
            Some(page_cache) if export.data_path != DataPath::Unifier => {
                let share = self.session.share(page_cache);
                let (stored, page_cache) = (opened.file.clone(), page_cache.clone());
                FileData::Paged(PageCacheFile::new(stored, export.data_path, page_cache, share))
            }
            _ => {
                let (file, attr) = (opened.file.clone(), &opened.attr);
                let cache = &shared.unifier;
                FileData::Cached(cache.open(place, mark, writer, file, attr, opening))
            }
        }
    }

    async fn open_in(
        &self,
        export: &Export,
        dir: &FileHandle,
        path: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Opened, Status> {
        let makes = flags.create != CreateMode::No || flags.unlinked;
        let changes = flags.write || flags.append || flags.truncate || makes;
        if export.read_only && changes {
            return Err(Status::RoFs);
        }
        export.store.open(&self.who, dir, path, flags, mode).await
    }

    async fn close(&mut self, state: StateId) -> Result<Outcome, Status> {
        let open = self.session.remove_open(self.state(state)?)?;
        open.file.close(open.writer.id).await?;
        let unifier = &self.context.shared.unifier;
        let attr = open.attr(unifier).await?;
        if attr.links == 0
            && let Some(file) = open.file.cached()
        {
            // Its pages are of no use to anybody, unless it is open.
            unifier.forget(file.id());
            if let Some(recorder) = &self.context.shared.recorder {
                recorder.gone(file);
            }
        }
        Ok(Outcome::Closed { attr, verifier: self.context.shared.verifier() })
    }

    async fn read(&mut self, state: StateId, extents: &ExtentList) -> Result<Outcome, Status> {
        let data_bytes_max = self.session.attr.data_bytes_max;
        let pieces = pieces(extents, data_bytes_max)?;
        self.read_bytes += pieces.iter().map(|piece| piece.1 as u64).sum::<u64>();
        // All READs of a chain together are held until its reply has left.
        if self.read_bytes > u64::from(data_bytes_max) {
            return Err(Status::TooBig);
        }
        let state = self.state(state)?;
        match readable(&self.session, state) {
            Ok(open) => self.read_open(&open, &pieces).await,
            Err(Status::BadStateId) if self.replayed => self.read_again(&pieces).await,
            Err(status) => Err(status),
        }
    }

    async fn read_open(&mut self, open: &Open, pieces: &[(u64, usize)]) -> Result<Outcome, Status> {
        let &[(offset, len)] = pieces else { return self.read_pieces(&open.file, pieces).await };
        let was_there = open.is_coming(offset, len);
        let outcome = self.read_pieces(&open.file, pieces).await?;
        open.read_ahead(offset, len, was_there);
        Ok(outcome)
    }

    async fn read_pieces(
        &mut self,
        file: &FileData,
        pieces: &[(u64, usize)],
    ) -> Result<Outcome, Status> {
        let lent = self.hold(file, pieces).await?;
        if let (Some(recorder), Some(file)) = (&self.context.shared.recorder, file.cached()) {
            pieces.iter().for_each(|&(offset, len)| recorder.read(file, offset, len));
        }
        let mut bytes = 0;
        let mut end = false;
        for lent in lent {
            bytes += lent.len;
            end = lent.end_of_file;
            self.out.extend(lent.spans);
            self.held.extend(lent.held.map(Held::Data));
        }
        note_read(&self.context, &self.session, bytes);
        read_result(bytes, end)
    }

    /// Nothing is held while waiting, but the pieces of earlier READs by who has the turn to.
    async fn hold(&self, file: &FileData, pieces: &[(u64, usize)]) -> Result<Pieces, Status> {
        let file = match file {
            FileData::Cached(file) => file,
            // Who has the turn is waited for by all who want it: it waits for none of its own
            // session, whose peer may take its time.
            FileData::Paged(file) => return file.read_list(pieces, self.holds_turn).await,
        };
        let bytes: usize = pieces.iter().map(|piece| piece.1).sum();
        let are_tiny = pieces.len() > HELD_MAX
            && bytes < pieces.len() * HELD_BYTES_MIN
            && !planted(Defect::ReadersNotCounted);
        if are_tiny || (self.holds_turn && self.held.len() + pieces.len() > HELD_MAX) {
            return self.copy_pieces(file, pieces).await;
        }
        if let &[(offset, len)] = pieces {
            return Ok(Pieces::from_iter([file.read(offset, len).await?.into()]));
        }
        if let Some(held) = try_pieces(file, pieces) {
            return Ok(held);
        }
        file.prefetch_list(pieces);
        for &(offset, len) in pieces {
            drop(file.read(offset, len).await?);
        }
        // The first may be gone again when the last has come.
        match try_pieces(file, pieces) {
            Some(held) => Ok(held),
            None => self.copy_pieces(file, pieces).await,
        }
    }

    /// All pieces, copied together, so that none is held while another is waited for.
    async fn copy_pieces(
        &self,
        file: &Arc<CachedFile>,
        pieces: &[(u64, usize)],
    ) -> Result<Pieces, Status> {
        file.prefetch_list(pieces);
        let scratch = self.context.scratch(pieces.iter().map(|piece| piece.1).sum())?;
        let (mut at, mut end_of_file) = (0, false);
        for &(offset, len) in pieces {
            let lease = file.read(offset, len).await?;
            for span in &lease.spans() {
                scratch.copy_span(at, span);
                at += span.len();
            }
            end_of_file = lease.end_of_file();
            if lease.len() < len {
                break;
            }
        }
        let spans = if at > 0 { SgList::from_iter([scratch.part(0, at)]) } else { SgList::new() };
        let held = Some(DataPin::Scratch(scratch));
        Ok(Pieces::from_iter([Lent { spans, len: at, end_of_file, held }]))
    }

    /// A read of a resent chain whose file the chain itself closed: opened once more.
    async fn read_again(&mut self, pieces: &[(u64, usize)]) -> Result<Outcome, Status> {
        let handle = self.previous_handle().ok_or(Status::BadStateId)?;
        let context = self.context.clone();
        let (_, export, inner) = context.shared.exports.of(&handle)?;
        let flags = OpenFlags {
            read: true,
            write: false,
            create: CreateMode::No,
            truncate: false,
            append: false,
            no_follow: false,
            unlinked: false,
            again: false,
        };
        let (mark, changes) = (context.shared.unifier.mark(), self.changes_of_rights());
        let opened = export.store.open(&self.who, &inner, b"", flags, 0).await?;
        let writer = self.session.writer();
        let placed = self.place(export, &opened, false).await;
        let file = self.open_data((export, placed.place), mark, writer, &opened, Opening::Existing);
        let placed = match file.cached() {
            Some(cached) => self.check_place(cached, &opened, placed, changes).await,
            None => Ok(()),
        };
        let outcome = match placed {
            Ok(()) => self.read_pieces(&file, pieces).await,
            Err(status) => Err(status),
        };
        file.close(writer).await?;
        outcome
    }

    pub(crate) fn writable_open(&self, state: StateId) -> Result<Rc<Open>, Status> {
        let open = self.session.open(self.state(state)?)?;
        if !open.write.get() {
            return Err(Status::BadF);
        }
        if open.read_only_export {
            return Err(Status::RoFs);
        }
        Ok(open)
    }

    /// Who writes by this operation: neither the caller nor who opened the file may leave setuid
    /// and setgid behind if not root.
    pub(crate) fn writer(&self, open: &Open) -> Writer {
        Writer { id: open.writer.id, clear_privileges: self.clears(open) }
    }

    pub(crate) fn clears(&self, open: &Open) -> bool {
        open.writer.clear_privileges || self.who.uid != 0
    }

    pub(crate) fn note_written(&self, bytes: usize) {
        self.context.shared.counters.bytes_written.fetch_add(bytes as u64, Ordering::Relaxed);
        count(&self.session.counters.bytes_written, bytes as u64);
    }
}
