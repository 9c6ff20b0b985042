//! faults: the disk below the server fails: it is full, its device fails, a block of it cannot be
//! read, a quota is used up. Who wrote is told what is wrong, once, and nothing else is harmed.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use dafs_client::{Call, File, OpenOptions, Session};
use dafs_fabric::Buffer;
use dafs_protocol::{Extent, Status};
use dafs_tests::Served;
use dafs_tests::client::session;
use dafs_tests::fresh::FreshDir;
use dafs_tests::tree::pattern;

use crate::faulty::{Ballast, Checked, Mortal, Thin, tool};
use crate::{Line, Mode};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// None of this takes a tenth of it: beyond, something waits for ever.
const HANG: Duration = Duration::from_secs(200);

type Outcome<T = ()> = Result<T, String>;
type Scenario = fn(&[&str]) -> Outcome<String>;

const SCENARIOS: &[(&str, Scenario)] = &[
    ("a full disk", full),
    ("a full disk, and more than the cache holds", starving),
    ("a device without space", thin),
    ("a device that fails all writes", dead),
    ("a block that cannot be read", unreadable),
    ("a quota", quota),
];

const WAYS: &[&[&str]] =
    &[&["--disk", "buffered"], &["--disk", "direct"], &["--datapath", "normal"]];

pub(crate) fn faults(_: Mode) -> Vec<Line> {
    let mut lines = Vec::new();
    for (what, scenario) in SCENARIOS {
        for way in WAYS {
            let line =
                Line::new("faults", &format!("{what}, {}", way.join(" ")), "told, no harm done");
            lines.push(match nix::unistd::geteuid().is_root() {
                true => line.result(within(*scenario, way)),
                false => line.skipped("needs root"),
            });
        }
    }
    lines
}

/// As a thread of its own, so that a hang is told.
fn within(scenario: Scenario, way: &'static [&str]) -> Outcome<String> {
    let (sender, receiver) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        let _ = sender.send(scenario(way));
    });
    match receiver.recv_timeout(HANG) {
        Ok(outcome) => outcome,
        Err(mpsc::RecvTimeoutError::Timeout) => Err("hangs".into()),
        Err(mpsc::RecvTimeoutError::Disconnected) => match worker.join() {
            Ok(()) => Err("no answer".into()),
            Err(panic) => Err(format!("stopped: {:?}", panic.downcast_ref::<String>())),
        },
    }
}

/// A server of the faulty directory as `bad`, and of another one as `good`.
struct World {
    server: Served,
    good: tempfile::TempDir,
}

impl World {
    fn new(bad: &Path, args: &[&str]) -> Outcome<World> {
        let good = tempfile::tempdir().expect("tempdir");
        if args.contains(&"direct") {
            dafs_tests::machine::direct_io(good.path())?;
        }
        let exports = [format!("bad={}", bad.display()), format!("good={}", good.path().display())];
        let exports = ["--export", &exports[0], "--export", &exports[1]];
        let server = Served::start(bad, &[args, &exports].concat());
        Ok(World { server, good })
    }

    fn session(&self) -> Session {
        session(&self.server.url)
    }

    /// Another client and another export are as well as ever.
    fn others_are_well(&self, name: &str) -> Outcome {
        let (session, data) = (self.session(), pattern(9, 12 << 20));
        let path = format!("good/{name}");
        let file = make(&session, &path)?;
        write(&file, &data, 0).and_then(|()| ok("commit elsewhere", file.commit()))?;
        expect_bytes(&file, &data, &path)?;
        ok("close elsewhere", file.close())?;
        same(&self.good.path().join(name), &data)
    }
}

fn ok<T>(what: &str, result: dafs_client::Result<T>) -> Outcome<T> {
    result.map_err(|error| format!("{what}: {error}"))
}

/// Fails with this.
fn refused<T>(what: &str, result: dafs_client::Result<T>, status: Status) -> Outcome {
    match result {
        Ok(_) => Err(format!("{what}: no error")),
        Err(error) if error.status() == Some(status) => Ok(()),
        Err(error) => Err(format!("{what}: {error}, not {status}")),
    }
}

