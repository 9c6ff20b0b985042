//! What is read out of memory that a server changes, and when it is not believed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Arena, Span, Words};
use dafs_protocol::{
    ENTRIES_FIRST_WORD, ENTRY_BLOCK, ENTRY_FILE, ENTRY_VALID, ENTRY_WORD, EntryState, EntryWord,
    LifeWord, ReferenceInfo, entry_of,
};

use super::directory::Directory;
use super::mapped::{Mapped, Miss};
use super::{BLOCKS, Optimistic, OptimisticStats, References, Step, Window};
use crate::core::Referred;

const SLOTS: usize = 64;
const EPOCH: u32 = 5;
const FILE: u64 = 77;

/// What a server does with its memory.
struct Server {
    cache: Span,
    entries: Span,
    words: Words,
}

impl Server {
    fn new() -> Server {
        Server::of(SLOTS)
    }

    fn of(slots: usize) -> Server {
        let cache = Arena::new(slots * PAGE_BYTES).expect("memory");
        let bytes = entry_of(slots) * 8;
        let entries = Arena::new(bytes).expect("memory");
        let words = Words::new(&entries);
        words.store(0, 42, Ordering::Relaxed);
        words.store(600, 43, Ordering::Relaxed);
        Server { cache: cache.span(0, cache.len()), entries: entries.span(0, bytes), words }
    }

    fn info(&self) -> ReferenceInfo {
        ReferenceInfo {
            epoch: EPOCH,
            file: FILE,
            server: LifeWord { number: 0, value: 42 },
            session: LifeWord { number: 600, value: 43 },
            ..ReferenceInfo::default()
        }
    }

    fn mapped(&self) -> Mapped {
        Mapped::new(&self.info(), &(self.cache.clone(), self.entries.clone())).expect("memory")
    }

    fn word(&self, slot: usize) -> EntryWord {
        EntryWord(self.words.load(entry_of(slot), Ordering::Relaxed))
    }

    fn set(&self, slot: usize, generation: u64, state: EntryState) {
        let word = EntryWord::new(EPOCH, generation, state);
        let at = entry_of(slot) + ENTRY_WORD;
        self.words.store(at, word.0, Ordering::Release);
    }

    fn retire(&self, slot: usize) {
        self.set(slot, self.word(slot).generation(), EntryState::Retired);
        std::sync::atomic::fence(Ordering::Release);
    }

    /// A page of one byte's value.
    fn publish(&self, slot: usize, (block, valid): (u64, u64), value: u8) {
        let page = self.cache.part(slot * PAGE_BYTES, PAGE_BYTES);
        page.copy_from(0, &[value; PAGE_BYTES][..valid as usize]);
        let at = entry_of(slot);
        for (part, value) in [(ENTRY_FILE, FILE), (ENTRY_BLOCK, block), (ENTRY_VALID, valid)] {
            self.words.store(at + part, value, Ordering::Relaxed);
        }
        self.set(slot, self.word(slot).generation() + 1, EntryState::Stable);
    }
}

fn read(mapped: &Mapped, offset: u64, len: usize) -> Result<Vec<u8>, Miss> {
    let mut into = vec![0xee; len];
    let bytes = mapped.read(FILE, offset, &mut into)?;
    into.truncate(bytes);
    Ok(into)
}

