//! Addresses: `/path` or `@TOKEN`, and at a client, behind `?`, `server_uid=UID|any`.
//!
//! Any user may take a name in the abstract namespace that is free, and who may write to a directory one
//! there. So what listens must belong to root or to the client's own user, or to whom the address names.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use dafs_fabric::local::{self, Trust};
use dafs_fabric::{Address, ConnectError};

use crate::sys::Name;
use crate::wire::{self, Token};

/// A place where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    Path(PathBuf),
    Token(Token, String),
}

impl Place {
    /// What its socket is called.
    pub fn name(&self) -> Name<'_> {
        match self {
            Place::Path(path) => Name::Path(path),
            Place::Token(_, name) => Name::Abstract(name.as_bytes()),
        }
    }

    /// What both ends are to prove.
    pub fn token(&self) -> Option<&Token> {
        match self {
            Place::Path(_) => None,
            Place::Token(token, _) => Some(token),
        }
    }
}

/// Where a client connects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    pub place: Place,
    pub trust: Trust,
}

/// An address that is none of this provider's.
pub fn bad(address: &Address, reason: impl ToString) -> ConnectError {
    ConnectError::Address { address: address.to_string(), reason: reason.to_string() }
}

const SCHEME: &str = "shm";

/// Where those meet who know a token.
pub fn of_token(token: &Token) -> Address {
    let hex: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    Address { scheme: SCHEME.into(), target: format!("@{hex}") }
}

/// Of a socket in a directory; `None`: a path that is no text, or not absolute.
pub fn of_path(path: &Path) -> Option<Address> {
    let target = path.to_str().filter(|_| path.is_absolute())?;
    Some(Address { scheme: SCHEME.into(), target: target.into() })
}

const FORM: &str = "expected shm:/path or shm:@ and 32 hexadecimal digits";

/// The place that an address names.
pub fn place(address: &Address) -> Result<Place, ConnectError> {
    if address.scheme != SCHEME {
        return Err(bad(address, FORM));
    }
    place_of(&address.target).ok_or_else(|| bad(address, FORM))
}

fn place_of(target: &str) -> Option<Place> {
    if let Some(hex) = target.strip_prefix('@') {
        let token = token_of(hex)?;
        return Some(Place::Token(token, wire::name_of(&token)));
    }
    Path::new(target).is_absolute().then(|| Place::Path(target.into()))
}

fn token_of(hex: &str) -> Option<Token> {
    let mut token = [0; 16];
    if hex.len() != 2 * token.len() || !hex.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in token.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * index..2 * index + 2)?, 16).ok()?;
    }
    Some(token)
}

impl Target {
    /// # Errors
    /// [`ConnectError::Address`].
    pub fn of(address: &Address) -> Result<Target, ConnectError> {
        let (target, trust) = match address.target.rsplit_once("?server_uid=") {
            None => (address.target.as_str(), Trust::Usual),
            Some((target, who)) => {
                let wrong = || bad(address, "after '?' may stand server_uid=UID or server_uid=any");
                (target, Trust::parse(who).ok_or_else(wrong)?)
            }
        };
        let plain = Address { scheme: address.scheme.clone(), target: target.into() };
        Ok(Target { place: place(&plain).map_err(|_| bad(address, FORM))?, trust })
    }

    /// # Errors
    /// The server is none to be trusted.
    pub fn check(&self, socket: &impl AsFd) -> io::Result<()> {
        let (_, uid, _) = local::peer_credentials(socket.as_fd())?;
        if self.trust == Trust::Anybody || self.trust.covers(uid) {
            return Ok(());
        }
        let text = format!("the server there is {}", local::stranger(uid));
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> Option<Target> {
        Target::of(&Address { scheme: "shm".into(), target: text.into() }).ok()
    }

    #[test]
    fn addresses_are_paths_and_tokens() {
        let path = target("/run/a?b").expect("a path");
        assert_eq!((path.place, path.trust), (Place::Path("/run/a?b".into()), Trust::Usual));
        let named = target("@000102030405060708090a0b0c0d0e0F?server_uid=7").expect("a token");
        let token: Token = std::array::from_fn(|index| index as u8);
        assert_eq!(named.place.token(), Some(&token));
        assert_eq!(named.trust, Trust::User(7));
        assert_eq!(target("/a?server_uid=any").expect("a path").trust, Trust::Anybody);
        for wrong in ["", "a", "@", "@00", "@000102030405060708090a0b0c0d0e0g", "/a?server_uid=x"] {
            assert_eq!(target(wrong), None, "{wrong}");
        }
        assert_eq!(place(&of_token(&token)).ok(), Some(named.place));
        let socket = of_path(Path::new("/run/dafs/shm.sock")).expect("a path");
        assert_eq!(place(&socket).ok(), Some(Place::Path("/run/dafs/shm.sock".into())));
        assert_eq!(of_path(Path::new("shm.sock")), None);
        assert!(place(&Address { scheme: "tcp".into(), target: "/a".into() }).is_err());
    }
}
