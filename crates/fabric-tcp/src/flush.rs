//! How queued work leaves: by turns, as the kernel takes it.

use std::io;

use dafs_fabric::{Opcode, Status};

use crate::core::Core;
use crate::queue_pair::Connection;
use crate::send::Gone;
use crate::sys::{Gather, is_out_of_memory, is_temporary};

impl Connection {
    /// Hands queued work to the kernel, a turn at most. True when more could go at once.
    pub fn flush(&mut self, core: &mut Core) -> bool {
        if self.send.broken {
            return false;
        }
        if self.send.batch.is_empty() {
            let most = core.turns.send_bytes(&self.load);
            self.send.fill(&mut self.requests, most, &mut self.load);
            if self.send.batch.is_empty() {
                self.send.blocked = false;
                return false;
            }
        }
        match self.send_batch(core) {
            Ok(is_taken) => {
                self.send.blocked = !is_taken;
                is_taken && self.send.has_work()
            }
            // Without memory a socket with room stays writable: epoll lets us try again.
            Err(error) if is_temporary(&error) || is_out_of_memory(&error) => {
                self.send.blocked = true;
                false
            }
            // The receiving half meets the end of the connection too, after the bytes that
            // came before it; where only sending failed, there is an end from now on.
            Err(error) => {
                tracing::debug!(%error, "cannot send");
                self.send.broken = true;
                self.shut_down();
                false
            }
        }
    }

    fn shut_down(&self) {
        // Another descriptor of the same socket, which may be of another family, too.
        if let Ok(socket) = self.socket.try_clone() {
            let _ = std::net::TcpStream::from(socket).shutdown(std::net::Shutdown::Both);
        }
    }

    /// False when the kernel did not take all that it was asked to.
    fn send_batch(&mut self, core: &mut Core) -> io::Result<bool> {
        loop {
            let (sent, asked, is_cut_by_file) = self.send_call(core)?;
            self.advance(sent, core);
            if sent < asked || !is_cut_by_file || self.send.batch.is_empty() {
                return Ok(sent == asked);
            }
        }
    }

    /// One system call: bytes that were sent, bytes asked for, and whether it ended because a
    /// file needs a call of its own.
    fn send_call(&mut self, core: &mut Core) -> io::Result<(usize, usize, bool)> {
        let pins = self.send.batch.pin_regions();
        let mut gather = Gather::new(&mut core.io);
        self.send.gather(&mut gather, &self.requests, &core.zeros);
        core.system_calls += 1;
        let sent = gather.send(std::os::fd::AsRawFd::as_raw_fd(&self.socket))?;
        drop(pins);
        core.turns.sent(sent);
        Ok((sent, gather.len(), gather.is_cut_by_file()))
    }

    /// The kernel has `sent` bytes more.
    fn advance(&mut self, mut sent: usize, core: &mut Core) {
        loop {
            while let Some(ended) = self.send.batch.pop_sent(&mut sent) {
                if let Some(slot) = ended {
                    self.left(slot, core);
                }
            }
            match self.send.answers_left(self.id, &mut sent) {
                Some(Gone::Through) => {}
                Some(Gone::Told(end)) => core.complete(end),
                Some(Gone::Within) | None => return,
            }
        }
    }

    /// The last byte of a request is with the kernel.
    fn left(&mut self, slot: u32, core: &mut Core) {
        let request = self.requests.at_mut(slot);
        request.left = true;
        match request.posted.opcode {
            // The peer's answer completes these.
            Opcode::RdmaWrite => request.data.clear(),
            Opcode::RdmaRead => {}
            _ => self.complete(slot, Status::Success, core),
        }
    }
}
