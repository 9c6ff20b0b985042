//! Sessions with servers.

use std::sync::Arc;
use std::time::Duration;

use dafs_client::{Session, SessionInfo, SessionOptions, Url};
use dafs_protocol::{SessionStats, WaitMode};

use super::record::check_flags;
use crate::border::{In, Records, status};
use crate::failure::{Failure, Outcome};
use crate::object::{Object, SessionObject};
use crate::operation::session as named;
use crate::pointer::{Out, Text};
use crate::provider::providers;
use crate::table;
use crate::types::{
    DAP_SESSION_NO_READ_AHEAD, DAP_TRANSFER_INLINE, DAP_TRANSFER_RDMA_READ, DAP_TRANSFER_TAGGED,
    DAP_WAIT_ADAPTIVE, DAP_WAIT_POLLED, DAP_WAIT_SLEEPING, dap_options_t, dap_session_info_t,
    dap_session_t,
};

/// Connects to a server and makes a session
///
/// The url is dafs://HOST[:PORT]/PATH, or dafs+unix:///SOCKET//PATH for the Unix socket of a server on this host;
/// options may follow as ?NAME=VALUE. The names of all calls are below PATH. With options null, or 0 in a field of
/// it, the usual values hold, and what the URL says goes before them. The handle is put into session.
///
/// Threads may share a session, and everything in it. It lives over lost connections and restarts of the server. A
/// child of fork(2) cannot use it (-ECHILD), and opens its own.
///
/// Blocks until the server has answered or refused; it is tried once.
///
/// Returns 0, or: -EINVAL for a URL or an option that is wrong; -ECONNREFUSED where nobody listens; -ENOTCONN where
/// the server is not reached; -EACCES where one of the two ends cannot prove who it is; -ENOENT where there is no
/// such export; -EMFILE, -ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn dap_session_open(
    url: Text,
    options: In<dap_options_t>,
    session: Out<dap_session_t>,
) -> i32 {
    status(|| {
        session.check("session")?;
        let text = str::from_utf8(url.bytes("url")?);
        let url = Url::parse(text.map_err(|_| Failure::invalid(NOT_UTF8))?)?;
        let given = options.optional()?;
        let options = session_options(given.as_ref(), &url)?;
        let (opened, base) = Session::connect_url(providers(), &url, options)?;
        let base = base.strip_suffix(b"/").map(<[u8]>::to_vec).unwrap_or(base);
        let object = Object::Session(Arc::new(SessionObject::new(opened, base)));
        session.put(table::insert(object)?);
        Ok(())
    })
}

/// Read as something else it would name another directory.
const NOT_UTF8: &str = "the URL is not UTF-8: write bytes that are no text as %XX";

fn session_options(given: Option<&dap_options_t>, url: &Url) -> Outcome<SessionOptions> {
    let mut options = SessionOptions::default();
    if let Some(given) = given {
        check_flags(given.flags, DAP_SESSION_NO_READ_AHEAD)?;
        options.read_ahead = given.flags & DAP_SESSION_NO_READ_AHEAD == 0;
        if given.retry_ms > 0 {
            options.retry = Duration::from_millis(given.retry_ms.into());
        }
        options.slots = field(given.credits, 64, 1..=1024, "'credits' is 1 to 1024")?;
        options.connections = field(given.connections, 2, 1..=2, "'connections' is 1 or 2")?;
        let data = "'data_bytes_max' is 4096 to 1048576";
        options.data_bytes_max = field(given.data_bytes_max, 1 << 20, 4096..=1 << 20, data)?;
        options.wait = match given.wait {
            DAP_WAIT_ADAPTIVE => WaitMode::Adaptive,
            DAP_WAIT_POLLED => WaitMode::Polled,
            DAP_WAIT_SLEEPING => WaitMode::Sleeping,
            _ => return Err(Failure::invalid("dap_options_t: 'wait' is one of DAP_WAIT_...")),
        };
        if given.key_bytes > 0 {
            options.key = Some(given.key.slice(given.key_bytes as usize, "key")?.to_vec());
        }
        if let Some(name) = given.export_name.optional() {
            options.export = name.to_vec();
        }
    }
    options.apply_url(url)?;
    Ok(options)
}

