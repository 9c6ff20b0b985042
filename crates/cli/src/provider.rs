//! The networks of this program: the only place that names a provider.

use std::sync::Arc;

use dafs_fabric::{Provider, Providers};
use dafs_fabric_shm::ShmProvider;
use dafs_fabric_tcp::TcpProvider;

/// The schemes of the addresses that it knows.
pub const SCHEMES: &[&str] = &["tcp", "unix", "shm"];

/// The provider of addresses that other machines may have.
pub fn provider() -> Arc<dyn Provider> {
    Arc::new(TcpProvider::new())
}

/// All networks, for clients and servers.
pub fn providers() -> Providers {
    let all: Vec<Arc<dyn Provider>> = vec![provider(), Arc::new(ShmProvider::new())];
    all.into()
}