fn open(session: &Session, path: &str) -> Outcome<File> {
    let options = OpenOptions { write: true, ..OpenOptions::read() };
    ok(path, session.open(path.as_bytes(), options))
}

fn make(session: &Session, path: &str) -> Outcome<File> {
    let options = OpenOptions { write: true, create: true, ..OpenOptions::read() };
    ok(path, session.open(path.as_bytes(), options))
}

fn write(file: &File, data: &[u8], offset: u64) -> Outcome {
    ok("write", file.write_at(data, offset)).map(drop)
}

/// A new file, on disk.
fn put(session: &Session, path: &str, data: &[u8]) -> Outcome<File> {
    let file = make(session, path)?;
    write(&file, data, 0)?;
    ok(path, file.commit())?;
    Ok(file)
}

fn expect_bytes(file: &File, data: &[u8], what: &str) -> Outcome {
    let mut found = vec![0; data.len()];
    let bytes = ok(what, file.read_at(&mut found, 0))?;
    if bytes == data.len() && found == data { Ok(()) } else { Err(format!("{what}: other bytes")) }
}

/// What local programs see.
fn same(path: &Path, data: &[u8]) -> Outcome {
    let found = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let wrong = found.iter().zip(data).position(|(found, data)| found != data);
    match wrong {
        None if found.len() == data.len() => Ok(()),
        None => Err(format!("{} has {} bytes, not {}", path.display(), found.len(), data.len())),
        Some(at) => Err(format!("{} is wrong from byte {at} on", path.display())),
    }
}

/// At least so many of these bytes, and no others: a part of what was refused may be there.
fn has(path: &Path, data: &[u8], least: usize) -> Outcome {
    let found = std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let right = found.len() >= least && data.starts_with(&found);
    let wrong = || format!("{} has {} bytes, of {least}", path.display(), found.len());
    if right { Ok(()) } else { Err(wrong()) }
}

/// Writes until there is an error, which must be this one. Bytes that were acknowledged, and the
/// call that told it.
fn write_until(file: &File, data: &[u8], status: Status) -> Outcome<(usize, &'static str)> {
    for (index, piece) in data.chunks(MIB as usize).enumerate() {
        let at = index * MIB as usize;
        match file.write_at(piece, at as u64) {
            Ok(_) => {}
            Err(error) if error.status() == Some(status) => return Ok((at, "write")),
            Err(error) => return Err(format!("write: {error}, not {status}")),
        }
    }
    refused("commit", file.commit(), status).map(|()| (data.len(), "commit"))
}

/// With space again: an error that was on its way, then none.
fn commit_again(file: &File, status: Status) -> Outcome {
    file.commit()
        .or_else(|error| match error.status() == Some(status) {
            true => file.commit(),
            false => Err(error),
        })
        .map_err(|error| format!("commit with space again: {error}"))
}

fn small() -> Outcome<FreshDir> {
    let dir = FreshDir::sized(48 * MIB);
    dafs_tests::machine::loop_devices()?;
    if dir.is_mounted() { Ok(dir) } else { Err("no ext4 in an image".into()) }
}

fn full(args: &[&str]) -> Outcome<String> {
    let dir = small()?;
    let mut world = World::new(dir.path(), &[args, &["--arena", "64m"]].concat())?;
    let (writer, other, gone) = (world.session(), world.session(), world.session());
    let data = pattern(1, 24 * MIB as usize);
    let kept = put(&writer, "bad/kept", &data[..MIB as usize])?;
    let over = put(&other, "bad/over", &data[..MIB as usize])?;
    let big = put(&writer, "bad/big", &data[..BLOCK])?;
    let ballast = Ballast::all_but(dir.path(), 6 * MIB)?;
    let (bytes, call) = write_until(&big, &data, Status::NoSpc)?;
    // Space that it has: other blocks of an old file, by another client.
    let new = pattern(2, MIB as usize);
    write(&over, &new, 0)?;
    ok("commit of another file", over.commit())?;
    expect_bytes(&kept, &data[..MIB as usize], "what was there")?;
    expect_bytes(&open(&other, "bad/big")?, &data[..bytes], "what was acknowledged")?;
    // A client that goes away with what cannot be written.
    let left = make(&gone, "bad/left");
    if let Ok(left) = &left {
        let _ = left.write_at(&data[..2 << 20], 0);
    }
    drop((left, gone));
    world.others_are_well("during")?;
    ok("listing", other.stat(b"bad/big"))?;
    drop(ballast);
    commit_again(&big, Status::NoSpc)?;
    has(&dir.path().join("big"), &data, bytes)?;
    ok("close", big.close())?;
    put(&other, "bad/after", &new)?;
    same(&dir.path().join("over"), &new)?;
    same(&dir.path().join("kept"), &data[..MIB as usize])?;
    drop((writer, other, kept, over));
    world.server.stop_with_losses();
    Ok(format!("ENOSPC at {call}, all {bytes} bytes with space again"))
}

