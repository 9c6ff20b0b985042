//! An honest client beside the attackers: root writes 4 KiB, and reads them again, one call at a
//! time. The longest waits count for the stretch in which the call began.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dafs_client::OpenOptions;
use dafs_tests::client::session;
use dafs_tests::dice::Dice;
use dafs_tests::marks::{Marks, full_of};

const BLOCK: usize = 4096;
const BLOCKS: usize = 1024;

/// What an honest client does its work beside.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stretch {
    /// Attackers.
    Attacked,
    /// Nobody.
    Alone,
    /// What does not count.
    Rest,
}

/// The longest of a stretch, and how many there were.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Waits {
    pub read: Duration,
    pub write: Duration,
    pub rounds: u64,
}

#[derive(Default)]
struct Told {
    ended: AtomicBool,
    stretch: AtomicUsize,
    waits: Mutex<[Waits; 3]>,
    wrong: Mutex<Option<String>>,
}

/// Works until it is told to end.
pub(crate) struct Honest {
    told: Arc<Told>,
    thread: JoinHandle<()>,
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
        Honest { told, thread }
    }

    /// What begins now belongs to this stretch.
    pub(crate) fn begin(&self, stretch: Stretch) {
        self.told.stretch.store(stretch as usize, Ordering::SeqCst);
    }

    /// Waits for its end; its waits beside attackers and alone, or what went wrong.
    pub(crate) fn end(self) -> Result<[Waits; 2], String> {
        self.told.ended.store(true, Ordering::SeqCst);
        self.thread.join().map_err(|_| "the honest client panicked")?;
        match self.told.wrong.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(wrong) => Err(format!("the honest client: {wrong}")),
            None => {
                let waits = self.told.waits.lock().unwrap_or_else(PoisonError::into_inner);
                let [attacked, alone, _] = *waits;
                Ok([attacked, alone])
            }
        }
    }
}

impl Told {
    fn note(&self, stretch: usize, read: Duration, write: Duration) {
        let mut all = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(waits) = all.get_mut(stretch) else { return };
        waits.read = waits.read.max(read);
        waits.write = waits.write.max(write);
        waits.rounds += 1;
    }
}

fn work(url: &str, marks: &Marks, told: &Told) -> Result<(), String> {
    let session = session(url);
    let options = OpenOptions { create: true, read: true, ..OpenOptions::write() };
    let options = OpenOptions { mode: 0o600, ..options };
    let file = session.open(b"of the honest", options).map_err(|error| error.to_string())?;
    let mut dice = Dice::new(1);
    let block = full_of(marks.honest, BLOCK);
    while !told.ended.load(Ordering::SeqCst) {
        let stretch = told.stretch.load(Ordering::SeqCst);
        let offset = (dice.below(BLOCKS) * BLOCK) as u64;
        let start = Instant::now();
        let written = file.write_at(&block, offset).map_err(|error| error.to_string())?;
        let write = start.elapsed();
        let mut into = vec![0; BLOCK];
        let start = Instant::now();
        let read = file.read_at(&mut into, offset).map_err(|error| error.to_string())?;
        told.note(stretch, start.elapsed(), write);
        if written != BLOCK || read != BLOCK || into != block {
            return Err(format!("{read} bytes read at {offset} are not what it wrote"));
        }
        // It is there, and leaves the machine to the attackers.
        std::thread::sleep(Duration::from_micros(500));
    }
    Ok(())
}
