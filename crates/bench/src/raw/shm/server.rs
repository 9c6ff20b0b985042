//! The answering process.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::port::{End, Port, Words};
use super::sys::Mapping;
use crate::sys;
use crate::wait::Wait;

/// What the first word of a request says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A stretch of measuring begins: how to wait, CPU + 1 or 0.
    Begin,
    /// It ends.
    End,
    /// Nothing but an answer.
    Ping,
    /// Copy: from, to, bytes.
    Copy,
}

impl Kind {
    fn of(word: u64) -> Option<Kind> {
        [Kind::Begin, Kind::End, Kind::Ping, Kind::Copy]
            .into_iter()
            .find(|kind| *kind as u64 == word)
    }
}

/// Copies of at least so many bytes are told at once to a peer that sleeps: it can go on with them
/// while the next is made.
const TOLD_AT_ONCE_BYTES: usize = 16 << 10;

/// The whole life of a peer process, which has its socket as standard input and the shared memory as
/// standard output: answers until the process that started it is gone.
///
/// # Errors
/// The system's.
pub fn serve_parent() -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let memory = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    serve(&memory, socket)
}

pub(super) fn serve(memory: &File, socket: UnixStream) -> io::Result<()> {
    let mapping = Mapping::new(memory)?;
    let huge = mapping.collapse();
    let mut port = Port::new(mapping, socket, End::Server)?;
    loop {
        let mut words = match port.wait() {
            Ok(words) => words,
            Err(error) if is_end(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        loop {
            match answer(&mut port, &words, huge) {
                Err(error) if is_end(&error) => return Ok(()),
                answered => answered?,
            }
            match port.take() {
                Some(next) => words = next,
                None => break,
            }
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

fn answer(port: &mut Port, words: &Words, huge: usize) -> io::Result<()> {
    let [kind, a, b, c, ..] = *words;
    let number = |word: u64| usize::try_from(word).unwrap_or(usize::MAX);
    match Kind::of(kind) {
        Some(Kind::Ping) => port.send(words),
        Some(Kind::Copy) => {
            port.mapping.copy(number(a), number(b), number(c));
            port.send(words);
            if number(c) >= TOLD_AT_ONCE_BYTES {
                port.wake()?;
            }
        }
        Some(Kind::Begin) => {
            let waits = [Wait::Polled, Wait::Sleeping, Wait::Adaptive];
            if let Some(cpu) = b.checked_sub(1) {
                sys::pin_to_cpu(number(cpu))?;
            }
            report(port, huge)?;
            port.set_wait(waits.into_iter().find(|w| *w as u64 == a).unwrap_or(Wait::Sleeping));
        }
        Some(Kind::End) => {
            port.set_wait(Wait::Sleeping);
            report(port, huge)?;
        }
        None => return Err(io::Error::new(io::ErrorKind::InvalidData, "unknown request")),
    }
    Ok(())
}

fn report(port: &mut Port, huge: usize) -> io::Result<()> {
    let base = port.mapping.address(0) as u64;
    port.send(&[sys::process_cpu_ns(), port.system_calls, base, huge as u64, 0, 0, 0]);
    port.wake()
}
