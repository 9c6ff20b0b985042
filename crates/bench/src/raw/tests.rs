//! Both ends in one process, on loopback.

use std::net::TcpListener;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::*;

/// A twin whose peer is a thread; the thread gives the peer's result.
fn twin() -> (Raw, std::thread::JoinHandle<io::Result<()>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind");
    let address = listener.local_addr().expect("address").to_string();
    let peer = std::thread::spawn(move || connect_back(&address));
    let (stream, _) = listener.accept().expect("accept");
    (Raw { wire: wire::Wire::new(stream).expect("wire"), child: None }, peer)
}

fn options(op: RawOp, size: usize, depth: usize, wait: Wait) -> RawOptions {
    RawOptions { op, size, depth, wait, random: false, footprint: 1 << 20, peer_cpu: None }
}

#[test]
fn every_operation_size_depth_and_wait_moves_data() {
    let (mut raw, peer) = twin();
    let stop = AtomicBool::new(false);
    for wait in [Wait::Sleeping, Wait::Adaptive, Wait::Polled] {
        for op in [RawOp::Read, RawOp::Write, RawOp::Stream] {
            for (size, depth) in [(1, 1), (4096, 32), (100_000, 3), (1 << 20, 2)] {
                let options = options(op, size, depth, wait);
                let slice = raw.run(&options, Duration::from_millis(5), &stop).expect("runs");
                assert!(slice.ops > 0, "{options:?}");
                assert_eq!(slice.bytes, slice.ops * size as u64, "{options:?}");
                assert!(slice.client_cpu_ns.is_some() && slice.server_cpu_ns.is_some());
                let counted = if op == RawOp::Stream { 0 } else { slice.ops };
                assert_eq!(slice.latency.len(), counted, "{options:?}");
            }
        }
    }
    drop(raw);
    peer.join().expect("no panic").expect("ends with the stream");
}

#[test]
fn random_offsets_stay_in_the_region() {
    let (mut raw, peer) = twin();
    let mut options = options(RawOp::Read, 3000, 8, Wait::Sleeping);
    options.random = true;
    let stop = AtomicBool::new(false);
    assert!(raw.run(&options, Duration::from_millis(5), &stop).expect("runs").ops > 0);
    drop(raw);
    peer.join().expect("no panic").expect("no violation");
}

#[test]
fn parameters_out_of_range_are_refused() {
    let (mut raw, _peer) = twin();
    let stop = AtomicBool::new(false);
    for (size, depth) in [(0, 1), (SIZE_MAX + 1, 1), (1, 0), (1, DEPTH_MAX + 1)] {
        let options = options(RawOp::Read, size, depth, Wait::Sleeping);
        let error = raw.run(&options, Duration::from_millis(5), &stop).expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}

#[test]
fn a_request_outside_of_the_region_ends_the_peer() {
    let (raw, peer) = twin();
    let (mut raw, lie) = (raw, message::Message::new(message::Kind::Read, 0, 4096, 1));
    raw.wire.write_all(&mut [io::IoSlice::new(&lie.encode())]).expect("sent");
    let error = peer.join().expect("no panic").expect_err("violation");
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
}

#[test]
fn nobody_listening_is_an_error() {
    let unused = TcpListener::bind(("127.0.0.1", 0)).expect("bind").local_addr().expect("address");
    assert!(Raw::connect(&unused.to_string()).is_err());
}
