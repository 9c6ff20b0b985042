//! Requests that have not begun.

use dafs_message::RequestId;
use dafs_protocol::{ExtentList, OpResult, Operation, RequestHead, StateId};

use crate::budget::Needs;

/// Results that a slot kept; `None` is executed again.
pub(crate) type Cached = Vec<Option<OpResult>>;

/// What a request asks for that is one READ of one piece, and nothing else.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PlainRead {
    pub state: StateId,
    pub offset: u64,
    pub len: u32,
}

impl PlainRead {
    /// `None`: the request is something else.
    pub(crate) fn of<'a>(operations: &'a [Operation<'_>]) -> Option<(PlainRead, &'a ExtentList)> {
        let [Operation::Read { state, extents }] = operations else { return None };
        let [extent] = extents.as_slice() else { return None };
        let plain = PlainRead { state: *state, offset: extent.offset, len: extent.len };
        (extent.count == 1).then_some((plain, extents))
    }
}

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
