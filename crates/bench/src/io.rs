//! `bench io`: one row per operation, size, depth and waiting mode, beside the bare mechanism: plain
//! sockets, shared memory, or, on a mount, a null file system.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::null::NullMount;
use crate::point::{Point, size_text};
use crate::raw::shm::{Shm, ShmOp, ShmOptions};
use crate::raw::{Raw, RawOp, RawOptions};
use crate::slice::Slice;
use crate::target::{Memory, Op, Target, Work};
use crate::wait::Wait;

/// Stretches per row, of each of the two.
const SLICES: u32 = 4;
/// Measured and thrown away first: the first touch of memory, the growth of windows.
const WARM_UP: Duration = Duration::from_millis(100);

/// What to measure.
#[derive(Debug, Clone)]
pub struct IoOptions {
    /// Operations.
    pub ops: Vec<Op>,
    /// Bytes per operation.
    pub sizes: Vec<usize>,
    /// Operations under way.
    pub depths: Vec<usize>,
    /// Waiting modes, for targets that have them.
    pub waits: Vec<Wait>,
    /// Bytes of the file that is read and written.
    pub file_bytes: u64,
    /// Where the data of reads is to be, for targets that are servers.
    pub memory: Memory,
    /// Time per row.
    pub time: Duration,
    /// This process's CPU, and the raw peer's, if pinned.
    pub own_cpu: Option<usize>,
    /// As above.
    pub peer_cpu: Option<usize>,
}

/// What is measured by turns with the target.
#[derive(Debug, Default)]
pub struct Twins {
    /// Plain sockets.
    pub raw: Option<Raw>,
    /// Where the target goes by shared memory: two rings, and one copy by the other process.
    pub shm: Option<Shm>,
    /// Where the target is a mount: it is the raw mechanism then, and sockets show the round trip
    /// that the mount has on top of it.
    pub null: Option<NullMount>,
}

/// Measures all rows; each is given to `row` as soon as it is there. `say` is told what goes on.
///
/// # Errors
/// The target's, the raw peer's, or those of `row`.
pub fn run(
    target: &mut dyn Target,
    twins: &mut Twins,
    options: &IoOptions,
    stop: &AtomicBool,
    say: &dyn Fn(&str),
    row: &mut dyn FnMut(&Point) -> io::Result<()>,
) -> io::Result<()> {
    let uses_file = options.ops.iter().any(|op| op.uses_file());
    say("writing the file");
    target.set_up(uses_file.then_some(options.file_bytes), stop)?;
    for work in rows(target, options, stop) {
        let (size, wait) = (size_text(work.size as u64), work.wait.map_or("", Wait::name));
        say(&format!("{} {size} depth {} {wait}", work.op.name(), work.depth));
        target.prepare(&work)?;
        let (ours, theirs, trips) = measure(target, twins, options, &work)?;
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let point = Point::new(work.op.name(), target.transport(), &ours)
            .with(work.size as u64, work.depth as u32, work.wait)
            .with_raw(&theirs)
            .with_trips(&trips);
        row(&point)?;
    }
    say("removing files");
    target.clean_up()
}

fn rows<'s>(target: &dyn Target, options: &IoOptions, stop: &'s AtomicBool) -> Vec<Work<'s>> {
    let waits: Vec<Option<Wait>> = match target.has_waits() {
        true => options.waits.iter().copied().map(Some).collect(),
        false => vec![None],
    };
    let time = options.time / SLICES;
    let mut rows = Vec::new();
    for &op in &options.ops {
        // A size means nothing to these.
        let sizes = match op {
            Op::Stat | Op::Remove => options.sizes.get(..1).unwrap_or_default(),
            _ => &options.sizes,
        };
        for &size in sizes {
            for &depth in &options.depths {
                let work = |&wait| Work { op, size, depth, wait, time, stop };
                rows.extend(waits.iter().map(work));
            }
        }
    }
    rows
}

/// Stretches of the target and of its twins, by turns, so that all meet the same machine: the
/// target's, the raw mechanism's, and round trips where those are something else.
fn measure(
    target: &mut dyn Target,
    twins: &mut Twins,
    options: &IoOptions,
    work: &Work<'_>,
) -> io::Result<(Vec<Slice>, Vec<Slice>, Vec<Slice>)> {
    let on_mount = twins.null.is_some();
    let mut null = twins.null.as_mut().filter(|_| NullMount::does(work.op));
    let raw_options = raw_options(options, work, on_mount);
    let shm_options = shm_options(options, work);
    let mut shm = twins.shm.as_mut().filter(|shm| shm.has_room(&shm_options));
    let (mut ours, mut theirs, mut trips) = (Vec::new(), Vec::new(), Vec::new());
    let warm_up = &Work { time: WARM_UP.min(work.time), ..*work };
    target.measure(warm_up)?;
    if let Some(null) = &mut null {
        null.measure(warm_up)?;
    }
    if let Some(shm) = &mut shm {
        shm.run(&shm_options, warm_up.time, work.stop)?;
    }
    if let Some(raw) = &mut twins.raw {
        raw.run(&raw_options, warm_up.time, work.stop)?;
    }
    for _ in 0..SLICES {
        if work.stop.load(Ordering::Relaxed) {
            break;
        }
        if let Some(null) = &mut null {
            theirs.push(null.measure(work)?);
        }
        if let Some(shm) = &mut shm {
            theirs.push(shm.run(&shm_options, work.time, work.stop)?);
        }
        if let Some(raw) = &mut twins.raw {
            let slice = raw.run(&raw_options, work.time, work.stop)?;
            if on_mount { trips.push(slice) } else { theirs.push(slice) }
        }
        ours.push(target.measure(work)?);
    }
    Ok((ours, theirs, trips))
}

