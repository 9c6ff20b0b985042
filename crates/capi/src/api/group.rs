//! Asynchronous operations, and completion groups.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::record::check_flags;
use crate::border::{Callback, Records, count, status};
use crate::failure::{Failure, Outcome};
use crate::group::{Ended, Event};
use crate::object::{GroupObject, Object, SessionObject};
use crate::operation::{check_segments, file as file_of, session as session_of, submit};
use crate::pointer::{Context, Out};
use crate::table;
use crate::types::{
    DAP_CG_DEPTH_MAX, DAP_EVENT_ROOM, DAP_OP_READ_LIST, DAP_OP_WRITE_LIST, DAP_SUBMIT_MORE,
    dap_cg_t, dap_op_t, dap_result_t, dap_session_t,
};

fn named(group: dap_cg_t) -> Outcome<Arc<GroupObject>> {
    table::get(group, |object| match object {
        Object::Group(group) => Some(group.clone()),
        _ => None,
    })
}

/// The default group of a session, made when it is first needed.
fn default_group(session: &Arc<SessionObject>) -> Outcome<dap_cg_t> {
    if let Some(handle) = session.default_group() {
        return Ok(handle);
    }
    let _making = session.making.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(handle) = session.default_group() {
        return Ok(handle);
    }
    let group = GroupObject::new(session, None);
    let handle = table::insert(Object::Group(Arc::new(group)))?;
    session.set_default_group(handle);
    Ok(handle)
}

/// Makes a completion group
///
/// For operations on files of the session, of which depth (1 to DAP_CG_DEPTH_MAX) may be under way at a time. An operation's group is
/// chosen when it is submitted; its result is taken from there. The handle is put into group. Does not block.
///
/// Returns 0, or: -EBADF for the session; -EINVAL; -EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn dap_cg_create(session: dap_session_t, depth: u32, group: Out<dap_cg_t>) -> i32 {
    status(|| {
        group.check("group")?;
        if !(1..=DAP_CG_DEPTH_MAX).contains(&depth) {
            return Err(Failure::invalid("the depth of a group is 1 to DAP_CG_DEPTH_MAX"));
        }
        let session = session_of(session)?;
        let object = GroupObject::new(&session, Some(depth as usize));
        group.put(table::insert(Object::Group(Arc::new(object)))?);
        Ok(())
    })
}

/// The default completion group of a session
///
/// The one that 0 means when an operation is submitted; 1024 operations of it may be under way. Its handle is put into group. It
/// ends with the session. Does not block.
///
/// Returns 0, or: -EBADF for the session; -EINVAL; -EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn dap_cg_default(session: dap_session_t, group: Out<dap_cg_t>) -> i32 {
    status(|| {
        group.check("group")?;
        group.put(default_group(&session_of(session)?)?);
        Ok(())
    })
}

/// Destroys a completion group
///
/// Results that nobody took are gone. Waits for its callback, where that runs; otherwise does not block.
///
/// Returns 0, or: -EBUSY while operations of it are under way, and then nothing has changed; -EDEADLK in its own callback; -EINVAL for the
/// default group; -EBADF; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_cg_destroy(group: dap_cg_t) -> i32 {
    status(|| {
        let gone = table::remove(group, |object| {
            let Object::Group(found) = object else { return Err(table::bad_handle()) };
            if found.session.default_group() == Some(group) {
                let text = "the default group of a session ends with it: close the session";
                return Err(Failure::invalid(text));
            }
            found.group.stop_if_idle()?;
            Ok(found.clone())
        })?;
        gone.group.stop();
        Ok(())
    })
}

/// A descriptor that tells of results, for an event loop
///
/// It is readable while the group has results to take, for poll(2) or epoll(7): then take them by dap_cg_wait with min 0. The group
/// keeps it, and closes it when it is destroyed: do not read, write or close it. From the first call on a thread of the library
/// looks after the group. Does not block.
///
/// Returns the descriptor, or: -EBUSY where results go to a callback; -EMFILE, -EAGAIN for what the system lacks; -EBADF; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_cg_descriptor(group: dap_cg_t) -> i64 {
    count(|| Ok(named(group)?.group.descriptor()?.into()))
}

