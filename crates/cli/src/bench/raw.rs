//! `dafs bench raw`: plain sockets, shared memory, and mounts without files.

mod ops;
mod shm;
mod store;

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use dafs_bench::null::NullMount;
use dafs_bench::raw::{self, Raw, RawOp, RawOptions};
use dafs_bench::target::{Op, Work};
use dafs_bench::{Point, Report, Wait};
use dafs_store::Disk;

use crate::failure::{Cause, Failure};
use crate::interrupt;
use dafs_fabric::units::size;
use ops::RawOpName;
pub use shm::spawn as spawn_shm;

/// The transport whose bare mechanism [`spawn_shm`] starts.
pub const SHM: &str = "shm";

/// Measure plain sockets, shared memory, FUSE without files, the disk or memory: what the machine can do.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs bench raw tcp\n  \
    dafs bench raw tcp --op stream --size 128k          comparable with iperf3\n  \
    dafs bench raw tcp --serve 0.0.0.0:5300             on one machine, and\n  \
    dafs bench raw tcp --peer server:5300 --json        on the other\n  \
    dafs bench raw fuse --op read,write --size 4k,1m --depth 1,2\n  \
    dafs bench raw store /srv/data --op read,randread --disk direct,buffered\n  \
    dafs bench raw memcpy --size 4k,1m\n  \
    dafs bench raw shm                                  the whole table, a minute\n  \
    dafs bench raw shm --op copy --depth 1,32 --footprint 64m --cpus 0,1 --wait polled\n\n\
    store reads and writes one file as the server's cache does, without a network: a new one in\n\
    a directory, or a file that is there, which is only read. --disk direct goes past the kernel's\n\
    page cache, buffered by it: give a --file-size beyond memory to see the disk. memcpy copies\n\
    from memory to memory as payload is copied.\n\n\
    shm has two processes and a ring each way in memory that both map, with a pool of --footprint\n\
    bytes, in huge pages where the kernel gives them (the first line says which part). Operations:\n\
    ping (64 bytes each way); copy (random reads, copied once, by the server, into the client's\n\
    segment); mapped (copied once, by the client, out of the pool that it maps); stream (as copy,\n\
    in order); write (in order, out of the segment into the pool); bounce (copied twice, by both\n\
    at once, through a ring of 4 pieces of --piece);\n\
    memcpy and sum (one process alone); vm-readv, vm-writev, mem-pread, mem-pwrite (calls that\n\
    reach into the other process, to compare with only). Without --size and --depth each has its\n\
    own: 4k at 1 and 32, 1m at 8. The client runs on the first of --cpus, the server on the\n\
    second; the first two there are by default, with rows of both on one CPU for ping and copy.\n\
    sleeping: says so in a word, then waits in epoll for one byte on a socket.\n\n\
    fuse mounts a file of zeros on a temporary directory and reads and writes it past the\n\
    kernel's cache, with a thread per operation under way: the yardstick of mounts.")]
pub struct Args {
    /// What is measured.
    #[arg(value_enum)]
    network: Network,
    /// Of store: a directory, or a file that is only read.
    #[arg(value_name = "FILE|DIR")]
    pub(super) target: Option<PathBuf>,
    /// Of store: how data gets from the disk and back: direct, buffered, auto.
    #[arg(long, value_delimiter = ',', default_value = "direct,buffered")]
    pub(super) disk: Vec<Disk>,
    /// What to do [default: read; of shm all that it has].
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) op: Vec<RawOpName>,
    /// Bytes per operation [default: 4k,64k,1m; of shm see below].
    #[arg(long, value_parser = size, value_delimiter = ',')]
    pub(super) size: Vec<u64>,
    /// Operations under way [default: 1,8,32; of shm see below].
    #[arg(long, value_delimiter = ',')]
    pub(super) depth: Vec<usize>,
    /// Of shm: bytes of the pieces that bounce goes in.
    #[arg(long, value_parser = size, value_delimiter = ',', default_value = "64k,256k")]
    pub(super) piece: Vec<u64>,
    /// How both ends wait: polled, sleeping, adaptive.
    #[arg(long, value_delimiter = ',', default_value = "polled,sleeping")]
    wait: Vec<Wait>,
    /// Bytes that the peer's data is spread over.
    #[arg(long, visible_alias = "footprint", value_parser = size, default_value = "1g")]
    pub(super) file_size: u64,
    /// Time per row (2, 500ms, 1m).
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = super::time)]
    pub(super) seconds: Duration,
    /// CPUs of the two processes, as 0,1.
    #[arg(long, visible_alias = "cpus", value_parser = super::pins, value_name = "CPU,CPU")]
    pub(super) pin: Option<(usize, usize)>,
    /// Answer requests of other machines at this address, until interrupted.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) serve: Option<String>,
    /// Use a peer started with --serve.
    #[arg(long, value_name = "HOST:PORT")]
    pub(super) peer: Option<String>,
    /// One JSON object per row.
    #[arg(long)]
    pub(super) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Network {
    Tcp,
    Shm,
    Fuse,
    Store,
    Memcpy,
}

/// The other process.
///
/// # Errors
/// Its socket's.
pub fn peer(address: &str) -> Result<(), Failure> {
    raw::connect_back(address).map_err(peer_failed)
}

