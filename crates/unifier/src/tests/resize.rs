//! A cache that gives memory back, and lists that are read in at once.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::disk::{Disk, Rng, run};
use super::{VERIFIER, bytes, config, open, pinning, read, shrinking, unifier, write};
use crate::{CachedFile, Config, Reader, Unifier};
use dafs_fabric::sim::{FaultConfig, SimConfig, SimNet};
use dafs_fabric::{
    Access, Address, Arena, ConnectError, Device, DeviceAttr, Domain, Engine, Listener,
    MemoryRegion, OpenError, Provider, Readers, RegisterError, Span, poison,
};

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;
const FRAME: usize = 16 * PAGE;

#[test]
fn a_cache_gives_memory_back_and_takes_it_again() {
    gives_back_and_takes_again(Arena::new(8 * MIB).expect("memory"));
}

#[test]
fn memory_that_peers_read_is_given_back_too() {
    let arena = Arena::for_readers(8 * MIB, 2 * MIB, Readers::Own).expect("memory");
    let file = arena.span(0, 1).shared().expect("shared").file;
    let file = std::fs::File::from(file.for_peers().try_clone_to_owned().expect("a descriptor"));
    let has = || file.metadata().expect("its size").blocks() * 512;
    gives_back_and_takes_again(arena.clone());
    assert!(has() >= 7 << 20);
    arena.discard(0, arena.len()).expect("holes");
    assert_eq!(has(), 0);
}

#[test]
fn what_readers_make_of_holes_is_given_back_again() {
    let arena = Arena::for_readers(8 * MIB, 2 * MIB, Readers::All).expect("memory");
    let file = arena.span(0, 1).shared().expect("shared").file;
    let config = Config { least_bytes: 64 << 10, ..config(8 * MIB) };
    let unifier = Unifier::new(arena.clone(), config, VERIFIER);
    let cached = open(&unifier, &Disk::new(1, 0).file(1, vec![5; 2 * MIB]));
    let user = cached.clone();
    let lease = run(&Disk::new(1, 0), async move { user.read(0, MIB).await }).expect("read");
    let kept = unifier.resize(3 << 20);
    let theirs = Arena::span_of_peer(file.for_peers(), file.len()).expect("mapped");
    let touch = |pages: std::ops::Range<usize>| {
        for page in pages {
            theirs.copy_to(page * PAGE, &mut [0]);
        }
    };
    let has = || file.resident_bytes().expect("its size");
    touch(0..8 * MIB / PAGE);
    assert_eq!(has(), 8 << 20);
    unifier.give_back_again();
    assert!(has() <= kept, "{} of {kept}", has());
    assert!(bytes(&lease) == vec![5; MIB]);
    assert_eq!(unifier.resize(u64::MAX), 8 << 20);
    touch(0..8 * MIB / PAGE);
    unifier.give_back_again();
    assert_eq!(has(), 8 << 20, "nothing is given back");
}

#[test]
fn what_a_reader_makes_of_a_few_holes_costs_no_look_at_all_others() {
    let arena = Arena::for_readers(512 * MIB, 32 * MIB, Readers::All).expect("memory");
    let file = arena.span(0, 1).shared().expect("shared").file;
    let config = Config { least_bytes: 64 << 10, least_part: 512, ..config(512 * MIB) };
    let unifier = Unifier::new(arena.clone(), config, VERIFIER);
    assert_eq!(unifier.resize(MIB as u64), MIB as u64);
    let theirs = Arena::span_of_peer(file.for_peers(), file.len()).expect("mapped");
    let (few, far) = (4 * MIB / PAGE, 300 * MIB / PAGE);
    for page in (far..far + few).chain([512 * MIB / PAGE - 1]) {
        theirs.copy_to(page * PAGE, &mut [0]);
    }
    assert!(file.resident_bytes().expect("its size") > 4 << 20);
    let looks = unifier.give_back_again();
    assert!((2..=8).contains(&looks), "{looks} for 4 MiB of 511");
    assert_eq!(file.resident_bytes().expect("its size"), 0);
    assert_eq!(unifier.give_back_again(), 0);
}

