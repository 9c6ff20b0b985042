//! System calls. All unsafe code of this crate is here.

use std::any::Any;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use dafs_fabric::{SgList, Views};

/// Descriptors of one message, as the kernel bounds them (`SCM_MAX_FD`).
const DESCRIPTORS_MAX: usize = 253;
/// Room for a control message that says who has sent a message: a header of 16 bytes, 12 for the sender.
const SENDER_WORDS: usize = (16 + 12_usize).div_ceil(8);
/// And for one with all descriptors: four bytes for each.
const CONTROL_WORDS: usize = SENDER_WORDS + (16 + 4 * DESCRIPTORS_MAX).div_ceil(8);

/// What a server lends, which this process trusts (see `Trust`), and reads by a mapping for reading.
pub fn views(spans: SgList, hold: Arc<dyn Any + Send + Sync>) -> Views {
    // SAFETY: a server writes to no page of its cache that it has referred to, nor gives it back, until it hears that
    // it is let go, or that this process has left its memory: not before `hold` is dropped.
    unsafe { Views::new(spans, hold) }
}

/// The processor on which this thread is, which may change at once.
pub fn processor() -> Option<u32> {
    // SAFETY: it takes nothing and touches no memory of ours.
    u32::try_from(unsafe { libc::sched_getcpu() }).ok()
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn check_len(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn own(fd: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(fd)?;
    // SAFETY: the system just gave us this descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// What a socket is called.
#[derive(Debug, Clone, Copy)]
pub enum Name<'a> {
    /// In a directory.
    Path(&'a Path),
    /// In the abstract namespace of the network namespace.
    Abstract(&'a [u8]),
}

fn address(name: Name<'_>) -> io::Result<(libc::sockaddr_un, libc::socklen_t)> {
    // SAFETY: all-zero is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let (bytes, before) = match name {
        Name::Path(path) => (path.as_os_str().as_bytes(), 0),
        Name::Abstract(bytes) => (bytes, 1),
    };
    if bytes.len() + 1 >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().skip(before).zip(bytes) {
        *to = from.cast_signed();
    }
    // A path ends with a zero, an abstract name begins with one.
    let len = std::mem::offset_of!(libc::sockaddr_un, sun_path) + bytes.len() + 1;
    Ok((address, libc::socklen_t::try_from(len).unwrap_or(0)))
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: numbers only.
    own(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })
}

/// Connects; `None`: the listener's queue is full, try again later.
pub fn connect(name: Name<'_>) -> io::Result<Option<OwnedFd>> {
    let (address, len) = address(name)?;
    let fd = socket()?;
    // SAFETY: a whole address and its length.
    match check(unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) }) {
        Ok(_) => Ok(Some(fd)),
        Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Listens.
pub fn listen(name: Name<'_>, backlog: i32) -> io::Result<OwnedFd> {
    let (address, len) = address(name)?;
    let fd = socket()?;
    // SAFETY: a whole address and its length.
    check(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })?;
    // SAFETY: numbers only.
    check(unsafe { libc::listen(fd.as_raw_fd(), backlog) })?;
    Ok(fd)
}

/// The next connection.
pub fn accept(listener: RawFd) -> io::Result<OwnedFd> {
    let (flags, none) = (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, std::ptr::null_mut());
    // SAFETY: no address is asked for.
    own(unsafe { libc::accept4(listener, none, std::ptr::null_mut(), flags) })
}

/// Sends one message, and never waits.
pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<()> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: a slice.
    check_len(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) }).map(drop)
}

/// As [`send`], with descriptors.
pub fn send_with(fd: RawFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let of_them =
        u32::try_from(size_of_val(descriptors)).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: a number only.
    let room = unsafe { libc::CMSG_SPACE(of_them) } as usize;
    let mut control = vec![0u64; room.div_ceil(size_of::<u64>())];
    // SAFETY: all-zero is a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = room;
    // SAFETY: the message has room for a header.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: numbers only.
    let cmsg_len = unsafe { libc::CMSG_LEN(of_them) } as usize;
    let (cmsg_level, cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    // SAFETY: it points into `control`, which has room for it.
    unsafe { header.write(libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type }) };
    // SAFETY: behind the header just written.
    let place = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
    for (index, descriptor) in descriptors.iter().enumerate() {
        // SAFETY: as above; there is room for all of them.
        unsafe { place.wrapping_add(index).write_unaligned(descriptor.as_raw_fd()) };
    }
    // SAFETY: all that the message names outlives the call.
    check_len(unsafe { libc::sendmsg(fd, &raw const message, flags) }).map(drop)
}

/// A message.
#[derive(Debug)]
pub struct Received {
    /// Bytes; 0 at the end.
    pub len: usize,
    /// What came with it.
    pub descriptors: Vec<OwnedFd>,
    /// It, or what came with it, did not fit, or something that came has no place here.
    pub is_cut: bool,
    /// Of its descriptors some did not fit.
    pub lost: bool,
    /// It is none, but the end, and not an empty one: that is known after [`end`].
    pub is_end: bool,
}

