//! How connections become sessions of the scripted server.

use std::collections::HashMap;

use dafs_fabric::SgList;
use dafs_message::{ConnId, RequestId};
use dafs_protocol::*;
use hmac::{Hmac, Mac};

use super::{Fake, Session};

impl Fake {
    pub(super) fn on_setup(&mut self, id: RequestId, header: &[u8]) {
        if self.script.mute {
            return;
        }
        let request = decode_setup_request(header).expect("a set-up request");
        let answer = match (request, self.script.key.clone()) {
            _ if self.script.refuse.is_some() => SetupReply::Refused {
                status: self.script.refuse.expect("just looked"),
                text: "not\u{7} today".into(),
                proof: None,
            },
            (SetupRequest::Hello { purpose, .. }, Some(_)) => {
                self.hellos.insert(id.conn(), (header.to_vec(), purpose));
                SetupReply::Challenge { nonce: [9; 32] }
            }
            (SetupRequest::Hello { purpose, .. }, None) => self.enter(id.conn(), purpose),
            (SetupRequest::Prove { dialled, proof }, Some(key)) => {
                let (hello, purpose) = self.hellos[&id.conn()].clone();
                let handshake = KeyHandshake { hello, server: [9; 32], dialled };
                let mac = |input: Vec<u8>| -> Proof {
                    let mac = Hmac::<sha2::Sha256>::new_from_slice(&key).expect("key");
                    mac.chain_update(input).finalize().into_bytes().into()
                };
                if proof == mac(handshake.client_input()) {
                    let mut reply = self.enter(id.conn(), purpose);
                    let mut said = Vec::new();
                    encode_setup_reply(&reply, &mut said);
                    add_proof(&mut said, |said| mac(handshake.server_input(said)));
                    if let (SetupReply::Ready { attr, .. }, true) =
                        (&mut reply, self.script.changes_grant)
                    {
                        attr.slots += 1;
                        let proof = before_proof(&said).len();
                        let proof = said.split_off(proof);
                        said.clear();
                        encode_setup_reply(&reply, &mut said);
                        add_proof(&mut said, |_| proof.try_into().expect("a proof"));
                    }
                    return self.node.reply(id, &said, SgList::new(), 0);
                }
                let text = "wrong key".into();
                SetupReply::Refused { status: Status::AuthFailed, text, proof: None }
            }
            (SetupRequest::Prove { .. }, None) => panic!("a proof that nobody asked for"),
        };
        let mut bytes = Vec::new();
        encode_setup_reply(&answer, &mut bytes);
        self.node.reply(id, &bytes, SgList::new(), 0);
    }

    fn enter(&mut self, conn: ConnId, purpose: Purpose) -> SetupReply {
        let granted = SessionAttr {
            slots: self.script.slots.unwrap_or(4),
            data_bytes_max: 256 << 10,
            inline_bytes: 512,
            wait: WaitMode::Adaptive,
            lease_ms: self.script.lease_ms,
            tagged: true,
            rdma_read: true,
            read_ahead: true,
        };
        let id = match purpose {
            Purpose::Create { .. } => {
                self.next += 1;
                let id = SessionId(u128::from(self.next).to_le_bytes());
                let session = Session {
                    slots: ServerSlots::new(granted.slots),
                    secret: [7; 16],
                    opens: HashMap::new(),
                    users: HashMap::new(),
                    targets: HashMap::new(),
                };
                self.sessions.insert(id, session);
                id
            }
            Purpose::Bind { session, secret } => {
                let known = self.sessions.get(&session);
                if known.is_none_or(|session| session.secret != secret) {
                    let text = "no such session".into();
                    return SetupReply::Refused { status: Status::BadSession, text, proof: None };
                }
                session
            }
        };
        self.conns.insert(conn, id);
        SetupReply::Ready {
            version: PROTOCOL_VERSION,
            features: Features::OURS,
            session: id,
            secret: [7; 16],
            attr: granted,
            verifier: self.verifier(),
            proof: None,
            uid: self.script.uid,
            addresses: vec!["fake:1".into()],
            same_host: self.script.same_host,
        }
    }
}
