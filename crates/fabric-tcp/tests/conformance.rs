//! The suite that every provider passes.

use dafs_fabric::{Address, conformance};
use dafs_fabric_tcp::TcpProvider;

fn run(provider: &TcpProvider, address: &str, seed: u64) {
    let address = Address::parse(address).expect("address");
    let mut progress = std::thread::yield_now;
    let mut harness = conformance::Harness::new(provider, address, &mut progress);
    harness.seed = seed;
    conformance::run_all(&mut harness);
}

#[test]
fn over_tcp() {
    run(&TcpProvider::new(), "tcp://127.0.0.1:0", 1);
}

#[test]
fn over_tcp_of_ipv6() {
    if std::net::TcpListener::bind("[::1]:0").is_ok() {
        run(&TcpProvider::new(), "tcp://[::1]:0", 2);
    }
}

#[test]
fn over_unix_sockets() {
    let path = std::env::temp_dir().join(format!("dafs-conformance-{}", std::process::id()));
    run(&TcpProvider::new(), &format!("unix:{}", path.display()), 3);
    assert!(!path.exists(), "the socket file is removed");
}

#[test]
fn without_rdma_read() {
    run(&TcpProvider { rdma_read: false }, "tcp://127.0.0.1:0", 4);
}
