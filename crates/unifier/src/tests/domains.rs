//! Cache domains: a file is in one at a time, and all of them have one bound.

use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::Status;
use dafs_store::FileId;

use super::disk::{Disk, run};
use super::*;
use crate::{CacheDomain, CacheDomains, DomainId, DomainSet, Placement};

const MIB: usize = 1 << 20;
const ARENA: usize = 16 * MIB;
const NAMES: [&str; 3] = ["private", "one", "other"];
/// Through which the ways to files lead that everybody may open.
pub(super) const DIRECTORY: FileId = FileId { device: 1, inode: 1 };
pub(super) const ONE: DomainId = DomainId(1);
const OTHER: DomainId = DomainId(2);

/// Three domains, each of which keeps 1 MiB always; and their memory.
pub(super) fn domains() -> (Arc<CacheDomains>, Vec<Arc<Arena>>) {
    let config = || Config { least_bytes: MIB, least_part: 16, ..config(ARENA) };
    let arenas: Vec<_> = NAMES.iter().map(|_| Arena::new(ARENA).expect("arena")).collect();
    let first = Unifier::new(arenas[0].clone(), config(), VERIFIER);
    let rest = arenas[1..].iter().map(|arena| first.beside(arena.clone(), config()));
    let all: Vec<_> = [first.clone()].into_iter().chain(rest).collect();
    let all = NAMES.iter().zip(all).map(|(name, unifier)| CacheDomain::new(*name, unifier));
    (CacheDomains::new(ARENA as u64, all.collect(), 1), arenas)
}

pub(super) fn open_in(
    domains: &CacheDomains,
    domain: DomainId,
    file: &Arc<DiskFile>,
) -> Arc<CachedFile> {
    let (mark, attr) = (domains.mark(), file.attr_now());
    let handle = Arc::new(Handle(file.clone()));
    domains.open(domain.into(), mark, WriterId(1), handle, &attr, Opening::Existing)
}

fn files(domains: &CacheDomains) -> Vec<u64> {
    domains.iter().map(|domain| domain.stats().files).collect()
}

pub(super) fn add(
    domains: &CacheDomains,
    least: usize,
    make: impl FnOnce() -> CacheDomain,
) -> Option<DomainId> {
    domains.add(least as u64, || Ok::<_, std::convert::Infallible>(make())).expect("made")
}

fn sizes(domains: &CacheDomains) -> Vec<usize> {
    domains.iter().map(|domain| domain.bytes() as usize).collect()
}

pub(super) fn close(disk: &Arc<Disk>, file: &Arc<CachedFile>) {
    let file = file.clone();
    run(disk, async move { file.close(WriterId(1)).await }).expect("closed");
}

/// All of the pages lie in this memory.
pub(super) fn is_in(lease: &PinnedRead, arena: &Arc<Arena>) -> bool {
    let whole = arena.span(0, arena.len());
    lease.spans().iter().all(|span| whole.contains(span))
}

#[test]
fn a_file_is_in_the_domain_by_which_it_was_opened_first_until_nobody_has_it() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; MIB]);
    let (domains, arenas) = domains();
    let cached = open_in(&domains, ONE, &file);
    let user = cached.clone();
    let lease = run(&disk, async move { user.read(0, MIB).await }).expect("read");
    assert!(is_in(&lease, &arenas[1]));
    drop(lease);
    let again = open_in(&domains, DomainId::FIRST, &file);
    assert!(Arc::ptr_eq(&cached, &again), "it is open");
    close(&disk, &again);
    let user = cached.clone();
    run(&disk, async move { write(&user, 10, b"new", 1).await });
    close(&disk, &cached);
    assert_eq!(files(&domains), [0, 1, 0]);
    // Nobody has it open: whoever comes next has it where he comes from, as it is by now.
    let moved = open_in(&domains, DomainId::FIRST, &file);
    assert_eq!(files(&domains), [1, 0, 0]);
    assert_eq!(domains.iter().nth(1).expect("one").stats().resident_bytes, 0);
    let user = moved.clone();
    let lease = run(&disk, async move { user.read(0, 20).await }).expect("read");
    assert!(is_in(&lease, &arenas[0]) && &bytes(&lease)[10..13] == b"new");
    drop(lease);
    close(&disk, &moved);
    let found = domains.find(file.attr_id()).expect("known");
    assert!(Arc::ptr_eq(&found, &moved));
    domains.forget(file.attr_id());
    assert_eq!(files(&domains), [0; 3]);
}

