//! Many files by one call: their requests travel together.

use std::time::Duration;

use dafs_client::{Call, Done, Error, Group, OpenOptions, Output};
use dafs_fabric::Buffer;
use dafs_protocol::{Attr, Status};
use pyo3::exceptions::{PyMemoryError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

use crate::error::raise;
use crate::file::{RawFile, offset_of};
use crate::path::GivenPath;
use crate::session::RawSession;
use crate::{interrupt, sys};

/// Calls under way.
const UNDER_WAY: usize = 48;
/// Files up to this size are read in one round trip.
const WHOLE_BYTES: usize = 256 << 10;
/// Between looks at signals.
const SLICE: Duration = Duration::from_millis(100);
/// Before another try, where other calls fill the session.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits for answers, without the interpreter's lock.
fn wait(py: Python<'_>, group: &Group) -> PyResult<Vec<Done>> {
    interrupt::check_handler()?;
    loop {
        let done = py.detach(|| {
            if group.outstanding() == 0 {
                std::thread::sleep(PAUSE);
            }
            group.wait(1, Some(SLICE))
        });
        if !done.is_empty() {
            return Ok(done);
        }
        py.check_signals()?;
        if group.outstanding() == 0 {
            return Ok(done);
        }
    }
}

/// Buffers of calls, each used again and again.
struct Spare<'a> {
    session: &'a dafs_client::Session,
    buffers: Vec<Buffer>,
    bytes: usize,
}

impl Spare<'_> {
    /// Of so many bytes each.
    fn new(session: &dafs_client::Session, bytes: usize) -> Spare<'_> {
        Spare { session, buffers: Vec::new(), bytes: bytes.max(1) }
    }

    /// One for a call: a used one, where there is one.
    fn take(&mut self) -> PyResult<Buffer> {
        let made = || self.session.buffer_to_fill(self.bytes);
        let buffer = self.buffers.pop().map_or_else(made, Ok);
        buffer.map_err(|error| PyMemoryError::new_err(error.to_string()))
    }
}

/// Makes the calls with the numbers 0 to `count`, many of them under way. `make` gives a call, or
/// `None` for what needs none; `ended` gets the answers as they come, and its buffers go back.
fn run(
    py: Python<'_>,
    group: &Group,
    count: usize,
    spare: &mut Spare,
    mut make: impl FnMut(usize, &mut Spare) -> PyResult<Option<Call>>,
    mut ended: impl FnMut(usize, Result<Output, Error>, Option<&Buffer>) -> PyResult<()>,
) -> PyResult<()> {
    let (mut next, mut waiting, mut under_way) = (0, None, 0);
    while next < count || waiting.is_some() || under_way > 0 {
        while under_way < UNDER_WAY && (waiting.is_some() || next < count) {
            let (number, call) = match waiting.take() {
                Some(waiting) => waiting,
                None => {
                    next += 1;
                    match make(next - 1, spare)? {
                        Some(call) => (next - 1, call),
                        None => continue,
                    }
                }
            };
            match group.submit(number as u64, call) {
                Ok(()) => under_way += 1,
                Err(call) => {
                    waiting = Some((number, call));
                    break;
                }
            }
        }
        if under_way == 0 && waiting.is_none() {
            continue;
        }
        for Done { tag, result, buffer } in wait(py, group)? {
            under_way -= 1;
            ended(usize::try_from(tag)?, result, buffer.as_ref())?;
            spare.buffers.extend(buffer);
        }
    }
    Ok(())
}

/// Exceptions, by the index of what failed.
type Failed = Vec<(usize, Py<PyAny>)>;

/// Whether one failure ends all, or is told in its place.
fn returns_errors(errors: &str) -> PyResult<bool> {
    match errors {
        "raise" => Ok(false),
        "return" => Ok(true),
        other => Err(PyValueError::new_err(format!("errors='{other}': 'raise' or 'return'"))),
    }
}

/// The attributes in an answer.
fn attr_of(result: Result<Output, Error>) -> Result<Attr, Error> {
    Done { tag: 0, result, buffer: None }.attr()
}

