//! The names: a tree, what each operation does to it, and what its answer must be.
//!
//! Operations on one yard (a directory of the root) come one after the other, so that each has
//! one right answer. Where the answer was lost, the tree is what one of several candidates says.

use std::collections::BTreeMap;

use dafs_protocol::{FileKind, Status};

/// A place in [`Names`].
pub type NodeId = usize;

/// What a name leads to.
#[derive(Debug, Clone)]
pub struct Node {
    /// What it is.
    pub kind: FileKind,
    /// As the server numbers it, once that is known.
    pub inode: Option<u64>,
    /// Where its bytes are, in the list of files.
    pub file: usize,
    /// What a symlink says.
    pub target: Vec<u8>,
    /// Permission bits.
    pub mode: u32,
    names: BTreeMap<String, NodeId>,
}

/// A name that leads elsewhere now, or nowhere.
#[derive(Debug, Clone)]
pub struct Edit {
    /// The directory.
    pub dir: NodeId,
    /// The name in it.
    pub name: String,
    /// What it leads to.
    pub to: Option<NodeId>,
}

/// What an operation does, in steps that may each be the last if its answer is lost.
pub type Steps = Vec<Vec<Edit>>;

/// A name: a yard, perhaps a directory in it, and the last component.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// The number of the yard.
    pub yard: usize,
    /// Below the yard.
    pub parts: Vec<String>,
}

impl Path {
    /// As the client takes it.
    pub fn bytes(&self) -> Vec<u8> {
        format!("y{}/{}", self.yard, self.parts.join("/")).into_bytes()
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "y{}/{}", self.yard, self.parts.join("/"))
    }
}

/// All names.
#[derive(Debug, Clone)]
pub struct Names {
    nodes: Vec<Node>,
    yards: usize,
}

impl Names {
    /// So many empty yards; their nodes come first.
    pub fn new(yards: usize) -> Names {
        let yard = Node::new(FileKind::Directory, 0o755);
        Names { nodes: vec![yard; yards], yards }
    }

