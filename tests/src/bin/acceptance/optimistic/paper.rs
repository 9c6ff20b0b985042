//! The gains of \[ODAFS\] 5, by `dafs bench optimistic`: its table 3, figure 6 and figure 7, by shared memory.

use std::process::{Command, Stdio};

use dafs_tests::client::session_by_shm;
use dafs_tests::{Served, run_ok};
use serde_json::Value;

use crate::{Line, Mode};

/// A read takes so much less than one by the server that places the data.
const RESPONSE: f64 = 0.36;
/// PostMark does so much more.
const POSTMARK: f64 = 0.34;
/// Two clients read so much more than from a server that polls.
const SERVER: f64 = 0.32;
/// The processor of the server; what measures has the first.
const SERVER_CPU: &str = "1";
const OTHERS_CPU: &str = "0";

fn bench(url: &str, options: &[&str]) -> Vec<Value> {
    let text = run_ok(&[&["bench", "optimistic", url, "--json"], options].concat());
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object")).collect()
}

fn number(row: &Value, field: &str) -> f64 {
    row.get(field).and_then(Value::as_f64).unwrap_or(f64::NAN)
}

fn percent(value: f64) -> String {
    format!("{:.0} %", 100.0 * value)
}

fn without_server<'r>(rows: &'r [Value], experiment: &str) -> Vec<&'r Value> {
    let is_it = |row: &&Value| row["experiment"] == experiment && row["path"] == "optimistic";
    rows.iter().filter(is_it).collect()
}

/// By how much a read takes less, to where `to` says.
fn less(rows: &[Value], to: &str) -> f64 {
    let p50 = |path: &str| {
        let is_it = |row: &&Value| row["path"] == path && row["to"] == to;
        rows.iter().find(is_it).map_or(f64::NAN, |row| number(row, "p50_us"))
    };
    1.0 - p50("optimistic") / p50("rpc-direct")
}

fn line(what: &str, required: &str) -> Line {
    Line::new("paper", what, required)
}

fn response(url: &str, seconds: &str) -> Line {
    let options = ["--only", "table-3", "--wait", "polled", "--seconds", seconds];
    let rows = bench(url, &[&options[..], &["--file-size", "16m"]].concat());
    let (memory, cache) = (less(&rows, "memory"), less(&rows, "cache"));
    let text = format!("{} to memory, {} to a cache", percent(memory), percent(cache));
    line("4 KiB read beside one by the server, which polls", "≥ 36 % less time")
        .timing()
        .measured(text, memory >= RESPONSE && cache >= RESPONSE)
}

fn postmark(url: &str, seconds: &str) -> Vec<Line> {
    let options = ["--only", "figure-6", "--wait", "polled", "--seconds", seconds];
    let rows = bench(url, &[&options[..], &["--files", "500"]].concat());
    let own = without_server(&rows, "figure-6");
    let gains: Vec<f64> = own.iter().map(|row| number(row, "gain")).collect();
    let text: Vec<String> = gains.iter().map(|gain| percent(*gain)).collect();
    let asked: f64 =
        own.iter().map(|row| number(row, "server_requests_per_op")).fold(0.0, f64::max);
    let good = gains.len() == 3 && gains.iter().all(|gain| *gain >= POSTMARK);
    vec![
        line("PostMark, 25, 50, 75 % found at the client", "≥ 34 % more, the server polling")
            .timing()
            .measured(text.join(", "), good),
        line("requests of a transaction of it", "< 0.01")
            .measured(format!("{asked:.4} at most"), own.len() == 3 && asked < 0.01),
    ]
}

fn two_clients(url: &str, seconds: &str) -> Line {
    let options = ["--only", "figure-7", "--cpu", OTHERS_CPU, "--seconds", seconds];
    let rows = bench(url, &options);
    let own = without_server(&rows, "figure-7");
    let gains: Vec<f64> = own.iter().map(|row| number(row, "gain")).collect();
    let text: Vec<String> = gains.iter().map(|gain| percent(*gain)).collect();
    // As the paper's: of the smallest blocks.
    let good = gains.first().is_some_and(|gain| *gain >= SERVER);
    line("two clients of one processor, blocks of 4 to 64 KiB", "4 KiB: ≥ 32 % more than polling")
        .timing()
        .measured(text.join(", "), good)
}

/// The server alone on a processor. False: there is only one.
fn placed(server: &Served) -> bool {
    let pid = server.pid().to_string();
    let mut taskset = Command::new("taskset");
    let status = taskset.args(["-a", "-c", "-p", SERVER_CPU, &pid]).stdout(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

pub(crate) fn paper(mode: Mode) -> Vec<Line> {
    let dir = tempfile::tempdir().expect("tempdir");
    dafs_tests::served::as_in_use(true);
    let server = Served::start(dir.path(), &["--arena", "256m", "--workers", "1"]);
    if let Err(error) = session_by_shm(&server.at(""), |_| {}) {
        return vec![line("gains", "a session").skipped(error.to_string())];
    }
    let (url, seconds) = (format!("{}?transport=shm", server.url), mode.pick("250ms", "3s"));
    if !placed(&server) {
        return vec![line("gains", "two processors").skipped("the server has none for itself")];
    }
    let mut lines = vec![response(&url, seconds)];
    lines.extend(postmark(&url, seconds));
    lines.push(two_clients(&url, seconds));
    lines
}
