//! System calls. All unsafe code of this crate is here.

use std::io;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use dafs_fabric::Span;

/// Entries of one gather or scatter call (IOV_MAX).
pub const IOV_MAX: usize = 1024;

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

/// Room for the entries of [`Gather`] and [`Scatter`], empty between calls.
pub struct IoList {
    entries: Box<[libc::iovec]>,
    /// So many are in use.
    len: usize,
    /// Where the last of these ends.
    end: usize,
    /// An entry did not fit: what follows it must not go in either.
    full: bool,
}

// SAFETY: the addresses in it are used only while a `Gather` or `Scatter` borrows it.
unsafe impl Send for IoList {}

impl IoList {
    /// With room for a full call.
    pub fn new() -> IoList {
        let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        IoList { entries: vec![none; IOV_MAX].into(), len: 0, end: 0, full: false }
    }

    fn clear(&mut self) {
        (self.len, self.end, self.full) = (0, 0, false);
    }

    fn as_slice(&self) -> &[libc::iovec] {
        &self.entries[..self.len]
    }

    /// Adds pieces of which none is empty or goes on where another ends, if there is room for all.
    #[inline]
    fn push_all<const N: usize>(&mut self, pieces: [(*mut u8, usize); N]) -> usize {
        let Some(entries) = self.entries.get_mut(self.len..self.len + N) else { return 0 };
        let mut bytes = 0;
        for (entry, (base, len)) in entries.iter_mut().zip(pieces) {
            *entry = libc::iovec { iov_base: base.cast(), iov_len: len };
            bytes += len;
            self.end = base as usize + len;
        }
        self.len += N;
        bytes
    }

    /// Returns the bytes added, 0 when full.
    #[inline]
    fn push(&mut self, base: *mut libc::c_void, len: usize) -> usize {
        if len == 0 || self.full {
            return 0;
        }
        if self.end == base as usize && self.len > 0 {
            self.entries[self.len - 1].iov_len += len;
        } else if let Some(entry) = self.entries.get_mut(self.len) {
            *entry = libc::iovec { iov_base: base, iov_len: len };
            self.len += 1;
        } else {
            self.full = true;
            return 0;
        }
        self.end = base as usize + len;
        len
    }
}

/// Memory, or a range of a file, to be sent by one system call.
pub struct Gather<'a> {
    list: &'a mut IoList,
    bytes: usize,
    /// The one range of a file: descriptor and offset.
    file: Option<(RawFd, u64)>,
    /// A range of a file follows, for the next call.
    file_follows: bool,
    memory: PhantomData<&'a [u8]>,
}

