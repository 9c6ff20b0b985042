//! The networks of this module: the only place that names a provider.

use std::sync::Arc;

use dafs_fabric::{Provider, Providers};
use dafs_fabric_shm::ShmProvider;
use dafs_fabric_tcp::TcpProvider;

/// All networks.
pub fn providers() -> Providers {
    let all: Vec<Arc<dyn Provider>> =
        vec![Arc::new(TcpProvider::new()), Arc::new(ShmProvider::new())];
    all.into()
}
