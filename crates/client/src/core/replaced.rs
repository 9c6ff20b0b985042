//! Which bytes of a file an acknowledged change is in the place of that nobody keeps.
//!
//! What is kept of a file is written again in the order in which the server acknowledged it, and
//! only where nothing was acknowledged later: a cut (by an open file, by its name, by opening or
//! putting it), a hole, zeros, a copy, a plain write. A change and a kept write that were under way
//! together have no order: such a write is kept no longer where they meet, as if it were a plain
//! one, and its loss is told. A change that failed, or of which nobody knows, replaces nothing.

use std::ops::Range;

use dafs_protocol::{OpResult, Outcome, SetAttr};

use super::files::OpenFile;
use super::ids::{FileId, FileKey};
use super::opens::Change;
use super::work::Work;
use super::{Core, ReplayId};

/// Of fallocate(2).
const KEEP_SIZE: u32 = 0x01;
const COLLAPSE_RANGE: u32 = 0x08;
const INSERT_RANGE: u32 = 0x20;

/// A file as a change names it.
#[derive(Debug, Clone, Copy)]
enum Of {
    Open(FileKey),
    Id(FileId),
}

impl Core {
    /// A call succeeded that was sent when `sent` kept writes were acknowledged.
    pub(super) fn note_replaced(&mut self, work: &Work, outcomes: &[OpResult], sent: u64) {
        let Some((of, places)) = replaced(work, outcomes) else { return };
        let id = match of {
            Of::Id(id) => Some(id),
            Of::Open(key) => self.files.any(key).map(OpenFile::id),
        };
        let Some(id) = id else { return };
        for place in places {
            self.replaced(id, place, sent);
        }
    }

    /// The same, of a call whose answer was lost with its session, and what the server noted of it.
    pub(super) fn note_replaced_before(&mut self, work: &Work, value: u64, sent: u64) {
        if let Some(file) = work.file_to_flush() {
            self.flushed_is_safe(file, sent, false);
        }
        let (of, place) = match work {
            Work::FileSetAttr { file, set } | Work::SetAttrOpen { file, set, .. } => {
                (Some(*file), cut(set))
            }
            Work::Fallocate { file, mode, offset, len } => {
                (Some(*file), space(*mode, *offset, *len))
            }
            Work::Append { file, len, .. } => (Some(*file), Some(part(value, u64::from(*len)))),
            Work::SetAttr { set, .. } => (None, cut(set)),
            Work::Open { options, .. } if options.truncate => (None, Some(0..u64::MAX)),
            Work::Put(put) if put.made.is_none() && !put.exclusive => (None, Some(0..u64::MAX)),
            _ => return,
        };
        let Some(place) = place else { return };
        if let Some(key) = of {
            if let Some(id) = self.files.any(key).map(OpenFile::id) {
                self.replaced(id, place, sent);
            }
            return;
        }
        // Of the file no more is known than this.
        let same = |file: &&mut OpenFile| file.id().1 == value && file.kept.has_after(0, &place);
        let lost =
            self.files.iter_mut().filter(same).filter_map(|file| file.lose_kept().then_some(()));
        if lost.count() > 0 {
            self.recovery.unsynced.lose();
        }
    }

    /// A kept write is acknowledged. False: it is not kept any longer.
    pub(super) fn acknowledge_kept(&mut self, key: FileKey, id: ReplayId, offset: u64) -> bool {
        self.recovery.kept_writes += 1;
        let number = self.recovery.kept_writes;
        let Some(place) = self.files.acknowledge(key, id, number, offset) else { return true };
        let gone = self.recovery.rewrites;
        let Some(file) = self.files.any_mut(key) else { return false };
        file.keeps_less(gone);
        let of = file.id();
        if gone {
            self.recovery.unsynced.lose();
        }
        self.replaced(of, place, number);
        false
    }

