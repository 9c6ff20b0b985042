//! Sessions that go by a network of the server's host alone.

use super::replay_log::{not_after_the_new_server_started, starts_late};
use super::*;

const TOKEN: [u8; 16] = [7; 16];

/// The network has two names: by one the server is dialled, by the other it is found where it says so.
fn pair(seed: u64) -> Pair {
    let mut config = SimConfig::new(seed);
    (config.attr.schemes, config.same_host) = (&["sim", "far"], true);
    // Ends know each other there.
    config.share_memory();
    let net = SimNet::new(config);
    let fake = Fake::simulated(&net);
    let address = Address { scheme: "far".into(), ..fake.address.clone() };
    let options = SessionOptions { retry: Duration::from_secs(600), ..options() };
    let core = core_to(&net, &address, &options);
    Pair { net, core, fake, next_tag: 0, done: Vec::new(), notices: Vec::new() }
}

/// One that goes by the network of the host, and has a file.
fn near(seed: u64) -> (Pair, FileKey) {
    let mut pair = pair(seed);
    pair.fake.listen_near(TOKEN);
    pair.fake.put(b"f", b"....");
    let file = pair.open(b"f", read_write());
    assert_eq!((pair.fake.came_near, pair.core.facts().same_host_error), (1, None));
    (pair, file)
}

/// The next server is at no way by which this one was found: that it is not there does not say that it has not
/// started, some leases ago.
#[test]
fn what_is_kept_is_not_written_again_since_nobody_is_where_the_last_server_was_found() {
    not_after_the_new_server_started(|| near(1));
}

#[test]
fn a_server_of_this_host_may_start_late() {
    let (pair, file) = near(2);
    starts_late(pair, file);
}

#[test]
fn the_next_server_is_looked_for_where_the_last_one_was_not_found() {
    let mut pair = pair(3);
    pair.fake.put(b"f", b"contents");
    pair.fake.script.same_host = Some(TOKEN);
    let file = pair.open(b"f", read_write());
    assert!(pair.core.facts().same_host_error.is_some(), "nobody is there");
    pair.fake.restart();
    pair.fake.listen_near(TOKEN);
    assert_eq!(pair.read(file, 0, 20).expect("read"), b"contents");
    assert_eq!((pair.fake.came_near, pair.core.facts().same_host_error), (1, None));
}
