//! What may be seen of a file, byte for byte.
//!
//! Steps come one after the other, so there is one newest content. Who looks may see that, or an
//! older one as long as nothing has made it old: the guarantees say what does.

use std::collections::BTreeSet;
use std::ops::Range;

use super::MOUNTS;

/// What local programs and the server's cache meet in: who writes a block at the same time as
/// another gets one of the two.
const BLOCK: u64 = 4096;

/// A change of a file's content.
#[derive(Debug, Clone)]
pub(crate) enum Edit {
    Write { at: usize, bytes: Vec<u8> },
    Cut { len: usize },
}

impl Edit {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Edit::Cut { len } => image.resize(*len, 0),
            Edit::Write { at, bytes } => {
                let end = at + bytes.len();
                if image.len() < end {
                    image.resize(end, 0);
                }
                image[*at..end].copy_from_slice(bytes);
            }
        }
    }

    /// Bytes of a file of this length that are not the same afterwards.
    fn range(&self, len: usize) -> Range<usize> {
        match self {
            Edit::Cut { len: new } => len.min(*new)..len.max(*new),
            Edit::Write { at, bytes } => len.min(*at)..at + bytes.len(),
        }
    }

    fn changes_length(&self, len: usize) -> bool {
        match self {
            Edit::Cut { len: new } => len != *new,
            Edit::Write { at, bytes } => at + bytes.len() > len,
        }
    }

    pub(crate) fn is_shorter(&self, len: usize) -> bool {
        matches!(self, Edit::Cut { len: new } if *new <= len)
    }
}

/// Where one side has changed a file and the other does not know it yet.
#[derive(Debug, Default)]
struct Touched {
    blocks: BTreeSet<u64>,
    length: bool,
}

impl Touched {
    fn add(&mut self, edit: &Edit, len: usize) {
        self.blocks.extend(blocks(&edit.range(len)));
        self.length |= edit.changes_length(len);
    }

    fn meets(&self, edit: &Edit, len: usize) -> bool {
        (self.length && edit.changes_length(len))
            || blocks(&edit.range(len)).any(|block| self.blocks.contains(&block))
    }

    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && !self.length
    }
}

fn blocks(range: &Range<usize>) -> Range<u64> {
    if range.is_empty() {
        return 0..0;
    }
    range.start as u64 / BLOCK..(range.end as u64).div_ceil(BLOCK)
}

/// Contents of which each byte that is seen must be one's.
#[derive(Debug, Clone)]
pub(crate) struct View {
    images: Vec<Vec<u8>>,
}

impl View {
    fn of(image: &[u8]) -> View {
        View { images: vec![image.to_vec()] }
    }

    fn add(&mut self, image: &[u8]) {
        if !self.images.iter().any(|known| known == image) {
            self.images.push(image.to_vec());
        }
    }

    fn edit(&mut self, edit: &Edit) {
        for image in &mut self.images {
            edit.apply(image);
        }
        let mut images = std::mem::take(&mut self.images);
        images.drain(..).for_each(|image| self.add(&image));
    }

    /// One content, and no other.
    pub(crate) fn is_certain(&self) -> bool {
        self.images.len() == 1
    }

    /// Bytes that the file has in each of them.
    pub(crate) fn least_len(&self) -> usize {
        self.images.iter().map(Vec::len).min().unwrap_or(0)
    }

    pub(crate) fn has_len(&self, len: usize) -> bool {
        self.images.iter().any(|image| image.len() == len)
    }

    /// Whether all agree about what a read gets.
    pub(crate) fn agrees(&self, at: usize, wanted: usize) -> bool {
        let part = |image: &Vec<u8>| {
            let end = image.len().min(at.saturating_add(wanted));
            image.get(at.min(end)..end).unwrap_or_default().to_vec()
        };
        self.images.windows(2).all(|pair| part(&pair[0]) == part(&pair[1]))
    }

    /// How many bytes a read may get, for each content.
    pub(crate) fn counts(&self, at: usize, wanted: usize) -> Vec<usize> {
        self.images.iter().map(|image| image.len().saturating_sub(at).min(wanted)).collect()
    }

    /// Judges what a read of `wanted` bytes got.
    pub(crate) fn judge(&self, at: usize, wanted: usize, got: &[u8]) -> Result<(), String> {
        if !self.counts(at, wanted).contains(&got.len()) {
            let lens: Vec<usize> = self.images.iter().map(Vec::len).collect();
            return Err(format!("{} bytes at {at} of {wanted}; lengths {lens:?}", got.len()));
        }
        self.judge_bytes(at, got)
    }

