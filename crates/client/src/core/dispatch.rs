//! Requests: from the queues into slots, onto links, and back as replies.

use std::time::Duration;

use dafs_fabric::{SgList, poison};
use dafs_message::{ConnId, Short, SubmitError};
use dafs_protocol::{CredHandle, Operation, RequestHead, SlotId, Status, decode_read_reply};

use super::call::{CallRecord, Flight};
use super::chain::{self, Chain};
use super::credentials::Rights;
use super::files::OpenFile;
use super::work::{Memory, Step, Work};
use super::{Core, Output, Phase};
use crate::error::Error;
use crate::planted::{Defect, planted};

/// How long no data is pushed after the server did not take some.
const DECLINED_TIME: Duration = Duration::from_millis(200);
/// The queue of bulk calls.
const BULK: usize = 1;
/// A slot is kept for the core's own calls.
const SLOTS_RESERVED: usize = 1;

impl Core {
    /// Sends what can be sent.
    #[inline]
    pub(super) fn pump(&mut self) {
        let requests = &self.requests;
        let has_some = requests.unposted > 0
            || !requests.urgent.is_empty()
            || requests.queues.iter().any(|queue| !queue.is_empty());
        if has_some {
            self.pump_some();
        }
    }

    fn pump_some(&mut self) {
        if self.requests.unposted > 0 {
            self.send_again();
        }
        let mut later = Vec::new();
        while self.links[0].is_ready()
            && !self.requests.urgent.is_empty()
            && self.requests.slots.free() > 0
        {
            let Some(call) = self.requests.urgent.pop_front() else { break };
            let link = call.link.unwrap_or(0);
            if !self.links[link].is_ready() {
                // A ping for a link that broke meanwhile.
                self.deliver(call, Err(Error::Interrupted));
                continue;
            }
            match self.rights_of(call.user.as_ref()) {
                Rights::Known(cred) => self.start(call, link, cred),
                Rights::Asked => later.push(call),
                Rights::Refused(status) => self.on_internal_failed(call, status),
            }
        }
        self.requests.urgent.extend(later);
        self.pump_queues();
    }

    pub(super) fn pump_queues(&mut self) {
        if !matches!(self.phase, Phase::Ready) {
            return;
        }
        for queue in 0..self.requests.queues.len() {
            while !self.requests.queues[queue].is_empty() {
                let Some(link) = self.may_start(queue) else { break };
                let user = self.requests.queues[queue].front().and_then(|call| call.user.clone());
                let rights = self.rights_of(user.as_ref());
                if matches!(rights, Rights::Asked) {
                    // The answer comes within a round trip; the order of calls stays.
                    self.wants_progress = true;
                    break;
                }
                let Some(call) = self.requests.queues[queue].pop_front() else { break };
                match rights {
                    Rights::Known(cred) => self.start(call, link, cred),
                    Rights::Asked => {}
                    Rights::Refused(status) => self.finish(call, Err(status.into())),
                }
            }
        }
    }

    /// The link on which a call of this queue can go now: there is a slot for it, and room there.
    #[inline(always)]
    pub(super) fn may_start(&mut self, queue: usize) -> Option<usize> {
        if !self.has_slot(queue) {
            return None;
        }
        let link = self.choose_link(queue == BULK);
        let conn = self.links[link].ready_conn()?;
        self.node.can_submit(conn).then_some(link)
    }

    /// There is a slot for a call of this queue.
    #[inline(always)]
    pub(super) fn has_slot(&self, queue: usize) -> bool {
        let granted = usize::from(self.session.facts.attr.slots);
        let reserved = if granted > SLOTS_RESERVED { SLOTS_RESERVED } else { 0 };
        // Bulk calls leave slots to small ones.
        let reserved = if queue == BULK { reserved + (granted - reserved) / 4 } else { reserved };
        self.requests.slots.free() > reserved
    }

    #[inline]
    fn choose_link(&mut self, bulk: bool) -> usize {
        if !bulk || self.config.connections < 2 {
            return 0;
        }
        self.wants_progress |= self.links[1].want();
        // Until it stands, the first one serves.
        usize::from(self.links[1].is_ready())
    }

