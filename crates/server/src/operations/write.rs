//! Data that comes.

use std::sync::Arc;

use dafs_fabric::SgList;
use dafs_protocol::{CommitLevel, ExtentList, Outcome, Stability, StateId, Status};
use dafs_unifier::CachedFile;

use super::file::pieces;
use crate::chain::{Chain, Stop};
use crate::opens::Open;
use crate::paths::{FileData, PageCacheFile};
use crate::planted::{Defect, planted};

impl Chain {
    /// Room first (a writer waits at the dirty limit before its data is fetched), then the
    /// data, then each piece becomes visible whole.
    pub(super) async fn write(
        &mut self,
        state: StateId,
        extents: &ExtentList,
        stability: Stability,
        within: bool,
    ) -> Result<Outcome, Stop> {
        let pieces = pieces(extents, self.session.attr.data_bytes_max)?;
        let open = self.writable_open(state)?;
        if open.append {
            return Err(Status::Inval.into());
        }
        let pieces: Vec<_> = pieces.into_iter().filter(|piece| piece.1 > 0).collect();
        let bytes = pieces.iter().map(|piece| piece.1).sum();
        match &open.file {
            FileData::Cached(file) => self.write_cached(&open, file, &pieces, within).await?,
            FileData::Paged(file) => {
                self.write_paged(&open, file, (&pieces, bytes), within).await?;
            }
        }
        if let (Some(recorder), Some(file)) = (&self.context.shared.recorder, open.file.cached()) {
            pieces.iter().for_each(|&(offset, len)| recorder.write(file, offset, len));
        }
        self.note_written(bytes);
        let offset = pieces.first().map_or(0, |piece| piece.0);
        let synced = if planted(Defect::OnePieceSynced) { 1 } else { pieces.len() };
        let synced = pieces.iter().take(synced);
        let start = synced.clone().map(|piece| piece.0).min().unwrap_or(0);
        let end = synced.map(|piece| piece.0 + piece.1 as u64).max().unwrap_or(0);
        Ok(self.written(&open.file, bytes, offset, (start, end - start), stability).await?)
    }

    async fn write_cached(
        &mut self,
        open: &Open,
        file: &Arc<CachedFile>,
        pieces: &[(u64, usize)],
        within: bool,
    ) -> Result<(), Stop> {
        let mut reserved = match pieces {
            [] => return Ok(()),
            [(offset, len)] => match file.try_reserve(*offset, *len) {
                Some(reservation) => vec![reservation],
                None => vec![file.reserve(*offset, *len).await?],
            },
            several => file.reserve_all(several).await?,
        };
        let landing: SgList = reserved.iter().flat_map(|reservation| reservation.spans()).collect();
        let mut placed = self.bring(&landing).await?;
        drop(landing);
        for reservation in &mut reserved {
            let bytes = placed.min(reservation.len());
            reservation.landed(bytes);
            placed -= bytes;
        }
        for reservation in reserved {
            match within {
                true => file.commit_within(reservation, self.writer(open)).await?,
                false => file.commit_write(reservation, self.writer(open)).await?,
            }
        }
        Ok(())
    }

    async fn write_paged(
        &mut self,
        open: &Open,
        file: &PageCacheFile,
        (pieces, bytes): (&[(u64, usize)], usize),
        within: bool,
    ) -> Result<(), Stop> {
        if bytes == 0 {
            return Ok(());
        }
        let taken = file.room(bytes).await;
        self.bring(&taken.spans(0, bytes)).await?;
        let end = if within { file.stored().attr().await?.size } else { u64::MAX };
        let mut at = 0;
        for &(offset, len) in pieces {
            let rest = usize::try_from(end.saturating_sub(offset)).unwrap_or(len).min(len);
            if rest > 0 {
                file.stored().write_at(offset, taken.spans(at, rest), self.clears(open)).await?;
            }
            at += len;
        }
        Ok(())
    }

    pub(super) async fn append(
        &mut self,
        state: StateId,
        bytes: u32,
        stability: Stability,
    ) -> Result<Outcome, Stop> {
        let open = self.writable_open(state)?;
        if bytes > self.session.attr.data_bytes_max {
            return Err(Status::TooBig.into());
        }
        let len = bytes as usize;
        let offset = match &open.file {
            FileData::Cached(file) => self.append_cached(&open, file, len).await?,
            FileData::Paged(file) => {
                let taken = file.room(len).await;
                if len > 0 {
                    self.bring(&taken.spans(0, len)).await?;
                }
                file.append(taken.spans(0, len), self.clears(&open)).await?
            }
        };
        if let (Some(recorder), Some(file)) = (&self.context.shared.recorder, open.file.cached()) {
            recorder.write(file, offset, len);
        }
        self.note_written(len);
        Ok(self.written(&open.file, len, offset, (offset, len as u64), stability).await?)
    }

    async fn append_cached(
        &mut self,
        open: &Open,
        file: &Arc<CachedFile>,
        len: usize,
    ) -> Result<u64, Stop> {
        let size = file.size();
        let mut reservation = file.reserve_append(len).await?;
        if len > 0 {
            let landing = reservation.spans();
            reservation.landed(self.bring(&landing).await?);
        }
        if planted(Defect::AppendPlacedWhenReserved) {
            file.commit_write(reservation, self.writer(open)).await?;
            return Ok(size);
        }
        Ok(file.append(reservation, self.writer(open)).await?)
    }

    /// `range` is what a stable write syncs: start and length of all that was written.
    async fn written(
        &self,
        file: &FileData,
        bytes: usize,
        offset: u64,
        range: (u64, u64),
        stability: Stability,
    ) -> Result<Outcome, Status> {
        let verifier = match stability {
            Stability::Unstable => self.context.shared.verifier(),
            stable => {
                let writer = self.session.writer();
                let level = match stable {
                    Stability::Data => CommitLevel::Data,
                    _ => CommitLevel::File,
                };
                file.commit(writer, range.0, range.1, level).await?
            }
        };
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        Ok(Outcome::Written { bytes, offset, stability, verifier })
    }
}
