//! cached-paths, reread: the unifier beside the other data paths, as `dafs bench unifier` measures it.

use dafs_tests::run;
use serde_json::Value;

use crate::{Line, Mode};

fn bench(args: &[&str]) -> Result<Vec<Value>, String> {
    let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().display().to_string();
    let mut all = vec!["bench", "unifier", path.as_str(), "--json"];
    all.extend(args);
    let output = run(&all);
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).trim().to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let rows = text.lines().map(|line| serde_json::from_str(line).map_err(|e| e.to_string()));
    rows.collect()
}

fn number(row: &Value, key: &str) -> f64 {
    row.get(key).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn of<'r>(rows: &'r [Value], datapath: &str, size: u64) -> Result<&'r Value, String> {
    let is_it = |row: &&Value| {
        row.get("datapath").and_then(Value::as_str) == Some(datapath)
            && row.get("size").and_then(Value::as_u64) == Some(size)
    };
    rows.iter().find(is_it).ok_or_else(|| format!("no row of {datapath} with {size} bytes"))
}

/// Cached reads by the size of an access.
pub(crate) fn cached(mode: Mode) -> Vec<Line> {
    let seconds = mode.pick("1", "4");
    let sizes = "4k,16k,64k,256k,1m";
    let args =
        ["--only", "cached", "--size", sizes, "--datapath", "normal,mmap,unifier", "--seconds"];
    let rows = match bench(&[&args[..], &[seconds]].concat()) {
        Ok(rows) => rows,
        Err(error) => {
            return vec![Line::new("cached-paths", "cached reads", "an answer").result(Err(error))];
        }
    };
    [4u64 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]
        .into_iter()
        .flat_map(|size| cached_lines(&rows, size))
        .collect()
}

fn cached_lines(rows: &[Value], size: u64) -> Vec<Line> {
    let what = format!("cached reads of {} KiB: unifier", size >> 10);
    let line = |required| Line::new("cached-paths", &what, required).timing();
    let paths = (of(rows, "unifier", size), of(rows, "normal", size), of(rows, "mmap", size));
    let (Ok(unifier), Ok(normal), Ok(mmap)) = paths else {
        return vec![line("a row each").result(Err("rows are missing".into()))];
    };
    let rate = |row| number(row, "bytes_per_s") / 1e6;
    let (own, normal, mmap) = (rate(unifier), rate(normal), rate(mmap));
    let measured = format!("{own:.0} MB/s, normal {normal:.0}, mmap {mmap:.0}");
    let faster = own > normal && own > mmap;
    let mut lines = vec![line("faster than normal and mmap").measured(measured, faster)];
    if size >= 64 << 10 {
        let by_rate = number(unifier, "rate_of_normal");
        let by_cpu = number(unifier, "cpu_efficiency_of_normal");
        let measured = format!("{by_rate:.2} by rate, {by_cpu:.2} by server CPU");
        let pass = by_rate >= 1.3 || by_cpu >= 1.3;
        lines.push(line("≥ 1.3 × normal, by rate or CPU").measured(measured, pass));
    }
    lines
}

/// A file of 85 % of the server's memory is read again.
pub(crate) fn reread(mode: Mode) -> Vec<Line> {
    let what = "re-read of a file of 85 % of the server's memory";
    let required = "no byte from disk with unifier";
    // Told, and fails nothing: in a group the server begins with a cache of 80 % of the limit.
    let line = Line::new("reread", what, required).timing();
    if !nix::unistd::geteuid().is_root() {
        return vec![line.skipped("needs root: a memory cgroup")];
    }
    let limit = mode.pick("256m", "1g");
    let args = ["--only", "reread", "--percent", "85", "--datapath", "normal,unifier"];
    let rows = match bench(&[&args[..], &["--limit", limit]].concat()) {
        Ok(rows) => rows,
        Err(error) => return vec![line.result(Err(error))],
    };
    let (Ok(unifier), Ok(normal)) = (of(&rows, "unifier", 1 << 20), of(&rows, "normal", 1 << 20))
    else {
        return vec![line.result(Err("rows are missing".into()))];
    };
    let disk = |row| number(row, "disk_bytes_per_byte");
    let rate = |row| number(row, "bytes_per_s") / 1e6;
    let measured = format!(
        "{:.3} of the bytes ({:.0} MB/s); normal {:.3} ({:.0} MB/s)",
        disk(unifier),
        rate(unifier),
        disk(normal),
        rate(normal)
    );
    vec![line.measured(measured, disk(unifier) == 0.0)]
}
