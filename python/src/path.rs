//! Paths as Python gives them: text, bytes, or something with `__fspath__`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

/// A path as it was given.
#[derive(Debug, Clone, Default)]
pub struct GivenPath(pub Vec<u8>);

impl<'py> FromPyObject<'_, 'py> for GivenPath {
    type Error = PyErr;

    fn extract(given: Borrowed<'_, 'py, PyAny>) -> PyResult<GivenPath> {
        if let Ok(text) = given.cast::<PyString>() {
            return Ok(GivenPath(text.extract::<OsString>()?.into_vec()));
        }
        if let Ok(bytes) = given.cast::<PyBytes>() {
            return Ok(GivenPath(bytes.as_bytes().to_vec()));
        }
        let path = given.py().import("os")?.call_method1("fspath", (given,))?;
        if let Ok(bytes) = path.cast::<PyBytes>() {
            return Ok(GivenPath(bytes.as_bytes().to_vec()));
        }
        Ok(GivenPath(path.extract::<OsString>()?.into_vec()))
    }
}

/// As text, with `surrogateescape` for what is none.
pub fn text<'py>(py: Python<'py>, path: &[u8]) -> PyResult<Bound<'py, PyString>> {
    Ok(OsStr::from_bytes(path).into_pyobject(py)?)
}

/// `path` below `base`, from the root of the export.
pub fn below(base: &[u8], path: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(base.len() + 1 + path.len());
    whole.extend_from_slice(base);
    if !base.is_empty() && !path.is_empty() {
        whole.push(b'/');
    }
    whole.extend_from_slice(path);
    whole
}
