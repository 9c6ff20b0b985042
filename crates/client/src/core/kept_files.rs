//! What is kept of all files that are open.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

use dafs_fabric::{ArenaError, Buffer};

use super::files::{Files, OpenFile};
use super::ids::{FileId, FileKey};
use super::kept_memory::KeptMemory;
use super::opens::Change;
use super::replay_log::{Acknowledged, ReplayId, ReplayLog};
use super::rewriting::{Piece, not_replaced};
use super::work::{Memory, Work};
use crate::planted::{Defect, planted};

impl Files {
    /// A flush of the file is sent, by which so many kept writes of the session may become safe.
    pub(super) fn flush_sent(&mut self, key: FileKey, kept_writes: u64) {
        let Some(id) = self.any(key).map(OpenFile::id) else { return };
        if let Some(opens) = self.of_file.get_mut(&id) {
            opens.flush_sent = opens.flush_sent.max(kept_writes);
        }
    }

    /// A kept write was acknowledged as the so-manieth of the session. The place of one that is not
    /// kept any longer, since nobody knows what it came before.
    pub(super) fn acknowledge(
        &mut self,
        key: FileKey,
        id: ReplayId,
        number: u64,
        offset: u64,
    ) -> Option<Range<u64>> {
        let of = self.any(key).map(OpenFile::id)?;
        let len = self.any(key)?.kept.len_under_way(id)?;
        let place = offset..offset.saturating_add(len);
        let opens = self.of_file.get_mut(&of)?;
        if opens.is_unordered(id, &place) {
            self.any_mut(key)?.kept.remove(id);
            return Some(place);
        }
        let together_from = opens.together_from(key, number);
        self.any_mut(key)?.kept.acknowledge(id, Acknowledged { number, offset, together_from });
        None
    }

    /// Anything is kept of any file.
    #[inline]
    pub(super) fn keep_any(&self) -> bool {
        self.kept_memory.load(Ordering::Relaxed) > 0
    }

    /// A change that nobody keeps was acknowledged, which was sent when `sent` kept writes were: it
    /// is in the place of what they wrote there. Kept writes that were under way with it came
    /// before it or after: what they wrote there is kept no longer, and where the server's process
    /// ended since (`gone`) lost. True when there is such a one.
    pub(super) fn replaced(&mut self, id: FileId, change: &Change, gone: bool) -> bool {
        let logs = || self.opens_of(id).iter().filter_map(|key| Some(&self.any(*key)?.kept));
        let newest = logs().filter_map(ReplayLog::newest).max();
        let oldest_under_way = logs().filter_map(ReplayLog::oldest_under_way).min();
        let Some(opens) = self.of_file.get_mut(&id) else { return false };
        let too_many = opens.replaced(change, newest, oldest_under_way);
        let mut any = false;
        self.for_opens(id, |file| {
            let unordered = file.kept.has_after(change.sent, &change.place);
            let given_up = too_many && file.kept.safe(change.number);
            if unordered || given_up {
                file.keeps_less(gone);
                any = true;
            }
        });
        any
    }

    /// What is kept of a file up to the so-manieth write is so no longer.
    pub(super) fn keep_no_more(
        &mut self,
        key: FileKey,
        kept_writes: u64,
        each: impl FnMut(&mut OpenFile),
    ) {
        self.for_opens_of(key, each);
        let Some(id) = self.any(key).map(OpenFile::id) else { return };
        if let Some(opens) = self.of_file.get_mut(&id) {
            opens.forget(kept_writes);
        }
    }

    pub(super) fn kept_memory(&self, key: FileKey) -> KeptMemory {
        let of_open = self.any(key).map_or(0, |file| file.kept.memory());
        KeptMemory { of_open, of_all: self.kept_memory.load(Ordering::Relaxed) }
    }

    /// What is to be written again, over all files that are open.
    pub(super) fn kept(&self) -> VecDeque<Piece> {
        let keys = self.keys().into_iter();
        let files = keys.filter_map(|key| Some((key, self.usable(key).ok()?)));
        let writes = files.flat_map(|(key, file)| {
            let acknowledged = file.kept.acknowledged();
            acknowledged.map(move |(number, place)| (file.id(), Piece { file: key, number, place }))
        });
        let opens = self.of_file.iter();
        let opens = opens.filter(|_| !planted(Defect::KeptUncut));
        let replaced = opens.flat_map(|(id, opens)| opens.changes().map(|change| (*id, change)));
        not_replaced(writes.collect(), replaced.collect())
    }

    /// The request that writes pieces again which lie behind each other; `None`: they are not
    /// kept any more.
    pub(super) fn rewrite(&self, pieces: &[Piece]) -> Option<Result<(Work, Memory), ArenaError>> {
        let (first, last) = (pieces.first()?, pieces.last()?);
        let open = self.usable(first.file).ok()?;
        let bytes = |piece: &Piece| open.kept.bytes(piece.number, &piece.place);
        let parts: Vec<&[u8]> = pieces.iter().map(bytes).collect::<Option<_>>()?;
        let len = last.place.end - first.place.start;
        let buffer = match Buffer::new(usize::try_from(len).ok()?) {
            Ok(buffer) => buffer.post(),
            Err(error) => return Some(Err(error)),
        };
        let mut at = 0;
        for part in parts {
            buffer.span().copy_from(at, part);
            at += part.len();
        }
        let (file, offset, len) = (first.file, first.place.start, u32::try_from(len).ok()?);
        Some(Ok((Work::Rewrite { file, offset, len }, Memory::Buffer(buffer))))
    }
}
