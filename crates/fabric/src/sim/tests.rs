//! The simulated provider conforms, for every seed and every mix of attributes.

use std::time::Duration;

use super::{FaultConfig, SimConfig, SimNet};
use crate::conformance::pair::{Node, READ_WRITE};
use crate::conformance::{self, Harness};
use crate::engine::Provider;
use crate::types::Opcode;

/// A network in which the bits of `seed` choose attributes.
fn config(seed: u64) -> SimConfig {
    let mut config = SimConfig::new(seed);
    let bit = |n: u64| seed >> n & 1 == 1;
    config.attr.tag_match = !bit(0);
    config.attr.rdma_read = !bit(1);
    config.attr.recoverable_access_fault = !bit(2);
    config.attr.ordered_reads = bit(3);
    config.attr.write_before_send = !bit(4);
    config.attr.rdma_write = seed % 11 != 10;
    config.attr.local_registration = seed % 5 == 4;
    config.attr.target_cpu_free = !seed.is_multiple_of(3);
    config.attr.registration_pins = seed % 7 > 4;
    config.attr.private_data_bytes_max = if seed % 3 == 2 { 56 } else { 256 };
    config.attr.bulk_bytes_max = if seed.is_multiple_of(64) { 16 << 20 } else { 200_000 };
    config.attr.sge_max = [64, 4, 2, 16][(seed / 32 % 4) as usize];
    config.attr.send_queue_depth = [64, 100, 300][(seed % 3) as usize];
    config.attr.receive_queue_depth = 100;
    config
}

fn run(config: SimConfig) {
    let seed = config.seed;
    let net = SimNet::new(config);
    let provider = net.provider(1);
    let address = provider.address();
    let mut progress = || {
        net.step();
    };
    let mut harness = Harness::new(&provider as &dyn Provider, address, &mut progress);
    harness.seed = seed;
    harness.rounds_max = 300_000;
    harness.settle_rounds = 300;
    conformance::run_all(&mut harness);
    // One case gives pages back to see what becomes of them.
    let planned = |text: &&String| !text.contains("given back while registered");
    let violations = net.violations();
    assert_eq!(violations.iter().find(planned), None, "seed {seed}");
}

/// Fifty seeds of those that agree in the lowest two bits.
fn run_quarter(quarter: u64) {
    (0..50).for_each(|n| run(config(n * 4 + quarter)));
}

#[test]
fn conforms_with_tags_and_reads() {
    run_quarter(0);
}

#[test]
fn conforms_without_tags() {
    run_quarter(1);
}

#[test]
fn conforms_without_reads() {
    run_quarter(2);
}

#[test]
fn conforms_without_tags_and_reads() {
    run_quarter(3);
}

#[test]
fn conforms_as_shared_memory_does() {
    for seed in 0..20 {
        let mut config = SimConfig::new(seed);
        config.attr.bulk_bytes_max = 200_000;
        config.share_memory();
        run(config);
    }
}

#[test]
fn conforms_as_verbs_do() {
    for seed in 0..20 {
        let mut config = SimConfig::of_verbs(seed);
        config.attr.bulk_bytes_max = 200_000;
        run(config);
    }
}

/// The suite cannot see this: nobody ever sleeps in a simulation.
#[test]
fn arm_tells_of_work_that_is_here() {
    let net = SimNet::new(SimConfig::new(1));
    let provider = net.provider(1);
    let mut listener = provider.open().expect("open").listen(&provider.address()).expect("listen");
    let mut client = net.provider(2).open().expect("open").engine().expect("an engine");
    client.connect(&provider.address(), b"").expect("connecting");
    assert!(client.arm(), "nothing is here yet");
    net.advance_to(Duration::from_millis(10));
    drop(listener.poll_accept());
    assert_eq!(net.now(), Duration::from_millis(10));
    net.advance_to(Duration::from_millis(20));
    assert!(!client.arm(), "the refusal is here");
    assert!(client.poll_event().is_some() && client.arm());
}

/// Posts a write and a message behind it, then breaks the connection on the side that sends. True
/// if the message arrives all the same.
fn arrives_after_break(seed: u64, access_fault_per_million: u32) -> bool {
    let mut config = SimConfig::new(seed);
    config.attr.recoverable_access_fault = false;
    let net = SimNet::new(config);
    let provider = net.provider(1);
    let mut near = Node::new(net.provider(2).open().expect("a device"));
    let mut far = Node::new(provider.open().expect("a device"));
    let mut listener = far.device.listen(&provider.address()).expect("a listener");
    let qp = near.connect(&provider.address(), b"");
    net.advance_to(Duration::from_millis(10));
    let incoming = listener.poll_accept().expect("a request");
    far.engine.accept(incoming, b"").expect("accepted");
    net.advance_to(Duration::from_millis(20));
    near.poll();
    let (target, room) = (far.buffer(512), far.buffer(64));
    let region = far.register(target.span(), READ_WRITE);
    far.recv(&[room.span().clone()]).expect("posted");
    let data = near.filled(seed, 512);
    near.write(qp, &[data.span().clone()], region.remote(), true).expect("posted");
    near.send(qp, b"written", &[], false).expect("posted");
    near.engine.ring();
    net.set_faults(FaultConfig {
        access_fault_per_million,
        late_write_per_million: 1_000_000,
        ..FaultConfig::default()
    });
    net.break_connections(2);
    net.advance_to(Duration::from_millis(30));
    far.poll();
    far.take_opcode(Opcode::Recv).is_some_and(|received| received.byte_len > 0)
}

#[test]
fn nothing_follows_a_refused_write_after_a_break() {
    let arrivals = |faults| (0..200).filter(|seed| arrives_after_break(*seed, faults)).count();
    assert!(arrivals(0) > 0, "what was posted may leave after a break");
    assert_eq!(arrivals(1_000_000), 0, "a message announced data that was not placed");
}
