//! An engine that has the table look at all that is posted.

use std::sync::Arc;

use dafs_fabric::{
    Address, ConnectError, DeviceAttr, Engine, Incoming, PeerInfo, PostError, QueuePair,
    QueuePairEvent, RemoteSpan, SgList, Span, Tag, Waiter, WorkCompletion, WrId,
};

use super::table::{Table, Work};

/// See the module.
pub(super) struct PinningEngine {
    /// Dropped first: then it has no work any more.
    inner: Box<dyn Engine>,
    attr: DeviceAttr,
    works: Works,
    /// Receives that are posted.
    receives: usize,
    completions: Vec<WorkCompletion>,
}

/// The entries of an engine in the table.
struct Works {
    table: Arc<Table>,
    engine: u64,
    next: u64,
}

impl Works {
    /// Posts work under a name of its own: names of callers may come twice.
    fn post(
        &mut self,
        work: Work,
        post: impl FnOnce(WrId) -> Result<(), PostError>,
    ) -> Result<(), PostError> {
        let key = (self.engine, self.next);
        self.next += 1;
        self.table.begin(key, work)?;
        post(WrId(key.1)).inspect_err(|_| self.table.undo(key))
    }
}

impl Drop for Works {
    fn drop(&mut self) {
        self.table.end_engine(self.engine);
    }
}

impl PinningEngine {
    pub(super) fn new(inner: Box<dyn Engine>, attr: DeviceAttr, table: Arc<Table>) -> Self {
        let works = Works { engine: table.add_engine(), table, next: 0 };
        PinningEngine { inner, attr, works, receives: 0, completions: Vec::new() }
    }
}

fn check_files(list: &[Span]) -> Result<(), PostError> {
    if list.iter().any(Span::is_of_file) { Err(PostError::Unsupported) } else { Ok(()) }
}

impl Engine for PinningEngine {
    fn attr(&self) -> &DeviceAttr {
        &self.attr
    }

    fn connect(&mut self, address: &Address, data: &[u8]) -> Result<QueuePair, ConnectError> {
        self.inner.connect(address, data)
    }

    fn accept(&mut self, incoming: Incoming, data: &[u8]) -> Result<QueuePair, ConnectError> {
        self.inner.accept(incoming, data)
    }

    fn reject(&mut self, incoming: Incoming, reason: &str) {
        self.inner.reject(incoming, reason);
    }

    fn disconnect(&mut self, queue_pair: QueuePair) {
        self.inner.disconnect(queue_pair);
    }

    fn peer(&self, queue_pair: QueuePair) -> Option<PeerInfo> {
        self.inner.peer(queue_pair)
    }

    fn moved(&self, queue_pair: QueuePair, wr_id: WrId) -> u64 {
        let below = self.works.table.find(self.works.engine, queue_pair, wr_id);
        below.map_or(0, |below| self.inner.moved(queue_pair, below))
    }

    fn post_recv(&mut self, wr_id: WrId, buffers: SgList) -> Result<(), PostError> {
        if self.receives >= self.attr.receive_queue_depth {
            return Err(PostError::QueueFull);
        }
        let work = Work::new(wr_id, None, &buffers);
        self.works.post(work, |below| self.inner.post_recv(below, buffers))?;
        self.receives += 1;
        Ok(())
    }

    fn post_send(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        check_files(data)?;
        let work = Work::new(wr_id, Some(queue_pair), &*data).silent_if(!signaled);
        // Always signaled: its memory is watched until it has left.
        let post = |below| self.inner.post_send(queue_pair, below, header, data, true);
        self.works.post(work, post)
    }

    fn post_rdma_write(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        data: &mut SgList,
        remote: RemoteSpan,
        signaled: bool,
    ) -> Result<(), PostError> {
        check_files(data)?;
        let work = Work::new(wr_id, Some(queue_pair), &*data).silent_if(!signaled);
        let post = |below| self.inner.post_rdma_write(queue_pair, below, data, remote, true);
        self.works.post(work, post)
    }

    fn post_rdma_read(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        into: &mut SgList,
        remote: RemoteSpan,
        fence: bool,
    ) -> Result<(), PostError> {
        let work = Work::new(wr_id, Some(queue_pair), &*into);
        let post = |below| self.inner.post_rdma_read(queue_pair, below, into, remote, fence);
        self.works.post(work, post)
    }

    fn post_tagged_send(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        tag: Tag,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        check_files(data)?;
        let work = Work::new(wr_id, Some(queue_pair), &*data).silent_if(!signaled);
        let post = |below| self.inner.post_tagged_send(queue_pair, below, tag, header, data, true);
        self.works.post(work, post)
    }

    fn post_tagged_recv(
        &mut self,
        queue_pair: QueuePair,
        wr_id: WrId,
        tag: Tag,
        header: Option<Span>,
        data: &mut SgList,
    ) -> Result<(), PostError> {
        let work = Work::new(wr_id, Some(queue_pair), header.iter().chain(&*data));
        let post = |below| self.inner.post_tagged_recv(queue_pair, below, tag, header, data);
        self.works.post(work, post)
    }

    fn cancel_tagged_recv(&mut self, queue_pair: QueuePair, tag: Tag) {
        self.inner.cancel_tagged_recv(queue_pair, tag);
    }

    fn ring(&mut self) {
        self.inner.ring();
    }

    fn poll(&mut self, completions: &mut Vec<WorkCompletion>, max: usize) -> usize {
        let mut count = 0;
        loop {
            let wanted = max - count;
            let got = self.inner.poll(&mut self.completions, wanted);
            for ended in self.completions.drain(..) {
                let (is_receive, told) = self.works.table.end(self.works.engine, &ended);
                self.receives -= usize::from(is_receive);
                count += usize::from(told.is_some());
                completions.extend(told);
            }
            // What the caller is not told of leaves room for more.
            if got < wanted || count == max {
                return count;
            }
        }
    }

    fn rounds(&self) -> u64 {
        self.inner.rounds()
    }

    fn poll_event(&mut self) -> Option<QueuePairEvent> {
        let event = self.inner.poll_event();
        if let Some(QueuePairEvent::Quiescent { queue_pair }) = event {
            self.works.table.quiescent(self.works.engine, queue_pair);
        }
        event
    }

    fn arm(&mut self) -> bool {
        self.inner.arm()
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        self.inner.waiter()
    }

    fn system_calls(&self) -> u64 {
        self.inner.system_calls()
    }
}
