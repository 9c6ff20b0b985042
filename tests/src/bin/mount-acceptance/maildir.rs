//! Maildir: many processes deliver (write and sync below tmp/, link or rename to new/), several
//! readers take from new/ to cur/. Each message is taken once, whole.

use std::collections::BTreeMap;
use std::fs;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use dafs_tests::mounted::Ending;
use dafs_tests::{Place, tree};

use crate::Mode;
use crate::role::{Player, play};

const WRITERS: u64 = 4;
const READERS: u64 = 3;

fn body(writer: u64, number: u64) -> Vec<u8> {
    tree::pattern(writer << 32 | number, 500 + (number as usize * 977) % 9000)
}

pub(crate) fn deliver_and_read(
    place: &mut Place,
    mode: Mode,
    disturbed: bool,
) -> Result<String, String> {
    let limit = Duration::from_secs(mode.pick(60, 900));
    let mounts = [place.path().to_path_buf(), place.mount_again("")];
    for name in ["tmp", "new", "cur"] {
        fs::create_dir(mounts[0].join(name)).map_err(|error| error.to_string())?;
    }
    let each = mode.pick(100, 5000);
    let at = |i: u64| mounts[i as usize % 2].as_path();
    let writers = (0..WRITERS).map(|i| play("deliver", at(i), &[i, each]));
    let mut writers: Vec<Player> = writers.collect();
    let readers = (0..READERS).map(|i| play("take", at(i), &[i, WRITERS * each]));
    let mut readers: Vec<Player> = readers.collect();
    if disturbed {
        for ending in [Ending::Killed, Ending::Orderly] {
            std::thread::sleep(Duration::from_millis(mode.pick(250, 5000)));
            place.restart(ending);
        }
    }
    for writer in &mut writers {
        writer.end(limit).map_err(|error| format!("a writer: {error}"))?;
    }
    let mut taken = 0;
    for reader in &mut readers {
        let said = reader.end(limit).map_err(|error| format!("a reader: {error}"))?;
        taken += said.parse::<u64>().map_err(|_| said)?;
    }
    let messages = WRITERS * each;
    if taken != messages {
        return Err(format!("{messages} messages, {taken} taken"));
    }
    check(at(0), each)?;
    check(at(1), each)?;
    Ok(format!("{messages} messages, each taken once"))
}

fn names(dir: &Path) -> Result<Vec<String>, String> {
    let list = fs::read_dir(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    list.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}

/// Everything lies in cur/, once and whole.
fn check(dir: &Path, each: u64) -> Result<(), String> {
    for name in ["tmp", "new"] {
        if let Some(left) = names(&dir.join(name))?.first() {
            return Err(format!("{name}/{left} is left"));
        }
    }
    let mut found = BTreeMap::new();
    for name in names(&dir.join("cur"))? {
        *found.entry(name).or_insert(0) += 1;
    }
    for writer in 0..WRITERS {
        for number in 0..each {
            let name = format!("{writer}.{number}");
            if found.remove(&name) != Some(1) {
                return Err(format!("{name} is not there once"));
            }
            let path = dir.join("cur").join(&name);
            let bytes = fs::read(path).map_err(|error| format!("{name}: {error}"))?;
            if bytes != body(writer, number) {
                return Err(format!("{name} is not what was written"));
            }
        }
    }
    if found.is_empty() { Ok(()) } else { Err(format!("{found:?} in cur")) }
}

/// A role: delivers so many messages.
pub(crate) fn deliver(dir: &Path, numbers: &[u64]) -> Result<String, String> {
    let &[writer, each] = numbers else { return Err("WRITER EACH".into()) };
    for number in 0..each {
        let name = format!("{writer}.{number}");
        let (tmp, new) = (dir.join("tmp").join(&name), dir.join("new").join(&name));
        let error = |what: &str, error: std::io::Error| format!("{name}: {what}: {error}");
        // A server that was killed forgets what was not synced and says so: then once more.
        let mut tries = 0..5;
        loop {
            let mut file = fs::File::create(&tmp).map_err(|e| error("create", e))?;
            match file.write_all(&body(writer, number)).and_then(|()| file.sync_all()) {
                Ok(()) => break,
                Err(e) => tries.next().map(|_| ()).ok_or_else(|| error("write", e))?,
            }
        }
        if number % 2 == 0 {
            fs::rename(&tmp, &new).map_err(|e| error("rename", e))?;
        } else {
            fs::hard_link(&tmp, &new).map_err(|e| error("link", e))?;
            fs::remove_file(&tmp).map_err(|e| error("unlink", e))?;
        }
    }
    Ok(String::new())
}

/// A role: takes messages until all are in cur/; says how many it took.
pub(crate) fn take(dir: &Path, numbers: &[u64]) -> Result<String, String> {
    let &[_, all] = numbers else { return Err("READER ALL".into()) };
    let (new, cur) = (dir.join("new"), dir.join("cur"));
    let (mut taken, start) = (0u64, Instant::now());
    while (names(&cur)?.len() as u64) < all {
        for name in names(&new)? {
            match fs::rename(new.join(&name), cur.join(&name)) {
                Ok(()) => taken += 1,
                // Somebody else was faster.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(format!("{name}: {error}")),
            }
        }
        if start.elapsed() > Duration::from_secs(900) {
            return Err("the messages do not come".into());
        }
    }
    Ok(taken.to_string())
}