#[test]
fn what_is_not_written_back_yet_stays_in_its_domain() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; MIB]);
    let (domains, _) = domains();
    let cached = open_in(&domains, ONE, &file);
    fill(&cached, 0, PAGE_BYTES, 7);
    // Its close has begun, and waits for the disk.
    let opened = open_in(&domains, OTHER, &file);
    assert!(Arc::ptr_eq(&cached, &opened));
    assert_eq!(files(&domains), [0, 1, 0]);
    let failed = run(&disk, {
        let domains = domains.clone();
        async move { domains.flush_all().await }
    });
    assert!(failed.is_empty() && domains.stats().dirty_bytes == 0);
    assert_eq!(file.state().data[..PAGE_BYTES], [7; PAGE_BYTES]);
}

#[test]
fn a_mark_of_one_domain_is_one_of_all() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 100]);
    let (domains, _) = domains();
    // Asked of the store before the write, looked at after it.
    let (mark, mut attr) = (domains.mark(), file.attr_now());
    let cached = open_in(&domains, OTHER, &file);
    let user = cached.clone();
    run(&disk, async move {
        write(&user, 100, b"longer", 1).await;
        user.flush().await.expect("flushed");
    });
    domains.overlay(mark, &mut attr);
    assert_eq!(attr.size, 106);
}

/// Reads so many bytes of a file, which is open there.
fn read_all(disk: &Arc<Disk>, cached: &Arc<CachedFile>, len: usize) {
    let user = cached.clone();
    run(disk, async move {
        for at in (0..len).step_by(MIB / 4) {
            read(&user, at as u64, MIB / 4).await;
        }
    });
}

#[test]
fn a_domain_grows_by_what_others_leave_and_gives_back_what_is_beyond_its_part() {
    let disk = Disk::new(1, 0);
    let large: Vec<_> = (1..3).map(|inode| disk.file(inode, vec![5; ARENA])).collect();
    let (domains, _) = domains();
    let part = ARENA / 3;
    let frame = 16 * PAGE_BYTES;
    assert!(sizes(&domains).iter().all(|size| part - frame < *size && *size <= part));
    domains.balance();
    let before = sizes(&domains);
    domains.balance();
    assert_eq!(sizes(&domains), before, "nobody needs more");

    let one = open_in(&domains, ONE, &large[0]);
    for _ in 0..40 {
        read_all(&disk, &one, ARENA);
        domains.balance();
        assert!(sizes(&domains).iter().sum::<usize>() <= ARENA);
    }
    let grown = sizes(&domains);
    assert!(grown[1] > ARENA - 3 * MIB, "{grown:?}");
    assert!(grown[0] >= MIB && grown[2] >= MIB, "each keeps what a request needs: {grown:?}");

    let other = open_in(&domains, OTHER, &large[1]);
    for _ in 0..40 {
        read_all(&disk, &one, ARENA);
        read_all(&disk, &other, ARENA);
        domains.balance();
        assert!(sizes(&domains).iter().sum::<usize>() <= ARENA);
    }
    let shared = sizes(&domains);
    let near = |size: usize| size + 2 * frame >= part;
    assert!(near(shared[2]) && near(shared[1]) && shared[0] < 2 * MIB, "{shared:?}");
}

#[test]
fn all_together_become_smaller_and_larger() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; ARENA]);
    let (domains, _) = domains();
    let one = open_in(&domains, ONE, &file);
    read_all(&disk, &one, ARENA);
    let held = {
        let user = one.clone();
        run(&disk, async move { user.read(0, MIB).await }).expect("read")
    };
    let half = domains.resize(ARENA as u64 / 2) as usize;
    assert!(half <= ARENA / 2 && sizes(&domains).iter().sum::<usize>() == half);
    let given_back = domains.stats().decommitted_bytes as usize;
    assert_eq!(given_back, ARENA - half, "and not what the others have");
    let least = domains.resize(0) as usize;
    assert!((3 * MIB..=4 * MIB).contains(&least), "{least}");
    assert_eq!(bytes(&held), vec![5; MIB], "what is held stays");
    drop(held);
    let all = domains.resize(u64::MAX) as usize;
    assert!((ARENA - 3 * 16 * PAGE_BYTES..=ARENA).contains(&all), "{all}");
    assert!(domains.shrinks_to().is_none());
}

