//! Disks that fail as wanted: images behind loop devices. Needs root.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

const MIB: u64 = 1 << 20;

/// A program that must succeed.
///
/// # Errors
/// What it said.
pub(crate) fn tool(program: &str, args: &[&str], paths: &[&Path]) -> Result<(), String> {
    let output = Command::new(program).args(args).args(paths).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

/// A mounted file system, unmounted when it is dropped.
pub(crate) struct Mounted(PathBuf);

impl Mounted {
    fn new(args: &[&str], what: &Path, at: PathBuf) -> Result<Mounted, String> {
        dafs_tests::machine::loop_devices()?;
        fs::create_dir_all(&at).map_err(|error| error.to_string())?;
        tool("mount", args, &[what, &at]).map(|()| Mounted(at))
    }

    /// Where.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Its servers have ended before it. Whoever holds it all the same, holds it unnamed.
        if tool("umount", &[], &[&self.0]).is_err() {
            let _ = tool("umount", &["-l"], &[&self.0]);
        }
    }
}

/// Takes the space of a file system, until it is dropped.
pub(crate) struct Ballast(PathBuf);

impl Ballast {
    /// All but so many bytes.
    pub(crate) fn all_but(dir: &Path, left: u64) -> Result<Ballast, String> {
        let text = |error: std::io::Error| error.to_string();
        let ballast = Ballast(dir.join("ballast"));
        let mut file = File::create(&ballast.0).map_err(text)?;
        for piece in [1 << 20, 4096] {
            loop {
                match file.write_all(&vec![0xb5; piece]).and_then(|()| file.sync_data()) {
                    Ok(()) => {}
                    Err(error) if error.kind() == ErrorKind::StorageFull => break,
                    Err(error) => return Err(text(error)),
                }
            }
        }
        let size = file.metadata().map_err(text)?.len();
        file.set_len(size.saturating_sub(left)).and_then(|()| file.sync_all()).map_err(text)?;
        Ok(ballast)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// An ext4 whose device has less space than it says: what was not written before fails when it
/// reaches the device.
pub(crate) struct Thin {
    pub(crate) mounted: Mounted,
    pool: Mounted,
    _dir: tempfile::TempDir,
}

impl Thin {
    pub(crate) fn new() -> Result<Thin, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let pool = ["-t", "tmpfs", "-o", "size=32m"];
        let pool = Mounted::new(&pool, Path::new("none"), dir.path().join("pool"))?;
        let image = pool.path().join("image");
        let file = File::create(&image).and_then(|file| file.set_len(128 * MIB));
        file.map_err(|error| error.to_string())?;
        let options = ["-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=0,nodiscard"];
        tool("mkfs.ext4", &options, &[&image])?;
        let options = ["-o", "loop,errors=continue"];
        let mounted = Mounted::new(&options, &image, dir.path().join("mount"))?;
        Ok(Thin { mounted, pool, _dir: dir })
    }

    /// No space is left below, until what is returned is dropped.
    pub(crate) fn exhaust(&self) -> Result<Ballast, String> {
        Ballast::all_but(self.pool.path(), 0)
    }
}

/// An ext4 whose device can be made to fail all writes.
pub(crate) struct Mortal {
    pub(crate) mounted: Mounted,
    image: OwnedFd,
    _dir: tempfile::TempDir,
}

impl Mortal {
    pub(crate) fn new() -> Result<Mortal, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let image = memfd_create("image", MFdFlags::MFD_ALLOW_SEALING);
        let image = File::from(image.map_err(|errno| errno.to_string())?);
        image.set_len(64 * MIB).map_err(|error| error.to_string())?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), image.as_raw_fd());
        let path = Path::new(&path);
        tool("mkfs.ext4", &["-q", "-F", "-O", "^has_journal"], &[path])?;
        let options = ["-o", "loop,errors=continue"];
        let mounted = Mounted::new(&options, path, dir.path().join("mount"))?;
        Ok(Mortal { mounted, image: image.into(), _dir: dir })
    }

    /// Every write fails from now on. Reads go on.
    pub(crate) fn kill(&self) -> Result<(), String> {
        let seal = FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE);
        fcntl(&self.image, seal).map(drop).map_err(|errno| errno.to_string())
    }
}

/// A btrfs, whose checksums tell of bytes that were changed below it, and which has quotas.
pub(crate) struct Checked {
    mounted: Option<Mounted>,
    dir: tempfile::TempDir,
}

impl Checked {
    pub(crate) fn new() -> Result<Checked, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let image = dir.path().join("image");
        let file = File::create(&image).and_then(|file| file.set_len(200 * MIB));
        file.map_err(|error| error.to_string())?;
        tool("mkfs.btrfs", &["-q", "-d", "single", "-m", "single"], &[&image])?;
        let mut checked = Checked { mounted: None, dir };
        checked.mount().map(|()| checked)
    }

    fn mount(&mut self) -> Result<(), String> {
        let (image, at) = (self.dir.path().join("image"), self.dir.path().join("mount"));
        self.mounted = Some(Mounted::new(&["-o", "loop"], &image, at)?);
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        self.mounted.as_ref().map_or(Path::new(""), Mounted::path)
    }

    /// Changes a byte on the disk, where these lie.
    pub(crate) fn spoil(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.mounted = None;
        let image = self.dir.path().join("image");
        let all = fs::read(&image).map_err(|error| error.to_string())?;
        let at = all.chunks(4096).position(|block| block.starts_with(bytes));
        let at = at.ok_or("the bytes are not on the disk")? as u64 * 4096 + 9;
        let file = OpenOptions::new().write(true).open(&image);
        let spoilt = file.and_then(|file| file.write_all_at(b"?", at));
        spoilt.map_err(|error| error.to_string())?;
        self.mount()
    }
}
