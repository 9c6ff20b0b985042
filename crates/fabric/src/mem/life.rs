//! Words that say that somebody still lives: to who maps them, whatever end he came to.
//!
//! One is of the server itself. It has the number of a thread that sleeps, and a robust list of the system's
//! has its address: when that thread ends, be it by SIGKILL, the kernel changes the word before it closes what
//! the process has open, ports and connections among that. The others are one for each session.

use std::io::{Error, ErrorKind, Result};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use super::shared::system;
use super::{Arena, PAGE_BYTES, Words};

const STACK_BYTES: usize = 64 << 10;

/// A word of memory, and what is in it as long as what it stands for lives. That is never in it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifeWord {
    /// Which word.
    pub number: usize,
    /// Not zero.
    pub value: u64,
}

impl LifeWord {
    /// It lives, or has lived when what this thread loaded before was there. False for words that there
    /// are not.
    #[inline]
    pub fn is_in(&self, words: &Words) -> bool {
        self.number < words.len() && words.load(self.number, Ordering::Acquire) == self.value
    }
}

/// This process, as long as it is there, to those who map an arena; and [sessions](Life::session) that it has.
#[derive(Debug)]
pub struct Life {
    server: LifeWord,
    sessions: Arc<Sessions>,
    /// The thread ends when there is no sender.
    sleeper: Option<(Sender<()>, JoinHandle<()>)>,
}

