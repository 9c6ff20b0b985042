//! A chain: the operations of one request, in order, until one fails.
//!
//! A chain is a future on its worker. It asks the worker for things (fetch the data, send the
//! reply) by [`Action`]s and is woken when they are done. If its connection breaks while its
//! data is under way, it ends where it is: what it did is kept in the slot, so that the resent
//! request goes on from there and nothing is done twice.

mod incoming;
mod previous;

use std::rc::Rc;
use std::time::Duration;

use dafs_fabric::{Rkey, SgList, Span};
use dafs_message::ConnId;
use dafs_protocol::{
    FileHandle, OpResult, Operation, Outcome, StateId, Status, decode_request, encode_results,
};
use dafs_store::Caller;

use crate::context::{Action, Context, Grant, Held};
use crate::delayed::{Cached, Delayed};
use crate::intent_log;
use crate::metrics::Kind;
use crate::name_lock::NameLock;
use crate::paths::DataPin;
use crate::planted::{Defect, planted};
use crate::session::Session;
use crate::shared::{Shared, tick};
use incoming::Incoming;
use previous::Previous;

/// Why an operation did not end with a result.
pub(crate) enum Stop {
    /// It failed.
    Failed(Status),
    /// The connection broke before the data was here.
    Broken,
}

impl From<Status> for Stop {
    fn from(status: Status) -> Stop {
        Stop::Failed(status)
    }
}

/// A chain that runs.
pub(crate) struct Chain {
    pub context: Rc<Context>,
    pub session: Rc<Session>,
    pub who: Caller,
    pub slot: dafs_protocol::SlotId,
    pub sequence: u32,
    incoming: Incoming,
    /// Reply data so far, and what keeps it alive.
    pub out: SgList,
    pub held: Vec<Held>,
    previous: Previous,
    pub replayed: bool,
    /// It is logged that changes were begun.
    pub logged: bool,
    /// For the names of the change under way; if that is all the chain changes, until it ends.
    pub name_lock: Option<NameLock>,
    /// Of the symlink that is made next.
    pub target: Vec<u8>,
    /// It may wait while it holds pages.
    pub holds_turn: bool,
    /// What its READs ask for, so far.
    pub read_bytes: u64,
}

/// Runs a request to its end and replies.
pub(crate) async fn run(
    context: Rc<Context>,
    session: Rc<Session>,
    request: Delayed,
    grant: Grant,
) {
    let Delayed { id, header, data_len, prior, .. } = request;
    let start = context.shared.process.now();
    let request = decode_request(&header).expect("decoded before the chain started");
    let head = request.head;
    let operations = &request.operations;
    let before = prior.clone();
    let (results, broken) = match session.identity(head.cred) {
        Err(status) => (vec![Err(status)], false),
        Ok(who) => {
            let bringing = operations.iter().filter(|op| brings_data(op)).count();
            let mut chain = Chain {
                context: context.clone(),
                session: session.clone(),
                who,
                slot: head.slot,
                sequence: head.sequence,
                incoming: Incoming::new(id, data_len, bringing),
                out: SgList::new(),
                held: Vec::new(),
                previous: Previous::default(),
                replayed: !prior.is_empty(),
                logged: false,
                name_lock: None,
                target: Vec::new(),
                holds_turn: false,
                read_bytes: 0,
            };
            let results = chain.check_data(operations);
            let (results, broken) = match results {
                Err(status) => (vec![Err(status)], false),
                Ok(()) => chain.execute(operations, prior).await,
            };
            let done = Done { out: chain.out, held: chain.held, grant, before, start };
            return finish(&context, &session, head, operations, results, broken, done);
        }
    };
    let done = Done { out: SgList::new(), held: Vec::new(), grant, before, start };
    finish(&context, &session, head, operations, results, broken, done);
}

struct Done {
    out: SgList,
    held: Vec<Held>,
    /// What the request took: held until the data of its reply has left.
    grant: Grant,
    /// What the slot had kept when the chain started.
    before: Cached,
    /// When it did.
    start: Duration,
}

