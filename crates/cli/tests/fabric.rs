//! `dafs fabric`: the networks of this machine, and by which of them a server is reached.

mod common;

use common::{Server, bad, good};
use serde_json::Value;

fn objects(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

fn network<'a>(all: &'a [Value], name: &str) -> &'a Value {
    all.iter().find(|one| one["network"] == name).expect("listed")
}

#[test]
fn networks_are_listed_with_what_they_do_and_what_is_missing() {
    let all = objects(&good(&["fabric", "list", "--json"]));
    let tcp = network(&all, "tcp");
    assert_eq!((&tcp["available"], &tcp["this_host_only"]), (&true.into(), &false.into()));
    assert_eq!(tcp["schemes"], serde_json::json!(["tcp", "unix"]));
    assert!(tcp["devices"].as_array().is_some_and(|all| all.iter().any(|one| one["name"] == "lo")));
    let shm = network(&all, "shm");
    assert_eq!((&shm["available"], &shm["this_host_only"]), (&true.into(), &true.into()));
    assert_eq!(shm["attributes"]["peer_cpu_free"], true);
    let rdma = network(&all, "rdma");
    assert_eq!(rdma["available"], false);
    let why = rdma["why_not"].as_str().expect("a reason");
    let text = good(&["fabric", "list"]);
    assert!(text.contains(&format!("rdma: not available: {why}\n")), "{text}");
    assert!(text.contains("shm: connects with this host alone"), "{text}");
    assert!(text.contains("  interface lo: up"), "{text}");
}

#[test]
fn a_probe_tells_what_is_chosen_and_why_nothing_nearer() {
    let server = Server::start(&[]);
    let host = server.url.trim_start_matches("dafs://").trim_end_matches('/').to_owned();
    let found = &objects(&good(&["fabric", "probe", "--json", &host]))[0];
    assert_eq!(found["url"], server.url.as_str());
    assert_eq!(found["listens"][0], format!("tcp://{host}"));
    let networks = found["networks"].as_array().expect("a list");
    for name in ["tcp", "shm"] {
        let one = network(networks, name);
        assert!(one["reached"] == true && one["us"].as_f64() > Some(0.0), "{one}");
    }
    // Its port was free by chance: it has no local socket where everybody looks.
    let unix = network(networks, "unix");
    assert!(unix["reached"] == false && unix["why_not"].as_str().is_some(), "{unix}");
    assert_eq!(network(networks, "rdma")["reached"], false);
    let chosen: Vec<&Value> = networks.iter().filter(|one| one["chosen"] == true).collect();
    assert_eq!(chosen.len(), 1, "{networks:?}");
    assert_eq!(chosen[0]["network"], found["chosen"]["transport"]);

    let text = good(&["fabric", "probe", &server.at("?transport=shm")]);
    assert!(text.starts_with(&format!("{} is reached by shm\n", server.url)), "{text}");
    assert!(text.contains("\n  shm   chosen, ") && text.contains("\n  tcp   possible, "), "{text}");
}

#[test]
fn a_probe_says_why_a_network_is_not_used() {
    let server = Server::start(&["--no-shm"]);
    let text = good(&["fabric", "probe", &server.url]);
    assert!(text.contains(" is reached by tcp\nby tcp: shm: the server at "), "{text}");
    assert!(
        text.contains("\n  shm   no: ")
            && text.contains("told not to (--no-shm, or a data path that sends"),
        "{text}"
    );
    // Nobody listens there any more.
    let url = server.url.clone();
    drop(server);
    let said = bad(3, &["fabric", "probe", &url]);
    assert!(said.contains(&format!("dafs fabric: {url}: ")), "{said}");
    let said = bad(2, &["fabric", "probe", "ftp://server/"]);
    assert!(said.contains("dafs://"), "{said}");
}
