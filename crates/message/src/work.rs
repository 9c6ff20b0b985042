//! Names of work requests: what a completion belongs to.

/// What a work request was posted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Target {
    /// A receive; its number.
    Receive = 1,
    /// Sends and pushes of a request of ours; its wire tag.
    Request = 2,
    /// The tagged receive of a reply; the request's wire tag.
    ReplyReceive = 3,
    /// A tagged receive or read of a peer's request data; the request's wire tag.
    Fetch = 4,
    /// A reply with data; its number among the connection's replies.
    Reply = 5,
    /// Request data to be thrown away; the request's wire tag.
    Discard = 6,
    /// A message without data.
    Control = 7,
    /// A read of what a reply refers to; the request's wire tag.
    Refer = 8,
    /// A named read; its caller's tag.
    Named = 9,
}

/// Connections of a node at most.
pub const CONNECTIONS_MAX: usize = 1 << 24;

/// The number of a work request.
pub fn work_id(target: Target, connection: u32, index: u32) -> u64 {
    debug_assert!((connection as usize) < CONNECTIONS_MAX, "connection number too large");
    (target as u64) << 60 | u64::from(connection) << 32 | u64::from(index)
}

/// Takes the number apart: what for, which connection, which index.
pub fn parse_work_id(id: u64) -> Option<(Target, u32, u32)> {
    const TARGETS: [Target; 9] = [
        Target::Receive,
        Target::Request,
        Target::ReplyReceive,
        Target::Fetch,
        Target::Reply,
        Target::Discard,
        Target::Control,
        Target::Refer,
        Target::Named,
    ];
    let target = TARGETS.get((id >> 60).wrapping_sub(1) as usize)?;
    Some((*target, (id >> 32) as u32 & 0xff_ffff, id as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_apart() {
        let id = work_id(Target::Discard, 0xff_ffff, u32::MAX);
        assert_eq!(parse_work_id(id), Some((Target::Discard, 0xff_ffff, u32::MAX)));
        assert_eq!(parse_work_id(work_id(Target::Receive, 0, 7)), Some((Target::Receive, 0, 7)));
        assert_eq!(parse_work_id(0), None);
    }
}
