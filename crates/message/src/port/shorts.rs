//! Short messages, which take no receive: answered where they were received, or as events.

use super::Port;
use crate::connection::State;
use crate::event::{Event, Short};
use crate::service::AtOnce;

/// Messages that come without a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shorts {
    /// The network has none.
    None,
    /// All that came until the last poll were taken.
    Drained,
    /// There may be some.
    Perhaps,
    /// One was taken, and not looked at.
    Taken,
}

impl Port {
    /// What was received and not looked at comes before all that comes now.
    #[cold]
    pub(super) fn tell_short(&mut self) {
        let before = std::mem::take(&mut self.sh.events);
        self.shorts = Shorts::Taken;
        if let Some(event) = self.next_short_as_event() {
            self.sh.events.push_back(event);
        }
        self.shorts = Shorts::Perhaps;
        let mut told = std::mem::replace(&mut self.sh.events, before);
        self.sh.events.append(&mut told);
    }

    /// What [`next_short`](Self::next_short) gives, with its header.
    #[inline(never)]
    pub(super) fn next_short_as_event(&mut self) -> Option<Event> {
        let short = self.next_short(&mut |_, _| false)?;
        Some(short.with_header(self.keep_short_header()))
    }

    /// See [`Node::next_short`](crate::Node::next_short).
    #[inline(always)]
    pub fn next_short(
        &mut self,
        answer: &mut impl FnMut(AtOnce<'_>, &[u8]) -> bool,
    ) -> Option<Short> {
        while self.sh.events.is_empty() && self.take_short() {
            self.shorts = Shorts::Perhaps;
            let Some(index) = self.place_of(self.short.queue_pair) else { continue };
            let Some(connection) = self.connections[index as usize].as_deref_mut() else {
                continue;
            };
            if connection.state != State::Open {
                continue;
            }
            match connection.handle_short(&mut self.sh, &self.short, answer) {
                Ok(Some((short, at))) => {
                    self.short_at = at;
                    return Some(short);
                }
                Ok(None) => {}
                Err(fault) => self.fail(index, fault.reason.to_owned(), fault.peer),
            }
        }
        None
    }

    /// There may be what [`next_short`](Self::next_short) gives.
    #[inline]
    pub fn may_have_short(&self) -> bool {
        self.shorts > Shorts::Drained
    }

    /// Events come before what is short.
    #[inline]
    pub fn is_behind_events(&self) -> bool {
        !self.sh.events.is_empty()
    }

    /// The header of what [`next_short`](Self::next_short) gave.
    #[inline]
    pub fn short_header(&self) -> &[u8] {
        self.short.bytes.get(self.short_at..self.short.len).unwrap_or_default()
    }

    /// The same in memory of its own.
    pub fn keep_short_header(&mut self) -> Vec<u8> {
        let header = self.short.bytes.get(self.short_at..self.short.len).unwrap_or_default();
        self.sh.copy_of_header(header)
    }

    /// Takes a short message, if none is taken.
    #[inline]
    pub(super) fn take_short(&mut self) -> bool {
        if self.shorts == Shorts::Perhaps {
            let is_taken = self.sh.engine.take_short(&mut self.short);
            self.shorts = if is_taken { Shorts::Taken } else { Shorts::Drained };
        }
        self.shorts == Shorts::Taken
    }
}
