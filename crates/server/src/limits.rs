//! What a peer may consume. Each has a default that suits a machine of any size.

use serde::Deserialize;

use crate::values;

/// Limits per server, settable in the configuration file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Sessions at a time.
    pub sessions: usize,
    /// Connections that do not belong to a session yet, per worker.
    pub connections_unproven: usize,
    /// Sessions of one user (root excepted), of all workers together.
    pub sessions_per_user: usize,
    /// Open files of one session.
    pub opens_per_session: usize,
    /// Open files of the server.
    pub opens: usize,
    /// Requests under way per session.
    pub slots: u16,
    /// Bytes of data of one request.
    #[serde(deserialize_with = "values::bytes")]
    pub data_bytes: u32,
    /// Bytes that a connection may push before the server asked for them.
    #[serde(deserialize_with = "values::bytes")]
    pub push_bytes: u32,
    /// Memory of all requests under way, beside the arena.
    #[serde(deserialize_with = "values::bytes")]
    pub request_bytes: usize,
    /// Registered credentials of one session.
    pub credentials: usize,
    /// Ranges that one session holds locks of.
    pub locks_per_session: usize,
    /// Locks that one session waits for, and ended waits that it did not confirm to know of.
    pub lock_waits_per_session: usize,
    /// Waits for locks of one file.
    pub lock_waits_per_file: usize,
    /// Files with locks; byte ranges and the whole of a file count apart.
    pub lock_files: usize,
    /// Clients that are recorded, over restarts, as having locks.
    pub lock_clients: usize,
    /// Sessions, alive or ended, of which it is logged what became of their changes.
    pub logged_sessions: usize,
    /// Whether any user's session may have a worker poll without sleep; root's, and those of the
    /// user as whom the server runs, always may.
    pub polled: bool,
    /// Whether the server may fetch by RDMA read: [`Config::rdma_read`](crate::Config::rdma_read).
    #[serde(skip)]
    pub rdma_read: bool,
    /// Seconds a session may be silent.
    #[serde(deserialize_with = "values::seconds")]
    pub lease_seconds: u32,
    /// Seconds a connection may take to become part of a session.
    #[serde(deserialize_with = "values::seconds")]
    pub setup_seconds: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            sessions: 4096,
            connections_unproven: 256,
            sessions_per_user: 1024,
            opens_per_session: 65_536,
            opens: 262_144,
            slots: 64,
            data_bytes: 1 << 20,
            push_bytes: 16 << 20,
            request_bytes: 24 << 20,
            credentials: 1024,
            locks_per_session: 16_384,
            lock_waits_per_session: 1024,
            lock_waits_per_file: 512,
            lock_files: 65_536,
            lock_clients: 4096,
            logged_sessions: 8192,
            polled: false,
            rdma_read: true,
            lease_seconds: 30,
            setup_seconds: 5,
        }
    }
}
