//! Counters of nodes and connections.

/// What happened, per node or per connection. Numbers only grow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests submitted.
    pub requests_sent: u64,
    /// Requests of peers delivered.
    pub requests_received: u64,
    /// Requests sent without data.
    pub data_none: u64,
    /// Requests sent with data inline.
    pub data_inline: u64,
    /// Requests whose data was pushed at once.
    pub data_pushed: u64,
    /// Requests whose data waited for a grant.
    pub data_granted: u64,
    /// Requests whose data the peer read.
    pub data_read: u64,
    /// Requests whose data went in pieces.
    pub data_pieces: u64,
    /// Replies sent, header and data in one tagged message.
    pub replies_tagged: u64,
    /// Replies sent as one message, data inline or none.
    pub replies_inline: u64,
    /// Replies whose data was written to the peer's memory.
    pub replies_written: u64,
    /// Replies whose data went in pieces.
    pub replies_pieces: u64,
    /// Replies that referred to their data.
    pub replies_referred: u64,
    /// References of peers that were let go here.
    pub references_released: u64,
    /// `submit` answered `NoCredit`.
    pub credit_stalls: u64,
    /// Requests that wanted to push and had too few byte credits.
    pub push_stalls: u64,
    /// Posts that met a full queue and were kept.
    pub queue_full: u64,
    /// Payload bytes copied here (inline data and pieces).
    pub copied_bytes: u64,
    /// Request data thrown away as it was replied without a fetch.
    pub discarded_bytes: u64,
    /// Connections ended for a fault of the peer.
    pub peer_faults: u64,
}

/// A node's counters and what it holds now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// All connections together, also ended ones.
    pub counters: Counters,
    /// Connections now, also ending ones.
    pub connections: usize,
    /// Requests delivered and not replied.
    pub requests_in_service: usize,
    /// Requests that wait for their delivery.
    pub requests_waiting: usize,
    /// Receives posted.
    pub receives_posted: usize,
    /// Receives that connections rely on.
    pub receives_promised: usize,
    /// Memory regions in the cache.
    pub regions: usize,
    /// Memory regions registered so far.
    pub registrations: u64,
    /// System calls of the engine.
    pub system_calls: u64,
}

impl Counters {
    /// Adds those of another.
    pub fn add(&mut self, other: &Counters) {
        self.requests_sent += other.requests_sent;
        self.requests_received += other.requests_received;
        self.data_none += other.data_none;
        self.data_inline += other.data_inline;
        self.data_pushed += other.data_pushed;
        self.data_granted += other.data_granted;
        self.data_read += other.data_read;
        self.data_pieces += other.data_pieces;
        self.replies_tagged += other.replies_tagged;
        self.replies_inline += other.replies_inline;
        self.replies_written += other.replies_written;
        self.replies_pieces += other.replies_pieces;
        self.replies_referred += other.replies_referred;
        self.references_released += other.references_released;
        self.credit_stalls += other.credit_stalls;
        self.push_stalls += other.push_stalls;
        self.queue_full += other.queue_full;
        self.copied_bytes += other.copied_bytes;
        self.discarded_bytes += other.discarded_bytes;
        self.peer_faults += other.peer_faults;
    }
}

impl NodeStats {
    /// Adds those of another.
    pub fn add(&mut self, other: &NodeStats) {
        self.counters.add(&other.counters);
        self.connections += other.connections;
        self.requests_in_service += other.requests_in_service;
        self.requests_waiting += other.requests_waiting;
        self.receives_posted += other.receives_posted;
        self.receives_promised += other.receives_promised;
        self.regions += other.regions;
        self.registrations += other.registrations;
        self.system_calls += other.system_calls;
    }
}
