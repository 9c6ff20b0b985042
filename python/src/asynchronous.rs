//! Calls that do not block: each has a callable that gets the result and the exception, one of them
//! `None`, in a thread of the session.

use std::sync::Arc;

use dafs_client::{Call, Done, Error, OpenOptions, Output};
use dafs_fabric::Buffer;
use dafs_protocol::{SetAttr, Stability};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::buffer::PyMemory;
use crate::file::{RawFile, offset_of};
use crate::path::{GivenPath, text};
use crate::session::{Link, RawSession, open_options};
use crate::stat::Stat;
use crate::{finish, interrupt, sys};

/// What becomes of an answer.
enum Wanted {
    Nothing,
    Stat,
    Target,
    File(OpenOptions),
    /// The file's size, and bytes.
    Whole,
    Bytes,
    Count,
    /// Names with attributes, and the cookie to go on with, if any.
    Entries,
    /// As `Count`; the buffer goes back.
    CountInto(Py<PyMemory>),
}

/// A call under way.
struct Asked {
    link: Arc<Link>,
    about: Vec<u8>,
    wanted: Wanted,
    then: Py<PyAny>,
}

impl Asked {
    /// In the thread that calls back.
    fn answer(self, mut done: Done) {
        // Without an interpreter nobody waits for it.
        finish::callback(move |py| {
            let result = std::mem::replace(&mut done.result, Err(Error::Interrupted));
            let outcome = match result {
                Ok(output) => self.value(py, output, &mut done.buffer),
                Err(error) => Err(self.link.failed(py, &error, Some(&self.about))),
            };
            if let Wanted::CountInto(memory) = &self.wanted {
                memory.get().put_back(done.buffer.take());
            }
            let called = match outcome {
                Ok(value) => self.then.call1(py, (value, py.None())),
                Err(error) => self.then.call1(py, (py.None(), error.into_value(py))),
            };
            if let Err(error) = called {
                error.write_unraisable(py, Some(self.then.bind(py)));
            }
        });
    }

    fn value(
        &self,
        py: Python<'_>,
        output: Output,
        buffer: &mut Option<Buffer>,
    ) -> PyResult<Py<PyAny>> {
        let bytes = |len: usize| {
            let data = buffer.as_ref().and_then(|buffer| buffer.get(..len)).unwrap_or(&[]);
            PyBytes::new(py, data)
        };
        let count = output.bytes();
        Ok(match (&self.wanted, output) {
            (Wanted::Nothing, _) => py.None(),
            (Wanted::Count | Wanted::CountInto(_), _) => {
                count.into_pyobject(py)?.into_any().unbind()
            }
            (Wanted::Bytes, _) => bytes(count).into_any().unbind(),
            (Wanted::Stat, Output::Attr(attr)) => Py::new(py, Stat(attr))?.into_any(),
            (Wanted::Stat, Output::Object(node)) => Py::new(py, Stat(node.attr))?.into_any(),
            (Wanted::Target, Output::Target(target)) => text(py, &target)?.into_any().unbind(),
            (Wanted::File(options), Output::File(file, _)) => {
                let file = RawFile::new(self.link.clone(), file, self.about.clone(), *options);
                Py::new(py, file)?.into_any()
            }
            (Wanted::Whole, Output::Got { attr, bytes: len }) => {
                (attr.size, bytes(len)).into_pyobject(py)?.into_any().unbind()
            }
            (Wanted::Entries, Output::Entries { entries, end, .. }) => {
                let next = entries.last().filter(|_| !end).map(|last| last.cookie);
                let names = PyList::empty(py);
                for entry in &entries {
                    if !matches!(entry.name.as_slice(), b"." | b"..") {
                        let attr = entry.attr.map(Stat);
                        names.append((text(py, &entry.name)?, attr))?;
                    }
                }
                (names, next).into_pyobject(py)?.into_any().unbind()
            }
            (_, other) => {
                let error = Error::PeerProtocol(format!("an unexpected answer: {other:?}"));
                return Err(self.link.failed(py, &error, Some(&self.about)));
            }
        })
    }
}

/// Fails in a signal handler, and at the end of the interpreter.
fn may_begin() -> PyResult<()> {
    interrupt::check_handler()?;
    if finish::ends() {
        return Err(PyRuntimeError::new_err(
            "the interpreter ends: nobody would hear of the answer",
        ));
    }
    Ok(())
}

fn begin(py: Python<'_>, session: &dafs_client::Session, call: Call, asked: Asked) -> PyResult<()> {
    may_begin()?;
    py.detach(|| session.call_then(call, move |done| asked.answer(done)));
    Ok(())
}

/// Memory that is filled before it is looked at.
fn room(session: &dafs_client::Session, bytes: usize) -> PyResult<Buffer> {
    let made = session.buffer_to_fill(bytes);
    made.map_err(|error| PyMemoryError::new_err(error.to_string()))
}

