//! Sessions: names and what they stand for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_client::{Error, OpenOptions, Url};
use dafs_protocol::{SetAttr, SetTime, Status, Timestamp};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString};

use crate::error::{closed, forked, raise};
use crate::file::RawFile;
use crate::fork::Owned;
use crate::listing::ScanDir;
use crate::path::{GivenPath, below, text};
use crate::provider::providers;
use crate::stat::Stat;
use crate::{fork, interrupt};

/// How often a call is made whose outcome nobody knows.
const TRIES: usize = 8;

/// What a session and its files share.
pub struct Link {
    session: Owned<dafs_client::Session>,
    closed: AtomicBool,
}

impl Link {
    /// The session, for a call about `about`.
    pub fn session(&self, py: Python<'_>, about: Option<&[u8]>) -> PyResult<&dafs_client::Session> {
        let session = self.session.get().ok_or_else(|| forked(about, py))?;
        if self.closed.load(Ordering::Relaxed) { Err(closed("session")) } else { Ok(session) }
    }

    /// Runs a call; the exception names `about`.
    pub fn call<T: Send>(
        &self,
        py: Python<'_>,
        about: Option<&[u8]>,
        body: impl FnOnce(&dafs_client::Session) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let session = self.session(py, about)?;
        interrupt::call(py, || body(session))?.map_err(|error| self.failed(py, &error, about))
    }

    /// The exception for `error`.
    pub fn failed(&self, py: Python<'_>, error: &Error, about: Option<&[u8]>) -> PyErr {
        if *error == Error::Interrupted && self.closed.load(Ordering::Relaxed) {
            return closed("session");
        }
        raise(py, error, about)
    }
}

/// A session with a server. Its methods block, without the interpreter's lock; threads may share it.
/// Paths are relative to the path of its URL.
#[pyclass(frozen, subclass, module = "dafs._dafs")]
pub struct RawSession {
    pub link: Arc<Link>,
    base: Vec<u8>,
    url: String,
}

impl RawSession {
    /// From the root of the export.
    pub fn path(&self, given: &GivenPath) -> Vec<u8> {
        below(&self.base, &given.0)
    }

    /// Runs a call on a name.
    pub fn on<T: Send>(
        &self,
        py: Python<'_>,
        given: &GivenPath,
        body: impl FnOnce(&dafs_client::Session, &[u8]) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        let path = self.path(given);
        self.link.call(py, Some(&given.0), |session| body(session, &path))
    }

    /// As `on`, for what may be done twice: where the server ended so that nobody knows whether it was
    /// done, it is done again.
    pub fn on_again<T: Send>(
        &self,
        py: Python<'_>,
        given: &GivenPath,
        mut body: impl FnMut(&dafs_client::Session, &[u8]) -> Result<T, Error> + Send,
    ) -> PyResult<T> {
        self.on(py, given, move |session, path| {
            for _ in 1..TRIES {
                match body(session, path) {
                    Err(error) if error.status() == Some(Status::OutcomeUnknown) => {}
                    known => return known,
                }
            }
            body(session, path)
        })
    }

    fn set(
        &self,
        py: Python<'_>,
        given: &GivenPath,
        set: SetAttr,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        self.on_again(py, given, |session, path| {
            session.set_attr(path, set, !follow_symlinks).map(drop)
        })
    }
}

/// From nanoseconds since 1970.
fn timestamp(nanoseconds: i128) -> PyResult<SetTime> {
    let seconds = i64::try_from(nanoseconds.div_euclid(1_000_000_000));
    let rest = u32::try_from(nanoseconds.rem_euclid(1_000_000_000));
    match (seconds, rest) {
        (Ok(seconds), Ok(nanoseconds)) => Ok(SetTime::To(Timestamp { seconds, nanoseconds })),
        _ => Err(PyValueError::new_err("a time out of range")),
    }
}