    /// Puts a call into a slot and sends it.
    pub(super) fn start(&mut self, mut call: Box<CallRecord>, link: usize, cred: CredHandle) {
        if matches!(call.work, Work::Read { .. }) && self.start_read(&mut call, link, cred) {
            return self.keep_record(call);
        }
        let tight = call.tight;
        let step = chain::step(&mut call.work, tight);
        if let Err(status) = self.file_state(&call.work) {
            // A file that could not be opened again.
            let result = self.refused_locally(&call.work, status);
            self.finish(call, result);
            return;
        }
        let Some((slot, sequence)) = self.requests.slots.take() else {
            self.requests.urgent.push_front(call);
            return;
        };
        let writes = self.writes_of(&call.work);
        if let Some(file) = call.work.flushes() {
            self.files.flush_sent(file, self.recovery.kept_writes);
        }
        let mut header = self.requests.flights.take_header(usize::from(slot.0));
        let head = RequestHead { slot, sequence, cred };
        let made = self.encode(&head, &mut call, step, &mut header);
        if made.is_ok() {
            self.tell_own_reads(&call.work, &mut header);
        }
        let mut flight = Flight { step, writes, ..Flight::new(call, head, link) };
        flight.kept_writes = self.recovery.kept_writes;
        match made {
            Ok(Parts { operations, beside, noted }) => {
                self.requests.unposted += 1;
                (flight.operations, flight.beside, flight.noted) = (operations, beside, noted);
                self.post(flight, header);
            }
            Err(error) => self.replace(flight, header, error),
        }
    }

    /// For a request: the file it names must be usable.
    fn file_state(&self, work: &Work) -> Result<(), Status> {
        if work.is_internal() {
            return Ok(());
        }
        if let Work::Close { file } = work {
            return self.files.closable(*file).map(drop);
        }
        if let Some(key) = work.file() {
            self.files.usable(key)?;
        }
        if let Some(key) = work.target() {
            self.files.usable(key)?;
        }
        Ok(())
    }

    /// The answer of a call on a file that is broken.
    fn refused_locally(&mut self, work: &Work, status: Status) -> Result<Output, Error> {
        let mut status = status;
        if let Work::Close { file } = work
            && let Some(mut file) = self.remove_file(*file)
            && file.take_lost().is_err()
        {
            status = Status::WritesLost;
        }
        Err(status.into())
    }

    fn writes_of(&self, work: &Work) -> u64 {
        match work {
            Work::Sync => self.recovery.unsynced.writes(),
            _ => work.file().and_then(|key| self.files.any(key)).map_or(0, OpenFile::writes),
        }
    }

    fn encode(
        &self,
        head: &RequestHead,
        call: &mut CallRecord,
        step: Option<Step>,
        header: &mut Vec<u8>,
    ) -> Result<Parts, Unsendable> {
        header.clear();
        let tight = call.tight;
        let mut beside = 0;
        let mut operations = Chain::new();
        match (&mut call.work, step) {
            (work, Some(step)) => {
                chain::step_chain(&mut operations, work, step, self.session.root)?;
            }
            (Work::Root, None) => {
                let export = self.config.export.as_slice();
                operations.push(Operation::GetRoot { export });
            }
            (work, None) => {
                let root = self.session.root;
                chain::chain(&mut operations, work, root, &self.files, tight)?;
                let own = operations.len();
                chain::beside(&mut operations, work, root, &self.files, tight)?;
                beside = operations.len() - own;
            }
        }
        let encoded = dafs_protocol::encode_request(head, &operations, header);
        encoded.map_err(|error| match error.is_of_range() {
            true => Unsendable::Status(Status::FBig),
            false => Unsendable::TooLong,
        })?;
        let noted = operations.iter().any(Operation::is_logged);
        Ok(Parts { operations: operations.len(), beside, noted })
    }

    /// A slot was taken for a request that cannot be made. The slot's sequence must not have a
    /// gap: something harmless goes in its place.
    fn replace(&mut self, flight: Flight, mut header: Vec<u8>, error: Unsendable) {
        let Flight { mut call, slot, sequence, link, .. } = flight;
        let head = RequestHead { slot, sequence, cred: CredHandle(0) };
        header.clear();
        dafs_protocol::encode_request(&head, &[Operation::Null], &mut header)
            .expect("an empty request has no lists");
        self.requests.background += 1;
        self.requests.unposted += 1;
        let null = CallRecord::internal(Work::Null);
        self.post(Flight::new(null, head, link), header);
        match error {
            Unsendable::Status(status) if call.work.is_internal() => {
                self.on_internal_failed(call, status);
            }
            Unsendable::Status(status) => self.finish(call, Err(status.into())),
            Unsendable::TooLong if !call.tight => {
                call.tight = true;
                self.requeue(call);
            }
            Unsendable::TooLong => {
                let status =
                    if call.work.names_parent() { Status::Inval } else { Status::NameTooLong };
                self.finish(call, Err(status.into()));
            }
        }
    }

