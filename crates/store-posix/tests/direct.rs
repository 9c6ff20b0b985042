//! Direct transfers of the store over a directory: what is direct, what is not, and that both
//! agree.

#[macro_use]
#[path = "../../store/tests/suite/mod.rs"]
mod suite;
mod trace;

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_fabric::{Buffer, SgList};
use dafs_store::Disk;
use dafs_store::File;
use dafs_store_posix::{HandleKey, OpenStoreError, PosixOptions, PosixStore, ThreadRing};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use suite::{Fs, MAKE, READ, read, write};
use trace::{Rng, Step, begin_write, read_all};

/// A store that is direct, in a directory of its own.
struct World {
    store: Arc<PosixStore>,
    dir: tempfile::TempDir,
}

fn world() -> Option<World> {
    let dir = tempfile::tempdir().expect("directory");
    let key = Some(HandleKey([7; 16]));
    let options = PosixOptions { disk: Disk::Direct, key, ..PosixOptions::default() };
    match PosixStore::open(dir.path(), options) {
        Ok(store) => Some(World { store, dir }),
        Err(OpenStoreError::NotDirect { reason, .. }) => {
            eprintln!("skipped: no direct I/O here: {reason}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

const LARGE: u64 = 256 << 10;

fn file(world: &World, name: &str, size: u64) -> Arc<dyn File> {
    let file = Fs::new(&*world.store).open(name, MAKE).expect("open").file;
    let (_memory, written) = begin_write(&*file, 0, size, 1);
    written.wait().expect("written");
    file
}

#[test]
fn whole_blocks_of_large_files_are_direct() {
    let Some(world) = world() else { return };
    let _ring = ThreadRing::open().expect("a ring");
    let direct = || world.store.direct_transfers();
    let large = file(&world, "large", LARGE);
    assert_eq!(direct(), 1);
    assert_eq!(read(&*large, 8192, 65_536).expect("read"), vec![1; 65_536]);
    assert_eq!(direct(), 2);
    write(&*large, LARGE, &[2; 4096]).expect("it grows by a block");
    assert_eq!(direct(), 3);
    // Parts of blocks, what the end of the file cuts, and small files are not.
    write(&*large, 100, b"part").expect("write");
    write(&*large, LARGE + 4096, b"tail").expect("write");
    assert_eq!(read(&*large, LARGE + 4096, 4096).expect("read"), b"tail");
    assert_eq!(read(&*large, LARGE, 8192).expect("read").len(), 4100);
    assert_eq!(read(&*large, 100, 4).expect("read"), b"part");
    let small = file(&world, "small", 64 << 10);
    assert_eq!(read(&*small, 0, 4096).expect("read"), vec![1; 4096]);
    assert_eq!(direct(), 3);
    let expected = [vec![1; 100], b"part".to_vec(), vec![1; LARGE as usize - 104], vec![2; 4096]];
    let bytes = std::fs::read(world.dir.path().join("large")).expect("file");
    assert!(bytes == [expected.concat(), b"tail".to_vec()].concat());
}

#[test]
fn more_is_begun_than_a_ring_holds() {
    let Some(world) = world() else { return };
    let ring = ThreadRing::open().expect("a ring");
    assert!(ThreadRing::open().is_err(), "a thread has one");
    let file = file(&world, "f", 4096 * 1500);
    let writes: Vec<_> = (0..1500).map(|i| begin_write(&*file, i * 4096, 4096, i as u8)).collect();
    assert!(ring.poll(), "something is handed over");
    for (_memory, mut answer) in writes {
        // By looking, as a worker does.
        while answer.try_take().is_none() {
            ring.poll();
        }
    }
    // The ring ends with its transfers: who waits is told.
    let buffers = Buffer::many(1500, 4096).expect("buffers");
    let posted: Vec<_> = buffers.into_iter().map(Buffer::post).collect();
    let reads = posted.iter().enumerate().map(|(i, memory)| {
        file.read_at(i as u64 * 4096, SgList::from_iter([memory.span().clone()]))
    });
    let reads: Vec<_> = reads.collect();
    drop(ring);
    assert!(reads.into_iter().all(|mut read| read.try_take() == Some(Ok(4096))));
    for (i, memory) in posted.into_iter().enumerate() {
        let buffer = memory.take_back().expect("the store is done with it");
        assert!(buffer.iter().all(|byte| *byte == i as u8), "block {i}");
    }
}

#[test]
fn scattered_memory_is_one_transfer() {
    let Some(world) = world() else { return };
    let _ring = ThreadRing::open().expect("a ring");
    let file = file(&world, "f", LARGE);
    let mut buffers = Buffer::many(64, 4096).expect("buffers");
    for (i, buffer) in buffers.iter_mut().enumerate() {
        buffer.fill(i as u8);
    }
    let mut posted: Vec<_> = buffers.into_iter().map(Buffer::post).collect();
    // Backwards, so that none follows another.
    posted.reverse();
    let before = world.store.direct_transfers();
    let list = || posted.iter().map(|memory| memory.span().clone()).collect::<SgList>();
    file.write_at(0, list(), false).wait().expect("written");
    assert_eq!(file.read_at(0, list()).wait(), Ok(LARGE as usize));
    assert_eq!(world.store.direct_transfers(), before + 2);
    let bytes = std::fs::read(world.dir.path().join("f")).expect("file");
    assert!(bytes.chunks(4096).zip((0..64u8).rev()).all(|(block, i)| block == [i; 4096]));
}

#[test]
fn a_sleeper_is_woken_by_what_ended() {
    let Some(world) = world() else { return };
    for round in 0..20 {
        let ring = ThreadRing::open().expect("a ring");
        let file = file(&world, &format!("f{round}"), LARGE);
        let (_memory, mut answer) = begin_write(&*file, 0, LARGE, 2);
        let ended = loop {
            ring.poll();
            if let Some(ended) = answer.try_take() {
                break ended;
            }
            if ring.prepare_sleep() {
                let event = PollFd::new(ring.event(), PollFlags::POLLIN);
                assert_eq!(poll(&mut [event], PollTimeout::NONE), Ok(1));
            }
            ring.awake();
        };
        assert_eq!(ended, Ok(()));
    }
}

/// Random steps by the store and by a program of this host: all see the same, always.
#[test]
fn direct_and_buffered_agree() {
    let Some(world) = world() else { return };
    let path = world.dir.path().join("f");
    for seed in 1..4 {
        // With a ring and, at last, in the pool.
        let _ring = (seed < 3).then(|| ThreadRing::open().expect("a ring"));
        let file = file(&world, "f", LARGE);
        file.truncate(0, false).wait().expect("truncated");
        let (mut model, mut rng) = (Vec::new(), Rng(seed * 0x9e37_79b9));
        for number in 0..400 {
            let step = Step::random(&mut rng, model.len() as u64);
            step.change(&mut model);
            step.act(&file, &path);
            let size = std::fs::metadata(&path).expect("file").len();
            assert_eq!(size, model.len() as u64, "seed {seed}, {number}: {step:?}");
            if number % 3 == 0 {
                assert!(read_all(&*file) == model, "seed {seed}, {number}: {step:?}");
            }
            if number % 4 == 0 {
                let local = std::fs::read(&path).expect("read");
                assert!(local == model, "seed {seed}, {number}, local: {step:?}");
            }
        }
        assert!(world.store.direct_transfers() > 400, "{}", world.store.direct_transfers());
    }
}

/// The end of a file is in the page cache, dirty; then the file grows and the same block is
/// written directly.
#[test]
fn a_tail_becomes_a_block() {
    let Some(world) = world() else { return };
    let _ring = ThreadRing::open().expect("a ring");
    let path = world.dir.path().join("f");
    let file = file(&world, "f", LARGE);
    for round in 0..100u64 {
        let start = LARGE + round * 4096;
        write(&*file, start, &[7; 1000]).expect("a tail");
        let (_memory, written) = begin_write(&*file, start, 4096, round as u8);
        written.wait().expect("a block");
        let mut block = [0; 4096];
        let local = std::fs::File::open(&path).expect("open");
        assert_eq!(local.read_at(&mut block, start).expect("read"), 4096);
        assert!(block == [round as u8; 4096], "round {round}");
        assert_eq!(read(&*file, start, 4096).expect("read"), block);
    }
}

/// A program of this host reads all the time, and so brings blocks back into the page cache while
/// they are written directly.
#[test]
fn a_local_reader_sees_what_was_written() {
    let Some(world) = world() else { return };
    let _ring = ThreadRing::open().expect("a ring");
    let path = world.dir.path().join("f");
    let file = file(&world, "f", LARGE);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::fs::read(&path).expect("read");
            }
        });
        let local = std::fs::File::open(&path).expect("open");
        for round in 0..300u64 {
            let at = round % 64 * 4096;
            let (_memory, written) = begin_write(&*file, at, 4096, round as u8);
            written.wait().expect("written");
            let mut block = [0; 4096];
            local.read_exact_at(&mut block, at).expect("read");
            if block != [round as u8; 4096] {
                stop.store(true, Ordering::Relaxed);
                panic!("round {round}: the page cache is older than the disk");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
fn memory_has_no_direct_transfers() {
    let Ok(dir) = tempfile::tempdir_in("/dev/shm") else { return };
    let options = |disk| PosixOptions { disk, key: Some(HandleKey([7; 16])), ..Default::default() };
    let refused = PosixStore::open(dir.path(), options(Disk::Direct));
    let text = refused.expect_err("no direct I/O").to_string();
    assert!(text.contains("memory") && text.contains("--disk auto"), "{text}");
    let store = PosixStore::open(dir.path(), options(Disk::Auto)).expect("opens");
    assert!(!store.is_direct());
    let fs = Fs::new(&*store);
    fs.file("f", &[1; 1 << 20]);
    assert_eq!(read(&*fs.open("f", READ).expect("open").file, 0, 4096), Ok(vec![1; 4096]));
}