#[pymethods]
impl RawSession {
    #[new]
    #[pyo3(signature = (url, *, key=None, export=None, **_other))]
    fn new(
        py: Python<'_>,
        url: &str,
        key: Option<Vec<u8>>,
        export: Option<GivenPath>,
        _other: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<RawSession> {
        let wrong = |error: &Error| raise(py, error, Some(url.as_bytes()));
        let parsed = Url::parse(url).map_err(|error| wrong(&error))?;
        let mut options = dafs_client::SessionOptions { key, ..Default::default() };
        options.export = export.map(|export| export.0).unwrap_or_default();
        options.apply_url(&parsed).map_err(|error| wrong(&error))?;
        let address = parsed.address();
        let connect = || dafs_client::Session::connect(providers(), &address, options);
        let session = interrupt::call(py, connect)?.map_err(|error| wrong(&error))?;
        let link = Link { session: Owned::new(session), closed: AtomicBool::new(false) };
        Ok(RawSession { link: Arc::new(link), base: parsed.path, url: url.into() })
    }

    /// As it was connected with.
    #[getter]
    fn url(&self) -> &str {
        &self.url
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.link.closed.load(Ordering::Relaxed)
    }

    /// Ends the session; its open files are closed. A second time does nothing.
    fn close(&self, py: Python<'_>) {
        let was_closed = self.link.closed.swap(true, Ordering::Relaxed);
        if let Some(session) = self.link.session.get().filter(|_| !was_closed) {
            py.detach(|| session.clone().close());
        }
    }

    /// What was granted, and counters.
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let session = self.link.session(py, None)?;
        let info = py.detach(|| session.info());
        let told = PyDict::new(py);
        told.set_item("transport", info.transport)?;
        told.set_item("protocol_version", info.protocol_version)?;
        told.set_item("uid", info.uid)?;
        told.set_item("export", PyBytes::new(py, &info.export))?;
        told.set_item("slots", info.attr.slots)?;
        told.set_item("data_bytes_max", info.attr.data_bytes_max)?;
        told.set_item("server_addresses", info.server_addresses)?;
        told.set_item("reconnects", info.reconnects)?;
        told.set_item("new_sessions", info.new_sessions)?;
        told.set_item("round_trips", info.round_trips)?;
        told.set_item("copied_bytes", info.copied_bytes)?;
        told.set_item("system_calls", info.system_calls)?;
        told.set_item("optimistic_hits", info.optimistic.hits)?;
        told.set_item("optimistic_stale", info.optimistic.stale)?;
        Ok(told)
    }

    /// Seconds of a round trip.
    fn ping(&self, py: Python<'_>) -> PyResult<f64> {
        Ok(self.link.call(py, None, dafs_client::Session::ping)?.as_secs_f64())
    }

    /// Attributes of a name.
    #[pyo3(signature = (path, *, follow_symlinks=true))]
    fn stat(&self, py: Python<'_>, path: GivenPath, follow_symlinks: bool) -> PyResult<Stat> {
        let attr = self.on(py, &path, |session, path| {
            if follow_symlinks { session.stat(path) } else { session.lstat(path) }
        })?;
        Ok(Stat(attr))
    }

    /// Attributes of the name itself.
    fn lstat(&self, py: Python<'_>, path: GivenPath) -> PyResult<Stat> {
        self.stat(py, path, false)
    }

