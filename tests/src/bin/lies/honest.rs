//! An honest client beside the liars: root writes, reads and checks what it wrote.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dafs_client::{OpenOptions, Session};
use dafs_tests::client::session;
use dafs_tests::dice::Dice;

use dafs_tests::marks::{MARK, Marks, full_of};

/// Bytes of root's files.
pub(crate) const SECRET_BYTES: usize = 8 << 20;
const WRITTEN_BYTES: usize = 4 << 20;

#[derive(Default)]
struct Told {
    ended: AtomicBool,
    rounds: AtomicU64,
    longest_micros: AtomicU64,
    wrong: Mutex<Option<String>>,
}

/// Runs until it is dropped.
pub(crate) struct Honest {
    told: Arc<Told>,
    thread: Option<JoinHandle<()>>,
}

impl Honest {
    pub(crate) fn start(url: &str, marks: &Marks) -> Honest {
        let told = Arc::new(Told::default());
        let (url, marks, of_thread) = (url.to_string(), marks.clone(), told.clone());
        let thread = std::thread::spawn(move || {
            if let Err(wrong) = work(&url, &marks, &of_thread) {
                *of_thread.wrong.lock().unwrap_or_else(PoisonError::into_inner) = Some(wrong);
            }
        });
        Honest { told, thread: Some(thread) }
    }

    /// What went wrong, once.
    pub(crate) fn wrong(&self) -> Option<String> {
        if self.thread.as_ref().is_some_and(JoinHandle::is_finished) {
            let wrong = self.told.wrong.lock().unwrap_or_else(PoisonError::into_inner).take();
            return Some(wrong.unwrap_or_else(|| "the honest client ended".to_string()));
        }
        None
    }

    pub(crate) fn rounds(&self) -> u64 {
        self.told.rounds.load(Ordering::Relaxed)
    }

    pub(crate) fn longest(&self) -> Duration {
        Duration::from_micros(self.told.longest_micros.load(Ordering::Relaxed))
    }

    /// Waits for its end; what went wrong.
    pub(crate) fn end(mut self) -> Option<String> {
        self.told.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.told.wrong.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

fn work(url: &str, marks: &Marks, told: &Told) -> Result<(), String> {
    let session = session(url);
    let mut writer = Writer::new(&session, marks)?;
    while !told.ended.load(Ordering::Relaxed) {
        let start = Instant::now();
        writer.round()?;
        let micros = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        told.longest_micros.fetch_max(micros, Ordering::Relaxed);
        told.rounds.fetch_add(1, Ordering::Relaxed);
        // It is there, and leaves the machine to the liars.
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}

struct Writer<'a> {
    session: &'a Session,
    file: dafs_client::File,
    secret: dafs_client::File,
    marks: &'a Marks,
    /// What the file holds.
    model: Vec<u8>,
    dice: Dice,
    number: u64,
}

fn text(error: &dyn std::fmt::Display) -> String {
    format!("honest client: {error}")
}

impl<'a> Writer<'a> {
    fn new(session: &'a Session, marks: &'a Marks) -> Result<Writer<'a>, String> {
        let open = |path: &[u8], options| session.open(path, options).map_err(|e| text(&e));
        let file = open(b"private/written", OpenOptions { read: true, ..OpenOptions::write() })?;
        let secret = open(b"secret", OpenOptions::read())?;
        let (model, dice) = (vec![0; WRITTEN_BYTES], Dice::new(1));
        Ok(Writer { session, file, secret, marks, model, dice, number: 0 })
    }

    fn round(&mut self) -> Result<(), String> {
        match self.dice.below(8) {
            0..3 => self.write(),
            3..6 => self.read(),
            6 => self.read_secret(),
            _ => self.names(),
        }
    }

    fn range(&mut self, of: usize) -> (usize, usize) {
        let len = self.dice.size(256 << 10);
        let offset = self.dice.below(of - len);
        (offset, len)
    }

    /// Each block of 16 bytes says whose it is and when it was written.
    fn write(&mut self) -> Result<(), String> {
        let (offset, len) = self.range(WRITTEN_BYTES);
        self.number += 1;
        let block = [self.marks.honest, self.number.to_le_bytes()].concat();
        let data: Vec<u8> = block.into_iter().cycle().take(len).collect();
        let written = self.file.write_at(&data, offset as u64).map_err(|e| text(&e))?;
        self.model[offset..offset + written].copy_from_slice(&data[..written]);
        Ok(())
    }

    fn read(&mut self) -> Result<(), String> {
        let (offset, len) = self.range(WRITTEN_BYTES);
        let mut into = vec![0; len];
        let read = self.file.read_at(&mut into, offset as u64).map_err(|e| text(&e))?;
        if into[..read] == self.model[offset..offset + read] {
            return Ok(());
        }
        Err(format!("honest client: {read} bytes at {offset} are not what it wrote"))
    }

    fn read_secret(&mut self) -> Result<(), String> {
        let (offset, len) = self.range(SECRET_BYTES);
        let offset = offset - offset % MARK;
        let mut into = vec![0; len];
        let read = self.secret.read_at(&mut into, offset as u64).map_err(|e| text(&e))?;
        if into[..read] == full_of(self.marks.secret, read) {
            return Ok(());
        }
        Err(format!("honest client: the secret has changed at {offset}"))
    }

    fn names(&mut self) -> Result<(), String> {
        let names = self.session.read_dir(b"private").map_err(|e| text(&e))?;
        if names.count() >= 50 { Ok(()) } else { Err("honest client: names are missing".into()) }
    }
}
