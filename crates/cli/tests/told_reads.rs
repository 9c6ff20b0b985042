//! Who looks at a server sees how reads go that need no request: as the clients count them.

mod common;

use std::time::{Duration, Instant};

use common::cached::{BYTES, PAGE, contents, open, read, serving};
use common::{Server, good, path};
use dafs_client::{File, OptimisticStats, Session};
use serde_json::Value;

fn status(server: &Server) -> Value {
    serde_json::from_str(&good(&["status", "--json", &server.url])).expect("an object")
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or_else(|| panic!("no {name} in {of}"))
}

/// What is said of the only session.
fn only(status: &Value) -> &Value {
    let sessions = status["sessions"].as_array().expect("a list");
    assert_eq!(sessions.len(), 1, "{sessions:?}");
    &sessions[0]["optimistic"]
}

/// Reads all of the file, and then so many blocks of which the server was asked before.
fn read_some(file: &File, blocks: usize) {
    assert!(read(file, 0, BYTES) == contents());
    for block in (0..64).chain((0..blocks).map(|block| block % 64)) {
        let at = block * PAGE;
        assert!(read(file, at, PAGE) == contents()[at..at + PAGE]);
    }
}

fn own(session: &Session) -> OptimisticStats {
    session.info().optimistic
}

#[test]
fn reads_of_the_mapped_cache_are_shown_as_the_client_counts_them() {
    let server = serving(&[]);
    let (session, file) = open(&server, "transport=shm");
    read_some(&file, 1000);
    let (before, requests) = (own(&session), session.info().round_trips);
    assert!(before.hits >= 1000, "{before:?}");
    // With whatever is asked for anyway.
    session.ping().expect("an answer");
    assert_eq!(session.info().round_trips, requests + 1);
    let told = status(&server);
    let shown = only(&told);
    let seen = [before.hits, before.stale, before.unknown];
    let names = ["own_reads", "own_reads_stale", "own_reads_unknown"];
    assert_eq!(names.map(|name| number(shown, name)), seen);
    assert_eq!(names.map(|name| number(&told["counters"], name)), seen);
    assert!(number(shown, "own_reads_per_second") > 0, "{shown}");
    assert!(number(shown, "references_told") >= 64 && number(shown, "named_reads") == 0);
    let top = good(&["top", "--once", "--interval", "100ms", &server.url]);
    assert!(top.contains("without a request: hits "), "{top}");
    // Another one, which ends: it is not listed any more, and counted.
    let (other, its_file) = open(&server, "transport=shm");
    read_some(&its_file, 500);
    let its = own(&other).hits;
    its_file.close().expect("closed");
    other.close();
    let told = status(&server);
    assert_eq!(number(only(&told), "own_reads"), before.hits);
    assert_eq!(number(&told["counters"], "own_reads"), before.hits + its);
}

/// It asks for nothing else; that it lives it has to say.
#[test]
fn an_idle_session_tells_when_it_renews_its_lease() {
    let config = common::Temporary::new();
    let limits = config.join("config");
    std::fs::write(&limits, "[limits]\nlease_seconds = 1\n").expect("written");
    let server = serving(&["--config", path(&limits)]);
    let (session, file) = open(&server, "transport=shm");
    read_some(&file, 300);
    let hits = own(&session).hits;
    let start = Instant::now();
    while number(&status(&server)["counters"], "own_reads") < hits {
        assert!(start.elapsed() < Duration::from_secs(20), "{} of {hits}", status(&server));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(number(only(&status(&server)), "own_reads"), hits);
}

#[test]
fn reads_by_a_reference_are_shown_as_the_client_counts_them() {
    let server = serving(&["--optimistic", "both"]);
    let (session, file) = open(&server, "transport=tcp");
    read_some(&file, 1000);
    let before = own(&session);
    assert!(before.hits >= 1000, "{before:?}");
    let told = status(&server);
    let seen = [before.hits, before.refused, before.asked];
    let names = ["named_reads", "named_refused", "references_told"];
    assert_eq!(names.map(|name| number(only(&told), name)), seen);
    let names = ["named_reads", "named_refused", "named_told"];
    assert_eq!(names.map(|name| number(&told["counters"], name)), seen);
    // What these took of the server's time, or what samples say of that.
    let [all, data_plane] = ["cpu_ns", "data_plane_cpu_ns"].map(|name| number(&told, name));
    assert!(data_plane > 0 && data_plane <= all + all / 2, "{data_plane} of {all}");
    // A client that maps nothing has nothing to tell.
    session.ping().expect("an answer");
    assert_eq!(number(only(&status(&server)), "own_reads"), 0);
    let top = good(&["top", "--once", "--json", "--interval", "100ms", &server.url]);
    let top: Value = serde_json::from_str(&top).expect("an object");
    assert_eq!(number(&top, "references_told"), before.asked);
    assert_eq!(number(&top["sessions"][0], "references_told"), before.asked);
}

#[test]
fn nothing_is_shown_where_nothing_is_read_so() {
    let server = serving(&["--optimistic", "off"]);
    let (session, file) = open(&server, "transport=shm");
    read_some(&file, 10);
    session.ping().expect("an answer");
    assert_eq!(number(only(&status(&server)), "own_reads"), 0);
    let top = good(&["top", "--once", "--interval", "100ms", &server.url]);
    assert!(!top.contains("without a request"), "{top}");
}
