//! One call as a future.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use dafs_protocol::Identity;

use crate::call::{Call, Done};
use crate::error::Error;
use crate::handle::Handle;
use crate::interrupt::{Interrupt, Until};

/// A call under way. The keeper thread drives it; no runtime is needed.
///
/// Dropping it gives the call up: its buffer is freed when the network has left it. The call
/// itself may be done or not.
#[must_use = "a future that is dropped gives its call up"]
pub struct CallFuture {
    session: Arc<Handle>,
    user: Option<Arc<Identity>>,
    stage: Stage,
}

enum Stage {
    /// The session had no room.
    Waiting(Box<Call>),
    Under {
        sink: usize,
    },
    Failed(Option<Box<Done>>),
    Over,
}

impl std::fmt::Debug for CallFuture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallFuture").finish_non_exhaustive()
    }
}

impl CallFuture {
    pub(crate) fn new(session: Arc<Handle>, user: Option<Arc<Identity>>, call: Call) -> CallFuture {
        let stage = begin(&session, user.clone(), Box::new(call));
        CallFuture { session, user, stage }
    }

    /// Blocks until the call ended.
    pub fn wait(mut self) -> Done {
        let interrupt = Interrupt::watched();
        let until = Until { deadline: None, interrupt: interrupt.as_deref() };
        let interrupted = || Done { tag: 0, result: Err(Error::Interrupted), buffer: None };
        loop {
            match std::mem::replace(&mut self.stage, Stage::Over) {
                Stage::Waiting(call) => {
                    let inner = &self.session.inner;
                    let mut state = inner.lock();
                    let sink = state.take_sink(false);
                    state = inner.wait_for_room(state, sink, until);
                    state.drop_sink(sink);
                    drop(state);
                    if until.is_over() {
                        return interrupted();
                    }
                    self.stage = begin(&self.session, self.user.clone(), call);
                }
                Stage::Under { sink } => {
                    let inner = &self.session.inner;
                    let mut state = inner.wait(inner.lock(), sink, 1, until);
                    let done = state.sink(sink).done.pop_front();
                    state.drop_sink(sink);
                    drop(state);
                    return done.map_or_else(interrupted, |done| Done::of(&self.session, done));
                }
                Stage::Failed(done) => return *done.expect("is there until it is taken"),
                Stage::Over => unreachable!("only left by a return"),
            }
        }
    }
}

fn begin(session: &Arc<Handle>, user: Option<Arc<Identity>>, call: Box<Call>) -> Stage {
    let inner = &session.inner;
    let mut state = inner.lock();
    if !state.core.has_room() {
        return Stage::Waiting(call);
    }
    match call.into_work() {
        Ok((work, memory, file)) => {
            let sink = state.take_sink(true);
            state.submit(sink, 0, user, work, memory);
            inner.drive_async(&mut state);
            drop(state);
            // Not under the lock: the last handle of a file closes it.
            drop(file);
            Stage::Under { sink }
        }
        Err((error, buffer)) => {
            Stage::Failed(Some(Box::new(Done { tag: 0, result: Err(error), buffer })))
        }
    }
}

impl Future for CallFuture {
    type Output = Done;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Done> {
        let this = &mut *self;
        let stage = std::mem::replace(&mut this.stage, Stage::Over);
        this.stage = match stage {
            Stage::Waiting(call) => begin(&this.session, this.user.clone(), call),
            other => other,
        };
        let mut state = this.session.inner.lock();
        match &mut this.stage {
            Stage::Waiting(_) => {
                state.room_wakers.push(context.waker().clone());
                this.session.inner.drive_async(&mut state);
                Poll::Pending
            }
            Stage::Under { sink } => match state.sink(*sink).done.pop_front() {
                Some(done) => {
                    state.drop_sink(*sink);
                    this.stage = Stage::Over;
                    Poll::Ready(Done::of(&this.session, done))
                }
                None => {
                    state.sink(*sink).waker = Some(context.waker().clone());
                    Poll::Pending
                }
            },
            Stage::Failed(done) => Poll::Ready(*done.take().expect("polled after its end")),
            Stage::Over => panic!("polled after its end"),
        }
    }
}

impl Drop for CallFuture {
    fn drop(&mut self) {
        if let Stage::Under { sink } = self.stage {
            self.session.inner.lock().drop_sink(sink);
        }
    }
}