    /// Judges bytes, however many.
    pub(crate) fn judge_bytes(&self, at: usize, got: &[u8]) -> Result<(), String> {
        for (place, byte) in (at..).zip(got) {
            let known = |image: &Vec<u8>| image.get(place).copied().unwrap_or(0);
            if !self.images.iter().any(|image| known(image) == *byte) {
                let known: Vec<u8> = self.images.iter().map(known).collect();
                return Err(format!("byte {place} is {byte}, not of {known:?}"));
            }
        }
        Ok(())
    }
}

/// What the server can know of local changes: it compares length and times with those of its last
/// look, and within one tick of the clock the times are the same.
#[derive(Debug, Default)]
struct Looks {
    /// The length that it knows.
    len: usize,
    /// Since its last look there were changes in the tick of a use, and others.
    at_once: bool,
    later: bool,
    /// What a look did not show; until one does, it may be seen or not.
    missed: bool,
}

impl Looks {
    /// A local program changes the file: in the tick of its last use, or later.
    fn change(&mut self, at_once: bool) {
        self.at_once |= at_once;
        self.later |= !at_once;
    }

    /// The server looks at a file of this length.
    fn look(&mut self, len: usize) {
        let shown = self.later || self.len != len;
        self.missed = !shown && (self.missed || self.at_once);
        (self.len, self.at_once, self.later) = (len, false, false);
    }

    /// Some change may be missed, or is.
    fn is_in_doubt(&self, len: usize) -> bool {
        (self.missed || self.at_once) && !self.later && self.len == len
    }
}

/// Why a change would not have one certain outcome, and what is to be done first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Conflict {
    /// A mount has stored by a mapping: that mount syncs it.
    Mapped,
    /// Changes through mounts are not flushed: their writers do.
    Unflushed,
    /// The mount may not have seen what is there: it opens the file.
    Unseen,
    /// The server may not see a change by a local program: that gives the file another time.
    Missed,
}

/// The content of a file, and who may see what of it.
#[derive(Debug)]
pub(crate) struct Content {
    newest: Vec<u8>,
    /// Local programs.
    disk: View,
    /// What the server answers.
    server: View,
    /// The kernels of the mounts.
    mounts: [View; MOUNTS],
    /// By mounts, since the last flush.
    unflushed: Touched,
    /// By local programs, since the last open of a mount.
    unseen: Touched,
    /// What the server can know of that.
    looks: Looks,
    /// The mount that has stored by a mapping what it has not synced.
    mapped: Option<usize>,
    /// Another one has cut the file since.
    cut: bool,
}

