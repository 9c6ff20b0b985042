//! The networks of the library: the only place that names a provider.

use std::sync::Arc;

use dafs_fabric::{Provider, Providers};
use dafs_fabric_tcp::TcpProvider;

/// All of them.
pub fn providers() -> Providers {
    let provider: Arc<dyn Provider> = Arc::new(TcpProvider::new());
    provider.into()
}
