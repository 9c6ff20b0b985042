//! How a connection becomes part of a session.

use std::time::Duration;

use dafs_fabric::PeerInfo;
use dafs_message::ConnId;
use dafs_protocol::{
    Dialled, Features, Identity, KeyHandshake, Nonce, PROTOCOL_VERSION, PROTOCOL_VERSION_OLDEST,
    Purpose, SetupReply, SetupRequest, SizeClass, Status, agreed_version, encode_setup_reply,
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
    challenged: Option<Box<Challenged>>,
}

/// A hello that was answered by a challenge.
struct Challenged {
    hello: SetupRequest,
    /// As it came.
    said: Vec<u8>,
    nonce: Nonce,
}

/// What both ends speak on a connection.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub version: u32,
    pub features: Features,
}

/// What a set-up message leads to.
pub(crate) enum Step {
    /// Answer this and go on.
    Answer(SetupReply),
    /// Identity is proven: create or bind. With a handshake Ready must prove the key, see
    /// [`prove_ready`].
    Proven {
        who: Identity,
        class: SizeClass,
        purpose: Purpose,
        terms: Terms,
        handshake: Option<KeyHandshake>,
    },
}

impl Unproven {
    pub(crate) fn new(proof: Proof, peer: &PeerInfo, since: Duration) -> Unproven {
        let own = peer.ends.map_or_else(Dialled::default, |ends| ends.local.into());
        Unproven { proof, peer: peer.text.clone(), since, own, challenged: None }
    }

    /// `said` is `request` as it came.
    pub(crate) fn step(&mut self, shared: &Shared, request: SetupRequest, said: &[u8]) -> Step {
        match (request, self.challenged.take()) {
            (SetupRequest::Hello { .. }, None) => self.hello(shared, request, said),
            (SetupRequest::Prove { dialled, proof }, Some(challenged)) => {
                let Challenged { hello, said, nonce } = *challenged;
                let handshake = KeyHandshake { hello: said, server: nonce, dialled };
                self.prove(shared, hello, handshake, &proof)
            }
            _ => refuse(Status::BadMessage, "set-up message out of order".into()),
        }
    }

    fn hello(&mut self, shared: &Shared, request: SetupRequest, said: &[u8]) -> Step {
        let SetupRequest::Hello { version, oldest, keyed, .. } = request else {
            return refuse(Status::BadMessage, "set-up message out of order".into());
        };
        if agreed_version(version, oldest).is_none() {
            return refuse_version(version, oldest);
        }
        if keyed && !shared.greeting.is_keyed() {
            let text = "the client has a key and this server none: serve with --key-file";
            return refuse(Status::AuthFailed, text.into());
        }
        match &self.proof {
            Proof::Refused(reason) => refuse(Status::AuthFailed, reason.clone()),
            Proof::Kernel(who) | Proof::Anonymous(who) if !keyed => {
                proven(who.clone(), request, None)
            }
            _ => {
                let nonce = shared.random();
                let said = said.to_vec();
                self.challenged = Some(Box::new(Challenged { hello: request, said, nonce }));
                Step::Answer(SetupReply::Challenge { nonce })
            }
        }
    }

    /// The key proves the client, and ours the server. Whom the kernel vouches for stays who he
    /// is; others act as the key's owner.
    fn prove(
        &self,
        shared: &Shared,
        hello: SetupRequest,
        handshake: KeyHandshake,
        proof: &[u8; 32],
    ) -> Step {
        let wrong = || refuse(Status::AuthFailed, "the keys of client and server differ".into());
        let Some(key) = &shared.greeting.key else { return wrong() };
        // In constant time.
        if mac(key, &handshake.client_input()).verify_slice(proof).is_err() {
            return wrong();
        }
        let dialled = handshake.dialled;
        if dialled != self.own && !key.known_as.contains(&dialled) {
            return refuse(Status::AuthFailed, elsewhere(dialled, self.own));
        }
        let who = match &self.proof {
            Proof::Kernel(who) => who.clone(),
            _ => key.who.clone(),
        };
        proven(who, hello, Some(handshake))
    }
}

fn proven(who: Identity, hello: SetupRequest, handshake: Option<KeyHandshake>) -> Step {
    let SetupRequest::Hello { version, oldest, features, class, purpose, .. } = hello else {
        return refuse(Status::BadMessage, "set-up message out of order".into());
    };
    let Some(version) = agreed_version(version, oldest) else {
        return refuse_version(version, oldest);
    };
    let terms = Terms { version, features: features.and(Features::OURS) };
    Step::Proven { who, class, purpose, terms, handshake }
}

/// Says which versions there are: `oldest` to `newest` at the client.
pub(crate) fn refuse_version(newest: u32, oldest: u32) -> Step {
    let range = |oldest: u32, newest: u32| match oldest == newest {
        true => newest.to_string(),
        false => format!("{oldest} to {newest}"),
    };
    let ours = range(PROTOCOL_VERSION_OLDEST, PROTOCOL_VERSION);
    let theirs = range(oldest, newest);
    refuse(Status::Version, format!("server speaks protocol {ours}, client {theirs}"))
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

/// Appends a Ready to `out`; where there was a handshake, with our proof.
pub(crate) fn encode_ready(
    shared: &Shared,
    handshake: Option<&KeyHandshake>,
    ready: &SetupReply,
    out: &mut Vec<u8>,
) {
    let start = out.len();
    encode_setup_reply(ready, out);
    let (Some(handshake), Some(key)) = (handshake, &shared.greeting.key) else { return };
    let input = handshake.server_input(&out[start..]);
    let ours = mac(key, &input).finalize().into_bytes();
    let proof = out.len() - ours.len();
    out[proof..].copy_from_slice(&ours);
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
    pub terms: Terms,
    pub handshake: Option<KeyHandshake>,
}
