//! Who reads the admin port: few at a time, and none for long.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Readers at a time. One more takes the place of the oldest that has not asked for anything yet;
/// where all have, it is turned away.
const READERS_MAX: usize = 16;

/// All readers, the oldest first.
#[derive(Default)]
pub(super) struct Readers(Mutex<Vec<Arc<Connection>>>);

struct Connection {
    stream: TcpStream,
    has_asked: AtomicBool,
}

/// One of them, until it is dropped.
pub(super) struct Reader {
    all: Arc<Readers>,
    connection: Arc<Connection>,
}

impl Readers {
    pub(super) fn enter(self: &Arc<Self>, stream: TcpStream) -> Option<Reader> {
        let mut readers = self.lock();
        if readers.len() >= READERS_MAX {
            let has_asked = |reader: &Arc<Connection>| reader.has_asked.load(Ordering::SeqCst);
            let idle = readers.iter().position(|reader| !has_asked(reader))?;
            // Ends its thread's wait.
            let _ = readers.remove(idle).stream.shutdown(Shutdown::Both);
        }
        let connection = Arc::new(Connection { stream, has_asked: AtomicBool::new(false) });
        readers.push(connection.clone());
        drop(readers);
        Some(Reader { all: self.clone(), connection })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reader {
    pub(super) fn stream(&self) -> &TcpStream {
        &self.connection.stream
    }

    /// Its request is here: it is answered, whoever comes.
    pub(super) fn has_asked(&self) {
        self.connection.has_asked.store(true, Ordering::SeqCst);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.all.lock().retain(|reader| !Arc::ptr_eq(reader, &self.connection));
    }
}

/// A stream that ends at a time, however little comes or goes at once.
pub(super) struct Timed<'a> {
    stream: &'a TcpStream,
    end: Instant,
}

impl Timed<'_> {
    pub(super) fn new(stream: &TcpStream, time: Duration) -> Timed<'_> {
        Timed { stream, end: Instant::now() + time }
    }

    fn left(&self) -> Result<Option<Duration>> {
        match self.end.saturating_duration_since(Instant::now()) {
            Duration::ZERO => Err(Error::from(ErrorKind::TimedOut)),
            left => Ok(Some(left)),
        }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(into)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, from: &[u8]) -> Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(from)
    }

    fn flush(&mut self) -> Result<()> {
        self.stream.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let address = listener.local_addr().expect("address");
        let peer = TcpStream::connect(address).expect("connect");
        (peer, listener.accept().expect("accept").0)
    }

    #[test]
    fn the_oldest_that_asks_for_nothing_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("port");
        let readers = Arc::new(Readers::default());
        let mut all: Vec<(TcpStream, Reader)> = Vec::new();
        for _ in 0..READERS_MAX {
            let (peer, stream) = pair(&listener);
            all.push((peer, readers.enter(stream).expect("room")));
        }
        all[0].1.has_asked();
        let (_peer, stream) = pair(&listener);
        let one_more = readers.enter(stream).expect("room is made");
        let mut byte = [0];
        assert_eq!(all[1].0.read(&mut byte).expect("told of the end"), 0);
        all[2].0.set_nonblocking(true).expect("set");
        let other = all[2].0.read(&mut byte).expect_err("not told");
        assert_eq!(other.kind(), ErrorKind::WouldBlock);
        one_more.has_asked();
        all.iter().for_each(|(_, reader)| reader.has_asked());
        let (_peer, stream) = pair(&listener);
        assert!(readers.enter(stream).is_none(), "all are being answered");
        drop(all);
        assert_eq!(readers.lock().len(), 1, "who has gone is not counted");
    }

    #[test]
    fn time_passes_also_while_bytes_come() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("port");
        let (mut peer, stream) = pair(&listener);
        peer.write_all(b"G").expect("write");
        let mut timed = Timed::new(&stream, Duration::ZERO);
        assert_eq!(timed.read(&mut [0]).expect_err("over").kind(), ErrorKind::TimedOut);
        assert_eq!(timed.write(b"H").expect_err("over").kind(), ErrorKind::TimedOut);
    }
}
