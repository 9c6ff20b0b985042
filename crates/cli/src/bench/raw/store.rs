//! `dafs bench raw store` and `dafs bench raw memcpy`.

use std::time::Duration;

use dafs_bench::store::{StoreFile, StoreOptions, memcpy};
use dafs_bench::{Point, Report};
use dafs_store::Disk;

use super::{Args, RawOpName};
use crate::failure::{Cause, Failure};
use crate::interrupt;

fn warm_up(time: Duration) -> Duration {
    (time / 10).min(Duration::from_millis(200))
}

fn bytes(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn checked(args: &Args) -> Result<Duration, Failure> {
    if args.serve.is_some() || args.peer.is_some() {
        return Err(Failure::usage("--serve and --peer are for tcp"));
    }
    if args.sizes().iter().any(|size| *size == 0 || *size > args.file_size) {
        return Err(Failure::usage("sizes must be 1 or more, up to --file-size"));
    }
    crate::bench::pin(args.pin.map(|(own, _)| own))?;
    Ok(args.seconds)
}

fn go_on() -> Result<(), Failure> {
    if interrupt::requested() { Err(Failure::about("", Cause::Interrupted)) } else { Ok(()) }
}

/// Data of a file by the server's store.
///
/// # Errors
/// The store's.
pub(super) fn store(args: &Args) -> Result<(), Failure> {
    let time = checked(args)?;
    let target = args
        .target
        .as_deref()
        .ok_or_else(|| Failure::usage("store needs a directory, or a file to be read"))?;
    let failure = |error| Failure::about(target.display().to_string(), error);
    let mut report = Report::new(args.json);
    for disk in &args.disk {
        let file = StoreFile::open(target, *disk, args.file_size, &dafs_store_posix::open)
            .map_err(failure)?;
        let transport = match disk {
            Disk::Auto => "disk-auto",
            Disk::Direct => "disk-dir",
            Disk::Buffered => "disk-buf",
        };
        for name in args.ops() {
            let (text, write, random) = match name {
                RawOpName::Read => ("read", false, false),
                RawOpName::Randread => ("randread", false, true),
                RawOpName::Write => ("write", true, false),
                RawOpName::Randwrite => ("randwrite", true, true),
                RawOpName::Stream => return Err(Failure::usage("stream is for tcp and shm")),
                other => return Err(Failure::usage(format!("{} is for shm", other.text()))),
            };
            for size in args.sizes() {
                for depth in args.depths() {
                    let stop = interrupt::flag();
                    let size = bytes(size);
                    let work = StoreOptions { write, random, size, depth, time, stop };
                    let warm = StoreOptions { time: warm_up(time), ..work };
                    file.run(&warm).map_err(failure)?;
                    let slice = file.run(&work).map_err(failure)?;
                    go_on()?;
                    let point = Point::new(text, transport, &[slice]);
                    let depth = u32::try_from(depth).unwrap_or(u32::MAX);
                    report.print(&point.with(size as u64, depth, None))?;
                }
            }
        }
    }
    Ok(())
}

/// Memory to memory.
///
/// # Errors
/// No memory.
pub(super) fn copies(args: &Args) -> Result<(), Failure> {
    let time = checked(args)?;
    let mut report = Report::new(args.json);
    for size in args.sizes() {
        let run = |time| memcpy(bytes(size), bytes(args.file_size), time, interrupt::flag());
        let slice = run(time).map_err(|error| Failure::about("memcpy", error))?;
        go_on()?;
        report.print(&Point::new("memcpy", "memory", &[slice]).with(size, 1, None))?;
    }
    Ok(())
}
