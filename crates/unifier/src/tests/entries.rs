//! What the cache says of its slots to those who read them by themselves.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use dafs_fabric::Readers;
use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::EntryState;

use crate::Unifier;
use crate::entry::Meaning;
use crate::pool::{Page, SLOT};

/// Looks at all entries, again and again.
#[derive(Default)]
pub(super) struct Watch {
    /// The bytes that stable slots had.
    bytes: HashMap<(usize, u64), u64>,
}

impl Watch {
    /// Whatever is stable is what it says, and has the bytes that it had.
    pub(super) fn look(&mut self, unifier: &Arc<Unifier>, with_bytes: bool, seed: u64) {
        let core = &unifier.core;
        let mut mapped = HashMap::new();
        for file in core.all_files() {
            let inner = file.lock();
            for (number, cluster) in inner.blocks.clusters.iter() {
                for (page, block) in cluster.pages.iter().zip(number * 16..) {
                    if !page.is_none() {
                        let valid = inner.size.saturating_sub(block * SLOT).min(SLOT);
                        let what = Meaning { file: file.number(), block, valid };
                        mapped.insert(page.index(), (*page, what));
                    }
                }
            }
        }
        let before = std::mem::take(&mut self.bytes);
        for slot in 0..core.pool.slot_count() {
            let (word, says) = core.pool.entry(slot);
            let Some((page, what)) = mapped.get(&slot) else {
                assert!(!word.is(EntryState::Stable), "seed {seed}: nobody has slot {slot}");
                continue;
            };
            if !word.is(EntryState::Stable) {
                assert!(word.is(EntryState::Withheld), "seed {seed}: {what:?} is {word:?}");
                continue;
            }
            assert!(says == *what && what.valid > 0, "seed {seed}: {says:?} is {what:?}");
            if with_bytes {
                let now = hash(unifier, *page);
                let was = before.get(&(slot, word.0));
                assert!(was.is_none_or(|was| *was == now), "seed {seed}: {what:?} was changed");
                self.bytes.insert((slot, word.0), now);
            }
        }
    }
}

fn hash(unifier: &Unifier, page: Page) -> u64 {
    let (mut bytes, mut hasher) = (Vec::new(), DefaultHasher::new());
    unifier.core.pool.part(page, 0, PAGE_BYTES).read_message(PAGE_BYTES, &mut bytes);
    bytes.hash(&mut hasher);
    hasher.finish()
}

#[cfg(not(feature = "planted"))]
mod triggers {
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    use dafs_protocol::{ENTRIES_FIRST_WORD, ENTRY_WORDS, EntryWord, Status, entry_of};

    use super::super::disk::{Disk, DiskFile, Task, run};
    use super::super::{
        VERIFIER, config, fill, open, pinning, read, shrinking, unifier, unifier_with, write,
        writer,
    };
    use super::*;
    use crate::entry::log;
    use crate::{CachedFile, Config, FilePosition, WriterId};
    use dafs_fabric::{Arena, Words};

    const BLOCKS: u64 = 5;
    /// The last block has 904 bytes.
    const BYTES: usize = 5 * 4096 - 3192;

