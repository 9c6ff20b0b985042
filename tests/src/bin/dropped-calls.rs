//! Calls dropped or timed out at random points while replies arrive late: no buffer is written
//! after it was given back. Built with AddressSanitizer by scripts/dropped-calls.sh.
//!
//! Usage: dropped-calls CALLS. Last line: a summary.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use dafs_client::{Call, File, OpenOptions, Session, SessionOptions};
use dafs_fabric::Buffer;
use dafs_fabric::sim::Rng;
use dafs_fabric_tcp::TcpProvider;
use dafs_protocol::Stability;
use dafs_server::Limits;
use dafs_tests::in_process::{late_store, serve};
use dafs_tests::relay::Relay;

const FILE_BYTES: u64 = 8 << 20;
const POISON: u8 = 0xa5;

fn call(rng: &mut Rng, file: &File, mut buffer: Buffer) -> Call {
    let len = u32::try_from(1 + rng.below(buffer.len() as u64)).expect("small");
    let offset = rng.below(FILE_BYTES - u64::from(len));
    let file = file.clone();
    if rng.below(3) == 0 {
        buffer.fill(rng.below(250) as u8);
        Call::Write { file, offset, buffer, len, stability: Stability::Unstable }
    } else {
        Call::Read { file, offset, buffer, len }
    }
}

struct Returned {
    buffers: Vec<Buffer>,
    written_late: usize,
}

impl Returned {
    /// Poisons a buffer that came back, keeps it for a while, and looks at an old one again.
    fn keep(&mut self, mut buffer: Buffer, rng: &mut Rng) -> Option<Buffer> {
        buffer.fill(POISON);
        self.buffers.push(buffer);
        if self.buffers.len() < 64 {
            return None;
        }
        let index = usize::try_from(rng.below(self.buffers.len() as u64)).expect("small");
        let old = self.buffers.swap_remove(index);
        self.written_late += usize::from(old.iter().any(|byte| *byte != POISON));
        Some(old)
    }
}

fn run(calls: u64, session: &Session, file: &File, relay: &Relay) -> (u64, u64, Returned) {
    let mut rng = Rng::new(4711);
    let mut returned = Returned { buffers: Vec::new(), written_late: 0 };
    let mut spare = Vec::new();
    let (mut dropped, mut ended) = (0, 0);
    let mut made = 0;
    while made < calls {
        let group = session.group();
        let mut futures = Vec::new();
        for _ in 0..1 + rng.below(24) {
            let size = [4096, 65_536, 300_000][usize::try_from(rng.below(3)).expect("small")];
            let buffer = match spare.pop() {
                Some(buffer) if rng.below(2) == 0 => buffer,
                _ => Buffer::new(size).expect("memory"),
            };
            made += 1;
            if rng.below(2) == 0 {
                futures.push(session.call(call(&mut rng, file, buffer)));
            } else if group.submit(made, call(&mut rng, file, buffer)).is_err() {
                break;
            }
        }
        if rng.below(50) == 0 {
            relay.cut();
        }
        // Some are waited for, with a time limit that is often too short; the rest is dropped.
        let patience = Duration::from_micros(rng.below(400));
        let wanted = usize::try_from(rng.below(8)).expect("small");
        for done in group.wait(wanted, Some(patience)) {
            ended += 1;
            spare.extend(done.buffer.and_then(|buffer| returned.keep(buffer, &mut rng)));
        }
        for future in futures {
            if rng.below(3) == 0 {
                let done = future.wait();
                ended += 1;
                spare.extend(done.buffer.and_then(|buffer| returned.keep(buffer, &mut rng)));
            } else {
                dropped += 1;
                drop(future);
            }
        }
        dropped += group.outstanding() as u64;
        drop(group);
    }
    (dropped, ended, returned)
}

fn main() -> ExitCode {
    let calls = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(5000);
    let server = serve(late_store(), Limits::default());
    let relay = Relay::start(server.address.target.parse().expect("address")).expect("relay");
    let address =
        dafs_fabric::Address { target: relay.address().to_string(), ..server.address.clone() };
    let options = SessionOptions { retry: Duration::from_secs(20), ..SessionOptions::default() };
    let provider = Arc::new(TcpProvider::default());
    let session = Session::connect(provider, &address, options).expect("connect");
    let options = OpenOptions { create: true, read: true, ..OpenOptions::write() };
    let file = session.open(b"file", options).expect("open");
    file.set_len(FILE_BYTES).expect("set_len");
    let (dropped, ended, mut returned) = run(calls, &session, &file, &relay);
    // Late replies have this long to do harm.
    session.ping().expect("the session still works");
    std::thread::sleep(Duration::from_millis(500));
    let late = returned.buffers.drain(..).filter(|b| b.iter().any(|byte| *byte != POISON)).count();
    let late = late + returned.written_late;
    let sanitizer = option_env!("DAFS_SANITIZER").unwrap_or("no sanitizer");
    println!("{ended} ended, {dropped} dropped, {late} written late ({sanitizer})");
    if late == 0 && dropped > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