/// How a message is received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Take {
    /// It is taken out of the queue.
    Message,
    /// It stays there, also its descriptors.
    Copy,
    /// As a copy, without a descriptor: that it has some is all that is learnt.
    Look,
}

/// Receives one message with all its descriptors, and never waits. Those for which this process has no room the
/// system discards where the message is taken: that may take for ever.
pub fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8], take: Take) -> io::Result<Received> {
    let mut part = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = [0u64; CONTROL_WORDS];
    // SAFETY: all-zero is a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = match take {
        Take::Look => SENDER_WORDS * size_of::<u64>(),
        Take::Message | Take::Copy => size_of_val(&control),
    };
    let copy = if take == Take::Message { 0 } else { libc::MSG_PEEK };
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC | copy;
    // SAFETY: all that the message names outlives the call.
    let len = check_len(unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) })?;
    Ok(Received {
        len,
        descriptors: descriptors_of(&message),
        is_cut: message.msg_flags & (libc::MSG_CTRUNC | libc::MSG_TRUNC) != 0,
        lost: message.msg_flags & libc::MSG_CTRUNC != 0,
        is_end: len == 0
            && message.msg_controllen == 0
            && message.msg_flags & libc::MSG_CTRUNC == 0,
    })
}

/// Takes the next message out of the queue, of which [`receive`] has made a copy.
pub fn discard(socket: BorrowedFd<'_>) -> io::Result<()> {
    let (fd, none) = (socket.as_raw_fd(), std::ptr::null_mut());
    // SAFETY: no bytes are asked for.
    check_len(unsafe { libc::recv(fd, none, 0, libc::MSG_DONTWAIT) }).map(drop)
}

/// All descriptors that came with a message, which are this process's now.
fn descriptors_of(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut found = Vec::new();
    // SAFETY: a message that the kernel filled in.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !next.is_null() {
        // SAFETY: the kernel made it, in our memory.
        let header = unsafe { next.read() };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: a number only.
            let before = unsafe { libc::CMSG_LEN(0) } as usize;
            let count = header.cmsg_len.saturating_sub(before) / size_of::<RawFd>();
            // SAFETY: behind a header that is there.
            let data = unsafe { libc::CMSG_DATA(next) }.cast::<RawFd>();
            for index in 0..count {
                // SAFETY: the header says that so many are there.
                let fd = unsafe { data.wrapping_add(index).read_unaligned() };
                found.extend(own(fd));
            }
        }
        // SAFETY: as for the first one.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
    found
}

/// Tells the peer that nothing more comes.
pub fn shut_down(fd: RawFd) {
    // SAFETY: numbers only. It fails only where the peer has gone.
    unsafe { libc::shutdown(fd, libc::SHUT_WR) };
}

/// Whether it was set: where it fails, all is as it was.
fn set_option<T>(fd: BorrowedFd<'_>, name: libc::c_int, value: &T) -> bool {
    let (fd, level, len) = (fd.as_raw_fd(), libc::SOL_SOCKET, size_of::<T>() as libc::socklen_t);
    // SAFETY: a value and its length.
    unsafe { libc::setsockopt(fd, level, name, std::ptr::from_ref(value).cast(), len) == 0 }
}

/// Whether a socket, and those that are accepted from it, take descriptors: who sends one that are refused is told so.
/// False: there is no way to refuse them (before Linux 6.16).
pub fn set_takes_descriptors(socket: BorrowedFd<'_>, takes: bool) -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    set_option(socket, SO_PASSRIGHTS, &libc::c_int::from(takes))
}

/// Ends a socket for its peer, as to close it would. Nothing more comes into its queue, and each message there says from
/// now on who has sent it, so that an empty one is not taken for the end.
pub fn end(socket: BorrowedFd<'_>) {
    let yes: libc::c_int = 1;
    set_option(socket, libc::SO_PASSCRED, &yes);
    // SAFETY: numbers only. It fails only where the peer has gone.
    unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
}

/// Has a socket end at once when it is closed, whatever it has not sent. May wait. Others have no such option.
pub fn do_not_linger(descriptor: BorrowedFd<'_>) {
    set_option(descriptor, libc::SO_LINGER, &libc::linger { l_onoff: 1, l_linger: 0 });
}

/// Whether it is, or, where there is no /proc, may be an eventfd. Nobody is asked but this process's own table, so that
/// nothing can hold it up.
pub fn may_be_eventfd(descriptor: BorrowedFd<'_>) -> bool {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    std::fs::read_link(path).map_or(true, |to| to == Path::new("anon_inode:[eventfd]"))
}

/// True for "nothing now", "no room now", "interrupted".
pub fn is_temporary(error: &io::Error) -> bool {
    let full = matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ETOOMANYREFS));
    full || matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// True when the peer has closed its end.
pub fn is_hung_up(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}
