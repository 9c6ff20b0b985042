//! Where received bytes go.

use dafs_fabric::Span;

use crate::frame::FrameHeader;
use crate::scatter_gather::Cursor;
use crate::sys::Scatter;

/// Where the next bytes of a message go.
#[derive(Default)]
pub(super) struct Sink<'a> {
    pub(super) header: Option<&'a Span>,
    /// Header bytes go to the list too, before the data.
    pub(super) header_in_list: bool,
    /// `None`: they go nowhere.
    pub(super) list: Option<(&'a [Span], Cursor)>,
}

impl<'a> Sink<'a> {
    /// Adds the places of the rest of a body, of which `done` bytes came before.
    pub(super) fn place(
        &mut self,
        io: &mut Scatter<'a>,
        trash: &'a Span,
        header: &FrameHeader,
        done: usize,
    ) {
        let left = header.body_len() - done;
        let header_left = usize::from(header.header_len).saturating_sub(done);
        let Some((list, cursor)) = &mut self.list else {
            io.span(trash, 0, left);
            return;
        };
        let mut listed = left;
        if !self.header_in_list && header_left > 0 {
            listed -= header_left;
            let span = self.header.expect("a header was checked to fit its place");
            io.span(span, done, header_left);
        }
        cursor.walk(list, listed, |span, offset, len| io.span(span, offset, len));
    }

    /// Copies bytes of a body to their place, after `done` bytes that came before.
    pub(super) fn copy(&mut self, bytes: &[u8], header: &FrameHeader, done: usize) {
        let header_left = usize::from(header.header_len).saturating_sub(done);
        let (message, mut data) = bytes.split_at(header_left.min(bytes.len()));
        let Some((list, cursor)) = &mut self.list else { return };
        if self.header_in_list {
            let mut rest = message;
            cursor.walk(list, message.len(), |span, offset, len| {
                let (piece, after) = rest.split_at(len);
                span.write_message(offset, piece);
                rest = after;
            });
        } else if !message.is_empty() {
            let span = self.header.expect("a header was checked to fit its place");
            span.write_message(done, message);
        }
        cursor.walk(list, data.len(), |span, offset, len| {
            let (piece, after) = data.split_at(len);
            span.copy_from(offset, piece);
            data = after;
        });
    }
}
