//! `dafs cache advise` and `dafs cache drop`.

use std::time::Duration;

use dafs_client::{Advice, File};
use dafs_protocol::CacheHint;
use serde::Serialize;

use super::{class, each_file, open, policy, query};
use crate::connect::{ConnectArgs, Remote};
use crate::failure::{Cause, Failure};
use crate::output::Output;
use crate::tree::Node;
use crate::{interrupt, text};
use dafs_fabric::units::size;

/// Between questions while the server has no room to read ahead.
const PAUSE: Duration = Duration::from_millis(10);
/// Questions without progress, after which it is left at that.
const PAUSES_MAX: usize = 200;

/// Tell the server how files will be used; it takes what it can.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs cache advise --prefetch all dafs://localhost/photos      read a tree into memory\n  \
    dafs cache advise --prefetch 1g-2g dafs://localhost/db        the second GiB of a file\n  \
    dafs cache advise --unit 4k dafs://localhost/db               small reads at random places\n  \
    dafs cache advise --policy mq --unit 4k dafs://localhost/db\n\n\
    Unit, policy and class hold for all users of the file, until the server forgets it (some time\n\
    after its last close) or ends. What is printed is what the server took; - means that it\n\
    chooses. To read in needs only the right to read. It is done in the background, gives way to\n\
    readers, and never takes more than an eighth of the server's memory at a time.")]
#[command(group = clap::ArgGroup::new("advice").required(true).multiple(true)
    .args(["policy", "class", "unit", "prefetch"]))]
pub struct Args {
    /// Which pages go first where room is needed: lru (the longest unused) or mq (what was used
    /// often stays, also while much else is read once).
    #[arg(long, value_name = "POLICY", value_parser = policy_number)]
    policy: Option<u8>,
    /// What the files are worth against others: low, normal or high.
    #[arg(long, value_name = "CLASS", value_parser = class_number)]
    class: Option<u8>,
    /// Bytes that are read in at once, 4k to 1m.
    #[arg(long, value_name = "SIZE", value_parser = unit)]
    unit: Option<u32>,
    /// Read this part in: all, FROM- or FROM-TO (bytes; 4k, 10m, 1g).
    #[arg(long, value_name = "RANGE", value_parser = range)]
    prefetch: Option<Range>,
    /// One JSON object per file.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Files, or directories with all files below.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

/// Drop files from the server's memory, except what is not in its file system yet.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs cache drop dafs://localhost/old\n  \
    dafs cache drop --json dafs://localhost/ | jq .dropped_bytes\n\n\
    The next reader reads from the server's file system again. Dirty pages stay until they are\n\
    written back; `dafs sync URL` first to drop those too. Pages that are being sent stay until they\n\
    are.")]
pub struct DropArgs {
    /// One JSON object per file.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Files, or directories with all files below.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

/// A part of a file; no end: to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Range {
    from: u64,
    to: Option<u64>,
}

#[derive(Serialize)]
struct Taken {
    url: String,
    unit: u32,
    policy: String,
    class: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefetched_bytes: Option<u64>,
}

#[derive(Serialize)]
struct Dropped {
    url: String,
    dropped_bytes: u64,
}

fn policy_number(text: &str) -> Result<u8, String> {
    number(&CacheHint::POLICIES, text)
}

fn class_number(text: &str) -> Result<u8, String> {
    number(&CacheHint::CLASSES, text)
}

fn number(names: &[(u8, &str)], text: &str) -> Result<u8, String> {
    let known = names.iter().find(|(_, name)| *name == text);
    known.map(|(number, _)| *number).ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|(_, name)| *name).collect();
        format!("expected {}", names.join(" or "))
    })
}

fn unit(text: &str) -> Result<u32, String> {
    let [least, most] = CacheHint::UNIT_BYTES;
    let bytes = u32::try_from(size(text)?).unwrap_or(u32::MAX);
    let is_good = bytes.is_power_of_two() && (least..=most).contains(&bytes);
    if is_good { Ok(bytes) } else { Err("expected a power of two from 4k to 1m".into()) }
}

