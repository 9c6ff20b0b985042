//! A file read again and again by a server with limited memory.

use std::time::{Duration, Instant};

use dafs_bench::{median, size_text};
use dafs_client::{File, OpenOptions, Url};
use dafs_server::DataPath;

use super::cgroup::Cgroup;
use super::row::{Row, compare};
use super::served::{Served, Start};
use super::{Args, stopped};
use crate::connect::ConnectArgs;
use crate::failure::{Cause, Failure};
use crate::progress::{self, Progress};

/// Bytes of one access.
const ACCESS_BYTES: usize = 1 << 20;
/// Passes that are measured, after one that is not.
const PASSES: usize = 3;
/// Of the limit, in percent, that the server's own cache takes: the rest is for its program and
/// for the page cache through which it reads.
const ARENA_PERCENT: u64 = 90;

pub(super) fn run(
    args: &Args,
    progress: &Progress,
    put: &mut dyn FnMut(&Row) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if let Err(error) = Cgroup::new("trial", args.limit) {
        let text = format!(
            "dafs bench unifier: reread is left out: it limits memory by a cgroup, which needs \
             root and a memory controller: {error}"
        );
        progress::message(&text);
        return if args.only.is_some() { Err(Failure::about("reread", error)) } else { Ok(()) };
    }
    for percent in &args.percent {
        let bytes = args.limit / 100 * percent;
        let bytes = bytes.next_multiple_of(ACCESS_BYTES as u64);
        let mut rows = Vec::new();
        for &path in &args.datapath {
            progress.text(&format!("reread: {} of {path}", size_text(bytes)));
            rows.push(measure(args, path, bytes)?);
        }
        compare(&mut rows);
        rows.iter().try_for_each(&mut *put)?;
    }
    Ok(())
}

fn measure(args: &Args, path: DataPath, bytes: u64) -> Result<Row, Failure> {
    let fail = |error: std::io::Error| Failure::about("cgroup", Cause::Local(error));
    let cgroup = Some(Cgroup::new(path.name(), args.limit).map_err(fail)?);
    let arena_bytes = args.limit / 100 * ARENA_PERCENT;
    let (parent, disk) = (args.directory.as_path(), args.disk.as_str());
    let served = Served::start(Start { parent, path, arena_bytes, disk, cgroup })?;
    let url = Url::parse(&served.url).map_err(|error| Failure::about(&served.url, error))?;
    let session = ConnectArgs { retry: Duration::ZERO, key_file: None }.connect(&url)?;
    let fail = |error: dafs_client::Error| Failure::about(&url, error);
    let file = session.open(b"file", OpenOptions::write()).map_err(fail)?;
    fill(&file, bytes).map_err(fail)?;
    stopped()?;
    file.commit().map_err(fail)?;
    file.close().map_err(fail)?;
    let file = session.open(b"file", OpenOptions::read()).map_err(fail)?;
    pass(&file, bytes)?;
    let before = (served.cpu_ns(), served.disk_bytes());
    let mut rates = Vec::new();
    for _ in 0..PASSES {
        let start = Instant::now();
        pass(&file, bytes)?;
        rates.push(bytes as f64 / start.elapsed().as_secs_f64());
    }
    let per_byte = |before: Option<u64>, after: Option<u64>| {
        Some((after? - before?) as f64 / (bytes * PASSES as u64) as f64)
    };
    Ok(Row {
        experiment: "reread",
        datapath: path.name(),
        size: ACCESS_BYTES as u64,
        file_bytes: bytes,
        limit_bytes: Some(args.limit),
        bytes_per_s: median(rates).unwrap_or(0.0),
        server_cpu_ns_per_byte: per_byte(before.0, served.cpu_ns()),
        disk_bytes_per_byte: per_byte(before.1, served.disk_bytes()),
        rate_of_normal: None,
        cpu_efficiency_of_normal: None,
    })
}

fn fill(file: &File, bytes: u64) -> dafs_client::Result<()> {
    let piece: Vec<u8> = (0..ACCESS_BYTES).map(|i| (i % 251) as u8).collect();
    for offset in (0..bytes).step_by(ACCESS_BYTES) {
        if stopped().is_err() {
            break;
        }
        file.write_at(&piece, offset)?;
    }
    Ok(())
}

/// Reads all of it once.
fn pass(file: &File, bytes: u64) -> Result<(), Failure> {
    let mut buffer = vec![0; ACCESS_BYTES];
    for offset in (0..bytes).step_by(ACCESS_BYTES) {
        stopped()?;
        match file.read_at(&mut buffer, offset) {
            Ok(ACCESS_BYTES) => {}
            Ok(_) => return Err(Failure::about("file", Cause::from("it is too short"))),
            Err(error) => return Err(Failure::about("file", error)),
        }
    }
    Ok(())
}
