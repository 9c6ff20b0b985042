//! history: what ten mounts see of each other. Each process says what it did and when; the whole
//! history must be one that the guarantees allow.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use dafs_tests::mounted::Ending;

use crate::role::now;
use crate::ten::{TEN, Ten};
use crate::{Line, Mode};

/// Files that are written and read by open and close.
const REGISTERS: u64 = 5;

pub(crate) fn all(mode: Mode) -> Vec<Line> {
    let limit = Duration::from_secs(mode.pick(60, 900));
    let mut ten = Ten::new(limit * 2);
    let rounds = mode.pick(60, 3000);
    let pause = Duration::from_millis(mode.pick(200, 3000));
    let mut lines = Vec::new();
    type Check = fn(&Path, &[String], u64) -> Result<String, String>;
    for (role, what, required, check) in [
        ("append", "O_APPEND by ten mounts", "nothing lost, mixed or twice", appended as Check),
        ("registers", "open-close consistency", "no read older than a close", consistent),
        ("count", "a counter under flock by ten mounts", "no update lost", counted),
        ("replace", "files renamed over one by ten mounts", "always there, whole", replaced),
    ] {
        let line = Line::new("history", &format!("{what}, orderly restart"), required);
        let result = prepare(&ten.dirs[0])
            .and_then(|()| ten.play(role, &[rounds], &[Ending::Orderly], pause, limit))
            .and_then(|said| {
                stale_by_restart(&said, &ten.restarts)?;
                check(&ten.dirs[0], &said, rounds)
            });
        lines.push(line.result(result));
    }
    lines
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

fn prepare(dir: &Path) -> Result<(), String> {
    fs::write(dir.join("log"), b"").map_err(text)?;
    fs::write(dir.join("counter"), 0u64.to_le_bytes()).map_err(text)?;
    fs::write(dir.join("target"), record(99, 0)).map_err(text)?;
    for register in 0..REGISTERS {
        fs::write(dir.join(format!("register-{register}")), record(99, 0)).map_err(text)?;
    }
    Ok(())
}

/// Who wrote what, in a form of which a part is noticed.
fn record(client: u64, number: u64) -> Vec<u8> {
    let filler = "abcdefghij".repeat(1 + ((client * 7 + number) % 12) as usize);
    format!("<{client} {number} {filler}>\n").into_bytes()
}

fn parse(line: &str) -> Option<(u64, u64)> {
    let mut words = line.strip_prefix('<')?.split(' ');
    let (client, number) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    (record(client, number).strip_suffix(b"\n")? == line.as_bytes()).then_some((client, number))
}

/// A role: appends records.
pub(crate) fn append(dir: &Path, numbers: &[u64]) -> Result<String, String> {
    let &[client, rounds] = numbers else { return Err("CLIENT ROUNDS".into()) };
    let mut file = OpenOptions::new().append(true).open(dir.join("log")).map_err(text)?;
    for number in 0..rounds {
        let record = record(client, number);
        let written = file.write(&record).map_err(text)?;
        if written != record.len() {
            return Err(format!("{written} bytes of {} were appended", record.len()));
        }
    }
    file.sync_all().map_err(text)?;
    Ok(String::new())
}

fn appended(dir: &Path, _: &[String], rounds: u64) -> Result<String, String> {
    let log = fs::read(dir.join("log")).map_err(text)?;
    let log = String::from_utf8(log).map_err(|_| "the log has bytes of nobody")?;
    let mut next = vec![0; TEN as usize];
    for line in log.lines() {
        let shown: String = line.chars().take(40).collect();
        let (client, number) = parse(line).ok_or(format!("not a record: {shown}"))?;
        let expected = next.get_mut(client as usize).ok_or(format!("nobody's record: {shown}"))?;
        if number != *expected {
            return Err(format!("client {client}: {number} where {expected} comes next"));
        }
        *expected += 1;
    }
    match next.iter().position(|count| *count != rounds) {
        Some(client) => Err(format!("client {client}: {} of {rounds} records", next[client])),
        None => Ok(format!("{} records", TEN * rounds)),
    }
}

/// A role: writes and reads registers, each time with an open and a close; says what it saw.
pub(crate) fn registers(dir: &Path, numbers: &[u64]) -> Result<String, String> {
    let &[client, rounds] = numbers else { return Err("CLIENT ROUNDS".into()) };
    let mut said = String::new();
    for number in 1..=rounds {
        let register = (client * 31 + number * 17) % REGISTERS;
        let path = dir.join(format!("register-{register}"));
        let from = now();
        if (client + number) % 3 == 0 {
            // One length for all, so that a register is never partly of another.
            let mut bytes = record(client, number);
            bytes.resize(256, b' ');
            let file = OpenOptions::new().write(true).open(&path).map_err(text)?;
            file.write_all_at(&bytes, 0).map_err(text)?;
            close(file)?;
            said.push_str(&format!("write {register} {from} {} {client} {number}\n", now()));
        } else {
            let mut bytes = String::new();
            File::open(&path).map_err(text)?.read_to_string(&mut bytes).map_err(text)?;
            let line = bytes.lines().next().unwrap_or("");
            let (who, what) = parse(line).ok_or(format!("a register with {line:?}"))?;
            said.push_str(&format!("read {register} {from} {} {who} {what}\n", now()));
        }
    }
    Ok(said)
}

/// Closes; what FLUSH answers is the answer of close.
fn close(file: File) -> Result<(), String> {
    nix::unistd::close(file).map_err(|error| format!("close: {error}"))
}

struct Event {
    write: bool,
    register: u64,
    from: u64,
    until: u64,
    value: (u64, u64),
}

fn event(line: &str) -> Option<Event> {
    let (kind, numbers) = line.split_once(' ')?;
    let numbers: Vec<u64> = numbers.split(' ').filter_map(|word| word.parse().ok()).collect();
    let &[register, from, until, client, number] = &numbers[..] else { return None };
    Some(Event { write: kind == "write", register, from, until, value: (client, number) })
}

fn consistent(_: &Path, said: &[String], _: u64) -> Result<String, String> {
    let mut events = Vec::new();
    for line in said.iter().flat_map(|text| text.lines()) {
        events.push(event(line).ok_or(line)?);
    }
    let writes: Vec<&Event> = events.iter().filter(|event| event.write).collect();
    let mut reads = 0;
    for read in events.iter().filter(|event| !event.write) {
        reads += 1;
        let on = |write: &&&Event| write.register == read.register;
        let seen = writes.iter().filter(on).find(|write| write.value == read.value);
        // The first content is older than every write.
        let (began, ended) = match seen {
            Some(write) => (write.from, write.until),
            None if read.value == (99, 0) => (0, 0),
            None => {
                return Err(format!("register {}: nobody wrote {:?}", read.register, read.value));
            }
        };
        if began > read.until {
            return Err(format!("register {}: read before it was written", read.register));
        }
        let newer = |write: &&&Event| write.from > ended && write.until < read.from;
        if let Some(newer) = writes.iter().filter(on).find(newer) {
            let late = (read.from - newer.until) / 1000;
            let (register, old, new) = (read.register, read.value, newer.value);
            return Err(format!("register {register}: {old:?} read {late} µs after {new:?}"));
        }
    }
    if reads == 0 || writes.is_empty() {
        return Err("nothing happened".into());
    }
    Ok(format!("{} writes, {reads} reads", writes.len()))
}

/// A role: counts under a lock, in a file that stays open.
pub(crate) fn count(dir: &Path, numbers: &[u64]) -> Result<String, String> {
    let &[_, rounds] = numbers else { return Err("CLIENT ROUNDS".into()) };
    let path = dir.join("counter");
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(text)?;
    for _ in 0..rounds {
        file.lock().map_err(text)?;
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 0).map_err(text)?;
        let next = u64::from_le_bytes(bytes) + 1;
        file.write_all_at(&next.to_le_bytes(), 0).map_err(text)?;
        file.unlock().map_err(text)?;
    }
    Ok(String::new())
}