    /// To the front of its queue.
    pub(super) fn requeue(&mut self, call: Box<CallRecord>) {
        if call.work.is_internal() {
            self.requests.urgent.push_front(call);
            return;
        }
        let (request, reply) = call.work.bytes();
        self.requests.queues[usize::from(request.max(reply) > super::delivery::SMALL_BYTES_MAX)]
            .push_front(call);
    }

    /// Gives an unposted flight, with its encoded request, to its link, if that is connected.
    fn post(&mut self, mut flight: Flight, header: Vec<u8>) {
        if let Some(conn) = self.links[flight.link].ready_conn() {
            let tag = u32::from(flight.slot.0);
            let (data, reply_into) = lists(&flight);
            let internal = flight.call.work.is_internal() || flight.call.link.is_some();
            let posted = if let (Work::Lend { .. }, None) = (&flight.call.work, flight.step) {
                self.node.submit_to_lend(conn, tag, &header, reply_into)
            } else if internal && !flight.declined {
                self.node.submit_control(conn, tag, &header, data, reply_into)
            } else if flight.declined || self.now < self.recovery.push_again_at {
                self.node.submit_on_grant(conn, tag, &header, data, reply_into)
            } else {
                self.node.submit(conn, tag, &header, data, reply_into)
            };
            match posted {
                Ok(()) => {
                    flight.posted = Some(conn);
                    flight.sent = true;
                    self.requests.unposted -= 1;
                    self.session.facts.requests += 1;
                    self.requests.rung = false;
                }
                Err(SubmitError::TooLarge) if !flight.sent => {
                    self.requests.unposted -= 1;
                    if matches!(flight.call.work, Work::Null) {
                        // Not even nothing fits: this link is of no use.
                        self.requests.unposted += 1;
                        self.requests.flights.put(flight, header);
                        self.node.disconnect(conn, "no room for a request");
                        self.wants_progress = true;
                    } else {
                        self.replace(flight, header, Unsendable::TooLong);
                    }
                    return;
                }
                // Nothing would bring it on its way: perhaps there is memory when a new one is up.
                Err(SubmitError::NoMemory) => {
                    self.node.disconnect(conn, "no memory for a reply");
                    self.wants_progress = true;
                }
                // Credits come with replies, or the link breaks: it stays unposted.
                Err(_) => {}
            }
        }
        self.requests.flights.put(flight, header);
    }

    /// Posts what has no place on a connection, as far as links are ready.
    fn send_again(&mut self) {
        for slot in 0..self.requests.flights.slots() {
            let waits =
                |flight: &mut Flight| flight.posted.is_none() && self.links[flight.link].is_ready();
            let place = self.requests.flights.other(slot);
            if let Some(flight) = place.and_then(|place| place.take_if(waits)) {
                if planted(Defect::ResentAsNew) && flight.sent {
                    self.requests.unposted -= 1;
                    self.requests.slots.release(flight.slot);
                    self.requeue(flight.call);
                    continue;
                }
                let header = self.requests.flights.take_header(slot);
                self.post(flight, header);
            }
        }
    }

    /// What came as a short message: mostly the answer of a read.
    #[inline(always)]
    pub(super) fn on_short(&mut self, short: Short) {
        if let Short::Reply { conn, tag, data_len } = short
            && let Some(answer) = decode_read_reply(self.node.short_header())
            && self.on_read_reply(conn, tag, answer, data_len)
        {
            return self.release_callbacks();
        }
        self.on_other_short(short);
    }

    #[inline(never)]
    fn on_other_short(&mut self, short: Short) {
        let header = self.node.keep_short_header();
        self.on_event(short.with_header(header));
    }

    /// The answer of a read that has a record, or is wrong.
    #[inline(never)]
    pub(super) fn on_other_read_reply(
        &mut self,
        conn: ConnId,
        tag: u32,
        (slot, sequence, bytes, end_of_file): (SlotId, u32, u32, bool),
        data_len: u32,
    ) -> bool {
        let Some(place) = self.requests.flights.all().get_mut(tag as usize) else { return false };
        let flight = place.take_if(|flight| {
            flight.posted == Some(conn)
                && (slot, sequence) == (flight.slot, flight.sequence)
                && matches!(flight.call.work, Work::Read { .. })
        });
        let Some(Flight { call, link, .. }) = flight else { return false };
        self.links[link].heard(self.now);
        look_for_poison(&call.memory, data_len);
        self.requests.slots.release(slot);
        self.on_read(conn, call, (bytes, end_of_file), data_len);
        true
    }

