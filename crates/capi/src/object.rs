//! What handles name.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock};

use dafs_client::{File, Lent, ReadDir, Session};
use dafs_fabric::{Arena, PostedBuffer, Span};

use crate::failure::{Failure, Outcome};
use crate::group::Group;

/// Operations of the default group that have not ended, at most.
const DEFAULT_DEPTH: usize = 1024;

/// What a handle names.
pub enum Object {
    Session(Arc<SessionObject>),
    File(Arc<FileObject>),
    Directory(Arc<DirectoryObject>),
    Memory(Arc<MemoryObject>),
    Group(Arc<GroupObject>),
    Loan(Arc<LoanObject>),
}

impl Object {
    /// As it is in the handle; never 0.
    #[inline]
    pub fn kind(&self) -> u64 {
        match self {
            Object::Session(_) => 1,
            Object::File(_) => 2,
            Object::Directory(_) => 3,
            Object::Memory(_) => 4,
            Object::Group(_) => 5,
            Object::Loan(_) => 6,
        }
    }

    /// It goes with this session.
    pub fn is_of(&self, session: &Arc<SessionObject>) -> bool {
        match self {
            Object::Session(own) => Arc::ptr_eq(own, session),
            Object::File(file) => Arc::ptr_eq(&file.session, session),
            Object::Directory(directory) => Arc::ptr_eq(&directory.session, session),
            Object::Group(group) => Arc::ptr_eq(&group.session, session),
            Object::Memory(_) | Object::Loan(_) => false,
        }
    }
}

/// A session.
pub struct SessionObject {
    pub session: Session,
    /// The path of its URL: names are below it.
    base: Vec<u8>,
    default_group: OnceLock<u64>,
    /// One at a time makes the default group.
    pub making: Mutex<()>,
}

impl SessionObject {
    /// With the path of its URL.
    pub fn new(session: Session, base: Vec<u8>) -> SessionObject {
        SessionObject { session, base, default_group: OnceLock::new(), making: Mutex::new(()) }
    }

    /// A name below the path of the URL.
    pub fn path(&self, name: &[u8]) -> Vec<u8> {
        if self.base.is_empty() || name.is_empty() {
            return [self.base.as_slice(), name].concat();
        }
        [self.base.as_slice(), b"/", name].concat()
    }

    /// The handle of the default group, when there is one.
    pub fn default_group(&self) -> Option<u64> {
        self.default_group.get().copied()
    }

    /// Remembers it.
    pub fn set_default_group(&self, handle: u64) {
        let _ = self.default_group.set(handle);
    }
}

/// A file.
pub struct FileObject {
    pub file: File,
    pub session: Arc<SessionObject>,
}

/// A directory that is read.
pub struct DirectoryObject {
    pub entries: Mutex<ReadDir>,
    pub session: Arc<SessionObject>,
}

/// Data to be read in place.
pub struct LoanObject(pub Lent);

impl LoanObject {
    /// The bytes that lie together from there on.
    pub fn piece(&self, mut offset: usize) -> &[u8] {
        for piece in self.0.pieces() {
            match piece.get(offset..) {
                Some(rest) if !rest.is_empty() => return rest,
                _ => offset = offset.saturating_sub(piece.len()),
            }
        }
        &[]
    }

    /// All of it is in the server's cache.
    pub fn is_mapped(&self) -> bool {
        self.0.is_mapped()
    }
}

/// A completion group.
pub struct GroupObject {
    pub group: Arc<Group>,
    pub session: Arc<SessionObject>,
}

impl GroupObject {
    /// With room for so many operations; `None`: as the default one.
    pub fn new(session: &Arc<SessionObject>, depth: Option<usize>) -> GroupObject {
        let group = Group::new(&session.session, depth.unwrap_or(DEFAULT_DEPTH));
        GroupObject { group: Arc::new(group), session: session.clone() }
    }
}

/// Memory that a network may touch.
pub struct MemoryObject {
    memory: Memory,
    len: usize,
    /// The library made it.
    pub own: bool,
}

enum Memory {
    /// Of a session's network, which reaches it as it is.
    Of(PostedBuffer),
    /// The program's own.
    Foreign(Arc<Arena>),
}

impl MemoryObject {
    /// Zeroed.
    ///
    /// # Errors
    /// `ENOMEM`, `EINVAL`.
    pub fn allocate(session: &Session, len: usize) -> Outcome<Arc<MemoryObject>> {
        if len == 0 {
            return Err(Failure::invalid("memory of no bytes: ask for at least one"));
        }
        let buffer = session
            .buffer(len)
            .map_err(|error| Failure::about(libc::ENOMEM, format!("{error}; ask for less")))?;
        Ok(Arc::new(MemoryObject { memory: Memory::Of(buffer.post()), len, own: true }))
    }

    /// The program's own.
    pub fn of(arena: Arc<Arena>) -> Arc<MemoryObject> {
        let len = arena.len();
        Arc::new(MemoryObject { memory: Memory::Foreign(arena), len, own: false })
    }

    /// All of it.
    pub fn whole(&self) -> Span {
        match &self.memory {
            Memory::Of(buffer) => buffer.span().clone(),
            Memory::Foreign(arena) => arena.span(0, arena.len()),
        }
    }

    /// The address of its first byte.
    pub fn addr(&self) -> usize {
        self.whole().addr() as usize
    }

    /// Somebody uses it, or may: `this` is the only share of the table.
    pub fn is_in_flight(this: &Arc<MemoryObject>) -> bool {
        let is_used = Arc::strong_count(this) > 1
            || match &this.memory {
                Memory::Of(buffer) => !buffer.is_unused(),
                Memory::Foreign(arena) => Arc::strong_count(arena) > 1,
            };
        // What the last user wrote before it let go is seen after this.
        fence(Ordering::Acquire);
        is_used
    }

    /// A part of it.
    ///
    /// # Errors
    /// `EINVAL`: not inside.
    #[inline]
    pub fn span(&self, offset: u64, len: usize) -> Outcome<Span> {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        if offset > self.len || len > self.len - offset {
            return Err(Failure::invalid(
                "the part is not inside of the registered memory: look at offset and length",
            ));
        }
        Ok(match &self.memory {
            Memory::Of(buffer) => buffer.span().part(offset, len),
            Memory::Foreign(arena) => arena.span(offset, len),
        })
    }
}