    /// A node without a name.
    pub fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// A node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// A node, to be changed.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id]
    }

    /// What a path leads to.
    ///
    /// # Errors
    /// What the server must answer.
    pub fn find(&self, path: &Path) -> Result<Option<NodeId>, Status> {
        let Some((last, before)) = path.parts.split_last() else { return Ok(Some(path.yard)) };
        let dir = self.walk(path.yard, before)?;
        self.child(dir, last)
    }

    /// The directory of a path, which may turn out to be none, and the name in it.
    ///
    /// # Errors
    /// What the server must answer.
    pub fn parent(&self, path: &Path) -> Result<(NodeId, String), Status> {
        let (last, before) = path.parts.split_last().ok_or(Status::Busy)?;
        Ok((self.walk(path.yard, before)?, last.clone()))
    }

    fn child(&self, dir: NodeId, name: &str) -> Result<Option<NodeId>, Status> {
        match self.nodes[dir].kind {
            FileKind::Directory => Ok(self.nodes[dir].names.get(name).copied()),
            _ => Err(Status::NotDir),
        }
    }

    fn walk(&self, yard: usize, parts: &[String]) -> Result<NodeId, Status> {
        let mut at = yard;
        for part in parts {
            at = self.child(at, part)?.ok_or(Status::NoEnt)?;
            if self.nodes[at].kind == FileKind::Symlink {
                // What symlinks say is nowhere.
                return Err(Status::NoEnt);
            }
        }
        Ok(at)
    }

    /// A new name for a node that has none yet, or not there.
    ///
    /// # Errors
    /// What the server must answer.
    pub fn make(&self, path: &Path, node: NodeId) -> Result<Steps, Status> {
        let (dir, name) = self.parent(path)?;
        match self.child(dir, &name)? {
            Some(_) => Err(Status::Exist),
            None => Ok(vec![vec![Edit { dir, name, to: Some(node) }]]),
        }
    }

    /// Removes a name.
    ///
    /// # Errors
    /// What the server must answer.
    pub fn remove(&self, path: &Path, directory: bool) -> Result<Steps, Status> {
        let (dir, name) = self.parent(path)?;
        let node = &self.nodes[self.child(dir, &name)?.ok_or(Status::NoEnt)?];
        match (node.kind == FileKind::Directory, directory) {
            (true, true) if !node.names.is_empty() => Err(Status::NotEmpty),
            (true, false) => Err(Status::IsDir),
            (false, true) => Err(Status::NotDir),
            _ => Ok(vec![vec![Edit { dir, name, to: None }]]),
        }
    }

    /// Renames; `after` are changes that come before in the same operation.
    ///
    /// # Errors
    /// What the server must answer.
    pub fn rename(
        &self,
        from: &Path,
        to: &Path,
        no_replace: bool,
        exchange: bool,
    ) -> Result<Steps, Status> {
        let (from_dir, from_name) = self.parent(from)?;
        let (to_dir, to_name) = self.parent(to)?;
        let node = self.child(from_dir, &from_name)?.ok_or(Status::NoEnt)?;
        let there = self.child(to_dir, &to_name)?;
        let is_dir = |node: NodeId| self.nodes[node].kind == FileKind::Directory;
        if there.is_some() && no_replace {
            return Err(Status::Exist);
        }
        if is_dir(node) && from_dir != to_dir && self.is_above(node, to_dir) {
            return Err(Status::Inval);
        }
        let set = |dir, name: &String, to| Edit { dir, name: name.clone(), to };
        match there {
            None if exchange => return Err(Status::NoEnt),
            Some(there) if there == node => return Ok(vec![]),
            Some(there) if exchange => {
                if is_dir(there) && from_dir != to_dir && self.is_above(there, from_dir) {
                    return Err(Status::Inval);
                }
                let there = set(from_dir, &from_name, Some(there));
                return Ok(vec![vec![there, set(to_dir, &to_name, Some(node))]]);
            }
            Some(there) => match (is_dir(node), is_dir(there)) {
                (true, true) if !self.nodes[there].names.is_empty() => {
                    return Err(Status::NotEmpty);
                }
                (false, true) => return Err(Status::IsDir),
                (true, false) => return Err(Status::NotDir),
                _ => {}
            },
            None => {}
        }
        let gone = set(from_dir, &from_name, None);
        Ok(vec![vec![gone, set(to_dir, &to_name, Some(node))]])
    }

    /// True when `dir` is `node` or below it.
    fn is_above(&self, node: NodeId, dir: NodeId) -> bool {
        node == dir || self.nodes[node].names.values().any(|below| self.is_above(*below, dir))
    }

    /// Does it.
    pub fn apply(&mut self, edits: &[Edit]) {
        for edit in edits {
            let names = &mut self.nodes[edit.dir].names;
            match edit.to {
                Some(node) => names.insert(edit.name.clone(), node),
                None => names.remove(&edit.name),
            };
        }
    }

    /// Names of a node.
    pub fn links(&self, id: NodeId) -> usize {
        let in_node = |node: &Node| node.names.values().filter(|to| **to == id).count();
        self.nodes.iter().map(in_node).sum()
    }

    /// A file in this directory or below has several names.
    pub fn has_links_below(&self, dir: NodeId) -> bool {
        self.nodes[dir].names.values().any(|node| match self.nodes[*node].kind {
            FileKind::Directory => self.has_links_below(*node),
            _ => self.links(*node) > 1,
        })
    }

    /// Some node has this number, in a yard of which everything is known.
    pub fn has_inode(&self, inode: u64, busy_yards: &[bool]) -> bool {
        let known = (0..self.yards).filter(|yard| !busy_yards.get(*yard).unwrap_or(&false));
        known.into_iter().any(|yard| self.is_numbered_below(yard, inode))
    }

    fn is_numbered_below(&self, dir: NodeId, inode: u64) -> bool {
        self.nodes[dir].names.values().any(|node| {
            self.nodes[*node].inode == Some(inode) || self.is_numbered_below(*node, inode)
        })
    }

    /// For people: all names that lead to this number.
    pub fn with_inode(&self, inode: u64) -> Vec<(NodeId, String)> {
        let names = self
            .nodes
            .iter()
            .enumerate()
            .flat_map(|(dir, node)| node.names.iter().map(move |(name, to)| (dir, name, *to)));
        let same = names.filter(|(.., to)| self.nodes[*to].inode == Some(inode));
        same.map(|(dir, name, _)| (dir, name.clone())).collect()
    }

    /// All names of a directory, with what they lead to.
    pub fn list(&self, dir: NodeId) -> impl Iterator<Item = (&String, NodeId)> {
        self.nodes[dir].names.iter().map(|(name, node)| (name, *node))
    }
}

impl Node {
    /// One without number and contents.
    pub fn new(kind: FileKind, mode: u32) -> Node {
        Node { kind, inode: None, file: 0, target: Vec::new(), mode, names: BTreeMap::new() }
    }
}
