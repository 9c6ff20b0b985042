//! How a connection becomes part of a session.

use std::time::Duration;

use dafs_fabric::PeerInfo;
use dafs_message::ConnId;
use dafs_protocol::{
    Dialled, Identity, KeyHandshake, Nonce, PROTOCOL_VERSION, Purpose, SetupReply, SetupRequest,
    SizeClass, Status,
};
use hmac::{Hmac, Mac};
use sha2::Sha256;

use crate::identity::Proof;
use crate::shared::{Key, Shared};

/// A connection that is not part of a session yet.
pub(crate) struct Unproven {
    pub proof: Proof,
    /// Where it comes from.
    pub peer: String,
    pub since: Duration,
    /// Our end's address.
    own: Dialled,
    /// What was said, with our challenge to it.
    hello: Option<(SetupRequest, Nonce)>,
}

/// What a set-up message leads to.
pub(crate) enum Step {
    /// Answer this and go on.
    Answer(SetupReply),
    /// Identity is proven: create or bind. With a handshake Ready must prove the key, see
    /// [`prove_ready`].
    Proven { who: Identity, class: SizeClass, purpose: Purpose, handshake: Option<KeyHandshake> },
}

impl Unproven {
    pub(crate) fn new(proof: Proof, peer: &PeerInfo, since: Duration) -> Unproven {
        let own = peer.ends.map_or_else(Dialled::default, |ends| ends.local.into());
        Unproven { proof, peer: peer.text.clone(), since, own, hello: None }
    }

    pub(crate) fn step(&mut self, shared: &Shared, request: SetupRequest) -> Step {
        match (request, self.hello) {
            (SetupRequest::Hello { version, .. }, _) if version != PROTOCOL_VERSION => refuse(
                Status::Version,
                format!("server speaks protocol {PROTOCOL_VERSION}, client {version}"),
            ),
            (SetupRequest::Hello { class, keyed, purpose, .. }, None) => {
                self.hello(shared, request, class, keyed, purpose)
            }
            (SetupRequest::Prove { dialled, proof }, Some((hello, server))) => {
                self.prove(shared, KeyHandshake { hello, server, dialled }, &proof)
            }
            _ => refuse(Status::BadMessage, "set-up message out of order".into()),
        }
    }

    fn hello(
        &mut self,
        shared: &Shared,
        said: SetupRequest,
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
                Step::Proven { who: who.clone(), class, purpose, handshake: None }
            }
            _ => {
                let nonce = shared.random();
                self.hello = Some((said, nonce));
                Step::Answer(SetupReply::Challenge { nonce })
            }
        }
    }

    /// The key proves the client, and ours the server. Whom the kernel vouches for stays who he
    /// is; others act as the key's owner.
    fn prove(&self, shared: &Shared, handshake: KeyHandshake, proof: &[u8; 32]) -> Step {
        let wrong = || refuse(Status::AuthFailed, "the keys of client and server differ".into());
        let Some(key) = &shared.key else { return wrong() };
        // In constant time.
        if mac(key, &handshake.client_input()).verify_slice(proof).is_err() {
            return wrong();
        }
        let KeyHandshake { hello, dialled, .. } = handshake;
        if dialled != self.own && !key.known_as.contains(&dialled) {
            return refuse(Status::AuthFailed, elsewhere(dialled, self.own));
        }
        let SetupRequest::Hello { class, purpose, .. } = hello else { return wrong() };
        let who = match &self.proof {
            Proof::Kernel(who) => who.clone(),
            _ => key.who.clone(),
        };
        Step::Proven { who, class, purpose, handshake: Some(handshake) }
    }
}

fn elsewhere(dialled: Dialled, own: Dialled) -> String {
    format!(
        "the client dialled {dialled} and came to {own}: somebody is between; \
         if that is meant, serve with --known-as {dialled}"
    )
}

fn mac(key: &Key, input: &[u8]) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new_from_slice(&key.bytes).expect("any key length will do");
    mac.update(input);
    mac
}

/// Puts our proof into a Ready.
pub(crate) fn prove_ready(shared: &Shared, handshake: &KeyHandshake, ready: &mut SetupReply) {
    let Some(key) = &shared.key else { return };
    let ours = mac(key, &handshake.server_input(ready)).finalize().into_bytes().into();
    if let SetupReply::Ready { proof, .. } = ready {
        *proof = Some(ours);
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
    pub handshake: Option<KeyHandshake>,
}
