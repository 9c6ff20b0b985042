//! The receiving half of a queue pair: from the socket to the final place.
//!
//! Each read asks for the rest of the current body at its destination, for the frames of a run
//! at theirs, and then for a header. While payload comes, that last piece is exactly one frame
//! header, so that payload never lands in the staging memory; while only small messages come, it
//! is all of the staging memory, so that one system call brings many.
//!
//! Whoever connected may predict instead ([`crate::receive_prediction`]) that answers come in the order in which their tags were
//! posted and fill their buffers; then one system call brings many answers to their places. A
//! wrong prediction costs a copy and stops the prediction for a while.

mod sink;
mod whole;

use std::io;
use std::os::fd::AsRawFd;

use dafs_fabric::{Status, sg_bytes};

use crate::core::Core;
use crate::deliver::receive_completion;
use crate::frame::{FRAME_HEADER_BYTES, FrameHeader, Kind};
use crate::memory_region::Pin;
use crate::queue_pair::Connection;
use crate::receive_side::{Current, Pause, Staged, Target, View, Violation};
use crate::scatter_gather::Cursor;
use crate::sys::{Scatter, is_hung_up, is_temporary};
use crate::tags::TagState;
use sink::Sink;

/// Reads before another queue pair has its turn.
const TURN_READS: usize = 64;
/// The most messages predicted for one read.
const GUESSES_MAX: usize = 32;
/// For the first read of a turn: often nothing has come, and all that was predicted was so in vain.
const FIRST_GUESSES_MAX: usize = 8;
/// Tagged messages received without prediction after a wrong prediction; more after each in a row.
const DISTRUST_FRAMES: u32 = 16;
/// The most of them.
const DISTRUST_FRAMES_MAX: u32 = 4096;

/// What one system call brought.
struct Pass {
    got: usize,
    asked: usize,
    /// Bodies that it placed.
    direct: usize,
}

/// How looking ended.
enum Looked {
    /// At the end of what there is.
    Through,
    /// It pauses, with these bytes unseen.
    Paused,
    /// The next message is not the one that was predicted, and what follows its header is in the
    /// wrong places.
    Mispredicted,
}

/// What a turn of receiving came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// All there was.
    All,
    /// There may be more.
    More,
    /// The end of the connection; why, for people.
    End(String),
}

fn violated(violation: Violation) -> Received {
    Received::End(format!("peer violated the protocol: {violation}"))
}

impl Connection {
    /// True when what it paused for is there.
    pub fn can_resume(&self, core: &Core) -> bool {
        match self.receive.paused {
            Some((_, Pause::Receive)) => !core.receives.is_empty(),
            Some((_, Pause::Tag(tag))) => self.tags.state(tag) != TagState::Unknown,
            None => false,
        }
    }

    /// Receives what is there, up to a fair share.
    pub fn receive(&mut self, core: &mut Core) -> Received {
        if let Err(violation) = self.resume(core) {
            return violated(violation);
        }
        let mut bytes = 0;
        let received = self.receive_turn(core, &mut bytes);
        if bytes > 0 {
            core.turns.received(bytes, self.id, &mut self.load);
        }
        received
    }

    fn receive_turn(&mut self, core: &mut Core, bytes: &mut usize) -> Received {
        for turn in 0..TURN_READS {
            if self.receive.is_paused() {
                return self.look_for_peer(core);
            }
            let guesses_max = if turn == 0 { FIRST_GUESSES_MAX } else { GUESSES_MAX };
            let pass = match self.read(core, guesses_max) {
                Ok(pass) => pass,
                Err(error) if is_temporary(&error) && !self.send.is_broken() => {
                    return Received::All;
                }
                Err(error) if is_temporary(&error) => {
                    return Received::End("connection broken".into());
                }
                Err(error) => return Received::End(error.to_string()),
            };
            if pass.got == 0 {
                return Received::End(self.end_reason().into());
            }
            core.taken += pass.got;
            *bytes += pass.got;
            if let Err(violation) = self.take(&pass, core) {
                return violated(violation);
            }
            if pass.got < pass.asked {
                return Received::All;
            }
            if *bytes >= core.turns.receive_bytes(&self.load) {
                break;
            }
        }
        Received::More
    }