#[test]
fn what_is_known_and_stands_is_read() {
    let (server, full) = (Server::new(), PAGE_BYTES as u64);
    let mapped = server.mapped();
    assert_eq!(read(&mapped, 0, 10), Err(Miss::Unknown));
    for (slot, block, valid) in [(9, 0, full), (3, 1, full), (60, 2, 100)] {
        server.publish(slot, (block, valid), 1 + block as u8);
        mapped.directory.note(FILE, block, slot as u32);
    }
    assert_eq!(read(&mapped, 7, 10), Ok(vec![1; 10]));
    assert_eq!(read(&mapped, 4090, 12), Ok([vec![1; 6], vec![2; 6]].concat()));
    let end = [vec![2; 4096], vec![3; 100]].concat();
    assert_eq!(read(&mapped, 4096, 16384), Ok(end), "to the end of the file, and no further");
    assert_eq!((read(&mapped, 8292, 5), read(&mapped, 9000, 5)), (Ok(vec![]), Ok(vec![])));
    assert_eq!(read(&mapped, 3 * full, 1), Err(Miss::Unknown), "behind it nobody knows");
    let mut untouched = vec![0xee; 200];
    assert_eq!(mapped.read(FILE, 2 * full, &mut untouched), Ok(100));
    assert_eq!(untouched[100..], [0xee; 100]);
    assert_eq!(mapped.read(FILE + 1, 0, &mut untouched), Err(Miss::Unknown));
}

#[test]
fn what_was_read_is_told_by_bits() {
    let (server, full) = (Server::new(), PAGE_BYTES as u64);
    let mapped = server.mapped();
    for (slot, block) in [(9, 0), (63, 1), (5, 2)] {
        server.publish(slot, (block, full), 1);
        mapped.directory.note(FILE, block, slot as u32);
    }
    server.retire(5);
    assert_eq!(read(&mapped, 2 * full, 1), Err(Miss::Stale));
    assert_eq!(read(&mapped, 5, 10), Ok(vec![1; 10]));
    let used = |slots: &[usize]| -> Vec<bool> {
        slots.iter().map(|slot| mapped.accessed.take(*slot)).collect()
    };
    assert_eq!(used(&[5, 8, 9, 63, 9]), [false, false, true, false, false]);
    assert_eq!(read(&mapped, 0, 8192), Ok(vec![1; 8192]));
    assert_eq!(used(&[9, 63, 10]), [true, true, false]);
}

#[test]
fn what_means_something_else_is_not_believed() {
    let (server, full) = (Server::new(), PAGE_BYTES as u64);
    let mapped = server.mapped();
    mapped.directory.note(FILE, 1, 4);
    server.publish(4, (1, full), 7);
    assert_eq!(read(&mapped, full, 2), Ok(vec![7; 2]));
    for state in [EntryState::Free, EntryState::Landing, EntryState::Retired, EntryState::Withheld]
    {
        server.set(4, 1, state);
        assert_eq!(read(&mapped, full, 2), Err(Miss::Stale), "{state:?}");
    }
    server.publish(4, (1, full), 8);
    assert_eq!(read(&mapped, full, 2), Ok(vec![8; 2]), "anew");
    server.retire(4);
    server.publish(4, (2, full), 9);
    assert_eq!(read(&mapped, full, 2), Err(Miss::Stale), "another block");
    let other = EntryWord::new(EPOCH + 1, 9, EntryState::Stable);
    server.publish(4, (1, full), 9);
    let at = entry_of(4);
    server.words.store(at, other.0, Ordering::Relaxed);
    assert_eq!(read(&mapped, full, 2), Err(Miss::Stale), "of another life of the server");
    // Numbers that no honest server says.
    server.publish(4, (1, full), 9);
    server.words.store(at + ENTRY_VALID, u64::MAX, Ordering::Relaxed);
    assert_eq!(read(&mapped, full, 9999).map(|bytes| bytes.len()), Err(Miss::Unknown));
    assert_eq!(read(&mapped, full, 4096).map(|bytes| bytes.len()), Ok(4096));
    mapped.directory.note(FILE, 1, SLOTS as u32);
    assert_eq!(read(&mapped, full, 2), Err(Miss::Stale), "no such slot");
}

#[test]
fn a_dead_server_and_an_ended_session_prove_nothing() {
    for word in [0, 600] {
        let server = Server::new();
        let mapped = server.mapped();
        mapped.directory.note(FILE, 0, 0);
        server.publish(0, (0, 4096), 1);
        assert_eq!((read(&mapped, 0, 1), mapped.lives()), (Ok(vec![1]), true));
        server.words.store(word, 1 << 30, Ordering::Relaxed);
        assert_eq!((read(&mapped, 0, 1), mapped.lives()), (Err(Miss::Ended), false));
    }
}

