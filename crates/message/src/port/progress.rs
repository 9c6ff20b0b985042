//! What the engine tells: completions, ends, and what follows from them.

use dafs_fabric::{QueuePair, QueuePairEvent, Status, WorkCompletion};

use super::Port;
use crate::connection::State;
use crate::event::Event;
use crate::fault::Fault;
use crate::header::Setup;
use crate::planted::{Defect, planted};
use crate::work::{Target, parse_work_id};

impl Port {
    /// Takes what the engine has to tell. New connections are handled at once, since messages on
    /// them may be among the completions just polled; ends are told after those.
    pub(super) fn take_events(&mut self, first: Option<QueuePairEvent>) -> bool {
        let (mut any, mut next) = (false, first);
        while let Some(event) = next.or_else(|| self.sh.engine.poll_event()) {
            any |= self.take_event(event);
            next = None;
        }
        any
    }

    fn take_event(&mut self, event: QueuePairEvent) -> bool {
        match event {
            QueuePairEvent::Connected { queue_pair, private_data } => {
                self.connected(queue_pair, private_data);
                true
            }
            other => {
                let counts = !matches!(other, QueuePairEvent::UnmatchedTag { .. });
                self.late_events.push(other);
                counts
            }
        }
    }

    fn connected(&mut self, queue_pair: QueuePair, mut private_data: Vec<u8>) {
        let Some(index) = self.by_queue_pair.get(&queue_pair).copied() else { return };
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        if connection.state != State::Connecting {
            return;
        }
        let conn = connection.id;
        let reason = match Setup::decode(&private_data) {
            // Without tags the peer would get keys to whole buffers, good beyond their requests.
            Some((theirs, _)) if connection.ours.tagged && !theirs.tagged => {
                "the peer does not match tags, which this side asks for"
            }
            Some((theirs, rest)) => {
                let setup_bytes = private_data.len() - rest.len();
                connection.open(&theirs, &self.sh);
                private_data.drain(..setup_bytes);
                self.sh.events.push_back(Event::Connected { conn, private_data });
                return;
            }
            None => "the peer speaks another version of the message protocol",
        };
        connection.unannounced = true;
        connection.state = State::Closing;
        self.sh.engine.disconnect(queue_pair);
        let reason = reason.to_owned();
        self.sh.events.push_back(Event::Refused { conn, refused: false, reason });
    }

    // What most polls of who spins do not do is no part of them: they would save registers for it.
    #[inline(never)]
    pub(super) fn handle_late_events(&mut self) {
        let mut events = std::mem::take(&mut self.late_events);
        for event in events.drain(..) {
            match event {
                QueuePairEvent::Refused { queue_pair, refused, reason } => {
                    self.refused(queue_pair, refused, reason);
                }
                QueuePairEvent::Disconnected { queue_pair, reason } => {
                    if let Some(index) = self.by_queue_pair.get(&queue_pair).copied() {
                        self.end(index, reason, false);
                    }
                }
                QueuePairEvent::Quiescent { queue_pair } => self.quiescent(queue_pair),
                QueuePairEvent::Returned { queue_pair } => self.is_returned(queue_pair),
                QueuePairEvent::UnmatchedTag { queue_pair, tag } => {
                    let Some(index) = self.by_queue_pair.get(&queue_pair).copied() else {
                        continue;
                    };
                    let Some(connection) = self.connections[index as usize].as_mut() else {
                        continue;
                    };
                    if connection.state == State::Open
                        && let Err(fault) = connection.check_unmatched(tag)
                    {
                        self.sh.faults.push((index, fault));
                    }
                }
                _ => {}
            }
        }
        self.late_events = events;
    }

    fn refused(&mut self, queue_pair: QueuePair, refused: bool, reason: String) {
        let Some(index) = self.by_queue_pair.get(&queue_pair).copied() else { return };
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        if connection.state == State::Closing {
            // Its owner gave up before; no Quiescent follows a refusal.
            return self.quiescent(queue_pair);
        }
        let conn = connection.id;
        connection.unannounced = true;
        self.quiescent(queue_pair);
        self.sh.events.push_back(Event::Refused { conn, refused, reason });
    }

    #[inline(never)]
    pub(super) fn handle_completions(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        for completion in &completions {
            self.handle_completion(completion);
        }
        completions.clear();
        self.completions = completions;
    }

    #[inline(always)]
    fn handle_completion(&mut self, completion: &WorkCompletion) {
        let Some((target, index, number)) = parse_work_id(completion.wr_id.0) else { return };
        if target == Target::Receive {
            let is_orphaned =
                completion.status == Status::Flushed && !planted(Defect::CaughtReceiveReused);
            if is_orphaned && self.set_aside(completion, number) {
                return;
            }
            self.handle_receive(completion, number);
            return self.sh.pool.done(number, &mut *self.sh.engine);
        }
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        if connection.state != State::Open || connection.queue_pair != completion.queue_pair {
            return;
        }
        if completion.status == Status::Success && target == Target::Reply {
            // What a server is mostly told of.
            return connection.reply_work_done(&mut self.sh, number, completion.byte_len);
        }
        let result = match completion.status {
            Status::Success => connection.handle_work(&mut self.sh, target, number, completion),
            // The engine tells of the end.
            Status::Flushed | Status::Cancelled => Ok(()),
            Status::RemoteAccess if target == Target::Named => {
                self.sh.named_read(connection.id, number, None);
                Ok(())
            }
            Status::RemoteAccess => {
                // Next time without.
                self.sh.refers &= target != Target::Refer;
                Err(Fault::local("the peer refused access to memory it named"))
            }
            Status::LocalLength => Err(Fault::peer("more data than announced")),
            _ => Err(Fault::local("a work request failed")),
        };
        if let Err(fault) = result {
            self.fail(index, fault.reason.to_owned(), fault.peer);
        }
    }

