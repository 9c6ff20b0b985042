//! The provider and its devices.

use std::path::Path;
use std::sync::Arc;

use dafs_fabric::{
    Access, Address, ConnectError, Device, DeviceAttr, Engine, Listener, MemoryRegion, OpenError,
    PRIVATE_DATA_BYTES_MAX, Provider, RegisterError, Span,
};

use crate::connection;
use crate::engine::ShmEngine;
use crate::ring::{HEADER_BYTES_MAX, SEND_BYTES_MAX};
use crate::shared::{BULK_BYTES_MAX, RECEIVE_QUEUE_DEPTH, SEND_QUEUE_DEPTH, SGE_MAX, Shared};
use crate::target;

/// The name of a server's socket in a directory.
const SOCKET_NAME: &str = "shm.sock";

/// Memory that processes of one host share (`shm:/path`, `shm:@TOKEN`).
#[derive(Debug, Clone, Default)]
pub struct ShmProvider;

impl ShmProvider {
    /// For all processes of this host.
    pub fn new() -> ShmProvider {
        ShmProvider
    }
}

impl Provider for ShmProvider {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn open(&self) -> Result<Arc<dyn Device>, OpenError> {
        let shared = Shared::new(attributes()).map_err(|error| OpenError::Unavailable {
            provider: "shm",
            reason: format!("no memory can be shared: {error}"),
        })?;
        Ok(Arc::new(ShmDevice::of(shared)))
    }
}

/// What a process shares with others.
#[derive(Debug)]
pub struct ShmDevice {
    shared: Arc<Shared>,
}

impl ShmDevice {
    /// Of what its engines share.
    pub(crate) fn of(shared: Arc<Shared>) -> ShmDevice {
        ShmDevice { shared }
    }
}

pub(crate) fn attributes() -> DeviceAttr {
    let mut attr = DeviceAttr::none("shm");
    attr.schemes = &["shm"];
    attr.rdma_write = true;
    attr.rdma_read = true;
    attr.recoverable_access_fault = true;
    attr.ordered_reads = true;
    attr.write_before_send = true;
    attr.target_cpu_free = true;
    attr.shared_memory = true;
    attr.header_bytes_max = HEADER_BYTES_MAX;
    attr.send_bytes_max = SEND_BYTES_MAX;
    attr.bulk_bytes_max = BULK_BYTES_MAX;
    attr.sge_max = SGE_MAX;
    attr.send_queue_depth = SEND_QUEUE_DEPTH;
    attr.receive_queue_depth = RECEIVE_QUEUE_DEPTH;
    attr.private_data_bytes_max = PRIVATE_DATA_BYTES_MAX;
    attr
}

impl Device for ShmDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.shared.attr
    }

    fn register(&self, span: Span, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.shared.table.register(span, access)
    }

    fn engine(&self) -> Result<Box<dyn Engine>, OpenError> {
        Ok(Box::new(ShmEngine::new(self.shared.clone())?))
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, ConnectError> {
        Ok(Box::new(connection::listen(address, true)?))
    }

    fn same_host(&self, token: [u8; 16]) -> Option<Address> {
        Some(target::of_token(&token))
    }

    fn local_address(&self, directory: &Path) -> Option<Address> {
        target::of_path(&directory.join(SOCKET_NAME))
    }
}
