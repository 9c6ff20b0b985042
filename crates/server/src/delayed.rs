//! Requests that have not begun.

use dafs_message::RequestId;
use dafs_protocol::{OpResult, PlainRead, RequestHead};

use crate::budget::Needs;

/// Results that a slot kept; `None` is executed again.
pub(crate) type Cached = Vec<Option<OpResult>>;

/// A request that waits for what it needs.
pub(crate) struct Delayed {
    pub head: RequestHead,
    pub id: RequestId,
    pub header: Vec<u8>,
    pub data_len: u32,
    pub prior: Cached,
    /// It is nothing but this.
    pub plain: Option<PlainRead>,
    pub needs: Needs,
}
