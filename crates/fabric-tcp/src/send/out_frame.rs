//! Frames on their way to the kernel.

use std::sync::Arc;

use crate::frame::{FRAME_HEADER_BYTES, FrameHeader};
use crate::memory_region::Region;
use crate::requests::{Request, Slab};
use crate::scatter_gather::Cursor;
use crate::sys::Gather;

/// Where the bytes after a frame header come from.
#[derive(Debug)]
pub enum Source {
    /// Nowhere: there are none.
    None,
    /// A posted request, whose first frame has its head and its header there, too.
    Request(u32),
    /// A region, from this offset on, if access is still allowed when it leaves.
    Region(Arc<Region>, usize),
    /// A region to which access ended: zeros, and a fault will follow.
    Revoked,
    /// Nowhere; but this is a fault if access to the region ended.
    Done(Arc<Region>),
    /// Private data of the handshake.
    Bytes(Box<[u8]>),
}

/// A frame on its way to the kernel.
#[derive(Debug)]
pub struct OutFrame {
    /// Unless the request has it.
    pub head: [u8; FRAME_HEADER_BYTES],
    /// The first frame of a request.
    pub first: bool,
    pub header_len: usize,
    pub payload_len: usize,
    pub source: Source,
    /// Where in the request's data the payload begins.
    pub cursor: Cursor,
    /// The request has no frame after this one.
    pub last: bool,
}

impl OutFrame {
    pub fn new(header: &FrameHeader, source: Source) -> OutFrame {
        OutFrame {
            head: header.encode(),
            first: false,
            header_len: usize::from(header.header_len),
            payload_len: header.payload_len as usize,
            source,
            cursor: Cursor::default(),
            last: false,
        }
    }

    /// The first frame of a request.
    pub fn first_of(slot: u32, request: &mut Request, header: &FrameHeader) -> OutFrame {
        request.begin(header);
        OutFrame {
            head: [0; FRAME_HEADER_BYTES],
            first: true,
            header_len: usize::from(header.header_len),
            payload_len: header.payload_len as usize,
            source: Source::Request(slot),
            cursor: Cursor::default(),
            last: false,
        }
    }

    pub fn len(&self) -> usize {
        FRAME_HEADER_BYTES + self.header_len + self.payload_len
    }
}

/// Adds what is left of the only frame of a request, of which `skip` bytes have left.
#[inline]
pub fn gather_whole<'a>(gather: &mut Gather<'a>, request: &'a Request, skip: usize) {
    let head = request.head_and_header.len();
    if skip == 0 {
        gather.bytes(&request.head_and_header);
        return request.data.iter().for_each(|span| gather.span(span, 0, span.len()));
    }
    gather.bytes(&request.head_and_header[skip.min(head)..]);
    let gone = skip - skip.min(head);
    let mut cursor = Cursor::at(&request.data, gone);
    let left = request.posted.total as usize - gone;
    cursor.walk(&request.data, left, |span, offset, len| gather.span(span, offset, len));
}

/// Adds what is left of a frame of which `skip` bytes have left.
pub fn gather_frame<'a>(
    gather: &mut Gather<'a>,
    frame: &'a OutFrame,
    mut skip: usize,
    requests: &'a Slab<Request>,
    zeros: &'a dafs_fabric::Span,
) {
    // What is left of a part of which `skip` bytes may have gone.
    let mut rest_of = |len: usize| {
        let gone = skip.min(len);
        skip -= gone;
        gone
    };
    if !frame.first {
        gather.bytes(&frame.head[rest_of(FRAME_HEADER_BYTES)..]);
    }
    match &frame.source {
        Source::None | Source::Done(_) => {}
        Source::Request(slot) => {
            let request = requests.at(*slot);
            if frame.first {
                let len = FRAME_HEADER_BYTES + frame.header_len;
                gather.bytes(&request.head_and_header[rest_of(len)..]);
            }
            let gone = rest_of(frame.payload_len);
            let mut cursor = frame.cursor;
            cursor.walk(&request.data, gone, |_, _, _| {});
            cursor.walk(&request.data, frame.payload_len - gone, |span, offset, len| {
                gather.span(span, offset, len);
            });
        }
        Source::Region(region, offset) => {
            let gone = rest_of(frame.payload_len);
            gather.span(region.span(), offset + gone, frame.payload_len - gone);
        }
        Source::Revoked => {
            let gone = rest_of(frame.payload_len);
            gather.span(zeros, 0, frame.payload_len - gone);
        }
        Source::Bytes(bytes) => gather.bytes(&bytes[rest_of(bytes.len())..]),
    }
}
