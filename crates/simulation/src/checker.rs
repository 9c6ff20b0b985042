//! Answers: each is what the model allows, or has a cause.

use std::time::Duration;

use dafs_client::core::FileKey;
use dafs_client::{Error, Output};
use dafs_fabric::Buffer;
use dafs_protocol::Status;

use crate::calls::{Call, Kind, Piece};
use crate::client::Open;
use crate::data;
use crate::model::Span;
use crate::model::file::Safety;
use crate::sim::Sim;

/// An answer as the core gives it.
pub type Answer = Result<Output<FileKey>, Error>;

impl Sim {
    /// A call ended.
    pub(crate) fn answered(
        &mut self,
        client: usize,
        call: Call,
        answer: Answer,
        buffer: Option<Buffer>,
    ) -> Result<(), String> {
        let end = self.tick();
        let (tag, who) = (call.tag, self.clients[client].who);
        self.log(|| format!("client {who} hears {tag}: {answer:?}"));
        self.report.note(tag);
        self.report.note(self.now().as_nanos() as u64);
        self.report.note(answer.as_ref().map_or(1, |output| output.bytes() as u64 + 2));
        let text = format!("{:?} by client {who}", call.kind);
        if answer.is_ok() && call.sessions == self.clients[client].sessions {
            self.locks.session_lives(who, call.start, call.sessions)?;
        }
        if let Err(error) = &answer
            && error.status() == Some(Status::OutcomeUnknown)
        {
            self.outcome_unknown(client, &call)?;
        }
        let checked = self.check(client, call, answer, buffer, end);
        checked.map_err(|why| format!("{why}\n  in answer {tag} to {text}"))
    }

    fn check(
        &mut self,
        client: usize,
        call: Call,
        answer: Answer,
        buffer: Option<Buffer>,
        end: u64,
    ) -> Result<(), String> {
        match &call.kind {
            Kind::Name(_) => return self.name_answered(client, call, answer, buffer, end),
            Kind::Look(_) => return self.looked(client, call, answer),
            Kind::Where { open, .. } => {
                return self.told_where(client, &call, *open, (answer, end));
            }
            Kind::Race { name } => return self.race_answered(client, &call, *name, &answer),
            Kind::RaceLook { name } => return self.race_looked_at(client, &call, *name, &answer),
            Kind::Replace { .. } => return self.replaced(client, call, answer, buffer, end),
            Kind::SlotLook { slot, file } => {
                return self.slot_looked_at(client, &call, (*slot, *file), &answer);
            }
            kind if kind.locker().is_some() || kind.lock_file().is_some() => {
                return self.lock_answered(client, &call, answer, end);
            }
            _ => {}
        }
        if let Kind::Close { open, file } = &call.kind {
            self.files[*file].keep_no_more(*open);
        }
        let span = Span { start: call.start, end };
        match answer {
            Ok(output) => self.succeeded(client, &call, output, buffer, span),
            Err(error) => {
                self.give_back(client, &call, buffer)?;
                self.failed(client, &call, error, end)
            }
        }
    }

    /// A buffer came back, with what was in it.
    pub(crate) fn give_back(
        &mut self,
        client: usize,
        call: &Call,
        buffer: Option<Buffer>,
    ) -> Result<(), String> {
        match (buffer, call.len) {
            (None, 0) => Ok(()),
            (None, _) => Err("the buffer did not come back".into()),
            (Some(buffer), len) => {
                self.check_source(call, &buffer)?;
                self.clients[client].buffers.give_back(buffer, len)
            }
        }
    }

    /// Nobody may write to what is only a source.
    fn check_source(&self, call: &Call, buffer: &Buffer) -> Result<(), String> {
        let pieces: &[Piece] = match &call.kind {
            Kind::Write { pieces, .. } => pieces,
            Kind::Append { piece, .. } => std::slice::from_ref(piece),
            _ => return Ok(()),
        };
        let mut at = 0;
        for piece in pieces {
            let bytes = buffer.get(at..at + piece.len as usize).unwrap_or(&[]);
            if !data::is_filled(piece, bytes) {
                return Err("the source of a write was changed".into());
            }
            at += piece.len as usize;
        }
        Ok(())
    }