#[test]
fn what_a_server_says_of_its_memory_is_checked() {
    let server = Server::new();
    let memory = (server.cache.clone(), server.entries.clone());
    let far = LifeWord { number: ENTRIES_FIRST_WORD as u32, value: 1 };
    for info in [
        ReferenceInfo { server: far, ..server.info() },
        ReferenceInfo { session: far, ..server.info() },
    ] {
        assert!(Mapped::new(&info, &memory).is_none());
    }
    let (cache, entries) = &memory;
    let short = entries.part(0, ENTRIES_FIRST_WORD * 8 - 1);
    assert!(Mapped::new(&server.info(), &(cache.clone(), short)).is_none());
    let odd = entries.part(4, entries.len() - 4);
    assert!(Mapped::new(&server.info(), &(cache.clone(), odd)).is_none());
    // Entries of fewer slots than there are.
    let few = entries.part(0, entry_of(1) * 8);
    let mapped = Mapped::new(&server.info(), &(cache.clone(), few)).expect("one slot");
    server.publish(1, (0, 4096), 1);
    mapped.directory.note(FILE, 0, 1);
    assert_eq!(read(&mapped, 0, 1), Err(Miss::Stale));
}

/// Writes that come between the copies of two blocks.
#[test]
fn blocks_are_read_as_they_were_at_one_moment() {
    let full = PAGE_BYTES as u64;
    // What is written, and after how many copies; whether it shows.
    let cases: [(&[usize], usize, bool); 6] = [
        (&[], 1, true),
        (&[0], 1, false),
        (&[1], 1, true),
        (&[0, 1], 1, false),
        (&[0], 2, false),
        (&[1], 2, false),
    ];
    for (written, after, is_read) in cases {
        let server = Server::new();
        let mapped = server.mapped();
        let publish = |slot: usize, block: usize, value| {
            server.publish(slot, (block as u64, full), value);
            mapped.directory.note(FILE, block as u64, slot as u32);
        };
        (0..2).for_each(|block| publish(block, block, 1));
        let mut into = [0; 2 * PAGE_BYTES];
        let result = mapped.read_and(FILE, 0, &mut into, |step| {
            if step == Step::Checked(after) {
                written.iter().for_each(|block| server.retire(*block));
                written.iter().for_each(|block| publish(10 + block, *block, 2));
            }
        });
        let case = format!("{written:?} after {after}");
        assert_eq!(result.ok(), is_read.then_some(2 * PAGE_BYTES), "{case}");
        assert_eq!(read(&mapped, 0, 2 * PAGE_BYTES).map(|bytes| bytes.len()), Ok(8192), "{case}");
    }
}

#[test]
fn a_stream_that_the_server_reads_ahead_of_is_not_cut() {
    let mut window = Window::NEW;
    (2..4).for_each(|block| window.miss(block * 4096, 4096));
    assert!(!window.takes(false), "on its way");
    window.was_told(30);
    (4..20).for_each(|block| window.miss(block * 4096, 4096));
    assert!(!window.takes(true), "also when more of it has come");
    window.was_told(BLOCKS);
    window.miss(0, 4096);
    assert!(window.takes(false), "read anew, it is");
    let mut whole = Window::NEW;
    (0..2).for_each(|block| whole.miss(block * 4096, 4096));
    assert!(whole.takes(true), "nothing has to come");
    let mut random = Window::NEW;
    [7, 3].into_iter().for_each(|block| random.miss(block * 4096, 4096));
    assert!(random.takes(false));
}

