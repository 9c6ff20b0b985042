//! Mounts and unmounts: root by system calls, others by `fusermount3`.

use std::ffi::CString;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::channel::Channel;
use super::init::MAX_WRITE;
use super::mount_table::{self, Mounted};
use crate::sys;

const HELPER: &str = "fusermount3";

/// How to mount.
#[derive(Debug, Clone, Default)]
pub struct MountOptions {
    /// What the table of mounts shows as the source.
    pub source: String,
    /// Others than who mounts may use it.
    pub allow_other: bool,
    /// Words of `mount(8)` that the kernel knows for every file system: `ro`, `nosuid`, `nodev`,
    /// `noexec`, `noatime` and so on. Others are ignored.
    pub words: Vec<String>,
}

/// Why a mount or unmount failed.
#[derive(Debug)]
pub enum MountError {
    /// There is nothing at the mount point.
    Missing,
    /// It is no directory.
    NotADirectory,
    /// This user may not.
    NotPermitted,
    /// The kernel has no FUSE, or this machine no `/dev/fuse`.
    NoDevice,
    /// Only root mounts without `fusermount3`.
    NoHelper,
    /// What `fusermount3` said.
    Helper(String),
    /// One of these is mounted there, alive or not.
    AlreadyMounted,
    /// None of these is mounted there.
    NotMounted,
    /// Somebody has files open or is in a directory.
    Busy,
    /// Anything else.
    System(io::Error),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MountError::Missing => "no such directory",
            MountError::NotADirectory => "not a directory",
            MountError::NotPermitted => "permission denied",
            MountError::NoDevice => "no /dev/fuse here (try: modprobe fuse)",
            MountError::NoHelper => "fusermount3 is missing (package fuse3); only root needs none",
            MountError::Helper(text) => text,
            MountError::AlreadyMounted => "already mounted (dafs umount ends a mount)",
            MountError::NotMounted => "not mounted",
            MountError::Busy => "in use (dafs umount --lazy detaches it)",
            MountError::System(error) => return error.fmt(f),
        })
    }
}

impl std::error::Error for MountError {}

impl From<io::Error> for MountError {
    fn from(error: io::Error) -> MountError {
        match error.raw_os_error() {
            Some(libc::ENOENT) => MountError::Missing,
            Some(libc::ENOTDIR) => MountError::NotADirectory,
            Some(libc::EPERM | libc::EACCES) => MountError::NotPermitted,
            Some(libc::EBUSY) => MountError::Busy,
            Some(libc::ENODEV | libc::ENXIO) => MountError::NoDevice,
            _ => MountError::System(error),
        }
    }
}

/// Something mounted by this process.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
}

impl Mount {
    /// Mounts at `dir`. Calls to it wait until the channel is served.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn new(dir: &Path, options: &MountOptions) -> Result<(Mount, Channel), MountError> {
        let place = mount_table::place(dir)?;
        // Before anything asks what is at the place: a dead mount does not answer.
        if mount_table::find(&place)?.is_some() {
            return Err(MountError::AlreadyMounted);
        }
        let dir = fs::canonicalize(&place)?;
        if mount_table::find(&dir)?.is_some() {
            return Err(MountError::AlreadyMounted);
        }
        let meta = fs::metadata(&dir)?;
        if !meta.is_dir() {
            return Err(MountError::NotADirectory);
        }
        let channel = if sys::effective_uid() == 0 {
            mount_as_root(&dir, meta.mode(), options)?
        } else {
            mount_by_helper(&dir, options)?
        };
        Ok((Mount { dir }, channel))
    }

    /// Where, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Unmounts; if somebody uses it, detaches it from the tree, and it ends when nobody does any
    /// more. True: nobody does.
    ///
    /// # Errors
    /// [`MountError`].
    pub fn end(&self) -> Result<bool, MountError> {
        match unmount(&self.dir, Unmount::default()) {
            Ok(()) | Err(MountError::NotMounted) => Ok(true),
            Err(_) => {
                unmount(&self.dir, Unmount { lazy: true, force: false })?;
                Ok(false)
            }
        }
    }
}

fn mount_as_root(dir: &Path, mode: u32, options: &MountOptions) -> Result<Channel, MountError> {
    let channel = open_device()?;
    let fd = channel.as_fd().as_raw_fd();
    let (uid, gid) = (sys::effective_uid(), sys::effective_gid());
    let mode = mode & libc::S_IFMT;
    let mut data = format!(
        "fd={fd},rootmode={mode:o},user_id={uid},group_id={gid},max_read={MAX_WRITE},\
         default_permissions"
    );
    if options.allow_other {
        data += ",allow_other";
    }
    let flags = options.words.iter().fold(0, |flags, word| apply(flags, word));
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| MountError::Missing);
    let (source, data) = (text(options.source.as_bytes())?, text(data.as_bytes())?);
    let dir = text(dir.as_os_str().as_bytes())?;
    sys::mount(&source, &dir, c"fuse.dafs", flags, &data).map_err(|error| match error {
        error if error.raw_os_error() == Some(libc::EBUSY) => MountError::AlreadyMounted,
        error => error.into(),
    })?;
    Ok(channel)
}

fn open_device() -> Result<Channel, MountError> {
    Channel::open().map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => MountError::NoDevice,
        _ => error.into(),
    })
}

/// What a word of `mount(8)` makes of the flags.
fn apply(flags: u64, word: &str) -> u64 {
    let Some((flag, on)) = flag(word) else { return flags };
    if on { flags | flag } else { flags & !flag }
}

