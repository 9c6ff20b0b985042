//! An entry of a ring: memory that the kernel writes a request to, and reads the reply from.

use std::io;

use dafs_fabric::mem::Buffer;
use zerocopy::{FromBytes, IntoBytes};

use crate::kernel::abi::{InHeader, OutHeader, RingCommand, RingEntry, RingHeader};
use crate::kernel::decode::Malformed;
use crate::kernel::encode::Reply;

/// Where the kernel finds what stands before the data, and the data: an address and bytes of each.
pub(super) type Places = [[u64; 2]; 2];

/// Memory for one request at a time, and the reply to it.
#[derive(Debug)]
pub struct Entry {
    queue: u16,
    front: Buffer,
    data: Buffer,
    /// The request that it has.
    commit_id: u64,
    unique: u64,
}

/// The structure that an opcode names.
#[derive(Debug, Clone, Copy)]
pub struct Head {
    bytes: [u8; 128],
    len: usize,
}

impl Head {
    /// It.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// A request, but for the data behind its structure.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub header: InHeader,
    pub head: Head,
    /// Bytes at the beginning of [`Entry::data`].
    pub data_len: usize,
}

impl Entry {
    /// Bytes of `front`.
    pub const FRONT_BYTES: usize = size_of::<RingHeader>();

    /// Of this queue, with memory for what stands before the data, and for data.
    pub fn new(queue: u16, front: Buffer, data: Buffer) -> Entry {
        Entry { queue, front, data, commit_id: 0, unique: 0 }
    }

    /// The queue.
    pub fn queue(&self) -> u16 {
        self.queue
    }

    /// Memory of the data: of the request, or the room for those of the reply.
    pub fn data(&mut self) -> &mut Buffer {
        &mut self.data
    }

    /// The request that the kernel put into it.
    ///
    /// # Errors
    /// It is none; there is something to be answered all the same.
    pub fn request(&mut self) -> Result<Request, Malformed> {
        let front = RingHeader::ref_from_prefix(&self.front).map_err(|_| Malformed)?.0;
        let RingHeader { in_out, op_in, entry } = front;
        let (header, _) = InHeader::read_from_prefix(in_out).map_err(|_| Malformed)?;
        (self.commit_id, self.unique) = (entry.commit_id, header.unique);
        let data_all = entry.payload_len as usize;
        let len = (header.len as usize).checked_sub(size_of::<InHeader>() + data_all);
        let len = len.filter(|len| *len <= op_in.len()).ok_or(Malformed)?;
        let extensions = usize::from(header.extension_len) * 8;
        let data_len = data_all.checked_sub(extensions).ok_or(Malformed)?;
        if data_all > self.data.len() {
            return Err(Malformed);
        }
        Ok(Request { header, head: Head { bytes: *op_in, len }, data_len })
    }

    /// What the command about it says.
    pub(super) fn command(&self) -> RingCommand {
        RingCommand { commit_id: self.commit_id, queue: self.queue, ..RingCommand::default() }
    }

    /// Where it is. Memory that nobody used yet is not touched by that.
    pub(super) fn places(&self) -> Places {
        [&self.front, &self.data].map(|memory| [memory.as_ptr() as u64, memory.len() as u64])
    }

    /// So many bytes of data are the reply, or `error` is.
    fn answered(&mut self, error: i32, len: usize) -> io::Result<()> {
        let wrong = || io::Error::from(io::ErrorKind::InvalidData);
        let payload_len = u32::try_from(len).map_err(|_| wrong())?;
        let len = payload_len.checked_add(size_of::<OutHeader>() as u32).ok_or_else(wrong)?;
        let out = OutHeader { len, error, unique: self.unique };
        let front = RingHeader::mut_from_prefix(&mut self.front).map_err(|_| wrong())?.0;
        out.write_to_prefix(&mut front.in_out).map_err(|_| wrong())?;
        front.entry = RingEntry { commit_id: self.commit_id, payload_len, ..RingEntry::default() };
        Ok(())
    }
}

impl Reply for Entry {
    fn reply(&mut self, head: &[u8], data: &[u8]) -> io::Result<()> {
        self.reply_pieces(&[head, data])
    }

    fn reply_pieces(&mut self, pieces: &[&[u8]]) -> io::Result<()> {
        let mut rest: &mut [u8] = &mut self.data;
        let mut len = 0;
        for piece in pieces {
            let Some((to, left)) = rest.split_at_mut_checked(piece.len()) else {
                return self.reply_error(libc::EIO);
            };
            to.copy_from_slice(piece);
            (rest, len) = (left, len + piece.len());
        }
        self.answered(0, len)
    }