    fn succeeded(
        &mut self,
        client: usize,
        call: &Call,
        output: Output<FileKey>,
        buffer: Option<Buffer>,
        span: Span,
    ) -> Result<(), String> {
        let who = self.clients[client].who;
        if self.store_bad > 0 {
            // What others wrote may be given up now; they are told when they ask.
            self.files.iter_mut().for_each(|file| file.store_fails());
        }
        match (&call.kind, output) {
            (Kind::Ping | Kind::Sync, Output::Unit) => {
                if matches!(call.kind, Kind::Sync) {
                    self.files.iter_mut().for_each(|file| file.synced(who, span));
                    if self.files.iter().any(|file| file.wrote_within(who, None, span)) {
                        self.flush_trap(who, None);
                    }
                }
                Ok(())
            }
            (Kind::Open { slot, file, how, cut }, Output::File(key, _)) => {
                self.slots[*slot].opening -= 1;
                self.opened(client, (*slot, *file), *how, *cut, key, span)
            }
            (Kind::Close { open, file }, Output::Attr(attr)) => {
                self.clients[client].opens.retain(|other| other.number != *open);
                self.files[*file].flushed(who, span.start);
                self.files[*file].committed(who, Some(*open), span, Safety::Stored, None);
                self.files[*file].check_size(attr.size, span)
            }
            (Kind::Read { file, pieces }, Output::Read { bytes, end_of_file }) => {
                let buffer = buffer.ok_or("the buffer did not come back")?;
                let there = buffer.get(..bytes).unwrap_or(&[]);
                self.check_pieces(*file, pieces, there, (bytes, end_of_file), span)?;
                self.clients[client].buffers.give_back(buffer, call.len)
            }
            (Kind::Read { file, pieces }, Output::Lent { bytes, end_of_file, loan }) => {
                let lent = (bytes, end_of_file, loan);
                self.lent((client, call), (*file, pieces), lent, buffer, span)
            }
            (Kind::Write { file, pieces, stable }, Output::Written { bytes, .. }) => {
                self.give_back(client, call, buffer)?;
                if bytes != call.len {
                    return Err(format!("{bytes} of {} bytes were written", call.len));
                }
                for piece in pieces {
                    self.files[*file].done(piece.change, span.end, None)?;
                    if *stable {
                        self.files[*file].made_durable(piece.change);
                    }
                }
                Ok(())
            }
            (Kind::Append { file, piece, stable }, Output::Written { bytes, offset }) => {
                self.give_back(client, call, buffer)?;
                if bytes != call.len {
                    return Err(format!("{bytes} of {} bytes were appended", call.len));
                }
                self.files[*file].done(piece.change, span.end, Some(offset))?;
                if *stable {
                    self.files[*file].made_durable(piece.change);
                }
                Ok(())
            }
            (Kind::Cut { file, change, .. }, Output::Attr(attr)) => {
                self.files[*file].done(*change, span.end, None)?;
                self.files[*file].check_size(attr.size, span)
            }
            (Kind::Commit { open, file, range, flush }, Output::Unit) => {
                let safety = if *flush { Safety::Stored } else { Safety::Durable };
                if range.is_none() {
                    self.files[*file].flushed(who, span.start);
                }
                self.files[*file].committed(who, Some(*open), span, safety, *range);
                let whole = range.is_none() && !*flush;
                if whole && self.files[*file].wrote_within(who, Some(*open), span) {
                    self.flush_trap(who, Some(*open));
                }
                Ok(())
            }
            (Kind::Size { file }, Output::Attr(attr)) => {
                self.files[*file].check_size(attr.size, span)
            }
            (Kind::Cache { file }, output) => self.cache_answered(*file, &output, span),
            (_, other) => Err(format!("an answer of another kind: {other:?}")),
        }
    }