/// Has results given to a function
///
/// From now on function is called for each result, with context as it is given here, in a thread of the library, one after the other.
/// The result is valid during the call. The function may call the library, also submit, but neither destroy its group nor wait for
/// it. It must return: longjmp and exceptions out of it are not allowed. Where it calls fork(2), the child's only thread ends
/// when it returns there. Does not block.
///
/// Returns 0, or: -EBUSY where the group has a callback or a descriptor already; -EINVAL for null; -EAGAIN for what the system lacks;
/// -EBADF; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_cg_callback(group: dap_cg_t, function: Callback, context: Context) -> i32 {
    status(|| {
        if !function.is_some() {
            return Err(Failure::null("function"));
        }
        let told = Box::new(move |event| function.call(context, &result_of(event)));
        named(group)?.group.call_back(told)
    })
}

/// Begins operations
///
/// The count operations in operations, all with the size that the first one says, in the group that is named, or with 0 in the default
/// one of the session of the first one's file. The files must be of the session of the group. Each gets its name in the
/// field request. Memory is in flight until the result was put into the group. Of a list, the segments are read before the
/// call returns. With DAP_SUBMIT_MORE in flags they may leave later, with what follows.
///
/// Does not block. A group that is full is an error, -EAGAIN; when it has room again, its next result is followed by one
/// whose op is DAP_EVENT_ROOM.
///
/// Returns how many were begun, where that is at least one (the first one that was not says why when it is submitted again), or: -EAGAIN;
/// -EBADF for a group, file or memory; -EINVAL for a field; -EFBIG; -EXDEV for a file of another session; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_submit(
    group: dap_cg_t,
    operations: Records<dap_op_t>,
    count: u32,
    flags: u32,
) -> i64 {
    crate::border::count(|| {
        check_flags(flags, DAP_SUBMIT_MORE)?;
        if count == 0 {
            return Ok(0);
        }
        let stride = operations.stride("operations")?;
        let object = match group {
            0 => {
                let first = file_of(operations.get(0, stride)?.file)?;
                named(default_group(&first.session)?)?
            }
            group => named(group)?,
        };
        let mut begun = 0;
        while begun < count {
            match submit_nth(&object, &operations, begun as usize, stride) {
                Ok(()) => begun += 1,
                Err(failure) if begun == 0 => return Err(failure),
                Err(_) => break,
            }
        }
        if flags & DAP_SUBMIT_MORE == 0 {
            object.group.flush();
        }
        Ok(begun.into())
    })
}

fn submit_nth(
    object: &GroupObject,
    operations: &Records<dap_op_t>,
    index: usize,
    stride: usize,
) -> Outcome<()> {
    let mut op = operations.get(index, stride)?;
    let segments = match op.op {
        DAP_OP_READ_LIST | DAP_OP_WRITE_LIST => {
            op.segments.all(check_segments(op.segment_count)?, "segments")?
        }
        _ => &[],
    };
    op.request = submit(&object.group, &object.session, &op, segments)?;
    operations.put(index, stride, &op);
    Ok(())
}

/// How one operation ended, if it did
///
/// As dap_wait with timeout_ms 0.
///
/// Does not block.
///
/// Returns as dap_wait.
#[unsafe(no_mangle)]
pub extern "C" fn dap_test(group: dap_cg_t, request: u64, result: Records<dap_result_t>) -> i32 {
    take_one(group, request, 0, &result)
}

/// Waits for one operation
///
/// Until it has ended, or timeout_ms milliseconds are over (-1: without a limit), and takes its result out of the group into result,
/// whose field size the caller has set. Threads may wait for one group together.
///
/// Blocks.
///
/// Returns 1, or 0 where the time is over, or: -ENOENT where the group has no such operation: its result was taken; -EBUSY where
/// results go to a callback; -EINVAL; -EBADF; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_wait(
    group: dap_cg_t,
    request: u64,
    timeout_ms: i32,
    result: Records<dap_result_t>,
) -> i32 {
    take_one(group, request, timeout_ms, &result)
}