/// A field of which 0 is the usual value.
fn field<T: TryFrom<u32>>(
    value: u32,
    usual: u32,
    range: std::ops::RangeInclusive<u32>,
    text: &str,
) -> Outcome<T> {
    let wrong = || Failure::about(libc::EINVAL, format!("dap_options_t: {text}, or 0"));
    let value = if value == 0 { usual } else { value };
    Some(value)
        .filter(|value| range.contains(value))
        .and_then(|v| v.try_into().ok())
        .ok_or_else(wrong)
}

/// Ends a session, and closes all that is open in it
///
/// Handles of its files, directories and completion groups become -EBADF. Calls under way end with -ECANCELED.
/// Files that are open are closed by the server: only dap_close tells of writes that were lost. Registered memory
/// stays until dap_deregister_mem or dap_mem_free. A callback of a group that runs is waited for, unless it is the
/// caller.
///
/// Blocks for a second at most, where the server does not answer.
///
/// Returns 0, or: -EBADF; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_session_close(session: dap_session_t) -> i32 {
    status(|| {
        let object = table::remove(session, |object| match object {
            Object::Session(session) => Ok(session.clone()),
            _ => Err(table::bad_handle()),
        })?;
        object.session.clone().close();
        let mut groups = Vec::new();
        table::remove_all(|other| {
            let is = other.is_of(&object);
            if let (true, Object::Group(group)) = (is, other) {
                groups.push(group.group.clone());
            }
            is
        })?;
        groups.iter().for_each(|group| group.stop());
        Ok(())
    })
}

/// What a session is like: transfer modes, credits, sizes of caches, counters
///
/// Fills info, whose field size the caller has set. What the server counts is asked of it: one round trip. The cache's
/// sizes are 0 where the server does not tell them.
///
/// Blocks.
///
/// Returns 0, or: -EBADF; -EINVAL; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_session_query(
    session: dap_session_t,
    info: Records<dap_session_info_t>,
) -> i32 {
    status(|| {
        let stride = info.stride("info")?;
        let object = named(session)?;
        let stats = object.session.stats()?;
        info.put(0, stride, &info_of(&object.session.info(), &stats));
        Ok(())
    })
}

fn info_of(info: &SessionInfo, stats: &SessionStats) -> dap_session_info_t {
    let mut modes = DAP_TRANSFER_INLINE;
    if info.attr.tagged {
        modes |= DAP_TRANSFER_TAGGED;
    }
    if info.attr.rdma_read {
        modes |= DAP_TRANSFER_RDMA_READ;
    }
    let mut transport = [0; 16];
    transport.iter_mut().take(15).zip(info.transport.bytes()).for_each(|(to, from)| *to = from);
    dap_session_info_t {
        size: 0,
        protocol_version: info.protocol_version,
        transfer_modes: modes,
        credits: info.attr.slots.into(),
        data_bytes_max: info.attr.data_bytes_max,
        inline_bytes_max: info.attr.inline_bytes,
        lease_ms: info.attr.lease_ms,
        uid: info.uid,
        server_cache_bytes: stats.arena_bytes,
        server_dirty_bytes: stats.dirty_bytes,
        server_cache_hits: stats.cache_hits,
        server_cache_misses: stats.cache_misses,
        registrations: info.registrations,
        copied_bytes: info.copied_bytes,
        round_trips: info.round_trips,
        reconnects: info.reconnects,
        new_sessions: info.new_sessions,
        verifier: info.verifier.0,
        transport,
        optimistic_hits: info.optimistic.hits,
        optimistic_stale: info.optimistic.stale,
    }
}

/// A round trip that does nothing
///
/// Puts its time in nanoseconds into nanoseconds, which may be null. Blocks.
///
/// Returns 0, or: -EBADF; the session's errors.
#[unsafe(no_mangle)]
pub extern "C" fn dap_session_ping(session: dap_session_t, nanoseconds: Out<u64>) -> i32 {
    status(|| {
        let time = named(session)?.session.ping()?;
        nanoseconds.put(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        Ok(())
    })
}

/// Everything that anybody wrote to the export, on disk
///
/// Blocks.
///
/// Returns 0, or: -EBADF; -EIO with DAP_REASON_WRITES_LOST where unstable writes of this session were lost with the
/// server; errors of writes that came late.
#[unsafe(no_mangle)]
pub extern "C" fn dap_session_sync(session: dap_session_t) -> i32 {
    status(|| Ok(named(session)?.session.sync()?))
}
