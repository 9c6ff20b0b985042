//! The inodes and names, and how paths are walked.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use dafs_protocol::{Attr, FileHandle, Identity, ObjectId, Status, Timestamp, split_mode};

use super::data::BLOCK;
use super::node::{Content, Directory, Node};
use super::rights::{self, EXECUTE};
use super::{Clock, MemoryOptions};

/// Symlinks followed in one walk, as Linux.
const LINKS_FOLLOWED_MAX: usize = 40;
const LINKS_MAX: u32 = 65_000;
const HANDLE_MAGIC: [u8; 4] = *b"mem1";

pub(super) const ROOT: u64 = 1;

/// Where a walk ended.
pub(super) struct Place {
    /// The directory that holds the last name.
    pub(super) dir: u64,
    /// The last name; empty where the walk ended at `.`, `..` or its start.
    pub(super) name: Vec<u8>,
    /// What is there.
    pub(super) inode: Option<u64>,
}

/// All of it.
pub(super) struct Tree {
    nodes: BTreeMap<u64, Node>,
    /// Numbers below the highest that are free.
    free: BTreeSet<u64>,
    next_generation: u64,
    change: u64,
    pub(super) used_blocks: u64,
    pub(super) options: MemoryOptions,
    clock: Clock,
}

impl Tree {
    pub(super) fn new(options: MemoryOptions) -> Tree {
        let clock = options.clock.clone();
        let mut tree = Tree {
            nodes: BTreeMap::new(),
            free: BTreeSet::new(),
            next_generation: 1,
            change: 0,
            used_blocks: 0,
            options,
            clock,
        };
        let caller = Identity { uid: tree.options.uid, gid: tree.options.gid, groups: Vec::new() };
        let mode = tree.options.root_mode;
        let root = tree.add_node(&caller, Content::Directory(Directory::new(ROOT)), mode, 0);
        assert_eq!(root, ROOT, "the root is the first inode");
        tree
    }

    pub(super) fn now(&self) -> Timestamp {
        (self.clock)()
    }

    pub(super) fn handle(&self, inode: u64) -> FileHandle {
        let generation = self.nodes.get(&inode).map_or(0, |node| node.generation);
        let mut handle = FileHandle::default();
        let numbers = [self.options.id, generation, inode];
        let bytes = HANDLE_MAGIC.into_iter().chain(numbers.into_iter().flat_map(u64::to_le_bytes));
        for (slot, byte) in handle.0.iter_mut().zip(bytes) {
            *slot = byte;
        }
        handle
    }

    /// The inode that a handle names, if it is still the same.
    pub(super) fn resolve(&self, handle: &FileHandle) -> Result<u64, Status> {
        let number = |at: usize| {
            let bytes = handle.0.get(at..at + 8).and_then(|b| <[u8; 8]>::try_from(b).ok());
            bytes.map(u64::from_le_bytes).ok_or(Status::BadHandle)
        };
        let (id, generation, inode) = (number(4)?, number(12)?, number(20)?);
        let tail_is_zero = handle.0.iter().skip(28).all(|byte| *byte == 0);
        if !handle.0.starts_with(&HANDLE_MAGIC) || id != self.options.id || !tail_is_zero {
            return Err(Status::BadHandle);
        }
        match self.nodes.get(&inode) {
            Some(node) if node.generation == generation => Ok(inode),
            _ => Err(Status::Stale),
        }
    }

    pub(super) fn node(&self, inode: u64) -> Result<&Node, Status> {
        self.nodes.get(&inode).ok_or(Status::Stale)
    }

    pub(super) fn node_mut(&mut self, inode: u64) -> Result<&mut Node, Status> {
        self.nodes.get_mut(&inode).ok_or(Status::Stale)
    }

    pub(super) fn nodes_mut(&mut self) -> impl Iterator<Item = &mut Node> {
        self.nodes.values_mut()
    }

    pub(super) fn node_count(&self) -> u64 {
        self.nodes.len() as u64
    }

    /// Makes an inode with the lowest free number and one link (a directory: two).
    pub(super) fn add_node(
        &mut self,
        caller: &Identity,
        content: Content,
        mode: u32,
        rdev: u64,
    ) -> u64 {
        let (mode, umask) = split_mode(mode);
        let next = || self.nodes.last_key_value().map_or(ROOT, |(last, _)| last + 1);
        let inode = self.free.pop_first().unwrap_or_else(next);
        let links = if matches!(content, Content::Directory(_)) { 2 } else { 1 };
        let now = self.now();
        let generation = self.next_generation;
        self.next_generation += 1;
        let node = Node {
            generation,
            content,
            mode: mode & !umask,
            links,
            linkable: false,
            uid: caller.uid,
            gid: caller.gid,
            rdev,
            change: self.next_change(),
            accessed: now,
            modified: now,
            changed: now,
            created: now,
            xattrs: BTreeMap::new(),
        };
        self.nodes.insert(inode, node);
        inode
    }

    fn next_change(&mut self) -> u64 {
        self.change += 1;
        self.change
    }