fn gives_back_and_takes_again(arena: Arc<Arena>) {
    let disk = Disk::new(1, 0);
    let data: Vec<u8> = (0..8 * MIB).map(|at| (at / PAGE) as u8).collect();
    let file = disk.file(1, data.clone());
    let config = Config { least_bytes: 64 << 10, ..config(8 * MIB) };
    let peers = arena.span(0, 1).shared().map(|part| part.file);
    let unifier = Unifier::new(arena, config, VERIFIER);
    let cached = open(&unifier, &file);
    let user = cached.clone();
    run(&disk, async move {
        for at in (0..7 * MIB).step_by(MIB) {
            read(&user, at as u64, MIB).await;
        }
    });
    assert!(unifier.stats().resident_bytes >= 7 << 20);
    let now = unifier.resize(3 << 20);
    assert_eq!((now, unifier.stats().decommitted_bytes), (3 << 20, 5 << 20));
    assert!(unifier.stats().resident_bytes <= 3 << 20);
    if let Some(file) = peers {
        let file = std::fs::File::from(file.as_fd().try_clone_to_owned().expect("a descriptor"));
        assert!(file.metadata().expect("its size").blocks() * 512 <= 3 << 20, "given back");
    }
    // It works as before, in less room.
    let user = cached.clone();
    let all = run(&disk, async move {
        let mut all = Vec::new();
        for at in (0..8 * MIB).step_by(MIB / 2) {
            all.extend(read(&user, at as u64, MIB / 2).await);
        }
        all
    });
    assert!(all == data);
    assert!(unifier.stats().resident_bytes <= 3 << 20);
    assert_eq!(unifier.resize(u64::MAX), 8 << 20);
    assert_eq!(unifier.stats().decommitted_bytes, 0);
    let user = cached.clone();
    run(&disk, async move {
        for at in (0..7 * MIB).step_by(MIB) {
            read(&user, at as u64, MIB).await;
        }
    });
    assert!(unifier.stats().resident_bytes >= 7 << 20, "all of it is used again");
}

#[test]
fn a_quarter_stays_and_what_is_dirty_stays() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, Vec::new());
    let unifier = shrinking(8 * MIB);
    let cached = open(&unifier, &file);
    assert_eq!(unifier.resize(0), 2 << 20);
    assert_eq!(unifier.resize(u64::MAX), 8 << 20);
    let user = cached.clone();
    run(&disk, async move {
        for at in 0..3 {
            write(&user, at * MIB as u64, &vec![7; MIB], 1).await;
        }
    });
    assert_eq!(unifier.resize(0), 4 << 20, "dirty data keeps its memory, and readers some");
    let user = cached.clone();
    run(&disk, async move { user.flush().await }).expect("flush");
    assert_eq!(unifier.resize(0), 2 << 20);
    let user = cached.clone();
    let seen = run(&disk, async move { read(&user, 3 * MIB as u64 - 10, 10).await });
    assert_eq!(seen, [7; 10]);
}

#[test]
fn writers_leave_room_for_readers_in_a_small_cache() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 4 * MIB]);
    let unifier = shrinking(8 * MIB);
    let cached = open(&unifier, &file);
    assert_eq!(unifier.resize(0), 2 << 20);
    // Their data has not come, so that nothing can be written back.
    let reserve = |at: usize| cached.try_reserve((at * 16 * PAGE) as u64, 16 * PAGE);
    let reserved: Vec<_> = (0..64).map_while(reserve).collect();
    assert_eq!(reserved.len() * 16 * PAGE, 3 * MIB / 2);
    assert!(cached.try_reserve(0, PAGE).is_none());
    let user = cached.clone();
    assert_eq!(run(&disk, async move { read(&user, 0, MIB / 4).await }), vec![5; MIB / 4]);
    unifier.resize(u64::MAX);
    assert!(cached.try_reserve(0, MIB).is_some(), "the cache is large again");
}

#[test]
fn a_list_is_read_in_at_once_with_small_holes() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, vec![5; 4 * MIB]);
    let unifier = unifier(64 * MIB);
    let cached = open(&unifier, &file);
    // Every other page, and pages far from each other.
    let near: Vec<_> = (0..32u64).map(|at| (at * 2 * PAGE as u64, PAGE)).collect();
    let far: Vec<_> = (1..11u64).map(|at| (at * 300_000, 10)).collect();
    cached.prefetch_list(&near);
    cached.prefetch_list(&far);
    assert_eq!(disk.waiting(), 1 + 10, "all are asked for before one has come");
    let user = cached.clone();
    run(&disk, async move {
        for (at, len) in near.into_iter().chain(far) {
            read(&user, at, len).await;
        }
    });
    assert_eq!(file.state().reads, 11);
    cached.prefetch_list(&[(0, PAGE), (300_000, 5), (5 << 20, 7)]);
    assert_eq!(disk.waiting(), 0, "all is there");
}

