//! A socket with a waiting mode.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use crate::sys;
use crate::wait::Wait;

/// How long an adaptive wait polls.
const SPIN: Duration = Duration::from_micros(50);
/// Pieces in one system call.
const PIECES_MAX: usize = 1024;
/// Bytes in one system call, either way. With more, what one end copies in has left the processor's
/// cache before the other copies it out.
const CALL_BYTES_MAX: usize = 512 << 10;

#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
    wait: Wait,
    system_calls: u64,
}

impl Wire {
    pub(super) fn new(stream: TcpStream) -> io::Result<Wire> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        Ok(Wire { stream, wait: Wait::Sleeping, system_calls: 0 })
    }

    pub(super) fn set_wait(&mut self, wait: Wait) -> io::Result<()> {
        self.wait = wait;
        self.stream.set_nonblocking(wait != Wait::Sleeping)
    }

    pub(super) fn system_calls(&self) -> u64 {
        self.system_calls
    }

    /// Ends both directions; the peer sees the end of the stream.
    pub(super) fn shut_down(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Receives what is there, at least one byte, at most [`CALL_BYTES_MAX`].
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = into.len().min(CALL_BYTES_MAX);
        let into = &mut into[..most];
        self.retry(false, |stream| stream.read(into))
    }

    /// As [`read`](Wire::read), into two places one after the other.
    pub(super) fn read_two(&mut self, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
        if first.len() >= CALL_BYTES_MAX {
            return self.read(first);
        }
        let mut into = [IoSliceMut::new(first), IoSliceMut::new(second)];
        self.retry(false, |stream| stream.read_vectored(&mut into))
    }

    /// Receives all of `into`. One system call when sleeping.
    pub(super) fn read_all(&mut self, into: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < into.len() {
            let rest = &mut into[filled..];
            filled += if self.wait == Wait::Sleeping {
                self.retry(false, |stream| sys::receive_all(stream.as_fd(), rest))?
            } else {
                self.read(rest)?
            };
        }
        Ok(())
    }

    /// Sends all pieces; no system call for nothing.
    pub(super) fn write_all(&mut self, mut pieces: &mut [IoSlice<'_>]) -> io::Result<()> {
        IoSlice::advance_slices(&mut pieces, 0);
        while !pieces.is_empty() {
            let mut bytes = 0;
            let fits = |piece: &&IoSlice<'_>| {
                bytes += piece.len();
                bytes <= CALL_BYTES_MAX
            };
            let count = pieces.iter().take(PIECES_MAX).take_while(fits).count();
            let sent = match count {
                0 => {
                    let part = &pieces[0][..CALL_BYTES_MAX];
                    self.retry(true, |stream| stream.write(part))?
                }
                count => {
                    let some = &pieces[..count];
                    self.retry(true, |stream| stream.write_vectored(some))?
                }
            };
            IoSlice::advance_slices(&mut pieces, sent);
        }
        Ok(())
    }

    fn retry(
        &mut self,
        writable: bool,
        mut call: impl FnMut(&mut TcpStream) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let mut spin_end = None;
        loop {
            self.system_calls += 1;
            match call(&mut self.stream) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(bytes) => return Ok(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Err(_) if self.wait == Wait::Polled => std::hint::spin_loop(),
                Err(_) => {
                    let now = Instant::now();
                    if now >= *spin_end.get_or_insert(now + SPIN) {
                        self.system_calls += 1;
                        sys::sleep_until_ready(self.stream.as_fd(), writable, None)?;
                    }
                }
            }
        }
    }
}