fn counted(dir: &Path, _: &[String], rounds: u64) -> Result<String, String> {
    let bytes = fs::read(dir.join("counter")).map_err(text)?;
    let counter = bytes.try_into().map(u64::from_le_bytes).map_err(|_| "no counter")?;
    if counter == TEN * rounds {
        Ok(format!("{counter} updates"))
    } else {
        Err(format!("{counter} of {} updates", TEN * rounds))
    }
}

/// What is under a name now. What was replaced while it is open lives until the last close, but not
/// over a restart of the server: each time it is found gone is said, to be judged.
fn read_whole(target: &Path, said: &mut String) -> Result<Vec<u8>, String> {
    loop {
        let mut file = File::open(target).map_err(|error| format!("open: {error}"))?;
        let (opened, mut bytes) = (now(), Vec::new());
        match file.read_to_end(&mut bytes) {
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {
                said.push_str(&format!("stale {opened} {}\n", now()));
            }
            Err(error) => return Err(format!("read: {error}")),
            Ok(_) => return Ok(bytes),
        }
    }
}

/// An open file is found gone only where the server restarted since it was opened.
fn stale_by_restart(said: &[String], restarts: &[(u64, u64)]) -> Result<(), String> {
    for line in said.iter().flat_map(|said| said.lines()) {
        let Some(times) = line.strip_prefix("stale ") else { continue };
        let times =
            times.split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let (opened, failed): (u64, u64) = times.ok_or("not two times")?;
        if !restarts.iter().any(|(began, ended)| opened <= *ended && failed >= *began) {
            return Err("read: ESTALE of an open file, without a restart".into());
        }
    }
    Ok(())
}