#[test]
fn a_sequential_reader_finds_what_it_asks_for() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 4 * MIB]);
    let unifier = unifier(64 * MIB);
    let cached = open(&unifier, &file);
    let user = cached.clone();
    let missed = run(&disk, async move {
        let (mut reader, mut missed) = (Reader::default(), 0);
        for at in (0..4 * MIB as u64).step_by(64 << 10) {
            let there = user.try_read(at, 64 << 10).is_some();
            missed += u32::from(!there);
            read(&user, at, 64 << 10).await;
            user.read_ahead(&mut reader, at, 64 << 10, there);
        }
        missed
    });
    assert!(missed <= 2, "{missed} reads had to wait");
    assert_eq!(unifier.stats().filled_bytes, 4 << 20, "each byte was read once");
}

/// In segments of 1 MiB that this device is to know.
fn pinned(arena_bytes: usize, domain: &Arc<Domain>) -> (Arc<Arena>, Arc<Unifier>) {
    let domain = Some(domain.clone());
    let config = Config { least_bytes: 64 << 10, domain, ..config(arena_bytes) };
    let arena = Arena::in_segments(arena_bytes, MIB).expect("arena");
    poison::switch_on([0xee; poison::PATTERN_BYTES]);
    poison::fill(&arena.span(0, arena_bytes));
    (arena.clone(), Unifier::new(arena, config, VERIFIER))
}

/// Segments that the device knows.
fn known(domain: &Domain, arena: &Arc<Arena>) -> usize {
    let segments = (0..arena.len()).step_by(arena.segment_bytes());
    segments.filter(|at| domain.parts()[0].find(&arena.segment(*at)).is_some()).count()
}

fn read_all(disk: &Disk, cached: &Arc<CachedFile>, bytes: usize) -> Vec<u8> {
    let user = cached.clone();
    run(disk, async move {
        let mut all = Vec::new();
        for at in (0..bytes).step_by(MIB / 2) {
            all.extend(read(&user, at as u64, MIB / 2).await);
        }
        all
    })
}

#[test]
fn no_span_lies_in_two_segments() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![7; 4 * MIB]);
    let (arena, unifier) = pinned(4 * MIB, &pinning(1));
    let cached = open(&unifier, &file);
    read_all(&disk, &cached, 4 * MIB);
    let lease = cached.try_read((MIB - PAGE) as u64, MIB / 2).expect("all is there");
    let spans = lease.spans();
    let sizes: Vec<_> = spans.iter().map(|span| span.len()).collect();
    assert_eq!(sizes, [PAGE, MIB / 2 - PAGE], "and they are no smaller for that");
    let owners: Vec<_> = spans.iter().map(|span| span.owner().map(|owner| owner.addr())).collect();
    assert_eq!(owners, [0, MIB].map(|at| Some(arena.segment(at).addr())));
}

#[test]
fn what_a_device_pins_is_given_back_by_whole_segments() {
    let disk = Disk::new(1, 0);
    let data: Vec<u8> = (0..5 * MIB).map(|at| (at / PAGE) as u8).collect();
    let file = disk.file(1, data.clone());
    let domain = pinning(1);
    let (arena, unifier) = pinned(4 * MIB, &domain);
    let cached = open(&unifier, &file);
    assert_eq!(known(&domain, &arena), 0);
    for round in 0..100 {
        assert!(read_all(&disk, &cached, 5 * MIB) == data);
        assert_eq!(known(&domain, &arena), 4, "round {round}");
        let less = 1 + round % 3;
        assert_eq!(unifier.resize((less as u64) << 20), (less as u64) << 20);
        assert_eq!(known(&domain, &arena), less);
        assert!(read_all(&disk, &cached, 2 * MIB) == data[..2 * MIB]);
        assert!(unifier.stats().resident_bytes <= (less as u64) << 20);
        assert_eq!(unifier.resize(u64::MAX), 4 << 20);
    }
    let stats = unifier.stats();
    assert_eq!((stats.decommits_refused, stats.registrations_refused), (0, 0));
    assert_eq!(unifier.resize((2 << 20) + (64 << 10)), 2 << 20, "no part of a segment stays");
    assert_eq!(unifier.resize((3 << 20) - (64 << 10)), 2 << 20, "nor comes");
}