impl Content {
    pub(crate) fn new(bytes: &[u8]) -> Content {
        Content {
            newest: bytes.to_vec(),
            disk: View::of(bytes),
            server: View::of(bytes),
            mounts: std::array::from_fn(|_| View::of(bytes)),
            unflushed: Touched::default(),
            unseen: Touched::default(),
            looks: Looks { len: bytes.len(), ..Looks::default() },
            mapped: None,
            cut: false,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.newest.len()
    }

    pub(crate) fn disk(&self) -> &View {
        &self.disk
    }

    pub(crate) fn server(&self) -> &View {
        &self.server
    }

    pub(crate) fn mount(&self, mount: usize) -> &View {
        &self.mounts[mount]
    }

    pub(crate) fn mapped(&self) -> Option<usize> {
        self.mapped
    }

    /// So many possible contents that a read tells little.
    pub(crate) fn is_vague(&self) -> bool {
        let views = [&self.disk, &self.server].into_iter().chain(&self.mounts);
        views.map(|view| view.images.len()).max() > Some(6)
    }

    /// What stands against a change by a local program.
    pub(crate) fn local_conflict(&self, edit: &Edit) -> Option<Conflict> {
        if self.mapped.is_some() {
            return Some(Conflict::Mapped);
        }
        self.unflushed.meets(edit, self.len()).then_some(Conflict::Unflushed)
    }

    /// What stands against a change by a mount.
    pub(crate) fn mount_conflict(&self, mount: usize, edit: &Edit) -> Option<Conflict> {
        match self.mapped {
            Some(by) if by != mount && edit.is_shorter(self.len()) => {}
            Some(by) if by != mount || self.cut => return Some(Conflict::Mapped),
            _ => {}
        }
        self.unseen.meets(edit, self.len()).then(|| self.unseen_conflict())
    }

    /// Changes by local programs that no mount has seen yet, or that none needs to see.
    pub(crate) fn unseen_conflict(&self) -> Conflict {
        if self.is_in_doubt() { Conflict::Missed } else { Conflict::Unseen }
    }

    /// The next open need not show what local programs changed.
    pub(crate) fn is_in_doubt(&self) -> bool {
        !self.unseen.is_empty() && self.looks.is_in_doubt(self.len())
    }

    /// A local program has given it another time.
    pub(crate) fn touched(&mut self) {
        self.looks.change(false);
    }

    /// What stands against a store of a mount by a mapping: it writes whole pages, as this mount
    /// has them.
    pub(crate) fn store_conflict(&self, mount: usize) -> Option<Conflict> {
        match self.mapped {
            Some(by) if by != mount || self.cut => Some(Conflict::Mapped),
            _ if !self.unseen.is_empty() || !self.mounts[mount].is_certain() => {
                Some(self.unseen_conflict())
            }
            _ => None,
        }
    }

    fn all_may_see(&mut self) {
        let newest = &self.newest;
        [&mut self.disk, &mut self.server].into_iter().chain(&mut self.mounts).for_each(|view| {
            view.add(newest);
        });
    }

    /// A local program has changed it, in the tick of its last use or later.
    pub(crate) fn by_local(&mut self, edit: &Edit, at_once: bool) {
        self.looks.change(at_once);
        self.unseen.add(edit, self.len());
        edit.apply(&mut self.newest);
        self.disk.edit(edit);
        self.all_may_see();
    }

    /// A mount has changed it by a call.
    pub(crate) fn by_mount(&mut self, mount: usize, edit: &Edit) {
        self.unflushed.add(edit, self.len());
        self.cut |= self.mapped.is_some_and(|by| by != mount);
        edit.apply(&mut self.newest);
        self.server.edit(edit);
        self.mounts[mount].edit(edit);
        self.looks.len = match edit {
            Edit::Write { at, bytes } => self.looks.len.max(at + bytes.len()),
            Edit::Cut { len } => *len,
        };
        self.all_may_see();
    }

    /// A mount has stored by a mapping.
    pub(crate) fn by_mapping(&mut self, mount: usize, edit: &Edit) {
        self.unflushed.add(edit, self.len());
        self.mapped = Some(mount);
        edit.apply(&mut self.newest);
        self.mounts[mount].edit(edit);
        self.all_may_see();
    }

    /// A mount has opened it.
    pub(crate) fn opened(&mut self, mount: usize) {
        self.looks.look(self.newest.len());
        if !self.looks.missed {
            self.unseen = Touched::default();
        }
        self.settle_server();
        self.mounts[mount] = match self.mapped {
            // What it stored itself it sees.
            Some(by) if by == mount => View::of(&self.newest),
            _ => self.server.clone(),
        };
    }

    /// What was stored by a mapping has been written to the server.
    pub(crate) fn unmapped(&mut self) {
        (self.mapped, self.cut) = (None, false);
        self.settle_server();
    }

    fn settle_server(&mut self) {
        if self.mapped.is_none() && self.unseen.is_empty() {
            self.server = View::of(&self.newest);
        }
    }

    /// Everything that mounts wrote has been flushed.
    pub(crate) fn flushed(&mut self) {
        if self.mapped.is_none() {
            self.unflushed = Touched::default();
            self.disk = View::of(&self.newest);
        }
    }

    /// Both sides wrote one block at the same time, and this was found to be the outcome.
    pub(crate) fn decided(&mut self, found: &[u8]) {
        self.newest = found.to_vec();
        self.disk = View::of(found);
        self.looks.change(false);
        let unseen = Edit::Cut { len: 0 };
        self.unseen.add(&unseen, found.len());
        self.all_may_see();
    }

    /// A mount that has not opened it sees what is there when it does.
    pub(crate) fn unwatched(&mut self, mount: usize) {
        self.mounts[mount] = View::of(&self.newest);
    }

    /// All who open it see the newest, and so do local programs.
    pub(crate) fn is_settled(&self) -> bool {
        self.mapped.is_none() && self.unflushed.is_empty() && self.unseen.is_empty()
    }

    /// With these changes made, and nothing else.
    pub(crate) fn changed(&self, edits: &[&Edit]) -> Vec<u8> {
        let mut image = self.newest.clone();
        edits.iter().for_each(|edit| edit.apply(&mut image));
        image
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(at: usize, text: &str) -> Edit {
        Edit::Write { at, bytes: text.into() }
    }

    #[test]
    fn a_local_change_is_seen_by_who_opens_after_it() {
        let mut content = Content::new(b"0000");
        content.by_local(&write(1, "x"), false);
        assert!(content.disk().judge(0, 9, b"0000").is_err(), "local programs see it at once");
        assert!(content.mount(0).judge(0, 9, b"0000").is_ok());
        content.opened(0);
        assert!(content.mount(0).judge(0, 9, b"0000").is_err());
        assert!(content.mount(0).judge(0, 9, b"0x00").is_ok());
        assert!(content.mount(1).judge(0, 9, b"0000").is_ok(), "it has not opened the file");
    }

    #[test]
    fn what_is_changed_in_the_tick_of_a_look_may_be_missed_until_another_is() {
        let mut content = Content::new(b"0000");
        content.by_local(&write(1, "x"), true);
        content.opened(0);
        assert!(content.mount(0).judge(0, 9, b"0000").is_ok());
        assert!(content.mount(0).judge(0, 9, b"0x00").is_ok());
        assert_eq!(content.mount_conflict(0, &write(2, "y")), Some(Conflict::Missed));
        content.opened(0);
        assert!(content.mount(0).judge(0, 9, b"0000").is_ok(), "nothing shows it");
        content.touched();
        assert_eq!(content.mount_conflict(0, &write(2, "y")), Some(Conflict::Unseen));
        content.opened(0);
        assert!(content.mount(0).judge(0, 9, b"0000").is_err());
        assert_eq!(content.mount_conflict(0, &write(2, "y")), None);
    }

    #[test]
    fn another_length_shows_a_change_in_the_tick_of_a_look() {
        let mut content = Content::new(b"0000");
        content.by_local(&write(3, "xyz"), true);
        content.opened(0);
        assert!(content.mount(0).judge(0, 9, b"0000").is_err());
        // There and back again is none.
        content.by_local(&write(6, "1"), true);
        content.by_local(&Edit::Cut { len: 6 }, true);
        content.by_local(&write(0, "2"), true);
        content.opened(0);
        assert!(content.mount(0).judge(0, 9, b"000xyz").is_ok());
        // One before a look shows those after it, too.
        content.by_local(&write(0, "3"), false);
        content.by_local(&write(0, "4"), true);
        content.opened(0);
        assert!(content.mount(0).judge(0, 9, b"400xyz").is_ok());
        assert!(content.mount(0).judge(0, 9, b"000xyz").is_err());
    }

    #[test]
    fn a_mount_sees_its_own_and_local_programs_what_is_flushed() {
        let mut content = Content::new(b"0000");
        content.by_mount(0, &write(2, "abc"));
        assert!(content.mount(0).judge(0, 9, b"0000").is_err());
        assert!(content.disk().judge(0, 9, b"0000").is_ok());
        assert!(!content.disk().agrees(0, 9) && content.disk().agrees(0, 2));
        content.flushed();
        assert!(content.disk().judge(0, 9, b"0000").is_err());
        assert!(content.disk().judge(0, 9, b"00abc").is_ok());
    }

    #[test]
    fn what_a_mapping_stores_after_a_cut_makes_nothing_longer() {
        let mut content = Content::new(b"00000000");
        content.by_mapping(0, &write(2, "abcd"));
        assert_eq!(content.mount_conflict(1, &write(0, "x")), Some(Conflict::Mapped));
        let cut = Edit::Cut { len: 4 };
        assert_eq!(content.mount_conflict(1, &cut), None);
        content.by_mount(1, &cut);
        content.unmapped();
        content.opened(2);
        assert!(content.mount(2).judge(0, 9, b"00ab").is_ok());
        assert!(content.mount(2).judge(0, 9, b"00abcd00").is_err());
        assert!(content.mount(2).judge(0, 9, b"0000").is_err());
    }

    #[test]
    fn one_block_is_for_one_side_at_a_time() {
        let mut content = Content::new(&[0; 9000]);
        content.by_mount(0, &write(5000, "x"));
        assert_eq!(content.local_conflict(&write(4096, "y")), Some(Conflict::Unflushed));
        assert_eq!(content.local_conflict(&write(0, "y")), None);
        content.flushed();
        content.by_local(&write(0, "y"), false);
        assert_eq!(content.mount_conflict(1, &write(1, "z")), Some(Conflict::Unseen));
        assert_eq!(content.mount_conflict(1, &write(8000, "z")), None);
        content.opened(1);
        assert_eq!(content.mount_conflict(1, &write(1, "z")), None);
    }
}
