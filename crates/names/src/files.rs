//! The lines of `/etc/passwd`, `/etc/group` and `/etc/hosts`.

use std::io;
use std::net::IpAddr;
use std::path::Path;

use crate::{Group, User};

/// A file; a name in it that is no UTF-8 becomes one that nobody asks for. Empty where there is none.
///
/// # Errors
/// The file is there and cannot be read.
pub fn read(path: &Path) -> io::Result<String> {
    match std::fs::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
    }
}

/// `NAME:PASSWORD:UID:GID:…`; other lines, also those for NIS, are passed over.
pub fn users(text: &str) -> impl Iterator<Item = User> + '_ {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = own_name(fields.next()?)?;
        let uid = fields.nth(1)?.parse().ok()?;
        Some(User { name, uid, gid: fields.next()?.parse().ok()? })
    })
}

/// `NAME:PASSWORD:GID:MEMBER,…`, with the names of the members.
pub fn groups(text: &str) -> impl Iterator<Item = (Group, &str)> + '_ {
    text.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = own_name(fields.next()?)?;
        let gid = fields.nth(1)?.parse().ok()?;
        Some((Group { name, gid }, fields.next().unwrap_or("")))
    })
}

fn own_name(name: &str) -> Option<String> {
    (!name.is_empty() && !name.starts_with(['+', '-', '#'])).then(|| name.to_owned())
}

/// The user's own group and all that have it among their members, each once.
pub fn groups_of(text: &str, user: &User) -> Vec<u32> {
    let mut all = vec![user.gid];
    for (group, members) in groups(text) {
        let is_member = members.split(',').any(|member| member.trim() == user.name);
        if is_member && !all.contains(&group.gid) {
            all.push(group.gid);
        }
    }
    all
}

/// The addresses of a host by the lines `ADDRESS NAME…`, in their order.
pub fn host(text: &str, name: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or("");
        let mut words = line.split_whitespace();
        let Some(address) = words.next().and_then(|word| word.parse().ok()) else { continue };
        if words.any(|word| word.eq_ignore_ascii_case(name)) && !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/sh\n+@nis::::::\n\nbroken:x:a:1::\n\
                         alice:x:1000:100:Alice,,,:/home/alice:/bin/sh\nshort:x:5\n";
    const GROUPS: &str = "root:x:0:\nusers:x:100:\nmusic:x:29:bob,alice\n+:::\nwork:x:30:alice\n\
                          same:x:29:alice\nothers:x:31:alice2\n";

    #[test]
    fn users_are_read_by_line() {
        let alice = User { name: "alice".into(), uid: 1000, gid: 100 };
        let root = User { name: "root".into(), uid: 0, gid: 0 };
        assert_eq!(users(USERS).collect::<Vec<_>>(), [root, alice]);
    }

    #[test]
    fn a_user_has_its_own_group_and_those_that_name_it() {
        let alice = users(USERS).find(|user| user.name == "alice").expect("alice");
        assert_eq!(groups_of(GROUPS, &alice), [100, 29, 30]);
        let root = users(USERS).next().expect("root");
        assert_eq!(groups_of(GROUPS, &root), [0]);
    }

    #[test]
    fn a_host_has_the_addresses_of_all_its_lines() {
        let text = "127.0.0.1 localhost # local here\n::1 localhost ip6\n10.0.0.1\tServer server.lan\n\
                    nonsense localhost\n#10.0.0.2 server\n10.0.0.1 server\n";
        let found = |name| host(text, name).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(found("localhost"), ["127.0.0.1", "::1"]);
        assert_eq!(found("server"), ["10.0.0.1"]);
        assert_eq!(found("here"), [""; 0]);
    }

    #[test]
    fn they_say_what_the_system_says() {
        let text = read(Path::new("/etc/passwd")).expect("users");
        let known = read(Path::new("/etc/group")).expect("groups");
        for user in users(&text) {
            let by_system = crate::user_named(&user.name).expect("asked").expect("a user");
            assert_eq!(user, by_system);
            let mut mine = groups_of(&known, &user);
            let mut systems = crate::groups(&user).expect("groups");
            mine.sort_unstable();
            systems.sort_unstable();
            assert_eq!(mine, systems, "{}", user.name);
        }
        assert!(read(Path::new("/none/such")).expect("nothing").is_empty());
    }
}
