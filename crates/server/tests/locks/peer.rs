//! A client without the client library, on a simulated network.

use std::collections::HashMap;
use std::sync::Arc;

use dafs_fabric::{Address, Arena, SgList};
use dafs_message::{ConnId, Event, Node, RequestId};
use dafs_protocol::*;

/// The server's, in the network.
pub const SERVER: u32 = 1;

/// Where it listens.
pub fn address() -> Address {
    Address { scheme: "sim".into(), target: SERVER.to_string() }
}

/// For data of a slot.
pub const MEMORY: usize = 4096;

pub struct Peer {
    pub node: Node,
    pub client: ClientId,
    pub conn: Option<ConnId>,
    pub connected: bool,
    pub session: Option<(SessionId, SessionSecret)>,
    pub sequences: Vec<u32>,
    pub next_tag: u32,
    /// [`MEMORY`] for each slot.
    pub memory: Arc<Arena>,
    pub replies: HashMap<u32, Vec<u8>>,
    pub callbacks: Vec<(RequestId, CallbackRequest)>,
    pub disconnects: usize,
}

impl Peer {
    pub fn submit(&mut self, bytes: &[u8]) -> u32 {
        self.submit_with(bytes, SgList::new(), SgList::new())
    }

    pub fn submit_with(&mut self, bytes: &[u8], data: SgList, into: SgList) -> u32 {
        let conn = self.conn.expect("a connection");
        self.next_tag += 1;
        self.node.submit(conn, self.next_tag, bytes, data, into).expect("submitted");
        self.node.ring();
        self.next_tag
    }

    pub fn poll(&mut self) {
        self.node.poll();
        while let Some(event) = self.node.next_event() {
            match event {
                Event::Connected { .. } => self.connected = true,
                Event::Reply { tag, header, .. } => drop(self.replies.insert(tag, header)),
                Event::Request { id, header, .. } => {
                    let callback = decode_callback(&header).expect("a callback");
                    self.callbacks.push((id, callback));
                }
                Event::Disconnected { conn, .. } if self.conn == Some(conn) => {
                    self.connected = false;
                    self.disconnects += 1;
                    self.callbacks.clear();
                }
                Event::Refused { reason, .. } => panic!("refused: {reason}"),
                _ => {}
            }
        }
        self.node.ring();
    }
}
