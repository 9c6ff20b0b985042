//! Calls whose answers go to callbacks.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use crate::call::Done;
use crate::future::CallFuture;

/// What is done with an answer.
type Then = Box<dyn FnOnce(Done) + Send>;

/// The thread of a session that calls back; none before it is needed. It ends with the session.
#[derive(Default)]
pub(crate) struct Callbacks(OnceLock<Option<Sender<Message>>>);

enum Message {
    /// It may have its answer.
    Look(Arc<Task>),
    Ended(Box<(Done, Then)>),
}

/// A call under way.
struct Task {
    /// `None`: it has ended.
    call: Mutex<Option<(CallFuture, Then)>>,
    thread: Sender<Message>,
}

impl Callbacks {
    /// Begins to wait for an answer. Where the system has no thread more, waits for it here.
    pub(crate) fn add(&self, call: CallFuture, then: Then) {
        let Some(thread) = self.0.get_or_init(start) else { return then(call.wait()) };
        let call = Mutex::new(Some((call, then)));
        let task = Arc::new(Task { call, thread: thread.clone() });
        if let Some(ended) = task.look() {
            // Not by the caller: it may hold what the callback wants.
            let _ = thread.send(Message::Ended(Box::new(ended)));
        }
    }
}

fn start() -> Option<Sender<Message>> {
    let (sender, receiver) = channel();
    let thread = std::thread::Builder::new().name("dafs-callbacks".into());
    thread.spawn(move || run(&receiver)).ok()?;
    Some(sender)
}

fn run(messages: &Receiver<Message>) {
    for message in messages {
        let ended = match message {
            Message::Look(task) => task.look(),
            Message::Ended(ended) => Some(*ended),
        };
        if let Some((done, then)) = ended
            && catch_unwind(AssertUnwindSafe(|| then(done))).is_err()
        {
            tracing::error!("a callback panicked");
        }
    }
}

impl Task {
    /// The answer, once, if it is here; otherwise the thread hears when to look again.
    fn look(self: &Arc<Self>) -> Option<(Done, Then)> {
        let mut call = self.call.lock().unwrap_or_else(PoisonError::into_inner);
        let (future, _) = call.as_mut()?;
        let waker = Waker::from(self.clone());
        let Poll::Ready(done) = Pin::new(future).poll(&mut Context::from_waker(&waker)) else {
            return None;
        };
        let (future, then) = call.take()?;
        drop(call);
        // It may be the last of the session.
        drop(future);
        Some((done, then))
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        let thread = self.thread.clone();
        // The thread is there while a call is.
        let _ = thread.send(Message::Look(self));
    }
}
