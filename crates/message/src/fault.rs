//! What ends a connection.

/// Why a connection must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// For people.
    pub reason: &'static str,
    /// The peer broke the rules; otherwise we cannot go on.
    pub peer: bool,
}

impl Fault {
    /// The peer's.
    #[cold]
    #[inline(never)]
    pub const fn peer(reason: &'static str) -> Fault {
        Fault { reason, peer: true }
    }

    /// Ours.
    #[cold]
    #[inline(never)]
    pub fn local(reason: &'static str) -> Fault {
        Fault { reason, peer: false }
    }
}
