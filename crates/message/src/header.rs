//! Message headers: bytes to values and back.

/// Bytes of the set-up block in front of private data.
pub const SETUP_BYTES: usize = 16;
