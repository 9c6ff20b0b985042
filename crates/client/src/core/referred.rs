//! Where the server's cache has blocks of a file, and its memory, to be read without the server.

use dafs_fabric::{MemoryRegion, Rkey, Span};
use dafs_message::ConnId;
use dafs_protocol::{Features, ReferenceInfo, decode_references};

use super::Core;
use super::answer::{TOO_MANY_BYTES, message};
use super::call::Flight;
use super::output::{Output, Referred};

impl Core {
    /// Whether the server may tell of its cache, and this process read it.
    pub fn gets_references(&self) -> bool {
        self.why_no_references().is_none()
    }

    /// Why not.
    pub(crate) fn why_no_references(&self) -> Option<&'static str> {
        match &self.config {
            config if !config.optimistic => Some("the session does without (optimistic=off)"),
            config if !config.in_place => Some("the session reads no memory of the server"),
            _ if !self.shares_memory() => Some(
                "the session does not go by shared memory with a server of root or of one's own user",
            ),
            _ if !self.session.facts.features.has(Features::REFERENCES) => {
                Some("the server is of an older version")
            }
            _ => None,
        }
    }

    /// Lets the server read and write this memory, as long as the region lives.
    pub(crate) fn share(&self, memory: &Span) -> Option<MemoryRegion> {
        let conn = self.links.first()?.ready_conn().filter(|_| self.shares_memory())?;
        self.node.share(conn, memory)
    }

    pub(super) fn on_references(
        &mut self,
        conn: ConnId,
        flight: Flight,
        info: &ReferenceInfo,
        data_len: u32,
    ) {
        let call = flight.call;
        let room = call.work.reply_bytes().min(call.memory.len()).min(data_len as usize);
        if info.bytes as usize > room {
            return self.fault(conn, call, TOO_MANY_BYTES);
        }
        let bytes = message(&call.memory, info.bytes as usize);
        let slots = decode_references(&bytes).collect();
        // Only a server whom this process trusts with its own memory: it is believed what it says of pages.
        let mut map = |rkey| match self.may_share_memory(conn) {
            true => self.node.map(conn, rkey),
            false => None,
        };
        let (cache, entries) = (map(Rkey(info.cache)), map(Rkey(info.entries)));
        let referred = Referred { info: *info, slots, memory: cache.zip(entries) };
        self.finish(call, Ok(Output::References(Box::new(referred))));
    }
}
