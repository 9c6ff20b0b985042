//! The kernel's FUSE protocol, for any [`FileSystem`].
//!
//! [`Mount`] mounts, [`serve`] reads requests and writes answers until nothing is mounted any
//! more. Each thread has a buffer for requests and one for data that are read: a READ or WRITE is
//! one `read` and one `writev`, without an allocation, unless the data lie elsewhere. The pool of threads grows while all of them
//! are in calls; one always reads, so that an interrupt reaches the call that it is meant for. Where the
//! kernel has FUSE over io_uring, requests can come by [rings](Uring) beside that.

pub mod abi;
mod channel;
mod decode;
mod encode;
mod init;
mod interrupt;
mod mount;
mod mount_table;
mod operation;
mod pool;
mod requests;
mod ring;
mod serve;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use channel::{Channel, Notifier};
pub use encode::{DirBuffer, FOREVER};
pub use init::{InitOptions, MAX_WRITE};
pub use interrupt::is_interrupted;
pub use mount::{Mount, MountError, MountOptions, Unmount, is_mount_word, unmount};
pub use mount_table::{Mounted, is_on_mount, mounted};
pub use operation::{
    Answer, Caller, Entry, FileSystem, KernelLock, LentData, LockKind, NodeAttr, Op, Opened,
    Pieces, SetAttr, SetTime, StatFs,
};
pub use pool::ServeOptions;
pub use requests::RequestMemory;
pub use ring::Uring;
pub use serve::serve;

/// No thread panics while it holds one of these locks.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
