//! How work is posted: at once where that can be, else in a list that polls go through.

use dafs_fabric::{Opcode, PostError, QueuePair, RemoteSpan, SgList, Span, Status, WrId, sg_bytes};

use super::ShmEngine;
use crate::queue_pair::{AT_ONCE_MAX, Connection, Kind, Work};
use crate::shared::{SEND_QUEUE_DEPTH, SGE_MAX};
use crate::slots::slot_of;

impl ShmEngine {
    /// Does what puts a message into a ring, if that can be done now.
    #[inline(always)]
    pub(super) fn put_now(
        &mut self,
        queue_pair: QueuePair,
        put: impl FnOnce(&mut Connection) -> bool,
    ) -> bool {
        let passes = self.passes;
        let Ok(connection) = self.slots.connection(queue_pair) else { return false };
        if !put(connection) {
            return false;
        }
        connection.last = passes;
        let slot = slot_of(queue_pair);
        if !std::mem::replace(&mut connection.listed, true) {
            self.to_ring.push(slot);
        }
        if !connection.active {
            self.activate(slot);
        }
        true
    }

    /// Posts what could not be done at once.
    pub(super) fn post_work(&mut self, queue_pair: QueuePair, work: Work) -> Result<(), PostError> {
        self.slots.connection(queue_pair)?.work.push_back(work);
        self.has_more = true;
        self.activate(slot_of(queue_pair));
        Ok(())
    }

    #[inline]
    pub(super) fn post_one_sided(
        &mut self,
        queue_pair: QueuePair,
        (wr_id, signaled): (WrId, bool),
        data: &mut SgList,
        (remote, write): (RemoteSpan, bool),
    ) -> Result<(), PostError> {
        let (total, polls, passes) = (remote.len as usize, self.polls, self.passes);
        let connection = self.slots.connection(queue_pair)?;
        if connection.under_way(polls) >= SEND_QUEUE_DEPTH {
            return Err(PostError::QueueFull);
        }
        let opcode = if write { Opcode::RdmaWrite } else { Opcode::RdmaRead };
        if connection.work.is_empty() && total <= AT_ONCE_MAX {
            match connection.copy(data, (remote, write), 0, total) {
                Ok(done) => {
                    let status =
                        if done.is_some() { Status::Success } else { Status::RemoteAccess };
                    if signaled || done.is_none() {
                        let queue = (&mut self.queue, polls);
                        connection.complete((wr_id, opcode), (status, total), queue);
                    }
                    connection.last = passes;
                    data.clear();
                    if !connection.active {
                        self.activate(slot_of(queue_pair));
                    }
                    return Ok(());
                }
                Err(why) => self.broken.push((slot_of(queue_pair), why)),
            }
        }
        let kind = if write { Kind::Write(remote) } else { Kind::Read(remote) };
        let data = std::mem::take(data);
        self.post_work(queue_pair, Work { wr_id, signaled, kind, data, moved: 0, total })
    }
}

/// Checks a list; returns its bytes.
#[inline]
pub(super) fn check_list(data: &[Span], bytes_max: usize) -> Result<usize, PostError> {
    let bytes = sg_bytes(data);
    if data.len() > SGE_MAX || bytes > bytes_max {
        return Err(PostError::TooLarge);
    }
    if data.iter().any(Span::is_of_file) {
        return Err(PostError::Unsupported);
    }
    Ok(bytes)
}
