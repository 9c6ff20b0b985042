//! Calls that wait: without the interpreter's lock, and so that signals are handled meanwhile.

use std::cell::Cell;
use std::sync::{Arc, Mutex, PoisonError};

use dafs_client::{Error, Interrupt};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::{fork, sys};

/// What the first thread of the process has, on which Python runs signal handlers.
struct Looker {
    /// Whether this is that thread, as of which fork.
    main: Cell<(u32, bool)>,
    interrupt: Arc<Interrupt>,
    raised: Arc<Mutex<Option<PyErr>>>,
}

thread_local! {
    static LOOKER: Looker = Looker::new();
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

impl Looker {
    fn new() -> Looker {
        let raised = Arc::<Mutex<Option<PyErr>>>::default();
        let told = raised.clone();
        let interrupt = Interrupt::looking(move || {
            let outcome = Python::try_attach(|py| {
                IN_HANDLER.set(true);
                let outcome = py.check_signals();
                IN_HANDLER.set(false);
                outcome
            });
            let Some(Err(error)) = outcome else { return false };
            *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            true
        });
        let main = Cell::new((fork::generation(), sys::is_main_thread()));
        Looker { main, interrupt, raised }
    }

    fn is_main(&self) -> bool {
        let (known, is_main) = self.main.get();
        let now = fork::generation();
        if known == now {
            return is_main;
        }
        self.main.set((now, sys::is_main_thread()));
        self.main.get().1
    }

    fn take(&self) -> Option<PyErr> {
        if !self.interrupt.is_fired() {
            return None;
        }
        self.interrupt.reset();
        self.raised.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Runs a call of the client. What a signal handler raised meanwhile, `KeyboardInterrupt` for one, is
/// raised, and the call given up.
pub fn call<T: Send>(
    py: Python<'_>,
    body: impl FnOnce() -> Result<T, Error> + Send,
) -> PyResult<Result<T, Error>> {
    check_handler()?;
    LOOKER.with(|looker| {
        if !looker.is_main() {
            return Ok(py.detach(body));
        }
        let interrupt = &looker.interrupt;
        let answer = py.detach(|| {
            let _guard = interrupt.watch();
            body()
        });
        match looker.take() {
            Some(raised) => Err(raised),
            None => Ok(answer),
        }
    })
}

/// Fails in a signal handler that came while a call of this thread waits: that call drives its
/// session, so another one would wait for it.
pub fn check_handler() -> PyResult<()> {
    if IN_HANDLER.get() {
        let text = "a signal handler may not call a session that its thread is waiting for: set a \
                    flag there, and call later";
        return Err(PyRuntimeError::new_err(text));
    }
    Ok(())
}
