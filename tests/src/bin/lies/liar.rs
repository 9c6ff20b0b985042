//! A process without rights that says what is not so: the same things for the same seed, as far as
//! the server's answers come at the same time.

use std::time::{Duration, Instant};

use dafs_protocol::{
    CallbackReply, ClientId, CredHandle, OpResult, Operation, Outcome, Purpose, RequestHead,
    SessionAttr, SessionId, SetupReply, SetupRequest, SizeClass, SlotId, StateId, Status,
    ToldReads, WaitMode, decode_callback, decode_reply, decode_setup_reply, encode_callback_reply,
    encode_request, encode_setup_request, encode_told_reads,
};
use dafs_tests::dice::Dice;
use dafs_tests::wire::{Came, Wire};

use crate::deeds::{DATA_BYTES, Drawer, Loot};
use crate::habits::{Habits, PAYMENTS, STEPS, Step};
use crate::line::{Line, Stage};
use dafs_tests::marks::Marks;

/// A slot of a session.
#[derive(Debug, Default, Clone)]
struct Turn {
    sequence: u32,
    /// What was sent last on it.
    header: Vec<u8>,
    data_len: usize,
    waits: bool,
    /// The connection over which it went.
    over: u64,
}

/// A session.
#[derive(Debug)]
struct Seat {
    id: SessionId,
    secret: [u8; 16],
    turns: Vec<Turn>,
    states: Vec<StateId>,
}

const SLOTS: u16 = 64;

pub(crate) struct Liar<'a> {
    target: String,
    dice: Dice,
    habits: Habits,
    marks: &'a Marks,
    lines: Vec<Line>,
    seats: Vec<Seat>,
    loot: Loot,
    data: Vec<u8>,
    next_number: u64,
    /// Of what it may not see, what it saw.
    pub seen: Option<&'static str>,
    /// Connections at a time, at most; requests; answers that were not refusals.
    pub most_lines: usize,
    pub asked: u64,
    pub answered: u64,
}

fn client(dice: &mut Dice, number: u64) -> ClientId {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&dice.draw().to_le_bytes());
    id[8..].copy_from_slice(&(number << 32 | u64::from(std::process::id())).to_le_bytes());
    ClientId(id)
}

pub(crate) fn wish() -> SessionAttr {
    SessionAttr {
        slots: SLOTS,
        data_bytes_max: DATA_BYTES as u32,
        inline_bytes: 512,
        wait: WaitMode::Sleeping,
        lease_ms: 0,
        tagged: true,
        rdma_read: true,
        read_ahead: true,
    }
}

