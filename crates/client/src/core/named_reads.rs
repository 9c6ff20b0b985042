//! Reads of open files by a named reference: without a request, and answered by the server's transport at once where
//! its cache has all that is asked for.
//!
//! The server is asked for a reference of a file when some of it was read; a small read then goes by that. It has a
//! slot as any other read, whose number is not used unless it is refused: then it goes as a request in the same
//! slot, as if nothing had been tried.

use dafs_fabric::Span;
use dafs_message::ConnId;
use dafs_protocol::{Features, NamedReference, Status};

use super::call::{CallRecord, Flight};
use super::dispatch::look_for_poison;
use super::plain_reads::Ends;
use super::{Core, FileKey, Output, Work};

impl Core {
    /// Why no file is read by name; `None`: files are, as far as the server gives references.
    pub(crate) fn why_not_named(&self) -> Option<&'static str> {
        let takes = self.conn(0).is_some_and(|conn| self.node.verifies_names(conn));
        match &self.config {
            config if !config.optimistic => Some("the session does without (optimistic=off)"),
            _ if !takes => Some("the session goes by a network that takes no names"),
            _ if !self.session.facts.features.has(Features::NAMED_REFERENCES) => {
                Some("the server is of an older version")
            }
            _ => None,
        }
    }

    /// The server gives some: others pay no more than this for what they do not have.
    #[inline(always)]
    pub(super) fn is_given_names(&self) -> bool {
        self.session.facts.features.has(Features::NAMED_REFERENCES)
    }

    /// Posts a read by name, if there is one for it. The slot, whose request is under way then, is not used so far.
    #[inline(never)]
    pub(super) fn post_named(
        &mut self,
        (conn, tag): (ConnId, u32),
        (file, offset): (FileKey, u64),
        room: (&Span, usize),
    ) -> bool {
        let Some(open) = self.files.any_mut(file) else { return false };
        let Some(reference) = open.named.turn(offset) else { return false };
        let what = (reference.as_bytes(), offset);
        self.node.read_named(conn, tag, what, room).is_ok()
    }

    /// A read is a request: now and then the server is asked for a reference.
    #[inline(never)]
    pub(super) fn note_request(&mut self, file: FileKey) {
        if self.files.any_mut(file).is_some_and(|open| open.named.is_due()) {
            self.ask_for_name(file);
        }
    }

    #[cold]
    fn ask_for_name(&mut self, file: FileKey) {
        if self.why_not_named().is_none() {
            self.session.facts.named.asked += 1;
            self.accept(CallRecord::internal(Work::References {
                file,
                first: 0,
                count: 0,
                accessed: 0,
            }));
        }
    }

    /// The server gives a reference of a file.
    pub(super) fn on_named_reference(&mut self, flight: Flight, reference: &NamedReference) {
        if let Work::References { file, .. } = flight.call.work
            && let Some(open) = self.files.any_mut(file)
        {
            open.named.told(*reference);
        }
        self.finish(flight.call, Ok(Output::Unit));
    }

    /// A read by name ended.
    #[inline]
    pub(super) fn on_named(&mut self, conn: ConnId, tag: u32, bytes: Option<u32>) {
        match bytes {
            Some(bytes) => self.on_named_hit(conn, tag, bytes),
            None => self.on_named_refused(conn, tag),
        }
    }

    #[inline]
    fn on_named_hit(&mut self, conn: ConnId, tag: u32, bytes: u32) {
        self.session.facts.named.hits += 1;
        let find = self.requests.flights.find_read((conn, tag), |_| true);
        let Some(read) = find else { return self.on_other_named_hit(conn, tag, bytes) };
        let (file, offset, len) = (read.file, read.request.offset, read.request.len);
        let (slot, ends) = (read.request.head.slot, Ends::of(read));
        if let Some(open) = self.files.any_mut(file) {
            open.named.hit(offset);
        }
        // The transport has put no more than were asked for.
        let bytes = bytes.min(len);
        self.requests.slots.untake(slot);
        self.end_plain_read(slot, ends, (bytes, bytes < len), bytes);
    }

    /// One that has a record.
    #[cold]
    fn on_other_named_hit(&mut self, conn: ConnId, tag: u32, bytes: u32) {
        let Some(Flight { call, link, slot, .. }) = self.take_named(conn, tag) else { return };
        self.links[link].heard(self.now);
        look_for_poison(&call.memory, bytes);
        self.requests.slots.untake(slot);
        let end_of_file = matches!(call.work, Work::Read { len, .. } if bytes < len);
        self.on_read(conn, call, (bytes, end_of_file), bytes);
    }

    fn take_named(&mut self, conn: ConnId, tag: u32) -> Option<Flight> {
        let place = self.requests.flights.all().get_mut(tag as usize)?;
        place.take_if(|flight| {
            flight.posted == Some(conn) && matches!(flight.call.work, Work::Read { .. })
        })
    }

    /// It goes as a request, in the slot that was taken for it.
    #[inline(never)]
    fn on_named_refused(&mut self, conn: ConnId, tag: u32) {
        self.session.facts.named.refused += 1;
        let find = self.requests.flights.find_read((conn, tag), |_| true);
        let posted = find.is_some_and(|read| {
            if let Some(open) = self.files.any_mut(read.file) {
                open.named.refused(read.request.offset);
            }
            let (Ok(bytes), Some(span)) = (read.request.encode(), read.memory.span()) else {
                return false;
            };
            let room = (span, read.request.len as usize);
            self.links[read.link].heard(self.now);
            self.node.submit_empty(conn, tag, &bytes, room).is_ok()
        });
        if posted {
            self.session.facts.requests += 1;
            self.requests.rung = false;
            return;
        }
        let Some(place) = self.requests.flights.all().get_mut(tag as usize) else { return };
        let Some(flight) = place.as_mut().filter(|flight| flight.posted == Some(conn)) else {
            return;
        };
        (flight.posted, flight.sent) = (None, false);
        let cancelled = flight.call.cancelled;
        self.requests.unposted += 1;
        if cancelled {
            self.detach(tag as usize);
        }
    }

    /// The server gives no reference of a file: it is not asked again.
    pub(super) fn no_reference(&mut self, work: &Work, status: Option<Status>) {
        if let Work::References { file, .. } = work
            && status != Some(Status::NotSupp)
            && let Some(open) = self.files.any_mut(*file)
        {
            open.named.ask_again();
        }
    }
}
