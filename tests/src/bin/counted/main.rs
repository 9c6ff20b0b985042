//! What 4 KiB reads cost, in instructions: `counted`.
//!
//! A client and a server are stepped by turns in one thread over loopback TCP, 32 reads at a time,
//! under callgrind. Nobody waits and nothing else is counted, so that the figures are the same in
//! each run, however busy the machine is. Printed are instructions, calls of memcpy, allocations
//! and system calls per read, for each end and each layer: of reads that the cache answers, and, for the
//! server, of reads for which it asks the disk, directly, and gives up something else. The same of cached
//! reads by a reference, without requests, and of them over shared memory, also one at a time; and of hits, which a
//! client copies out of the cache of a server process, beside that copy. Others are counted when they are asked for:
//! `counted "client, NETWORK, 1"`.
//!
//! The last line has each figure beside its bound, of [`BOUNDS`]; `counted --check` fails above one.

#![forbid(unsafe_code)]

mod profile;
mod workload;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use profile::Profile;
use workload::{Network, READS};

/// What is counted and what it may cost per read: instructions, calls of memcpy, calls of malloc. The
/// figures of 2026-11-28, and 2 to 3 %.
const BOUNDS: [(&str, [f64; 3]); 10] = [
    ("server", [2315.0, 3.2, 0.01]),
    ("client", [2545.0, 3.2, 0.01]),
    ("server, named", [922.0, 0.2, 0.01]),
    ("client, named", [2030.0, 2.1, 0.01]),
    ("server, cold", [5960.0, 4.3, 0.05]),
    ("server, shm", [1408.0, 2.1, 0.01]),
    ("client, shm", [1265.0, 2.1, 0.01]),
    ("server, shm, 1", [1970.0, 2.1, 0.02]),
    ("client, shm, 1", [1835.0, 2.1, 0.04]),
    (HITS, [200.0, 1.1, 0.01]),
];

/// Reads that a client answers by itself. It is the program of the bars that makes them, as threads and processes are
/// needed, without which this program is built.
const HITS: &str = "client, hits";

/// What is counted, taken apart: `END[, cold | hits][, NETWORK][, DEPTH]`.
struct What<'a> {
    end: &'a str,
    cold: bool,
    hits: bool,
    network: &'a str,
    depth: &'a str,
}

impl What<'_> {
    fn parse(text: &str) -> Result<What<'_>, String> {
        let mut words = text.split(", ");
        let end = words.next().filter(|end| ["server", "client"].contains(end));
        let end = end.ok_or_else(|| format!("'{text}' begins with neither server nor client"))?;
        let mut what = What { end, cold: false, hits: text == HITS, network: "tcp", depth: "32" };
        for word in words {
            match word {
                "cold" => what.cold = true,
                "hits" if what.hits => {}
                "1" | "32" => what.depth = word,
                network if Network::named(network).is_some() => what.network = network,
                other => return Err(format!("'{other}': no network, nor 1, 32 or cold")),
            }
        }
        Ok(what)
    }

    /// What runs under the profiler: this program or one that lies beside it, with files in `dir`.
    fn command(&self, this: PathBuf, dir: &Path) -> (PathBuf, Vec<String>) {
        if self.hits {
            let reads = READS.to_string();
            return (this.with_file_name("acceptance"), vec!["--hits".into(), reads]);
        }
        let reads = if self.cold { "cold" } else { "cached" };
        let dir = dir.display().to_string();
        let args = ["--workload", reads, self.network, self.depth, &dir];
        (this, args.map(String::from).into())
    }
}

/// `None`: it cannot be counted here, which is told.
fn profile(text: &str) -> Result<Option<Profile>, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let file = dir.path().join("callgrind.out");
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let what = What::parse(text)?;
    let end = what.end;
    if what.cold
        && let Err(error) = workload::direct(dir.path())
    {
        println!("{text}: not counted in {}: {error}", dir.path().display());
        return Ok(None);
    }
    let (program, args) = what.command(this, dir.path());
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--collect-systime=yes", "--compress-strings=yes"])
        .arg(format!("--toggle-collect=*counted_{end}*"))
        .arg("--zero-before=*counting_begins*")
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("valgrind: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
    Ok(Some(Profile::parse(&text)))
}

