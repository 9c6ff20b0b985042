//! The answering process.

use std::io::{self, IoSlice, Write};
use std::net::{TcpListener, TcpStream};

use super::message::{Kind, MESSAGE_BYTES, Message, violation};
use super::wire::Wire;
use super::{DEPTH_MAX, FOOTPRINT_MAX, SIZE_MAX};
use crate::sys;
use crate::wait::Wait;

/// Requests with data up to this size are received many at a time and copied once; larger data
/// is received where it belongs.
const STAGED_BYTES_MAX: usize = 16 << 10;
const STAGE_BYTES: usize = 256 << 10;

/// The whole life of a peer process: connects to the process that started it and answers until
/// that one is gone.
///
/// # Errors
/// The socket's, or a request out of range.
pub fn connect_back(address: &str) -> io::Result<()> {
    answer(TcpStream::connect(address)?)
}

/// Answers connections at `address`, one after the other, for ever.
///
/// # Errors
/// The listening socket's.
pub fn serve(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    loop {
        let (stream, from) = listener.accept()?;
        if let Err(error) = answer(stream) {
            let _ = writeln!(io::stderr(), "{from}: {error}");
        }
    }
}

fn answer(stream: TcpStream) -> io::Result<()> {
    let mut peer = Peer {
        wire: Wire::new(stream)?,
        region: Vec::new(),
        inbox: Inbox { bytes: vec![0; STAGE_BYTES], start: 0, end: 0, ask: MESSAGE_BYTES },
    };
    loop {
        match peer.batch() {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// Received bytes that are not worked off yet.
struct Inbox {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// How much to receive at once.
    ask: usize,
}

impl Inbox {
    fn fill(&mut self, wire: &mut Wire) -> io::Result<()> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.bytes.len() - self.start < MESSAGE_BYTES {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let limit = self.bytes.len().min((self.start + self.ask).max(self.end + 1));
        self.end += wire.read(&mut self.bytes[self.end..limit])?;
        Ok(())
    }

    fn message(&mut self) -> io::Result<Option<Message>> {
        let Some(bytes) = self.bytes[self.start..self.end].first_chunk::<MESSAGE_BYTES>() else {
            return Ok(None);
        };
        let message = Message::decode(bytes)?;
        self.start += MESSAGE_BYTES;
        Ok(Some(message))
    }

    /// Moves received bytes to the start of `into`; how many.
    fn take(&mut self, into: &mut [u8]) -> usize {
        let len = into.len().min(self.end - self.start);
        into[..len].copy_from_slice(&self.bytes[self.start..self.start + len]);
        self.start += len;
        len
    }
}

struct Peer {
    wire: Wire,
    region: Vec<u8>,
    inbox: Inbox,
}

impl Peer {
    /// Receives once, and answers all whole requests with one send.
    fn batch(&mut self) -> io::Result<()> {
        self.inbox.fill(&mut self.wire)?;
        let mut reads: Vec<(usize, usize, u64)> = Vec::new();
        let mut acknowledged = 0;
        while let Some(message) = self.inbox.message()? {
            match message.kind {
                Kind::Begin => self.begin(&message)?,
                Kind::End => self.end()?,
                Kind::Read => {
                    let (start, end) = self.range(&message)?;
                    reads.push((start, end, message.c));
                }
                Kind::Write => {
                    self.receive(&message)?;
                    acknowledged += 1;
                }
            }
        }
        for (start, end, times) in reads.iter().filter(|(.., times)| *times > 1) {
            for _ in 0..*times {
                self.wire.write_all(&mut [IoSlice::new(&self.region[*start..*end])])?;
            }
        }
        let mut pieces: Vec<IoSlice<'_>> = reads
            .iter()
            .filter(|(.., times)| *times == 1)
            .map(|(start, end, _)| IoSlice::new(&self.region[*start..*end]))
            .collect();
        let answers = vec![0; acknowledged * MESSAGE_BYTES];
        if acknowledged > 0 {
            pieces.push(IoSlice::new(&answers));
        }
        self.wire.write_all(&mut pieces)
    }

    fn range(&self, message: &Message) -> io::Result<(usize, usize)> {
        let inside = |end: &u64| *end <= self.region.len() as u64;
        let end = message.a.checked_add(message.b).filter(inside);
        match end {
            Some(end) if message.b > 0 && message.b <= SIZE_MAX as u64 => {
                Ok((message.a as usize, end as usize))
            }
            _ => Err(violation("request outside of the region")),
        }
    }

    fn receive(&mut self, message: &Message) -> io::Result<()> {
        let (start, end) = self.range(message)?;
        let into = &mut self.region[start..end];
        let mut filled = self.inbox.take(into);
        if filled == into.len() {
            return Ok(());
        }
        // The next request may come in the same system call.
        let inbox = &mut self.inbox;
        (inbox.start, inbox.end) = (0, 0);
        while filled < into.len() {
            let rest = &mut into[filled..];
            let wanted = rest.len();
            let got = self.wire.read_two(rest, &mut inbox.bytes[..inbox.ask])?;
            filled += got.min(wanted);
            inbox.end = got.saturating_sub(wanted);
        }
        Ok(())
    }

    fn begin(&mut self, message: &Message) -> io::Result<()> {
        let [region, size, depth] = [message.a, message.b, message.c]
            .map(|value| usize::try_from(value).unwrap_or(usize::MAX));
        if region > FOOTPRINT_MAX || size > SIZE_MAX || depth > DEPTH_MAX {
            return Err(violation("parameters out of range"));
        }
        if let Some(cpu) = message.d.checked_sub(1) {
            sys::pin_to_cpu(usize::try_from(cpu).unwrap_or(usize::MAX))?;
        }
        if self.region.len() != region {
            // Other than zero, so that each page is really there.
            self.region = Vec::new();
            self.region = vec![0x5a; region];
        }
        self.inbox.ask = if size > STAGED_BYTES_MAX { MESSAGE_BYTES } else { STAGE_BYTES };
        self.report()?;
        self.wire.set_wait(message.wait)
    }

    fn end(&mut self) -> io::Result<()> {
        self.wire.set_wait(Wait::Sleeping)?;
        self.report()
    }

    fn report(&mut self) -> io::Result<()> {
        let report =
            Message::new(Kind::End, sys::process_cpu_ns(), self.wire.system_calls(), 0).encode();
        self.wire.write_all(&mut [IoSlice::new(&report)])
    }
}
