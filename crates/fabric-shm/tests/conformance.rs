//! The suite that every provider passes.

use dafs_fabric::{Address, conformance};
use dafs_fabric_shm::ShmProvider;

fn run(address: &str, seed: u64) {
    let address = Address::parse(address).expect("address");
    let (provider, mut progress) = (ShmProvider::new(), std::thread::yield_now);
    let mut harness = conformance::Harness::new(&provider, address, &mut progress);
    harness.seed = seed;
    conformance::run_all(&mut harness);
}

#[test]
fn over_a_socket_in_a_directory() {
    let path = std::env::temp_dir().join(format!("dafs-conformance-shm-{}", std::process::id()));
    run(&format!("shm:{}", path.display()), 1);
    assert!(!path.exists(), "the socket file is removed");
}

#[test]
fn over_a_token() {
    run(&format!("shm:@{:032x}", std::process::id()), 2);
}
