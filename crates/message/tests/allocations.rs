//! In steady state the message layer allocates nothing: neither for requests and replies nor for
//! their data. What the engine beneath allocates is not counted.

#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;

use dafs_fabric::sim::{SimConfig, SimNet};
use dafs_fabric::{
    Access, Address, Arena, ConnectError, Device, DeviceAttr, Domain, Engine, Incoming, Listener,
    MemoryRegion, OpenError, PostError, Provider, QueuePair, QueuePairEvent, RegisterError,
    RemoteSpan, SgList, Span, Tag, Waiter, WorkCompletion, WrId,
};
use dafs_message::{ConnId, ConnOptions, Event, Node, NodeConfig};

thread_local! {
    static COUNTING: Cell<bool> = const { Cell::new(false) };
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

fn count() {
    // A thread that ends has no counters any more.
    let on = COUNTING.try_with(Cell::get).unwrap_or(false);
    if on {
        let _ = ALLOCATIONS.try_with(|n| n.set(n.get() + 1));
    }
}

// SAFETY: all is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        count();
        // SAFETY: as promised by the caller.
        unsafe { System.realloc(memory, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn counted<R>(body: impl FnOnce() -> R) -> R {
    COUNTING.set(true);
    let result = body();
    COUNTING.set(false);
    result
}

fn uncounted<R>(body: impl FnOnce() -> R) -> R {
    let before = COUNTING.replace(false);
    let result = body();
    COUNTING.set(before);
    result
}

/// A device with engines whose allocations are not counted.
struct QuietDevice(Arc<dyn Device>);

impl Device for QuietDevice {
    fn attr(&self) -> &DeviceAttr {
        self.0.attr()
    }
    fn register(&self, span: Span, access: Access) -> Result<MemoryRegion, RegisterError> {
        self.0.register(span, access)
    }
    fn engine(&self) -> Result<Box<dyn Engine>, OpenError> {
        Ok(Box::new(Quiet(self.0.engine()?)))
    }
    fn listen(&self, address: &Address) -> Result<Box<dyn Listener>, ConnectError> {
        self.0.listen(address)
    }
}

/// An engine whose allocations are not counted.
struct Quiet(Box<dyn Engine>);

impl Engine for Quiet {
    fn attr(&self) -> &DeviceAttr {
        self.0.attr()
    }
    fn connect(&mut self, to: &Address, private_data: &[u8]) -> Result<QueuePair, ConnectError> {
        uncounted(|| self.0.connect(to, private_data))
    }
    fn accept(&mut self, incoming: Incoming, data: &[u8]) -> Result<QueuePair, ConnectError> {
        uncounted(|| self.0.accept(incoming, data))
    }
    fn reject(&mut self, incoming: Incoming, reason: &str) {
        uncounted(|| self.0.reject(incoming, reason));
    }
    fn disconnect(&mut self, qp: QueuePair) {
        uncounted(|| self.0.disconnect(qp));
    }
    fn post_recv(&mut self, id: WrId, buffers: SgList) -> Result<(), PostError> {
        uncounted(|| self.0.post_recv(id, buffers))
    }
    fn post_send(
        &mut self,
        qp: QueuePair,
        id: WrId,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        uncounted(|| self.0.post_send(qp, id, header, data, signaled))
    }
    fn post_rdma_write(
        &mut self,
        qp: QueuePair,
        id: WrId,
        data: &mut SgList,
        remote: RemoteSpan,
        signaled: bool,
    ) -> Result<(), PostError> {
        uncounted(|| self.0.post_rdma_write(qp, id, data, remote, signaled))
    }
    fn post_rdma_read(
        &mut self,
        qp: QueuePair,
        id: WrId,
        into: &mut SgList,
        remote: RemoteSpan,
        fence: bool,
    ) -> Result<(), PostError> {
        uncounted(|| self.0.post_rdma_read(qp, id, into, remote, fence))
    }
    fn post_tagged_send(
        &mut self,
        qp: QueuePair,
        id: WrId,
        tag: Tag,
        header: &[u8],
        data: &mut SgList,
        signaled: bool,
    ) -> Result<(), PostError> {
        uncounted(|| self.0.post_tagged_send(qp, id, tag, header, data, signaled))
    }
    fn post_tagged_recv(
        &mut self,
        qp: QueuePair,
        id: WrId,
        tag: Tag,
        header: Option<Span>,
        data: &mut SgList,
    ) -> Result<(), PostError> {
        uncounted(|| self.0.post_tagged_recv(qp, id, tag, header, data))
    }
    fn cancel_tagged_recv(&mut self, qp: QueuePair, tag: Tag) {
        uncounted(|| self.0.cancel_tagged_recv(qp, tag));
    }
    fn ring(&mut self) {
        uncounted(|| self.0.ring());
    }
    fn poll(&mut self, completions: &mut Vec<WorkCompletion>, max: usize) -> usize {
        uncounted(|| self.0.poll(completions, max))
    }
    fn rounds(&self) -> u64 {
        self.0.rounds()
    }
    fn poll_event(&mut self) -> Option<QueuePairEvent> {
        uncounted(|| self.0.poll_event())
    }
    fn arm(&mut self) -> bool {
        uncounted(|| self.0.arm())
    }
    fn waiter(&self) -> Arc<dyn Waiter> {
        self.0.waiter()
    }
}

struct Two {
    net: Arc<SimNet>,
    nodes: [Node; 2],
    conn: ConnId,
    memory: Arc<Arena>,
}

impl Two {
    fn new(config: SimConfig, options: ConnOptions) -> Two {
        let net = SimNet::new(config);
        let make = |node: u32| {
            let domain = Domain::new(Arc::new(QuietDevice(net.provider(node).open().unwrap())));
            let config = NodeConfig { receives_max: 128, ..NodeConfig::default() };
            Node::new(domain, config).unwrap()
        };
        let [mut server, mut client] = [make(1), make(2)];
        let address = Address::parse("sim://1").unwrap();
        let mut listener = net.provider(1).open().unwrap().listen(&address).unwrap();
        let conn = client.connect(&address, b"", options).unwrap();
        while client.request_header_max(conn) == 0 {
            net.step();
            if let Some(incoming) = listener.poll_accept() {
                server.accept(incoming, b"", options).unwrap();
            }
            client.poll();
            client.next_event();
        }
        Two { net, nodes: [server, client], conn, memory: Arena::new(1 << 20).unwrap() }
    }

    fn list(&self, at: usize, len: usize) -> SgList {
        match len {
            0 => SgList::new(),
            // Two segments that do not join.
            _ => SgList::from_iter([
                self.memory.span(at + len / 2 + 1, len - len / 2),
                self.memory.span(at, len / 2),
            ]),
        }
    }

    /// Four requests at a time, answered and done.
    fn round(&mut self, data_len: usize, reply_len: usize) {
        for tag in 0..4 {
            let at = tag as usize * 100_000;
            let (data, into) = (self.list(at, data_len), self.list(at + 50_000, reply_len));
            let (conn, client) = (self.conn, &mut self.nodes[1]);
            counted(|| client.submit(conn, tag, b"a question", data, into)).unwrap();
            client.ring();
        }
        let mut left = 4;
        while left > 0 {
            self.net.step();
            for side in 0..2 {
                counted(|| self.nodes[side].poll());
                while let Some(event) = counted(|| self.nodes[side].next_event()) {
                    left -= usize::from(matches!(event, Event::Reply { .. }));
                    self.handle(event, data_len, reply_len);
                }
                counted(|| self.nodes[side].ring());
            }
        }
    }

    fn handle(&mut self, event: Event, data_len: usize, reply_len: usize) {
        let (into, data) = (self.list(500_000, data_len), self.list(600_000, reply_len));
        let [server, client] = &mut self.nodes;
        match event {
            Event::Request { id, header, data_len: 0, .. } => {
                counted(|| server.recycle(header));
                counted(|| server.reply(id, b"an answer", data, 1));
            }
            Event::Request { id, header, .. } => {
                counted(|| server.recycle(header));
                counted(|| server.fetch(id, into));
            }
            Event::Fetched { id, placed: Some(_) } => {
                counted(|| server.reply(id, b"an answer", data, 1));
            }
            Event::Reply { header, .. } => counted(|| client.recycle(header)),
            Event::ReplySent { token: 1 } => {}
            other => panic!("unexpected {other:?}"),
        }
    }
}

fn steady(change: impl Fn(&mut SimConfig), options: ConnOptions) {
    let mut config = SimConfig::new(11);
    change(&mut config);
    let mut two = Two::new(config, options);
    let kinds = [(0, 0), (0, 9000), (9000, 0), (100, 100), (20_000, 20_000)];
    for (data_len, reply_len) in kinds.into_iter().cycle().take(1000) {
        two.round(data_len, reply_len);
    }
    for (data_len, reply_len) in kinds {
        // A table may still grow when the network is later than it ever was, but not each time.
        let none = (0..3).any(|_| {
            let before = ALLOCATIONS.get();
            (0..40).for_each(|_| two.round(data_len, reply_len));
            ALLOCATIONS.get() == before
        });
        assert!(none, "data {data_len}, reply {reply_len}: {}", ALLOCATIONS.get());
    }
}

#[test]
fn the_count_counts() {
    counted(|| drop(std::hint::black_box(Box::new(1))));
    assert!(ALLOCATIONS.get() == 1);
}

#[test]
fn tagged() {
    steady(|_| {}, ConnOptions::default());
}

#[test]
fn granted() {
    steady(|_| {}, ConnOptions { push_bytes: 0, ..ConnOptions::default() });
}

#[test]
fn read_and_written() {
    // As on hardware, where a refused write ends the connection.
    let change = |config: &mut SimConfig| {
        config.attr.tag_match = false;
        config.attr.recoverable_access_fault = false;
    };
    steady(change, ConnOptions::default());
}