/// A file of this domain, open twice, with some of it cached, some dirty, and a reader who holds a page.
#[test]
fn an_open_file_moves_out_with_all_that_is_read_and_written_then() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; MIB]);
    let (domains, arenas) = domains();
    let (cached, other) = (open_in(&domains, ONE, &file), open_in(&domains, ONE, &file));
    let user = cached.clone();
    let held = run(&disk, async move {
        write(&user, 0, &[6; 8192], 1).await;
        let landed = user.reserve(8192, 4096).await.expect("room");
        let held = user.read(0, MIB).await.expect("read");
        (landed, held)
    });
    let (mut reservation, lease) = held;
    let number = cached.number();
    assert_eq!(domains.domain_of(&cached), Some(ONE));
    let (mover, user) = (domains.clone(), cached.clone());
    run(&disk, async move { mover.move_out(&user).await }).expect("moved");
    assert_eq!(domains.domain_of(&other), Some(DomainId::FIRST));
    assert_ne!((number, cached.entries().is_some()), (cached.number(), true));
    assert_eq!(files(&domains), [1, 0, 0]);
    assert!(bytes(&lease)[..8192] == [6; 8192] && bytes(&lease)[8192..] == [5; MIB - 8192]);
    assert!(file.state().data[..8192] == [6; 8192]);
    drop(lease);
    // What was reserved there and what landed since comes along; nothing of it is left.
    land(&mut reservation, &[7; 4096]);
    let (user, reader) = (cached.clone(), other.clone());
    let seen = run(&disk, async move {
        user.commit_write(reservation, writer(1)).await.expect("committed");
        write(&user, MIB as u64, &[8; 100], 1).await;
        reader.read(0, 2 * MIB).await.expect("read")
    });
    assert!(is_in(&seen, &arenas[0]));
    let want = [vec![6; 8192], vec![7; 4096], vec![5; MIB - 12288], vec![8; 100]].concat();
    assert!(bytes(&seen) == want);
    drop(seen);
    let one = domains.iter().nth(1).expect("one").stats();
    assert_eq!((one.resident_bytes, one.dirty_bytes, one.orphan_bytes), (0, 0, 0));
    // Again is nothing, also when it is closed; and then it can be elsewhere.
    let (mover, user) = (domains.clone(), cached.clone());
    run(&disk, async move { mover.move_out(&user).await }).expect("moved");
    close(&disk, &cached);
    close(&disk, &other);
    assert!(file.state().data == want);
    let again = open_in(&domains, OTHER, &file);
    assert_eq!(domains.domain_of(&again), Some(OTHER));
    close(&disk, &again);
}

#[test]
fn what_cannot_be_written_back_does_not_move() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; MIB]);
    let (domains, _) = domains();
    let cached = open_in(&domains, ONE, &file);
    let user = cached.clone();
    run(&disk, async move { write(&user, 0, &[6; 4096], 1).await });
    file.state().write_error = Some(Status::Io);
    let (mover, user) = (domains.clone(), cached.clone());
    assert_eq!(run(&disk, async move { mover.move_out(&user).await }), Err(Status::Io));
    assert_eq!(domains.domain_of(&cached), Some(ONE));
    file.state().write_error = None;
    let (mover, id) = (domains.clone(), cached.id());
    run(&disk, async move { mover.bar(id, DomainSet::default().with(ONE)).await }).expect("moved");
    assert_eq!(domains.domain_of(&cached), Some(DomainId::FIRST));
    assert!(file.state().data[..4096] == [6; 4096]);
}

#[test]
fn a_file_is_kept_from_where_it_is_barred() {
    let disk = Disk::new(1, 0);
    let [file, other] = [1, 2].map(|inode| disk.file(inode, vec![5; MIB]));
    let (domains, _) = domains();
    let barred = DomainSet::default().with(ONE);
    let open = |file: &Arc<DiskFile>, place: Placement| {
        let (mark, attr) = (domains.mark(), file.attr_now());
        let handle = Arc::new(Handle(file.clone()));
        domains.open(place, mark, WriterId(1), handle, &attr, Opening::Existing)
    };
    // Who wishes nothing leaves it where it is, or in the first.
    let cached = open(&file, Placement::default());
    assert_eq!(domains.domain_of(&cached), Some(DomainId::FIRST));
    close(&disk, &cached);
    let cached = open(&file, ONE.into());
    close(&disk, &cached);
    let cached = open(&file, Placement::default());
    assert_eq!(domains.domain_of(&cached), Some(ONE));
    // Somebody has it open: it is to be moved out. Nobody: it is there no more.
    let again = open(&file, Placement { wished: None, barred });
    assert_eq!(domains.domain_of(&again), Some(ONE));
    close(&disk, &again);
    close(&disk, &cached);
    let cached = open(&file, Placement { wished: None, barred });
    assert_eq!(domains.domain_of(&cached), Some(DomainId::FIRST));
    close(&disk, &cached);
    // All of one are moved or forgotten.
    let (open_one, closed) = (open(&file, ONE.into()), open(&other, ONE.into()));
    close(&disk, &closed);
    assert_eq!(files(&domains), [0, 2, 0]);
    let mover = domains.clone();
    run(&disk, async move { mover.bar_below(DIRECTORY, ONE).await }).expect("emptied");
    assert_eq!(files(&domains), [1, 0, 0]);
    close(&disk, &open_one);
}