fn starving(args: &[&str]) -> Outcome<String> {
    let dir = small()?;
    let state = dir.path().join("state").display().to_string();
    let args = [args, &["--arena", "16m", "--state", &state]].concat();
    let mut world = World::new(dir.path(), &args)?;
    let (writer, other) = (world.session(), world.session());
    let data = pattern(1, 64 * MIB as usize);
    let kept = put(&writer, "bad/kept", &data[..MIB as usize])?;
    let big = put(&writer, "bad/big", &data[..BLOCK])?;
    let ballast = Ballast::all_but(dir.path(), 0)?;
    let errors = std::thread::scope(|scope| {
        let writing = scope.spawn(|| -> Outcome<usize> {
            let mut errors = 0;
            for (index, piece) in data.chunks(MIB as usize).enumerate() {
                match big.write_at(piece, index as u64 * MIB) {
                    Ok(_) => {}
                    Err(error) if error.status() == Some(Status::NoSpc) => errors += 1,
                    Err(error) => return Err(format!("write: {error}")),
                }
            }
            Ok(errors)
        });
        let well = (0..3).try_for_each(|round| world.others_are_well(&format!("round-{round}")));
        expect_bytes(&kept, &data[..MIB as usize], "what was there")?;
        let errors = writing.join().map_err(|_| "the writer stopped")?;
        well.and(errors)
    })?;
    if errors == 0 {
        return Err("64 MiB were written to a full disk".into());
    }
    // Of which some may be told by the close.
    let closed = big.close();
    if let Err(error) = closed
        && error.status() != Some(Status::NoSpc)
    {
        return Err(format!("close: {error}"));
    }
    let on_disk = std::fs::metadata(dir.path().join("big")).map_err(|error| error.to_string())?;
    let seen = ok("stat", other.stat(b"bad/big"))?.size;
    let again = open(&other, "bad/big")?;
    let opened = again.opened_attr().size;
    if seen != on_disk.len() || opened != seen {
        return Err(format!("{seen} and {opened} bytes seen of {}", on_disk.len()));
    }
    drop((writer, other, kept, again));
    // The disk is still full.
    world.server.stop_with_losses();
    world.server.restart();
    let session = world.session();
    expect_bytes(&open(&session, "bad/kept")?, &data[..MIB as usize], "after a restart")?;
    ok("removal", session.remove(b"bad/big"))?;
    drop(ballast);
    put(&session, "bad/after", &data[..8 << 20])?;
    drop(session);
    world.server.stop_with_losses();
    Ok(format!("ENOSPC {errors} times, others wrote 36 MiB"))
}

