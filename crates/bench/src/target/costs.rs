//! What a stretch of measuring cost both sides.

use std::io;

use dafs_client::Session;
use dafs_protocol::SessionStats;

use crate::slice::Slice;
use crate::sys;

/// Counters of both sides at the beginning of a stretch.
pub(crate) struct Costs {
    server: SessionStats,
    info: dafs_client::SessionInfo,
    cpu: u64,
}

impl Costs {
    /// From now on.
    ///
    /// # Errors
    /// The server does not tell its own.
    pub(crate) fn begin(session: &Session) -> io::Result<Costs> {
        let server = session.stats()?;
        Ok(Costs { server, info: session.info(), cpu: sys::process_cpu_ns() })
    }

    /// Until now; what was spent is in `slice`.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub(crate) fn end(self, session: &Session, slice: &mut Slice) -> io::Result<()> {
        let (before, cpu, info) = (self.info, sys::process_cpu_ns(), session.info());
        let server = session.stats()?;
        let since = |now: u64, before: u64| now.checked_sub(before);
        let both = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a + b);
        slice.client_cpu_ns = since(cpu, self.cpu);
        slice.server_cpu_ns = since(server.cpu_ns, self.server.cpu_ns).filter(|ns| *ns > 0);
        slice.client_copied_bytes = since(info.copied_bytes, before.copied_bytes);
        slice.server_copied_bytes = since(server.copied_bytes, self.server.copied_bytes);
        slice.registrations = both(
            since(info.registrations, before.registrations),
            since(server.registrations, self.server.registrations),
        );
        slice.system_calls = both(
            since(info.system_calls, before.system_calls),
            since(server.system_calls, self.server.system_calls),
        );
        slice.round_trips = since(info.round_trips, before.round_trips);
        Ok(())
    }
}
