//! The networks of this program: the only place that names a provider.

use std::sync::Arc;

use dafs_fabric::{Provider, Providers};
use dafs_fabric_shm::ShmProvider;
use dafs_fabric_tcp::TcpProvider;

/// The schemes of the addresses that it knows.
pub const SCHEMES: &[&str] = &["tcp", "unix", "shm"];

/// A kind of network that this program cannot use.
pub struct Missing {
    /// What it is called.
    pub network: &'static str,
    /// Why not, in words.
    pub why: String,
}

/// Where the system lists adapters that do RDMA.
const RDMA_ADAPTERS: &str = "/sys/class/infiniband";

/// What other programs of this kind could go by, and why this one does not.
pub fn missing() -> Vec<Missing> {
    let entries = std::fs::read_dir(RDMA_ADAPTERS).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    let why = if names.is_empty() {
        format!("this machine has no RDMA adapter ({RDMA_ADAPTERS} has none)")
    } else {
        format!("this version has no provider for RDMA adapters (here: {})", names.join(", "))
    };
    vec![Missing { network: "rdma", why }]
}

/// The provider of addresses that other machines may have.
pub fn provider() -> Arc<dyn Provider> {
    Arc::new(TcpProvider::new())
}

/// All networks, for clients and servers.
pub fn providers() -> Providers {
    let all: Vec<Arc<dyn Provider>> = vec![provider(), Arc::new(ShmProvider::new())];
    all.into()
}
