//! Free memory that is marked (`dafs_fabric::poison`) with one pattern in all processes of a run, so
//! that each knows the others' when it sees it: servers, clients and mounts, and whoever looks at
//! the files that were served.
//!
//! Also a module of the tests of `crates/cli`: it uses nothing of this crate.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use dafs_fabric::poison;

/// Bytes that are looked at in a directory, and in one file of it.
const DIRECTORY_BYTES_MAX: u64 = 64 << 20;
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Names that are looked at.
const NAMES_MAX: usize = 20_000;
/// Read at a time, beside a run of the pattern that began before.
const PIECE_BYTES: usize = 1 << 20;
const RUN_BYTES: usize = 2 * poison::PATTERN_BYTES;
/// Of a last block, which may be longer than the file.
const PAGE_BYTES: u64 = 4096;

/// The pattern as digits: what the environment says, else one that is drawn; empty where that says
/// that nothing is marked. From now on this process looks for it in what its sessions read.
///
/// # Panics
/// When the environment says something else.
pub fn pattern() -> &'static str {
    static KNOWN: OnceLock<String> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let random = |bytes: &mut [u8]| {
            let source = File::open("/dev/urandom").and_then(|mut file| file.read_exact(bytes));
            source.expect("the system has randomness");
        };
        match std::env::var_os(poison::VARIABLE) {
            Some(_) => {
                poison::switch_by_environment(random).unwrap_or_else(|text| panic!("{text}"))
            }
            None => {
                let mut pattern = [0; poison::PATTERN_BYTES];
                random(&mut pattern);
                poison::switch_on(pattern);
            }
        }
        poison::digits().unwrap_or_default()
    })
}

/// Looks for the pattern in the regular files below a directory, and in what `behind` gives of a
/// file's last block after its end; where it is. What cannot be read is passed over.
pub fn found_in(dir: &Path, behind: impl Fn(&File, u64) -> Vec<u8>) -> Option<String> {
    if pattern().is_empty() {
        return None;
    }
    let device = fs::metadata(dir).ok()?.dev();
    let (mut dirs, mut names, mut left) = (vec![dir.to_path_buf()], 0, DIRECTORY_BYTES_MAX);
    while let Some(dir) = dirs.pop() {
        for path in fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path()) {
            names += 1;
            if names > NAMES_MAX || left == 0 {
                return None;
            }
            match fs::symlink_metadata(&path) {
                Ok(found) if found.dev() != device => {}
                Ok(found) if found.is_dir() => dirs.push(path),
                Ok(found) if found.is_file() => {
                    let found = look_at(&path, found.len(), &mut left, &behind);
                    if let Some(place) = found {
                        return Some(format!("free memory in {}, {place}", path.display()));
                    }
                }
                _ => {}
            }
        }
    }
    None
}

fn open(path: &PathBuf) -> Option<File> {
    // Whoever is not the owner may not leave the times alone.
    let with = |flags| File::options().read(true).custom_flags(libc::O_NOFOLLOW | flags).open(path);
    with(libc::O_NONBLOCK | libc::O_NOATIME).or_else(|_| with(libc::O_NONBLOCK)).ok()
}

fn look_at(
    path: &PathBuf,
    len: u64,
    left: &mut u64,
    behind: &impl Fn(&File, u64) -> Vec<u8>,
) -> Option<String> {
    let file = open(path)?;
    if !len.is_multiple_of(PAGE_BYTES) && poison::is_in(&behind(&file, len)) {
        return Some(format!("after its end at {len}"));
    }
    let mut limited = file.take(FILE_BYTES_MAX.min(*left));
    let (mut bytes, mut at) = (Vec::new(), 0);
    loop {
        let read = (&mut limited).take(PIECE_BYTES as u64).read_to_end(&mut bytes).unwrap_or(0);
        if poison::is_in(&bytes) {
            return Some(format!("within the MiB from {at} on"));
        }
        *left -= read as u64;
        at += read;
        if read < PIECE_BYTES {
            return None;
        }
        bytes.drain(..bytes.len().saturating_sub(RUN_BYTES));
    }
}
