//! `dafs cache show`: which files are in the server's memory.

use dafs_protocol::{CacheInfo, CachedRange};
use serde::Serialize;

use super::{class, each_file, policy, query};
use crate::connect::{ConnectArgs, Remote};
use crate::failure::Failure;
use crate::output::Output;
use crate::text;
use crate::tree::Node;

/// Print what the server's cache holds of files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs cache show dafs://localhost/\n  \
    dafs cache show --ranges dafs://localhost/db\n  \
    dafs cache show --json dafs://localhost/ | jq -s 'map(.cached_bytes) | add'\n\n\
    Columns: bytes in memory, how many of them are dirty (written, not in the server's file system\n\
    yet), size of the file, share of it in memory, unit of reading in, policy, class (- where the\n\
    server chooses), URL. Looking opens no file and changes nothing.")]
pub struct Args {
    /// Of directories also the files of which nothing is cached.
    #[arg(short, long)]
    all: bool,
    /// Which parts of each file are cached.
    #[arg(long)]
    ranges: bool,
    /// One JSON object per file.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Files, or directories with all files below.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

#[derive(Serialize)]
struct FileObject {
    url: String,
    size: u64,
    cached_bytes: u64,
    dirty_bytes: u64,
    unit: u32,
    policy: String,
    class: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ranges: Option<Vec<RangeObject>>,
}

#[derive(Serialize)]
struct RangeObject {
    offset: u64,
    bytes: u64,
    dirty: bool,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut out = Output::new();
    if !args.json {
        out.line("  cached   dirty    size    %   unit policy class  url")?;
    }
    let (mut files, mut cached, mut dirty) = (0u64, 0u64, 0u64);
    each_file(&args.connect, &args.urls, &mut out, |remote, node, out| {
        let (info, ranges) = query(remote, &node.path)?;
        let bytes = info.clean_bytes + info.dirty_bytes;
        if bytes == 0 && !args.all && node.depth > 0 {
            return Ok(());
        }
        (files, cached, dirty) = (files + 1, cached + bytes, dirty + info.dirty_bytes);
        print(args, remote, node, &info, &ranges, out)
    })?;
    if !args.json && files != 1 {
        out.line(&format!("{:>8} {:>7}  {files} files", text::human(cached), text::human(dirty)))?;
    }
    Ok(out.flush()?)
}

fn print(
    args: &Args,
    remote: &Remote,
    node: &Node,
    info: &CacheInfo,
    ranges: &[CachedRange],
    out: &mut Output,
) -> Result<(), Failure> {
    let cached = info.clean_bytes + info.dirty_bytes;
    let (url, size) = (remote.name(&node.path), node.attr.size);
    let (policy, class) = (policy(info.cache), class(info.cache));
    if args.json {
        let ranges = args.ranges.then(|| ranges.iter().map(RangeObject::from).collect());
        let (dirty_bytes, unit) = (info.dirty_bytes, info.cache.unit);
        let cached_bytes = cached;
        return Ok(out.json(&FileObject {
            url,
            size,
            cached_bytes,
            dirty_bytes,
            unit,
            policy,
            class,
            ranges,
        })?);
    }
    let unit = match info.cache.unit {
        0 => "-".to_owned(),
        unit => text::human(u64::from(unit)),
    };
    out.line(&format!(
        "{:>8} {:>7} {:>7} {:>4} {unit:>6} {policy:>6} {class:>6} {url}",
        text::human(cached),
        text::human(info.dirty_bytes),
        text::human(size),
        share(cached, size),
    ))?;
    if args.ranges {
        for range in ranges {
            let (end, what) = (range.offset + range.len, if range.dirty { " dirty" } else { "" });
            let bytes = text::human(range.len);
            out.line(&format!("         {}-{end}  {bytes}{what}", range.offset))?;
        }
    }
    Ok(())
}

/// In percent; the last page may reach over the end of the file.
fn share(cached: u64, size: u64) -> u64 {
    let of = size.next_multiple_of(4096).max(1);
    (u128::from(cached) * 100 / u128::from(of)).min(100) as u64
}

impl From<&CachedRange> for RangeObject {
    fn from(range: &CachedRange) -> RangeObject {
        RangeObject { offset: range.offset, bytes: range.len, dirty: range.dirty }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_in_memory_is_there_wholly() {
        assert_eq!(share(4096, 10), 100);
        assert_eq!(share(0, 0), 0);
        assert_eq!(share(4096, 8192), 50);
        assert_eq!(share(u64::MAX, 1), 100);
    }
}
