//! A connection of somebody who keeps to no rule: frames and messages put together byte by byte,
//! as docs/protocol-frames.md tells, with nothing of the message layer in between.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use dafs_fabric::Address;
use nix::sys::socket::{setsockopt, sockopt};

use crate::near::Near;

/// Bytes of a frame's header.
const FRAME: usize = 32;
/// Bytes of a message's header.
const MESSAGE: usize = 28;
/// The most payload of a frame.
pub const FRAME_PAYLOAD: usize = 64 << 10;

/// Kinds of frames.
pub mod frame {
    #![allow(missing_docs, reason = "their names are those of the protocol")]
    pub const HELLO: u8 = 1;
    pub const HELLO_ACK: u8 = 2;
    pub const SEND: u8 = 4;
    pub const TAGGED: u8 = 5;
    pub const READ_REQUEST: u8 = 7;
    pub const READ_RESPONSE: u8 = 8;
    pub const READ_DONE: u8 = 9;
    pub const FAULT: u8 = 11;
}

/// How data moves, as in a message's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "their names are those of the protocol")]
pub enum Mode {
    None = 0,
    Inline = 1,
    Tagged = 2,
    Read = 3,
    Grant = 4,
    Pieces = 5,
}

/// What the other side sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Came {
    /// The connection is accepted.
    Accepted,
    /// The answer to the request with this tag: its header.
    Reply(u32, Vec<u8>),
    /// Data of the request with this tag is wanted: from where, how much.
    Grant(u32, u32, u32),
    /// A request of the server: its tag and header.
    Request(u32, Vec<u8>),
    /// Our memory is read: address, bytes, number.
    Read(u64, u32, u32),
    /// There will be no more.
    Ended,
}

/// A request as it goes over the wire.
#[derive(Debug, Clone)]
pub struct Asked<'a> {
    /// Place (upper half) and generation.
    pub tag: u32,
    /// How its data comes.
    pub mode: Mode,
    /// Bytes of data that it announces.
    pub data_len: u32,
    /// Room for the reply's data.
    pub room: u32,
    /// Of the protocol.
    pub header: &'a [u8],
    /// Data in the message.
    pub inline: &'a [u8],
}

/// By what frames go.
#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Near(Box<Near>),
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Near(near) => near.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Near(near) => near.read(into),
        }
    }
}

/// See the module. What is sent waits in memory until [`push`](Wire::push) finds room.
#[derive(Debug)]
pub struct Wire {
    stream: Stream,
    out: Vec<u8>,
    inbox: Vec<u8>,
    ended: bool,
    /// Tags match.
    pub tagged: bool,
    /// Requests that the server takes at a time.
    pub window: u32,
    /// Bytes of one of its receives, header included.
    pub receive_bytes: usize,
    /// Requests that may have been sent in all.
    pub limit: u32,
    /// Bytes that may have been pushed in all.
    pub push_limit: u32,
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap_or_default()))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | u64::from(word(bytes, at + 4)) << 32
}

fn half(bytes: &[u8], at: usize) -> usize {
    (word(bytes, at) & 0xffff) as usize
}

/// The tag of pushed data.
fn push_tag(tag: u32) -> u64 {
    1 << 63 | u64::from(tag)
}

impl Wire {
    /// Connects to `HOST:PORT`, or by shared memory to `shm:/SOCKET`, and says hello, with tags if wanted and
    /// possible.
    ///
    /// # Errors
    /// Nobody is there.
    pub fn connect(target: &str, tagged: bool) -> std::io::Result<Wire> {
        if let Some(address) = Address::parse(target).filter(Address::is_path) {
            return Ok(Wire::greet(Stream::Near(Box::new(Near::new(address)?)), false));
        }
        Wire::over(TcpStream::connect(target)?, tagged)
    }