fn finish(
    context: &Context,
    session: &Session,
    head: dafs_protocol::RequestHead,
    operations: &[Operation<'_>],
    results: Vec<OpResult>,
    broken: bool,
    mut done: Done,
) {
    if ran_to_its_end(&done.before, operations.len()) {
        let kept = done.before.iter().map(Option::as_ref);
        session.slots.borrow_mut().finish(head.slot, kept);
    } else {
        // What was done stays done, however early this run of the chain ended.
        let before = done.before.iter().map(Option::as_ref).skip(results.len());
        if !broken && before.clone().all(|kept| kept.is_none()) {
            log_done(session, &head, operations, &results);
        }
        let kept = kept_of(operations, &results, broken);
        session.slots.borrow_mut().finish(head.slot, kept.chain(before));
    }
    let target = session.take_target(head.slot);
    if broken {
        return;
    }
    context.shared.note_time(Kind::of(operations), done.start);
    if let Some(id) = target {
        let mut header = context.header();
        encode_results(head.slot, head.sequence, Ok(&results), &mut header);
        done.held.push(Held::Grant(done.grant));
        let action = Action::Reply { id, header, data: done.out, held: done.held };
        context.actions.borrow_mut().push_back(action);
    }
    if operations.iter().any(|op| matches!(op, Operation::SessionDestroy)) {
        context.actions.borrow_mut().push_back(Action::Destroy { session: session.id });
    }
}

/// These are the results of a chain of so many operations that was answered: sent again, it is
/// answered the same, whatever was done anew of it.
fn ran_to_its_end(kept: &Cached, operations: usize) -> bool {
    let is_failed = matches!(kept.last(), Some(Some(Err(_))));
    !kept.is_empty() && (kept.len() == operations || is_failed)
}

/// What is not done again when the request is sent again: changes, and what stands beside them in
/// their chain, as far as it has no data. Where a change was made by a name, the name may lead
/// elsewhere by then.
fn kept_of<'a>(
    operations: &'a [Operation<'_>],
    results: &'a [OpResult],
    broken: bool,
) -> impl Iterator<Item = Option<&'a OpResult>> {
    let changes = operations.iter().any(Operation::is_cached);
    // A chain without changes is done again wholly.
    let results = if changes { results } else { &[] };
    let all = || operations.iter().zip(results);
    let last_change = all().rposition(|(operation, _)| operation.is_cached());
    // Of a chain that broke off, what stands behind its changes is part of the next run.
    let until = if broken { last_change.map_or(0, |at| at + 1) } else { results.len() };
    let keep = move |(at, (operation, result)): (usize, (&Operation<'_>, &'a OpResult))| {
        let has_data = result.is_ok() && operation.reply_data_bytes() != Some(0);
        let is_kept = operation.is_cached() || (at < until && !has_data);
        is_kept.then_some(result)
    };
    all().enumerate().map(keep)
}

