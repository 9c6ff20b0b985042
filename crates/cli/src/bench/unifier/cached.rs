//! Reads of what is in memory, by the size of an access.

use std::ffi::OsStr;
use std::time::Duration;

use dafs_bench::target::{Memory, Op, ReadPath, Target, Work};
use dafs_bench::{Slice, median, size_text};
use dafs_server::DataPath;

use super::row::{Row, compare};
use super::served::{Served, Start};
use super::{Args, stopped};
use crate::bench::target;
use crate::connect::ConnectArgs;
use crate::failure::Failure;
use crate::interrupt;
use crate::progress::Progress;

/// Stretches per row, of all data paths by turns.
const SLICES: u32 = 4;
/// Measured and thrown away first.
const WARM_UP: Duration = Duration::from_millis(100);

/// A server and its client.
struct Side {
    path: DataPath,
    // Before the server, which it speaks to.
    target: Box<dyn Target>,
    _served: Served,
}

pub(super) fn run(
    args: &Args,
    progress: &Progress,
    put: &mut dyn FnMut(&Row) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut sides = Vec::new();
    for &path in &args.datapath {
        progress.text(&format!("cached: writing the file, {path}"));
        sides.push(start(args, path)?);
        stopped()?;
    }
    for &size in &args.size {
        progress.text(&format!("cached: {}", size_text(size)));
        let slices = measure(args, &mut sides, size)?;
        let row = |(side, slices): (&Side, Vec<Slice>)| row(args, side.path, size, &slices);
        let mut rows: Vec<Row> = sides.iter().zip(slices).map(row).collect();
        compare(&mut rows);
        rows.iter().try_for_each(&mut *put)?;
    }
    Ok(())
}

fn start(args: &Args, path: DataPath) -> Result<Side, Failure> {
    let arena_bytes = args.file_size.saturating_mul(2).max(128 << 20);
    let start =
        Start { parent: &args.directory, path, arena_bytes, disk: &args.disk, cgroup: None };
    let served = Served::start(start)?;
    let connect = ConnectArgs { retry: Duration::ZERO, key_file: None };
    let (mut target, _) = target::open(
        &connect,
        OsStr::new(&served.url),
        (false, Memory::Shared, ReadPath::RpcDirect),
    )?;
    let filled = target.set_up(Some(args.file_size), interrupt::flag());
    filled.map_err(|error| target::failure(&served.url, error))?;
    Ok(Side { path, target, _served: served })
}

/// Stretches of all sides by turns, so that all meet the same machine.
fn measure(args: &Args, sides: &mut [Side], size: u64) -> Result<Vec<Vec<Slice>>, Failure> {
    let work = Work {
        op: Op::Read,
        size: usize::try_from(size).unwrap_or(usize::MAX),
        depth: args.depth,
        wait: Some(args.wait),
        time: args.seconds / SLICES,
        stop: interrupt::flag(),
    };
    let mut slices = vec![Vec::new(); sides.len()];
    for round in 0..=SLICES {
        for (side, slices) in sides.iter_mut().zip(&mut slices) {
            let fail = |error| target::failure(side.path, error);
            if round == 0 {
                let warm_up = Work { time: WARM_UP.min(work.time), ..work };
                side.target.prepare(&warm_up).map_err(fail)?;
                side.target.measure(&warm_up).map_err(fail)?;
            } else {
                slices.push(side.target.measure(&work).map_err(fail)?);
            }
            stopped()?;
        }
    }
    Ok(slices)
}

fn row(args: &Args, path: DataPath, size: u64, slices: &[Slice]) -> Row {
    let cost = |slice: &Slice| slice.server_cpu_ns.map(|ns| ns as f64 / slice.bytes.max(1) as f64);
    Row {
        experiment: "cached",
        datapath: path.name(),
        size,
        file_bytes: args.file_size,
        limit_bytes: None,
        bytes_per_s: median(slices.iter().map(Slice::bytes_per_s)).unwrap_or(0.0),
        server_cpu_ns_per_byte: median(slices.iter().filter_map(cost)),
        disk_bytes_per_byte: None,
        rate_of_normal: None,
        cpu_efficiency_of_normal: None,
    }
}