impl RawSession {
    /// The rest of a file of which the beginning was read, or all of it.
    fn read_long<'py>(
        &self,
        py: Python<'py>,
        path: &GivenPath,
        size: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.on(py, path, |session, path| session.open(path, OpenOptions::read()))?;
        let mut read = 0;
        let bytes = PyBytes::new_with(py, usize::try_from(size)?, |into| {
            read = self.link.call(py, Some(&path.0), |_| file.read_at(into, 0))?;
            Ok(())
        })?;
        let whole = bytes.as_bytes();
        if read == whole.len() {
            Ok(bytes)
        } else {
            Ok(PyBytes::new(py, whole.get(..read).unwrap_or(&[])))
        }
    }

    fn got<'py>(
        &self,
        py: Python<'py>,
        path: &GivenPath,
        result: Result<Output, Error>,
        buffer: Option<&Buffer>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match result {
            Ok(Output::Got { attr, bytes }) if attr.size > bytes as u64 => {
                Ok(self.read_long(py, path, attr.size)?.into_any())
            }
            Ok(Output::Got { bytes, .. }) => {
                let data = buffer.and_then(|buffer| buffer.get(..bytes)).unwrap_or(&[]);
                Ok(PyBytes::new(py, data).into_any())
            }
            Ok(other) => {
                Err(self.link.failed(py, &Error::PeerProtocol(format!("{other:?}")), None))
            }
            Err(error) => Err(self.link.failed(py, &error, Some(&path.0))),
        }
    }

    /// A file that does not fit one request.
    fn write_long(
        &self,
        py: Python<'_>,
        path: &GivenPath,
        from: &[u8],
        (mode, commit): (u32, bool),
    ) -> PyResult<()> {
        let options = OpenOptions { mode, ..OpenOptions::write() };
        self.on_again(py, path, |session, path| {
            let file = session.open(path, options)?;
            file.write_at(from, 0)?;
            if commit {
                file.commit()?;
            }
            file.close().map(drop)
        })
    }

    /// A call that makes a whole file; what does not fit one is written here, and needs none.
    fn put(
        &self,
        py: Python<'_>,
        path: &GivenPath,
        from: &[u8],
        spare: &mut Spare,
        (mode, commit): (u32, bool),
    ) -> PyResult<Option<Call>> {
        if from.len() > spare.bytes {
            self.write_long(py, path, from, (mode, commit))?;
            return Ok(None);
        }
        let mut buffer = None;
        if !from.is_empty() {
            let mut room = spare.take()?;
            if let Some(room) = room.get_mut(..from.len()) {
                room.copy_from_slice(from);
            }
            buffer = Some(room);
        }
        Ok(Some(Call::PutFile {
            path: self.path(path),
            buffer,
            len: u32::try_from(from.len())?,
            mode,
            exclusive: false,
            times: None,
            owner: None,
            rename_to: None,
            commit,
        }))
    }
}

#[pymethods]
impl RawSession {
    /// Whether a name is there, symlinks followed.
    fn exists_one(&self, py: Python<'_>, path: GivenPath) -> PyResult<bool> {
        self.on(py, &path, |session, path| match session.stat(path) {
            Err(error) if is_absent(&error) => Ok(false),
            other => other.map(|_| true),
        })
    }

