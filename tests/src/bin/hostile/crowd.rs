//! Connections that do not become part of a session, or of nothing at all.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dafs_tests::wire::Wire;

use crate::attack::Attack;
use crate::frames::{Counted, expect, target};

fn text(error: &std::io::Error) -> String {
    error.to_string()
}

pub(crate) fn configuration() -> String {
    format!("connections_unproven = {ROOM}\n")
}

pub(crate) fn garbage(attack: &Attack) -> Result<(), String> {
    for i in 0..64u64 {
        let _counted = Counted::new();
        let mut stream = TcpStream::connect(target(&attack.url)).map_err(|e| text(&e))?;
        stream.write_all(&dafs_tests::tree::pattern(i, 4000)).map_err(|e| text(&e))?;
        let limit = dafs_tests::patient(Duration::from_secs(6));
        stream.set_read_timeout(Some(limit)).map_err(|e| text(&e))?;
        let mut rest = Vec::new();
        // It must end the connection, within its time limit for half-open ones.
        let ended = match stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        };
        expect("garbage does not end the connection", ended)?;
    }
    Ok(())
}

/// Connections that are being set up, of each worker.
const ROOM: usize = 64;
/// More of them than the server has room for, at a time.
const CROWD: usize = 400;
/// Between two newcomers: as fast as a crowd came that once kept others out.
const PACE: Duration = Duration::from_millis(4);

/// New ones come all the time, and the oldest leave, while others make sessions.
fn crowd<T>(attack: &Attack, mut come: impl FnMut(&str) -> Option<T> + Send) -> Result<(), String> {
    let full = AtomicBool::new(false);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (full, over) = (&full, &over);
        scope.spawn(move || {
            let mut here = VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                here.extend(come(target(&attack.url)).map(|one| (one, Counted::new())));
                if here.len() > CROWD {
                    here.pop_front();
                    full.store(true, Ordering::Relaxed);
                }
                if full.load(Ordering::Relaxed) {
                    std::thread::sleep(PACE);
                }
            }
        });
        while !full.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        let served = attack.ask("sessions 20");
        over.store(true, Ordering::Relaxed);
        served
    })
}

pub(crate) fn says_hello(attack: &Attack) -> Result<(), String> {
    crowd(attack, |target| {
        let mut wire = Wire::connect(target, true).ok()?;
        wire.push();
        Some(wire)
    })
}

pub(crate) fn says_nothing(attack: &Attack) -> Result<(), String> {
    crowd(attack, |target| TcpStream::connect(target).ok())
}

/// They came all at once, and stay.
pub(crate) fn silent(attack: &Attack) -> Result<(), String> {
    let come = |_| TcpStream::connect(target(&attack.url)).ok();
    let _here: Vec<_> = (0..600).filter_map(come).map(|stream| (stream, Counted::new())).collect();
    attack.ask("sessions 1")
}
