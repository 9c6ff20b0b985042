//! How the data of a request comes.

use dafs_fabric::{SgList, WorkCompletion, sg_bytes};

use super::PIECES_PER_GRANT;
use crate::connection::{Connection, Message, State, Work, push_tag};
use crate::event::{Event, RequestId};
use crate::fault::Fault;
use crate::header::{FLAG_OF_HEADER, Header, Kind, Mode};
use crate::responder::Fetch;
use crate::segments;
use crate::shared::{Held, Role, Shared};
use crate::work::Target;

impl Connection {
    /// See [`Node::fetch`](crate::Node::fetch).
    pub fn fetch(&mut self, sh: &mut Shared, tag: u32, mut into: SgList) {
        let id = RequestId { conn: self.id, tag };
        let open = self.state == State::Open;
        segments::join(&mut into);
        let slot = self.responder.serving(tag).filter(|slot| open && slot.fetch == Fetch::Not);
        let Some(slot) = slot.filter(|slot| sg_bytes(&into) >= slot.data_len as usize) else {
            drop(into);
            return sh.events.push_back(Event::Fetched { id, placed: None });
        };
        let into = segments::truncate(into, slot.data_len as usize);
        slot.fetch = Fetch::Posted;
        self.fetch_into(sh, tag, into);
    }

    fn fetch_into(&mut self, sh: &mut Shared, tag: u32, mut into: SgList) {
        let Some(slot) = self.responder.serving(tag) else { return };
        if matches!(slot.mode, Mode::Tagged | Mode::Grant | Mode::Read) {
            match sh.make_known((Role::Responder, Some(self.id.slot())), &mut into, false) {
                Ok(held) => slot.held = held,
                // What was pushed stops all that comes behind it, perhaps what others wait for.
                Err(_)
                    if slot.mode == Mode::Tagged
                        || sh.bounces[Role::Responder as usize].is_idle() =>
                {
                    slot.fetch = Fetch::Not;
                    drop(into);
                    sh.faults.push((self.id.slot(), Fault::local("no memory for data")));
                    let id = RequestId { conn: self.id, tag };
                    return sh.events.push_back(Event::Fetched { id, placed: None });
                }
                Err(_) => {
                    slot.into = into;
                    return sh.starved.push((self.id.slot(), tag));
                }
            }
        }
        match slot.mode {
            Mode::None | Mode::Write | Mode::Refer => self.fetched(sh, tag),
            Mode::Inline => {
                segments::copy_in(&into, 0, &slot.inline);
                self.counters.copied_bytes += u64::from(slot.data_len);
                self.fetched(sh, tag);
            }
            Mode::Tagged => self.await_data(sh, tag, into),
            Mode::Grant => {
                let mut grant = Header::new(Kind::Grant, tag);
                grant.data_len = slot.data_len;
                self.await_data(sh, tag, into);
                self.send_control(sh, grant);
            }
            Mode::Read => self.read_data(sh, tag, &into),
            Mode::Pieces => {
                slot.into = into;
                self.grant_pieces(sh, tag);
            }
        }
    }

    /// Memory that stands in came back, for which the request's data or reply may have waited.
    pub fn try_starved(&mut self, sh: &mut Shared, tag: u32) {
        let open = self.state == State::Open;
        let Some(slot) = self.responder.serving(tag).filter(|_| open) else { return };
        if slot.fetch == Fetch::Posted
            && matches!(slot.mode, Mode::Grant | Mode::Read)
            && !slot.into.is_empty()
        {
            let into = std::mem::take(&mut slot.into);
            self.fetch_into(sh, tag, into);
        } else if slot.fetch != Fetch::Posted
            && let Some(mut late) = slot.late.take()
        {
            self.reply(sh, tag, &late.header, (&mut late.data, late.token));
        }
    }

    fn await_data(&mut self, sh: &mut Shared, tag: u32, mut into: SgList) {
        if let Some(slot) = self.responder.serving(tag) {
            slot.work = 1;
        }
        let id = self.work_id(Target::Fetch, tag);
        self.post(sh, Work::TaggedRecv(push_tag(tag), None), id, &[], &mut into, true);
    }

