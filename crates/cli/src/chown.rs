//! `dafs chown`: changes owner and group.

use dafs_protocol::{FileKind, SetAttr};

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Failure};
use crate::output;
use crate::tree::{Event, Walk};

/// Change owner and group.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs chown alice dafs://localhost/notes.txt\n  \
    dafs chown -R alice:staff dafs://localhost/photos\n  \
    dafs chown -h :100 dafs://localhost/link        the symlink itself, and only its group\n\n\
    Names are those of this machine; the server knows numbers only. Who may change what, the\n\
    server's system decides: as a rule, root alone gives files away.")]
pub struct Args {
    /// Directories and all that is below them; symlinks are changed themselves.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// A symlink itself, not what it leads to.
    #[arg(short = 'h', long)]
    no_dereference: bool,
    /// USER, USER:GROUP, USER: (with the user's own group) or :GROUP; names or numbers.
    #[arg(value_name = "OWNER", value_parser = owner)]
    owner: Owner,
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to change.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

/// Whose a file becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Owner {
    uid: Option<u32>,
    gid: Option<u32>,
}

fn owner(text: &str) -> Result<Owner, String> {
    let (user, group) = match text.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (text, None),
    };
    let known = (!user.is_empty()).then(|| user_of(user)).transpose()?;
    let gid = match (group, known) {
        (Some(""), Some((_, own))) => {
            Some(own.ok_or("a user by number has no group of its own here: name one")?)
        }
        (Some(""), None) => return Err("expected USER, USER:GROUP or :GROUP".into()),
        (Some(name), _) => Some(group_of(name)?),
        (None, None) => return Err("expected USER, USER:GROUP or :GROUP".into()),
        (None, Some(_)) => None,
    };
    Ok(Owner { uid: known.map(|(uid, _)| uid), gid })
}

/// The number of a user, and of its group where it is known by name.
fn user_of(name: &str) -> Result<(u32, Option<u32>), String> {
    if let Some(user) = dafs_names::user_named(name).map_err(|error| error.to_string())? {
        return Ok((user.uid, Some(user.gid)));
    }
    let number = number(name).ok_or_else(|| format!("no user '{name}' on this machine"))?;
    Ok((number, None))
}

fn group_of(name: &str) -> Result<u32, String> {
    let group = dafs_names::group_named(name).map_err(|error| error.to_string())?;
    group
        .map(|group| group.gid)
        .or_else(|| number(name))
        .ok_or_else(|| format!("no group '{name}' on this machine"))
}

/// Of a user or group; the last number means nobody's.
fn number(text: &str) -> Option<u32> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number != u32::MAX)
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    for url in &args.urls {
        let changed = connections.remote(url).and_then(|remote| {
            if args.recursive { all(args, &remote) } else { one(args, &remote) }
        });
        match changed {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}

fn one(args: &Args, remote: &Remote) -> Result<(), Failure> {
    change(args.owner, remote, &remote.path, args.no_dereference)
}

fn all(args: &Args, remote: &Remote) -> Result<(), Failure> {
    let mut walk = Walk::new(remote, usize::MAX)?;
    while let Some(event) = walk.next()? {
        // Directories when left: who gives one away may not enter it any more.
        let node = match event {
            Event::Entry(node) if node.attr.kind != FileKind::Directory => node,
            Event::Leave(node) => node,
            Event::Entry(_) => continue,
        };
        if let Err(failure) = change(args.owner, remote, &node.path, true) {
            if failure.code != failure::FAILED {
                return Err(failure);
            }
            failure::report(&failure);
        }
    }
    Ok(())
}

fn change(owner: Owner, remote: &Remote, path: &[u8], no_follow: bool) -> Result<(), Failure> {
    let set = SetAttr { uid: owner.uid, gid: owner.gid, ..SetAttr::default() };
    let done = remote.session.set_attr(path, set, no_follow);
    let attr = done.map_err(|error| remote.failure(path, error))?;
    output::done(|| format!("{} is now of {}:{}", remote.name(path), attr.uid, attr.gid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_are_names_or_numbers() {
        let of = |uid, gid| Ok(Owner { uid, gid });
        assert_eq!(owner("root"), of(Some(0), None));
        assert_eq!(owner("root:"), of(Some(0), Some(0)));
        assert_eq!(owner("1234:root"), of(Some(1234), Some(0)));
        assert_eq!(owner(":77"), of(None, Some(77)));
        for wrong in
            ["", ":", "no such user", "root:no such group", "1234:", "4294967295", "-1", "+1"]
        {
            assert!(owner(wrong).is_err(), "{wrong}");
        }
    }
}