    /// As [`connect`](Self::connect), over a connection that is there.
    ///
    /// # Errors
    /// The system's.
    pub fn over(stream: TcpStream, tagged: bool) -> std::io::Result<Wire> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Wire::greet(Stream::Tcp(stream), tagged))
    }

    fn greet(stream: Stream, tagged: bool) -> Wire {
        let (out, inbox) = (Vec::new(), Vec::new());
        let (window, receive_bytes, limit, push_limit) = (0, 0, 0, 0);
        let ended = false;
        let mut wire =
            Wire { stream, out, inbox, ended, tagged, window, receive_bytes, limit, push_limit };
        let mut setup = Vec::new();
        setup.extend_from_slice(&0x4d44u16.to_le_bytes());
        setup.extend_from_slice(&[2, 20]);
        // Flags, bytes of receives, requests at a time, nothing.
        for half in [if tagged { 3u16 } else { 2 }, 1024, 9, 0] {
            setup.extend_from_slice(&half.to_le_bytes());
        }
        setup.extend_from_slice(&0u32.to_le_bytes());
        setup.extend_from_slice(&0u32.to_le_bytes());
        let magic = u64::from_le_bytes(*b"DAFSnic1");
        wire.frame((frame::HELLO, 0), (0, setup.len()), (magic, 0), (0, 1));
        wire.out.extend_from_slice(&setup);
        wire
    }

    /// Appends the header of a frame: kind and run, bytes of header and payload, key and address,
    /// total and number.
    pub fn frame(
        &mut self,
        (kind, run): (u8, u8),
        (header_len, payload_len): (usize, usize),
        (key, addr): (u64, u64),
        (total, id): (u32, u32),
    ) {
        self.out.extend_from_slice(&[kind, run]);
        self.out.extend_from_slice(&(header_len as u16).to_le_bytes());
        self.out.extend_from_slice(&(payload_len as u32).to_le_bytes());
        self.out.extend_from_slice(&key.to_le_bytes());
        self.out.extend_from_slice(&addr.to_le_bytes());
        self.out.extend_from_slice(&total.to_le_bytes());
        self.out.extend_from_slice(&id.to_le_bytes());
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Bytes that have not left.
    pub fn unsent(&self) -> usize {
        self.out.len()
    }

    /// Leaves away the last bytes of what has not left: the frame there is torn.
    pub fn tear(&mut self, bytes: usize) {
        let left = self.out.len().saturating_sub(bytes);
        self.out.truncate(left);
    }

    /// Changes a byte of what has not left, so far from the end.
    pub fn garble(&mut self, from_end: usize, change: u8) {
        let place = self.out.len().checked_sub(from_end + 1);
        if let Some(byte) = place.and_then(|place| self.out.get_mut(place)) {
            *byte ^= change;
        }
    }

    fn message(&mut self, header: &[u8], data: &[u8]) {
        self.frame((frame::SEND, 0), (header.len(), data.len()), (0, 0), (0, 0));
        self.out.extend_from_slice(header);
        self.out.extend_from_slice(data);
    }

    fn message_header(
        (kind, modes, flags): (u8, u8, u8),
        reads: u8,
        tag: u32,
        header_len: usize,
        (data_len, room): (u32, u32),
    ) -> Vec<u8> {
        let mut out = vec![kind, modes, flags, reads];
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&(header_len as u16).to_le_bytes());
        out.extend_from_slice(&[0, 0]);
        for word in [data_len, room, 9, 0] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out
    }

    /// Sends a request. Data that is not in the message does not follow by itself.
    pub fn ask(&mut self, asked: &Asked<'_>) {
        let reply = if self.tagged { Mode::Tagged } else { Mode::Inline };
        let modes = asked.mode as u8 | (reply as u8) << 4;
        let reads = u8::from(asked.mode == Mode::Read);
        let lens = (asked.data_len, asked.room);
        let mut out =
            Wire::message_header((1, modes, 0), reads, asked.tag, asked.header.len(), lens);
        if reads > 0 {
            out.extend_from_slice(&77u64.to_le_bytes());
            out.extend_from_slice(&4096u64.to_le_bytes());
            out.extend_from_slice(&asked.data_len.to_le_bytes());
        }
        out.extend_from_slice(asked.header);
        self.message(&out, asked.inline);
    }

    /// Answers a request of the server.
    pub fn answer(&mut self, tag: u32, header: &[u8]) {
        let reply = Wire::message_header((2, 0, 0), 0, tag, header.len(), (0, 0));
        self.message(&[&reply, header].concat(), &[]);
    }

    /// Pushes data of a request, of `total` bytes in all, from `from` on (whole frames before).
    pub fn push_data(&mut self, tag: u32, total: usize, from: usize, data: &[u8]) {
        for (number, part) in data.chunks(FRAME_PAYLOAD).enumerate() {
            let at = from + number * FRAME_PAYLOAD;
            let lens = (0, part.len());
            self.frame((frame::TAGGED, 0), lens, (push_tag(tag), at as u64), (total as u32, 0));
            self.out.extend_from_slice(part);
        }
    }

    /// A piece of a request's data.
    pub fn piece(&mut self, tag: u32, room: u32, data: &[u8]) {
        let header = Wire::message_header((4, 0, 0), 0, tag, 0, (data.len() as u32, room));
        self.message(&header, data);
    }

    /// Bytes that a piece carries at most.
    pub fn piece_bytes(&self) -> usize {
        self.receive_bytes.saturating_sub(MESSAGE).max(1)
    }

    /// Answers a read of our memory with data; with less than was asked for only if torn.
    pub fn read_response(&mut self, id: u32, data: &[u8]) {
        for (number, part) in data.chunks(FRAME_PAYLOAD).enumerate() {
            let at = (number * FRAME_PAYLOAD) as u64;
            let total = data.len() as u32;
            self.frame((frame::READ_RESPONSE, 0), (0, part.len()), (0, at), (total, id));
            self.out.extend_from_slice(part);
        }
        self.frame((frame::READ_DONE, 0), (0, 0), (0, 0), (0, id));
    }

    /// Refuses a read of our memory.
    pub fn read_fault(&mut self, id: u32) {
        self.frame((frame::FAULT, 0), (0, 0), (1, 0), (0, id));
    }

    /// Resets the connection: what was sent may still be read over there, the port is free.
    ///
    /// # Errors
    /// The system's.
    pub fn reset(self) -> std::io::Result<()> {
        let Stream::Tcp(stream) = &self.stream else { return Ok(()) };
        let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
        Ok(setsockopt(stream, sockopt::Linger, &at_once)?)
    }

    /// Says that nothing more will be sent.
    pub fn half_close(&mut self) {
        match &mut self.stream {
            Stream::Tcp(stream) => drop(stream.shutdown(Shutdown::Write)),
            Stream::Near(near) => near.end(),
        }
    }

    /// Sends what there is room for.
    pub fn push(&mut self) {
        while !self.out.is_empty() && !self.ended {
            match self.stream.write(&self.out) {
                Ok(0) => self.ended = true,
                Ok(count) => drop(self.out.drain(..count)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => self.ended = true,
            }
        }
    }

    /// Takes what has come, up to some bytes; `seen` is shown all of them, as they stood on the
    /// wire. False: nothing had.
    pub fn pull(&mut self, seen: &mut dyn FnMut(&[u8])) -> bool {
        let mut buffer = [0; 16 << 10];
        let mut came = false;
        for _ in 0..64 {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    // What stood before it, as far as it is here still: nothing hides in a seam.
                    let new = self.inbox.len();
                    self.inbox.extend_from_slice(&buffer[..count]);
                    seen(&self.inbox[new.saturating_sub(256)..]);
                    came = true;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => self.ended = true,
            }
            break;
        }
        came
    }

    /// What came next, of what was pulled.
    pub fn take(&mut self) -> Option<Came> {
        loop {
            let Some(head) = self.inbox.get(..FRAME) else {
                return std::mem::take(&mut self.ended).then_some(Came::Ended);
            };
            let (header_len, payload_len) = (half(head, 2), word(head, 4) as usize);
            let (kind, whole) = (head[0], FRAME + header_len + payload_len);
            if self.inbox.len() < whole {
                return std::mem::take(&mut self.ended).then_some(Came::Ended);
            }
            let frame: Vec<u8> = self.inbox.drain(..whole).collect();
            let (head, body) = frame.split_at(FRAME);
            let came = match kind {
                frame::HELLO_ACK => self.accepted(body),
                frame::SEND => self.told(body),
                frame::TAGGED if header_len >= MESSAGE => self.told(&body[..header_len]),
                frame::READ_REQUEST => {
                    Some(Came::Read(long(head, 16), word(head, 24), word(head, 28)))
                }
                _ => None,
            };
            if came.is_some() {
                return came;
            }
        }
    }

    fn accepted(&mut self, body: &[u8]) -> Option<Came> {
        self.tagged &= half(body, 4) & 1 != 0;
        self.receive_bytes = half(body, 6);
        self.window = half(body, 8) as u32;
        (self.limit, self.push_limit) = (self.window, word(body, 16));
        Some(Came::Accepted)
    }

    /// A message.
    fn told(&mut self, body: &[u8]) -> Option<Came> {
        let tag = word(body, 4);
        (self.limit, self.push_limit) = (word(body, 20), word(body, 24));
        let reads = usize::from(*body.get(3)?) + usize::from(*body.get(10)?);
        let header = || {
            let at = MESSAGE + reads * 20;
            body.get(at..at + half(body, 8)).unwrap_or_default().to_vec()
        };
        match body.first()? {
            1 => Some(Came::Request(tag, header())),
            2 => Some(Came::Reply(tag, header())),
            3 => Some(Came::Grant(tag, word(body, 16), word(body, 12))),
            _ => None,
        }
    }
}
