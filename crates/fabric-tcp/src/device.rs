//! The provider and its devices.

use std::sync::Arc;

use dafs_fabric::{
    Access, Address, Arena, ConnectError, Device, DeviceAttr, Engine, Hardware, Listener,
    MemoryRegion, OpenError, PRIVATE_DATA_BYTES_MAX, Provider, RegisterError, Span,
};

use crate::connection;
use crate::engine::TcpEngine;
use crate::frame::{BULK_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX, HEADER_BYTES_MAX as FRAME_HEADER_MAX};
use crate::hardware::interfaces;
use crate::memory_region::Table;
use crate::requests::SEND_QUEUE_DEPTH;
use crate::shared::{RECEIVE_QUEUE_DEPTH, SGE_MAX, Shared};

/// Software RDMA over TCP (`tcp://HOST:PORT`) and Unix stream sockets (`unix:/path`).
#[derive(Debug, Clone)]
pub struct TcpProvider {
    /// False: devices neither ask for RDMA reads nor serve them.
    pub rdma_read: bool,
}

impl TcpProvider {
    /// With RDMA read.
    pub fn new() -> TcpProvider {
        TcpProvider { rdma_read: true }
    }
}

impl Default for TcpProvider {
    fn default() -> TcpProvider {
        TcpProvider::new()
    }
}

impl Provider for TcpProvider {
    fn name(&self) -> &'static str {
        "tcp"
    }

    fn open(&self) -> Result<Arc<dyn Device>, OpenError> {
        Ok(Arc::new(TcpDevice::open(self.rdma_read)?))
    }

    fn hardware(&self) -> Vec<Hardware> {
        interfaces()
    }
}

/// The software NIC: its protection table.
#[derive(Debug)]
pub struct TcpDevice {
    shared: Arc<Shared>,
}

impl TcpDevice {
    pub fn open(rdma_read: bool) -> Result<TcpDevice, OpenError> {
        let memory = |bytes| {
            let arena = Arena::new(bytes).map_err(|error| OpenError::Unavailable {
                provider: "tcp",
                reason: error.to_string(),
            })?;
            Ok::<_, OpenError>(arena.span(0, bytes))
        };
        let shared = Shared {
            attr: attributes(rdma_read),
            table: Arc::new(Table::default()),
            trash: memory(FRAME_PAYLOAD_BYTES_MAX + FRAME_HEADER_MAX)?,
            zeros: memory(FRAME_PAYLOAD_BYTES_MAX)?,
        };
        Ok(TcpDevice { shared: Arc::new(shared) })
    }

    /// As [`Device::engine`], by its type.
    pub fn tcp_engine(&self) -> Result<TcpEngine, OpenError> {
        TcpEngine::new(self.shared.clone())
    }
}

fn attributes(rdma_read: bool) -> DeviceAttr {
    let mut attr = DeviceAttr::none("tcp");
    attr.schemes = &["tcp", "unix"];
    attr.rdma_write = true;
    attr.rdma_read = rdma_read;
    attr.tag_match = true;
    attr.recoverable_access_fault = true;
    attr.ordered_reads = true;
    attr.write_before_send = true;
    attr.file_spans = true;
    attr.verifies_names = true;
    attr.header_bytes_max = FRAME_HEADER_MAX;
    attr.send_bytes_max = FRAME_PAYLOAD_BYTES_MAX;
    attr.bulk_bytes_max = BULK_BYTES_MAX;
    attr.sge_max = SGE_MAX;
    attr.send_queue_depth = SEND_QUEUE_DEPTH;
    attr.receive_queue_depth = RECEIVE_QUEUE_DEPTH;
    attr.private_data_bytes_max = PRIVATE_DATA_BYTES_MAX;
    attr
}

impl Device for TcpDevice {
    fn attr(&self) -> &DeviceAttr {
        &self.shared.attr
    }

    fn register(&self, span: Span, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.shared.table.register(span, access)
    }

    fn engine(&self) -> Result<Box<dyn Engine>, OpenError> {
        Ok(Box::new(self.tcp_engine()?))
    }

    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, ConnectError> {
        Ok(Box::new(connection::listen(address)?))
    }
}
