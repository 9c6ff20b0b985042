//! What is in a socket when the server looks at it too late: requests of a connection whose port
//! is somebody else's by then; requests of sessions while the server stood still.

use std::net::TcpStream;
use std::time::Instant;

use dafs_protocol::{
    CacheHint, FileHandle, Operation, SizeClass, decode_reply, encode_setup_request,
};
use dafs_tests::wire::{Asked, Came, Mode, Wire};

use crate::attack::Attack;
use crate::frames::{
    Counted, Frames, PATIENCE, ROOT, create, expect, hello, open_flags, request, tag, target,
};

const ROUNDS: usize = 20;
/// Times that a port may be somebody else's by chance: all programs of the machine draw them, and
/// what they had lately cannot be had.
const CHANCES: usize = 1000;

/// Sends set-up and a request in one piece, resets, and has root connect from the same port,
/// before the server has seen anything of it. Nothing may be done as root.
pub(crate) fn dead_connections(attack: &Attack) -> Result<(), String> {
    is_obeyed_while_it_lives(attack)?;
    let (mut names, mut chances) = (Vec::new(), CHANCES);
    while names.len() < ROUNDS {
        let name = format!("of root {}", names.len());
        attack.ask("stop")?;
        let port = send_and_reset(attack, name.as_bytes())?;
        let taken = attack.ask(&format!("take {port}"));
        attack.ask("go")?;
        match taken {
            Err(wrong) if chances == 0 => return Err(wrong),
            Err(_) => chances -= 1,
            Ok(()) => {
                attack.ask(&format!("nothing {name}"))?;
                names.push(name);
            }
        }
    }
    // Also not late.
    names.iter().try_for_each(|name| attack.ask(&format!("nothing {name}")))
}

/// What is sent is good, else it would not be done for a dead connection either.
fn is_obeyed_while_it_lives(attack: &Attack) -> Result<(), String> {
    let _counted = Counted::new();
    let (_, mut wire) = send(attack, b"of a living connection")?;
    let (start, mut replies) = (Instant::now(), Vec::new());
    while replies.len() < 2 && start.elapsed() < dafs_tests::patient(PATIENCE) {
        wire.pull(&mut |_| {});
        match wire.take() {
            Some(Came::Reply(_, header)) => replies.push(header),
            Some(Came::Ended) => break,
            _ => std::thread::yield_now(),
        }
    }
    let opened = replies.get(1).and_then(|header| decode_reply(header).ok()?.results.ok());
    let is_done = opened.is_some_and(|results| results.iter().all(Result::is_ok));
    expect(&format!("a living connection is obeyed: {replies:?}"), is_done)
}

/// From which port.
fn send_and_reset(attack: &Attack, path: &[u8]) -> Result<u16, String> {
    let _counted = Counted::new();
    let (port, wire) = send(attack, path)?;
    wire.reset().map_err(|error| error.to_string())?;
    Ok(port)
}

/// Set-up and the making of a file in one piece; from which port.
fn send(attack: &Attack, path: &[u8]) -> Result<(u16, Wire), String> {
    let text = |error: std::io::Error| error.to_string();
    let stream = TcpStream::connect(target(&attack.url)).map_err(text)?;
    let port = stream.local_addr().map_err(text)?.port();
    let mut wire = Wire::over(stream, true).map_err(text)?;
    let mut ask = |tag, header: &[u8]| {
        let (mode, data_len, room) = (Mode::None, 0, 0);
        wire.ask(&Asked { tag, mode, data_len, room, header, inline: &[] });
    };
    let mut header = Vec::new();
    encode_setup_request(&hello(SizeClass::Any, create()), &mut header);
    ask(1, &header);
    let (dir, flags, cache) = (FileHandle::PREVIOUS, open_flags(true), CacheHint::default());
    let open = Operation::Open { dir, path, flags, mode: 0o4755, cache };
    ask(tag(0, 2), &request(0, 1, 0, &[ROOT, open])?);
    wire.push();
    expect("all of it has left", wire.unsent() == 0)?;
    Ok((port, wire))
}

/// More than are looked at in one pass of the server.
const SESSIONS: usize = 200;

/// The server stands still for longer than a lease, with a request of each session in its socket:
/// nobody was silent.
pub(crate) fn a_pause(attack: &Attack) -> Result<(), String> {
    let sessions: Result<Vec<_>, _> = (0..SESSIONS).map(|_| Frames::session(&attack.url)).collect();
    let mut sessions = sessions?;
    attack.ask("stop")?;
    let header = request(1, 1, 0, &[Operation::Null])?;
    sessions.iter_mut().for_each(|frames| frames.ask(1, &header, Mode::None, 0));
    attack.ask("wait")?;
    attack.ask("go")?;
    let alive = sessions.iter_mut().filter_map(|frames| frames.answer().ok()?.ok()).count();
    expect(&format!("{alive} of {SESSIONS} sessions live"), alive == SESSIONS)
}
