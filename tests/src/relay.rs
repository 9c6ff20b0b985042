//! A relay between a client and a server whose connections can be cut.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

type Streams = Arc<Mutex<Vec<TcpStream>>>;

/// Relays loopback connections to `to`, until it is dropped with the process.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    streams: Streams,
    is_closed: Arc<AtomicBool>,
    answers: Arc<Passage>,
    requests: Arc<Passage>,
}

/// What goes one way.
#[derive(Debug, Default)]
struct Passage {
    bytes: AtomicU64,
    is_lost: AtomicBool,
    delay_us: AtomicU64,
}

impl Relay {
    /// Starts to relay.
    ///
    /// # Errors
    /// The system's.
    pub fn start(to: SocketAddr) -> io::Result<Relay> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let streams = Streams::default();
        let list = streams.clone();
        let is_closed = Arc::<AtomicBool>::default();
        let closed = is_closed.clone();
        let (answers, requests) = (Arc::<Passage>::default(), Arc::<Passage>::default());
        let ways = [requests.clone(), answers.clone()];
        std::thread::spawn(move || {
            for from in listener.incoming().map_while(Result::ok) {
                if closed.load(Ordering::SeqCst) {
                    continue;
                }
                if let Ok(onward) = TcpStream::connect(to) {
                    join(&from, &onward, &list, &ways).unwrap_or_default();
                }
            }
        });
        Ok(Relay { address, streams, is_closed, answers, requests })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether nothing passes: what is there is cut, and what comes is let go at once.
    pub fn close(&self, closed: bool) {
        self.is_closed.store(closed, Ordering::SeqCst);
        if closed {
            self.cut();
        }
    }

    /// Whether nothing more is heard of either end by the other, also not of its end.
    pub fn hush(&self, hushed: bool) {
        self.answers.is_lost.store(hushed, Ordering::SeqCst);
        self.requests.is_lost.store(hushed, Ordering::SeqCst);
    }

    /// What clients say, but for their first message, arrives so much later from now on, and their end
    /// does not.
    pub fn delay_requests(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.requests.delay_us.store(micros, Ordering::SeqCst);
    }

    /// Whether what the server says is lost. The connections are of no use after that.
    pub fn swallow_answers(&self, swallow: bool) {
        self.answers.is_lost.store(swallow, Ordering::SeqCst);
    }

    /// Bytes that clients sent to the server.
    pub fn request_bytes(&self) -> u64 {
        self.requests.bytes.load(Ordering::SeqCst)
    }

    /// Bytes that the server answered, with those that were lost.
    pub fn answer_bytes(&self) -> u64 {
        self.answers.bytes.load(Ordering::SeqCst)
    }

    /// Cuts every connection; new ones are relayed again. Returns how many were cut.
    pub fn cut(&self) -> usize {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let live = streams.drain(..).filter(|stream| stream.shutdown(Shutdown::Both).is_ok());
        live.count()
    }
}

fn join(
    from: &TcpStream,
    onward: &TcpStream,
    list: &Streams,
    [requests, answers]: &[Arc<Passage>; 2],
) -> io::Result<()> {
    for (a, b, way) in [(from, onward, requests), (onward, from, answers)] {
        let way = way.clone();
        a.set_nodelay(true)?;
        let (a, b) = (a.try_clone()?, b.try_clone()?);
        let kept = a.try_clone()?;
        list.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
        std::thread::spawn(move || pump(a, b, &way));
    }
    Ok(())
}

fn pump(mut from: TcpStream, mut to: TcpStream, way: &Passage) {
    let mut bytes = vec![0; 1 << 16];
    let mut is_first = true;
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        // First: who has heard something may ask at once how much was said.
        way.bytes.fetch_add(n as u64, Ordering::SeqCst);
        if !std::mem::take(&mut is_first) {
            std::thread::sleep(Duration::from_micros(way.delay_us.load(Ordering::SeqCst)));
        }
        if !way.is_lost.load(Ordering::SeqCst) && to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    while way.is_lost.load(Ordering::SeqCst) || way.delay_us.load(Ordering::SeqCst) > 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
