//! `dafs bench fabric`: sends, RDMA reads and RDMA writes, beside plain sockets.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use dafs_bench::fabric::{self, FabricOp, FabricOptions};
use dafs_bench::raw::{RawOp, RawOptions};
use dafs_bench::{Point, Report, Slice, Wait};
use dafs_client::Url;
use dafs_fabric::Address;

use super::{raw, target};
use crate::failure::{Cause, Failure};
use crate::interrupt;
use crate::provider::provider;
use dafs_fabric::units::size;

/// Stretches per row, of each of the two.
const SLICES: u32 = 4;

/// Measure sends, RDMA reads and RDMA writes, below the file system.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs bench fabric                                    two processes on this machine\n  \
    dafs bench fabric --op rdma-read --size 4k,1m --depth 1,8 --json\n  \
    dafs bench fabric --serve tcp://10.0.0.1:5301        on one machine, and\n  \
    dafs bench fabric tcp://10.0.0.1:5301                on the other\n\n\
    send: a message and its short answer; rdma-read; rdma-write: with a message that announces\n\
    it and its short answer. Plain sockets (raw) are measured by turns where both processes\n\
    are on this machine.")]
pub struct Args {
    /// A peer started with --serve; a URL of this machine, or nothing, starts one here.
    #[arg(value_name = "URL")]
    url: Option<String>,
    /// What to do: send, rdma-read, rdma-write.
    #[arg(long, value_delimiter = ',', default_value = "send,rdma-read,rdma-write")]
    op: Vec<FabricOp>,
    /// Bytes per operation.
    #[arg(long, value_parser = size, value_delimiter = ',', default_value = "64,4k,64k,1m")]
    size: Vec<u64>,
    /// Operations under way.
    #[arg(long, value_delimiter = ',', default_value = "1,8,32")]
    depth: Vec<usize>,
    /// How both ends wait: polled, sleeping, adaptive.
    #[arg(long, value_delimiter = ',', default_value = "polled,sleeping")]
    wait: Vec<Wait>,
    /// Bytes of the peer's memory that is read and written.
    #[arg(long, value_parser = size, default_value = "256m")]
    file_size: u64,
    /// Time per row (2, 500ms, 1m), and as much for plain sockets.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = super::time)]
    seconds: Duration,
    /// Answer at this address (tcp://HOST:PORT) until interrupted.
    #[arg(long, value_name = "ADDRESS")]
    serve: Option<String>,
    /// One JSON object per row.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let provider = provider();
    if let Some(text) = &args.serve {
        return fabric::serve(&provider, &parse(text)?, interrupt::flag())
            .map_err(|error| target::failure(text, error));
    }
    let time = args.seconds / SLICES;
    let elsewhere = args.url.as_deref().map(elsewhere).transpose()?.flatten();
    let (address, _peer, mut twin) = match elsewhere {
        Some(address) => (address, None, None),
        None => {
            let (address, peer) = spawn()?;
            (address, Some(peer), Some(raw::spawn()?))
        }
    };
    let fail = |error| target::failure(&address, error);
    let mut report = Report::new(args.json);
    for options in rows(args) {
        if options.op == FabricOp::Send && options.size > fabric::SEND_BYTES_MAX {
            continue; // Messages are short; what is long goes by RDMA.
        }
        let measure = |time: Duration| {
            fabric::run(&provider, &address, &options, time, interrupt::flag()).map_err(fail)
        };
        measure(time / 4)?;
        let (mut ours, mut theirs): (Vec<Slice>, Vec<Slice>) = (Vec::new(), Vec::new());
        for _ in 0..SLICES {
            if let Some(twin) = &mut twin {
                let slice = twin.run(&raw_options(&options), time, interrupt::flag());
                theirs.push(slice.map_err(fail)?);
            }
            ours.push(measure(time)?);
            if interrupt::requested() {
                return Err(Failure::about("", Cause::Interrupted));
            }
        }
        let point = Point::new(options.op.name(), provider.name(), &ours)
            .with(options.size as u64, options.depth as u32, Some(options.wait))
            .with_raw(&theirs);
        report.print(&point)?;
    }
    Ok(())
}

/// The other process.
///
/// # Errors
/// It cannot listen.
pub fn peer() -> Result<(), Failure> {
    fabric::serve_parent(&provider(), &parse("tcp://127.0.0.1:0")?)
        .map_err(|error| Failure::about("fabric peer", error))
}

fn parse(text: &str) -> Result<Address, Failure> {
    Address::parse(text)
        .filter(|address| ["tcp", "unix"].contains(&address.scheme.as_str()))
        .ok_or_else(|| Failure::usage(format!("'{text}' is not tcp://HOST:PORT or unix:/path")))
}

/// Where a peer runs already; `None`: one is to be started here.
fn elsewhere(text: &str) -> Result<Option<Address>, Failure> {
    if !Url::is_url(text) {
        return parse(text).map(Some);
    }
    let url = Url::parse(text).map_err(|error| Failure::about("", error))?;
    let here = url.unix.is_some()
        || url.host == "localhost"
        || url.host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback());
    if here {
        return Ok(None);
    }
    let text = "start `dafs bench fabric --serve tcp://HOST:PORT` there, and give that address";
    Err(Failure::usage(format!("{url}: {text}")))
}

/// A peer process, ended when dropped: its standard input ends.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

fn spawn() -> Result<(Address, Peer), Failure> {
    let fail = |error| Failure::about("fabric peer", error);
    let program = std::env::current_exe().map_err(fail)?;
    let mut child = Command::new(program)
        .args(["bench", "fabric-peer"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(fail)?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        BufReader::new(out).read_line(&mut line).map_err(fail)?;
    }
    let peer = Peer(child);
    Ok((parse(line.trim_end())?, peer))
}

fn rows(args: &Args) -> Vec<FabricOptions> {
    let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut rows = Vec::new();
    for &op in &args.op {
        for &size in &args.size {
            for &depth in &args.depth {
                let footprint = bytes(args.file_size);
                let size = bytes(size);
                let row = |&wait| FabricOptions { op, size, depth, wait, footprint };
                rows.extend(args.wait.iter().map(row));
            }
        }
    }
    rows
}

fn raw_options(options: &FabricOptions) -> RawOptions {
    let op = match options.op {
        FabricOp::Read => RawOp::Read,
        FabricOp::Send | FabricOp::Write => RawOp::Write,
    };
    RawOptions {
        op,
        size: options.size,
        depth: options.depth,
        wait: options.wait,
        random: false,
        footprint: options.footprint,
        peer_cpu: None,
    }
}
