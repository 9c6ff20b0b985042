//! Peers that are killed, killed while a child keeps all they had, or stopped, at any of their steps.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use dafs_client::OpenOptions;
use dafs_tests::client::session_by_shm;
use dafs_tests::dice::Dice;
use dafs_tests::{Served, tree};
use nix::sys::signal::Signal;

use super::Held;
use super::victim::Victim;
use crate::faults::{config_with_lease, counter, sessions_alive};
use crate::{Line, Mode};

const BYTES: usize = 4 << 20;
const PIECE: usize = 64 << 10;
/// From the start of a process to its end, at most: it connects in a few of these.
const STEP_MAX: Duration = Duration::from_millis(30);
/// Processes that are stopped, or whose children live on, at a time.
const LATER: usize = 6;
/// Calls that take longer hang.
const HANG: Duration = Duration::from_secs(120);
/// What was not there before, at most.
const DESCRIPTORS_MORE: usize = 4;
const MAPPINGS_MORE: usize = 24;
const MEMORY_MORE: u64 = 16 << 20;

pub(crate) fn all(mode: Mode) -> Vec<Line> {
    let mut lines = clients(mode);
    lines.push(servers(mode));
    lines
}

/// Another client, who reads what he knows and is not to notice: the times of his calls.
struct Honest {
    stop: Arc<AtomicBool>,
    ended: Receiver<Result<Vec<f64>, String>>,
}

impl Honest {
    /// It has read when this returns: a first connection is tried once.
    fn start(url: &str) -> Honest {
        let (url, stop) = (url.to_owned(), Arc::new(AtomicBool::new(false)));
        let ((tell, ended), (begin, begun)) = (channel(), channel());
        let stopped = stop.clone();
        std::thread::spawn(move || tell.send(reads(&url, &begin, &stopped)));
        // Where it failed, it says so at its end.
        let _ = begun.recv_timeout(HANG);
        Honest { stop, ended }
    }

    fn end(self) -> Result<Vec<f64>, String> {
        self.stop.store(true, Ordering::Relaxed);
        self.ended.recv_timeout(HANG).map_err(|_| "a call of another client hangs".to_owned())?
    }
}

fn reads(url: &str, begin: &Sender<()>, stop: &AtomicBool) -> Result<Vec<f64>, String> {
    let wrong = |error: dafs_client::Error| error.to_string();
    let session = session_by_shm(url, |_| {}).map_err(wrong)?;
    let file = session.open(b"known", OpenOptions::read()).map_err(wrong)?;
    let (known, mut into) = (tree::pattern(3, BYTES), vec![0; PIECE]);
    // Which the server reaches as it is.
    let shared = session.buffer(PIECE).map_err(wrong)?.post();
    let mut micros = Vec::new();
    for piece in (0..BYTES / PIECE).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let start = Instant::now();
        file.read_span_at(shared.span(), (piece * PIECE) as u64).map_err(wrong)?;
        micros.push(start.elapsed().as_secs_f64() * 1e6);
        shared.span().copy_to(0, &mut into);
        if into[..] != known[piece * PIECE..][..PIECE] {
            return Err(format!("wrong data in piece {piece}"));
        }
        let _ = begin.send(());
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(micros)
}

fn p99(mut micros: Vec<f64>) -> f64 {
    micros.sort_by(f64::total_cmp);
    micros.get(micros.len() * 99 / 100).copied().unwrap_or(f64::NAN)
}