    /// A reply; its memory is free.
    pub(super) fn on_reply(&mut self, conn: ConnId, tag: u32, header: &[u8], data_len: u32) {
        if let Some(answer) = decode_read_reply(header)
            && self.on_read_reply(conn, tag, answer, data_len)
        {
            return;
        }
        let place = self.requests.flights.all().get_mut(tag as usize);
        let flight = place.and_then(|slot| slot.take_if(|flight| flight.posted == Some(conn)));
        let Some(mut flight) = flight else {
            // Nobody takes what it lends.
            return drop(self.node.take_loan(conn, tag));
        };
        flight.posted = None;
        self.links[flight.link].heard(self.now);
        let decoded = dafs_protocol::decode_results(header, &mut self.requests.results);
        let done = match decoded {
            Ok((slot, sequence, done)) if (slot, sequence) == (flight.slot, flight.sequence) => {
                done
            }
            Ok(_) => return self.peer_fault(conn, flight, "a reply to another request"),
            Err(error) => return self.peer_fault(conn, flight, &error.to_string()),
        };
        look_for_poison(&flight.call.memory, data_len);
        match done {
            Ok(()) => {
                self.requests.slots.release(flight.slot);
                let mut results = std::mem::take(&mut self.requests.results);
                self.on_results(conn, flight, &results, data_len);
                results.clear();
                self.requests.results = results;
            }
            Err(Status::BadSession | Status::BadSlot) => self.session_refused(flight, false),
            Err(Status::SeqMisordered | Status::SeqFalseRetry) => {
                self.session_refused(flight, true);
            }
            // Nothing of it was done.
            Err(Status::Delay) => self.declined(flight),
            Err(status) if flight.call.work.is_internal() => {
                self.requests.slots.release(flight.slot);
                self.on_internal_failed(flight.call, status);
            }
            Err(status) => {
                self.requests.slots.release(flight.slot);
                self.finish(flight.call, Err(status.into()));
            }
        }
    }

    /// The server has no room for pushed data of this session now: it asks for this request's when
    /// it has, and for that of others for a while.
    fn declined(&mut self, mut flight: Flight) {
        flight.declined = true;
        self.recovery.push_again_at = self.now + DECLINED_TIME;
        self.requests.unposted += 1;
        self.requests.flights.put_again(flight);
    }

    /// As `fault`, of a call that is not answered.
    pub(super) fn peer_fault(&mut self, conn: ConnId, flight: Flight, what: &str) {
        self.requests.slots.release(flight.slot);
        self.fault(conn, flight.call, what);
    }

    /// The server does not know the session, or its slot. The flight is judged with the others
    /// when all connections are quiescent.
    fn session_refused(&mut self, mut flight: Flight, may_have_run: bool) {
        flight.sent = may_have_run;
        self.requests.unposted += 1;
        self.requests.flights.put_again(flight);
        self.lose_session();
    }
}

/// The server's free memory is not to be in a reply.
#[inline]
pub(super) fn look_for_poison(memory: &Memory, data_len: u32) {
    if poison::is_on() {
        let data = memory.list(data_len as usize);
        data.iter().for_each(|span| poison::check_data(span, "a reply"));
    }
}

/// Memory of a request: sources, and room for the reply.
fn lists(flight: &Flight) -> (SgList, SgList) {
    let call = &flight.call;
    if flight.step.is_some() {
        return (SgList::new(), SgList::new());
    }
    if let Memory::None = call.memory {
        return (SgList::new(), SgList::new());
    }
    let (request, reply) = call.work.bytes();
    (call.memory.list(request), call.memory.list(reply))
}

/// What a request consists of.
struct Parts {
    operations: usize,
    /// Of them, at the end: beside the work itself.
    beside: usize,
    /// The server notes what becomes of it.
    noted: bool,
}

/// Why a request cannot be made.
#[derive(Debug, Clone, Copy)]
enum Unsendable {
    Status(Status),
    TooLong,
}

impl From<Status> for Unsendable {
    fn from(status: Status) -> Unsendable {
        Unsendable::Status(status)
    }
}
