//! A stream of the frames of `docs/protocol-frames.md` that goes by shared memory: what one who keeps to no
//! rule says there. Messages go as they are; frames that shared memory has no place for go nowhere.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Read, Result, Write};

use dafs_fabric::{
    Address, Arena, Engine, Opcode, PostError, Provider, QueuePair, QueuePairEvent, Span, Status,
    WorkCompletion, WrId,
};
use dafs_fabric_shm::ShmProvider;
use smallvec::smallvec;

use crate::wire::frame;

/// Bytes of a frame's header.
const FRAME: usize = 32;
/// Receives, and bytes of each: more than the other side is told of.
const RECEIVES: usize = 64;
const RECEIVE_BYTES: usize = 4096;
/// Of the first part of a message, which is copied at once.
const HEADER_MAX: usize = 4096;

/// See the module. It never waits.
pub struct Near {
    engine: Box<dyn Engine>,
    address: Address,
    queue_pair: Option<QueuePair>,
    is_connected: bool,
    has_ended: bool,
    receives: Vec<Span>,
    /// Frames that have not left, the last one perhaps in part.
    out: Vec<u8>,
    /// What has come, as frames.
    inbox: VecDeque<u8>,
}

impl std::fmt::Debug for Near {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Near").field("address", &self.address).finish_non_exhaustive()
    }
}

fn word(bytes: &[u8], at: usize) -> usize {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap_or_default()))
        as usize
}

/// A frame of this kind around a payload.
fn framed(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; FRAME];
    frame[0] = kind;
    frame[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    frame.extend_from_slice(payload);
    frame
}

impl Near {
    /// To the server at `address`, which is asked when a hello was written.
    ///
    /// # Errors
    /// The system has no memory to share.
    pub fn new(address: Address) -> Result<Near> {
        let device = ShmProvider::new().open().map_err(Error::other)?;
        let mut engine = device.engine().map_err(Error::other)?;
        let arena = Arena::new(RECEIVES * RECEIVE_BYTES).map_err(Error::other)?;
        let receives: Vec<Span> =
            (0..RECEIVES).map(|at| arena.span(at * RECEIVE_BYTES, RECEIVE_BYTES)).collect();
        for (number, span) in receives.iter().enumerate() {
            let list = smallvec![span.clone()];
            engine.post_recv(WrId(number as u64), list).map_err(Error::other)?;
        }
        Ok(Near {
            engine,
            address,
            queue_pair: None,
            is_connected: false,
            has_ended: false,
            receives,
            out: Vec::new(),
            inbox: VecDeque::new(),
        })
    }

    /// Ends the connection.
    pub fn end(&mut self) {
        self.queue_pair.into_iter().for_each(|pair| self.engine.disconnect(pair));
        self.has_ended = true;
    }

    fn progress(&mut self) {
        let mut done: Vec<WorkCompletion> = Vec::new();
        self.engine.poll(&mut done, RECEIVES);
        for event in std::iter::from_fn(|| self.engine.poll_event()) {
            match event {
                QueuePairEvent::Connected { private_data, .. } => {
                    self.is_connected = true;
                    self.inbox.extend(framed(frame::HELLO_ACK, &private_data));
                }
                _ => self.has_ended = true,
            }
        }
        for completion in done.iter().filter(|completion| completion.opcode == Opcode::Recv) {
            let Some(span) = self.receives.get(completion.wr_id.0 as usize) else { continue };
            let mut message = vec![0; completion.byte_len as usize];
            if completion.status == Status::Success {
                span.copy_to(0, &mut message);
                self.inbox.extend(framed(frame::SEND, &message));
            }
            let _ = self.engine.post_recv(completion.wr_id, smallvec![span.clone()]);
        }
    }

    /// Sends the frames that are whole, as far as there is room.
    fn send_frames(&mut self) -> Result<()> {
        while let Some(head) = self.out.get(..FRAME) {
            let whole = FRAME + (word(head, 0) >> 16) + word(head, 4);
            let kind = head[0];
            let Some(body) = self.out.get(FRAME..whole) else { return Ok(()) };
            match (kind, self.queue_pair) {
                (frame::HELLO, None) => {
                    let pair = self.engine.connect(&self.address, body).map_err(Error::other)?;
                    self.queue_pair = Some(pair);
                }
                (_, Some(_)) if !self.is_connected => return Ok(()),
                (frame::SEND, Some(pair)) => {
                    let (header, data) = body.split_at(body.len().min(HEADER_MAX));
                    let mut list = smallvec![];
                    if !data.is_empty() {
                        let span =
                            Arena::new(data.len()).map_err(Error::other)?.span(0, data.len());
                        span.copy_from(0, data);
                        list.push(span);
                    }
                    match self.engine.post_send(pair, WrId(u64::MAX), header, &mut list, false) {
                        Err(PostError::QueueFull) => return Ok(()),
                        // Longer than any message may be: such lies cannot be told here.
                        Ok(()) | Err(PostError::TooLarge) => {}
                        Err(error) => return Err(Error::other(error)),
                    }
                }
                _ => {}
            }
            self.out.drain(..whole);
        }
        Ok(())
    }
}

impl Write for Near {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.progress();
        if self.has_ended {
            return Err(ErrorKind::BrokenPipe.into());
        }
        self.send_frames()?;
        if self.out.len() > 1 << 20 {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.out.extend_from_slice(bytes);
        self.send_frames()?;
        self.engine.ring();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl Read for Near {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.progress();
        self.send_frames()?;
        self.engine.ring();
        if self.inbox.is_empty() {
            return if self.has_ended { Ok(0) } else { Err(ErrorKind::WouldBlock.into()) };
        }
        self.inbox.read(into)
    }
}