/// Repeats until it holds, for as long as a lease and more.
fn settles(mut holds: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !holds() {
        if start.elapsed() > Duration::from_secs(60) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}

fn clients(mode: Mode) -> Vec<Line> {
    let rounds = mode.pick(24, 900);
    let work = tempfile::tempdir().expect("tempdir");
    let config = config_with_lease(work.path(), 2);
    let dir = work.path().join("served");
    std::fs::create_dir(&dir).expect("mkdir");
    std::fs::write(dir.join("known"), tree::pattern(3, BYTES)).expect("write");
    let mut server =
        Served::start(&dir, &["--arena", "64m", "--config", &config.display().to_string()]);
    let url = server.url.clone();
    let alone = {
        let honest = Honest::start(&url);
        std::thread::sleep(Duration::from_millis(mode.pick(300, 2000)));
        honest.end()
    };
    let honest = Honest::start(&url);
    // What is made once, and kept, is there now.
    let mut dice = Dice::new(7);
    kill_some(&url, 12, &mut dice);
    settles(|| sessions_alive(&server) <= 1);
    let (before, memory) = (Held::by(server.pid()), server.own_bytes());
    kill_some(&url, rounds, &mut dice);
    let forgotten = settles(|| sessions_alive(&server) <= 1);
    let is_as_before = |now: Held| {
        now.descriptors <= before.descriptors + DESCRIPTORS_MORE
            && now.mappings <= before.mappings + MAPPINGS_MORE
    };
    let mut now = before;
    let given_back = settles(|| {
        now = Held::by(server.pid());
        is_as_before(now) && server.own_bytes() <= memory + MEMORY_MORE
    });
    let more = server.own_bytes().saturating_sub(memory) >> 10;
    let beside = honest.end();
    // Nobody is left: pages that clients read by themselves, those under way, and what they shared.
    const HELD: [&str; 4] = ["referenced_bytes", "lent_bytes", "held_bytes", "mapped_bytes"];
    let held = || HELD.map(|of| counter(&server, of));
    let mut left = held();
    let let_go = settles(|| {
        left = held();
        left == [0; HELD.len()]
    });
    let what = format!("{rounds} clients killed, with children, or stopped: server and others");
    let line =
        Line::new("shm-kills", &what, "no hang, no leak, right data").result(match &beside {
            _ if server.ended().is_some() => Err("the server has ended".into()),
            Err(why) => Err(why.clone()),
            Ok(_) if !forgotten => Err(format!("{} sessions are left", sessions_alive(&server))),
            Ok(_) if !given_back => Err(format!("{before:?} became {now:?}, and {more} KiB more")),
            Ok(_) if !let_go => {
                let left = HELD.iter().zip(left).map(|(name, bytes)| format!("{name} {bytes}"));
                Err(format!("left: {}", left.collect::<Vec<_>>().join(", ")))
            }
            Ok(reads) => Ok(format!(
                "nothing is held, {} reads, {} descriptors and {} mappings (before {} and {}), {more} KiB more",
                reads.len(),
                now.descriptors,
                now.mappings,
                before.descriptors,
                before.mappings
            )),
        });
    server.stop();
    let (alone, beside) = (p99(alone.unwrap_or_default()), p99(beside.unwrap_or_default()));
    let text = format!("{:.1} × ({beside:.0} µs, alone {alone:.0})", beside / alone);
    let others = Line::new("shm-kills", "p99 of another client's reads beside them", "≤ 3 × alone");
    vec![line.told(), others.timing().measured(text, beside <= 3.0 * alone)]
}

fn kill_some(url: &str, rounds: usize, dice: &mut Dice) {
    let mut later = VecDeque::new();
    for round in 0..rounds {
        let with_child = round % 3 == 1;
        let victim = Victim::start(url, with_child);
        let step = Duration::from_micros(dice.below(STEP_MAX.as_micros() as usize) as u64);
        std::thread::sleep(step);
        victim.signal(if round % 3 == 2 { Signal::SIGSTOP } else { Signal::SIGKILL });
        // One that is stopped is killed so, and children live on for a while.
        if round % 3 > 0 {
            later.push_back(victim);
        }
        if later.len() > LATER {
            let oldest = later.pop_front();
            // Some go on before.
            if let Some(oldest) = oldest.filter(|_| dice.once_in(2)) {
                oldest.signal(Signal::SIGCONT);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// A client whose server is killed or stopped.
fn servers(mode: Mode) -> Line {
    let rounds = mode.pick(4, 100);
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("known"), tree::pattern(3, BYTES)).expect("write");
    let mut server = Served::start(dir.path(), &["--arena", "64m"]);
    let honest = Honest::start(&server.url);
    let mut dice = Dice::new(11);
    let mut fell = |server: &mut Served| {
        std::thread::sleep(Duration::from_millis(dice.below(200) as u64));
        server.signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(dice.below(20) as u64));
        server.signal(Signal::SIGCONT);
        std::thread::sleep(Duration::from_micros(dice.below(3000) as u64));
        server.kill();
        server.restart();
    };
    fell(&mut server);
    let url = server.url.clone();
    let is_back = || session_by_shm(&url, |_| {}).and_then(|session| session.stat(b"known"));
    settles(|| is_back().is_ok());
    std::thread::sleep(Duration::from_millis(500));
    let me = std::process::id();
    let before = Held::by(me);
    (1..rounds).for_each(|_| fell(&mut server));
    settles(|| is_back().is_ok());
    let mut now = before;
    let given_back = settles(|| {
        now = Held::by(me);
        now.descriptors <= before.descriptors + DESCRIPTORS_MORE
            && now.mappings <= before.mappings + MAPPINGS_MORE
    });
    let what = format!("{rounds} servers stopped and killed under a client");
    let line = Line::new("shm-kills", &what, "no hang, no leak, right data");
    let result = match honest.end() {
        Err(why) => Err(why),
        Ok(_) if !given_back => Err(format!("{before:?} became {now:?}")),
        Ok(reads) => Ok(format!("{} reads; {now:?}", reads.len())),
    };
    server.stop();
    line.result(result).told()
}
