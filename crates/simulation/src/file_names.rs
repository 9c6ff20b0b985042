//! Names of data files: now and then another file gets one, while the old one is open.

use std::time::Duration;

use dafs_client::Output;
use dafs_client::core::{Place, Put, Work};
use dafs_fabric::Buffer;

use crate::calls::{Call, Kind, Piece};
use crate::checker::Answer;
use crate::data::{data_place, fill, is_filled};
use crate::model::Span;
use crate::model::file::{File, STEP, Shape};
use crate::sim::Sim;

impl Sim {
    /// The open that a call is about is of a file that has lost its name.
    pub(crate) fn is_orphan(&self, kind: &Kind) -> bool {
        let file = match kind {
            Kind::Close { file, .. } | Kind::Read { file, .. } | Kind::Write { file, .. } => file,
            Kind::Append { file, .. } | Kind::Cut { file, .. } | Kind::Commit { file, .. } => file,
            Kind::Size { file } | Kind::Cache { file: Some(file) } | Kind::Where { file, .. } => {
                file
            }
            _ => return false,
        };
        let named = self.slots.iter().any(|slot| slot.file == *file && !slot.replacing);
        !named
    }

    /// A new file, written beside, takes the name.
    pub(crate) fn ask_replace(&mut self, client: usize, slot: usize) -> Result<(), String> {
        self.slots[slot].replacing = true;
        self.files.push(File::new(format!("data/f{slot}, again")));
        let file = self.files.len() - 1;
        let len = self.rng.range(1, self.plan.io_max / STEP) * STEP;
        let changes = [self.new_change(), self.new_change()];
        let mut buffer = self.clients[client].buffers.take()?;
        let piece = Piece { offset: 0, len, change: changes[1] };
        buffer.get_mut(..len as usize).into_iter().for_each(|bytes| fill(&piece, bytes));
        let call = self.call(client, Kind::Replace { slot, file, changes }, len as usize);
        let (who, start) = (self.clients[client].who, call.start);
        self.files[file].begin(changes[0], Shape::Cut { size: 0 }, who, None, start);
        self.files[file].begin(changes[1], Shape::Write { offset: 0, len }, who, None, start);
        // A name of its own: what a lost call may have left under another is not known.
        let place = Place::new(format!("data/t{file}").as_bytes()).expect("a short name");
        let set = Put::attributes(0o644, None, None);
        let to = Some(data_place(slot));
        let put = Put::new(place, len as u32, 0o644, false, set, false, to);
        self.clients[client].submit(call, Work::Put(Box::new(put)), Some(buffer));
        Ok(())
    }

    pub(crate) fn replaced(
        &mut self,
        client: usize,
        call: Call,
        answer: Answer,
        buffer: Option<Buffer>,
        end: u64,
    ) -> Result<(), String> {
        let Kind::Replace { slot, file, changes } = call.kind else { return Ok(()) };
        let piece = Piece { offset: 0, len: call.len as u64, change: changes[1] };
        let source = buffer.as_deref().and_then(|buffer| buffer.get(..call.len));
        if !source.is_some_and(|bytes| is_filled(&piece, bytes)) {
            return Err("the source of a write was changed, or lost".into());
        }
        self.give_back(client, &call, buffer)?;
        match answer {
            Ok(Output::Attr(attr)) => {
                for change in changes {
                    self.files[file].done(change, end, None)?;
                }
                self.slots[slot].is_now(file, &attr);
                self.files[file].check_size(attr.size, Span { start: call.start, end })
            }
            Err(error) if self.is_excused(client, &call, &error) => {
                self.report.excused += 1;
                self.without_server(client, &error);
                changes.iter().for_each(|change| self.files[file].failed(*change, end));
                let now = self.now();
                self.slots[slot].look_at(file, now);
                Ok(())
            }
            other => Err(format!("a file was not replaced: {other:?}")),
        }
    }

    /// Somebody looks who has a name.
    pub(crate) fn look_at_slots(&mut self) {
        let now = self.now();
        for slot in 0..self.slots.len() {
            let due = self.slots[slot].unclear.take_if(|unclear| unclear.1 <= now);
            let Some((file, _)) = due else { continue };
            let client = self.rng.index(self.clients.len());
            let call = self.call(client, Kind::SlotLook { slot, file }, 0);
            let work = Work::Stat { place: data_place(slot), no_follow: true };
            self.clients[client].submit(call, work, None);
        }
    }

    pub(crate) fn slot_looked_at(
        &mut self,
        client: usize,
        call: &Call,
        (slot, file): (usize, usize),
        answer: &Answer,
    ) -> Result<(), String> {
        match answer {
            Ok(Output::Attr(attr)) if attr.inode == self.slots[slot].inode => {
                self.slots[slot].replacing = false;
            }
            Ok(Output::Attr(attr)) => self.slots[slot].is_now(file, attr),
            Err(error) if self.is_excused(client, call, error) => {
                let later = self.now() + Duration::from_millis(20);
                self.slots[slot].look_at(file, later);
            }
            other => return Err(format!("a look at data/f{slot}: {other:?}")),
        }
        Ok(())
    }
}
