//! The order in which units go: what is put there, and one page for another. Where a miss takes a
//! slot and all are used, what goes next gives its slot to what comes; it is never free between.

use std::sync::atomic::Ordering;

use dafs_fabric::Words;
use dafs_protocol::EntryState;

use super::free::Free;
use super::{FRAME_SLOTS, LOOKS_MAX, MAPPED, MAPPINGS, PIN, PINS, Page, Pool, USE};
use crate::accessed::SPARED_MAX;
use crate::policy::shares::{Search, Share};
use crate::policy::{Key, Origin};

impl Pool {
    /// These pages of a file, which map consecutive blocks from `block` on, may be evicted from
    /// now on. The caller has the file's lock, and the pages are mapped.
    pub(crate) fn list(&self, pages: &[Page], share: Share, key: Key, origin: Origin) {
        let mut free = self.free();
        let mut last = Page::NONE;
        for (index, page) in pages.iter().enumerate() {
            if page.is_none() || page.unit() == last {
                continue;
            }
            last = page.unit();
            // The unit may begin before these pages.
            let before = (page.index() - last.index()) as u64;
            let key = Key { block: (key.block + index as u64).saturating_sub(before), ..key };
            self.list_unit(&mut free, last, share, (key, origin));
        }
    }

    /// As [`list`](Self::list), of one page that is all of its unit.
    pub(crate) fn list_one(&self, page: Page, share: Share, key: Key, origin: Origin) {
        self.list_unit(&mut self.free(), page.unit(), share, (key, origin));
    }

    #[inline(always)]
    fn list_unit(&self, free: &mut Free, unit: Page, share: Share, what: (Key, Origin)) {
        let (number, slots) = (unit.index() as u32, unit.unit_slots());
        if free.shares.has(number) {
            return;
        }
        let known = free.shares.insert(number, slots, share, what);
        if known > 1 {
            let more = USE * u64::from(known - 1);
            self.users[unit.index()].fetch_add(more, Ordering::Relaxed);
        }
        free.shares.tell(number, self.uses(unit));
        if what.1 == Origin::ByRead {
            free.shares.expect_use(number);
        }
    }

    /// As [`list`](Self::list) for what is listed with another policy.
    pub(crate) fn transfer(&self, unit: Page, share: Share, key: Key) {
        let uses = self.uses(unit);
        let number = unit.index() as u32;
        self.free().shares.transfer(number, unit.unit_slots(), uses, share, key);
    }

    /// The unit that goes next, if it is one slot that may be given to another block, with the file
    /// and the block that it holds. It is where it was in the order: who finds that it cannot go
    /// [says so](Self::stays).
    pub(crate) fn next_slot(&self) -> Option<(Page, u64, u64)> {
        self.next_of(&mut self.free())
    }

    #[inline(always)]
    fn next_of(&self, free: &mut Free) -> Option<(Page, u64, u64)> {
        let mut search = Search::default();
        for _ in 0..LOOKS_MAX {
            let number = free.shares.next(&mut search)?;
            let unit = self.unit_at(number as usize);
            if self.was_used(free, &mut search, unit) {
                continue;
            }
            let may_stay = !free.emptied.contains(&(unit.index() / FRAME_SLOTS));
            return self.victim(unit).filter(|_| may_stay && unit.unit_slots() == 1);
        }
        None
    }

    /// The unit whose turn it is to go was used since it was listed, or looked at: it is not its turn any more.
    #[inline(always)]
    pub(super) fn was_used(&self, free: &mut Free, search: &mut Search, unit: Page) -> bool {
        let (number, slots) = (unit.index(), unit.unit_slots());
        let may_spare = || search.spared < SPARED_MAX.min(free.shares.units());
        if !free.accessed.is_empty() && may_spare() && free.accessed.take(number..number + slots) {
            search.spared += 1;
            self.users[number].fetch_add(USE, Ordering::Relaxed);
        }
        free.shares.tell(number as u32, self.uses(unit))
    }

    /// These say what they use by bits.
    pub(crate) fn add_accessed(&self, bits: Words, of: (u32, usize)) -> Option<u64> {
        self.free().accessed.add(bits, of)
    }

    pub(crate) fn remove_accessed(&self, reader: u64) -> Option<Words> {
        self.free().accessed.remove(reader)
    }

    /// The unit that goes next, as [`next_slot`](Self::next_slot) finds it, becomes a pinned one of what
    /// comes, if this file has it and `gives` it: where it may, it is unmapped then. The caller has the
    /// file's lock.
    #[inline(always)]
    pub(crate) fn take_next(
        &self,
        file: u64,
        gives: impl FnOnce(Page, u64) -> bool,
    ) -> Option<Page> {
        let free = &mut *self.free();
        let (unit, _, block) = self.next_of(free).filter(|(_, owner, _)| *owner == file)?;
        let number = unit.index() as u32;
        if !gives(unit, block) {
            free.shares.pass(number);
            return None;
        }
        free.shares.replace(number, self.uses(unit));
        self.lands(unit);
        Some(unit)
    }

    /// What was to go next cannot.
    pub(crate) fn stays(&self, unit: Page) {
        self.free().shares.pass(unit.index() as u32);
    }

    /// A slot that a file maps, and that nobody holds, becomes a pinned one of what comes. The caller
    /// has the lock of the file, which maps it no more.
    pub(crate) fn take_over(&self, unit: Page) {
        self.free().shares.replace(unit.index() as u32, self.uses(unit));
        self.lands(unit);
    }

    #[inline(always)]
    fn lands(&self, unit: Page) {
        let index = unit.index();
        let users = &self.users[index];
        debug_assert_eq!(users.load(Ordering::Relaxed) & (MAPPINGS | PINS), MAPPED);
        users.store(PIN | USE, Ordering::Relaxed);
        self.entries.leave(index, EntryState::Landing);
        self.poison(index);
    }
}