/// Before the reply leaves.
fn log_done(
    session: &Session,
    head: &dafs_protocol::RequestHead,
    operations: &[Operation<'_>],
    results: &[OpResult],
) {
    // Of an operation that the end of the session stopped, nobody knows how far it came.
    let is_stopped = matches!(results.last(), Some(Err(Status::BadSession)));
    if let Some(session_log) = &session.intent_log
        && operations.iter().any(Operation::is_logged)
        && !is_stopped
    {
        session_log.done(
            head.slot,
            head.sequence,
            intent_log::request_outcome_of(operations, results),
        );
    }
}

fn brings_data(operation: &Operation<'_>) -> bool {
    operation.request_data_bytes().is_some_and(|bytes| bytes > 0)
}

impl Chain {
    /// The data that the operations speak of is the data that came, and none comes after a READ,
    /// whose pages would be held while the peer takes its time.
    fn check_data(&self, operations: &[Operation<'_>]) -> Result<(), Status> {
        let first_read = operations.iter().position(|op| matches!(op, Operation::Read { .. }));
        if first_read.is_some_and(|at| operations.iter().skip(at).any(brings_data)) {
            return Err(Status::ChainForm);
        }
        let sum = operations
            .iter()
            .try_fold(0u64, |sum, op| sum.checked_add(op.request_data_bytes()?))
            .ok_or(Status::Inval)?;
        if sum == u64::from(self.incoming.len) { Ok(()) } else { Err(Status::BadMessage) }
    }

    async fn execute(
        &mut self,
        operations: &[Operation<'_>],
        prior: Cached,
    ) -> (Vec<OpResult>, bool) {
        let context = self.context.clone();
        let is_read = |op: &Operation<'_>| matches!(op, Operation::Read { .. });
        let needs_room = |op| is_read(op) || matches!(op, Operation::CopyRange { .. });
        let after_read = operations.iter().skip_while(|op| !is_read(op)).skip(1);
        let waits_with_pages = after_read.into_iter().any(needs_room);
        let mut permit = None;
        let mut results = Vec::with_capacity(operations.len());
        let mut prior = prior.into_iter();
        for operation in operations {
            // Pages of the first READ are held while what follows waits for others. Not before it:
            // the peer's data, which comes before any READ, may take for ever.
            if waits_with_pages && permit.is_none() && is_read(operation) {
                permit = Some(context.shared.unifier.hold_permit().await);
                self.holds_turn = true;
            }
            let kept = prior.next().flatten();
            let result = match kept {
                Some(result) => {
                    if let Err(stop) = self.skip_data(operation).await {
                        return (results, matches!(stop, Stop::Broken));
                    }
                    result
                }
                None => match self.run_one(operations, operation).await {
                    Ok(outcome) => self.with_numbers(outcome),
                    Err(Stop::Failed(status)) => Err(status),
                    Err(Stop::Broken) => return (results, true),
                },
            };
            self.previous.remember(&result);
            let failed = result.is_err();
            results.push(result);
            if failed {
                break;
            }
        }
        (results, false)
    }

    /// As clients are told it.
    fn with_numbers(&self, mut outcome: Outcome) -> OpResult {
        let Shared { numbers, exports, .. } = &*self.context.shared;
        numbers.assign(exports, &self.context.last_number, &mut outcome)?;
        Ok(outcome)
    }

    /// See [`Previous::handle`].
    pub(crate) fn handle(&self, handle: &FileHandle) -> Result<FileHandle, Status> {
        self.previous.handle(handle)
    }

    /// See [`Previous::state`].
    pub(crate) fn state(&self, state: StateId) -> Result<StateId, Status> {
        self.previous.state(state)
    }

    pub(crate) fn previous_handle(&self) -> Option<FileHandle> {
        self.previous.handle
    }

    /// Brings this operation's data into `into`, all of whose bytes are the peer's then; how many
    /// they are.
    pub(crate) async fn bring(&mut self, into: &[Span]) -> Result<usize, Stop> {
        let many = into.len() > self.context.segments_max;
        if self.incoming.is_of_several() || self.incoming.is_gathered() || many {
            self.gather().await?;
            return self.scatter(into);
        }
        self.fetch(into).await
    }

    /// Fetches all of the request's data; again from the connection on which the request was
    /// resent, if it was while the first broke.
    async fn fetch(&mut self, into: &[Span]) -> Result<usize, Stop> {
        let wanted: usize = into.iter().map(Span::len).sum();
        loop {
            let list = into.iter().cloned().collect();
            match self.context.fetch(self.incoming.id, list).await {
                Some(placed) if placed as usize == wanted => return Ok(wanted),
                Some(_) if planted(Defect::ResentWithOtherData) => return Ok(wanted),
                // What the rest of this memory holds is somebody else's.
                Some(_) => {
                    tick(&self.context.shared.counters.short_transfers);
                    return Err(Status::BadMessage.into());
                }
                None => {}
            }
            if planted(Defect::BrokenTransferInstalled) {
                return Ok(wanted);
            }
            let Some(target) = self.session.take_target(self.slot) else {
                return Err(Stop::Broken);
            };
            if target == self.incoming.id {
                return Err(Stop::Broken);
            }
            self.session.set_target(self.slot, target);
            self.incoming.id = target;
        }
    }

    /// Several operations bring data: all of it comes first, to be copied from.
    async fn gather(&mut self) -> Result<(), Stop> {
        if !self.incoming.is_gathered() {
            let len = self.incoming.len as usize;
            let span = self.context.scratch(len)?.part(0, len);
            self.fetch(std::slice::from_ref(&span)).await?;
            self.incoming.gather(span);
        }
        Ok(())
    }

    fn scatter(&mut self, into: &[Span]) -> Result<usize, Stop> {
        let mut placed = 0;
        for target in into {
            let next = self.incoming.take(target.len());
            target.copy_span(0, &next.ok_or(Stop::Failed(Status::ServerFault))?);
            placed += target.len();
        }
        Ok(placed)
    }

    /// The operation was done before the request was resent: its data is not wanted again.
    async fn skip_data(&mut self, operation: &Operation<'_>) -> Result<(), Stop> {
        let bytes = operation.request_data_bytes().unwrap_or(0) as usize;
        if bytes > 0 && self.incoming.is_of_several() {
            self.gather().await?;
            self.incoming.take(bytes).ok_or(Stop::Failed(Status::ServerFault))?;
        }
        Ok(())
    }

    /// Appends reply data that is not file data.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Status> {
        if bytes.is_empty() {
            return Ok(());
        }
        let scratch = self.context.scratch(bytes.len())?;
        scratch.write_message(0, bytes);
        self.out.push(scratch.part(0, bytes.len()));
        self.held.push(Held::Data(DataPin::Scratch(scratch)));
        Ok(())
    }

    /// This operation's data as bytes (names and attribute values, not file data).
    pub(crate) async fn bring_bytes(&mut self, len: usize) -> Result<Vec<u8>, Stop> {
        if len == 0 {
            return Ok(Vec::new());
        }
        let scratch = self.context.scratch(len)?;
        self.bring(&[scratch.part(0, len)]).await?;
        let mut bytes = Vec::new();
        scratch.read_message(len, &mut bytes);
        self.context.give_back_scratch(scratch);
        Ok(bytes)
    }

    /// By which connection the client asks.
    pub(crate) fn conn(&self) -> ConnId {
        self.incoming.id.conn()
    }

    pub(crate) async fn operation(&mut self, operation: &Operation<'_>) -> Result<Outcome, Stop> {
        use Operation as O;
        match operation {
            O::Null | O::SessionDestroy => Ok(Outcome::Done),
            O::GetRoot { .. }
            | O::Lookup { .. }
            | O::LookupParent { .. }
            | O::Create { .. }
            | O::Link { .. }
            | O::Remove { .. }
            | O::Rename { .. }
            | O::GetAttr { .. }
            | O::SetAttr { .. }
            | O::Access { .. }
            | O::StatFs { .. }
            | O::SyncFs { .. }
            | O::SyncDir { .. } => self.name_operation(operation).await,
            O::ReadDir { .. }
            | O::ReadLink { .. }
            | O::GetXattr { .. }
            | O::SetXattr { .. }
            | O::ListXattr { .. }
            | O::RemoveXattr { .. } => self.list_operation(operation).await,
            O::Close { state } => {
                self.close_locks(*state)?;
                self.data_operation(operation).await
            }
            O::Open { .. }
            | O::OpenDowngrade { .. }
            | O::Read { .. }
            | O::Write { .. }
            | O::Append { .. }
            | O::Commit { .. } => self.data_operation(operation).await,
            O::Fallocate { .. }
            | O::Seek { .. }
            | O::Extents { .. }
            | O::CopyRange { .. }
            | O::CloneRange { .. } => self.range_operation(operation).await,
            O::Advise { .. } | O::CacheQuery { .. } => self.cache_operation(operation).await,
            O::RefsGet { state, first, count, accessed } => {
                Ok(self.references(*state, (*first, *count), Rkey(*accessed))?)
            }
            O::Lock { .. }
            | O::LockTest { .. }
            | O::Unlock { .. }
            | O::LockCancel { .. }
            | O::OwnerRelease { .. }
            | O::ReclaimComplete => self.lock_operation(operation).await,
            O::CredRegister { uid, gid, groups } => {
                Ok(self.register_credential(*uid, *gid, groups)?)
            }
            O::CredRelease { cred } => {
                self.session.release(*cred)?;
                Ok(Outcome::Done)
            }
            O::SessionStats => Ok(self.stats()),
            O::SlotQuery { session, slot, sequence } => {
                let (changes, client) = (&self.context.shared.changes, self.session.client);
                Ok(Outcome::RequestOutcome(changes.outcome(client, *session, *slot, *sequence)))
            }
            _ => Err(Status::NotSupp.into()),
        }
    }
}