/// The cache has changed a file since the attributes were asked for that it is opened with.
#[test]
fn a_file_does_not_move_on_word_that_is_old() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 4096]);
    let (domains, _) = domains();
    let cached = open_in(&domains, ONE, &file);
    let (mark, attr) = (domains.mark(), file.attr_now());
    let user = cached.clone();
    run(&disk, async move { write(&user, 4096, &[6; 4096], 1).await });
    close(&disk, &cached);
    let handle = Arc::new(Handle(file.clone()));
    let place = Placement::from(OTHER);
    let again = domains.open(place, mark, WriterId(1), handle, &attr, Opening::Existing);
    assert_eq!((again.size(), domains.domain_of(&again)), (8192, Some(ONE)));
    close(&disk, &again);
}

#[test]
fn one_is_added_with_what_others_leave() {
    let (domains, _) = domains();
    let config = Config { least_bytes: MIB, least_part: 16, ..config(ARENA) };
    let more = || {
        let arena = Arena::new(ARENA).expect("arena");
        CacheDomain::new("more", domains.first().beside(arena, config.clone()))
    };
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; MIB]);
    let cached = open_in(&domains, ONE, &file);
    let unused = || unreachable!("it is not made");
    assert_eq!(add(&domains, ARENA, unused), None, "others keep what they always have");
    let stats = domains.stats();
    close(&disk, &cached);
    assert_eq!(domains.stats().evicted_bytes, stats.evicted_bytes);
    let least = Unifier::least_bytes_of(&config, ARENA) as usize;
    assert_eq!(add(&domains, least, more), Some(DomainId(3)));
    assert_eq!(sizes(&domains).iter().sum::<usize>(), ARENA);
    assert_eq!(sizes(&domains)[3], least);
    assert_eq!(add(&domains, least, unused), None, "there are as many as were to be");
    let cached = open_in(&domains, DomainId(3), &file);
    assert_eq!(files(&domains), [0, 0, 0, 1]);
    close(&disk, &cached);
}

/// Who may read the memory finds what is cached in it, and nothing that was, whether it was dropped, replaced, evicted
/// or moved.
#[test]
fn what_is_not_cached_any_more_is_erased() {
    let disk = Disk::new(1, 0);
    let [file, other] = [5, 6].map(|byte| disk.file(u64::from(byte), vec![byte; 2 * MIB]));
    let arenas: Vec<_> = (0..2).map(|_| Arena::new(4 * MIB).expect("arena")).collect();
    let config = |erases| Config { least_bytes: MIB, erases, ..config(4 * MIB) };
    let first = Unifier::new(arenas[0].clone(), config(false), VERIFIER);
    let second = first.beside(arenas[1].clone(), config(true));
    let all = vec![CacheDomain::new("first", first), CacheDomain::new("second", second)];
    let domains = CacheDomains::new(4 * MIB as u64, all, 0);
    let pages_of = |mark: u8| {
        let page = |at: usize| arenas[1].span(at * PAGE_BYTES, PAGE_BYTES);
        let mut bytes = Vec::new();
        let is_of = |at: &usize| {
            page(*at).read_message(PAGE_BYTES, &mut bytes);
            bytes == [mark; PAGE_BYTES]
        };
        (0..4 * MIB / PAGE_BYTES).filter(is_of).count()
    };
    let (cached, user) = (open_in(&domains, ONE, &file), open_in(&domains, ONE, &other));
    let reader = cached.clone();
    run(&disk, async move { reader.read(0, MIB / 4).await.map(drop) }).expect("read");
    let there = pages_of(5);
    assert!(there >= MIB / 4 / PAGE_BYTES);
    let writer = cached.clone();
    run(&disk, async move { write(&writer, 0, &[7; 65_536], 1).await });
    assert_eq!((pages_of(5), pages_of(7)), (there - 16, 16));
    cached.drop_clean(65_536, 65_536);
    assert_eq!(pages_of(5), there - 32);
    // More than there is room for.
    let reader = user.clone();
    for at in (0..2 * MIB as u64).step_by(MIB / 4) {
        let reader = reader.clone();
        run(&disk, async move { reader.read(at, MIB / 4).await.map(drop) }).expect("read");
    }
    let (left, cached_now) = (pages_of(5), cached.query(0, 0, 1000).info.clean_bytes);
    assert!(left < there - 32 && left * PAGE_BYTES <= cached_now as usize, "{left}, {cached_now}");
    let (mover, moved) = (domains.clone(), cached.clone());
    run(&disk, async move { mover.move_out(&moved).await }).expect("moved");
    assert_eq!((pages_of(5), pages_of(7)), (0, 0));
    close(&disk, &user);
    domains.forget(other.attr_id());
    assert_eq!(pages_of(6), 0);
    close(&disk, &cached);
}
