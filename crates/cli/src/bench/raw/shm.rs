//! `dafs bench raw shm`.

use std::io::ErrorKind;
use std::time::Duration;

use dafs_bench::raw::shm::{Shm, ShmOp, ShmOptions, ShmReport, ShmRow};
use dafs_bench::{Point, Wait};

use super::{Args, RawOpName, or, peer_failed};
use crate::failure::{Cause, Failure};
use crate::{interrupt, progress};

/// All that there is, in the order of the table.
const ALL: [RawOpName; 12] = [
    RawOpName::Ping,
    RawOpName::Copy,
    RawOpName::Mapped,
    RawOpName::Stream,
    RawOpName::Write,
    RawOpName::Bounce,
    RawOpName::Memcpy,
    RawOpName::Sum,
    RawOpName::VmReadv,
    RawOpName::VmWritev,
    RawOpName::MemPread,
    RawOpName::MemPwrite,
];

/// What is measured of an operation when nobody says: whether offsets are random, sizes, depths.
fn usual(name: RawOpName) -> Option<(ShmOp, bool, &'static [u64], &'static [usize])> {
    const SMALL: &[u64] = &[4 << 10];
    const LARGE: &[u64] = &[1 << 20];
    const BOTH: &[u64] = &[4 << 10, 1 << 20];
    Some(match name {
        RawOpName::Ping => (ShmOp::Ping, true, &[64], &[1, 32]),
        RawOpName::Copy => (ShmOp::Copy, true, SMALL, &[1, 32]),
        RawOpName::Mapped => (ShmOp::Mapped, true, SMALL, &[1, 32]),
        RawOpName::Stream => (ShmOp::Copy, false, LARGE, &[8]),
        RawOpName::Write => (ShmOp::Write, false, LARGE, &[8]),
        RawOpName::Bounce => (ShmOp::Bounce, false, LARGE, &[8]),
        RawOpName::Memcpy => (ShmOp::Memcpy, false, LARGE, &[8]),
        RawOpName::Sum => (ShmOp::Sum, false, LARGE, &[8]),
        RawOpName::VmReadv => (ShmOp::VmRead, true, BOTH, &[8]),
        RawOpName::VmWritev => (ShmOp::VmWrite, true, BOTH, &[8]),
        RawOpName::MemPread => (ShmOp::MemRead, true, BOTH, &[8]),
        RawOpName::MemPwrite => (ShmOp::MemWrite, true, BOTH, &[8]),
        _ => return None,
    })
}

fn rows(args: &Args) -> Result<Vec<(RawOpName, ShmOptions)>, Failure> {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let cpus = placement(args)?;
    let mut rows = Vec::new();
    for name in or(&args.op, &ALL) {
        let Some((op, random, sizes, depths)) = usual(name) else {
            return Err(Failure::usage(format!("{} is not for shm", name.text())));
        };
        // A ping has no other size; who is alone does not wait, and has nothing under way.
        let sizes = if op == ShmOp::Ping { sizes.to_vec() } else { or(&args.size, sizes) };
        let depths = if op.is_alone() { depths.to_vec() } else { or(&args.depth, depths) };
        let waits = if op.is_alone() { &[Wait::Sleeping][..] } else { &args.wait };
        let pieces = if op == ShmOp::Bounce { &args.piece[..] } else { &[1] };
        for &size in &sizes {
            for &depth in &depths {
                for &piece in pieces {
                    let (size, piece) = (bytes(size), bytes(piece));
                    let row = |(wait, cpus)| {
                        (name, ShmOptions { op, size, depth, piece, wait, random, cpus })
                    };
                    let both = depth == 1 && matches!(name, RawOpName::Ping | RawOpName::Copy);
                    let places = places(waits, cpus, both && args.pin.is_none());
                    rows.extend(places.into_iter().map(row));
                }
            }
        }
    }
    Ok(rows)
}

type Cpus = Option<(usize, usize)>;

/// Ways to wait, and where; `shared`: also with both ends on one CPU, where nobody polls.
fn places(waits: &[Wait], cpus: Cpus, shared: bool) -> Vec<(Wait, Cpus)> {
    let mut places: Vec<_> = waits.iter().map(|wait| (*wait, cpus)).collect();
    if let Some((own, peer)) = cpus.filter(|_| shared)
        && own != peer
        && waits.contains(&Wait::Sleeping)
    {
        places.push((Wait::Sleeping, Some((own, own))));
    }
    places
}

/// The CPUs of the two processes.
fn placement(args: &Args) -> Result<Cpus, Failure> {
    if args.pin.is_some() {
        return Ok(args.pin);
    }
    let allowed = dafs_bench::allowed_cpus().map_err(|error| Failure::about("CPUs", error))?;
    Ok(allowed.first().map(|own| (*own, *allowed.get(1).unwrap_or(own))))
}

/// Starts the other end of bare shared memory, for these rows.
///
/// # Errors
/// It could not be started.
pub fn spawn(footprint: u64, rows: &[ShmOptions]) -> Result<Shm, Failure> {
    let footprint = usize::try_from(footprint).unwrap_or(usize::MAX);
    Shm::spawn(&["bench", "raw-shm-peer"], footprint, rows).map_err(peer_failed)
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.serve.is_some() || args.peer.is_some() {
        return Err(Failure::usage("--serve and --peer are for tcp"));
    }
    let time = args.seconds;
    let named = rows(args)?;
    let rows: Vec<_> = named.iter().map(|(_, row)| row.clone()).collect();
    let mut shm = spawn(args.file_size, &rows)?;
    let mut report = ShmReport::new(args.json);
    let warm_up = (time / 10).min(Duration::from_millis(200));
    for (name, row) in &named {
        let stop = interrupt::flag();
        let measured = shm.run(row, warm_up, stop).and_then(|_| shm.run(row, time, stop));
        let slice = match measured {
            Err(error) if row.op.is_alone() && error.kind() == ErrorKind::PermissionDenied => {
                progress::notice(&format!("{}: not measured: {error}", name.text()));
                continue;
            }
            measured => measured.map_err(peer_failed)?,
        };
        if interrupt::requested() {
            return Err(Failure::about("", Cause::Interrupted));
        }
        let depth =
            if row.op.is_alone() { 1 } else { u32::try_from(row.depth).unwrap_or(u32::MAX) };
        let wait = (!row.op.is_alone()).then_some(row.wait);
        let point = Point::new(name.text(), "raw-shm", &[slice]).with(row.size as u64, depth, wait);
        report.print(&ShmRow::new(point, args.file_size, row, shm.huge_pages()))?;
    }
    Ok(())
}