#[test]
fn the_server_is_asked_the_less_the_less_it_knows() {
    let references = Arc::new(References::default());
    let optimistic = Optimistic::default();
    let due = |misses: u32| {
        let is_due = |_: &u32| references.missed(5 * 4096, 4096, || true).is_some();
        (1..=misses).find(is_due)
    };
    assert_eq!(due(10), Some(2), "not for a single read");
    // Nobody asks while somebody does.
    assert_eq!(due(1000), None);
    let intervals = [16, 32, 64, 128, 256, 256];
    for misses in intervals {
        references.told(&optimistic, 0, None);
        assert_eq!(due(1000), Some(misses));
    }
    for (told, misses) in [(129, 16), (200, 16), (200, 32), (512, 16), (512, 16), (1, 32)] {
        let mut windows = references.windows.lock().expect("no panic");
        windows.first_mut().expect("counted").1.was_told(told);
        drop(windows);
        assert_eq!(due(1000), Some(misses), "{told}");
    }
    // Another part counts for itself; what is large, or at the end of a file, or of one that ended, not at all.
    assert_eq!(references.missed(4 << 20, 4096, || true), None);
    assert_eq!(references.missed(4 << 20, 4096, || true), Some(1024));
    assert_eq!((0..9).find_map(|_| references.missed(9 << 20, 0, || true)), None);
    assert_eq!((0..9).find_map(|_| references.missed(9 << 20, 65_537, || true)), None);
    references.end();
    assert_eq!((0..9).find_map(|_| references.missed(9 << 20, 5, || true)), None);
    let never = References::default();
    assert_eq!((0..9).find_map(|_| never.missed(0, 5, || false)), None);
}

#[test]
fn memory_that_proves_nothing_is_let_go() {
    let optimistic = Optimistic::default();
    let servers = [Server::new(), Server::new()];
    let files = [(); 2].map(|()| Arc::new(References::default()));
    for (server, file) in servers.iter().zip(&files) {
        server.publish(3, (0, 4096), 1);
        let memory = Some((server.cache.clone(), server.entries.clone()));
        // Another epoch would be another server's.
        let referred = Referred { info: server.info(), slots: vec![Some(3)], memory };
        file.told(&optimistic, 0, Some(&referred));
    }
    let read = |file: &References| file.read(&optimistic, &mut [0; 10], 5, || false);
    assert_eq!((read(&files[0]), read(&files[1])), (Some(10), Some(10)));
    optimistic.sweep();
    assert_eq!(read(&files[0]), Some(10));
    servers[0].words.store(0, 1 << 30, Ordering::Relaxed);
    optimistic.sweep();
    assert!(optimistic.mapped.lock().expect("no panic").is_empty());
    assert!(files.iter().all(|file| !file.known.is_some()));
    optimistic.end();
    assert_eq!(
        optimistic.stats(),
        OptimisticStats { hits: 3, asked: 2, ..OptimisticStats::default() }
    );
}

#[test]
fn a_file_that_is_idle_keeps_no_dead_cache_when_another_asks_anew() {
    let (dead, next) = (Server::new(), Server::new());
    let session = Optimistic::default();
    let [idle, other] = [(); 2].map(|()| Arc::new(References::default()));
    let told = |file: &Arc<References>, server: &Server, value| {
        server.words.store(600, value, Ordering::Relaxed);
        let session_word = LifeWord { number: 600, value };
        let info = ReferenceInfo { session: session_word, ..server.info() };
        let memory = Some((server.cache.clone(), server.entries.clone()));
        file.told(&session, 0, Some(&Referred { info, slots: vec![Some(1)], memory }));
    };
    let unmapped = dead.cache.holders();
    told(&idle, &dead, 43);
    told(&other, &dead, 43);
    dead.words.store(0, 41, Ordering::Relaxed);
    told(&other, &next, 44);
    session.sweep();
    assert_eq!(dead.cache.holders(), unmapped);
    assert!(!idle.known.is_some() && other.known.is_some());
}