    /// As `exists_one` for many names, which are asked for together.
    fn exists_many(&self, py: Python<'_>, paths: Vec<GivenPath>) -> PyResult<Vec<bool>> {
        let session = self.link.session(py, None)?;
        let group = session.group();
        let mut found = vec![false; paths.len()];
        let stat = |number: usize, _: &mut Spare| {
            Ok(paths.get(number).map(|path| Call::Stat { path: self.path(path), no_follow: false }))
        };
        run(py, &group, paths.len(), &mut Spare::new(session, 1), stat, |number, result, _| {
            let there = match attr_of(result) {
                Ok(_) => true,
                Err(error) if is_absent(&error) => false,
                Err(error) => {
                    let about = paths.get(number).map(|path| path.0.as_slice());
                    return Err(self.link.failed(py, &error, about));
                }
            };
            if let Some(found) = found.get_mut(number) {
                *found = there;
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The bytes of many files, in order, most of them in one round trip each. With
    /// `errors="return"` there is the exception in place of what could not be read.
    #[pyo3(signature = (paths, *, errors="raise"))]
    fn read_files<'py>(
        &self,
        py: Python<'py>,
        paths: Vec<GivenPath>,
        errors: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let returns = returns_errors(errors)?;
        let session = self.link.session(py, None)?;
        let group = session.group();
        let results = PyList::new(py, paths.iter().map(|_| py.None()))?;
        let mut spare = Spare::new(session, WHOLE_BYTES);
        let get = |number: usize, spare: &mut Spare| {
            let Some(path) = paths.get(number) else { return Ok(None) };
            Ok(Some(Call::GetFile { path: self.path(path), buffer: spare.take()? }))
        };
        run(py, &group, paths.len(), &mut spare, get, |number, result, buffer| {
            let Some(path) = paths.get(number) else { return Ok(()) };
            match self.got(py, path, result, buffer) {
                Ok(bytes) => results.set_item(number, bytes),
                Err(error) if returns => results.set_item(number, error.into_value(py)),
                Err(error) => Err(error),
            }
        })?;
        Ok(results)
    }

    /// Makes, or replaces the contents of, many files: pairs of path and buffer. Answers how many
    /// were written, and for those that were not the exception, by index.
    #[pyo3(signature = (files, mode, *, commit=false))]
    fn write_files_raw(
        &self,
        py: Python<'_>,
        files: Vec<(GivenPath, Bound<'_, PyAny>)>,
        mode: u32,
        commit: bool,
    ) -> PyResult<(usize, Failed)> {
        let session = self.link.session(py, None)?;
        let group = session.group();
        let granted = session.info().attr.data_bytes_max as usize;
        let mut spare = Spare::new(session, WHOLE_BYTES.min(granted));
        let outcomes = std::cell::RefCell::new((0, Failed::new()));
        let settle = |number: usize, outcome: PyResult<()>| {
            let (written, failed) = &mut *outcomes.borrow_mut();
            match outcome {
                Ok(()) => *written += 1,
                Err(error) => failed.push((number, error.into_value(py).into_any())),
            }
        };
        let make = |number: usize, spare: &mut Spare| {
            let Some((path, data)) = files.get(number) else { return Ok(None) };
            let made = sys::lend(data, |from| self.put(py, path, from, spare, (mode, commit)));
            Ok(match made {
                Ok(Some(call)) => Some(call),
                other => {
                    settle(number, other.map(drop));
                    None
                }
            })
        };
        run(py, &group, files.len(), &mut spare, make, |number, result, _| {
            let about = files.get(number).map(|(path, _)| path.0.as_slice());
            let outcome = match (result, files.get(number)) {
                (Err(error), Some((path, data)))
                    if error.status() == Some(Status::OutcomeUnknown) =>
                {
                    sys::lend(data, |from| self.write_long(py, path, from, (mode, commit)))
                }
                (result, _) => {
                    result.map(drop).map_err(|error| self.link.failed(py, &error, about))
                }
            };
            settle(number, outcome);
            Ok(())
        })?;
        let (written, mut failed) = outcomes.into_inner();
        failed.sort_by_key(|(index, _)| *index);
        Ok((written, failed))
    }

    /// All bytes of a file, in one round trip where it is small.
    fn read_file<'py>(&self, py: Python<'py>, path: GivenPath) -> PyResult<Bound<'py, PyAny>> {
        self.read_files(py, vec![path], "raise")?.get_item(0)
    }
}

#[pymethods]
impl RawFile {
    /// The bytes of many ranges, pairs of offset and length, in order; small ones are asked for
    /// together.
    fn read_ranges<'py>(
        &self,
        py: Python<'py>,
        ranges: Vec<(i64, usize)>,
    ) -> PyResult<Bound<'py, PyList>> {
        let session = self.link(py)?;
        let group = session.group();
        let file = self.file(py)?;
        let results = PyList::new(py, ranges.iter().map(|_| py.None()))?;
        let small = |len: usize| (1..=WHOLE_BYTES).contains(&len);
        let largest = ranges.iter().map(|range| range.1).filter(|len| small(*len)).max();
        let mut spare = Spare::new(session, largest.unwrap_or(1));
        let read = |number: usize, spare: &mut Spare| {
            let Some((offset, len)) = ranges.get(number).copied() else { return Ok(None) };
            if !small(len) {
                results.set_item(number, self.pread(py, len, offset)?)?;
                return Ok(None);
            }
            let (file, buffer) = (file.clone(), spare.take()?);
            let (offset, len) = (offset_of(offset)?, u32::try_from(len)?);
            Ok(Some(Call::Read { file, offset, buffer, len }))
        };
        run(py, &group, ranges.len(), &mut spare, read, |number, result, buffer| {
            let bytes = result.map_err(|error| self.failed(py, &error))?.bytes();
            let data = buffer.and_then(|buffer| buffer.get(..bytes)).unwrap_or(&[]);
            results.set_item(number, PyBytes::new(py, data))
        })?;
        Ok(results)
    }

    /// Reads from `offset` on into several buffers, one after the other; answers how many bytes.
    fn readv(
        &self,
        py: Python<'_>,
        buffers: Vec<Bound<'_, PyAny>>,
        offset: i64,
    ) -> PyResult<usize> {
        let mut read = 0;
        for buffer in &buffers {
            let wanted = sys::lend(buffer, |memory| Ok(memory.len()))?;
            let bytes = self.preadinto(py, buffer, after(py, offset, read)?)?;
            read += bytes;
            if bytes < wanted {
                break;
            }
        }
        Ok(read)
    }

    /// Writes several buffers, one after the other, from `offset` on; answers how many bytes.
    fn writev(
        &self,
        py: Python<'_>,
        buffers: Vec<Bound<'_, PyAny>>,
        offset: i64,
    ) -> PyResult<usize> {
        let mut written = 0;
        for buffer in &buffers {
            written += self.pwrite(py, buffer, after(py, offset, written)?)?;
        }
        Ok(written)
    }
}

fn after(py: Python<'_>, offset: i64, bytes: usize) -> PyResult<i64> {
    let at = i64::try_from(bytes).ok().and_then(|bytes| offset.checked_add(bytes));
    at.ok_or_else(|| raise(py, &Status::FBig.into(), None))
}

/// The name, or a directory on the way, is not there.
fn is_absent(error: &Error) -> bool {
    matches!(error.errno(), libc::ENOENT | libc::ENOTDIR | libc::ELOOP)
}