    /// Names in a directory.
    #[pyo3(signature = (path=GivenPath::default()))]
    fn listdir<'py>(&self, py: Python<'py>, path: GivenPath) -> PyResult<Bound<'py, PyList>> {
        let entries = self.on(py, &path, |session, path| {
            session.read_dir(path)?.collect::<Result<Vec<_>, _>>()
        })?;
        let names = entries.iter().map(|entry| text(py, &entry.name));
        PyList::new(py, names.collect::<PyResult<Vec<_>>>()?)
    }

    /// Entries of a directory, with their attributes.
    #[pyo3(signature = (path=GivenPath::default()))]
    fn scandir(&self, py: Python<'_>, path: GivenPath) -> PyResult<ScanDir> {
        let entries = self.on(py, &path, |session, path| session.read_dir(path))?;
        Ok(ScanDir::new(self.link.clone(), path.0, self.base.clone(), entries))
    }

    /// Makes a directory.
    #[pyo3(signature = (path, mode=0o777))]
    fn mkdir(&self, py: Python<'_>, path: GivenPath, mode: u32) -> PyResult<()> {
        let mut is_doubtful = false;
        self.on_again(py, &path, |session, path| match session.mkdir(path, mode).map(drop) {
            Err(error) if error.status() == Some(Status::OutcomeUnknown) => {
                is_doubtful = true;
                Err(error)
            }
            // It was done the first time.
            Err(error) if error.status() == Some(Status::Exist) && is_doubtful => Ok(()),
            known => known,
        })
    }

    /// Removes a name that is not a directory.
    fn remove(&self, py: Python<'_>, path: GivenPath) -> PyResult<()> {
        self.on(py, &path, dafs_client::Session::remove)
    }

    /// The same as `remove`.
    fn unlink(&self, py: Python<'_>, path: GivenPath) -> PyResult<()> {
        self.remove(py, path)
    }

    /// Removes an empty directory.
    fn rmdir(&self, py: Python<'_>, path: GivenPath) -> PyResult<()> {
        self.on(py, &path, dafs_client::Session::remove_dir)
    }

    /// Renames; replaces what is there, or with `replace=False` fails.
    #[pyo3(signature = (source, target, *, replace=true))]
    fn rename(
        &self,
        py: Python<'_>,
        source: GivenPath,
        target: GivenPath,
        replace: bool,
    ) -> PyResult<()> {
        let to = self.path(&target);
        self.on(py, &source, |session, from| session.rename_with(from, &to, !replace, false))
    }

    /// Renames, and replaces what is there.
    fn replace(&self, py: Python<'_>, source: GivenPath, target: GivenPath) -> PyResult<()> {
        self.rename(py, source, target, true)
    }

    /// A hard link: `target` is a new name of `source`.
    fn link(&self, py: Python<'_>, source: GivenPath, target: GivenPath) -> PyResult<()> {
        let to = self.path(&target);
        self.on(py, &source, |session, from| session.link(from, &to).map(drop))
    }

    /// A symbolic link at `path` that says `target`.
    fn symlink(&self, py: Python<'_>, target: GivenPath, path: GivenPath) -> PyResult<()> {
        self.on(py, &path, |session, path| session.symlink(&target.0, path).map(drop))
    }

    /// What a symbolic link says.
    fn readlink<'py>(&self, py: Python<'py>, path: GivenPath) -> PyResult<Bound<'py, PyString>> {
        let target = self.on(py, &path, dafs_client::Session::read_link)?;
        text(py, &target)
    }

    /// Cuts a file, or makes it longer.
    fn truncate(&self, py: Python<'_>, path: GivenPath, length: u64) -> PyResult<()> {
        self.set(py, &path, SetAttr { size: Some(length), ..SetAttr::default() }, true)
    }

    /// Sets permission bits.
    #[pyo3(signature = (path, mode, *, follow_symlinks=true))]
    fn chmod(
        &self,
        py: Python<'_>,
        path: GivenPath,
        mode: u32,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let set = SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() };
        self.set(py, &path, set, follow_symlinks)
    }

    /// Sets owner and group; -1 stays.
    #[pyo3(signature = (path, uid, gid, *, follow_symlinks=true))]
    fn chown(
        &self,
        py: Python<'_>,
        path: GivenPath,
        uid: i64,
        gid: i64,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let number = |id: i64| match id {
            -1 => Ok(None),
            id => u32::try_from(id).map(Some),
        };
        let set = SetAttr { uid: number(uid)?, gid: number(gid)?, ..SetAttr::default() };
        self.set(py, &path, set, follow_symlinks)
    }

    /// Sets times: `ns`, access and modification in nanoseconds, or both to the server's clock.
    #[pyo3(signature = (path, *, ns=None, follow_symlinks=true))]
    fn utime_ns(
        &self,
        py: Python<'_>,
        path: GivenPath,
        ns: Option<(i128, i128)>,
        follow_symlinks: bool,
    ) -> PyResult<()> {
        let (accessed, modified) = match ns {
            Some((accessed, modified)) => (timestamp(accessed)?, timestamp(modified)?),
            None => (SetTime::Now, SetTime::Now),
        };
        let (accessed, modified) = (Some(accessed), Some(modified));
        self.set(py, &path, SetAttr { accessed, modified, ..SetAttr::default() }, follow_symlinks)
    }

    /// Whether the session's user may do all of `mode`: `os.R_OK`, `os.W_OK`, `os.X_OK`.
    fn access(&self, py: Python<'_>, path: GivenPath, mode: u8) -> PyResult<bool> {
        let wanted = mode & 7;
        let allowed = self.on(py, &path, |session, path| match session.access(path, wanted) {
            Err(error) if matches!(error.errno(), libc::ENOENT | libc::EACCES) => Ok(None),
            other => other.map(Some),
        })?;
        Ok(allowed.is_some_and(|allowed| allowed & wanted == wanted))
    }

    /// Fields of `os.statvfs_result`.
    #[pyo3(signature = (path=GivenPath::default()))]
    fn statvfs_fields(&self, py: Python<'_>, path: GivenPath) -> PyResult<[u64; 10]> {
        let attr = self.on(py, &path, dafs_client::Session::statfs)?;
        let block = u64::from(attr.block_size.max(1));
        let blocks = |bytes: u64| bytes / block;
        Ok([
            block,
            block,
            blocks(attr.bytes_total),
            blocks(attr.bytes_free),
            blocks(attr.bytes_available),
            attr.files_total,
            attr.files_free,
            attr.files_free,
            u64::from(attr.read_only),
            u64::from(attr.name_bytes_max),
        ])
    }

    /// The value of an extended attribute.
    fn getxattr<'py>(
        &self,
        py: Python<'py>,
        path: GivenPath,
        name: GivenPath,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let value = self.on(py, &path, |session, path| session.get_xattr(path, &name.0))?;
        Ok(PyBytes::new(py, &value))
    }

    /// Sets an extended attribute. `flags`: `os.XATTR_CREATE`, `os.XATTR_REPLACE`, or 0.
    #[pyo3(signature = (path, name, value, flags=0))]
    fn setxattr(
        &self,
        py: Python<'_>,
        path: GivenPath,
        name: GivenPath,
        value: &[u8],
        flags: u8,
    ) -> PyResult<()> {
        self.on(py, &path, |session, path| session.set_xattr(path, &name.0, value, flags))
    }

    /// Names of extended attributes.
    fn listxattr<'py>(
        &self,
        py: Python<'py>,
        path: GivenPath,
    ) -> PyResult<Vec<Bound<'py, PyString>>> {
        let names = self.on(py, &path, dafs_client::Session::list_xattr)?;
        names.iter().map(|name| text(py, name)).collect()
    }

    /// Removes an extended attribute.
    fn removexattr(&self, py: Python<'_>, path: GivenPath, name: GivenPath) -> PyResult<()> {
        self.on(py, &path, |session, path| session.remove_xattr(path, &name.0))
    }

    /// All that anybody wrote to the export is on disk when it returns.
    fn sync(&self, py: Python<'_>) -> PyResult<()> {
        self.link.call(py, None, dafs_client::Session::sync)
    }

    /// Copies a file within the server; answers how many bytes.
    #[pyo3(signature = (source, target, *, replace=true))]
    fn copy(
        &self,
        py: Python<'_>,
        source: GivenPath,
        target: GivenPath,
        replace: bool,
    ) -> PyResult<u64> {
        let to = self.path(&target);
        let copied =
            self.on(py, &source, |session, from| copy_file(session, from, &to, replace))?;
        copied.ok_or_else(|| {
            let told =
                format!("source and target are the same file: '{}'", target.0.escape_ascii());
            match text(py, &source.0) {
                Ok(name) => PyOSError::new_err((libc::EINVAL, told, name.unbind())),
                Err(error) => error,
            }
        })
    }

    /// An open file. `flags` as of `os.open`.
    #[pyo3(signature = (path, flags, mode=0o666))]
    fn open_raw(
        &self,
        py: Python<'_>,
        path: GivenPath,
        flags: i32,
        mode: u32,
    ) -> PyResult<RawFile> {
        let options = open_options(flags, mode);
        let file = if options.exclusive {
            self.on(py, &path, |session, path| session.open(path, options))?
        } else {
            self.on_again(py, &path, |session, path| session.open(path, options))?
        };
        Ok(RawFile::new(self.link.clone(), file, path.0, options))
    }

    /// How many forks lie between the process that connected and this one: 0 where it may be used.
    #[getter]
    fn _generation(&self) -> u32 {
        if self.link.session.get().is_some() { 0 } else { fork::generation() }
    }
}