    /// A receive that a connection broke off with is the transport's until `Quiescent`.
    fn set_aside(&mut self, completion: &WorkCompletion, number: u32) -> bool {
        let index = self.by_queue_pair.get(&completion.queue_pair).copied();
        let connection = index.and_then(|index| self.connections[index as usize].as_mut());
        let Some(connection) = connection else { return false };
        connection.orphaned_receives.push(number);
        self.sh.pool.set_aside(number, &mut *self.sh.engine);
        true
    }

    fn handle_receive(&mut self, completion: &WorkCompletion, number: u32) {
        let Some(index) = self.place_of(completion.queue_pair) else { return };
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        if connection.state != State::Open {
            return;
        }
        let len = completion.byte_len as usize;
        let result = match completion.status {
            Status::Success if len <= self.sh.pool.message_bytes() => {
                connection.handle_message(&mut self.sh, number, len)
            }
            Status::Success | Status::LocalLength => {
                Err(Fault::peer("message longer than the receives it was told of"))
            }
            _ => return,
        };
        if let Err(fault) = result {
            self.fail(index, fault.reason.to_owned(), fault.peer);
        }
    }

    #[inline(always)]
    pub(super) fn flush_blocked(&mut self) {
        if !self.sh.blocked.is_empty() {
            self.flush_some_blocked();
        }
    }

    #[inline(never)]
    fn flush_some_blocked(&mut self) {
        let mut blocked = std::mem::take(&mut self.sh.blocked);
        blocked.retain(|index| match self.connections.get_mut(*index as usize) {
            Some(Some(connection)) if connection.state == State::Open => {
                !connection.flush(&mut self.sh)
            }
            _ => false,
        });
        blocked.append(&mut self.sh.blocked);
        self.sh.blocked = blocked;
    }

    #[inline(always)]
    pub(super) fn end_faulty(&mut self) {
        if !self.sh.faults.is_empty() {
            self.end_some_faulty();
        }
    }

    #[inline(never)]
    fn end_some_faulty(&mut self) {
        while let Some((index, fault)) = self.sh.faults.pop() {
            self.fail(index, fault.reason.to_owned(), fault.peer);
        }
    }

    /// Ends a connection from our side.
    pub(super) fn fail(&mut self, index: u32, reason: String, peer_fault: bool) {
        let Some(Some(connection)) = self.connections.get(index as usize) else { return };
        if connection.state == State::Closing {
            return;
        }
        self.sh.engine.disconnect(connection.queue_pair);
        self.end(index, reason, peer_fault);
    }

    /// Tells of the end, once.
    fn end(&mut self, index: u32, reason: String, peer_fault: bool) {
        let Some(Some(connection)) = self.connections.get_mut(index as usize) else { return };
        if connection.state == State::Closing {
            return;
        }
        connection.state = State::Closing;
        connection.counters.peer_faults += u64::from(peer_fault);
        connection.clear_outbox();
        connection.stop_service(&mut self.sh);
        connection.stop_requests(&mut self.sh);
        let conn = connection.id;
        let early = planted(Defect::QuiescentTooEarly) && !connection.unannounced;
        if early {
            connection.end_service_all(&mut self.sh);
            connection.end_requests(&mut self.sh);
            connection.unannounced = true;
        }
        self.sh.events.push_back(Event::Disconnected { conn, reason, peer_fault });
        if early {
            self.sh.events.push_back(Event::Quiescent { conn });
        }
    }

    /// The transport has left all memory of a queue pair: what it held is let go, its number is
    /// free.
    fn quiescent(&mut self, queue_pair: QueuePair) {
        self.last_found = None;
        let Some(index) = self.by_queue_pair.remove(&queue_pair) else { return };
        let Some(mut connection) = self.connections[index as usize].take() else { return };
        if connection.state == State::Open {
            // An engine that did not tell of the end first.
            self.connections[index as usize] = Some(connection);
            self.end(index, "the connection ended".to_owned(), false);
            let Some(again) = self.connections[index as usize].take() else { return };
            connection = again;
        }
        connection.end_service_all(&mut self.sh);
        connection.end_requests(&mut self.sh);
        self.sh.ended.add(&connection.counters);
        self.sh.pool.release(connection.receives);
        for receive in connection.orphaned_receives.drain(..) {
            self.sh.pool.put_back(receive);
        }
        let conn = connection.id;
        let unannounced = connection.unannounced;
        drop(connection);
        let generation = &mut self.generations[index as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(index);
        if !unannounced {
            self.sh.events.push_back(Event::Quiescent { conn });
        }
    }
}
