//! How a connection becomes part of a session.

use std::sync::Arc;
use std::time::Duration;

use dafs_fabric::PeerInfo;
use dafs_message::{ConnId, ReferenceQuota};
use dafs_protocol::{
    Dialled, Features, Identity, KeyHandshake, Nonce, PROTOCOL_VERSION, PROTOCOL_VERSION_OLDEST,
    Purpose, SetupReply, SetupRequest, SizeClass, Status, add_proof, agreed_version,
    encode_setup_reply,
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
    /// How much it may keep of what it reads by itself, once it is proven who it is.
    pub reader: Option<(Arc<ReferenceQuota>, u32)>,
}

/// A hello that was answered by a challenge.
struct Challenged {
    entry: Entry,
    /// The hello as it came.
    said: Vec<u8>,
    nonce: Nonce,
}

/// What a connection is to be.
#[derive(Clone, Copy)]
pub(crate) struct Entry {
    /// What both ends speak.
    pub version: u32,
    pub features: Features,
    /// Of the client.
    pub attempt: u64,
    pub class: SizeClass,
    pub purpose: Purpose,
}

/// What a set-up message leads to.
pub(crate) enum Step {
    /// Answer this and go on.
    Answer(SetupReply),
    /// Identity is proven: create or bind. With a handshake the answer must prove the key, see
    /// [`encode_proven`].
    Proven { who: Identity, entry: Entry, handshake: Option<KeyHandshake> },
}

impl Unproven {
    pub(crate) fn new(proof: Proof, peer: &PeerInfo, since: Duration) -> Unproven {
        let own = peer.ends.map_or_else(Dialled::default, |ends| ends.local.into());
        let peer = peer.text.clone();
        Unproven { proof, peer, since, own, challenged: None, reader: None }
    }

    /// `said` is `request` as it came.
    pub(crate) fn step(&mut self, shared: &Shared, request: SetupRequest, said: &[u8]) -> Step {
        match (request, self.challenged.take()) {
            (SetupRequest::Hello { .. }, None) => self.hello(shared, request, said),
            (SetupRequest::Prove { dialled, proof }, Some(challenged)) => {
                let Challenged { entry, said, nonce } = *challenged;
                let handshake = KeyHandshake { hello: said, server: nonce, dialled };
                self.prove(shared, entry, handshake, &proof)
            }
            _ => refuse(Status::BadMessage, "set-up message out of order".into()),
        }
    }

    fn hello(&mut self, shared: &Shared, request: SetupRequest, said: &[u8]) -> Step {
        let SetupRequest::Hello {
            version: newest,
            oldest,
            features,
            attempt,
            class,
            keyed,
            purpose,
            ..
        } = request
        else {
            return refuse(Status::BadMessage, "set-up message out of order".into());
        };
        let Some(version) = agreed_version(newest, oldest) else {
            return refuse_version(newest, oldest);
        };
        let features = features.and(Features::OURS);
        let entry = Entry { version, features, attempt, class, purpose };
        if keyed && !shared.greeting.is_keyed() {
            let text = "the client has a key and this server none: serve with --key-file";
            return refuse(Status::AuthFailed, text.into());
        }
        match &self.proof {
            Proof::Refused(reason) => refuse(Status::AuthFailed, reason.clone()),
            Proof::Kernel(who) | Proof::Anonymous(who) if !keyed => {
                Step::Proven { who: who.clone(), entry, handshake: None }
            }
            _ => {
                let nonce = shared.random();
                let said = said.to_vec();
                self.challenged = Some(Box::new(Challenged { entry, said, nonce }));
                Step::Answer(SetupReply::Challenge { nonce })
            }
        }
    }

    /// The key proves the client, and ours the server. Whom the kernel vouches for stays who he
    /// is; others act as the key's owner.
    fn prove(
        &self,
        shared: &Shared,
        entry: Entry,
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
        Step::Proven { who, entry, handshake: Some(handshake) }
    }
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

/// Appends a Ready or Refused to `out`; where there was a handshake, with our proof.
pub(crate) fn encode_proven(
    shared: &Shared,
    handshake: Option<&KeyHandshake>,
    reply: &SetupReply,
    out: &mut Vec<u8>,
) {
    encode_setup_reply(reply, out);
    if let (Some(handshake), Some(key)) = (handshake, &shared.greeting.key) {
        add_proof(out, |said| {
            mac(key, &handshake.server_input(said)).finalize().into_bytes().into()
        });
    }
}

pub(crate) fn refuse(status: Status, text: String) -> Step {
    Step::Answer(SetupReply::Refused { status, text, proof: None })
}

/// A bind that waits until the connections it replaces are quiescent.
pub(crate) struct WaitingBind {
    pub connection: ConnId,
    pub request: dafs_message::RequestId,
    pub session: std::rc::Rc<crate::session::Session>,
    pub entry: Entry,
    pub handshake: Option<KeyHandshake>,
}
