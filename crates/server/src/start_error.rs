//! Why a server did not start.

use std::os::unix::fs::FileTypeExt;
use std::path::PathBuf;

use dafs_fabric::{Address, ConnectError, OpenError, RegisterError};

use crate::config::ConfigError;
use crate::paths::DataPath;

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// What it was told.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A directory.
    #[error("{path}: {reason}")]
    Export {
        /// Which.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// An address.
    #[error("cannot listen on {address}: {source}{}", cure(address, source))]
    Listen {
        /// Which.
        address: Address,
        /// Why.
        source: ConnectError,
    },
    /// The cache.
    #[error("cache: {0}")]
    Arena(#[from] dafs_fabric::ArenaError),
    /// Memory of the cache, which a device must know.
    #[error(
        "the transport does not take {bytes} bytes of the cache: {source}; raise the limit of locked \
         memory (ulimit -l)"
    )]
    Register {
        /// Of its first segment.
        bytes: usize,
        /// Why not.
        source: RegisterError,
    },
    /// The trace.
    #[error("trace {}: {source}", path.display())]
    Trace {
        /// Where it was to go.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The transport.
    #[error("transport: {0}")]
    Device(#[from] OpenError),
    /// An export's data path and the transport do not go together.
    #[error("--datapath {path}: the transport '{transport}' cannot send from files")]
    DataPath {
        /// Which.
        path: DataPath,
        /// That cannot.
        transport: &'static str,
    },
    /// The message layer.
    #[error("messages: {0}")]
    Node(String),
    /// The admin port.
    #[error("admin port {address}: {source}")]
    Admin {
        /// Where.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// Callers without proof cannot be what they should be.
    #[error(
        "this server runs as uid {0} and cannot act as anybody else: \
         with --insecure give --anon-uid {0}, or run it as root"
    )]
    AnonymousUid(u32),
    /// The system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// What to do where another program listens already.
fn cure(address: &Address, source: &ConnectError) -> &'static str {
    match source {
        ConnectError::Io(error) if error.kind() != std::io::ErrorKind::AddrInUse => "",
        ConnectError::Io(_) if address.is_path() && is_no_socket(address) => {
            "; what is there is no socket: remove it, or choose another path"
        }
        ConnectError::Io(_) if address.is_path() => {
            "; another server listens there: `dafs status` shows it; stop it, or choose another path"
        }
        ConnectError::Io(_) => {
            "; another program listens there: `dafs status` shows the servers of this machine, and --listen \
             with port 0 takes any free port"
        }
        _ => "",
    }
}

fn is_no_socket(address: &Address) -> bool {
    let found = std::fs::symlink_metadata(&address.target);
    found.is_ok_and(|found| !found.file_type().is_socket())
}
