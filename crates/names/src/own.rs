//! By reading files and asking name servers, as a static program does.

use std::io;
use std::net::SocketAddr;
use std::path::Path;

use crate::{Group, User, files, hosts};

/// What answers.
pub const SOURCE: &str =
    "/etc/passwd, /etc/group, /etc/hosts and the name servers of /etc/resolv.conf";

const USERS: &str = "/etc/passwd";
const GROUPS: &str = "/etc/group";

fn read(path: &str) -> io::Result<String> {
    files::read(Path::new(path))
}

/// The user of a number, if there is one.
///
/// # Errors
/// `/etc/passwd` cannot be read.
pub fn user_of(uid: u32) -> io::Result<Option<User>> {
    Ok(files::users(&read(USERS)?).find(|user| user.uid == uid))
}

/// The user of a name, if there is one.
///
/// # Errors
/// `/etc/passwd` cannot be read.
pub fn user_named(name: &str) -> io::Result<Option<User>> {
    Ok(files::users(&read(USERS)?).find(|user| user.name == name))
}

/// The group of a number, if there is one.
///
/// # Errors
/// `/etc/group` cannot be read.
pub fn group_of(gid: u32) -> io::Result<Option<Group>> {
    Ok(files::groups(&read(GROUPS)?).map(|(group, _)| group).find(|group| group.gid == gid))
}

/// The group of a name, if there is one.
///
/// # Errors
/// `/etc/group` cannot be read.
pub fn group_named(name: &str) -> io::Result<Option<Group>> {
    Ok(files::groups(&read(GROUPS)?).map(|(group, _)| group).find(|group| group.name == name))
}

/// All groups of a user, its first one among them.
///
/// # Errors
/// `/etc/group` cannot be read.
pub fn groups(user: &User) -> io::Result<Vec<u32>> {
    Ok(files::groups_of(&read(GROUPS)?, user))
}

/// The addresses of `HOST:PORT`, in the order in which they are to be tried.
///
/// # Errors
/// It is no such thing, nobody knows the host, or who knows does not answer.
pub fn addresses(place: &str) -> io::Result<Vec<SocketAddr>> {
    hosts::addresses(place, &hosts::Sources::of_system)
}
