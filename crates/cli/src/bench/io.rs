//! `dafs bench io`: operations on files, beside plain sockets.

use std::ffi::OsString;
use std::time::Duration;

use dafs_bench::io::{self, IoOptions, Twins};
use dafs_bench::target::{Memory, Op, ReadPath, Target};
use dafs_bench::{Report, Wait};
use dafs_fuse::kernel::is_on_mount;

use super::{pin, pins, raw, target};
use crate::connect::ConnectArgs;
use crate::failure::{Cause, Failure};
use crate::interrupt;
use crate::progress::Progress;
use dafs_fabric::units::size;

/// Measure operations on files of a server, or of a local directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs bench io dafs://localhost/ --op read --size 4k,1m --depth 1,8\n  \
    dafs bench io dafs://localhost/ --op randread --size 4k --depth 32 --wait sleeping --json\n  \
    dafs bench io /mnt/nfs --op read,write,stat,create        compare on your own machine\n  \
    dafs bench io /mnt/dafs --direct --op read,write --size 4k,1m --depth 1,2\n\n\
    Operations: read, randread, write, randwrite (not synced), write-fsync, stat (of a file\n\
    eight directories down), create and create-fsync (make, write, close), openread (open, read,\n\
    close), remove. All files lie in TARGET/.dafs-bench-PID, which is removed at the end.\n\n\
    With a URL every row is measured by turns with plain sockets (raw) that move the same\n\
    bytes: size, depth, waiting mode and memory footprint are the same; where the session goes by\n\
    shared memory, with two bare rings and one copy by the other process, or what --memory has in\n\
    its place: a copy by this one, two copies, or the sum alone. On a mount of DAFS every\n\
    row of read, randread, write, randwrite and write-fsync is measured by turns with a mount\n\
    that has no files behind it (raw), and with plain sockets (trip). With --json, fields are:\n\
    bytes_per_s, ops_per_s (medians of four stretches), p50_us, p99_us, p999_us,\n\
    client_cpu_us_per_op, server_cpu_us_per_op, server_copies_per_byte and client_copies_per_byte (in user space),\n\
    registrations_per_op and syscalls_per_op (both sides together), round_trips_per_op,\n\
    raw_bytes_per_s, raw_ops_per_s, raw_p50_us, raw_p99_us, raw_cpu_us_per_op (both sides),\n\
    ratio (bytes_per_s / raw_bytes_per_s), trip_p50_us (of a mount). What could not be measured is null. On a local path a\n\
    depth above one means that many threads.")]
pub struct Args {
    /// A URL or a path: a directory.
    #[arg(value_name = "TARGET")]
    target: OsString,
    /// What to do.
    #[arg(long, value_delimiter = ',', default_value = "read")]
    op: Vec<Op>,
    /// Bytes per operation.
    #[arg(long, value_parser = size, value_delimiter = ',', default_value = "4k,64k,1m")]
    size: Vec<u64>,
    /// Operations under way.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    depth: Vec<usize>,
    /// How both ends wait: polled, sleeping, adaptive.
    #[arg(long, value_delimiter = ',', default_value = "polled,sleeping")]
    wait: Vec<Wait>,
    /// Bytes of the file that is read and written.
    #[arg(long, value_parser = size, default_value = "1g")]
    file_size: u64,
    /// Time per row (2, 500ms, 1m), and as much for plain sockets.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = super::time)]
    seconds: Duration,
    /// CPUs of this process and of the raw peer, as 0,1 (pin the server with taskset).
    #[arg(long, value_parser = pins, value_name = "CPU,CPU")]
    pin: Option<(usize, usize)>,
    /// Measure plain sockets with a peer on the server's machine, started there by
    /// `dafs bench raw tcp --serve`; needed where that is not this one.
    #[arg(long, value_name = "HOST:PORT")]
    raw_peer: Option<String>,
    /// Measure nothing else by turns.
    #[arg(long)]
    no_raw: bool,
    /// On a path: read and write past the kernel's cache (O_DIRECT).
    #[arg(long)]
    direct: bool,
    /// With a URL: where the data of reads is to be: shared (buffers of the session, which a server
    /// on the same machine reaches), private (memory of this process, which copies out of the
    /// server's cache where it may), bounce (the same, copied twice), lent (where the server's cache
    /// has it, if it may: it is summed).
    #[arg(long, value_name = "KIND", default_value = "shared")]
    memory: Memory,
    /// With a URL: how reads go: rpc-direct (the server is asked, and places the data), rpc-inline (the same, but
    /// that what came is copied once more, to where it is wanted), or optimistic (out of the server's cache without a
    /// request: by this process, which maps it, one at a time, or by a reference that the server checks at each).
    #[arg(long, value_name = "PATH", default_value = "rpc-direct")]
    path: ReadPath,
    /// One JSON object per row.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let options = options(args)?;
    let (mut target, here) = {
        let how = (args.direct, args.memory, args.path);
        target::open(&args.connect, &args.target, how)?
    };
    let mut twins = twins(args, target.as_ref(), here, &options)?;
    pin(options.own_cpu)?;
    let progress = Progress::start(true);
    let mut report = Report::new(args.json);
    let result = io::run(
        target.as_mut(),
        &mut twins,
        &options,
        interrupt::flag(),
        &|text| progress.text(text),
        &mut |point| progress.pause(|| report.print(point)),
    );
    drop(target);
    if interrupt::requested() {
        return Err(Failure::about("", Cause::Interrupted));
    }
    result.map_err(|error| target::failure(args.target.display(), error))
}

/// What is measured by turns. A local directory has nothing, unless it is on a mount.
fn twins(
    args: &Args,
    target: &dyn Target,
    here: bool,
    options: &IoOptions,
) -> Result<Twins, Failure> {
    let mut twins = Twins::default();
    if args.no_raw {
        return Ok(twins);
    }
    if target.transport() == raw::SHM {
        twins.shm = Some(raw::spawn_shm(args.file_size, &io::shm_rows(options))?);
        return Ok(twins);
    }
    if !target.has_waits() {
        if !is_on_mount(args.target.as_ref())? {
            return Ok(twins);
        }
        twins.null = Some(raw::spawn_null(args.file_size, args.direct)?);
    }
    twins.raw = match &args.raw_peer {
        Some(address) => Some(raw::connect(address)?),
        None if here => Some(raw::spawn()?),
        None => None,
    };
    Ok(twins)
}

fn options(args: &Args) -> Result<IoOptions, Failure> {
    let (own_cpu, peer_cpu) = args.pin.unzip();
    let sizes: Vec<usize> =
        args.size.iter().map(|size| usize::try_from(*size).unwrap_or(usize::MAX)).collect();
    let largest = args.size.iter().copied().max().unwrap_or(0);
    if sizes.contains(&0) || args.depth.contains(&0) || args.depth.iter().any(|d| *d > 512) {
        return Err(Failure::usage("sizes must be at least 1, depths 1 to 512"));
    }
    if args.direct && args.size.iter().any(|size| size % 4096 != 0) {
        return Err(Failure::usage("with --direct, sizes must be multiples of 4k"));
    }
    if args.file_size < largest {
        return Err(Failure::usage("--file-size must be at least the largest --size"));
    }
    Ok(IoOptions {
        ops: args.op.clone(),
        sizes,
        depths: args.depth.clone(),
        waits: args.wait.clone(),
        file_bytes: args.file_size,
        memory: args.memory,
        time: args.seconds,
        own_cpu,
        peer_cpu,
    })
}
