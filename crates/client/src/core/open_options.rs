//! How a file is opened.

use dafs_protocol::CacheHint;

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenOptions {
    /// Reading is wanted.
    pub read: bool,
    /// Writing is wanted.
    pub write: bool,
    /// Make it where it is missing.
    pub create: bool,
    /// With `create`: fail where it exists.
    pub exclusive: bool,
    /// Empty it.
    pub truncate: bool,
    /// All writes go to the end; implies `write`.
    pub append: bool,
    /// Fail where the last component is a symlink.
    pub no_follow: bool,
    /// A new file without a name in the directory that is named, as `O_TMPFILE` makes; implies
    /// `create`. With `exclusive` it never gets a name.
    pub unlinked: bool,
    /// Permission bits of a new file.
    pub mode: u32,
    /// How the server is to cache the file, as [`Advice::Wish`](crate::Advice::Wish) says later: a wish,
    /// of who may write to the file or owns it, which others may change.
    pub cache: CacheHint,
}

impl Default for OpenOptions {
    /// Neither reading nor writing; 0644 for new files.
    fn default() -> Self {
        OpenOptions {
            read: false,
            write: false,
            create: false,
            exclusive: false,
            truncate: false,
            append: false,
            no_follow: false,
            unlinked: false,
            mode: 0o644,
            cache: CacheHint::default(),
        }
    }
}

impl OpenOptions {
    /// For reading.
    pub fn read() -> OpenOptions {
        OpenOptions { read: true, ..OpenOptions::default() }
    }

    /// For writing, made or emptied.
    pub fn write() -> OpenOptions {
        OpenOptions { write: true, create: true, truncate: true, ..OpenOptions::default() }
    }
}