impl Life {
    /// Begins, by the word `server`, and with none of `sessions` taken. At the end the word says something else.
    ///
    /// # Errors
    /// The system does not tell of the death of threads, or has none for this.
    ///
    /// # Panics
    /// When not all words are inside the arena.
    pub fn begin(arena: &Arc<Arena>, server: usize, sessions: Range<usize>) -> Result<Life> {
        let words = Words::new(arena);
        assert!(
            server < words.len() && sessions.end <= words.len(),
            "life words outside of the arena"
        );
        // The end leaves this half as it is, whoever makes it.
        let former = words.load(server, Ordering::Relaxed) >> u32::BITS;
        let half = u64::from((former as u32).wrapping_add(1)) << u32::BITS;
        // Not private memory: that could be taken away first from one who is killed for want of memory.
        let list = Arena::shared(PAGE_BYTES).map_err(system)?;
        let free = Mutex::new(Free { unused: sessions, returned: Vec::new() });
        let sessions = Arc::new(Sessions { words, free, last: AtomicU64::new(0) });
        let (begun, is_begun) = channel();
        let (stay, until) = channel();
        let held = sessions.clone();
        let sleep = move || {
            let made = Held::begin(&held.words, server, &list);
            let told = made.as_ref().map(|made| half | u64::from(made.thread)).map_err(Error::kind);
            if let Ok(value) = told {
                held.words.store(server, value, Ordering::SeqCst);
            }
            // Who began it waits for this, or is gone.
            let _ = begun.send(told);
            if let Ok(made) = made {
                made.sleep(&until);
            }
        };
        let thread = std::thread::Builder::new().name("dafs-life".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn(sleep)?;
        let value = is_begun.recv().map_err(|_| ErrorKind::Other)??;
        let server = LifeWord { number: server, value };
        Ok(Life { server, sessions, sleeper: Some((stay, thread)) })
    }

    /// Of this process.
    pub fn server(&self) -> LifeWord {
        self.server
    }

    /// It has ended: for all who look from now on.
    pub fn end(&self) {
        let ended = self.server.value >> u32::BITS << u32::BITS;
        self.sessions.words.store(self.server.number, ended, Ordering::SeqCst);
    }

    /// A word for one more session; `None`: all have one.
    pub fn session(&self) -> Option<Mark> {
        let number = self.sessions.free().take()?;
        let value = self.sessions.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.sessions.words.store(number, value, Ordering::SeqCst);
        Some(Mark { sessions: self.sessions.clone(), word: LifeWord { number, value } })
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.end();
        if let Some((stay, thread)) = self.sleeper.take() {
            drop(stay);
            // It does not panic, and there would be nothing to do.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Sessions {
    words: Words,
    free: Mutex<Free>,
    /// The value given last.
    last: AtomicU64,
}

impl Sessions {
    fn free(&self) -> std::sync::MutexGuard<'_, Free> {
        // Nothing panics while it is held.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Words of no session.
#[derive(Debug)]
struct Free {
    unused: Range<usize>,
    returned: Vec<usize>,
}

impl Free {
    fn take(&mut self) -> Option<usize> {
        self.returned.pop().or_else(|| self.unused.next())
    }
}

/// The word of a session, which ends with this.
#[derive(Debug)]
pub struct Mark {
    sessions: Arc<Sessions>,
    word: LifeWord,
}

impl Mark {
    /// What stands there while the session lives.
    pub fn word(&self) -> LifeWord {
        self.word
    }

    /// The session has ended: for all who look from now on.
    pub fn raise(&self) {
        self.sessions.words.store(self.word.number, 0, Ordering::SeqCst);
    }
}

impl Drop for Mark {
    fn drop(&mut self) {
        self.raise();
        self.sessions.free().returned.push(self.word.number);
    }
}

/// What the system reads when a thread ends: the head of its list of words (get_robust_list(2)), and the one
/// entry of that.
#[derive(Debug)]
#[repr(C)]
struct List {
    first: usize,
    /// From an entry to its word.
    offset: isize,
    pending: usize,
    /// The entry; behind it comes the head again.
    entry: usize,
}

const HEAD_BYTES: usize = std::mem::offset_of!(List, entry);

/// This thread has a list of its own; its memory.
struct Held<'a> {
    _list: &'a Arc<Arena>,
    /// What the system calls this thread in such words.
    thread: u32,
    /// The list that it had.
    former: (usize, usize),
}

impl<'a> Held<'a> {
    /// From now on the system looks at the lower half of a word when this thread ends, and changes it if it has
    /// the thread's number.
    fn begin(words: &Words, number: usize, list: &'a Arc<Arena>) -> Result<Held<'a>> {
        let word = words.half(number).addr();
        let head = list.base.cast::<List>();
        let start = head.addr().get();
        let entry = start + HEAD_BYTES;
        let offset = word.wrapping_sub(entry).cast_signed();
        // SAFETY: the start of a page of this process's own, of which nobody else knows.
        unsafe { head.write(List { first: entry, offset, pending: 0, entry: start }) };
        let former = former_list()?;
        set_list(start, HEAD_BYTES)?;
        // SAFETY: always succeeds.
        let thread = unsafe { libc::gettid() }.cast_unsigned();
        Ok(Held { _list: list, thread, former })
    }

    fn sleep(self, until: &Receiver<()>) {
        // Ends when nobody can send; nobody does.
        while until.recv().is_ok() {}
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // It was taken once. If not, the memory goes, and the system finds no list: it changes nothing.
        let _ = set_list(self.former.0, self.former.1);
    }
}

/// The list of this thread: where, and of how many bytes.
fn former_list() -> Result<(usize, usize)> {
    let (mut start, mut bytes) = (0usize, 0usize);
    let (to, len) = (&raw mut start, &raw mut bytes);
    // SAFETY: numbers of this thread, which the system fills.
    match unsafe { libc::syscall(libc::SYS_get_robust_list, 0, to, len) } {
        0 => Ok((start, bytes)),
        _ => Err(Error::last_os_error()),
    }
}

fn set_list(start: usize, bytes: usize) -> Result<()> {
    // SAFETY: an address that the system reads when this thread ends, if it is mapped then.
    match unsafe { libc::syscall(libc::SYS_set_robust_list, start, bytes) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader, Read};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, AsRawFd};
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::mem::Readers;

    const SERVER: usize = 3;
    const SESSIONS: Range<usize> = 512..515;
    const BYTES: usize = 2 * PAGE_BYTES;
    const CHILD: &str = "DAFS_TEST_LIFE";

    fn arena() -> Arc<Arena> {
        Arena::for_readers(BYTES, PAGE_BYTES, Readers::Own).expect("memory")
    }

    fn begin(arena: &Arc<Arena>) -> Life {
        Life::begin(arena, SERVER, SESSIONS).expect("begins")
    }

    #[test]
    fn an_orderly_end_is_seen_and_another_life_is_another() {
        let arena = arena();
        let words = Words::new(&arena);
        let mut told = Vec::new();
        for _ in 0..3 {
            let life = begin(&arena);
            assert!(life.server().is_in(&words) && life.server().value != 0);
            assert!(told.iter().all(|word: &LifeWord| !word.is_in(&words)));
            told.push(life.server());
            life.end();
            assert!(told.iter().all(|word| !word.is_in(&words)));
            drop(life);
            assert!(told.iter().all(|word| !word.is_in(&words)));
        }
        assert!((0..words.len()).all(|at| at == SERVER || words.load(at, Ordering::Relaxed) == 0));
    }

    /// The word that the system is to change is the one that readers are told, and the whole of it counts.
    #[test]
    fn the_end_of_the_thread_alone_is_seen() {
        let (arena, list) = (arena(), Arena::shared(PAGE_BYTES).expect("memory"));
        let words = Words::new(&arena);
        let word = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let held = Held::begin(&words, SERVER, &list).expect("held");
                let value = 7 << u32::BITS | u64::from(held.thread);
                words.store(SERVER, value, Ordering::Relaxed);
                // It ends as one that is killed.
                std::mem::forget(held);
                LifeWord { number: SERVER, value }
            });
            thread.join().expect("ends")
        });
        // The system does that before it tells of the end.
        assert!(!word.is_in(&words));
        assert_eq!(words.load(SERVER, Ordering::Relaxed) >> u32::BITS, 7);
    }

    #[test]
    fn sessions_have_words_until_they_end_and_never_the_same() {
        let arena = arena();
        let (life, words) = (begin(&arena), Words::new(&arena));
        let mut marks: Vec<Mark> = std::iter::from_fn(|| life.session()).collect();
        let numbers: Vec<_> = marks.iter().map(|mark| mark.word().number).collect();
        assert_eq!(numbers, SESSIONS.collect::<Vec<_>>());
        let gone = marks.remove(1);
        assert!(gone.word().is_in(&words) && life.session().is_none());
        gone.raise();
        assert!(!gone.word().is_in(&words) && life.session().is_none(), "it is not free yet");
        let before = gone.word();
        drop(gone);
        let next = life.session().expect("one is free");
        assert_eq!(next.word().number, before.number);
        assert!(next.word().is_in(&words) && !before.is_in(&words));
        assert!(marks.iter().all(|mark| mark.word().is_in(&words)));
        // They outlive it.
        drop(life);
        assert!(next.word().is_in(&words));
        drop((next, marks));
        assert_eq!(words.load_some::<3>(512, Ordering::Relaxed), [0; 3]);
    }

    #[test]
    fn no_life_is_where_there_is_no_word() {
        let words = Words::new(&arena());
        assert!(!LifeWord { number: words.len(), value: 0 }.is_in(&words));
    }

    /// Ended with the test.
    struct Server(Child);

    impl Drop for Server {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// No test: a server that lives until it is killed.
    #[test]
    fn lives_for_another_test() {
        if std::env::var_os(CHILD).is_none() {
            return;
        }
        let arena = arena();
        let life = begin(&arena);
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let (file, address) =
            (arena.span(0, 1).shared().expect("shared").file, listener.local_addr());
        let (fd, port) = (file.as_fd().as_raw_fd(), address.expect("an address").port());
        println!("\nlives {fd} {port} {} {}", life.server().number, life.server().value);
        // Those who come are kept until the end.
        let _kept: Vec<_> = listener.incoming().collect();
    }

    fn server() -> (Server, Words, LifeWord, u16) {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", "mem::life::tests::lives_for_another_test", "--nocapture"]);
        command.env(CHILD, "").stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let said = BufReader::new(child.stdout.take().expect("piped"));
        let server = Server(child);
        let line =
            said.lines().map(|line| line.expect("text")).find(|line| line.starts_with("lives "));
        let line = line.expect("it says what it has");
        let numbers: Vec<u64> =
            line.split(' ').skip(1).map(|word| word.parse().expect("a number")).collect();
        let [fd, port, number, value] = numbers[..] else { panic!("{line}") };
        let file = File::open(format!("/proc/{}/fd/{fd}", server.0.id())).expect("its memory");
        let words = Words::of_peer(file.as_fd(), BYTES).expect("mapped");
        (server, words, LifeWord { number: number as usize, value }, port as u16)
    }

    #[test]
    fn a_server_that_is_killed_is_dead_before_its_port_is_free() {
        let kills = std::env::var("DAFS_TEST_LIFE_KILLS").ok();
        let kills = kills.map_or(20, |text| text.parse().expect("a number"));
        for kill in 0..kills {
            let (mut server, words, word, port) = server();
            let mut client = TcpStream::connect(("127.0.0.1", port)).expect("connects");
            assert!(word.is_in(&words) && word.number == SERVER);
            server.0.kill().expect("killed");
            // By turns what is free first.
            if kill % 2 == 0 {
                assert!(!matches!(client.read(&mut [0]), Ok(1)));
            } else {
                while TcpListener::bind(("127.0.0.1", port)).is_err() {}
            }
            assert!(!word.is_in(&words), "kill {kill}");
        }
    }
}