#[test]
fn a_segment_that_is_held_stays_and_another_goes() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![7; 4 * MIB]);
    let (_, unifier) = pinned(4 * MIB, &pinning(1));
    let cached = open(&unifier, &file);
    read_all(&disk, &cached, 4 * MIB);
    // A page of each but the first, which is used more than the others.
    let user = cached.clone();
    run(&disk, async move {
        for _ in 0..20 {
            read(&user, 0, MIB / 2).await;
        }
    });
    let held: Vec<_> = (1..4).map(|at| cached.try_read((at * MIB) as u64, PAGE)).collect();
    assert!(held.iter().all(Option::is_some));
    let mut looks = 1;
    while unifier.resize(3 << 20) > 3 << 20 {
        assert_eq!(unifier.shrinks_to(), Some(3 << 20));
        looks += 1;
        assert!(looks < 100, "the one that can go goes");
    }
    assert_eq!(unifier.shrinks_to(), None);
    assert!(held.iter().flatten().all(|lease| bytes(lease) == [7; PAGE]));
    // What is being emptied is used again when there is memory.
    assert_eq!(unifier.resize(2 << 20), 3 << 20);
    assert_eq!(unifier.resize(u64::MAX), 4 << 20);
    assert_eq!(unifier.shrinks_to(), None);
    drop(held);
    assert!(read_all(&disk, &cached, 4 * MIB) == [7; 4 * MIB]);
    assert_eq!(unifier.stats().resident_bytes, 4 << 20);
}

#[test]
fn a_segment_with_dirty_data_is_written_back_and_goes() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, vec![7; 4 * MIB]);
    let domain = pinning(1);
    let (arena, unifier) = pinned(4 * MIB, &domain);
    let cached = open(&unifier, &file);
    let user = cached.clone();
    run(&disk, async move {
        // A quarter of each segment.
        for at in (0..4 * MIB as u64).step_by(FRAME) {
            match at as usize / FRAME % 4 {
                3 => write(&user, at, &[9; FRAME], 1).await,
                _ => drop(read(&user, at, FRAME).await),
            }
        }
    });
    let written = || file.state().data.iter().filter(|byte| **byte == 9).count() == MIB;
    assert_eq!(unifier.resize(2 << 20), 4 << 20);
    assert!(!written());
    while unifier.shrinks_to().is_some() {
        unifier.resize(2 << 20);
        while disk.complete_one() {}
        let user = unifier.clone();
        run(&disk, async move { user.write_back(Duration::ZERO).await });
    }
    assert!(written());
    assert_eq!(known(&domain, &arena), 2);
}

/// Hits among so many reads, of which some blocks are read much more often than others.
fn hits(disk: &Disk, cached: &Arc<CachedFile>, rng: &mut Rng, reads: usize) -> usize {
    let mut found = 0;
    for _ in 0..reads {
        let most = 1 << rng.below(11);
        let block = rng.below(most) * 7919 % 1024;
        let at = block * PAGE as u64;
        if cached.try_read(at, PAGE).is_some() {
            found += 1;
            continue;
        }
        let user = cached.clone();
        run(disk, async move { read(&user, at, PAGE).await });
    }
    found
}

#[test]
fn a_cache_of_half_the_size_is_no_worse_than_a_new_one() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![7; 4 * MIB]);
    let [large, small] = [2, 1].map(|mib| {
        let domain = Some(pinning(1));
        let config = Config { least_bytes: 64 << 10, domain, ..config(mib * MIB) };
        let arena = Arena::in_segments(mib * MIB, 2 * FRAME).expect("arena");
        Unifier::new(arena, config, VERIFIER)
    });
    let cached = open(&large, &file);
    hits(&disk, &cached, &mut Rng::new(1), 10_000);
    assert_eq!(large.resize(1 << 20), 1 << 20);
    let shrunk = hits(&disk, &cached, &mut Rng::new(2), 10_000);
    let new = hits(&disk, &open(&small, &file), &mut Rng::new(2), 10_000);
    assert!(shrunk * 100 >= new * 95, "{shrunk} and {new}");
    println!("hits of 10,000 reads: {shrunk} after the shrink, {new} of a new cache");
}

