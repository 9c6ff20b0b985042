//! Files that move between cache domains, beside what else goes on.

use std::time::Duration;

use dafs_protocol::Status;
use dafs_store::FileId;

use super::disk::{Disk, Task, run};
use super::domains::{DIRECTORY, ONE, add, close, domains, is_in, open_in};
use super::*;
use crate::{CacheDomain, CacheDomains, DomainId};

const BLOCK: usize = 4096;

/// A file in a domain with something to be written back, and one with nothing of that.
fn with_dirty(disk: &Arc<Disk>, domains: &CacheDomains, dirty: u64) -> [Arc<CachedFile>; 2] {
    [1, 2].map(|inode| {
        let file = disk.file(inode, vec![5; BLOCK]);
        let cached = open_in(domains, ONE, &file);
        if inode == dirty {
            fill(&cached, 0, BLOCK, 6);
            file.state().write_error = Some(Status::Io);
        }
        cached
    })
}

/// Whichever of them it is, and the others go.
#[test]
fn a_domain_that_is_not_emptied_tells_of_it() {
    for dirty in [1, 2] {
        let disk = Disk::new(1, 0);
        let (domains, _) = domains();
        let files = with_dirty(&disk, &domains, dirty);
        let mover = domains.clone();
        let outcome = run(&disk, async move { mover.bar_below(DIRECTORY, ONE).await });
        assert_eq!(outcome, Err(Status::Io), "{dirty}");
        for (file, inode) in files.iter().zip(1..) {
            let want = if inode == dirty { ONE } else { DomainId::FIRST };
            assert_eq!(domains.domain_of(file), Some(want), "{dirty}");
        }
    }
}

/// What everybody may open all the same stays, and is no matter of who takes another directory from others.
#[test]
fn what_everybody_may_open_stays_in_a_domain_that_is_emptied() {
    let disk = Disk::new(1, 0);
    let (domains, _) = domains();
    let [dirty, other] = with_dirty(&disk, &domains, 1);
    let file = disk.file(3, vec![5; BLOCK]);
    file.state().for_everybody = true;
    let cached = open_in(&domains, ONE, &file);
    fill(&cached, 0, BLOCK, 6);
    file.state().write_error = Some(Status::NoSpc);
    let mover = domains.clone();
    let outcome = run(&disk, async move { mover.bar_below(DIRECTORY, ONE).await });
    assert_eq!(outcome, Err(Status::Io), "not that of the file which may stay");
    let places = [dirty, other, cached].map(|file| domains.domain_of(&file));
    assert_eq!(places, [Some(ONE), Some(DomainId::FIRST), Some(ONE)]);
}

/// Who waited for room where the file was gets none of it there: others may map what comes.
#[test]
fn who_waits_for_room_has_it_where_the_file_is_by_then() {
    let disk = Disk::new(1, 0);
    let [file, other] = [1, 2].map(|inode| disk.file(inode, vec![5; BLOCK]));
    for pieces in [0, 1, 2] {
        let (domains, arenas) = domains();
        let (cached, crowd) = (open_in(&domains, ONE, &file), open_in(&domains, ONE, &other));
        let held: Vec<_> = std::iter::from_fn(|| crowd.try_reserve(0, BLOCK)).collect();
        let user = cached.clone();
        let mut waiter = Task::new(async move {
            match pieces {
                0 => vec![user.reserve_append(BLOCK).await.expect("room")],
                1 => vec![user.reserve(0, BLOCK).await.expect("room")],
                _ => {
                    let pieces = [(0, BLOCK), (2 * BLOCK as u64, BLOCK)];
                    user.reserve_all(&pieces).await.expect("room")
                }
            }
        });
        assert!(waiter.poll().is_none(), "there is no room");
        let (mover, moved) = (domains.clone(), cached.clone());
        run(&disk, async move { mover.move_out(&moved).await }).expect("moved");
        drop(held);
        let got = waiter.poll().expect("there is room");
        let whole = arenas[0].span(0, arenas[0].len());
        let is_first = |span: &dafs_fabric::Span| whole.contains(span);
        assert!(got.iter().all(|got| got.spans().iter().all(is_first)), "{pieces}");
        drop(got);
        let left = domains.iter().nth(1).expect("one").stats();
        assert_eq!(left.dirty_bytes, 0);
        let user = cached.clone();
        let lease = run(&disk, async move { user.read(0, BLOCK).await }).expect("read");
        assert!(is_in(&lease, &arenas[0]));
        drop(lease);
        close(&disk, &cached);
        close(&disk, &crowd);
    }
}

/// Also one that is opened while there comes to be a second domain.
#[test]
fn a_file_is_in_one_domain_when_one_more_is_added() {
    const ARENA: usize = 64 << 10;
    for _ in 0..10 {
        let disk = Disk::new(1, 0);
        let file = disk.file(1, vec![5; BLOCK]);
        file.state().unwritten_takes = Duration::from_millis(5);
        let arenas = [0; 2].map(|_| Arena::new(ARENA).expect("arena"));
        let config = || Config { least_bytes: ARENA / 4, ..config(ARENA) };
        let [first, second] = arenas;
        let first = Unifier::new(first, config(), VERIFIER);
        let more = CacheDomain::new("more", first.beside(second, config()));
        let all = vec![CacheDomain::new("first", first)];
        let domains = CacheDomains::new(ARENA as u64, all, 1);
        let start = std::sync::Barrier::new(2);
        let files = std::thread::scope(|scope| {
            let one = scope.spawn(|| {
                start.wait();
                open_in(&domains, DomainId::FIRST, &file)
            });
            start.wait();
            let added = add(&domains, 0, || more).expect("room");
            let other = open_in(&domains, added, &file);
            [one.join().expect("opened"), other]
        });
        assert!(Arc::ptr_eq(&files[0], &files[1]));
        assert_eq!(domains.stats().files, 1);
        files.iter().for_each(|file| close(&disk, file));
    }
}

/// Of closed files those go to which the way leads through the directory, or is not known.
#[test]
fn a_directory_takes_along_what_is_below() {
    let disk = Disk::new(1, 0);
    let (domains, _) = domains();
    let ways = [None, Some(vec![1, 7]), Some(vec![1, 8]), Some(vec![1, 7, 9])];
    let files = (10..).zip(ways).map(|(inode, way)| {
        let file = disk.file(inode, vec![5; BLOCK]);
        let cached = open_in(&domains, ONE, &file);
        cached.note_ancestors(way.map(Into::into));
        close(&disk, &cached);
        file
    });
    let files: Vec<_> = files.collect();
    let there =
        || files.iter().map(|file| domains.find(file.attr_id()).is_some()).collect::<Vec<_>>();
    for (dir, left) in [
        (FileId { device: 2, inode: 7 }, [false, true, true, true]),
        (FileId { device: 1, inode: 7 }, [false, false, true, false]),
        (DIRECTORY, [false; 4]),
    ] {
        let mover = domains.clone();
        run(&disk, async move { mover.bar_below(dir, ONE).await }).expect("barred");
        assert_eq!(there(), left, "{dir:?}");
    }
}