fn thin(args: &[&str]) -> Outcome<String> {
    let disk = Thin::new()?;
    let dir = disk.mounted.path().to_path_buf();
    // Without blocks below them.
    for name in ["holes", "more"] {
        let path = dir.join(name);
        tool("fallocate", &["-l", "8M"], &[&path])?;
    }
    let mut world = World::new(&dir, args)?;
    let (one, two, three) = (world.session(), world.session(), world.session());
    let data = pattern(1, 2 * MIB as usize);
    let good = put(&two, "bad/good", &data)?;
    tool("sync", &["-f"], &[&dir])?;
    let ballast = disk.exhaust()?;
    let (holes, shared) = (open(&one, "bad/holes")?, open(&two, "bad/holes")?);
    write(&holes, &data, 0)?;
    write(&shared, &data, 4 * MIB)?;
    // The same session, another file.
    let new = pattern(2, 2 * MIB as usize);
    write(&good, &new, 0)?;
    ok("commit of another file", good.commit())?;
    refused("commit", holes.commit(), Status::NoSpc)?;
    if !args.contains(&"normal") {
        // Who also wrote is told once; only that write is not done.
        refused("write of another", shared.write_at(&data[..BLOCK], 6 * MIB), Status::NoSpc)?;
        write(&shared, &data[..BLOCK], 6 * MIB)?;
    }
    ok("commit of another file", good.commit())?;
    expect_bytes(&good, &new, "another file")?;
    world.others_are_well("during")?;
    let reader = world.session();
    ok("close of a reader", open(&reader, "bad/holes")?.close())?;
    drop(ballast);
    write(&holes, &data, 0).or_else(|_| write(&holes, &data, 0))?;
    commit_again(&holes, Status::NoSpc)?;
    write(&shared, &data, 4 * MIB).or_else(|_| write(&shared, &data, 4 * MIB))?;
    commit_again(&shared, Status::NoSpc)?;
    // Another file, opened after that, knows nothing of it.
    let more = open(&three, "bad/more")?;
    write(&more, &data, 0)?;
    ok("commit of a third", more.commit())?;
    let mut whole = vec![0; 8 * MIB as usize];
    whole[..data.len()].copy_from_slice(&data);
    whole[4 << 20..6 << 20].copy_from_slice(&data);
    if !args.contains(&"normal") {
        whole[6 << 20..][..BLOCK].copy_from_slice(&data[..BLOCK]);
    }
    expect_bytes(&holes, &whole, "what was written again")?;
    same(&dir.join("holes"), &whole)?;
    same(&dir.join("good"), &new)?;
    ok("close", good.close())?;
    drop((one, two, three, holes, shared, more, reader));
    world.server.stop_with_losses();
    Ok("ENOSPC at COMMIT, all with space again".into())
}

fn dead(args: &[&str]) -> Outcome<String> {
    let disk = Mortal::new()?;
    let dir = disk.mounted.path().to_path_buf();
    let mut world = World::new(&dir, &[args, &["--arena", "64m"]].concat())?;
    let (one, two) = (world.session(), world.session());
    let data = pattern(1, 8 * MIB as usize);
    let (file, other) = (put(&one, "bad/file", &data)?, put(&two, "bad/other", &data)?);
    tool("sync", &["-f"], &[&dir])?;
    disk.kill()?;
    let new = pattern(2, MIB as usize);
    write(&file, &new, 0)?;
    refused("commit", file.commit(), Status::Io)?;
    expect_bytes(&other, &data, "another file")?;
    world.others_are_well("during")?;
    // A name, and what a client leaves.
    let name = make(&one, "bad/name");
    if let Ok(name) = &name {
        let _ = name.write_at(&new, 0);
    }
    drop((name, file, one));
    world.others_are_well("after")?;
    expect_bytes(&other, &data, "another file")?;
    ok("close of what is clean", other.close())?;
    drop(two);
    world.server.stop_with_losses();
    Ok("EIO at COMMIT".into())
}

/// A block that says which it is.
fn named(block: usize) -> Vec<u8> {
    format!("block-{block:06}.").into_bytes().into_iter().cycle().take(BLOCK).collect()
}

