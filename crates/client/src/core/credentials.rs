//! Credentials of other users: registered when they are first used in a session, and forgotten
//! again where there are many.

use std::collections::HashMap;
use std::sync::Arc;

use dafs_fabric::local::Trust;
use dafs_message::ConnId;
use dafs_protocol::{CredHandle, Identity, Status};

use super::Core;
use super::call::CallRecord;
use super::link::Link;
use super::work::Work;

/// Credentials of one session.
const CREDENTIALS_MAX: usize = 512;

/// Whether a call for a user can leave.
pub(super) enum Rights {
    Known(CredHandle),
    /// The server is being asked.
    Asked,
    Refused(Status),
}

/// The users of one session.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    entries: HashMap<Arc<Identity>, User>,
    uses: u64,
}

#[derive(Debug)]
struct User {
    /// `None`: asked for.
    cred: Option<Result<CredHandle, Status>>,
    used: u64,
}

impl Credentials {
    pub(super) fn registered(&mut self, user: &Arc<Identity>, cred: CredHandle) {
        if let Some(entry) = self.entries.get_mut(user) {
            entry.cred = Some(Ok(cred));
        }
    }

    pub(super) fn refused(&mut self, user: &Arc<Identity>, status: Status) {
        if let Some(entry) = self.entries.get_mut(user) {
            entry.cred = Some(Err(status));
        }
    }

    /// `None`: not asked for yet.
    fn rights(&mut self, user: &Arc<Identity>) -> Option<Rights> {
        self.uses += 1;
        let entry = self.entries.get_mut(user)?;
        entry.used = self.uses;
        Some(match entry.cred {
            None => Rights::Asked,
            Some(Ok(cred)) => Rights::Known(cred),
            Some(Err(status)) => {
                // Told once; the next call asks again.
                self.entries.remove(user);
                Rights::Refused(status)
            }
        })
    }

    /// Takes out the one that was not used for longest, unless a request names it.
    fn retire(&mut self, is_in_use: impl Fn(CredHandle) -> bool) -> Option<CredHandle> {
        let known = |entry: &User| entry.cred.and_then(Result::ok);
        let idle = self.entries.iter().filter_map(|(user, entry)| {
            known(entry).filter(|cred| !is_in_use(*cred)).map(|cred| (entry.used, user, cred))
        });
        let (_, user, cred) = idle.min_by_key(|(used, ..)| *used)?;
        let user = user.clone();
        self.entries.remove(&user);
        Some(cred)
    }
}

impl Core {
    /// Under which credential a call for `user` goes; asks the server for one.
    #[inline]
    pub(super) fn rights_of(&mut self, user: Option<&Arc<Identity>>) -> Rights {
        match user {
            None => Rights::Known(CredHandle(0)),
            Some(user) => self.rights_of_other(user),
        }
    }

    fn rights_of_other(&mut self, user: &Arc<Identity>) -> Rights {
        if self.session.facts.uid != 0 {
            return Rights::Refused(Status::NotAuthorized);
        }
        if let Some(rights) = self.credentials.rights(user) {
            return rights;
        }
        if self.credentials.entries.len() >= CREDENTIALS_MAX {
            let flights = &self.requests.flights;
            if let Some(cred) = self.credentials.retire(|cred| flights.names(cred)) {
                self.requests.background += 1;
                self.requests.urgent.push_back(CallRecord::internal(Work::Unregister { cred }));
            }
        }
        let used = self.credentials.uses;
        self.credentials.entries.insert(user.clone(), User { cred: None, used });
        self.requests.background += 1;
        let groups = user.groups.iter().flat_map(|group| group.to_le_bytes()).collect();
        let work = Work::Register { user: user.clone(), groups };
        self.requests.urgent.push_back(CallRecord::internal(work));
        Rights::Asked
    }
}

impl Core {
    /// The server reaches memory that this process shares, and may have it: it is root's or one's own.
    pub fn shares_memory(&self) -> bool {
        let is_up = self.links.first().is_some_and(Link::is_ready);
        is_up && self.session.facts.shares_memory
    }

    /// The same of a connection, from the system.
    pub(super) fn may_share_memory(&self, conn: ConnId) -> bool {
        let who = || self.node.peer(conn)?.credentials;
        self.node.shares_memory(conn) && who().is_some_and(|who| Trust::Usual.covers(who.uid))
    }
}
