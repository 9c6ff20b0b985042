//! `bench fabric`: sends, RDMA reads and RDMA writes between two processes, below the protocol.
//!
//! The other process registers a region and answers messages. An operation is one of
//!
//! * send: a message of `size` bytes, answered by a short one;
//! * read: an RDMA read of `size` bytes;
//! * write: an RDMA write of `size` bytes and a short message that announces it, as all users of
//!   this fabric do, answered by a short one.

mod client;
mod link;
mod peer;

use std::io;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dafs_fabric::{Address, Provider};

use crate::slice::Slice;
use crate::wait::Wait;

pub use peer::{serve, serve_parent};

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FabricOp {
    /// A message and its answer.
    Send,
    /// An RDMA read.
    Read,
    /// An RDMA write, a message that announces it, its answer.
    Write,
}

impl FabricOp {
    /// The name in options and output.
    pub fn name(self) -> &'static str {
        match self {
            FabricOp::Send => "send",
            FabricOp::Read => "rdma-read",
            FabricOp::Write => "rdma-write",
        }
    }
}

impl FromStr for FabricOp {
    type Err = String;
    fn from_str(text: &str) -> Result<FabricOp, String> {
        let all = [FabricOp::Send, FabricOp::Read, FabricOp::Write];
        all.into_iter()
            .find(|op| op.name() == text)
            .ok_or_else(|| format!("'{text}' is not one of send, rdma-read, rdma-write"))
    }
}

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct FabricOptions {
    /// Which operation.
    pub op: FabricOp,
    /// Bytes of it.
    pub size: usize,
    /// Operations under way.
    pub depth: usize,
    /// How both ends wait.
    pub wait: Wait,
    /// Bytes of the peer's region that are read and written.
    pub footprint: usize,
}

/// The largest message that is worth measuring: what is longer goes by RDMA.
pub const SEND_BYTES_MAX: usize = 64 << 10;
/// The largest of each parameter.
pub const DEPTH_MAX: usize = 512;
/// See [`DEPTH_MAX`].
pub const FOOTPRINT_MAX: usize = 2 << 30;

/// Measures for about `time` against the peer at `address`.
///
/// # Errors
/// No connection; parameters out of range; a broken peer.
pub fn run(
    provider: &Arc<dyn Provider>,
    address: &Address,
    options: &FabricOptions,
    time: Duration,
    stop: &AtomicBool,
) -> io::Result<Slice> {
    client::run(provider, address, options, time, stop)
}

/// What the client tells the peer at connection, in 24 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wish {
    wait: Wait,
    /// Bytes of the largest message.
    message_bytes: u64,
    depth: u64,
    footprint: u64,
}

impl Wish {
    fn encode(&self) -> Vec<u8> {
        let words = [self.message_bytes << 8 | self.wait as u64, self.depth, self.footprint];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn decode(bytes: &[u8]) -> Option<Wish> {
        let first = word(bytes, 0)?;
        let waits = [Wait::Polled, Wait::Sleeping, Wait::Adaptive];
        let wait = waits.into_iter().find(|wait| *wait as u64 == first & 0xff)?;
        let wish = Wish {
            wait,
            message_bytes: first >> 8,
            depth: word(bytes, 1)?,
            footprint: word(bytes, 2)?,
        };
        let good = wish.depth <= DEPTH_MAX as u64 && wish.footprint <= FOOTPRINT_MAX as u64;
        good.then_some(wish)
    }
}

/// The word with this number, little-endian.
fn word(bytes: &[u8], number: usize) -> Option<u64> {
    let bytes = bytes.get(number * 8..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*bytes))
}

fn broken(what: impl std::fmt::Display) -> io::Error {
    io::Error::other(format!("fabric: {what}"))
}

#[cfg(test)]
mod tests {
    use dafs_fabric_tcp::TcpProvider;

    use super::*;

    #[test]
    fn every_operation_and_wait_moves_data_over_tcp() {
        let provider: Arc<dyn Provider> = Arc::new(TcpProvider::new());
        let device = provider.open().expect("a device");
        let anywhere = Address::parse("tcp://127.0.0.1:0").expect("an address");
        let mut listener = device.listen(&anywhere).expect("listens");
        let address = listener.address();
        let stop = Arc::new(AtomicBool::new(false));
        let peer = std::thread::spawn({
            let stop = stop.clone();
            move || peer::serve_all(&device, listener.as_mut(), &stop)
        });
        let go = AtomicBool::new(false);
        for wait in [Wait::Sleeping, Wait::Adaptive, Wait::Polled] {
            for op in [FabricOp::Send, FabricOp::Read, FabricOp::Write] {
                for (size, depth) in [(1, 1), (4096, 8), (60_000, 3)] {
                    let footprint = 1 << 20;
                    let options = FabricOptions { op, size, depth, wait, footprint };
                    let time = Duration::from_millis(10);
                    let slice = run(&provider, &address, &options, time, &go).expect("runs");
                    assert!(slice.ops > 0, "{options:?}");
                    assert_eq!(slice.bytes, slice.ops * size as u64);
                    assert_eq!(slice.latency.len(), slice.ops);
                    assert_eq!(slice.registrations, Some(0));
                    assert!(slice.server_cpu_ns.is_some());
                }
            }
        }
        let options = FabricOptions {
            op: FabricOp::Send,
            size: 1 << 30,
            depth: 1,
            wait: Wait::Sleeping,
            footprint: 0,
        };
        let error = run(&provider, &address, &options, Duration::ZERO, &go).expect_err("too large");
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        peer.join().expect("no panic");
    }

    #[test]
    fn wishes_survive_the_wire_and_are_bounded() {
        let wish = Wish { wait: Wait::Adaptive, message_bytes: 65_536, depth: 32, footprint: 9 };
        assert_eq!(Wish::decode(&wish.encode()), Some(wish));
        let large = Wish { depth: DEPTH_MAX as u64 + 1, ..wish };
        assert_eq!(Wish::decode(&large.encode()), None);
        assert_eq!(Wish::decode(&wish.encode()[..23]), None);
    }
}