#[test]
fn a_device_that_takes_no_more_is_asked_again_later() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![7; 4 * MIB]);
    let mut config = SimConfig::new(1);
    (config.attr.local_registration, config.attr.registration_pins) = (true, true);
    let gentle = config.faults.clone();
    config.faults = FaultConfig { refuse_registration_per_million: 1_000_000, ..gentle.clone() };
    let net = SimNet::new(config);
    let domain = Domain::open(&net.provider(1)).expect("a device");
    let (arena, unifier) = pinned(4 * MIB, &domain);
    let cached = open(&unifier, &file);
    assert!(read_all(&disk, &cached, 4 * MIB) == [7; 4 * MIB]);
    assert_eq!(unifier.stats().registrations_refused, 4, "once for each");
    assert_eq!(known(&domain, &arena), 0);
    net.set_faults(gentle);
    assert_eq!(unifier.resize(3 << 20), 3 << 20);
    assert_eq!(known(&domain, &arena), 0, "not while memory is to go");
    assert_eq!(unifier.resize(3 << 20), 3 << 20);
    assert!(read_all(&disk, &cached, 4 * MIB) == [7; 4 * MIB]);
    assert_eq!(known(&domain, &arena), 3);
}

#[test]
fn who_holds_pages_everywhere_does_not_empty_the_cache() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![7; 8 * MIB]);
    let (_, unifier) = pinned(8 * MIB, &pinning(1));
    let cached = open(&unifier, &file);
    read_all(&disk, &cached, 8 * MIB);
    let hold = |mib: usize| cached.try_read((mib * MIB) as u64, PAGE).expect("cached");
    let mut held: Vec<_> = (0..8).map(hold).collect();
    for _ in 0..40 {
        unifier.resize(4 << 20);
    }
    let cached_bytes = unifier.stats().resident_bytes;
    assert!(cached_bytes >= 6 << 20, "{cached_bytes} are left");
    // Those of which nothing is held go first, and at once.
    held.drain(2..6);
    for _ in 0..40 {
        unifier.resize(4 << 20);
    }
    assert_eq!(unifier.resize(4 << 20), 4 << 20);
}

/// A device that a shrink meets while it registers.
struct Slow {
    inner: Arc<dyn Device>,
    at: u64,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Device for Slow {
    fn attr(&self) -> &DeviceAttr {
        self.inner.attr()
    }

    fn register(&self, span: Span, access: Access) -> Result<MemoryRegion, RegisterError> {
        let meanwhile =
            self.meanwhile.lock().expect("no panic").take_if(|_| span.addr() == self.at);
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        self.inner.register(span, access)
    }

    fn engine(&self) -> Result<Box<dyn Engine>, OpenError> {
        self.inner.engine()
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, ConnectError> {
        self.inner.listen(address)
    }
}

#[test]
fn what_is_registered_ahead_of_use_does_not_stay_when_it_goes() {
    let arena = Arena::in_segments(4 * MIB, MIB).expect("memory");
    let mut sim = SimConfig::new(1);
    (sim.attr.local_registration, sim.attr.registration_pins) = (true, true);
    let inner = SimNet::new(sim).provider(1).open().expect("a device");
    let at = arena.segment(3 * MIB).addr();
    let slow = Arc::new(Slow { inner, at, meanwhile: Mutex::default() });
    let domain = Domain::new(slow.clone());
    let config = Config { least_bytes: 64 << 10, domain: Some(domain.clone()), ..config(4 * MIB) };
    let unifier = Unifier::new(arena.clone(), config, VERIFIER);
    let (begins, shrinks) = std::sync::mpsc::channel();
    let shrunk = Arc::new(AtomicBool::new(false));
    let (user, ends) = (unifier.clone(), shrunk.clone());
    let thread = std::thread::spawn(move || {
        shrinks.recv().expect("it begins");
        let now = user.resize(3 << 20);
        ends.store(true, Ordering::SeqCst);
        now
    });
    let user = unifier.clone();
    *slow.meanwhile.lock().expect("no panic") = Some(Box::new(move || {
        begins.send(()).expect("somebody shrinks");
        while user.stats().decommitted_bytes == 0 {
            std::thread::yield_now();
        }
        // The segment is to go; it goes before it is registered only where nothing prevents that.
        for _ in 0..10_000 {
            if shrunk.load(Ordering::SeqCst) {
                break;
            }
            std::thread::yield_now();
        }
    }));
    unifier.prefault(std::thread::current(), || true);
    assert_eq!(thread.join().expect("no panic"), 3 << 20);
    assert_eq!(known(&domain, &arena), 3);
    assert!(domain.parts()[0].find(&arena.segment(3 * MIB)).is_none());
}
