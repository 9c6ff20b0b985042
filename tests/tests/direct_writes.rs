//! Direct writes beside who reads the same file through the kernel's cache of the same mount.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dafs_tests::sys::{Aligned, Asynchronous};
use dafs_tests::{FreshDir, Served, mounted::Mount};

const BYTES: usize = 640 << 10;
const WRITES: u8 = 60;

/// What a call asked for, synchronously or not, is what everybody reads when it is done.
#[test]
fn a_direct_write_is_seen_by_cached_readers_when_it_is_done() {
    let dir = FreshDir::new();
    let exported = dir.path().join("served");
    fs::create_dir(&exported).expect("mkdir");
    let served = Served::start(&exported, &[]);
    let at = dir.path().join("mounted");
    let mut mount = match Mount::start(&served.at(""), &at, "", Duration::from_secs(120)) {
        Ok(mount) => mount,
        Err(why) => return println!("{why}"),
    };
    let path = at.join("f");
    fs::write(&path, vec![0; BYTES]).expect("write");
    let direct = File::options().write(true).custom_flags(libc::O_DIRECT).open(&path);
    let (direct, open) = (direct.expect("open"), File::open(&path).expect("open"));
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let (path, stop) = (&path, &stop);
            scope.spawn(move || {
                let (file, mut into) = (File::open(path).expect("open"), vec![0; BYTES]);
                while !stop.load(Ordering::Relaxed) {
                    file.read_exact_at(&mut into, 0).expect("read");
                }
            });
        }
        let mut asynchronous = Asynchronous::new().expect("a context");
        let mut old = 0;
        for number in 1..=WRITES {
            let data = Aligned::of(&vec![number; BYTES]);
            if number % 2 == 0 {
                direct.write_all_at(data.bytes(), 0).expect("write");
            } else {
                let mut call = asynchronous.write(&direct, 0, data).expect("submit");
                assert_eq!(call.wait().expect("written"), BYTES);
            }
            let mut read = vec![0; BYTES];
            open.read_exact_at(&mut read, 0).expect("read");
            old += usize::from(read.iter().any(|byte| *byte != number));
        }
        stop.store(true, Ordering::Relaxed);
        assert_eq!(old, 0, "of {WRITES} reads");
    });
    drop((direct, open));
    mount.unmount().expect("unmount");
}

/// A descriptor that becomes one for appends writes through the cache all the same.
#[test]
fn a_cached_file_is_appended_to_after_fcntl() {
    let dir = FreshDir::new();
    let exported = dir.path().join("served");
    fs::create_dir(&exported).expect("mkdir");
    let served = Served::start(&exported, &[]);
    let at = dir.path().join("mounted");
    let mut mount = match Mount::start(&served.at(""), &at, "", Duration::from_secs(60)) {
        Ok(mount) => mount,
        Err(why) => return println!("{why}"),
    };
    let path = at.join("f");
    fs::write(&path, b"0123456789").expect("write");
    let (mut file, reader) =
        (File::options().write(true).open(&path).expect("open"), File::open(&path));
    let flags = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_APPEND);
    nix::fcntl::fcntl(&file, flags).expect("fcntl");
    std::io::Write::write_all(&mut file, b"abc").expect("write");
    assert_eq!(std::io::read_to_string(reader.expect("open")).expect("read"), "0123456789abc");
    drop(file);
    assert_eq!(fs::read(exported.join("f")).expect("read"), b"0123456789abc");
    mount.unmount().expect("unmount");
}