    fn read_data(&mut self, sh: &mut Shared, tag: u32, into: &SgList) {
        let Some(slot) = self.responder.serving(tag) else { return };
        let reads = std::mem::take(&mut slot.reads);
        slot.work = reads.len() as u32;
        let (id, mut at) = (self.work_id(Target::Fetch, tag), 0);
        for remote in &reads {
            let mut part = segments::cut(into, at, remote.len as usize);
            at += remote.len as usize;
            self.post(sh, Work::Read(*remote), id, &[], &mut part, true);
        }
        if let Some(slot) = self.responder.serving(tag) {
            slot.reads = reads;
        }
    }

    /// Asks for the next pieces; a few at a time, since they take receives.
    fn grant_pieces(&mut self, sh: &mut Shared, tag: u32) {
        let piece = (sh.area_bytes() as u32).max(sh.config.header_bytes as u32 / 2);
        let Some(slot) = self.responder.serving(tag) else { return };
        let mut grant = Header::new(Kind::Grant, tag);
        grant.room = slot.granted;
        grant.data_len = (slot.data_len - slot.granted).min(piece * PIECES_PER_GRANT);
        slot.granted += grant.data_len;
        self.send_control(sh, grant);
    }

    /// A piece of a request's data.
    ///
    /// # Errors
    /// The peer's fault.
    pub fn handle_request_piece(&mut self, sh: &mut Shared, m: &Message) -> Result<(), Fault> {
        let offset = m.piece_offset(sh.config.header_bytes)?;
        let (header, len) = (&m.header, m.header.data_len);
        let slot = self.responder.serving(header.tag);
        let slot = slot
            .filter(|slot| slot.mode == Mode::Pieces && slot.fetch == Fetch::Posted)
            .ok_or_else(|| Fault::peer("piece of data that was not granted"))?;
        if header.room != slot.arrived
            || len > slot.granted - slot.arrived
            || header.flags & FLAG_OF_HEADER != 0
        {
            return Err(Fault::peer("piece outside of what was granted"));
        }
        sh.pool.place_payload(m.index, offset, len as usize, &slot.into, slot.arrived as usize);
        self.counters.copied_bytes += u64::from(len);
        slot.arrived += len;
        if slot.arrived == slot.data_len {
            self.fetched(sh, header.tag);
        } else if slot.arrived == slot.granted {
            self.grant_pieces(sh, header.tag);
        }
        Ok(())
    }

    /// A tagged receive or read of a fetch is done.
    ///
    /// # Errors
    /// The peer's fault.
    pub fn fetch_work_done(
        &mut self,
        sh: &mut Shared,
        tag: u32,
        completion: &WorkCompletion,
    ) -> Result<(), Fault> {
        let Some(slot) = self.responder.serving(tag) else { return Ok(()) };
        let pushed = slot.mode != Mode::Read;
        if pushed && (completion.byte_len != slot.data_len || completion.header_len != 0) {
            return Err(Fault::peer("pushed data of another length than announced"));
        }
        slot.work -= 1;
        if slot.mode == Mode::Read {
            slot.arrived = slot.arrived.saturating_add(completion.byte_len);
        }
        if slot.work > 0 {
            return Ok(());
        }
        if slot.mode == Mode::Tagged {
            let len = slot.data_len;
            self.landed(sh, len);
        }
        self.fetched(sh, tag);
        Ok(())
    }

    /// Pushed data left the path: the peer may push as much again.
    pub(super) fn landed(&mut self, sh: &mut Shared, len: u32) {
        self.responder.push.give_back(len);
        if self.responder.starved {
            self.send_control(sh, Header::new(Kind::Credit, 0));
        }
    }

    /// All of the request's data is where it was to go.
    fn fetched(&mut self, sh: &mut Shared, tag: u32) {
        let Some(slot) = self.responder.serving(tag) else { return };
        slot.fetch = Fetch::Done;
        let placed = Some(slot.data_len);
        slot.into.clear();
        if let Some(Held { bounce: Some(bounce), .. }) = slot.held.take() {
            bounce.copy_out(slot.data_len as usize);
            self.counters.copied_bytes += u64::from(slot.data_len);
        }
        sh.recycle(std::mem::take(&mut slot.inline));
        let late = slot.late.take();
        sh.events.push_back(Event::Fetched { id: RequestId { conn: self.id, tag }, placed });
        if let Some(mut late) = late {
            self.reply(sh, tag, &late.header, (&mut late.data, late.token));
        }
    }
}
