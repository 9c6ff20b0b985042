//! The thread of a group that has a descriptor or a callback.

use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, PoisonError};
use std::thread::ThreadId;

use nix::sys::eventfd::{EfdFlags, EventFd};

use super::{Event, Group};
use crate::failure::{Failure, Outcome};
use crate::process;

/// Is told of each result.
pub type Told = Box<dyn Fn(Event) + Send>;

impl Group {
    /// A descriptor that is readable while there are results to take.
    ///
    /// # Errors
    /// What the system lacks; `EBUSY`: results go to a callback.
    pub fn descriptor(self: &Arc<Self>) -> Outcome<RawFd> {
        // It is worth nothing without a thread.
        self.collect(None)?;
        if let Some(event) = self.event.get() {
            return Ok(event.as_raw_fd());
        }
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        let made = EventFd::from_flags(flags)
            .map_err(|errno| Failure::new(errno as i32, "no descriptor for the group"))?;
        // Another thread may have been first; both get the same one.
        let event = self.event.get_or_init(|| made);
        let queue = self.lock();
        self.tell(&queue);
        Ok(event.as_raw_fd())
    }

    /// From now on results go to `told`, one after the other, in a thread of the group.
    ///
    /// # Errors
    /// `EBUSY`: it has a callback, or a descriptor; what the system lacks.
    pub fn call_back(self: &Arc<Self>, told: Told) -> Outcome<()> {
        self.collect(Some(told))
    }

    fn collect(self: &Arc<Self>, told: Option<Told>) -> Outcome<()> {
        let calls_back = told.is_some();
        let mut queue = self.lock();
        if queue.called_back || (queue.collected && calls_back) {
            let text = "the group has a callback or a descriptor already: make another group";
            return Err(Failure::new(libc::EBUSY, text));
        }
        if queue.collected {
            return Ok(());
        }
        let group = self.clone();
        let run = move || {
            if group.run(told.as_ref()) {
                group.lock().collector = None;
                group.changed.notify_all();
            }
        };
        match std::thread::Builder::new().name("dafs-group".into()).spawn(run) {
            Ok(thread) => {
                queue.collector = Some(thread.thread().id());
                (queue.collected, queue.called_back) = (true, calls_back);
                Ok(())
            }
            Err(error) => {
                Err(Failure::about(libc::EAGAIN, format!("no thread for the group: {error}")))
            }
        }
    }

    /// False: in a child, which the callback forked. Locks and connections are its parent's: nothing
    /// here may be touched.
    fn run(&self, told: Option<&Told>) -> bool {
        let born_in = process::generation();
        let mut queue = self.lock();
        loop {
            while queue.under_way == 0 && queue.ended.is_empty() && !queue.stopping {
                queue = self.submitted.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if queue.stopping && queue.under_way == 0 {
                return true;
            }
            if queue.under_way > 0 {
                queue = self.progress(queue, None);
            } else if told.is_none() {
                queue = self.submitted.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            if let Some(told) = told {
                while let Some(event) = queue.ended.pop_front() {
                    drop(queue);
                    told(event);
                    if process::generation() != born_in {
                        return false;
                    }
                    queue = self.lock();
                }
            }
        }
    }

    /// Ends it, if nothing is under way: nothing more can be submitted.
    ///
    /// # Errors
    /// `EBUSY`; `EDEADLK` in its own callback.
    pub fn stop_if_idle(&self) -> Outcome<()> {
        let mut queue = self.lock();
        if queue.collector == Some(current()) {
            let text = "a callback cannot destroy its own group: do it in another thread";
            return Err(Failure::new(libc::EDEADLK, text));
        }
        if queue.under_way > 0 {
            let text = "operations of the group are under way: take their results first";
            return Err(Failure::new(libc::EBUSY, text));
        }
        queue.stopping = true;
        Ok(())
    }

    /// Nothing more can be submitted; returns when its thread has ended, unless that is the caller.
    pub fn stop(&self) {
        let mut queue = self.lock();
        queue.stopping = true;
        self.submitted.notify_all();
        self.changed.notify_all();
        while queue.collector.is_some_and(|thread| thread != current()) {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn current() -> ThreadId {
    std::thread::current().id()
}
