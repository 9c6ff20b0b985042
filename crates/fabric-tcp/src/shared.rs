//! What the engines of a device share.

use std::sync::Arc;

use dafs_fabric::{DeviceAttr, Span};

use crate::memory_region::Table;

/// Entries of a scatter/gather list.
pub const SGE_MAX: usize = 1024;
/// Receives per engine.
pub const RECEIVE_QUEUE_DEPTH: usize = 1 << 20;

/// What the engines of a device share.
#[derive(Debug)]
pub struct Shared {
    pub attr: DeviceAttr,
    pub table: Arc<Table>,
    /// Where bytes go that nobody wants.
    pub trash: Span,
    /// Never written.
    pub zeros: Span,
}
