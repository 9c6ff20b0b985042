//! Under whose rights an operation runs.

/// A user as the kernel knows it: checked proof, never a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    /// User.
    pub uid: u32,
    /// Primary group.
    pub gid: u32,
    /// Supplementary groups, at most [`GROUPS_MAX`].
    pub groups: Vec<u32>,
}

/// The most supplementary groups of an identity.
pub const GROUPS_MAX: usize = 128;

impl Identity {
    /// uid 0.
    pub fn root() -> Identity {
        Identity { uid: 0, gid: 0, groups: Vec::new() }
    }
}