    fn opened(
        &mut self,
        client: usize,
        (slot, file): (usize, usize),
        how: (bool, bool, bool),
        cut: Option<u32>,
        key: FileKey,
        span: Span,
    ) -> Result<(), String> {
        if let Some(change) = cut {
            self.files[file].done(change, span.end, None)?;
        }
        self.next_open += 1;
        let (read, write, append) = how;
        let number = self.next_open;
        let open = Open {
            key,
            number,
            slot,
            file,
            read,
            write,
            append,
            closing: false,
            stream: None,
            references: Default::default(),
            told_by: None,
            cached: Vec::new(),
        };
        let client = &mut self.clients[client];
        client.opens.push(open);
        let attr = client.core.file_attr(key).ok_or("a file without attributes was opened")?;
        self.files[file].check_size(attr.size, span)
    }

    pub(crate) fn check_pieces(
        &mut self,
        file: usize,
        pieces: &[Piece],
        got: &[u8],
        (bytes, end_of_file): (usize, bool),
        span: Span,
    ) -> Result<(), String> {
        let mut at = 0;
        for piece in pieces {
            let len = (bytes - at).min(piece.len as usize);
            let there = got.get(at..at + len).unwrap_or(&[]);
            self.files[file].check_read(span, piece.offset, piece.len, there)?;
            at += len;
            if (len as u64) < piece.len {
                if !end_of_file {
                    return Err("a short read that did not end the file".into());
                }
                break;
            }
        }
        if at != bytes {
            return Err(format!("{bytes} bytes were read, {at} were asked for"));
        }
        Ok(())
    }

    pub(crate) fn failed(
        &mut self,
        client: usize,
        call: &Call,
        error: Error,
        end: u64,
    ) -> Result<(), String> {
        if !self.is_excused(client, call, &error) {
            return Err(format!("an error without a cause: {error} ({error:?})"));
        }
        self.report.excused += 1;
        self.without_server(client, &error);
        let who = self.clients[client].who;
        let status = error.status();
        let late = matches!(status, Some(Status::Io | Status::NoSpc));
        let lost = status == Some(Status::WritesLost);
        match &call.kind {
            Kind::Write { file, pieces, .. } => {
                for piece in pieces {
                    self.files[*file].failed(piece.change, end);
                }
                self.tell(*file, who, late);
            }
            Kind::Append { file, piece, .. } => {
                self.files[*file].failed(piece.change, end);
                self.tell(*file, who, late);
            }
            Kind::Cut { file, change, .. } => {
                self.files[*file].failed(*change, end);
                self.tell(*file, who, late);
            }
            Kind::Open { slot, file, cut, .. } => {
                self.slots[*slot].opening -= 1;
                cut.iter().for_each(|change| self.files[*file].failed(*change, end));
            }
            Kind::Commit { open, file, .. } | Kind::Close { open, file } => {
                self.tell(*file, who, late);
                if lost {
                    self.files[*file].told(who, Some(*open));
                }
                let whole = !matches!(call.kind, Kind::Commit { range: Some(_), .. });
                if whole && (late || lost) {
                    self.files[*file].flushed(who, call.start);
                }
                if matches!(call.kind, Kind::Close { .. }) {
                    self.clients[client].opens.retain(|other| other.number != *open);
                }
            }
            Kind::Sync if lost => self.files.iter_mut().for_each(|file| file.sync_told(who)),
            _ => {}
        }
        Ok(())
    }

    /// A call that met no server at all counts for nothing, and is not repeated at once.
    pub(crate) fn without_server(&mut self, client: usize, error: &Error) {
        if matches!(error, Error::Connect { .. }) {
            self.report.operations = self.report.operations.saturating_sub(1);
            self.clients[client].next_at = self.now() + Duration::from_millis(20);
        }
    }

    fn tell(&mut self, file: usize, who: usize, late: bool) {
        if late {
            self.files[file].told(who, None);
        }
    }
}
