//! The networks of this module: the only place that names a provider.

use std::sync::Arc;

use dafs_fabric::{Provider, Providers};
use dafs_fabric_tcp::TcpProvider;

/// All networks.
pub fn providers() -> Providers {
    let tcp: Arc<dyn Provider> = Arc::new(TcpProvider::new());
    tcp.into()
}
