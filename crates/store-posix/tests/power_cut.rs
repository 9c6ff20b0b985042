//! What is on the disk when the power goes: the image of a block device is copied after each step
//! of a trace, and mounted again.
//!
//! The image has all that the device was told, in order: a device that loses or reorders what was
//! not flushed is not covered.

#[macro_use]
#[path = "../../store/tests/suite/mod.rs"]
mod suite;
mod trace;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use dafs_store::Disk;
use dafs_store::File;
use dafs_store_posix::{HandleKey, PosixOptions, PosixStore, ThreadRing};
use suite::{Fs, MAKE};
use trace::{Rng, Step};

const IMAGE_BYTES: u64 = 24 << 20;

/// In memory where there is such a place: a real disk would be flushed at each mount.
fn home() -> tempfile::TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory.or_else(|_| tempfile::tempdir()).expect("directory")
}

/// A file system in an image, mounted.
struct Mounted {
    dir: PathBuf,
}

fn run(program: &str, args: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(args).output().ok()?;
    output.status.success().then_some(output)
}

fn mount(image: &Path, dir: &Path) -> Option<Mounted> {
    std::fs::create_dir_all(dir).ok()?;
    let (image, text) = (image.to_str()?, dir.to_str()?);
    run("mount", &["-o", "loop", image, text])?;
    Some(Mounted { dir: dir.into() })
}

impl Drop for Mounted {
    fn drop(&mut self) {
        assert!(run("umount", &[self.dir.to_str().expect("a plain path")]).is_some(), "umount");
    }
}

/// What one file may be after a cut: as synced last, or as any step since has left it, block by
/// block.
struct May {
    since_sync: Vec<Vec<u8>>,
}

impl May {
    fn check(&self, found: &[u8]) -> Result<(), String> {
        if !self.since_sync.iter().any(|state| state.len() == found.len()) {
            let sizes: Vec<_> = self.since_sync.iter().map(Vec::len).collect();
            return Err(format!("{} bytes, not one of {sizes:?}", found.len()));
        }
        for (number, block) in found.chunks(4096).enumerate() {
            let at = number * 4096;
            // Each byte is old or new, or a hole of what a step added.
            let is_known = |index: usize, byte: u8| {
                let states = self.since_sync.iter();
                let mut values = states.map(|state| state.get(at + index).copied().unwrap_or(0));
                values.any(|value| value == byte)
            };
            if let Some(wrong) = block.iter().enumerate().position(|(i, byte)| !is_known(i, *byte))
            {
                return Err(format!("byte {} is {}", at + wrong, block[wrong]));
            }
        }
        Ok(())
    }
}

fn cut_after_each_step(make: &[&str], seed: u64, steps: usize) -> Result<(), String> {
    let home = home();
    let (image, copy) = (home.path().join("image"), home.path().join("copy"));
    std::fs::File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES)).expect("image");
    let mut args = make[1..].to_vec();
    args.push(image.to_str().expect("a plain path"));
    run(make[0], &args).ok_or(format!("{} failed", make[0]))?;
    let mounted = mount(&image, &home.path().join("mnt")).ok_or("cannot mount")?;
    let (disk, key) = (Disk::Direct, Some(HandleKey([7; 16])));
    let options = PosixOptions { disk, key, ..PosixOptions::default() };
    let store = PosixStore::open(&mounted.dir, options).map_err(|error| error.to_string())?;
    let ring = ThreadRing::open().expect("a ring");
    let opened = Fs::new(&*store).open("f", MAKE).expect("made");
    let file: Arc<dyn File> = opened.file;
    let path = mounted.dir.join("f");
    file.sync(false).wait().expect("synced");
    let (mut model, mut rng) = (Vec::new(), Rng(seed));
    let mut may = May { since_sync: vec![Vec::new()] };
    for number in 0..steps {
        let step = Step::random(&mut rng, model.len() as u64);
        step.change(&mut model);
        step.act(&file, &path);
        match step {
            Step::Sync(_) => may.since_sync = vec![model.clone()],
            // Several writes of one step may come in any order.
            Step::Write(ref ranges, _) => {
                let before = may.since_sync.last().cloned().unwrap_or_default();
                for (offset, len) in ranges {
                    let mut grown = before.clone();
                    grown.resize(grown.len().max((offset + len) as usize), 0);
                    may.since_sync.push(grown);
                }
                may.since_sync.push(model.clone());
            }
            _ => may.since_sync.push(model.clone()),
        }
        std::fs::copy(&image, &copy).expect("the power goes");
        let after = mount(&copy, &home.path().join("after")).expect("it comes back");
        let found = std::fs::read(after.dir.join("f")).expect("the file");
        let context = |what| format!("seed {seed}, step {number} {step:?}: {what}");
        may.check(&found).map_err(context)?;
    }
    assert!(store.direct_transfers() > 10, "{} direct", store.direct_transfers());
    // All that holds the mount.
    drop((ring, file, store));
    Ok(())
}

/// Skipped where no image can be mounted.
fn can_mount() -> bool {
    let home = home();
    let image = home.path().join("image");
    std::fs::File::create(&image).and_then(|file| file.set_len(IMAGE_BYTES)).expect("image");
    run("mkfs.ext4", &["-q", image.to_str().expect("a plain path")]).is_some()
        && mount(&image, &home.path().join("mnt")).is_some()
}

#[test]
fn committed_bytes_and_lengths_survive_a_power_cut() {
    if !can_mount() {
        return eprintln!("skipped: mounts no images here (needs root and loop devices)");
    }
    let small_blocks = ["mkfs.ext4", "-q", "-b", "1024"];
    for (make, seed) in [(&["mkfs.ext4", "-q", "-b", "4096"][..], 77), (&small_blocks[..], 78)] {
        if let Err(what) = cut_after_each_step(make, seed, 30) {
            panic!("{make:?}: {what}");
        }
    }
}

#[test]
fn a_lost_byte_is_noticed() {
    let may = May { since_sync: vec![vec![1; 8192], vec![2; 9000]] };
    assert!(may.check(&[1; 8192]).is_ok() && may.check(&[2; 9000]).is_ok());
    assert!(may.check(&[[1; 4096], [2; 4096]].concat()).is_ok());
    assert!(may.check(&[1; 8191]).is_err());
    assert!(may.check(&[&[1; 8000][..], &[0; 192]].concat()).is_err());
}
