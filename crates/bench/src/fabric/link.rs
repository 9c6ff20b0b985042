//! One end of a connection: an engine, its way of waiting, its receives.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_fabric::{
    Arena, Device, Engine, Opcode, PostError, QueuePair, QueuePairEvent, SgList, Span, Status,
    Waiter, WorkCompletion, WrId,
};

use super::broken;
use crate::wait::Wait;

/// How long an adaptive wait polls.
const SPIN: Duration = Duration::from_micros(50);
/// Completions taken at once.
const BATCH: usize = 64;
/// After so long a sleeper looks whether it is to stop.
const NAP: Duration = Duration::from_millis(100);
/// Bytes of an answer.
pub(super) const SHORT_BYTES: usize = 32;

/// An engine with receives of one size.
pub(super) struct Link {
    pub(super) engine: Box<dyn Engine>,
    waiter: Arc<dyn Waiter>,
    wait: Wait,
    receives: Span,
    receive_bytes: usize,
    completions: Vec<WorkCompletion>,
    /// Empty, with room: so that taking completions does not allocate.
    spare: Vec<WorkCompletion>,
}

impl Link {
    /// An engine with `count` receives of `bytes` posted.
    pub(super) fn new(
        device: &Arc<dyn Device>,
        wait: Wait,
        count: usize,
        bytes: usize,
    ) -> io::Result<Link> {
        let engine = device.engine().map_err(broken)?;
        let arena = Arena::new((count * bytes).max(1)).map_err(broken)?;
        let mut link = Link {
            waiter: engine.waiter(),
            engine,
            wait,
            receives: arena.span(0, count * bytes),
            receive_bytes: bytes,
            completions: Vec::with_capacity(BATCH),
            spare: Vec::with_capacity(BATCH),
        };
        for number in 0..count {
            link.post_receive(number as u64)?;
        }
        Ok(link)
    }

    fn buffer(&self, number: u64) -> Span {
        self.receives.part(number as usize * self.receive_bytes, self.receive_bytes)
    }

    /// Posts the receive with this number (again).
    pub(super) fn post_receive(&mut self, number: u64) -> io::Result<()> {
        let list = SgList::from_elem(self.buffer(number), 1);
        self.engine.post_recv(WrId(number), list).map_err(broken)
    }

    /// The first bytes of the message that this completion is about.
    pub(super) fn message(&self, completion: &WorkCompletion) -> Vec<u8> {
        let len = (completion.byte_len as usize).min(SHORT_BYTES).min(self.receive_bytes);
        let mut bytes = Vec::new();
        self.buffer(completion.wr_id.0).read_message(len, &mut bytes);
        bytes
    }

    /// Posts something; polls for room where the queue is full. What completes meanwhile is
    /// added to the completions.
    pub(super) fn post(
        &mut self,
        mut post: impl FnMut(&mut dyn Engine) -> Result<(), PostError>,
    ) -> io::Result<()> {
        loop {
            match post(self.engine.as_mut()) {
                Ok(()) => return Ok(()),
                Err(PostError::QueueFull) => {
                    self.engine.poll(&mut self.completions, BATCH);
                }
                Err(error) => return Err(broken(error)),
            }
        }
    }

    /// Sends `header` and `data`, unsignaled.
    pub(super) fn send(
        &mut self,
        queue_pair: QueuePair,
        header: &[u8],
        data: &SgList,
    ) -> io::Result<()> {
        self.post(|engine| engine.post_send(queue_pair, WrId(0), header, &mut data.clone(), false))
    }

    /// What completed since the last time.
    pub(super) fn take_completions(&mut self) -> Vec<WorkCompletion> {
        std::mem::replace(&mut self.completions, std::mem::take(&mut self.spare))
    }

    /// Takes back the list, worked off.
    pub(super) fn give_back(&mut self, mut worked_off: Vec<WorkCompletion>) {
        worked_off.clear();
        self.spare = worked_off;
    }

    /// Polls, or waits until there are completions or events, or a while has passed.
    pub(super) fn progress(&mut self) -> io::Result<Option<QueuePairEvent>> {
        let mut spin_end = None;
        loop {
            let count = self.engine.poll(&mut self.completions, BATCH);
            if let Some(event) = self.engine.poll_event() {
                return Ok(Some(event));
            }
            if count > 0 || !self.completions.is_empty() {
                return self.check();
            }
            let sleep = match self.wait {
                Wait::Polled => false,
                Wait::Sleeping => true,
                Wait::Adaptive => {
                    let now = Instant::now();
                    now >= *spin_end.get_or_insert(now + SPIN)
                }
            };
            if !sleep {
                std::hint::spin_loop();
            } else if self.engine.arm() {
                self.waiter.wait(Some(NAP));
                if self.engine.poll(&mut self.completions, BATCH) == 0 {
                    return Ok(self.engine.poll_event());
                }
                return self.check();
            }
        }
    }

    fn check(&self) -> io::Result<Option<QueuePairEvent>> {
        match self.completions.iter().find(|c| c.status != Status::Success) {
            Some(bad) if bad.status != Status::Flushed => {
                Err(broken(format!("{:?} ended with {:?}", bad.opcode, bad.status)))
            }
            _ => Ok(None),
        }
    }

    /// Disconnects and waits until the network has left all memory.
    pub(super) fn end(mut self, queue_pair: QueuePair) {
        self.engine.disconnect(queue_pair);
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            self.completions.clear();
            if let Ok(Some(QueuePairEvent::Quiescent { .. })) = self.progress() {
                return;
            }
        }
    }

    /// True for a message that arrived whole.
    pub(super) fn is_message(completion: &WorkCompletion) -> bool {
        completion.opcode == Opcode::Recv && completion.status == Status::Success
    }
}

/// Waits for the connection to be made; the peer's private data.
pub(super) fn connected(
    link: &mut Link,
    wanted: QueuePair,
    stop: &AtomicBool,
) -> io::Result<Vec<u8>> {
    loop {
        match link.progress()? {
            Some(QueuePairEvent::Connected { queue_pair, private_data })
                if queue_pair == wanted =>
            {
                return Ok(private_data);
            }
            Some(QueuePairEvent::Refused { reason, refused, .. }) => {
                let kind = match refused {
                    true => io::ErrorKind::ConnectionRefused,
                    false => io::ErrorKind::Other,
                };
                return Err(io::Error::new(kind, reason));
            }
            _ if stop.load(Ordering::Relaxed) => return Err(io::ErrorKind::Interrupted.into()),
            _ => {}
        }
    }
}