#[test]
fn a_server_that_always_tells_of_another_memory_fills_no_list() {
    let server = Server::new();
    let (session, file) = (Optimistic::default(), Arc::new(References::default()));
    let of = |cache| Referred {
        info: ReferenceInfo { cache, ..server.info() },
        slots: Vec::new(),
        memory: Some((server.cache.clone(), server.entries.clone())),
    };
    (0..100).for_each(|cache| drop(file.told(&session, 0, Some(&of(cache)))));
    assert_eq!(session.mapped.lock().expect("no panic").len(), super::CACHES_MAX);
    assert!(!file.known.is_some(), "it is asked");
}

/// Pages that this process has in memory, in bytes.
fn resident() -> usize {
    let all = std::fs::read_to_string("/proc/self/statm").expect("statistics");
    let pages = all.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("a number") * PAGE_BYTES
}

#[test]
fn a_million_blocks_take_little_memory() {
    const ALL: usize = 1_000_000;
    for files in [10, 100_000] {
        let (server, session) = (Server::of(ALL), Optimistic::default());
        let of_file = ALL / files;
        let before = resident();
        let mut open = Vec::new();
        for file in 0..files {
            let references = Arc::new(References::default());
            for first in (0..of_file).step_by(BLOCKS as usize) {
                let blocks = first..of_file.min(first + BLOCKS as usize);
                let slots = blocks.map(|block| Some((file * of_file + block) as u32)).collect();
                let info = ReferenceInfo { file: file as u64, ..server.info() };
                let memory = Some((server.cache.clone(), server.entries.clone()));
                let referred = Referred { info, slots, memory };
                references.hear(&session, first as u64, Some(&referred));
            }
            open.push(references);
        }
        let bytes = resident().saturating_sub(before);
        println!("{files} files: {:.1} bytes a block", bytes as f64 / ALL as f64);
        // Beside what other tests of this process take.
        assert!(bytes <= 48 * ALL, "{bytes} bytes of {files} files");
    }
}

/// Of a block that is in its second set, and of what is in none, or stale: each is counted once.
#[test]
fn a_block_of_a_full_set_is_read_too() {
    const SLOTS: usize = BLOCKS as usize;
    let in_second = |start: u64| {
        let probe = Directory::new(SLOTS).expect("memory");
        (0..SLOTS as u64).for_each(|slot| probe.note(FILE, start + slot, slot as u32));
        let mut blocks = start..start + SLOTS as u64;
        Some((start, blocks.find(|block| probe.find(FILE, *block).is_none())?))
    };
    let (start, block) = (0..).step_by(SLOTS).take(100).find_map(in_second).expect("one");
    let (server, optimistic, file) =
        (Server::of(SLOTS), Optimistic::default(), Arc::new(References::default()));
    for slot in 0..SLOTS {
        server.publish(slot, (start + slot as u64, 4096), 1);
    }
    let memory = Some((server.cache.clone(), server.entries.clone()));
    let slots = (0..SLOTS as u32).map(Some).collect();
    file.told(&optimistic, start, Some(&Referred { info: server.info(), slots, memory }));
    let counted = || {
        let OptimisticStats { hits, unknown, stale, .. } = optimistic.stats();
        (hits, unknown, stale)
    };
    let both = |block: u64| {
        let (mut into, at) = ([0; 10], block * 4096);
        let first = file.read(&optimistic, &mut into, at, || false);
        (first, file.read_second(&optimistic, &mut into, at, || false))
    };
    assert_eq!((both(block), counted()), ((None, Some(10)), (1, 0, 0)));
    assert_eq!((both(start + SLOTS as u64), counted()), ((None, None), (1, 1, 0)));
    server.retire((block - start) as usize);
    assert_eq!((both(block), counted()), ((None, None), (1, 1, 1)));
    let in_first = (start..).find(|number| *number != block).expect("another");
    server.retire((in_first - start) as usize);
    assert_eq!((both(in_first), counted()), ((None, None), (1, 1, 2)));
}