fn unreadable(args: &[&str]) -> Outcome<String> {
    const BLOCKS: usize = 512;
    const BAD: usize = 37;
    let mut disk = Checked::new()?;
    let whole: Vec<u8> = (0..BLOCKS).flat_map(named).collect();
    for name in ["data", "again"] {
        let path = disk.path().join(name);
        std::fs::write(path, &whole).map_err(|error| error.to_string())?;
    }
    disk.spoil(&named(BAD))?;
    let dir = disk.path().to_path_buf();
    // Which of the two has it.
    let is_bad = |name: &&str| std::fs::read(dir.join(name)).is_err();
    let name = *["data", "again"].iter().find(|name| is_bad(name)).ok_or("both can be read")?;
    std::fs::write("/proc/sys/vm/drop_caches", "1").map_err(|error| error.to_string())?;
    let mut world = World::new(&dir, &[args, &["--arena", "64m"]].concat())?;
    let session = world.session();
    let path = format!("bad/{name}");
    let file = open(&session, &path)?;
    let mut errors = 0;
    for step in [1, 4, 16, 2] {
        let mut piece = vec![0; step * BLOCK];
        for first in (0..BLOCKS).step_by(step) {
            let at = (first * BLOCK) as u64;
            let read = file.read_at(&mut piece, at);
            if (first..first + step).contains(&BAD) {
                refused("the bad block", read, Status::Io)?;
                errors += 1;
            } else {
                ok(&format!("{step} blocks at {first}"), read)?;
                if piece != whole[first * BLOCK..][..step * BLOCK] {
                    return Err(format!("{step} blocks at {first} are wrong"));
                }
            }
        }
    }
    // Lists with a piece in the bad block, and on both sides of it.
    for (first, stride) in [(BAD - 2, 2), (BAD - 1, 2), (BAD - 5, 8)] {
        let (len, count) = (BLOCK as u32, 3);
        let extent =
            Extent { offset: (first * BLOCK) as u64, len, stride: (stride * BLOCK) as u64, count };
        let buffer = Buffer::new(3 * BLOCK).map_err(|error| error.to_string())?;
        let call = Call::ReadList { file: file.clone(), extents: vec![extent], buffer };
        let result = session.call(call).wait().result;
        match (0..3).any(|index| first + index * stride == BAD) {
            true => refused("a list", result, Status::Io)?,
            false => ok("a list beside it", result).map(drop)?,
        }
    }
    world.others_are_well("during")?;
    // A part of it needs the rest; the whole of it does not.
    let at = (BAD * BLOCK) as u64;
    let part = file.write_at(b"part", at + 100).and_then(|_| file.commit().map(|()| 0));
    refused("a write of a part", part, Status::Io)?;
    write(&file, &named(0), at)?;
    ok("a write of all of it", file.commit())?;
    let mut healed = whole;
    healed[BAD * BLOCK..][..BLOCK].copy_from_slice(&named(0));
    expect_bytes(&file, &healed, "the healed file")?;
    ok("close", file.close())?;
    same(&dir.join(name), &healed)?;
    drop(session);
    world.server.stop_with_losses();
    Ok(format!("EIO {errors} times, by what needs it alone"))
}

fn quota(args: &[&str]) -> Outcome<String> {
    let disk = Checked::new()?;
    let limited = disk.path().join("limited");
    tool("btrfs", &["-q", "quota", "enable"], &[disk.path()])?;
    tool("btrfs", &["-q", "subvolume", "create"], &[&limited])?;
    tool("btrfs", &["-q", "qgroup", "limit", "8M"], &[&limited])?;
    let mut world = World::new(disk.path(), &[args, &["--arena", "64m"]].concat())?;
    let (writer, other) = (world.session(), world.session());
    let data = pattern(1, 16 * MIB as usize);
    let big = put(&writer, "bad/limited/big", &data[..BLOCK])?;
    let (bytes, call) = write_until(&big, &data, Status::DQuot)?;
    put(&other, "bad/free", &data)?;
    expect_bytes(&open(&other, "bad/limited/big")?, &data[..bytes], "what was acknowledged")?;
    world.others_are_well("during")?;
    tool("btrfs", &["-q", "qgroup", "limit", "none"], &[&limited])?;
    commit_again(&big, Status::DQuot)?;
    has(&limited.join("big"), &data, bytes)?;
    ok("close", big.close())?;
    same(&disk.path().join("free"), &data)?;
    drop((writer, other));
    world.server.stop_with_losses();
    Ok(format!("EDQUOT at {call}, all {bytes} bytes without it"))
}
