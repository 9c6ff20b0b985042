//! `dafs._dafs`: sessions and files of the client, as Python sees them. What programs import is in
//! the package `dafs` beside it.

#![deny(unsafe_code)]

mod asynchronous;
mod buffer;
#[allow(unsafe_code, reason = "a structure of C")]
mod dlpack;
mod error;
mod file;
mod finish;
mod fork;
mod interrupt;
mod listing;
mod loan;
mod many;
mod path;
mod provider;
mod session;
mod stat;
#[allow(unsafe_code, reason = "lent memory and forks")]
mod sys;

use pyo3::prelude::*;

/// The part of the package that is not Python.
#[pymodule(gil_used = true)]
mod _dafs {
    #[pymodule_export]
    use crate::buffer::PyMemory;
    #[pymodule_export]
    use crate::file::RawFile;
    #[pymodule_export]
    use crate::listing::{Entry, ScanDir};
    #[pymodule_export]
    use crate::loan::PyLoan;
    #[pymodule_export]
    use crate::session::{RawSession, join_url, split_url};
    #[pymodule_export]
    use crate::stat::Stat;
    use std::sync::OnceLock;

    use pyo3::exceptions::PyImportError;
    use pyo3::prelude::*;

    /// What is here is of the process, callbacks and their end for example.
    static INTERPRETER: OnceLock<i64> = OnceLock::new();

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let this = crate::sys::interpreter(module.py());
        if *INTERPRETER.get_or_init(|| this) != this {
            let text = "dafs is for one interpreter of a process, and another one has imported it";
            return Err(PyImportError::new_err(text));
        }
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        let end = wrap_pyfunction!(crate::finish::end_callbacks, module)?;
        module.py().import("atexit")?.call_method1("register", (end,))?;
        if crate::sys::hear_of_forks() {
            Ok(())
        } else {
            Err(PyImportError::new_err("the system has no memory for a handler of forks"))
        }
    }
}