    /// Attributes changed (and the contents, if `modified`).
    pub(super) fn touch(&mut self, inode: u64, modified: bool) {
        let (now, change) = (self.now(), self.next_change());
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.change = change;
            node.changed = now;
            if modified {
                node.modified = now;
            }
        }
    }

    /// One link less; an inode without links and opens is gone.
    pub(super) fn drop_link(&mut self, inode: u64) {
        self.touch(inode, false);
        if let Some(node) = self.nodes.get_mut(&inode) {
            node.links = if node.is_dir() { 0 } else { node.links - 1 };
        }
        self.reclaim(inode);
    }

    pub(super) fn add_link(&mut self, inode: u64) -> Result<(), Status> {
        let node = self.node_mut(inode)?;
        if node.links >= LINKS_MAX {
            return Err(Status::MLink);
        }
        node.links += 1;
        node.linkable = false;
        self.touch(inode, false);
        Ok(())
    }

    /// Removes the inode if nothing holds it.
    pub(super) fn reclaim(&mut self, inode: u64) {
        if self.nodes.get(&inode).is_some_and(Node::is_unused)
            && let Some(node) = self.nodes.remove(&inode)
        {
            self.free.insert(inode);
            if let Content::File { data, .. } = &node.content {
                self.used_blocks -= data.blocks();
            }
        }
    }

    pub(super) fn reclaim_all(&mut self) {
        let unused: Vec<u64> =
            self.nodes.iter().filter(|(_, node)| node.is_unused()).map(|(i, _)| *i).collect();
        unused.into_iter().for_each(|inode| self.reclaim(inode));
    }

    pub(super) fn id(&self, inode: u64) -> ObjectId {
        ObjectId { inode, device: self.options.id, number: 0 }
    }

    pub(super) fn attr(&self, inode: u64) -> Result<Attr, Status> {
        let node = self.node(inode)?;
        let (size, blocks) = match &node.content {
            Content::File { data, .. } => (data.size, data.blocks()),
            Content::Symlink(target) => (target.len() as u64, 0),
            Content::Directory(_) => (BLOCK, 1),
            Content::Special(_) => (0, 0),
        };
        Ok(Attr {
            kind: node.kind(),
            mode: node.mode,
            links: node.links,
            uid: node.uid,
            gid: node.gid,
            size,
            allocated: blocks * BLOCK,
            inode,
            device: self.options.id,
            number: 0,
            rdev: node.rdev,
            block_size: BLOCK as u32,
            change: node.change,
            accessed: node.accessed,
            modified: node.modified,
            changed: node.changed,
            created: Some(node.created),
        })
    }

    /// What is at `name` in `dir`, with the right to search it.
    pub(super) fn child(
        &self,
        caller: &Identity,
        dir: u64,
        name: &[u8],
    ) -> Result<Option<u64>, Status> {
        let node = self.node(dir)?;
        let directory = node.directory()?;
        rights::need(node, caller, EXECUTE)?;
        Ok(directory.get(name))
    }

    /// Walks as if the tree's root were `/`. The last name may be missing; it is followed if it
    /// is a symlink and `follow`.
    pub(super) fn walk(
        &self,
        caller: &Identity,
        start: u64,
        path: &[u8],
        follow: bool,
    ) -> Result<Place, Status> {
        let follow = follow || path.ends_with(b"/");
        let mut rest: VecDeque<Vec<u8>> = components(path).collect();
        let mut links = 0;
        let mut at = start;
        let mut last = Place { dir: start, name: Vec::new(), inode: Some(start) };
        while let Some(name) = rest.pop_front() {
            if name == b"." || name == b".." {
                let node = self.node(at)?;
                let parent = node.directory()?.parent;
                rights::need(node, caller, EXECUTE)?;
                at = if name == b"." { at } else { parent };
                last = Place { dir: at, name: Vec::new(), inode: Some(at) };
                continue;
            }
            let Some(child) = self.child(caller, at, &name)? else {
                return if rest.is_empty() {
                    Ok(Place { dir: at, name, inode: None })
                } else {
                    Err(Status::NoEnt)
                };
            };
            if let Content::Symlink(target) = &self.node(child)?.content
                && (follow || !rest.is_empty())
            {
                links += 1;
                if links > LINKS_FOLLOWED_MAX {
                    return Err(Status::Loop);
                }
                at = if target.starts_with(b"/") { ROOT } else { at };
                last = Place { dir: at, name: Vec::new(), inode: Some(at) };
                for component in components(target).collect::<Vec<_>>().into_iter().rev() {
                    rest.push_front(component);
                }
                continue;
            }
            last = Place { dir: at, name, inode: Some(child) };
            at = child;
        }
        if path.ends_with(b"/")
            && let Some(inode) = last.inode
        {
            self.node(inode)?.directory()?;
        }
        Ok(last)
    }

    /// Is `inode` the directory `below` or above it?
    pub(super) fn is_above(&self, inode: u64, below: u64) -> Result<bool, Status> {
        let mut at = below;
        while at != ROOT {
            if at == inode {
                return Ok(true);
            }
            at = self.node(at)?.directory()?.parent;
        }
        Ok(inode == ROOT)
    }
}

fn components(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).map(<[u8]>::to_vec)
}