/// The other process of shm.
///
/// # Errors
/// The system's.
pub fn shm_peer() -> Result<(), Failure> {
    raw::shm::serve_parent().map_err(peer_failed)
}

/// Starts the other process.
///
/// # Errors
/// It could not be started.
pub fn spawn() -> Result<Raw, Failure> {
    Raw::spawn(&["bench", "raw-peer"]).map_err(peer_failed)
}

/// Connects to one that runs elsewhere.
///
/// # Errors
/// There is none.
pub fn connect(address: &str) -> Result<Raw, Failure> {
    Raw::connect(address).map_err(|error| Failure::about(address, error))
}

fn peer_failed(error: std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::InvalidInput => Failure::usage(error.to_string()),
        _ => Failure::about("raw peer", error),
    }
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    match args.network {
        Network::Fuse => return fuse(args),
        Network::Store => return store::store(args),
        Network::Memcpy => return store::copies(args),
        Network::Shm => return shm::run(args),
        Network::Tcp => {}
    }
    if let Some(address) = &args.serve {
        return raw::serve(address).map_err(peer_failed);
    }
    let (own_cpu, peer_cpu) = args.pin.unzip();
    let mut twin = match &args.peer {
        Some(address) => connect(address)?,
        None => spawn()?,
    };
    super::pin(own_cpu)?;
    let time = args.seconds;
    let mut report = Report::new(args.json);
    for row in rows(args, peer_cpu)? {
        // Not measured: the first touch of memory, and the window's growth.
        let slice = twin
            .run(&row.1, (time / 10).min(Duration::from_millis(200)), interrupt::flag())
            .and_then(|_| twin.run(&row.1, time, interrupt::flag()))
            .map_err(peer_failed)?;
        if interrupt::requested() {
            return Err(Failure::about("", Cause::Interrupted));
        }
        let (size, depth) = (row.1.size as u64, row.1.depth as u32);
        let point = Point::new(row.0, "raw-tcp", &[slice]).with(size, depth, Some(row.1.wait));
        report.print(&point)?;
    }
    Ok(())
}

/// Mounts a null file system.
///
/// # Errors
/// It cannot be mounted.
pub fn spawn_null(file_bytes: u64, direct: bool) -> Result<NullMount, Failure> {
    NullMount::spawn(file_bytes, direct).map_err(|error| Failure::about("null mount", error))
}

fn fuse(args: &Args) -> Result<(), Failure> {
    if args.serve.is_some() || args.peer.is_some() || args.pin.is_some() {
        return Err(Failure::usage("--serve, --peer and --pin are for tcp"));
    }
    if args.sizes().iter().any(|size| *size == 0 || size % 4096 != 0 || *size > args.file_size) {
        return Err(Failure::usage("sizes must be multiples of 4k, up to --file-size"));
    }
    let time = args.seconds;
    let mut mount = spawn_null(args.file_size, true)?;
    let mut report = Report::new(args.json);
    for (name, row) in rows(args, None)? {
        let op = name.parse::<Op>().map_err(Failure::usage)?;
        if args.wait.first() != Some(&row.wait) {
            // The kernel waits as it does: one row is enough.
            continue;
        }
        let stop = interrupt::flag();
        let work = Work { op, size: row.size, depth: row.depth, wait: None, time, stop };
        let warm_up = Work { time: (time / 10).min(Duration::from_millis(200)), ..work };
        let failure = |error| Failure::about("null mount", error);
        mount.measure(&warm_up).map_err(failure)?;
        let slice = mount.measure(&work).map_err(failure)?;
        if interrupt::requested() {
            return Err(Failure::about("", Cause::Interrupted));
        }
        let point = Point::new(name, "raw-fuse", &[slice]);
        report.print(&point.with(row.size as u64, row.depth as u32, None))?;
    }
    Ok(())
}

/// What was asked for, or what is done without being asked.
pub(in crate::bench) fn or<T: Clone>(asked: &[T], default: &[T]) -> Vec<T> {
    if asked.is_empty() { default.to_vec() } else { asked.to_vec() }
}

impl Args {
    pub(super) fn ops(&self) -> Vec<RawOpName> {
        or(&self.op, &[RawOpName::Read])
    }

    pub(super) fn sizes(&self) -> Vec<u64> {
        or(&self.size, &[4 << 10, 64 << 10, 1 << 20])
    }

    pub(super) fn depths(&self) -> Vec<usize> {
        or(&self.depth, &[1, 8, 32])
    }
}

fn rows(args: &Args, peer_cpu: Option<usize>) -> Result<Vec<(&'static str, RawOptions)>, Failure> {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut rows = Vec::new();
    for name in args.ops() {
        let (op, random) = match name {
            RawOpName::Read => (RawOp::Read, false),
            RawOpName::Randread => (RawOp::Read, true),
            RawOpName::Write => (RawOp::Write, false),
            RawOpName::Randwrite => (RawOp::Write, true),
            RawOpName::Stream => (RawOp::Stream, false),
            other => return Err(Failure::usage(format!("{} is for shm", other.text()))),
        };
        for size in args.sizes() {
            for depth in args.depths() {
                rows.extend(args.wait.iter().map(|&wait| {
                    let footprint = bytes(args.file_size);
                    let size = bytes(size);
                    let row = RawOptions { op, size, depth, wait, random, footprint, peer_cpu };
                    (name.text(), row)
                }));
            }
        }
    }
    Ok(rows)
}
