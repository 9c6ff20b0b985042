//! What can fail, an enum per operation.

use thiserror::Error;

/// Why an arena could not be made.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ArenaError {
    /// The size is zero or does not fit the address space.
    #[error("arena of {0} bytes: size must be from 4096 bytes to the size of the address space")]
    Size(usize),
    /// The system refused the memory.
    #[error("arena of {bytes} bytes: {source}")]
    System {
        /// What was asked for.
        bytes: usize,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// Why a device could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The provider cannot work on this machine.
    #[error("{provider}: {reason}")]
    Unavailable {
        /// The provider's name.
        provider: &'static str,
        /// What is missing.
        reason: String,
    },
    /// The system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Why a connection could not be made or accepted.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is not one of this provider's.
    #[error("address '{address}': {reason}")]
    Address {
        /// As given.
        address: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Nobody listens there.
    #[error("connection refused")]
    Refused,
    /// The peer rejected the connection and said why.
    #[error("rejected by the peer: {0}")]
    Rejected(String),
    /// The peer does not speak this protocol.
    #[error("peer violated the protocol: {0}")]
    PeerProtocol(&'static str),
    /// No more queue pairs or descriptors.
    #[error("out of resources: {0}")]
    Resource(&'static str),
    /// The device carries less private data
    /// ([`DeviceAttr::private_data_bytes_max`](crate::DeviceAttr::private_data_bytes_max)).
    #[error("{bytes} bytes of private data, and the device carries {bytes_max}")]
    PrivateData {
        /// As given.
        bytes: usize,
        /// What it carries.
        bytes_max: usize,
    },
    /// No answer in time.
    #[error("no answer in time")]
    TimedOut,
    /// The system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Why a work request was not taken. Nothing of it was done; its buffers stay the caller's.
#[derive(Debug, Error, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum PostError {
    /// The queue is full: a normal status, post again after completions were polled.
    #[error("queue full")]
    QueueFull,
    /// The queue pair is not connected (or not known).
    #[error("queue pair is not connected")]
    NotConnected,
    /// The request is larger than [`DeviceAttr`](crate::DeviceAttr) allows.
    #[error("work request too large")]
    TooLarge,
    /// Local memory is not registered with this device and the device needs it to be.
    #[error("local memory is not registered")]
    NotRegistered,
    /// The device cannot do this operation; its attributes say so.
    #[error("operation not supported by this device")]
    Unsupported,
    /// The tag is in use.
    #[error("tag in use")]
    TagInUse,
}

/// Why memory could not be registered.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// A limit (for example RLIMIT_MEMLOCK) is reached: fall back to a copy.
    #[error("registration refused: {0}")]
    Refused(&'static str),
    /// The system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}