fn range(text: &str) -> Result<Range, String> {
    if text == "all" {
        return Ok(Range { from: 0, to: None });
    }
    let (from, to) = text.split_once('-').ok_or("expected all, FROM- or FROM-TO")?;
    let from = size(from)?;
    let to = if to.is_empty() { None } else { Some(size(to)?) };
    match to {
        Some(to) if to <= from => Err("the range ends before it begins".into()),
        _ => Ok(Range { from, to }),
    }
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut out = Output::new();
    each_file(&args.connect, &args.urls, &mut out, |remote, node, out| {
        advise(args, remote, node, out)
    })?;
    Ok(out.flush()?)
}

fn advise(args: &Args, remote: &Remote, node: &Node, out: &mut Output) -> Result<(), Failure> {
    let wish = CacheHint {
        unit: args.unit.unwrap_or(0),
        policy: args.policy.unwrap_or(0),
        class: args.class.unwrap_or(0),
    };
    let failed = |error: dafs_client::Error| remote.failure(&node.path, error);
    let file = open(remote, &node.path)?;
    let cache = file.advise(0, 0, Advice::Wish(wish)).map_err(failed)?.cache;
    let prefetched_bytes = match args.prefetch {
        Some(range) => Some(prefetch(&file, range, node.attr.size).map_err(failed)?),
        None => None,
    };
    file.close().map_err(failed)?;
    if interrupt::requested() {
        return Err(remote.failure(&node.path, Cause::Interrupted));
    }
    let url = remote.name(&node.path);
    let (policy, class) = (policy(cache), class(cache));
    if args.json {
        return Ok(out.json(&Taken { url, unit: cache.unit, policy, class, prefetched_bytes })?);
    }
    let unit = match cache.unit {
        0 => "-".to_owned(),
        unit => text::human(u64::from(unit)),
    };
    let prefetched = match prefetched_bytes {
        Some(bytes) => format!(", {} read in", text::human(bytes)),
        None => String::new(),
    };
    Ok(out.line(&format!("{url}: unit {unit}, policy {policy}, class {class}{prefetched}"))?)
}

/// Bytes of the range that are cached or on their way; fewer than there are where the server had
/// no room for long.
fn prefetch(file: &File, range: Range, size: u64) -> dafs_client::Result<u64> {
    let end = range.to.unwrap_or(size).min(size);
    let (mut at, mut pauses) = (range.from, 0);
    while at < end {
        match file.advise(at, end - at, Advice::WillNeed)?.bytes {
            0 if pauses == PAUSES_MAX || !interrupt::sleep(PAUSE) => break,
            0 => pauses += 1,
            bytes => {
                at = at.saturating_add(bytes);
                pauses = 0;
            }
        }
    }
    Ok(at.min(end).saturating_sub(range.from))
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run_drop(args: &DropArgs) -> Result<(), Failure> {
    let mut out = Output::new();
    let mut sum = 0;
    each_file(&args.connect, &args.urls, &mut out, |remote, node, out| {
        // What is not cached is not opened: the server would begin to remember it.
        let (info, _) = query(remote, &node.path)?;
        if info.clean_bytes == 0 {
            return Ok(());
        }
        let failed = |error: dafs_client::Error| remote.failure(&node.path, error);
        let file = open(remote, &node.path)?;
        let dropped = file.advise(0, 0, Advice::DontNeed).map_err(failed)?.bytes;
        file.close().map_err(failed)?;
        sum += dropped;
        let url = remote.name(&node.path);
        if args.json {
            return Ok(out.json(&Dropped { url, dropped_bytes: dropped })?);
        }
        Ok(out.line(&format!("{:>8} {url}", text::human(dropped)))?)
    })?;
    if !args.json {
        out.line(&format!("{:>8} dropped", text::human(sum)))?;
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_all_or_have_a_start() {
        let good = |from, to| Ok(Range { from, to });
        assert_eq!(range("all"), good(0, None));
        assert_eq!(range("4k-"), good(4096, None));
        assert_eq!(range("0-1m"), good(0, Some(1 << 20)));
        for wrong in ["", "4k", "-", "-4k", "8k-4k", "4k-4k", "a-b"] {
            assert!(range(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn units_are_powers_of_two() {
        assert_eq!((unit("4k"), unit("1m")), (Ok(4096), Ok(1 << 20)));
        for wrong in ["2k", "2m", "5000", "9999999999"] {
            assert!(unit(wrong).is_err(), "{wrong}");
        }
    }
}
