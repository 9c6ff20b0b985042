//! Memory that a network may touch.

use std::ffi::c_void;

use crate::border::status;
use crate::object::{MemoryObject, Object};
use crate::operation::{give_back, session as session_of};
use crate::pointer::{Out, Room};
use crate::table;
use crate::types::{dap_mem_t, dap_session_t};

/// Registers memory of the program, for reads and writes
///
/// The length bytes from address on, which stay the program's. It may read and write them as it likes, but while they are in flight
/// it finds any mixture there. It keeps them until dap_deregister_mem has returned 0: memory that is freed or unmapped before that
/// while in flight is the program's own error, and anything may happen. The handle is put into mem, and works with all
/// sessions whose network is the same as this session's. The name is one of those in print of the DAFS API of 2001; its
/// arguments are ours.
///
/// Does not block.
///
/// Returns 0, or: -EBADF for the session; -EINVAL for null or no bytes; -EFBIG; -EMFILE; -ENOMEM.
#[unsafe(no_mangle)]
pub extern "C" fn dap_register_mem(
    session: dap_session_t,
    address: Room,
    length: usize,
    mem: Out<dap_mem_t>,
) -> i32 {
    status(|| {
        mem.check("mem")?;
        session_of(session)?;
        let memory = MemoryObject::of(address.arena(length)?);
        mem.put(table::insert(Object::Memory(memory))?);
        Ok(())
    })
}

/// Gives registered memory back to the program
///
/// When it has returned 0, nothing of the library or the network touches the memory any more. Does not block.
///
/// Returns 0, or: -EBUSY while the memory is in flight, and then nothing has changed: take the results of what uses it, and call
/// again; -EBADF; -EINVAL for memory of dap_mem_alloc; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_deregister_mem(mem: dap_mem_t) -> i32 {
    status(|| give_back(mem, false))
}

/// Makes memory that is registered
///
/// Of length bytes, zeroed, from a page's beginning on. Its address is put into address, its handle into mem; it stays until
/// dap_mem_free, also when the session is closed. Pages are taken from the system when they are first used.
/// Where the session goes by shared memory to a server of root or of this user, the server reaches the memory as it is:
/// dap_pread and dap_pwrite copy nothing either where they are given a part of it. Such a server may change it at any time.
///
/// Does not block.
///
/// Returns 0, or: -EBADF for the session; -EINVAL; -ENOMEM; -EMFILE.
#[unsafe(no_mangle)]
pub extern "C" fn dap_mem_alloc(
    session: dap_session_t,
    length: usize,
    address: Out<*mut c_void>,
    mem: Out<dap_mem_t>,
) -> i32 {
    status(|| {
        address.check("address")?;
        mem.check("mem")?;
        let memory = MemoryObject::allocate(&session_of(session)?.session, length)?;
        let start = std::ptr::with_exposed_provenance_mut(memory.addr());
        mem.put(table::insert(Object::Memory(memory))?);
        address.put(start);
        Ok(())
    })
}

/// Frees memory of dap_mem_alloc
///
/// When it has returned 0, the memory is gone. Does not block.
///
/// Returns 0, or: -EBUSY while the memory is in flight, and then nothing has changed; -EBADF; -EINVAL for memory of
/// dap_register_mem; -ECHILD.
#[unsafe(no_mangle)]
pub extern "C" fn dap_mem_free(mem: dap_mem_t) -> i32 {
    status(|| give_back(mem, true))
}