fn print(what: &str, profile: &Profile) -> [f64; 3] {
    let each = |count: u64| count as f64 / READS as f64;
    let whole: u64 = profile.layers.values().sum();
    println!("{what}");
    let mut layers: Vec<_> = profile.layers.iter().collect();
    layers.sort_by_key(|(_, cost)| std::cmp::Reverse(**cost));
    for (layer, cost) in layers {
        println!("    {layer:<16} {:>10.1}", each(*cost));
    }
    let mut sums = [each(whole), each(profile.copies), each(profile.allocations)];
    println!("    {:<16} {:>10.1}", "instructions", sums[0]);
    if what == HITS {
        sums[0] -= profile.layers.get("memcpy").map_or(0.0, |copy| each(*copy));
        println!("    {:<16} {:>10.1}", "beside the copy", sums[0]);
    }
    println!("    {:<16} {:>10.2}", "memcpy calls", sums[1]);
    println!("    {:<16} {:>10.2}", "allocations", sums[2]);
    println!("    {:<16} {:>10.2}", "system calls", each(profile.system_calls));
    sums
}

/// Runs what is counted: this program, under the profiler.
fn workload(reads: &str, network: &str, depth: &str, dir: &str) -> ExitCode {
    let (Some(network), Ok(depth)) = (Network::named(network), depth.parse()) else {
        return ExitCode::from(2);
    };
    match reads {
        "cold" => workload::cold(&network, Path::new(dir)),
        _ => workload::cached(&network, depth),
    }
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let usual = BOUNDS.map(|(what, _)| what);
    let asked: &[&str] = match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--workload", reads, network, depth, dir] => return workload(reads, network, depth, dir),
        [what] if !what.starts_with("--") => &[what],
        [] | ["--check"] => &usual,
        _ => {
            eprintln!("usage: counted [--check | 'END[, cold][, NETWORK][, 1]']");
            return ExitCode::from(2);
        }
    };
    println!("4 KiB reads, per read; cached, over tcp, 32 at a time if not told otherwise:");
    let mut found = BTreeMap::new();
    for &what in asked {
        match profile(what) {
            Ok(profile) => found.extend(profile.map(|profile| (what, print(what, &profile)))),
            Err(error) => {
                eprintln!("counted: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    let (summary, is_good) = compare(&found);
    println!("{summary}");
    if is_good || args != ["--check"] { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Each figure beside its bound, in a line.
fn compare(found: &BTreeMap<&str, [f64; 3]>) -> (String, bool) {
    let (mut told, mut is_good) = (Vec::new(), true);
    for (end, bounds) in BOUNDS {
        let Some(figures) = found.get(end) else { continue };
        // Allocations are few, or none.
        let beside = |(figure, bound): (&f64, &f64)| match *bound < 1.0 {
            true => format!("{figure:.4} of {bound:.2}"),
            false => format!("{figure:.1} of {bound:.1}"),
        };
        let beside: Vec<_> = figures.iter().zip(&bounds).map(beside).collect();
        told.push(format!("{end} {}", beside.join(", ")));
        is_good &= figures.iter().zip(&bounds).all(|(figure, bound)| figure <= bound);
    }
    (told.join("; "), is_good)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_above_its_bound_is_told() {
        let at = |more: f64| BOUNDS.map(|(end, bounds)| (end, bounds.map(|bound| bound + more)));
        let good = compare(&BTreeMap::from(at(0.0)));
        let bad = compare(&BTreeMap::from(at(1.0)));
        assert!(good.1 && !bad.1, "{good:?}, {bad:?}");
    }
}