    /// While paused: what the peer still wanted to say does not matter when it is gone.
    fn look_for_peer(&self, core: &mut Core) -> Received {
        core.system_calls += 1;
        if self.send.is_broken() || is_hung_up(self.socket.as_raw_fd()) {
            return Received::End("closed by the peer".into());
        }
        Received::All
    }

    fn end_reason(&self) -> &'static str {
        if self.receive.current.is_some() || self.receive.head_len > 0 {
            "closed by the peer in the middle of a message"
        } else {
            "closed by the peer"
        }
    }

    /// One system call, with at most so many predictions.
    fn read(&mut self, core: &mut Core, guesses_max: usize) -> io::Result<Pass> {
        let pin = self.pin_write();
        let turn_bytes = core.turns.receive_bytes(&self.load);
        let mut predicted = std::mem::take(&mut self.receive.predicted);
        predicted.clear();
        let mut io = Scatter::new(&mut core.io);
        let mut staging = &mut core.staging.bytes[..];
        let mut direct = 0;
        let mut next = self.receive.expected;
        let mut sink = Sink::default();
        if let Some(current) = &self.receive.current {
            sink = self.sink(current.target, pin.as_ref());
            sink.place(&mut io, &core.trash, &current.header, current.done);
            next = current.header.continuation();
            direct = 1;
        } else if let Some(header) = &next {
            sink = self.sink(self.target_of(header), pin.as_ref());
        }
        let mut head = FRAME_HEADER_BYTES - self.receive.head_len;
        while let Some(header) = next
            && !io.is_full()
            && io.len() < turn_bytes
        {
            let (bytes, rest) = staging.split_at_mut(head);
            io.bytes(bytes);
            staging = rest;
            head = FRAME_HEADER_BYTES;
            sink.place(&mut io, &core.trash, &header, 0);
            direct += 1;
            next = header.continuation();
        }
        let exact = next.is_some() || self.receive.care > 0;
        if next.is_none() && exact {
            (staging, head) = self.predict(&mut io, staging, head, (&mut predicted, guesses_max));
        }
        let tail = if exact { head } else { staging.len() };
        io.bytes(&mut staging[..tail]);
        core.system_calls += 1;
        let got = io.receive(self.socket.as_raw_fd());
        let asked = io.len();
        self.receive.predicted = predicted;
        Ok(Pass { got: got?, asked, direct })
    }

    /// Holds the region of a write under way, or refuses the write if access has ended.
    fn pin_write(&mut self) -> Option<Pin> {
        let write = self.receive.write.as_mut()?;
        let pin = write.region.as_ref()?.pin();
        if pin.is_none() {
            write.region = None;
        }
        pin
    }

    /// Where the body of a continuing frame goes.
    fn target_of(&self, header: &FrameHeader) -> Target {
        match header.kind {
            Kind::Write => Target::Write,
            Kind::Tagged => match self.tags.state(header.key) {
                TagState::Posted(slot) => Target::Tagged(slot),
                _ => Target::Discard,
            },
            _ => match self.send.asked.reads.front() {
                Some(slot) => Target::Read(*slot),
                None => Target::Discard,
            },
        }
    }

    fn sink<'a>(&'a self, target: Target, pin: Option<&'a Pin>) -> Sink<'a> {
        let mut sink = Sink::default();
        match target {
            Target::Discard => {}
            Target::Receive => {
                if let Some(filling) = &self.receive.filling {
                    sink.header_in_list = true;
                    sink.list = Some((&filling.receive.buffers, filling.cursor));
                }
            }
            Target::Tagged(slot) => {
                let receive = self.tags.slots.at(slot);
                sink.header = receive.header.as_ref();
                sink.list = Some((&receive.data, receive.cursor));
            }
            Target::Name => {
                sink.header_in_list = true;
                if let Some((span, cursor)) = &self.receive.name {
                    sink.list = Some((std::slice::from_ref(span), *cursor));
                }
            }
            Target::Write => {
                if let (Some(pin), Some(write)) = (pin, &self.receive.write) {
                    let list = std::slice::from_ref(pin.region().span());
                    sink.list = Some((list, Cursor::at(list, write.offset)));
                }
            }
            Target::Read(slot) => {
                let request = self.requests.at(slot);
                sink.list = Some((&request.data, request.cursor));
            }
        }
        sink
    }

    /// Looks at what a read brought.
    fn take(&mut self, pass: &Pass, core: &mut Core) -> Result<(), Violation> {
        let mut bytes = std::mem::take(&mut core.staging.bytes);
        let mut view = View::new(0, pass.got, pass.direct);
        let mut looked = self.look(&bytes, &mut view, core);
        let predictions = self.receive.predicted.len();
        if matches!(looked, Ok(Looked::Mispredicted)) {
            self.receive.trust = 0;
            self.receive.distrust =
                (DISTRUST_FRAMES << self.receive.wrong.min(16)).min(DISTRUST_FRAMES_MAX);
            self.receive.wrong = self.receive.wrong.saturating_add(1);
            if view.left > 0 {
                let mut collected: Box<[u8]> = vec![0; view.left].into();
                self.collect(&bytes, &view, &mut collected);
                core.staging.keep(std::mem::replace(&mut bytes, collected));
            }
            view = View::new(0, view.left, 0);
            self.receive.predicted.clear();
            looked = self.look(&bytes, &mut view, core);
        } else if view.judged == predictions && predictions > 0 {
            self.receive.trust = (self.receive.trust * 2).min(GUESSES_MAX);
            self.receive.wrong = 0;
        }
        self.put_back(bytes, &view, &looked, core);
        looked.map(|_| ())
    }

    /// Keeps staging memory with bytes that were not looked at.
    fn put_back(
        &mut self,
        bytes: Box<[u8]>,
        view: &View,
        looked: &Result<Looked, Violation>,
        core: &mut Core,
    ) {
        let keep = matches!(looked, Ok(Looked::Paused)) && view.left > 0;
        if keep {
            self.receive.staged = Some(Staged { bytes, start: view.at, end: view.at + view.left });
        } else {
            core.staging.keep(bytes);
        }
        core.staging.refill();
    }

    /// Goes on where it paused, if what it waited for is there.
    fn resume(&mut self, core: &mut Core) -> Result<(), Violation> {
        if !self.can_resume(core) {
            return Ok(());
        }
        let Some((header, _)) = self.receive.paused.take() else { return Ok(()) };
        self.receive.current = self.begin_frame(header, None, core)?;
        if self.receive.is_paused() {
            return Ok(());
        }
        let Some(staged) = self.receive.staged.take() else { return Ok(()) };
        let mut view = View::new(staged.start, staged.end - staged.start, 0);
        self.receive.predicted.clear();
        let looked = self.look(&staged.bytes, &mut view, core);
        self.put_back(staged.bytes, &view, &looked, core);
        looked.map(|_| ())
    }

    /// Looks at received bytes in the order of the wire: bodies that are in their place, and
    /// the staging memory for all else.
    fn look(
        &mut self,
        staging: &[u8],
        view: &mut View,
        core: &mut Core,
    ) -> Result<Looked, Violation> {
        if let Some(current) = self.receive.current.take()
            && !self.look_at_body(current, staging, view, core)?
        {
            return Ok(Looked::Through);
        }
        loop {
            self.take_whole(staging, view, core)?;
            if !self.look_for_header(staging, view) {
                return Ok(Looked::Through);
            }
            let header = FrameHeader::decode(&self.receive.head)?;
            let mut predicted = None;
            if view.direct == 0
                && let Some(slot) = self.receive.predicted.get(view.judged)
            {
                if !self.is_predicted(&header, *slot) {
                    return Ok(Looked::Mispredicted);
                }
                predicted = Some(*slot);
                view.judged += 1;
                view.direct = 1;
            }
            self.receive.head_len = 0;
            if self.receive.expected.take().is_some_and(|expected| expected != header) {
                return Err("a run of frames was broken");
            }
            if self.take_send(&header, staging, view, core) {
                continue;
            }
            if let Some(current) = self.begin_frame(header, predicted, core)? {
                if !self.look_at_body(current, staging, view, core)? {
                    return Ok(Looked::Through);
                }
            } else if self.receive.is_paused() {
                return Ok(Looked::Paused);
            }
        }
    }

    /// Brings a send that is all in the staging memory to its receive; false where it is not so.
    #[inline]
    fn take_send(
        &mut self,
        header: &FrameHeader,
        staging: &[u8],
        view: &mut View,
        core: &mut Core,
    ) -> bool {
        let len = header.body_len();
        if header.kind != Kind::Send || view.direct > 0 || len > view.left {
            return false;
        }
        let bytes = &staging[view.at..view.at + len];
        let Some(receive) = core.receives.front() else { return false };
        match &receive.buffers[..] {
            // What most messages are, and what most receives.
            [span] if header.payload_len == 0 && len <= span.len() => span.write_message(0, bytes),
            list if len <= sg_bytes(list) => {
                let list = Some((list, Cursor::default()));
                let mut sink = Sink { header: None, header_in_list: true, list };
                sink.copy(bytes, header, 0);
            }
            _ => return false,
        }
        view.at += len;
        view.left -= len;
        let wr_id = receive.wr_id;
        core.receives.fill_front();
        core.complete(receive_completion(self, wr_id, Status::Success, len));
        self.note_message(header);
        true
    }

    /// False when the rest of the body is still to come.
    #[inline]
    fn look_at_body(
        &mut self,
        mut current: Current,
        staging: &[u8],
        view: &mut View,
        core: &mut Core,
    ) -> Result<bool, Violation> {
        let missing = current.header.body_len() - current.done;
        let take = missing.min(view.left);
        if view.direct > 0 {
            self.placed(&mut current, take);
            view.direct -= 1;
        } else {
            self.copy_body(&mut current, &staging[view.at..view.at + take]);
            view.at += take;
        }
        view.left -= take;
        if take < missing {
            self.receive.current = Some(current);
            return Ok(false);
        }
        self.finish(&current.header, current.target, core)?;
        Ok(true)
    }

    /// True when a frame header is complete.
    fn look_for_header(&mut self, staging: &[u8], view: &mut View) -> bool {
        let have = self.receive.head_len;
        let take = view.left.min(FRAME_HEADER_BYTES - have);
        let came = &staging[view.at..view.at + take];
        match <&[u8; FRAME_HEADER_BYTES]>::try_from(came) {
            Ok(whole) => self.receive.head = *whole,
            Err(_) => self.receive.head[have..have + take].copy_from_slice(came),
        }
        view.at += take;
        view.left -= take;
        self.receive.head_len += take;
        self.receive.head_len == FRAME_HEADER_BYTES
    }

    /// `len` bytes of the body are in their place. Where the next byte goes is noted, if there is one.
    #[inline]
    fn placed(&mut self, current: &mut Current, len: usize) {
        let header_left = usize::from(current.header.header_len).saturating_sub(current.done);
        current.done += len;
        let data_len = len - header_left.min(len);
        match current.target {
            Target::Discard => {}
            Target::Receive if current.done == current.header.body_len() => {}
            Target::Receive => {
                if let Some(filling) = &mut self.receive.filling {
                    filling.cursor.walk(&filling.receive.buffers, len, |_, _, _| {});
                }
            }
            Target::Tagged(slot) => {
                let receive = self.tags.slots.at_mut(slot);
                if data_len < receive.total as usize {
                    receive.cursor.walk(&receive.data, data_len, |_, _, _| {});
                }
            }
            Target::Name => {
                if let Some((span, cursor)) = &mut self.receive.name {
                    cursor.walk(std::slice::from_ref(span), len, |_, _, _| {});
                }
            }
            Target::Write => {
                if let Some(write) = &mut self.receive.write {
                    write.offset += data_len;
                }
            }
            Target::Read(slot) => {
                let request = self.requests.at_mut(slot);
                request.cursor.walk(&request.data, data_len, |_, _, _| {});
            }
        }
    }

    /// Brings bytes of the body from the staging memory to their place.
    fn copy_body(&mut self, current: &mut Current, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let pin = self.pin_write();
        self.sink(current.target, pin.as_ref()).copy(bytes, &current.header, current.done);
        self.placed(current, bytes.len());
    }
}