/// Takes a URL apart: that of the server, with its options, and the path.
#[pyfunction]
pub fn split_url<'py>(py: Python<'py>, url: &str) -> PyResult<(String, Bound<'py, PyString>)> {
    let parsed = Url::parse(url).map_err(|error| raise(py, &error, Some(url.as_bytes())))?;
    Ok((parsed.with_path(b"").to_string(), text(py, &parsed.path)?))
}

/// The URL of a path on the server of another URL.
#[pyfunction]
pub fn join_url(py: Python<'_>, url: &str, path: GivenPath) -> PyResult<String> {
    let parsed = Url::parse(url).map_err(|error| raise(py, &error, Some(url.as_bytes())))?;
    Ok(parsed.with_path(&path.0).to_string())
}

/// As flags of open(2) say it.
pub fn open_options(flags: i32, mode: u32) -> OpenOptions {
    let has = |flag| flags & flag != 0;
    let way = flags & libc::O_ACCMODE;
    OpenOptions {
        read: way != libc::O_WRONLY,
        write: way != libc::O_RDONLY,
        create: has(libc::O_CREAT),
        exclusive: has(libc::O_EXCL),
        truncate: has(libc::O_TRUNC),
        append: has(libc::O_APPEND),
        no_follow: has(libc::O_NOFOLLOW),
        mode: mode & 0o7777,
        ..OpenOptions::default()
    }
}

/// How many bytes; `None` where both are the same file.
fn copy_file(
    session: &dafs_client::Session,
    from: &[u8],
    to: &[u8],
    replace: bool,
) -> Result<Option<u64>, Error> {
    /// Bytes of one request.
    const PIECE: u64 = 64 << 20;
    let source = session.open(from, OpenOptions::read())?;
    let attr = source.opened_attr();
    let options = OpenOptions {
        exclusive: !replace,
        truncate: false,
        mode: attr.mode & 0o777,
        ..OpenOptions::write()
    };
    let target = session.open(to, options).map_err(|error| error.with_path(to))?;
    // Another name of the source, which cutting it would empty.
    let there = target.opened_attr();
    if (there.device, there.inode) == (attr.device, attr.inode) {
        return Ok(None);
    }
    if there.size > 0 {
        let set = SetAttr { size: Some(0), ..SetAttr::default() };
        session.set_attr_open(&target, None, set, false)?.1?;
    }
    let mut copied = 0;
    loop {
        match source.copy_range(copied, &target, copied, PIECE)? {
            0 => break,
            bytes => copied += bytes,
        }
    }
    target.close()?;
    source.close()?;
    Ok(Some(copied))
}
