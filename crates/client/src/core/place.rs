//! What calls name, and files that are made in one chain.

use dafs_protocol::{Attr, FileHandle, NAME_BYTES_MAX, SetAttr, SetTime, Status, Timestamp};

/// A name: a path below a directory, which is the root unless another is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place(Box<Parts>);

/// In a box: calls are moved about, and few have names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parts {
    path: Vec<u8>,
    /// Where the path begins; `None`: the root.
    origin: Option<FileHandle>,
    walked: usize,
    /// Where the part that was walked leads.
    base: Option<FileHandle>,
    /// A change there asks for the attributes of the directory as well.
    look: bool,
}

/// Bytes of a path, whatever number of steps it takes.
const WHOLE_PATH_BYTES_MAX: usize = 64 << 10;

impl Place {
    /// Takes a path without its empty and `.` components.
    ///
    /// # Errors
    /// [`Status::Inval`] for a NUL byte, [`Status::NameTooLong`].
    pub fn new(path: &[u8]) -> Result<Place, Status> {
        if path.contains(&0) {
            return Err(Status::Inval);
        }
        if path.len() > WHOLE_PATH_BYTES_MAX {
            return Err(Status::NameTooLong);
        }
        let mut clean = Vec::with_capacity(path.len());
        for part in path.split(|b| *b == b'/').filter(|part| !matches!(*part, b"" | b".")) {
            if !clean.is_empty() {
                clean.push(b'/');
            }
            clean.extend_from_slice(part);
        }
        Ok(Place::of(clean, None))
    }

    fn of(path: Vec<u8>, origin: Option<FileHandle>) -> Place {
        Place(Box::new(Parts { path, origin, walked: 0, base: None, look: false }))
    }

    /// An object whose handle is known.
    pub fn at(handle: FileHandle) -> Place {
        Place::of(Vec::new(), Some(handle))
    }

    /// One name in a directory whose handle is known.
    ///
    /// # Errors
    /// [`Status::NoEnt`] for no name, [`Status::Inval`] for what no directory entry is called,
    /// [`Status::NameTooLong`].
    pub fn child(dir: FileHandle, name: &[u8]) -> Result<Place, Status> {
        if name.is_empty() {
            return Err(Status::NoEnt);
        }
        if name.len() > NAME_BYTES_MAX {
            return Err(Status::NameTooLong);
        }
        if matches!(name, b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
            return Err(Status::Inval);
        }
        Ok(Place::of(name.into(), Some(dir)))
    }

    /// What changes this name also answers the attributes that the directory has after it.
    #[must_use]
    pub fn with_dir(mut self) -> Place {
        self.0.look = true;
        self
    }

    /// The directory that is to be looked at after a change there.
    pub(crate) fn dir_to_look_at(&self, root: FileHandle) -> Option<FileHandle> {
        (self.0.look && self.split().0.is_empty()).then(|| self.base(root))
    }

    /// From where [`rest`](Self::rest) is to be walked.
    pub(crate) fn base(&self, root: FileHandle) -> FileHandle {
        self.0.base.or(self.0.origin).unwrap_or(root)
    }

    /// What is left to walk.
    pub(crate) fn rest(&self) -> &[u8] {
        self.0.path.get(self.0.walked..).unwrap_or(&[])
    }

    /// The directory part and the last component of what is left.
    pub(crate) fn split(&self) -> (&[u8], &[u8]) {
        let rest = self.rest();
        match rest.iter().rposition(|b| *b == b'/') {
            Some(at) => (rest.get(..at).unwrap_or(&[]), rest.get(at + 1..).unwrap_or(&[])),
            None => (&[], rest),
        }
    }

    /// Where what is left is longer than `bytes_max`: how many bytes of it to walk first.
    pub(crate) fn step(&self, bytes_max: usize) -> Option<usize> {
        let rest = self.rest();
        if rest.len() <= bytes_max {
            return None;
        }
        let slash = |part: &[u8]| part.iter().rposition(|b| *b == b'/');
        // A component longer than allowed is left to the server to refuse.
        rest.get(..=bytes_max).and_then(slash).or_else(|| rest.iter().position(|b| *b == b'/'))
    }

    /// `bytes` of what was left lead to `handle`.
    pub(crate) fn walk(&mut self, bytes: usize, handle: FileHandle) {
        self.0.walked = (self.0.walked + bytes + 1).min(self.0.path.len());
        self.0.base = Some(handle);
    }

    /// Forgets what was walked: the next session begins where the path does.
    pub(crate) fn rewind(&mut self) {
        self.0.walked = 0;
        self.0.base = None;
    }

    /// All of it, as given.
    pub(crate) fn rewound(&self) -> Place {
        let mut place = self.clone();
        place.rewind();
        place
    }
}

/// A small file to be made in one chain.
#[derive(Debug)]
pub struct Put {
    pub(crate) place: Place,
    pub(crate) len: u32,
    pub(crate) mode: u32,
    pub(crate) exclusive: bool,
    pub(crate) set: SetAttr,
    pub(crate) commit: bool,
    pub(crate) rename_to: Option<Place>,
    /// The handle of the directory of `place`, where that of `rename_to` is another.
    pub(crate) from_dir: Option<FileHandle>,
    /// The file is there, only its name is to be changed; what its close answered.
    pub(crate) made: Option<Attr>,
}

impl Put {
    /// `len` bytes of the call's memory become the file `place`, with `set` and then the name
    /// `rename_to`.
    pub fn new(
        place: Place,
        len: u32,
        mode: u32,
        exclusive: bool,
        set: SetAttr,
        commit: bool,
        rename_to: Option<Place>,
    ) -> Put {
        Put { place, len, mode, exclusive, set, commit, rename_to, from_dir: None, made: None }
    }

    /// What is to be set after writing.
    pub fn attributes(
        mode: u32,
        times: Option<(Timestamp, Timestamp)>,
        owner: Option<(u32, u32)>,
    ) -> SetAttr {
        SetAttr {
            // The server's umask and a change of owner may take bits away.
            mode: (owner.is_some() || times.is_some()).then_some(mode),
            uid: owner.map(|(uid, _)| uid),
            gid: owner.map(|(_, gid)| gid),
            accessed: times.map(|(accessed, _)| SetTime::To(accessed)),
            modified: times.map(|(_, modified)| SetTime::To(modified)),
            ..SetAttr::default()
        }
    }
}