/// A role: renames new files over one name, and reads it.
pub(crate) fn replace(dir: &Path, numbers: &[u64]) -> Result<String, String> {
    let &[client, rounds] = numbers else { return Err("CLIENT ROUNDS".into()) };
    let (mine, target) = (dir.join(format!("new-{client}")), dir.join("target"));
    let mut said = String::new();
    for number in 0..rounds {
        if number % 3 == 0 {
            fs::write(&mine, record(client, number)).map_err(text)?;
            fs::rename(&mine, &target).map_err(|error| format!("rename: {error}"))?;
        }
        let bytes = read_whole(&target, &mut said)?;
        let text = String::from_utf8_lossy(&bytes);
        let whole = text.strip_suffix('\n').and_then(parse);
        whole.ok_or_else(|| format!("not a whole record: {text:?}"))?;
    }
    Ok(said)
}

fn replaced(dir: &Path, _: &[String], rounds: u64) -> Result<String, String> {
    let left = fs::read_dir(dir).map_err(text)?.filter_map(Result::ok);
    let mut left = left.map(|entry| entry.file_name().to_string_lossy().into_owned());
    match left.find(|name| name.starts_with("new-")) {
        Some(name) => Err(format!("{name} is left")),
        None => Ok(format!("{} renames and reads", TEN * rounds)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_gone_only_by_a_restart() {
        let said = |times: &str| [format!("stale {times}\n")];
        let restarts = [(100, 200)];
        assert!(stale_by_restart(&said("50 250"), &restarts).is_ok());
        assert!(stale_by_restart(&said("50 90"), &restarts).is_err(), "before it");
        assert!(stale_by_restart(&said("210 250"), &restarts).is_err(), "opened after it");
        assert!(stale_by_restart(&said("50 250"), &[]).is_err(), "there was none");
        assert!(stale_by_restart(&said("what"), &restarts).is_err());
    }

    fn registers(events: &[&str]) -> Result<String, String> {
        consistent(Path::new("/"), &[events.join("\n")], 0)
    }

    #[test]
    fn a_read_that_is_older_than_a_close_is_found() {
        let (first, second) = ("write 0 10 20 1 1", "write 0 30 40 2 1");
        assert!(registers(&[first, second, "read 0 50 60 2 1"]).is_ok());
        // While it is being written, both are right.
        assert!(registers(&[first, second, "read 0 35 60 1 1"]).is_ok());
        assert!(registers(&[first, second, "read 0 50 60 1 1"]).is_err());
        assert!(registers(&[first, "read 0 50 60 99 0"]).is_err(), "the first content");
        assert!(registers(&[first, "read 0 50 60 7 7"]).is_err(), "written by nobody");
        assert!(registers(&[first, "read 0 1 5 1 1"]).is_err(), "not written yet");
    }

    #[test]
    fn appends_that_are_lost_twice_or_mixed_are_found() {
        let dir = tempfile::tempdir().expect("tempdir");
        let judge = |records: &[Vec<u8>]| {
            fs::write(dir.path().join("log"), records.concat()).expect("write");
            appended(dir.path(), &[], 2)
        };
        let each = |number: u64| (0..TEN).map(move |client| record(client, number));
        let all: Vec<Vec<u8>> = each(0).chain(each(1)).collect();
        assert!(judge(&all).is_ok());
        assert!(judge(&all[1..]).is_err(), "lost");
        assert!(judge(&[&all[..], &all[..1]].concat()).is_err(), "twice");
        let mut mixed = all.clone();
        mixed[4].truncate(10);
        assert!(judge(&mixed).is_err(), "mixed");
    }
}