/// What plain sockets do in place of the operation: the same bytes the same way.
fn raw_options(options: &IoOptions, work: &Work<'_>, on_mount: bool) -> RawOptions {
    // As a mount waits by default.
    let otherwise = if on_mount { Wait::Adaptive } else { Wait::Sleeping };
    let op = match work.op {
        Op::Read | Op::RandRead | Op::OpenRead | Op::Stat | Op::Remove => RawOp::Read,
        Op::Write | Op::RandWrite | Op::WriteFsync | Op::Create | Op::CreateFsync => RawOp::Write,
    };
    let size = match work.op {
        // An answer without data.
        Op::Stat | Op::Remove => 64,
        _ => work.size,
    };
    let footprint = if work.op.uses_file() { options.file_bytes } else { size as u64 };
    RawOptions {
        op,
        size,
        depth: work.depth,
        wait: work.wait.unwrap_or(otherwise),
        random: work.op.is_random(),
        footprint: usize::try_from(footprint).unwrap_or(usize::MAX),
        peer_cpu: options.peer_cpu,
    }
}

/// Bytes of a piece in which data goes that is copied twice, and of pieces for all sizes beneath.
const BOUNCE_BYTES: usize = 256 << 10;

/// What bare shared memory does in place of the operation: as many bytes are copied once, by the other
/// process, and into as much memory; or by this one, or twice, or are summed.
fn shm_options(options: &IoOptions, work: &Work<'_>) -> ShmOptions {
    let op = match work.op {
        Op::Stat | Op::Remove => ShmOp::Ping,
        Op::Write | Op::RandWrite | Op::WriteFsync => ShmOp::Write,
        Op::Read | Op::RandRead => match options.memory {
            Memory::Shared => ShmOp::Copy,
            Memory::Private => ShmOp::Mapped,
            Memory::Bounce => ShmOp::Bounce,
            Memory::Lent => ShmOp::Sum,
        },
        _ => ShmOp::Copy,
    };
    let piece = if work.size.is_multiple_of(BOUNCE_BYTES) { BOUNCE_BYTES } else { work.size };
    ShmOptions {
        op,
        size: if op == ShmOp::Ping { 64 } else { work.size },
        depth: work.depth,
        piece,
        wait: work.wait.unwrap_or(Wait::Sleeping),
        random: work.op.is_random(),
        cpus: options.peer_cpu.and_then(|peer| Some((options.own_cpu?, peer))),
    }
}

/// All that a twin of shared memory will be asked for.
pub fn shm_rows(options: &IoOptions) -> Vec<ShmOptions> {
    let (stop, wait) = (&AtomicBool::new(false), Some(Wait::Sleeping));
    let work = |&op: &Op, &size: &usize, &depth: &usize| {
        let time = Duration::ZERO;
        shm_options(options, &Work { op, size, depth, wait, time, stop })
    };
    let of_op = |op| options.sizes.iter().map(move |size| (op, size));
    let sizes = options.ops.iter().flat_map(of_op);
    let rows = sizes.flat_map(|(op, size)| options.depths.iter().map(move |d| work(op, size, d)));
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Local;

    fn options(ops: &[Op]) -> IoOptions {
        IoOptions {
            ops: ops.to_vec(),
            sizes: vec![4096],
            depths: vec![1, 3],
            waits: vec![Wait::Sleeping],
            file_bytes: 1 << 20,
            memory: Memory::Shared,
            time: Duration::from_millis(20),
            own_cpu: None,
            peer_cpu: None,
        }
    }

    #[test]
    fn every_operation_is_measured_on_a_local_directory_and_nothing_stays() {
        let dir = std::env::temp_dir().join(format!("dafs-bench-io-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        let all = [
            Op::Read,
            Op::RandRead,
            Op::Write,
            Op::RandWrite,
            Op::WriteFsync,
            Op::Stat,
            Op::Create,
            Op::CreateFsync,
            Op::OpenRead,
            Op::Remove,
        ];
        let mut points = Vec::new();
        let stop = AtomicBool::new(false);
        let mut target = Local::new(&dir, false);
        run(&mut target, &mut Twins::default(), &options(&all), &stop, &|_| (), &mut |point| {
            points.push(point.clone());
            Ok(())
        })
        .expect("runs");
        assert_eq!(points.len(), all.len() * 2);
        for point in &points {
            assert!(point.ops > 0, "{}", point.op);
            assert!(point.p50_us.is_some() && point.raw_p50_us.is_none());
            assert_eq!(point.bytes_per_s.is_none(), matches!(&*point.op, "stat" | "remove"));
        }
        assert_eq!(std::fs::read_dir(&dir).expect("directory").count(), 0);
        std::fs::remove_dir(&dir).expect("removed");
    }

    #[test]
    fn an_interrupted_run_prints_no_row_and_removes_its_files() {
        let dir = std::env::temp_dir().join(format!("dafs-bench-stop-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        let stop = AtomicBool::new(true);
        let mut target = Local::new(&dir, false);
        let mut rows = 0;
        let ops = options(&[Op::Read]);
        let result = run(&mut target, &mut Twins::default(), &ops, &stop, &|_| (), &mut |_| {
            rows += 1;
            Ok(())
        });
        drop(target);
        assert!(result.is_ok() && rows == 0);
        assert_eq!(std::fs::read_dir(&dir).expect("directory").count(), 0);
        std::fs::remove_dir(&dir).expect("removed");
    }
}