    fn replaced(&mut self, id: FileId, place: Range<u64>, sent: u64) {
        if place.is_empty() || !self.files.has(id) {
            return;
        }
        // The server that had it is gone, and nothing was written again yet.
        let gone = self.recovery.rewrites;
        self.recovery.kept_writes += 1;
        let number = self.recovery.kept_writes;
        let last_begun = ReplayId(self.recovery.last_kept);
        let change = Change { place, sent, number, last_begun };
        if self.files.replaced(id, &change, gone) {
            match gone {
                true => self.recovery.unsynced.lose(),
                false => self.recovery.unsynced.keeps_less(),
            }
        }
    }
}

/// Which bytes of which file a call has replaced, by its answer.
fn replaced(work: &Work, outcomes: &[OpResult]) -> Option<(Of, Vec<Range<u64>>)> {
    let one = |of, place: Option<Range<u64>>| place.map(|place| (of, vec![place]));
    let opened = || {
        outcomes.iter().find_map(|outcome| match outcome {
            Ok(Outcome::Opened { attr, .. }) => Some(Of::Id((attr.device, attr.inode))),
            _ => None,
        })
    };
    match (work, outcomes.first()?.as_ref().ok()?) {
        (Work::FileSetAttr { file, set } | Work::SetAttrOpen { file, set, .. }, _) => {
            one(Of::Open(*file), cut(set))
        }
        (Work::SetAttr { set, .. }, _) => {
            let Some(Ok(Outcome::Attributes { attr })) = outcomes.last() else { return None };
            one(Of::Id((attr.device, attr.inode)), cut(set))
        }
        (Work::Open { options, .. }, _) if options.truncate => one(opened()?, Some(0..u64::MAX)),
        (Work::Put(put), _) if !put.exclusive => one(opened()?, Some(0..u64::MAX)),
        (Work::Fallocate { file, mode, offset, len }, _) => {
            one(Of::Open(*file), space(*mode, *offset, *len))
        }
        (Work::CopyRange { to, to_offset, len, .. }, Outcome::Copied { bytes }) => {
            one(Of::Open(*to), Some(part(*to_offset, (*bytes).min(*len))))
        }
        // To the end of the other file, with no length.
        (Work::CloneRange { to, to_offset, len, .. }, _) => {
            one(Of::Open(*to), Some(part(*to_offset, if *len == 0 { u64::MAX } else { *len })))
        }
        (work, Outcome::Written { bytes, offset, .. }) => {
            let bytes = u64::from(*bytes).min(work.request_bytes() as u64);
            Some((Of::Open(work.file()?), written(work, bytes, *offset)))
        }
        _ => None,
    }
}

fn written(work: &Work, bytes: u64, appended_at: u64) -> Vec<Range<u64>> {
    match work {
        Work::Write { offset, .. } | Work::WriteFlush { offset, .. } => vec![part(*offset, bytes)],
        Work::WriteList { extents, .. } => {
            let mut left = bytes;
            let pieces = extents.as_slice().iter().flat_map(|extent| {
                let at = move |piece| extent.stride.saturating_mul(u64::from(piece));
                (0..extent.count)
                    .map(move |piece| (extent.offset.saturating_add(at(piece)), extent))
            });
            let mut place = |offset, len: u32| {
                let len = u64::from(len).min(left);
                left -= len;
                part(offset, len)
            };
            let places = pieces.map(|(offset, extent)| place(offset, extent.len));
            places.take_while(|place| !place.is_empty()).collect()
        }
        Work::Append { .. } => vec![part(appended_at, bytes)],
        _ => Vec::new(),
    }
}

/// What a new size takes away.
fn cut(set: &SetAttr) -> Option<Range<u64>> {
    set.size.map(|size| size..u64::MAX)
}

/// Space alone replaces nothing; what moves bytes, all behind it.
fn space(mode: u32, offset: u64, len: u64) -> Option<Range<u64>> {
    match mode {
        mode if mode & !KEEP_SIZE == 0 => None,
        mode if mode & (COLLAPSE_RANGE | INSERT_RANGE) != 0 => Some(offset..u64::MAX),
        _ => Some(part(offset, len)),
    }
}

fn part(offset: u64, len: u64) -> Range<u64> {
    offset..offset.saturating_add(len)
}