    /// What a reader was told of a block.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    struct Told {
        slot: usize,
        word: EntryWord,
        valid: u64,
    }

    /// `None`: nobody is told of it.
    fn told(cached: &CachedFile, block: u64) -> Option<Told> {
        let slot = cached.lock().page(block).filter(|page| !page.is_none())?.index();
        let (word, Meaning { valid, .. }) = cached.core().pool.entry(slot);
        word.is(EntryState::Stable).then_some(Told { slot, word, valid })
    }

    /// A reader that was told still believes it.
    fn holds(cached: &CachedFile, told: Told) -> bool {
        cached.core().pool.entry(told.slot).0 == told.word
    }

    struct Known {
        disk: Arc<Disk>,
        file: Arc<DiskFile>,
        unifier: Arc<Unifier>,
        cached: Arc<CachedFile>,
        told: Vec<Told>,
    }

    /// A file of which all is cached, and told.
    fn known() -> Known {
        let disk = Disk::new(1, 0);
        let file = disk.file(1, vec![7; BYTES]);
        let unifier = unifier(1 << 20);
        let cached = open(&unifier, &file);
        let user = cached.clone();
        run(&disk, async move { read(&user, 0, BYTES).await });
        let told: Vec<Told> =
            (0..BLOCKS).map(|block| told(&cached, block).expect("stable")).collect();
        assert_eq!(
            told.iter().map(|told| told.valid).collect::<Vec<_>>(),
            [4096, 4096, 4096, 4096, 904]
        );
        Known { disk, file, unifier, cached, told }
    }

    impl Known {
        fn run(&self, work: impl Future<Output = ()> + Send + 'static) {
            run(&self.disk, work);
        }

        /// Blocks of which readers still believe what they were told.
        fn believed(&self) -> Vec<u64> {
            let all = (0..BLOCKS).zip(&self.told);
            all.filter(|(_, told)| holds(&self.cached, **told)).map(|(block, _)| block).collect()
        }

        fn valid(&self) -> Vec<u64> {
            let all = (0..).map_while(|block| told(&self.cached, block));
            all.map(|told| told.valid).collect()
        }
    }

    #[test]
    fn all_that_a_write_replaces_is_retired_before_any_of_it_is_published() {
        let known = known();
        for offset in [0, 100, 3 * SLOT] {
            let cached = known.cached.clone();
            let old: Vec<usize> =
                (0..BLOCKS).map_while(|b| told(&cached, b)).map(|t| t.slot).collect();
            let log = log::of(|| fill(&cached, offset, 12_000, 8));
            let retired =
                |at: &(usize, EntryState)| old.contains(&at.0) && at.1 == EntryState::Retired;
            let published = |at: &(usize, EntryState)| at.1 == EntryState::Stable;
            let last = log.iter().rposition(retired).expect("some were replaced");
            let first = log.iter().position(published).expect("others came");
            assert!(last < first, "{offset}: {log:?}");
            assert!(log.iter().filter(|at| published(at)).count() >= 3, "{offset}: {log:?}");
        }
    }

    #[test]
    fn a_write_retires_what_it_replaces() {
        let known = known();
        fill(&known.cached, SLOT, 2 * PAGE_BYTES, 8);
        assert_eq!(known.believed(), [0, 3, 4]);
        let told = told(&known.cached, 1).expect("published");
        fill(&known.cached, SLOT, PAGE_BYTES, 9);
        assert!(!holds(&known.cached, told));
    }

    #[test]
    fn a_page_is_not_changed_while_it_is_stable() {
        let known = known();
        let mut watch = Watch::default();
        for (offset, len) in [(0, 1), (4095, 2), (SLOT, PAGE_BYTES), (20_000, 5000)] {
            watch.look(&known.unifier, true, 0);
            let cached = known.cached.clone();
            known.run(async move { write(&cached, offset, &vec![9; len], 1).await });
        }
        watch.look(&known.unifier, true, 0);
    }

    #[test]
    fn nothing_is_told_of_a_page_before_it_is_read_in() {
        let disk = Disk::new(1, 100);
        let unifier = unifier(1 << 20);
        let cached = open(&unifier, &disk.file(1, vec![7; 5000]));
        let user = cached.clone();
        let mut reader = Task::new(async move { read(&user, 0, 5000).await });
        let log = log::of(|| assert!(reader.poll().is_none()));
        assert!(!log.is_empty() && log.iter().all(|at| at.1 == EntryState::Landing), "{log:?}");
        assert_eq!(told(&cached, 0), None);
        while reader.poll().is_none() {
            assert!(disk.complete_one());
        }
        let valid: Vec<u64> =
            (0..2).filter_map(|block| told(&cached, block)).map(|t| t.valid).collect();
        assert_eq!(valid, [4096, 904]);
    }

    #[test]
    fn what_is_evicted_is_retired_before_its_slot_is_filled() {
        let known = known();
        let other = open(&known.unifier, &known.disk.file(2, vec![8; 4 << 20]));
        known.run(async move {
            for at in (0..4 << 20).step_by(64 << 10) {
                read(&other, at, 64 << 10).await;
            }
        });
        assert_eq!(known.valid(), [0; 0], "evicted");
        assert_eq!(known.believed(), [0; 0]);
    }

    #[test]
    fn a_segment_that_is_given_back_is_retired_and_its_entries_go_on_when_it_comes_back() {
        const MIB: usize = 1 << 20;
        let whole = || {
            let config = Config { least_bytes: 64 << 10, ..config(8 * MIB) };
            let arena = Arena::in_segments(8 * MIB, MIB).expect("memory");
            Unifier::new(arena, Config { domain: Some(pinning(1)), ..config }, VERIFIER)
        };
        for unifier in [shrinking(8 * MIB), whole()] {
            let disk = Disk::new(1, 0);
            let cached = open(&unifier, &disk.file(1, vec![7; 7 * MIB]));
            let all = |cached: &Arc<CachedFile>| -> HashMap<usize, Told> {
                let user = cached.clone();
                run(&disk, async move {
                    for at in 0..7 {
                        read(&user, at * MIB as u64, MIB).await;
                    }
                });
                let told = (0..7 * 256).filter_map(|block| told(cached, block));
                told.map(|told| (told.slot, told)).collect()
            };
            let before = all(&cached);
            assert!(before.len() > 6 * 256);
            for _ in 0..50 {
                unifier.resize(2 << 20);
            }
            let gone: Vec<&Told> = before.values().filter(|told| !holds(&cached, **told)).collect();
            assert!(gone.len() >= 4 * 256, "{} are gone", gone.len());
            Watch::default().look(&unifier, false, 0);
            assert_eq!(unifier.resize(u64::MAX), 8 << 20);
            let after = all(&cached);
            let again = gone.iter().filter_map(|old| Some((*old, after.get(&old.slot)?)));
            let mut count = 0;
            for (old, new) in again {
                assert!(new.word.generation() > old.word.generation(), "begun anew");
                count += 1;
            }
            assert!(count > 256, "{count} slots are used again");
        }
    }

    #[test]
    fn the_old_end_is_published_anew_when_the_file_grows() {
        for grow in 0..3 {
            let known = known();
            let cached = known.cached.clone();
            known.run(async move {
                match grow {
                    0 => write(&cached, 6 * SLOT, &[1; 10], 1).await,
                    1 => cached.truncate(7 * SLOT, false).await.unwrap(),
                    _ => cached.fallocate(0, 0, 6 * SLOT + 10, writer(1)).await.unwrap(),
                }
            });
            assert_eq!(known.believed(), [0, 1, 2, 3], "{grow}");
            // What fallocate cannot leave cached is read in again.
            let cached = known.cached.clone();
            known.run(async move { drop(read(&cached, 0, 5 * PAGE_BYTES).await) });
            assert_eq!(known.valid()[..5], [4096; 5], "{grow}");
        }
    }

    #[test]
    fn what_is_cut_is_retired_and_so_is_the_new_end() {
        let known = known();
        let cached = known.cached.clone();
        known.run(async move {
            cached.truncate(2 * SLOT + 5, false).await.unwrap();
            read(&cached, 0, 3 * PAGE_BYTES).await;
        });
        assert_eq!((known.believed(), known.valid()), (vec![0, 1], vec![4096, 4096, 5]));
    }

    #[test]
    fn a_hole_retires_what_was_there() {
        let known = known();
        let cached = known.cached.clone();
        known.run(async move { cached.fallocate(3, SLOT, 2 * SLOT, writer(1)).await.unwrap() });
        assert_eq!(known.believed(), [0, 3, 4]);
    }

    #[test]
    fn a_copy_and_a_clone_retire_what_they_replace() {
        for clone in [false, true] {
            let known = known();
            let from = open(&known.unifier, &known.disk.file(2, vec![8; 2 * PAGE_BYTES]));
            let from = FilePosition { file: from, offset: 0 };
            let to = FilePosition { file: known.cached.clone(), offset: SLOT };
            known.run(async move {
                match clone {
                    true => CachedFile::clone_range(&from, &to, 2 * SLOT, writer(1)).await.unwrap(),
                    false => {
                        let most = 1 << 20;
                        let len = 2 * SLOT;
                        let copied = CachedFile::copy_range(&from, &to, len, most, writer(1)).await;
                        assert_eq!(copied, Ok(len));
                    }
                }
            });
            assert_eq!(known.believed(), [0, 3, 4], "clone: {clone}");
        }
    }

    #[test]
    fn a_file_that_is_gone_or_changed_by_others_or_advised_away_is_retired() {
        for by in 0..3 {
            let known = known();
            let cached = known.cached.clone();
            match by {
                0 => {
                    known.run(async move { cached.close(WriterId(1)).await.unwrap() });
                    known.unifier.forget(known.file.attr_id());
                }
                1 => {
                    known.file.change(vec![9; BYTES]);
                    open(&known.unifier, &known.file);
                }
                _ => drop(cached.drop_clean(0, 0)),
            }
            assert_eq!(known.believed(), [0; 0], "{by}");
        }
    }

    #[test]
    fn no_two_files_ever_have_one_number() {
        let known = known();
        let mut numbers = std::collections::HashSet::new();
        for round in 0..10u64 {
            // Another one under the id, forgotten between or not.
            known.file.state().generation = Some(round);
            let cached = open(&known.unifier, &known.file);
            let before = known.cached.number();
            assert!(numbers.insert(cached.number()) || round == 0, "{round}");
            assert!(round > 0 || before == cached.number(), "open all the time");
            let again = open(&known.unifier, &known.file);
            assert_eq!(again.number(), cached.number(), "the same file");
            let closes = if round == 0 { 3 } else { 2 };
            known.run(async move {
                read(&cached, 0, BYTES).await;
                for _ in 0..closes {
                    cached.close(WriterId(1)).await.unwrap();
                }
            });
            if round % 3 == 0 {
                known.unifier.forget(known.file.attr_id());
            }
            let other = open(&known.unifier, &known.disk.file(100 + round, vec![8; BYTES]));
            assert!(numbers.insert(other.number()), "{round}");
            Watch::default().look(&known.unifier, false, round);
        }
    }

    #[test]
    fn what_is_given_up_is_retired() {
        let known = known();
        known.file.state().bad = Some(SLOT..2 * SLOT);
        let cached = known.cached.clone();
        known.run(async move {
            write(&cached, SLOT, &[1; PAGE_BYTES], 1).await;
            assert_eq!(cached.flush().await, Err(Status::Io));
        });
        let dirty = told(&known.cached, 1).expect("what was written is read");
        assert_eq!(known.cached.give_up(), Some(1));
        assert!(!holds(&known.cached, dirty));
        assert_eq!(told(&known.cached, 1), None);
    }

    #[test]
    fn a_cut_at_open_leaves_nothing_to_be_read_of_what_is_being_written() {
        let disk = Disk::new(1, 100);
        let file = disk.file(1, Vec::new());
        let unifier = unifier(1 << 20);
        let cached = open(&unifier, &file);
        fill(&cached, 0, 2 * PAGE_BYTES, 1);
        let written = [0, 1].map(|block| told(&cached, block).expect("stable"));
        let writing = unifier.clone();
        let mut writing =
            Task::new(async move { writing.write_back(Duration::from_secs(100)).await });
        assert!(writing.poll().is_none(), "the bytes are on their way to the disk");
        let handle = Arc::new(super::super::disk::Handle(file.clone()));
        let (mark, attr) = (unifier.mark(), file.attr_now());
        unifier.open(mark, WriterId(2), handle, &attr, crate::Opening::Truncated);
        assert!(written.iter().all(|told| !holds(&cached, *told)));
        assert_eq!((told(&cached, 0), told(&cached, 1)), (None, None));
        Watch::default().look(&unifier, false, 0);
    }

    /// What others map has it all, by the slots of the arena that they map too.
    #[test]
    fn entries_are_in_the_memory_that_is_given_for_them() {
        const ARENA: usize = 1 << 20;
        let shown = Arena::for_readers(Unifier::entries_bytes(ARENA), 1 << 20, Readers::Own)
            .expect("memory");
        let file = shown.span(0, 1).shared().expect("shared").file;
        let words = Words::of_peer(file.for_peers(), file.len()).expect("mapped");
        let unifier =
            unifier_with(ARENA, Config { epoch: 9, entries: Some(shown.clone()), ..config(ARENA) });
        assert!(unifier.entries().is_some_and(|arena| Arc::ptr_eq(arena, &shown)));
        assert_eq!(unifier.slots(), ARENA / PAGE_BYTES);
        let disk = Disk::new(1, 0);
        let cached = open(&unifier, &disk.file(1, vec![7; BYTES]));
        let user = cached.clone();
        run(&disk, async move { read(&user, 0, BYTES).await });
        for block in 0..BLOCKS {
            let told = told(&cached, block).expect("stable");
            let seen: [u64; ENTRY_WORDS] = words.load_some(entry_of(told.slot), Ordering::Acquire);
            assert_eq!(seen, [told.word.0, cached.number(), block, told.valid]);
            assert_eq!(told.word.epoch(), 9);
        }
        let used = |at: &usize| words.load(*at, Ordering::Relaxed) != 0;
        assert!(!(0..ENTRIES_FIRST_WORD).any(|at| used(&at)), "that is not theirs");
        let last = entry_of(unifier.slots() - 1) + ENTRY_WORDS;
        assert!(last <= words.len() && (words.len() - last) * 8 < PAGE_BYTES);
    }

    #[test]
    #[should_panic(expected = "entries in")]
    fn entries_have_room_or_there_is_no_cache() {
        let shown = Arena::new(Unifier::entries_bytes(1 << 20)).expect("memory");
        unifier_with(2 << 20, Config { entries: Some(shown), ..config(2 << 20) });
    }
}
