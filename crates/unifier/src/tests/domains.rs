//! Cache domains: a file is in one at a time, and all of them have one bound.

use dafs_fabric::mem::PAGE_BYTES;

use super::disk::{Disk, run};
use super::*;
use crate::{CacheDomain, CacheDomains, DomainId};

const MIB: usize = 1 << 20;
const ARENA: usize = 16 * MIB;
const NAMES: [&str; 3] = ["private", "one", "other"];
const ONE: DomainId = DomainId(1);
const OTHER: DomainId = DomainId(2);

/// Three domains, each of which keeps 1 MiB always; and their memory.
fn domains() -> (Arc<CacheDomains>, Vec<Arc<Arena>>) {
    let config = || Config { least_bytes: MIB, least_part: 16, ..config(ARENA) };
    let arenas: Vec<_> = NAMES.iter().map(|_| Arena::new(ARENA).expect("arena")).collect();
    let first = Unifier::new(arenas[0].clone(), config(), VERIFIER);
    let rest = arenas[1..].iter().map(|arena| first.beside(arena.clone(), config()));
    let all: Vec<_> = [first.clone()].into_iter().chain(rest).collect();
    let all = NAMES.iter().zip(all).map(|(name, unifier)| CacheDomain::new(*name, unifier));
    (CacheDomains::new(ARENA as u64, all.collect()), arenas)
}

fn open_in(domains: &CacheDomains, domain: DomainId, file: &Arc<DiskFile>) -> Arc<CachedFile> {
    let (mark, attr) = (domains.mark(), file.attr_now());
    let handle = Arc::new(Handle(file.clone()));
    domains.open(domain, mark, WriterId(1), handle, &attr, Opening::Existing)
}

fn files(domains: &CacheDomains) -> Vec<u64> {
    domains.iter().map(|domain| domain.stats().files).collect()
}

fn sizes(domains: &CacheDomains) -> Vec<usize> {
    domains.iter().map(|domain| domain.bytes() as usize).collect()
}

fn close(disk: &Arc<Disk>, file: &Arc<CachedFile>) {
    let file = file.clone();
    run(disk, async move { file.close(WriterId(1)).await }).expect("closed");
}

/// All of the pages lie in this memory.
fn is_in(lease: &PinnedRead, arena: &Arc<Arena>) -> bool {
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
