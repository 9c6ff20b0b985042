//! By the C library.

use std::ffi::CString;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

use crate::{Group, User};

/// What answers.
pub const SOURCE: &str = "the system";

fn user(found: Option<nix::unistd::User>) -> Option<User> {
    found.map(|user| User { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw() })
}

fn group(found: Option<nix::unistd::Group>) -> Option<Group> {
    found.map(|group| Group { name: group.name, gid: group.gid.as_raw() })
}

/// The user of a number, if there is one.
///
/// # Errors
/// The user database cannot be read.
pub fn user_of(uid: u32) -> io::Result<Option<User>> {
    Ok(user(nix::unistd::User::from_uid(uid.into())?))
}

/// The user of a name, if there is one.
///
/// # Errors
/// The user database cannot be read.
pub fn user_named(name: &str) -> io::Result<Option<User>> {
    Ok(user(nix::unistd::User::from_name(name)?))
}

/// The group of a number, if there is one.
///
/// # Errors
/// The group database cannot be read.
pub fn group_of(gid: u32) -> io::Result<Option<Group>> {
    Ok(group(nix::unistd::Group::from_gid(gid.into())?))
}

/// The group of a name, if there is one.
///
/// # Errors
/// The group database cannot be read.
pub fn group_named(name: &str) -> io::Result<Option<Group>> {
    Ok(group(nix::unistd::Group::from_name(name)?))
}

/// All groups of a user, its first one among them.
///
/// # Errors
/// The group database cannot be read.
pub fn groups(user: &User) -> io::Result<Vec<u32>> {
    let name = CString::new(user.name.as_str()).unwrap_or_default();
    let list = nix::unistd::getgrouplist(&name, user.gid.into())?;
    Ok(list.iter().map(|group| group.as_raw()).collect())
}

/// The addresses of `HOST:PORT`, in the order in which they are to be tried.
///
/// # Errors
/// It is no such thing, nobody knows the host, or who knows does not answer.
pub fn addresses(place: &str) -> io::Result<Vec<SocketAddr>> {
    Ok(place.to_socket_addrs()?.collect())
}