impl<'a> Liar<'a> {
    pub(crate) fn new(target: &str, seed: u64, marks: &'a Marks) -> Liar<'a> {
        let mut dice = Dice::new(seed);
        let habits = Habits::draw(&mut dice);
        let data = dice.bytes(DATA_BYTES);
        Liar {
            target: target.to_string(),
            dice,
            habits,
            marks,
            lines: Vec::new(),
            seats: Vec::new(),
            loot: Loot::default(),
            data,
            next_number: 0,
            seen: None,
            most_lines: 0,
            asked: 0,
            answered: 0,
        }
    }

    pub(crate) fn habits(&self) -> &Habits {
        &self.habits
    }

    /// Lies for its time, or until it saw what it may not.
    pub(crate) fn lie(&mut self) {
        let (start, time) = (Instant::now(), Duration::from_secs(self.habits.seconds));
        let mut steps = 0;
        while start.elapsed() < time && self.seen.is_none() {
            let step = STEPS[self.dice.weighted(&self.habits.steps)];
            self.step(step);
            steps += 1;
            // To look at a connection takes as long as a step.
            if steps > self.lines.len() / 4 {
                self.look();
                steps = 0;
            }
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Connect => self.connect(),
            Step::Ask => self.ask(),
            Step::Again => self.again(),
            Step::Pay => self.pay(),
            Step::Break => self.break_one(),
            Step::Garble => self.garble(),
            Step::Deafen => self.deafen(),
            Step::Listen => {
                if let Some(line) = self.any_line() {
                    self.lines[line].listens = true;
                }
            }
            Step::Pause => std::thread::sleep(Duration::from_micros(self.dice.size(2000) as u64)),
        }
    }

    fn any_line(&mut self) -> Option<usize> {
        (!self.lines.is_empty()).then(|| self.dice.below(self.lines.len()))
    }

    /// One that can be asked over, of a session or of any.
    fn asking_line(&mut self, seat: Option<usize>) -> Option<usize> {
        let may = |line: &Line| line.may_ask() && (seat.is_none() || line.seat == seat);
        let able: Vec<usize> =
            (0..self.lines.len()).filter(|place| may(&self.lines[*place])).collect();
        (!able.is_empty()).then(|| self.dice.one(&able))
    }

    fn connect(&mut self) {
        let most = self.habits.seats * self.habits.lines;
        if self.lines.len() >= most {
            return;
        }
        let tagged = !self.dice.once_in(4);
        let Ok(mut wire) = Wire::connect(&self.target, tagged) else { return };
        let torn = self.dice.once_in(64);
        if torn {
            wire.tear(self.dice.size(40));
        }
        self.next_number += 1;
        let mut line = Line::new(wire, self.next_number);
        line.torn = torn;
        self.lines.push(line);
        self.most_lines = self.most_lines.max(self.lines.len());
    }

    /// Sessions without a connection, and with fewer than they should have.
    fn lonely_seat(&self) -> Option<usize> {
        let lines = |seat| self.lines.iter().filter(|line| line.seat == Some(seat)).count();
        (0..self.seats.len()).find(|seat| lines(*seat) < self.habits.lines)
    }

    fn set_up(&mut self, place: usize) {
        let seat = self.lonely_seat();
        let purpose = match seat {
            Some(seat) if !self.dice.once_in(8) || self.seats.len() >= self.habits.seats => {
                self.lines[place].seat = Some(seat);
                let Seat { id, mut secret, .. } = self.seats[seat];
                secret[15] ^= u8::from(self.dice.once_in(256));
                Purpose::Bind { session: id, secret }
            }
            _ => {
                self.next_number += 1;
                Purpose::Create { attr: wish(), client: client(&mut self.dice, self.next_number) }
            }
        };
        let class = self.class(place, seat);
        let hello = SetupRequest::hello([1; 32], class, false, purpose);
        let mut header = Vec::new();
        encode_setup_request(&hello, &mut header);
        let line = &mut self.lines[place];
        line.stage = Stage::SettingUp;
        line.ask(&mut self.dice, &header, 0, false);
    }

    /// Mostly one that no other connection of the session has: that would be replaced.
    fn class(&mut self, place: usize, seat: Option<usize>) -> SizeClass {
        let has = |class: &usize| {
            let of_seat = |line: &&Line| seat.is_some() && line.seat == seat;
            let mut others = self.lines.iter().filter(of_seat);
            others.any(|line| line.class == *class && line.number != self.lines[place].number)
        };
        let free = (0..3).find(|class| !has(class)).unwrap_or(0);
        let class = if self.dice.once_in(8) { self.dice.below(3) } else { free };
        self.lines[place].class = class;
        [SizeClass::Any, SizeClass::Small, SizeClass::Bulk][class]
    }

    fn ready(&mut self, place: usize, header: &[u8]) {
        let Ok(SetupReply::Ready { session, secret, attr, .. }) = decode_setup_reply(header) else {
            // Of a session that has ended, perhaps.
            if let Some(seat) = self.lines[place].seat.filter(|seat| *seat < self.seats.len()) {
                self.forget(seat);
            }
            return self.drop_line(place);
        };
        self.lines[place].stage = Stage::Bound;
        if self.lines[place].seat.is_some() {
            return;
        }
        let turns = vec![Turn::default(); usize::from(attr.slots)];
        self.lines[place].seat = Some(self.seats.len());
        self.loot.sessions.push(session);
        self.seats.push(Seat { id: session, secret, turns, states: Vec::new() });
        let walk = [
            Operation::GetRoot { export: b"" },
            Operation::Lookup {
                dir: dafs_protocol::FileHandle::PREVIOUS,
                path: b"open",
                no_follow: false,
            },
        ];
        let line = &mut self.lines[place];
        let turn = &mut self.seats[line.seat.unwrap_or(0)].turns[0];
        (turn.sequence, turn.waits) = (1, true);
        turn.header = encode(SlotId(0), 1, CredHandle(0), &walk);
        line.ask(&mut self.dice, &turn.header.clone(), 0, false);
    }

    /// A session that has ended; the places of others stay.
    fn forget(&mut self, seat: usize) {
        let last = self.seats.len() - 1;
        self.seats.swap_remove(seat);
        self.lines.retain(|line| line.seat != Some(seat));
        for line in &mut self.lines {
            if line.seat == Some(last) {
                line.seat = Some(seat);
            }
        }
    }

    fn drop_line(&mut self, place: usize) {
        if place < self.lines.len() {
            self.lines.swap_remove(place);
        }
    }

    fn ask(&mut self) {
        let Some(place) = self.asking_line(None) else { return };
        let Some(seat) = self.lines[place].seat.filter(|seat| *seat < self.seats.len()) else {
            return;
        };
        let free: Vec<usize> = (0..self.seats[seat].turns.len())
            .filter(|slot| !self.seats[seat].turns[*slot].waits || self.dice.once_in(512))
            .collect();
        if free.is_empty() {
            return;
        }
        // The lowest ones, so that they are used again.
        let slot = free[self.dice.below(free.len().min(8))];
        let (habits, loot) = (&self.habits, &self.loot);
        let states = &self.seats[seat].states;
        let operations = Drawer { dice: &mut self.dice, habits, loot, states }.chain();
        let sequence = self.seats[seat].turns[slot].sequence.wrapping_add(1);
        let cred = CredHandle(u32::from(self.dice.once_in(256)));
        let header = encode(SlotId(slot as u16), sequence, cred, &operations);
        if header.is_empty() {
            return;
        }
        let data_len: u64 = operations.iter().filter_map(Operation::request_data_bytes).sum();
        let data_len = self.perhaps_another(data_len as usize);
        let turn = &mut self.seats[seat].turns[slot];
        let over = self.lines[place].number;
        *turn = Turn { sequence, header: header.clone(), data_len, waits: true, over };
        self.send(place, &header, data_len);
    }

    fn perhaps_another(&mut self, len: usize) -> usize {
        let len = len.min(DATA_BYTES);
        if !self.dice.once_in(self.habits.lie_once_in) {
            return len;
        }
        match self.dice.below(4) {
            0 => 0,
            1 => len.saturating_sub(self.dice.size(len)),
            2 => DATA_BYTES.min(len + self.dice.size(4096)),
            _ => self.dice.size(DATA_BYTES),
        }
    }

    fn send(&mut self, place: usize, header: &[u8], data_len: usize) {
        self.asked += 1;
        let line = &mut self.lines[place];
        let pushes = self.dice.once_in(2);
        line.ask(&mut self.dice, header, data_len, pushes);
        let tag = line.due.last().map(|due| due.tag);
        if let Some(tag) = tag {
            self.pay_one(place, tag);
        }
    }

    /// Sends again what was sent before: over any line, with any data.
    fn again(&mut self) {
        if self.seats.is_empty() {
            return;
        }
        let seat = self.dice.below(self.seats.len());
        let sent: Vec<usize> = (0..self.seats[seat].turns.len())
            .filter(|slot| !self.seats[seat].turns[*slot].header.is_empty())
            .collect();
        let waiting: Vec<usize> =
            sent.iter().copied().filter(|slot| self.seats[seat].turns[*slot].waits).collect();
        let from = if waiting.is_empty() || self.dice.once_in(4) { sent } else { waiting };
        if from.is_empty() {
            return;
        }
        let turn = self.seats[seat].turns[self.dice.one(&from)].clone();
        let own = if self.dice.once_in(64) { None } else { Some(seat) };
        let Some(place) = self.asking_line(own) else { return };
        let data_len = match self.dice.below(4) {
            0 => 0,
            1 => self.dice.size(DATA_BYTES),
            _ => turn.data_len,
        };
        self.send(place, &turn.header, data_len);
        if self.dice.once_in(self.habits.break_once_in) && self.lines[place].number != turn.over {
            self.break_after(place, turn.over);
        }
    }

    /// Ends the connection over which something went first.
    fn break_after(&mut self, place: usize, over: u64) {
        // What was sent over the one that stays has to come first, sometimes.
        self.lines[place].wire.push();
        if self.dice.once_in(2) {
            std::thread::sleep(Duration::from_micros(self.dice.size(2000) as u64));
        }
        self.lines.retain(|line| line.number != over);
    }

    fn pay_one(&mut self, place: usize, tag: u32) {
        let payment = PAYMENTS[self.dice.weighted(&self.habits.payments)];
        self.lines[place].pay(tag, payment, &self.data);
    }

    fn pay(&mut self) {
        let Some(place) = self.any_line() else { return };
        if let Some(tag) = self.lines[place].owes(&mut self.dice) {
            self.pay_one(place, tag);
        }
    }

    fn break_one(&mut self) {
        let Some(place) = self.any_line() else { return };
        match self.dice.below(4) {
            0 => self.lines[place].wire.half_close(),
            1 => {
                let bytes = self.dice.size(100);
                self.lines[place].tear(bytes);
            }
            _ => self.drop_line(place),
        }
    }

    fn garble(&mut self) {
        let Some(place) = self.any_line() else { return };
        let (from_end, change) = (self.dice.size(200), 1 << self.dice.below(8));
        self.lines[place].wire.garble(from_end, change);
    }

    /// It asks on, and takes no replies.
    fn deafen(&mut self) {
        let Some(place) = self.any_line() else { return };
        let seat = self.lines[place].seat.and_then(|seat| self.seats.get(seat));
        if seat.is_some_and(|seat| !seat.states.is_empty()) {
            self.lines[place].listens = false;
        }
    }

    /// Sends and takes what there is.
    fn look(&mut self) {
        let mut place = 0;
        while place < self.lines.len() {
            let line = &mut self.lines[place];
            line.wire.push();
            if line.listens {
                let (marks, seen) = (self.marks, &mut self.seen);
                line.wire.pull(&mut |bytes| *seen = seen.or_else(|| marks.found_in(bytes)));
            }
            let lines = self.lines.len();
            while place < self.lines.len() && self.lines[place].listens {
                let Some(came) = self.lines[place].wire.take() else { break };
                self.came(place, came);
                if self.lines.len() != lines {
                    break;
                }
            }
            place += usize::from(self.lines.len() == lines);
        }
    }

    fn came(&mut self, place: usize, came: Came) {
        match came {
            Came::Ended => self.drop_line(place),
            Came::Accepted => self.set_up(place),
            Came::Reply(tag, header) => self.reply(place, tag, &header),
            Came::Grant(tag, from, len) => {
                self.lines[place].granted(tag, from, len);
                self.pay_one(place, tag);
            }
            Came::Read(_, len, id) => self.read(place, len, id),
            Came::Request(tag, header) => self.called(place, tag, &header),
        }
    }

    /// The server reads our memory.
    fn read(&mut self, place: usize, len: u32, id: u32) {
        let line = &mut self.lines[place];
        if line.torn {
            return;
        }
        let len = (len as usize).min(DATA_BYTES);
        match self.dice.below(4) {
            0 => line.wire.read_fault(id),
            1 => line.wire.read_response(id, &self.data[..len]),
            2 => {
                line.wire.read_response(id, &self.data[..len]);
                line.tear(self.dice.size(len));
            }
            _ => {}
        }
    }

    fn called(&mut self, place: usize, tag: u32, header: &[u8]) {
        let Ok(call) = decode_callback(header) else { return };
        if self.lines[place].torn || self.dice.once_in(2) {
            return;
        }
        let result = if self.dice.once_in(4) { Err(Status::NoEnt) } else { Ok(()) };
        let reply = CallbackReply { slot: call.slot, sequence: call.sequence, result };
        let mut header = Vec::new();
        encode_callback_reply(&reply, &mut header);
        self.lines[place].wire.answer(tag, &header);
    }

    fn reply(&mut self, place: usize, tag: u32, header: &[u8]) {
        self.lines[place].answered(tag);
        if self.lines[place].stage != Stage::Bound {
            return self.ready(place, header);
        }
        let Ok(reply) = decode_reply(header) else { return };
        let seat = self.lines[place].seat.filter(|seat| *seat < self.seats.len());
        let Some(seat) = seat.map(|seat| &mut self.seats[seat]) else { return };
        if let Some(turn) = seat.turns.get_mut(usize::from(reply.slot.0)) {
            turn.waits &= turn.sequence != reply.sequence;
            match reply.results {
                Err(Status::Delay) => turn.sequence = turn.sequence.wrapping_sub(1),
                Err(Status::SeqMisordered) => turn.sequence = turn.sequence.wrapping_sub(2),
                _ => {}
            }
        }
        for result in reply.results.unwrap_or_default() {
            self.answered += 1;
            take(&mut seat.states, &mut self.loot, result);
        }
    }
}

fn keep<T>(list: &mut Vec<T>, one: T) {
    if list.len() < 64 {
        list.push(one);
    }
}

fn take(states: &mut Vec<StateId>, loot: &mut Loot, result: OpResult) {
    match result {
        Ok(Outcome::Found { handle, .. }) if loot.root == dafs_protocol::FileHandle::default() => {
            loot.root = handle;
        }
        Ok(Outcome::Found { handle, .. }) if loot.home == dafs_protocol::FileHandle::default() => {
            loot.home = handle;
        }
        Ok(Outcome::Found { handle, .. }) => keep(&mut loot.handles, handle),
        Ok(Outcome::Opened { handle, state, .. }) => {
            keep(&mut loot.handles, handle);
            keep(&mut loot.states, state);
            keep(states, state);
        }
        _ => {}
    }
}

/// A request; empty where no such one can be made.
fn encode(slot: SlotId, sequence: u32, cred: CredHandle, operations: &[Operation<'_>]) -> Vec<u8> {
    let mut header = Vec::new();
    match encode_request(&RequestHead { slot, sequence, cred }, operations, &mut header) {
        // What nobody can have read; also with requests that nobody tells with.
        Ok(()) if sequence.is_multiple_of(5) => {
            let hits = u64::MAX >> (sequence % 64);
            encode_told_reads(&ToldReads { hits, unknown: !hits, stale: hits }, &mut header);
            header
        }
        Ok(()) => header,
        Err(_) => Vec::new(),
    }
}
