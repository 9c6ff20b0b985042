//! locks: ten clients hold and wait for a thousand locks while the server is killed. The history of
//! all of them shows that no lock had two owners at any time.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::time::Duration;

use dafs_tests::mounted::Ending;
use nix::fcntl::{FcntlArg, fcntl};

use crate::role::now;
use crate::ten::{TEN, Ten};
use crate::{Line, Mode};

/// Locks: single bytes of a file.
const LOCKS: u64 = 1000;
/// How many a client holds before it lets go of all.
const HELD: u64 = 100;

pub(crate) fn owners(mode: Mode) -> Vec<Line> {
    let limit = Duration::from_secs(mode.pick(60, 900));
    let mut ten = Ten::new(limit + Duration::from_secs(20));
    let endings = vec![Ending::Killed; mode.pick(2, 20)];
    let pause = Duration::from_millis(mode.pick(700, 2000));
    let mut lines = Vec::new();
    for (kind, name) in [(0, "fcntl locks of open files"), (1, "fcntl locks of processes")] {
        let what = format!("10 clients, 1,000 {name}, server killed");
        let line = Line::new("locks", &what, "never two owners, none lost");
        let result = std::fs::write(ten.dirs[0].join("locks"), b"").map_err(|e| e.to_string());
        let rounds = mode.pick(8, 200);
        let said = result
            .and_then(|()| ten.play("lock", &[kind, rounds], &endings, pause, limit))
            .and_then(|said| check(&said, rounds));
        lines.push(line.result(said));
    }
    lines
}

/// A time during which a client held a lock.
#[derive(Clone, Copy)]
struct Hold {
    client: usize,
    from: u64,
    until: u64,
}

fn check(said: &[String], rounds: u64) -> Result<String, String> {
    let mut holds: Vec<Vec<Hold>> = vec![Vec::new(); LOCKS as usize];
    for (client, text) in said.iter().enumerate() {
        for line in text.lines() {
            let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
            let &[lock, from, until] = &numbers[..] else { return Err(line.to_string()) };
            holds[lock as usize].push(Hold { client, from, until });
        }
    }
    let count: usize = holds.iter().map(Vec::len).sum();
    let mut handed_over = 0;
    for (lock, holds) in holds.iter_mut().enumerate() {
        holds.sort_by_key(|hold| hold.from);
        for pair in holds.windows(2) {
            let (one, two) = (pair[0], pair[1]);
            if two.from < one.until {
                return Err(format!("lock {lock}: owners {} and {}", one.client, two.client));
            }
            handed_over += u64::from(one.client != two.client);
        }
    }
    if count as u64 != TEN * rounds * HELD || handed_over == 0 {
        return Err(format!("{count} locks were held, {handed_over} handed over"));
    }
    Ok(format!("{count} held, {handed_over} handed over"))
}

fn range(kind: i32, first: u64, len: u64) -> libc::flock {
    libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: first as i64,
        l_len: len as i64,
        l_pid: 0,
    }
}

fn set(file: &File, of_process: bool, range: &libc::flock) -> Result<(), String> {
    let how = if of_process { FcntlArg::F_SETLKW(range) } else { FcntlArg::F_OFD_SETLKW(range) };
    fcntl(file, how).map(|_| ()).map_err(|error| format!("fcntl: {error}"))
}

/// A role: takes locks in order, holds them, lets go; says which lock it had from when to when.
pub(crate) fn lock(dir: &Path, numbers: &[u64]) -> Result<String, String> {
    let &[client, kind, rounds] = numbers else { return Err("CLIENT KIND ROUNDS".into()) };
    let mut random = (client + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (random >> 33) % below
    };
    let path = dir.join("locks");
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(|e| e.to_string())?;
    let of_process = kind == 1;
    let mut said = String::new();
    for _ in 0..rounds {
        // A window of locks in ascending order, so that nobody waits in a circle.
        let first = next(LOCKS - HELD);
        let mut taken = Vec::new();
        for lock in first..first + HELD {
            set(&file, of_process, &range(libc::F_WRLCK, lock, 1))?;
            taken.push((lock, now()));
        }
        std::thread::sleep(Duration::from_millis(next(20)));
        let until = now();
        for (lock, from) in taken {
            said.push_str(&format!("{lock} {from} {until}\n"));
        }
        set(&file, of_process, &range(libc::F_UNLCK, first, HELD))?;
    }
    Ok(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_owner_is_found() {
        // One round of each client, one after the other; then two at a time.
        let one_by_one = |client: u64, until: u64| {
            let hold = |lock: u64| format!("{lock} {} {until}\n", client * 100);
            (0..HELD).map(hold).collect::<String>()
        };
        let mut said: Vec<String> =
            (0..TEN).map(|client| one_by_one(client, client * 100 + 50)).collect();
        assert_eq!(check(&said, 1).expect("one owner each"), "1000 held, 900 handed over");
        said[3] = one_by_one(3, 401);
        assert_eq!(check(&said, 1).expect_err("two owners"), "lock 0: owners 3 and 4");
        said.pop();
        assert!(check(&said, 1).is_err(), "a client that said nothing");
    }
}
