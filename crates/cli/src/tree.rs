//! Walks a directory tree of a server.

use dafs_client::ReadDir;
use dafs_protocol::{Attr, FileKind};

use crate::connect::Remote;
use crate::failure::{self, Cause, Failure};
use crate::{interrupt, place};

/// What a walk meets.
pub enum Event {
    /// A file or a directory; a directory's entries follow.
    Entry(Node),
    /// All entries of a directory were met.
    Leave(Node),
}

/// A file or directory of a tree.
#[derive(Debug, Clone)]
pub struct Node {
    /// On the server.
    pub path: Vec<u8>,
    /// Its attributes.
    pub attr: Attr,
    /// 0 for where the walk began.
    pub depth: usize,
}

/// A walk in progress. Symlinks are not followed. Memory is bounded by the depth.
pub struct Walk {
    remote: Remote,
    start: Option<Node>,
    open: Vec<(Node, ReadDir)>,
    /// The directory just met, whose entries come next.
    entering: Option<Node>,
    depth_max: usize,
}

impl Walk {
    /// Begins at `remote`, which is met first.
    ///
    /// # Errors
    /// It is not there.
    pub fn new(remote: &Remote, depth_max: usize) -> Result<Walk, Failure> {
        let path = remote.path.clone();
        let attr = remote.session.lstat(&path).map_err(|error| remote.failure(&path, error))?;
        let start = Some(Node { path, attr, depth: 0 });
        Ok(Walk { remote: remote.clone(), start, open: Vec::new(), entering: None, depth_max })
    }

    /// Does not enter the directory that was met last.
    pub fn skip(&mut self) {
        self.entering = None;
    }

    fn meet(&mut self, node: Node) -> Event {
        if node.attr.kind == FileKind::Directory && node.depth < self.depth_max {
            self.entering = Some(node.clone());
        }
        Event::Entry(node)
    }

    /// The next event. A directory that cannot be read is reported, and the walk goes on.
    ///
    /// # Errors
    /// The session is of no use any more, or the user wants to stop.
    #[allow(clippy::should_implement_trait, reason = "it fails once and for all")]
    pub fn next(&mut self) -> Result<Option<Event>, Failure> {
        if let Some(start) = self.start.take() {
            return Ok(Some(self.meet(start)));
        }
        loop {
            if interrupt::requested() {
                return Err(Failure::about("", Cause::Interrupted));
            }
            if let Some(node) = self.entering.take() {
                match self.remote.session.read_dir(&node.path) {
                    Ok(entries) => self.open.push((node, entries)),
                    Err(error) => {
                        self.report(&node.path, error)?;
                        return Ok(Some(Event::Leave(node)));
                    }
                }
            }
            let Some((dir, entries)) = self.open.last_mut() else { return Ok(None) };
            match entries.next() {
                Some(Ok(entry)) => {
                    let path = place::join(&dir.path, &entry.name);
                    let depth = dir.depth + 1;
                    let known = entry.attr.map_or_else(|| self.remote.session.lstat(&path), Ok);
                    match known {
                        Ok(attr) => return Ok(Some(self.meet(Node { path, attr, depth }))),
                        Err(error) => self.report(&path, error)?,
                    }
                }
                Some(Err(error)) => {
                    let path = dir.path.clone();
                    self.report(&path, error)?;
                }
                None => return Ok(self.open.pop().map(|(dir, _)| Event::Leave(dir))),
            }
        }
    }

    fn report(&self, path: &[u8], error: dafs_client::Error) -> Result<(), Failure> {
        let cause = Cause::from(error);
        let is_final = cause.is_final();
        let failure = self.remote.failure(path, cause);
        if is_final {
            return Err(failure);
        }
        failure::report(&failure);
        Ok(())
    }
}