impl RawSession {
    fn begin(
        &self,
        py: Python<'_>,
        about: GivenPath,
        wanted: Wanted,
        call: Call,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let session = self.link.session(py, Some(&about.0))?;
        let asked = Asked { link: self.link.clone(), about: about.0, wanted, then };
        begin(py, session, call, asked)
    }

    fn begin_set(
        &self,
        py: Python<'_>,
        given: GivenPath,
        set: SetAttr,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let call = Call::SetAttr { path: self.path(&given), set, no_follow: false };
        self.begin(py, given, Wanted::Nothing, call, then)
    }
}

#[pymethods]
impl RawSession {
    fn begin_ping(&self, py: Python<'_>, then: Py<PyAny>) -> PyResult<()> {
        self.begin(py, GivenPath::default(), Wanted::Nothing, Call::Ping, then)
    }

    fn begin_sync(&self, py: Python<'_>, then: Py<PyAny>) -> PyResult<()> {
        self.begin(py, GivenPath::default(), Wanted::Nothing, Call::Sync, then)
    }

    fn begin_stat(
        &self,
        py: Python<'_>,
        path: GivenPath,
        no_follow: bool,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let call = Call::Stat { path: self.path(&path), no_follow };
        self.begin(py, path, Wanted::Stat, call, then)
    }

    fn begin_list(
        &self,
        py: Python<'_>,
        path: GivenPath,
        cookie: u64,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let call = Call::ReadDir { path: self.path(&path), cookie };
        self.begin(py, path, Wanted::Entries, call, then)
    }

    fn begin_mkdir(
        &self,
        py: Python<'_>,
        path: GivenPath,
        mode: u32,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let call = Call::Mkdir { path: self.path(&path), mode };
        self.begin(py, path, Wanted::Nothing, call, then)
    }

    fn begin_remove(
        &self,
        py: Python<'_>,
        path: GivenPath,
        directory: bool,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let call = Call::Remove { path: self.path(&path), directory };
        self.begin(py, path, Wanted::Nothing, call, then)
    }

    fn begin_rename(
        &self,
        py: Python<'_>,
        source: GivenPath,
        target: GivenPath,
        no_replace: bool,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let call = Call::Rename { from: self.path(&source), to: self.path(&target), no_replace };
        self.begin(py, source, Wanted::Nothing, call, then)
    }

    fn begin_link(
        &self,
        py: Python<'_>,
        source: GivenPath,
        target: GivenPath,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let call = Call::Link { from: self.path(&source), to: self.path(&target) };
        self.begin(py, source, Wanted::Nothing, call, then)
    }

    fn begin_symlink(
        &self,
        py: Python<'_>,
        target: GivenPath,
        path: GivenPath,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let call = Call::Symlink { target: target.0, path: self.path(&path) };
        self.begin(py, path, Wanted::Nothing, call, then)
    }

    fn begin_readlink(&self, py: Python<'_>, path: GivenPath, then: Py<PyAny>) -> PyResult<()> {
        let call = Call::ReadLink { path: self.path(&path) };
        self.begin(py, path, Wanted::Target, call, then)
    }

    fn begin_truncate(
        &self,
        py: Python<'_>,
        path: GivenPath,
        length: u64,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        self.begin_set(py, path, SetAttr { size: Some(length), ..SetAttr::default() }, then)
    }

    fn begin_chmod(
        &self,
        py: Python<'_>,
        path: GivenPath,
        mode: u32,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        self.begin_set(py, path, SetAttr { mode: Some(mode & 0o7777), ..SetAttr::default() }, then)
    }

    fn begin_open(
        &self,
        py: Python<'_>,
        path: GivenPath,
        flags: i32,
        mode: u32,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let options = open_options(flags, mode);
        let call = Call::Open { path: self.path(&path), options };
        self.begin(py, path, Wanted::File(options), call, then)
    }

    /// `then` gets the size of the file and its first `size` bytes.
    fn begin_get(
        &self,
        py: Python<'_>,
        path: GivenPath,
        size: usize,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let buffer = room(self.link.session(py, Some(&path.0))?, size)?;
        let call = Call::GetFile { path: self.path(&path), buffer };
        self.begin(py, path, Wanted::Whole, call, then)
    }

    /// At most `data_bytes_max` bytes.
    fn begin_put(
        &self,
        py: Python<'_>,
        path: GivenPath,
        data: &Bound<'_, PyAny>,
        mode: u32,
        wishes: (bool, bool),
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let (exclusive, commit) = wishes;
        let (buffer, len) = filled(self.link.session(py, Some(&path.0))?, data)?;
        let call = Call::PutFile {
            path: self.path(&path),
            buffer,
            len,
            mode,
            exclusive,
            times: None,
            owner: None,
            rename_to: None,
            commit,
        };
        self.begin(py, path, Wanted::Nothing, call, then)
    }
}

