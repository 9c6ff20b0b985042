//! Both ends in one process.

use std::thread::JoinHandle;

use super::*;

const ROW: ShmOptions = ShmOptions {
    op: ShmOp::Copy,
    size: 4096,
    depth: 8,
    piece: 64 << 10,
    wait: Wait::Sleeping,
    random: true,
    cpus: None,
};
const FOOTPRINT: usize = 8 << 20;

/// A server that is a thread; the thread gives the server's result.
fn twin(rows: &[ShmOptions]) -> (Shm, JoinHandle<io::Result<()>>) {
    let layout = Layout::new(FOOTPRINT, rows).expect("in range");
    let (file, mapping, huge) = shared(&layout).expect("memory");
    let (own, peer) = UnixStream::pair().expect("sockets");
    let server = std::thread::spawn(move || server::serve(&file, peer));
    (Shm::with(mapping, own, layout, huge, None).expect("port"), server)
}

#[test]
fn every_operation_and_wait_moves_data_and_tells_what_it_cost() {
    let sizes = |op| if op == ShmOp::Bounce { [256 << 10, 1 << 20] } else { [4096, 1 << 20] };
    let waits = [Wait::Sleeping, Wait::Adaptive, Wait::Polled];
    let both = [ShmOp::Ping, ShmOp::Copy, ShmOp::Mapped, ShmOp::Write, ShmOp::Bounce];
    let mut rows = Vec::new();
    for op in both {
        for wait in waits {
            for (size, depth) in sizes(op).into_iter().zip([1, 8]) {
                rows.push(ShmOptions { op, size, depth, wait, ..ROW });
            }
        }
    }
    let (mut shm, server) = twin(&rows);
    let stop = AtomicBool::new(false);
    for row in &rows {
        let slice = shm.run(row, Duration::from_millis(5), &stop).expect("runs");
        assert!(slice.ops > 0, "{row:?}");
        assert_eq!(slice.bytes, slice.ops * row.size as u64, "{row:?}");
        assert_eq!(slice.latency.len(), slice.ops, "{row:?}");
        assert!(slice.client_cpu_ns.is_some() && slice.server_cpu_ns.is_some(), "{row:?}");
        // Both ends may find what they wait for before they sleep.
        assert!(slice.system_calls.is_some(), "{row:?}");
    }
    drop(shm);
    server.join().expect("no panic").expect("ends with the socket");
}

#[test]
fn what_one_does_alone_is_counted() {
    let (mut shm, server) = twin(&[ROW]);
    let stop = AtomicBool::new(false);
    let calls = [ShmOp::VmRead, ShmOp::VmWrite, ShmOp::MemRead, ShmOp::MemWrite];
    for op in [ShmOp::Memcpy, ShmOp::Sum].into_iter().chain(calls) {
        let row = ShmOptions { op, ..ROW };
        let slice = match shm.run(&row, Duration::from_millis(5), &stop) {
            // What a container may forbid is an error, and the connection lives.
            Err(error) if calls.contains(&op) => {
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{op:?}: {error}");
                continue;
            }
            ran => ran.expect("runs"),
        };
        assert!(slice.ops > 0 && slice.bytes == slice.ops * 4096, "{op:?}");
        assert_eq!(slice.system_calls.is_some(), calls.contains(&op), "{op:?}");
        assert_eq!(slice.server_cpu_ns, None, "{op:?}");
    }
    drop(shm);
    server.join().expect("no panic").expect("ends with the socket");
}

#[test]
fn the_server_copies_from_the_pool_to_the_segment() {
    let (mut shm, server) = twin(&[ROW]);
    let layout = shm.layout;
    shm.port.mapping.fill(layout.pool, FOOTPRINT, 7);
    assert_eq!(
        shm.port.mapping.sum(layout.segment, 4096),
        0x5a5a_5a5a_5a5a_5a5a_u64.wrapping_mul(512)
    );
    shm.run(&ROW, Duration::from_millis(5), &AtomicBool::new(false)).expect("runs");
    let mut got = [0; 4096];
    shm.port.mapping.copy_out(layout.segment, &mut got);
    assert_eq!(got, [7; 4096]);
    drop(shm);
    server.join().expect("no panic").expect("ends with the socket");
}

#[test]
fn what_is_written_is_copied_the_other_way() {
    let row = ShmOptions { op: ShmOp::Write, random: false, ..ROW };
    let (mut shm, server) = twin(std::slice::from_ref(&row));
    let layout = shm.layout;
    shm.port.mapping.fill(layout.segment, row.size * row.depth, 7);
    shm.run(&row, Duration::from_millis(5), &AtomicBool::new(false)).expect("runs");
    let mut got = [0; 4096];
    shm.port.mapping.copy_out(layout.pool, &mut got);
    assert!(got == [7; 4096]);
    drop(shm);
    server.join().expect("no panic").expect("ends with the socket");
}

#[test]
fn parameters_out_of_range_are_refused() {
    let (mut shm, server) = twin(&[ROW]);
    let stop = AtomicBool::new(false);
    let bounce = ShmOptions { op: ShmOp::Bounce, size: 100_000, ..ROW };
    for row in [
        ShmOptions { size: 0, ..ROW },
        ShmOptions { size: FOOTPRINT + 1, ..ROW },
        ShmOptions { depth: 0, ..ROW },
        ShmOptions { depth: 513, ..ROW },
        ShmOptions { size: 4 << 20, ..ROW },
        bounce,
    ] {
        let error = shm.run(&row, Duration::from_millis(5), &stop).expect_err("refused");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{row:?}");
    }
    drop(shm);
    server.join().expect("no panic").expect("ends with the socket");
    assert!(Layout::new(0, &[ROW]).is_err());
}

#[test]
fn a_server_that_has_gone_is_an_error() {
    let (mut shm, server) = twin(&[ROW]);
    shm.port.hang_up();
    server.join().expect("no panic").expect("ends with the socket");
    let gone = shm.run(&ROW, Duration::from_millis(5), &AtomicBool::new(false));
    assert!(gone.is_err());
}