fn take_one(group: dap_cg_t, request: u64, timeout_ms: i32, result: &Records<dap_result_t>) -> i32 {
    let mut any = 0;
    let failed = status(|| {
        let stride = result.stride("result")?;
        if let Some(ended) = named(group)?.group.wait_one(request, until(timeout_ms)?)? {
            result.put(0, stride, &result_of(Event::Ended(ended)));
            any = 1;
        }
        Ok(())
    });
    if failed == 0 { any } else { failed }
}

/// When a wait is over; `None`: never.
fn until(timeout_ms: i32) -> Outcome<Option<Instant>> {
    match u64::try_from(timeout_ms) {
        Ok(ms) => Ok(Some(Instant::now() + Duration::from_millis(ms))),
        Err(_) if timeout_ms == -1 => Ok(None),
        Err(_) => Err(Failure::invalid("timeout_ms is -1 for no limit, or at least 0")),
    }
}

/// Waits for several operations of a group
///
/// Until min of them have ended, or as many as are under way where those are fewer, or timeout_ms milliseconds are over (-1: without a
/// limit). Takes the results that there are, up to max, in the order in which operations ended, into results, all with the size
/// that the first one says. DAP_EVENT_ROOM counts as one that ended. With min 0 it looks once, and does not block. Threads may wait for
/// one group together.
///
/// Blocks.
///
/// Returns how many results were taken, or: -EBUSY where results go to a callback; -EINVAL; -EBADF; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_cg_wait(
    group: dap_cg_t,
    results: Records<dap_result_t>,
    max: u32,
    min: u32,
    timeout_ms: i32,
) -> i64 {
    count(|| {
        let stride = results.stride("results")?;
        if max == 0 || min > max {
            return Err(Failure::invalid("max is at least 1, and min at most max"));
        }
        let mut taken = 0usize;
        let take = |event| {
            results.put(taken, stride, &result_of(event));
            taken += 1;
        };
        let (min, max) = (min as usize, max as usize);
        named(group)?.group.wait(min, until(timeout_ms)?, max, take)?;
        Ok(i64::try_from(taken).unwrap_or(i64::MAX))
    })
}

/// How many operations of a group are under way
///
/// Those whose result is not in the group yet. Does not block.
///
/// Returns the number, or: -EBADF; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_cg_under_way(group: dap_cg_t) -> i64 {
    count(|| Ok(i64::try_from(named(group)?.group.under_way()).unwrap_or(i64::MAX)))
}

/// Gives up an operation
///
/// Best effort: what has not left for the server ends with -ECANCELED, in whole or in part, and its result is taken as usual. What has
/// left cannot be called back, and ends as if nobody had asked. Does not block.
///
/// Returns 0, or: -EALREADY where it has left or ended; -ENOENT where the group has no such operation; -EBADF; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_cancel(group: dap_cg_t, request: u64) -> i32 {
    status(|| named(group)?.group.cancel(request))
}

const RESULT_BYTES: u32 = size_of::<dap_result_t>() as u32;

/// As C sees it. Of one that failed, the thread's last error has the words.
fn result_of(event: Event) -> dap_result_t {
    let nothing = dap_result_t {
        // A callback may look at it; what the program gave keeps its own.
        size: RESULT_BYTES,
        op: DAP_EVENT_ROOM,
        request: 0,
        user: 0,
        value: 0,
        reason: 0,
        reserved: 0,
    };
    let Event::Ended(Ended { id, op, user, result }) = event else { return nothing };
    let ended = dap_result_t { op, request: id, user, ..nothing };
    match result {
        Ok(bytes) => dap_result_t { value: bytes.into(), ..ended },
        Err(failure) => {
            let reason = failure.reason;
            dap_result_t { value: failure.tell().into(), reason, ..ended }
        }
    }
}