impl<'a> Gather<'a> {
    /// Of nothing.
    pub fn new(list: &'a mut IoList) -> Gather<'a> {
        list.clear();
        Gather { list, bytes: 0, file: None, file_follows: false, memory: PhantomData }
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &'a [u8]) {
        self.bytes += self.list.push(bytes.as_ptr().cast_mut().cast(), bytes.len());
    }

    /// Adds a part of a span.
    pub fn span(&mut self, span: &'a Span, offset: usize, len: usize) {
        assert!(offset <= span.len() && len <= span.len() - offset, "part outside of the span");
        if let Some((fd, start)) = span.file_range() {
            return self.file(fd, start + offset as u64, len);
        }
        let start = span.as_ptr().wrapping_add(offset);
        self.bytes += self.list.push(start.cast_mut().cast(), len);
    }

    /// Adds a message of two pieces of memory, if both have room and neither is empty; false: it did not.
    #[inline]
    pub fn message(&mut self, head: &'a [u8], data: &'a Span) -> bool {
        let is_plain = !self.list.full && !data.is_empty() && data.file_range().is_none();
        let pieces =
            [(head.as_ptr().cast_mut(), head.len()), (data.as_ptr().cast_mut(), data.len())];
        let bytes = if is_plain { self.list.push_all(pieces) } else { 0 };
        self.bytes += bytes;
        bytes > 0
    }

    /// A range of a file leaves by a call of its own.
    fn file(&mut self, fd: RawFd, offset: u64, len: usize) {
        if len == 0 || self.list.full {
            return;
        }
        self.list.full = true;
        if self.bytes == 0 {
            self.file = Some((fd, offset));
            self.bytes = len;
        } else {
            self.file_follows = true;
        }
    }

    /// True when no entry can be added any more.
    pub fn is_full(&self) -> bool {
        self.list.full
    }

    /// True when what follows was left for another call because of a file.
    pub fn is_cut_by_file(&self) -> bool {
        self.file_follows || self.file.is_some()
    }

    /// Bytes that a call would send if the socket took all.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Sends without waiting (by a socket that does not block).
    pub fn send(&self, fd: RawFd) -> io::Result<usize> {
        if let Some((file, offset)) = self.file {
            return send_file(fd, file, offset, self.bytes);
        }
        let more = if self.file_follows { libc::MSG_MORE } else { 0 };
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | more;
        if let [one] = self.list.as_slice() {
            // SAFETY: the entry is memory that this object borrows.
            return check_len(unsafe { libc::send(fd, one.iov_base, one.iov_len, flags) });
        }
        // SAFETY: all-zero is a valid message header: no name, no entries, no control data.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = self.list.entries.as_ptr().cast_mut();
        message.msg_iovlen = self.list.len;
        // SAFETY: the entries are memory that this object borrows.
        check_len(unsafe { libc::sendmsg(fd, &message, flags) })
    }
}

/// Sends a range of a file; an error if the file ends before the range does.
fn send_file(fd: RawFd, file: RawFd, offset: u64, len: usize) -> io::Result<usize> {
    let mut at = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: two descriptors and a number that outlives the call.
    match check_len(unsafe { libc::sendfile(fd, file, &mut at, len) })? {
        0 if len > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        sent => Ok(sent),
    }
}

/// Memory to be filled by one system call.
pub struct Scatter<'a> {
    list: &'a mut IoList,
    bytes: usize,
    memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Scatter<'a> {
    /// Of nothing.
    pub fn new(list: &'a mut IoList) -> Scatter<'a> {
        list.clear();
        Scatter { list, bytes: 0, memory: PhantomData }
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &'a mut [u8]) {
        self.bytes += self.list.push(bytes.as_mut_ptr().cast(), bytes.len());
    }

    /// Adds a part of a span.
    pub fn span(&mut self, span: &'a Span, offset: usize, len: usize) {
        assert!(offset <= span.len() && len <= span.len() - offset, "part outside of the span");
        self.bytes += self.list.push(span.as_mut_ptr().wrapping_add(offset).cast(), len);
    }

    /// So many entries more can be added.
    #[inline]
    pub fn has_room_for(&self, entries: usize) -> bool {
        !self.list.full && self.list.len + entries <= IOV_MAX
    }

    /// Adds the places of a message, for which there [is room](Self::has_room_for): the head of its
    /// frame, so many bytes of header, and its data. None of them is empty.
    #[inline]
    pub fn message(
        &mut self,
        head: &'a mut [u8],
        (header, header_len): (&'a Span, usize),
        data: &'a Span,
    ) {
        assert!(header_len <= header.len(), "part outside of the span");
        self.bytes += self.list.push_all([
            (head.as_mut_ptr(), head.len()),
            (header.as_mut_ptr(), header_len),
            (data.as_mut_ptr(), data.len()),
        ]);
    }

    /// True when no entry can be added any more.
    pub fn is_full(&self) -> bool {
        self.list.full
    }

    /// Bytes that a call would fill if the socket had them.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Receives without waiting from a non-blocking socket; 0 at its end.
    pub fn receive(&self, fd: RawFd) -> io::Result<usize> {
        if let [one] = self.list.as_slice() {
            // SAFETY: the entry is memory that this object borrows exclusively, or a span.
            return check_len(unsafe { libc::recv(fd, one.iov_base, one.iov_len, 0) });
        }
        let count = libc::c_int::try_from(self.list.len).unwrap_or(0);
        // SAFETY: the entries are memory that this object borrows exclusively, or spans.
        check_len(unsafe { libc::readv(fd, self.list.entries.as_ptr(), count) })
    }
}

/// Sends bytes without waiting.
pub fn send(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: a slice.
    check_len(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) })
}

/// Receives bytes without waiting.
pub fn receive(fd: RawFd, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: a slice.
    let got = unsafe { libc::recv(fd, bytes.as_mut_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) };
    check_len(got)
}

/// True when the peer has closed its end, whatever is left to be received.
pub fn is_hung_up(fd: RawFd) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 };
    // SAFETY: one entry, which outlives the call.
    unsafe { libc::poll(&mut poll, 1, 0) };
    poll.revents & (libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR) != 0
}

/// What became of the start of a connect.
pub enum Started {
    /// Connected, or on the way to it.
    Going(OwnedFd),
    /// The listener's queue is full: start again later.
    Busy,
}

/// Starts to connect to a TCP address.
pub fn connect_tcp(address: &SocketAddr) -> io::Result<Started> {
    let (storage, len) = socket_address(address);
    let family = libc::c_int::from(storage.ss_family);
    start_connect(family, (&raw const storage).cast(), len)
}

/// Starts to connect to a Unix socket.
pub fn connect_unix(path: &Path) -> io::Result<Started> {
    // SAFETY: all-zero is a valid address.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    if bytes.len() >= address.sun_path.len() {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = *from as libc::c_char;
    }
    let len = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    start_connect(libc::AF_UNIX, (&raw const address).cast(), len)
}

