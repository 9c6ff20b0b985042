//! A connection of a liar, and what is due on it.

use dafs_tests::dice::Dice;
use dafs_tests::wire::{Asked, FRAME_PAYLOAD, Mode, Wire};

use crate::deeds::DATA_BYTES;
use crate::habits::Payment;

/// How far its set-up is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Greeting,
    SettingUp,
    Bound,
}

/// A request that is not answered.
#[derive(Debug)]
pub(crate) struct Due {
    pub tag: u32,
    mode: Mode,
    data_len: usize,
    /// So much of its data was granted, and sent.
    granted: usize,
    sent: usize,
}

pub(crate) struct Line {
    /// No other has it.
    pub number: u64,
    /// Which of the size classes.
    pub class: usize,
    pub wire: Wire,
    pub stage: Stage,
    /// Which session of the liar's.
    pub seat: Option<usize>,
    /// It takes what comes.
    pub listens: bool,
    /// What was sent ends within a frame: nothing more can follow.
    pub torn: bool,
    pub due: Vec<Due>,
    used: u32,
    pushed: u32,
    generation: u16,
}

/// Bytes that wait here before a line is left alone.
const UNSENT_MAX: usize = 1 << 20;

impl Line {
    pub(crate) fn new(wire: Wire, number: u64) -> Line {
        Line {
            number,
            class: 0,
            wire,
            stage: Stage::Greeting,
            seat: None,
            listens: true,
            torn: false,
            due: Vec::new(),
            used: 0,
            pushed: 0,
            generation: 0,
        }
    }

    pub(crate) fn may_ask(&self) -> bool {
        self.stage == Stage::Bound
            && !self.torn
            && self.wire.unsent() < UNSENT_MAX
            && self.wire.limit.wrapping_sub(self.used) > 0
            && (self.due.len() as u32) < self.wire.window
    }

    fn free_tag(&mut self) -> u32 {
        let is_free = |place: &u32| !self.due.iter().any(|due| due.tag >> 16 == *place);
        let place = (0..self.wire.window.max(1)).find(is_free).unwrap_or(0);
        self.generation = self.generation.wrapping_add(1);
        place << 16 | u32::from(self.generation)
    }

    fn mode(&self, dice: &mut Dice, header: usize, data_len: usize, pushes: bool) -> Mode {
        if data_len == 0 {
            return Mode::None;
        }
        let fits = 28 + 20 + header + data_len <= self.wire.receive_bytes;
        let room = self.wire.push_limit.wrapping_sub(self.pushed) as usize;
        match dice.below(8) {
            0..3 if fits => Mode::Inline,
            0..4 if self.wire.tagged && pushes && data_len <= room => Mode::Tagged,
            0..6 if self.wire.tagged => Mode::Grant,
            6 => Mode::Read,
            _ => Mode::Pieces,
        }
    }

    /// Sends a request that announces so much data.
    pub(crate) fn ask(&mut self, dice: &mut Dice, header: &[u8], data_len: usize, pushes: bool) {
        let mut mode = self.mode(dice, header.len(), data_len, pushes);
        if mode == Mode::Read && self.wire.tagged {
            mode = Mode::Grant;
        }
        let tag = self.free_tag();
        let room = dice.one(&[0, 1000, 1 << 20, 1 << 20, 1 << 20, 4 << 20]);
        let inline = if mode == Mode::Inline { dice.bytes(data_len) } else { Vec::new() };
        let data_len_told = data_len as u32;
        self.wire.ask(&Asked { tag, mode, data_len: data_len_told, room, header, inline: &inline });
        self.used = self.used.wrapping_add(1);
        let granted = if mode == Mode::Tagged { data_len } else { 0 };
        self.pushed = self.pushed.wrapping_add(granted as u32);
        self.due.push(Due { tag, mode, data_len, granted, sent: 0 });
    }

    pub(crate) fn answered(&mut self, tag: u32) {
        self.due.retain(|due| due.tag != tag);
    }

    pub(crate) fn granted(&mut self, tag: u32, from: u32, len: u32) {
        if let Some(due) = self.due.iter_mut().find(|due| due.tag == tag) {
            let end = (from as usize).saturating_add(len as usize);
            due.granted = due.data_len.min(end.max(due.granted));
        }
    }

    /// Sends some of the data that one request waits for.
    pub(crate) fn pay(&mut self, tag: u32, payment: Payment, data: &[u8]) {
        if self.torn || self.wire.unsent() > UNSENT_MAX || payment == Payment::Nothing {
            return;
        }
        let piece = self.wire.piece_bytes();
        let Some(due) = self.due.iter_mut().find(|due| due.tag == tag) else { return };
        let left = due.granted - due.sent;
        let unit = if due.mode == Mode::Pieces { piece } else { FRAME_PAYLOAD };
        let len = match payment {
            Payment::Half => (left / 2).div_ceil(unit) * unit,
            Payment::AllButAFrame => left.saturating_sub(1) / unit * unit,
            _ => left,
        };
        let len = len.min(left);
        let from = due.sent;
        due.sent += len;
        let bytes = &data[..len.min(DATA_BYTES)];
        match due.mode {
            Mode::Tagged | Mode::Grant => {
                let total = due.data_len;
                self.wire.push_data(tag, total, from, bytes);
            }
            Mode::Pieces => {
                for (number, part) in bytes.chunks(piece).enumerate() {
                    self.wire.piece(tag, (from + number * piece) as u32, part);
                }
            }
            _ => return,
        }
        if payment == Payment::AllButAByte && len > 0 {
            self.tear(1);
        }
    }

    /// Requests that wait for data.
    pub(crate) fn owes(&self, dice: &mut Dice) -> Option<u32> {
        let owed: Vec<u32> =
            self.due.iter().filter(|due| due.granted > due.sent).map(|due| due.tag).collect();
        (!owed.is_empty()).then(|| dice.one(&owed))
    }

    /// Ends what was sent so many bytes early.
    pub(crate) fn tear(&mut self, bytes: usize) {
        self.wire.tear(bytes);
        self.torn = true;
    }
}
