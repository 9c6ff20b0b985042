//! `dafs bench optimistic`: each experiment tells what it measured, and nothing of what it did not.

mod common;

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use common::{Server, Temporary, bad, binary, good, interrupt, json, path};
use serde_json::Value;

const SHORT: [&str; 7] = ["--json", "--seconds", "20ms", "--file-size", "1m", "--files", "100"];

fn bench(urls: &[String], options: &[&str]) -> Vec<Value> {
    let urls: Vec<&str> = urls.iter().map(String::as_str).collect();
    json(&good(&[&["bench", "optimistic"], &urls[..], &SHORT[..], options].concat()))
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"))
}

fn left_over(server: &Server) -> usize {
    std::fs::read_dir(server.file("")).expect("directory").count()
}

#[test]
fn experiments_are_done_by_shared_memory_and_drawn() {
    let (server, plots) = (Server::start(&["--arena", "16m", "--workers", "1"]), Temporary::new());
    let (urls, drawn) = ([server.at("?transport=shm")], plots.join("of"));
    // Not the slow ones: large files, and requests for each open and close.
    let only = "table-2,table-3,figure-3,figure-7,limit-client-cache,limit-not-exported,limit-writes,\
        limit-translation-cache,revoke";
    let options = ["--wait", "sleeping", "--only", only, "--plots", path(&drawn)];
    let rows = bench(&urls, &options);
    let of = |name: &str, way: &str| -> Vec<&Value> {
        let own = rows.iter().filter(|row| row["experiment"] == name && row["path"] == way);
        own.collect()
    };
    let all = [
        ("table-3", 2),
        ("figure-7", 5),
        ("limit-client-cache", 6),
        ("limit-not-exported", 6),
        ("limit-writes", 7),
        ("limit-translation-cache", 7),
    ];
    for (name, count) in all {
        let (direct, own) = (of(name, "rpc-direct"), of(name, "optimistic"));
        assert_eq!(own.len(), count, "{name}");
        assert_eq!(direct.len(), count * if name.starts_with("figure-7") { 2 } else { 1 });
        for row in own.iter().chain(&direct) {
            assert!(number(row, "ops") > 0.0 && number(row, "server_requests_per_op") >= 0.0);
            assert_eq!(row["transport"], "shm");
        }
        assert!(own.iter().all(|row| row["gain"].is_f64()), "{name}");
        assert!(direct.iter().all(|row| row["gain"].is_null()), "{name}");
    }
    // What is found without the server costs it no request.
    for name in ["table-3", "limit-client-cache", "figure-7"] {
        for row in of(name, "optimistic") {
            assert!(number(row, "optimistic_ratio") > 0.99, "{row}");
            assert!(number(row, "server_requests_per_op") < 0.01, "{row}");
        }
        for row in of(name, "rpc-direct") {
            assert!(row["optimistic_ratio"].as_f64().is_none_or(|ratio| ratio == 0.0), "{row}");
        }
    }
    for row in of("limit-client-cache", "optimistic") {
        let (wanted, found) = (number(row, "percent") / 100.0, number(row, "client_hit_ratio"));
        assert!((wanted - found).abs() < 0.15, "{row}");
    }
    let hidden = of("limit-not-exported", "optimistic");
    assert_eq!(number(hidden[5], "optimistic_ratio"), 0.0);
    assert!(number(hidden[0], "optimistic_ratio") > 0.99, "{}", hidden[0]);
    // A card that lacks three of four pages makes most reads wait.
    let pages = of("limit-translation-cache", "optimistic");
    assert!(number(pages[6], "p50_us") > number(pages[0], "p50_us").max(9.0), "{pages:?}");
    for row in of("revoke", "optimistic") {
        assert!(number(row, "p50_us") > 0.0 && number(row, "worst_us") < 1000.0, "{row}");
    }
    assert_eq!(of("table-2", "bare").len(), 4);
    assert_eq!(of("figure-3", "rpc-inline").len(), 8);
    let names = ["figure-3", "figure-4", "figure-7", "limit-client-cache", "limit-writes"];
    for name in names {
        let file = drawn.join(format!("{name}-shm-sleeping.svg"));
        let figure = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(
            figure.contains("<svg") && figure.contains("rpc-direct") == name.starts_with("fig")
        );
    }
    assert_eq!(left_over(&server), 0);
}

/// Where all is asked for, there is nothing to tell of reads that ask nobody.
#[test]
fn what_there_is_not_is_null() {
    let server = Server::start(&["--arena", "16m", "--optimistic", "off"]);
    let urls = [server.at("?transport=tcp"), server.at("?transport=shm")];
    let rows = bench(&urls, &["--wait", "sleeping", "--only", "table-3,figure-7,revoke"]);
    for transport in ["tcp", "shm"] {
        let own = rows.iter().filter(|row| row["transport"] == transport);
        let (own, asked): (Vec<&Value>, Vec<&Value>) =
            own.partition(|row| row["path"] == "optimistic");
        assert_eq!((own.len(), asked.len()), (2 + 5 + 2, 4 + 10), "{transport}");
        for row in own {
            for field in ["ops", "ops_per_s", "p50_us", "gain", "server_cpu_us_per_op"] {
                assert!(row[field].is_null(), "{field}: {row}");
            }
        }
        assert!(asked.iter().all(|row| number(row, "ops") > 0.0));
    }
    assert_eq!(left_over(&server), 0);
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    let server = Server::start(&["--arena", "64m"]);
    let mut child = binary()
        .args(["bench", "optimistic", &server.at("?transport=shm"), "--only", "table-3,figure-6"])
        .args(["--json", "--file-size", "4m", "--wait", "sleeping"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    assert!(lines.next().is_some_and(|line| line.is_ok()), "a row");
    assert!(left_over(&server) > 0);
    interrupt(&child);
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    assert_eq!(left_over(&server), 0);
}

#[test]
fn what_makes_no_sense_is_said() {
    let url = "dafs://localhost/";
    let said = bad(2, &["bench", "optimistic", url, "--only", "table-9"]);
    assert!(said.contains("figure-6") && said.contains("table-9"), "{said}");
    assert!(bad(2, &["bench", "optimistic", url, "--link", "fast"]).contains("2g"));
    assert!(bad(2, &["bench", "optimistic", url, "--hit-ratio", "101"]).contains("0 to 100"));
    assert!(bad(2, &["bench", "optimistic", url, "--file-size", "5000"]).contains("--file-size"));
}