fn start_connect(
    family: libc::c_int,
    address: *const libc::sockaddr,
    len: libc::socklen_t,
) -> io::Result<Started> {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: numbers only.
    let fd = own(unsafe { libc::socket(family, kind, 0) })?;
    if family == libc::AF_UNIX {
        refuse_descriptors(fd.as_raw_fd());
    }
    // SAFETY: both callers pass a whole address and its length.
    match check(unsafe { libc::connect(fd.as_raw_fd(), address, len) }) {
        Ok(_) => Ok(Started::Going(fd)),
        Err(error) => match error.raw_os_error() {
            Some(libc::EINPROGRESS) => Ok(Started::Going(fd)),
            Some(libc::EAGAIN) => Ok(Started::Busy),
            _ => Err(error),
        },
    }
}

fn socket_address(address: &SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all-zero is a valid address.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    match address {
        SocketAddr::V4(v4) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: the storage is large enough and aligned for every kind of address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            (storage, size_of::<libc::sockaddr_in>() as libc::socklen_t)
        }
        SocketAddr::V6(v6) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: v6.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: v6.ip().octets() },
                sin6_scope_id: v6.scope_id(),
            };
            // SAFETY: the storage is large enough and aligned for every kind of address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            (storage, size_of::<libc::sockaddr_in6>() as libc::socklen_t)
        }
    }
}

fn set_option(
    fd: RawFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the value is an int and outlives the call.
    check(unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) })?;
    Ok(())
}

/// Has a Unix socket, and those that are accepted from it, take no descriptors: the system would discard them, and to
/// close one can take as long as who has sent it wishes. False: there is no way to refuse them (before Linux 6.16).
pub fn refuse_descriptors(fd: RawFd) -> bool {
    const SO_PASSRIGHTS: libc::c_int = 83;
    set_option(fd, libc::SOL_SOCKET, SO_PASSRIGHTS, 0).is_ok()
}

/// Small messages leave at once, and a host that vanished is noticed after `dead`.
pub fn tune_tcp(fd: RawFd, dead: Duration) -> io::Result<()> {
    let millis = libc::c_int::try_from(dead.as_millis()).unwrap_or(libc::c_int::MAX);
    let third = (millis / 3000).max(1);
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, third)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, third)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 2)?;
    set_option(fd, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, millis)
}

/// Lets a socket count as readable only with `bytes` received.
pub fn set_receive_low_water(fd: RawFd, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
}

/// True for a TCP socket.
pub fn is_tcp(fd: RawFd) -> bool {
    let mut protocol: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    let out = (&raw mut protocol).cast();
    // SAFETY: the buffer is as long as `len` says.
    let result =
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL, out, &mut len) };
    result == 0 && protocol == libc::IPPROTO_TCP
}

/// Asks for socket buffers of `bytes`; the system may give less.
pub fn set_buffer_bytes(fd: RawFd, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, bytes)?;
    set_option(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
}

/// Sets how many connections may wait to be accepted.
pub fn set_backlog(fd: RawFd, backlog: i32) -> io::Result<()> {
    // SAFETY: numbers only.
    check(unsafe { libc::listen(fd, backlog) })?;
    Ok(())
}

/// True while a stream socket is connected and neither side has closed or reset it.
pub fn is_established(fd: RawFd) -> bool {
    const ESTABLISHED: u8 = 1;
    let mut state = 0_u8; // The first byte of `struct tcp_info`; the kernel gives as much as is wanted.
    let mut len = 1;
    let out = (&raw mut state).cast();
    // SAFETY: the buffer is as long as `len` says.
    let rc = unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, out, &mut len) };
    rc == 0 && state == ESTABLISHED
}

/// True for "nothing now", "interrupted".
pub fn is_temporary(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// True when the system lacks memory just now.
pub fn is_out_of_memory(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOBUFS | libc::ENOMEM))
}

/// Sends a byte and a descriptor.
#[cfg(test)]
pub fn send_descriptor(fd: RawFd, descriptor: RawFd) -> io::Result<usize> {
    let mut byte = 1_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    // A header, and the descriptor behind it.
    let mut control = [0_u64; 3];
    let of_it = size_of::<RawFd>() as libc::c_uint;
    // SAFETY: all-zero is a valid message header.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control);
    // SAFETY: the message has room for a header.
    let header = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    // SAFETY: a number only.
    let cmsg_len = unsafe { libc::CMSG_LEN(of_it) } as usize;
    let (cmsg_level, cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    // SAFETY: it points into `control`, which has room for it.
    unsafe { header.write(libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type }) };
    // SAFETY: behind the header just written.
    let place = unsafe { libc::CMSG_DATA(header) }.cast::<RawFd>();
    // SAFETY: as above; there is room for one.
    unsafe { place.write_unaligned(descriptor) };
    // SAFETY: all that the message names outlives the call.
    check_len(unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_NOSIGNAL) })
}
