//! What happens to the world without a call.

/// What happens at a time.
#[derive(Debug, Clone, Copy)]
pub enum Wake {
    /// Connections break.
    Break(u32),
    /// A partition ends.
    Heal(u32),
    /// A client can reach the server by this network again.
    HealOne(usize, u32),
    /// The server starts.
    Start,
    /// The store is well again.
    StoreHeals,
    /// The disk has room again.
    DiskFrees,
    /// The store has its pace again.
    StorePace,
    /// No node is slow any more.
    FastNode,
    /// A client cannot reach the server for a time.
    CutOff(u32),
    /// The server's process dies.
    Crash,
    /// The same, and a client commits what it wrote through an open, or (`None`) syncs all.
    CrashAndFlush(usize, Option<u64>),
}
