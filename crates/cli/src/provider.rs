//! The networks of this program: the only place that names a provider.

use std::sync::Arc;

use dafs_fabric::{Provider, Providers};
use dafs_fabric_tcp::TcpProvider;

/// The schemes of the addresses that it knows.
pub const SCHEMES: &[&str] = &["tcp", "unix"];

/// The provider of all of them.
pub fn provider() -> Arc<dyn Provider> {
    Arc::new(TcpProvider::new())
}

/// All networks, for clients and servers.
pub fn providers() -> Providers {
    provider().into()
}
