//! How a connection becomes part of a session.

use std::time::Duration;

use dafs_message::ConnId;
use dafs_protocol::{
    Identity, Nonce, PROTOCOL_VERSION, Purpose, SetupReply, SetupRequest, SizeClass, Status,
    proof_input,
};
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::identity::Proof;
use crate::shared::Shared;

/// A connection that is not part of a session yet.
pub(crate) struct Unproven {
    pub proof: Proof,
    /// Where it comes from.
    pub peer: String,
    pub since: Duration,
    hello: Option<Hello>,
}

#[derive(Clone, Copy)]
struct Hello {
    client: Nonce,
    server: Nonce,
    class: SizeClass,
    purpose: Purpose,
}

/// What a set-up message leads to.
pub(crate) enum Step {
    /// Answer this and go on.
    Answer(SetupReply),
    /// Identity is proven: create or bind. The proof is ours, to be sent with Ready.
    Proven { who: Identity, class: SizeClass, purpose: Purpose, proof: Option<[u8; 32]> },
}

impl Unproven {
    pub(crate) fn new(proof: Proof, peer: String, since: Duration) -> Unproven {
        Unproven { proof, peer, since, hello: None }
    }

    pub(crate) fn step(&mut self, shared: &Shared, request: SetupRequest) -> Step {
        match (request, self.hello) {
            (SetupRequest::Hello { version, .. }, _) if version != PROTOCOL_VERSION => refuse(
                Status::Version,
                format!("server speaks protocol {PROTOCOL_VERSION}, client {version}"),
            ),
            (SetupRequest::Hello { nonce, class, keyed, purpose, .. }, None) => {
                self.hello(shared, nonce, class, keyed, purpose)
            }
            (SetupRequest::Prove { proof }, Some(hello)) => self.prove(shared, &hello, &proof),
            _ => refuse(Status::BadMessage, "set-up message out of order".into()),
        }
    }

    fn hello(
        &mut self,
        shared: &Shared,
        client: Nonce,
        class: SizeClass,
        keyed: bool,
        purpose: Purpose,
    ) -> Step {
        if keyed && shared.key.is_none() {
            let text = "the client has a key and this server none: serve with --key-file";
            return refuse(Status::AuthFailed, text.into());
        }
        match &self.proof {
            Proof::Refused(reason) => refuse(Status::AuthFailed, reason.clone()),
            Proof::Kernel(who) | Proof::Anonymous(who) if !keyed => {
                Step::Proven { who: who.clone(), class, purpose, proof: None }
            }
            _ => {
                let server = shared.random();
                self.hello = Some(Hello { client, server, class, purpose });
                Step::Answer(SetupReply::Challenge { nonce: server })
            }
        }
    }

    /// The key proves the client, and ours the server. Whom the kernel vouches for stays who he
    /// is; others act as the key's owner.
    fn prove(&self, shared: &Shared, hello: &Hello, proof: &[u8; 32]) -> Step {
        let wrong = || refuse(Status::AuthFailed, "the keys of client and server differ".into());
        let Some(key) = &shared.key else { return wrong() };
        let mac = |role| {
            let mut mac =
                Hmac::<Sha256>::new_from_slice(&key.bytes).expect("any key length will do");
            mac.update(&proof_input(role, &hello.client, &hello.server, &hello.purpose));
            mac
        };
        // `verify_slice` compares in constant time.
        if mac(b'C').verify_slice(proof).is_err() {
            return wrong();
        }
        let who = match &self.proof {
            Proof::Kernel(who) => who.clone(),
            _ => key.who.clone(),
        };
        let own = mac(b'S').finalize().into_bytes().into();
        Step::Proven { who, class: hello.class, purpose: hello.purpose, proof: Some(own) }
    }
}

pub(crate) fn refuse(status: Status, text: String) -> Step {
    Step::Answer(SetupReply::Refused { status, text })
}

/// A bind that waits until the connections it replaces are quiescent.
pub(crate) struct WaitingBind {
    pub connection: ConnId,
    pub request: dafs_message::RequestId,
    pub session: std::rc::Rc<crate::session::Session>,
    pub class: SizeClass,
    pub proof: Option<[u8; 32]>,
}
