//! The raw mechanism: two processes and a TCP socket, no DAFS code.
//!
//! A request is 64 bytes (and, for a write, its data); an answer is the data of a read, or 64
//! bytes. The peer's data lies in a region as large as the file of the benchmark beside it, and
//! is sent from there and received into it, so that both walk through the same amount of memory.
//! Everything that may make this fast is done: no delay, many requests in one system call, many
//! answers in one. A slow yardstick is a false one.

mod client;
mod message;
mod peer;
pub mod shm;
#[cfg(test)]
mod tests;
mod wire;

use std::io;
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use crate::slice::Slice;
use crate::wait::Wait;

pub use peer::{connect_back, serve};

/// What the raw mechanism does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RawOp {
    /// The peer sends `size` bytes per request.
    Read,
    /// This side sends `size` bytes with each request.
    Write,
    /// The peer sends pieces of `size` bytes without being asked for each: what iperf3 measures.
    Stream,
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct RawOptions {
    /// Which way data goes.
    pub op: RawOp,
    /// Bytes per operation, at least 1.
    pub size: usize,
    /// Requests under way, at least 1.
    pub depth: usize,
    /// How both ends wait.
    pub wait: Wait,
    /// Offsets in random order, not one after the other.
    pub random: bool,
    /// Bytes of the peer's region; at least `size` are used.
    pub footprint: usize,
    /// The peer's CPU, if it is to be pinned.
    pub peer_cpu: Option<usize>,
}

/// The largest of each parameter that a peer accepts.
pub const SIZE_MAX: usize = 64 << 20;
/// See [`SIZE_MAX`].
pub const DEPTH_MAX: usize = 512;
/// See [`SIZE_MAX`].
pub const FOOTPRINT_MAX: usize = 64 << 30;

/// A running peer process, or a connection to one elsewhere.
#[derive(Debug)]
pub struct Raw {
    wire: wire::Wire,
    child: Option<Child>,
}

impl Raw {
    /// Starts this program again as `program ARGS ADDRESS`, which is to call [`connect_back`].
    ///
    /// # Errors
    /// It could not be started, or did not connect within five seconds.
    pub fn spawn(arguments: &[&str]) -> io::Result<Raw> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?.to_string();
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .arg(address)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        match accept_from(&listener, &mut child) {
            Ok(stream) => Ok(Raw { wire: wire::Wire::new(stream)?, child: Some(child) }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Connects to a peer started by hand (see [`serve`]).
    ///
    /// # Errors
    /// The system's.
    pub fn connect(address: &str) -> io::Result<Raw> {
        Ok(Raw { wire: wire::Wire::new(TcpStream::connect(address)?)?, child: None })
    }

    /// Measures for about `time`, or until `stop`.
    ///
    /// # Errors
    /// The socket's; parameters out of range.
    pub fn run(
        &mut self,
        options: &RawOptions,
        time: Duration,
        stop: &AtomicBool,
    ) -> io::Result<Slice> {
        client::run(&mut self.wire, options, time, stop)
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.wire.shut_down();
        if let Some(child) = &mut self.child {
            let _ = child.wait();
        }
    }
}

fn accept_from(listener: &TcpListener, child: &mut Child) -> io::Result<TcpStream> {
    listener.set_nonblocking(true)?;
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match listener.accept() {
            Ok((stream, _)) => return Ok(stream),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if child.try_wait()?.is_some() {
            return Err(io::Error::other("the raw peer process ended at once"));
        }
        if Instant::now() > deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the raw peer did not connect"));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