    fn reply_room(&mut self, len: usize) -> io::Result<()> {
        match len <= self.data.len() {
            true => self.answered(0, len),
            false => self.reply_error(libc::EIO),
        }
    }

    fn reply_error(&mut self, errno: i32) -> io::Result<()> {
        self.answered(-errno, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::abi::{ReadIn, opcode};

    const DATA: usize = 8192;

    fn entry() -> Entry {
        let front = Buffer::new(Entry::FRONT_BYTES).expect("memory");
        Entry::new(3, front, Buffer::new(DATA).expect("memory"))
    }

    fn front(entry: &mut Entry) -> &mut RingHeader {
        RingHeader::mut_from_prefix(&mut entry.front).expect("a front").0
    }

    /// As the kernel writes it.
    fn put(entry: &mut Entry, header: &InHeader, head: &[u8], payload_len: u32) {
        let front = front(entry);
        header.write_to_prefix(&mut front.in_out).expect("room");
        front.op_in[..head.len()].copy_from_slice(head);
        front.entry = RingEntry { commit_id: 77, payload_len, ..RingEntry::default() };
    }

    fn header(head: usize, data: usize) -> InHeader {
        let len = u32::try_from(size_of::<InHeader>() + head + data).expect("small");
        InHeader { len, opcode: opcode::READ, unique: 76, ..InHeader::default() }
    }

    #[test]
    fn the_kernels_structures_have_its_sizes() {
        assert_eq!((size_of::<RingHeader>(), size_of::<RingEntry>()), (288, 32));
        assert_eq!(size_of::<RingCommand>(), 24);
        let entry = entry();
        let (first, second) = (entry.front.as_ptr() as u64, entry.data.as_ptr() as u64);
        assert_eq!(entry.places(), [[first, 288], [second, DATA as u64]]);
    }

    #[test]
    fn what_the_kernel_put_is_taken_apart() {
        let mut entry = entry();
        let read = ReadIn { fh: 5, size: 9, ..ReadIn::default() };
        put(&mut entry, &header(40, 0), read.as_bytes(), 0);
        let request = entry.request().expect("a request");
        assert_eq!(request.head.bytes(), read.as_bytes());
        assert_eq!((request.header.unique, request.data_len), (76, 0));
        let command = entry.command();
        assert_eq!((command.commit_id, command.queue), (77, 3));
        let extended = InHeader { extension_len: 2, ..header(0, 100) };
        put(&mut entry, &extended, &[], 100);
        let request = entry.request().expect("a request");
        assert_eq!((request.head.bytes().len(), request.data_len), (0, 84));
    }

    #[test]
    fn lengths_that_do_not_fit_are_refused() {
        let mut entry = entry();
        for (header, payload) in [
            (InHeader { len: 39, ..header(0, 0) }, 0),
            (header(0, 7), 8),
            (header(129, 0), 0),
            (InHeader { extension_len: 2, ..header(0, 15) }, 15),
            (header(0, DATA + 1), DATA as u32 + 1),
            (header(0, 0), u32::MAX),
        ] {
            put(&mut entry, &header, &[], payload);
            assert_eq!(entry.request().err(), Some(Malformed), "{header:?} {payload}");
            assert_eq!(entry.command().commit_id, 77, "it is to be answered");
        }
    }

    #[test]
    fn a_reply_is_never_larger_than_its_room() {
        let mut entry = entry();
        put(&mut entry, &header(0, 0), &[], 0);
        entry.request().expect("a request");
        let told = |entry: &mut Entry| {
            let header = *front(entry);
            let (out, _) = OutHeader::read_from_prefix(&header.in_out).expect("a header");
            assert_eq!((out.unique, header.entry.commit_id), (76, 77));
            assert_eq!(out.len, header.entry.payload_len + 16);
            (out.error, header.entry.payload_len as usize)
        };
        entry.reply(b"head", b"data").expect("told");
        assert_eq!(told(&mut entry), (0, 8));
        assert_eq!(entry.data[..8], *b"headdata");
        entry.reply_pieces(&[&[1; DATA - 1], &[2]]).expect("told");
        assert_eq!(told(&mut entry), (0, DATA));
        entry.reply_pieces(&[&[1; DATA], &[2]]).expect("told");
        assert_eq!(told(&mut entry), (-libc::EIO, 0));
        entry.reply_room(DATA).expect("told");
        assert_eq!(told(&mut entry), (0, DATA));
        entry.reply_room(DATA + 1).expect("told");
        assert_eq!(told(&mut entry), (-libc::EIO, 0));
        entry.reply_error(libc::ENOENT).expect("told");
        assert_eq!(told(&mut entry), (-libc::ENOENT, 0));
    }
}