fn flag(word: &str) -> Option<(u64, bool)> {
    Some(match word {
        "ro" => (libc::MS_RDONLY, true),
        "rw" => (libc::MS_RDONLY, false),
        "nosuid" => (libc::MS_NOSUID, true),
        "suid" => (libc::MS_NOSUID, false),
        "nodev" => (libc::MS_NODEV, true),
        "dev" => (libc::MS_NODEV, false),
        "noexec" => (libc::MS_NOEXEC, true),
        "exec" => (libc::MS_NOEXEC, false),
        "noatime" => (libc::MS_NOATIME, true),
        "atime" => (libc::MS_NOATIME, false),
        "nodiratime" => (libc::MS_NODIRATIME, true),
        "diratime" => (libc::MS_NODIRATIME, false),
        "relatime" => (libc::MS_RELATIME, true),
        "dirsync" => (libc::MS_DIRSYNC, true),
        _ => return None,
    })
}

/// True for words that [`MountOptions::words`] takes.
pub fn is_mount_word(word: &str) -> bool {
    flag(word).is_some()
}

fn mount_by_helper(dir: &Path, options: &MountOptions) -> Result<Channel, MountError> {
    if !Path::new("/dev/fuse").exists() {
        return Err(MountError::NoDevice);
    }
    let source = options.source.replace('\\', "\\\\").replace(',', "\\,");
    let mut words = vec![format!("fsname={source}"), "subtype=dafs".into()];
    words.push(format!("max_read={MAX_WRITE}"));
    words.push("default_permissions".into());
    if options.allow_other {
        words.push("allow_other".into());
    }
    // It knows fewer words than the kernel.
    let known = ["ro", "rw", "nosuid", "nodev", "noexec", "exec", "noatime", "atime", "dirsync"];
    words.extend(options.words.iter().filter(|word| known.contains(&word.as_str())).cloned());
    let (ours, theirs) = UnixStream::pair()?;
    let mut helper = Command::new(HELPER);
    helper.arg("-o").arg(words.join(",")).arg("--").arg(dir);
    // Its standard input is the socket by which it sends the descriptor.
    helper.env("_FUSE_COMMFD", "0").stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs)));
    run_helper(helper)?;
    match sys::receive_descriptor(&ours)? {
        Some(fd) => Ok(Channel::from_fd(fd)),
        None => Err(MountError::Helper("fusermount3 gave no descriptor".into())),
    }
}

fn run_helper(mut helper: Command) -> Result<(), MountError> {
    let output = helper.stdout(Stdio::null()).stderr(Stdio::piped()).output();
    drop(helper); // With its end of the socket.
    let output = output.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => MountError::NoHelper,
        _ => error.into(),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().next().unwrap_or("fusermount3 failed");
    Err(MountError::Helper(said.trim().to_owned()))
}

/// How to unmount.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unmount {
    /// Detach it now; it ends when nobody uses it any more.
    pub lazy: bool,
    /// Calls under way fail, and nothing is left of the mount, also when it is in use.
    pub force: bool,
}

impl Unmount {
    /// What is in use is detached.
    fn detaches(self) -> bool {
        self.lazy || self.force
    }
}

/// Unmounts what is mounted at `dir`, also when its process is gone or its server lost.
///
/// # Errors
/// [`MountError`].
pub fn unmount(dir: &Path, how: Unmount) -> Result<(), MountError> {
    let mut place = mount_table::place(dir)?;
    let mut found = mount_table::find(&place)?;
    if found.is_none() {
        // Perhaps a symbolic link leads there.
        place = fs::canonicalize(&place)?;
        found = mount_table::find(&place)?;
    }
    let mounted = found.ok_or(MountError::NotMounted)?;
    if how.force {
        abort(&mounted);
    }
    let result = if sys::effective_uid() == 0 {
        unmount_as_root(&place, how)
    } else {
        unmount_by_helper(&place, how)
    };
    match result {
        // The process that served it was faster, when its connection ended.
        Err(_) if how.force && mount_table::find(&place)?.is_none() => Ok(()),
        result => result,
    }
}

/// Ends the connection between the kernel and the process that serves the mount, by the file that
/// is there for that. Where it is not, `umount2` does it.
fn abort(mounted: &Mounted) {
    let file = format!("/sys/fs/fuse/connections/{}/abort", mounted.minor);
    if let Err(error) = fs::write(&file, "1") {
        tracing::debug!(%error, file, "cannot end the connection");
    }
}

fn unmount_as_root(place: &Path, how: Unmount) -> Result<(), MountError> {
    let text = place.as_os_str().as_bytes().to_vec();
    let dir = CString::new(text).map_err(|_| MountError::Missing)?;
    let flags = libc::UMOUNT_NOFOLLOW | if how.force { libc::MNT_FORCE } else { 0 };
    match sys::unmount(&dir, flags) {
        Err(_) if how.detaches() => {
            Ok(sys::unmount(&dir, libc::UMOUNT_NOFOLLOW | libc::MNT_DETACH)?)
        }
        result => result.map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => MountError::NotMounted,
            _ => error.into(),
        }),
    }
}

fn unmount_by_helper(place: &Path, how: Unmount) -> Result<(), MountError> {
    let run = |lazy: &[&str]| {
        let mut helper = Command::new(HELPER);
        helper.arg("-u").args(lazy).arg("--").arg(place).stdin(Stdio::null());
        run_helper(helper)
    };
    match run(&[]) {
        Err(MountError::Helper(_)) if how.detaches() => run(&["-z"]),
        Err(MountError::Helper(said)) if said.contains("busy") => Err(MountError::Busy),
        result => result,
    }
}