/// A copy of what `data` holds.
fn filled(
    session: &dafs_client::Session,
    data: &Bound<'_, PyAny>,
) -> PyResult<(Option<Buffer>, u32)> {
    sys::lend(data, |from| {
        let len = u32::try_from(from.len())?;
        if from.is_empty() {
            return Ok((None, 0));
        }
        let mut buffer = room(session, from.len())?;
        if let Some(room) = buffer.get_mut(..from.len()) {
            room.copy_from_slice(from);
        }
        Ok((Some(buffer), len))
    })
}

/// The first `size` bytes of a buffer, all of it where no size is given.
fn part(memory: &PyMemory, size: Option<usize>) -> PyResult<u32> {
    let size = size.unwrap_or(memory.size());
    if size > memory.size() {
        let text = format!("{size} bytes of a buffer of {}", memory.size());
        return Err(PyValueError::new_err(text));
    }
    Ok(u32::try_from(size)?)
}

impl RawFile {
    fn begin(&self, py: Python<'_>, wanted: Wanted, call: Call, then: Py<PyAny>) -> PyResult<()> {
        let (link, about) = self.shared();
        begin(py, self.link(py)?, call, Asked { link, about, wanted, then })
    }

    /// A call with memory, which it has until its answer. It is taken when nothing can fail any more.
    fn begin_with(
        &self,
        py: Python<'_>,
        memory: Py<PyMemory>,
        size: Option<usize>,
        then: Py<PyAny>,
        call: impl FnOnce(Buffer, u32) -> Call,
    ) -> PyResult<()> {
        let len = part(memory.get(), size)?;
        self.link(py)?;
        may_begin()?;
        let call = call(memory.get().take()?, len);
        self.begin(py, Wanted::CountInto(memory), call, then)
    }
}

#[pymethods]
impl RawFile {
    /// `then` gets up to `size` bytes, at most `data_bytes_max`.
    fn begin_pread(
        &self,
        py: Python<'_>,
        size: usize,
        offset: i64,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let (file, offset) = (self.readable_file(py)?.clone(), offset_of(offset)?);
        let buffer = room(self.link(py)?, size.max(1))?;
        let call = Call::Read { file, offset, buffer, len: u32::try_from(size)? };
        self.begin(py, Wanted::Bytes, call, then)
    }

    /// As `begin_pread`, into memory that is not copied.
    #[pyo3(signature = (memory, size, offset, then))]
    fn begin_preadinto(
        &self,
        py: Python<'_>,
        memory: Py<PyMemory>,
        size: Option<usize>,
        offset: i64,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let (file, offset) = (self.readable_file(py)?.clone(), offset_of(offset)?);
        self.begin_with(py, memory, size, then, |buffer, len| Call::Read {
            file,
            offset,
            buffer,
            len,
        })
    }

    /// At most `data_bytes_max` bytes, which are copied first.
    fn begin_pwrite(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offset: i64,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let (file, offset) = (self.writable_file(py)?.clone(), offset_of(offset)?);
        let (Some(buffer), len) = filled(self.link(py)?, data)? else {
            return Err(PyValueError::new_err("nothing to write"));
        };
        let call = Call::Write { file, offset, buffer, len, stability: Stability::Unstable };
        self.begin(py, Wanted::Count, call, then)
    }

    /// As `begin_pwrite`, from memory that is not copied.
    #[pyo3(signature = (memory, size, offset, then))]
    fn begin_pwrite_from(
        &self,
        py: Python<'_>,
        memory: Py<PyMemory>,
        size: Option<usize>,
        offset: i64,
        then: Py<PyAny>,
    ) -> PyResult<()> {
        let (file, offset) = (self.writable_file(py)?.clone(), offset_of(offset)?);
        self.begin_with(py, memory, size, then, |buffer, len| Call::Write {
            file,
            offset,
            buffer,
            len,
            stability: Stability::Unstable,
        })
    }

    fn begin_stat(&self, py: Python<'_>, then: Py<PyAny>) -> PyResult<()> {
        let file = self.file(py)?.clone();
        self.begin(py, Wanted::Stat, Call::FileAttr { file }, then)
    }

    fn begin_truncate(&self, py: Python<'_>, size: u64, then: Py<PyAny>) -> PyResult<()> {
        let file = self.writable_file(py)?.clone();
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.begin(py, Wanted::Nothing, Call::FileSetAttr { file, set }, then)
    }

    fn begin_fsync(&self, py: Python<'_>, data_only: bool, then: Py<PyAny>) -> PyResult<()> {
        let file = self.file(py)?.clone();
        self.begin(py, Wanted::Nothing, Call::Commit { file, data_only }, then)
    }

    /// It is closed from now on; `then` hears what became of its writes.
    fn begin_close(&self, py: Python<'_>, then: Py<PyAny>) -> PyResult<()> {
        let file = self.file(py)?.clone();
        self.link(py)?;
        self.mark_closed();
        self.begin(py, Wanted::Nothing, Call::Close { file }, then)
    }
}
