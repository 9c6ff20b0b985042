//! Calls about names, one at a time in each yard.

use std::time::Duration;

use dafs_client::Output;
use dafs_client::core::{Place, Put, Work};
use dafs_fabric::Buffer;
use dafs_protocol::{Attr, FileKind, SetAttr, Status};

use crate::calls::{Call, Kind, Look, NameCall, NameOp, Piece};
use crate::checker::Answer;
use crate::data;
use crate::model::Span;
use crate::model::file::{File, STEP, Safety, Shape};
use crate::model::names::{Node, NodeId, Path, Steps};
use crate::plan::YARDS;
use crate::sim::Sim;

/// Bits that are not known, since the answer to a change was lost.
const MODE_UNKNOWN: u32 = u32::MAX;
/// Room for a directory's entries.
const ENTRIES_BYTES: u32 = 32 << 10;

fn place(path: &Path) -> Place {
    Place::new(&path.bytes()).expect("short names")
}

impl NameCall {
    fn new(op: NameOp, paths: &[&Path], expect: Result<Steps, Status>) -> NameCall {
        let paths: Vec<Path> = paths.iter().map(|path| (*path).clone()).collect();
        let mut yards: Vec<usize> = paths.iter().map(|path| path.yard).collect();
        yards.dedup();
        NameCall { op, yards, paths, expect, node: None, changes: Vec::new() }
    }
}

/// A change of names, ready to be asked for.
struct Ready {
    call: NameCall,
    work: Work,
    buffer: Option<Buffer>,
    len: usize,
    /// Bytes of the file: a cut, then a write.
    shapes: Vec<(u32, Shape)>,
}

impl Ready {
    fn new(call: NameCall, work: Work) -> Ready {
        Ready { call, work, buffer: None, len: 0, shapes: Vec::new() }
    }
}

impl Sim {
    /// A name in a yard, which may be there or not.
    fn path(&mut self, yard: usize) -> Path {
        let dirs: Vec<String> = self
            .names
            .list(yard)
            .filter(|(_, node)| self.names.node(*node).kind == FileKind::Directory)
            .map(|(name, _)| name.clone())
            .collect();
        let mut parts = Vec::new();
        match self.rng.below(12) {
            0..=3 if !dirs.is_empty() => parts.push(dirs[self.rng.index(dirs.len())].clone()),
            4 if self.rng.coin() => parts.push(format!("n{}", self.rng.below(5))),
            _ => {}
        }
        parts.push(format!("n{}", self.rng.below(5)));
        Path { yard, parts }
    }

    fn free_yard(&mut self) -> Option<usize> {
        let free: Vec<usize> = (0..YARDS).filter(|yard| !self.busy_yards[*yard]).collect();
        (!free.is_empty()).then(|| free[self.rng.index(free.len())])
    }

    /// One call about names. False: all yards are busy.
    pub(crate) fn name_call(&mut self, client: usize) -> Result<bool, String> {
        let Some(yard) = self.free_yard() else { return Ok(false) };
        let path = self.path(yard);
        let there = self.names.find(&path).unwrap_or_default();
        let kind = there.map(|node| self.names.node(node).kind);
        let ready = match self.rng.below(100) {
            0..=11 => self.mkdir(&path),
            12..=15 => self.symlink(&path),
            16..=39 if kind != Some(FileKind::Symlink) => self.put(client, &path)?,
            40..=49 if matches!(kind, None | Some(FileKind::File)) => self.get(client, &path)?,
            50..=57 => self.stat(&path),
            58..=61 => self.read_dir(yard),
            62..=64 if kind.is_some() => self.read_link(&path),
            65..=76 => self.remove(&path, kind),
            77..=89 => {
                self.busy_yards[yard] = true;
                let other = self.free_yard().filter(|_| self.rng.coin());
                self.busy_yards[yard] = false;
                // All names of a file stay in one yard.
                let together = |yard: &usize| !self.names.has_links_below(*yard);
                let other = other.filter(together).filter(|_| together(&yard));
                let to = self.path(other.unwrap_or(yard));
                self.rename(&path, &to)
            }
            90..=95 if kind != Some(FileKind::Symlink) => {
                let to = self.path(yard);
                self.link(&path, &to)
            }
            96..=99 if matches!(kind, Some(FileKind::File | FileKind::Directory)) => {
                self.chmod(&path)
            }
            _ => self.stat(&path),
        };
        self.ask_name(client, ready);
        Ok(true)
    }

    fn ask_name(&mut self, client: usize, ready: Ready) {
        let Ready { mut call, work, buffer, len, shapes } = ready;
        call.yards.iter().for_each(|yard| self.busy_yards[*yard] = true);
        call.changes = shapes.iter().map(|shape| shape.0).collect();
        let file = call.node.map_or(0, |node| self.names.node(node).file);
        let call = self.call(client, Kind::Name(Box::new(call)), len);
        let who = self.clients[client].who;
        for (change, shape) in shapes {
            self.files[file].begin(change, shape, who, None, call.start);
        }
        self.clients[client].submit(call, work, buffer);
    }

    fn mkdir(&mut self, path: &Path) -> Ready {
        let mode = 0o700 | self.rng.below(0o100) as u32;
        let node = self.names.add(Node::new(FileKind::Directory, mode));
        let mut call = NameCall::new(NameOp::Mkdir, &[path], self.names.make(path, node));
        call.node = Some(node);
        let (kind, target) = (FileKind::Directory, Vec::new());
        Ready::new(call, Work::Make { place: place(path), kind, mode, rdev: 0, target })
    }

    fn symlink(&mut self, path: &Path) -> Ready {
        let target = format!("nowhere/{}", self.rng.next()).into_bytes();
        let mut node = Node::new(FileKind::Symlink, 0o777);
        node.target.clone_from(&target);
        let node = self.names.add(node);
        let mut call = NameCall::new(NameOp::Symlink, &[path], self.names.make(path, node));
        call.node = Some(node);
        let kind = FileKind::Symlink;
        Ready::new(call, Work::Make { place: place(path), kind, mode: 0o777, rdev: 0, target })
    }

    /// A file is made, or made anew, and perhaps gets another name.
    fn put(&mut self, client: usize, path: &Path) -> Result<Ready, String> {
        let exclusive = self.rng.below(4) == 0;
        let commit = self.rng.below(4) == 0;
        let mode = 0o600 | self.rng.below(0o100) as u32;
        let there = self.names.find(path);
        let old = there.unwrap_or_default();
        let (expect, node) = match old {
            Some(_) if exclusive => (Err(Status::Exist), None),
            Some(node) if self.names.node(node).kind == FileKind::Directory => {
                (Err(Status::IsDir), None)
            }
            Some(node) => (Ok(vec![]), Some(node)),
            None => {
                self.files.push(File::new(path.to_string()));
                let mut node = Node::new(FileKind::File, mode);
                node.file = self.files.len() - 1;
                let node = self.names.add(node);
                (self.names.make(path, node), Some(node))
            }
        };
        let to = (self.rng.below(3) == 0).then(|| self.path(path.yard));
        let (expect, to) = self.put_and_rename(path, expect, to);
        let most = if self.rng.coin() { 64 } else { self.plan.io_max / STEP };
        let words = self.rng.below(most);
        let piece = Piece { offset: 0, len: words * STEP, change: self.new_change() };
        let len = piece.len;
        let op = NameOp::Put { commit, piece: (piece.change, len) };
        let paths: Vec<&Path> = [Some(path), to.as_ref()].into_iter().flatten().collect();
        let mut call = NameCall::new(op, &paths, expect);
        call.node = node;
        let to = to.as_ref().map(place);
        let set = Put::attributes(mode, None, None);
        let put = Put::new(place(path), len as u32, mode, exclusive, set, commit, to);
        let mut ready = Ready::new(call, Work::Put(Box::new(put)));
        if node.is_some() {
            ready.shapes.push((self.new_change(), Shape::Cut { size: 0 }));
            ready.shapes.push((piece.change, Shape::Write { offset: 0, len }));
        }
        if len > 0 {
            let mut buffer = self.clients[client].buffers.take()?;
            buffer.get_mut(..len as usize).into_iter().for_each(|bytes| data::fill(&piece, bytes));
            (ready.buffer, ready.len) = (Some(buffer), len as usize);
        }
        Ok(ready)
    }

    /// What both steps do together. A second step that would fail is left out.
    fn put_and_rename(
        &mut self,
        path: &Path,
        expect: Result<Steps, Status>,
        to: Option<Path>,
    ) -> (Result<Steps, Status>, Option<Path>) {
        let (Ok(steps), Some(to)) = (&expect, to) else { return (expect, None) };
        let mut after = self.names.clone();
        steps.iter().for_each(|edits| after.apply(edits));
        match after.rename(path, &to, false, false) {
            Ok(more) => {
                let both = steps.iter().cloned().chain(more).collect();
                (Ok(both), Some(to))
            }
            Err(_) => (expect, None),
        }
    }

    pub(crate) fn ask_get(&mut self, client: usize, path: &Path) -> Result<(), String> {
        let ready = self.get(client, path)?;
        self.ask_name(client, ready);
        Ok(())
    }

    fn get(&mut self, client: usize, path: &Path) -> Result<Ready, String> {
        let found = self.names.find(path);
        let node = found.unwrap_or_default();
        let expect = found.and_then(|node| node.ok_or(Status::NoEnt)).map(|_| vec![]);
        let mut call = NameCall::new(NameOp::Get, &[path], expect);
        call.node = node;
        let len = self.plan.io_max as usize;
        let work = Work::Get { place: place(path), len: len as u32 };
        let buffer = Some(self.clients[client].buffers.take()?);
        Ok(Ready { buffer, len, ..Ready::new(call, work) })
    }

    pub(crate) fn ask_stat(&mut self, client: usize, path: &Path) {
        let ready = self.stat(path);
        self.ask_name(client, ready);
    }

    fn stat(&mut self, path: &Path) -> Ready {
        let found = self.names.find(path);
        let node = found.unwrap_or_default();
        let expect = found.and_then(|node| node.ok_or(Status::NoEnt)).map(|_| vec![]);
        let mut call = NameCall::new(NameOp::Stat, &[path], expect);
        call.node = node;
        Ready::new(call, Work::Stat { place: place(path), no_follow: true })
    }

    pub(crate) fn ask_list(&mut self, client: usize, yard: usize) {
        let ready = self.read_dir(yard);
        self.ask_name(client, ready);
    }

    fn read_dir(&mut self, yard: usize) -> Ready {
        let path = Path { yard, parts: Vec::new() };
        let mut call = NameCall::new(NameOp::ReadDir, &[&path], Ok(vec![]));
        call.node = Some(yard);
        let work = Work::ReadDir {
            place: place(&path),
            cookie: 0,
            bytes: ENTRIES_BYTES,
            attributes: true,
            handles: false,
        };
        Ready::new(call, work)
    }

    fn read_link(&mut self, path: &Path) -> Ready {
        let node = self.names.find(path).unwrap_or_default();
        let is_link = node.is_some_and(|node| self.names.node(node).kind == FileKind::Symlink);
        let expect = if is_link { Ok(vec![]) } else { Err(Status::Inval) };
        let mut call = NameCall::new(NameOp::ReadLink, &[path], expect);
        call.node = node;
        Ready::new(call, Work::ReadLink { place: place(path) })
    }

    fn remove(&mut self, path: &Path, kind: Option<FileKind>) -> Ready {
        let directory = (kind == Some(FileKind::Directory)) ^ (self.rng.below(12) == 0);
        let expect = self.names.remove(path, directory);
        let call = NameCall::new(NameOp::Remove, &[path], expect);
        Ready::new(call, Work::Remove { place: place(path), directory })
    }

    fn rename(&mut self, from: &Path, to: &Path) -> Ready {
        let (no_replace, exchange) = match self.rng.below(6) {
            0 => (true, false),
            1 => (false, true),
            _ => (false, false),
        };
        let expect = self.names.rename(from, to, no_replace, exchange);
        let mut call = NameCall::new(NameOp::Rename, &[from, to], expect);
        call.node = self.names.find(from).unwrap_or_default();
        let (from, to) = (place(from), place(to));
        Ready::new(
            call,
            Work::Rename { from, to, from_dir: None, no_replace, exchange, whiteout: false },
        )
    }

    fn link(&mut self, from: &Path, to: &Path) -> Ready {
        let expect = match self.names.find(from) {
            Err(status) => Err(status),
            Ok(None) => Err(Status::NoEnt),
            Ok(Some(node)) => self.names.make(to, node).and_then(|steps| {
                let is_dir = self.names.node(node).kind == FileKind::Directory;
                if is_dir { Err(Status::Perm) } else { Ok(steps) }
            }),
        };
        let mut call = NameCall::new(NameOp::Link, &[from, to], expect);
        call.node = self.names.find(from).unwrap_or_default();
        let (from, to) = (place(from), place(to));
        Ready::new(call, Work::Link { from, to, from_handle: None })
    }

    fn chmod(&mut self, path: &Path) -> Ready {
        let mode = 0o700 | self.rng.below(0o100) as u32;
        let mut call = NameCall::new(NameOp::Chmod(mode), &[path], Ok(vec![]));
        call.node = self.names.find(path).unwrap_or_default();
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        Ready::new(call, Work::SetAttr { place: place(path), set, no_follow: false })
    }

    // --- answers ---

    pub(crate) fn name_answered(
        &mut self,
        client: usize,
        mut call: Call,
        answer: Answer,
        buffer: Option<Buffer>,
        end: u64,
    ) -> Result<(), String> {
        let kind = std::mem::replace(&mut call.kind, Kind::Ping);
        let Kind::Name(name) = kind else { return Ok(()) };
        let span = Span { start: call.start, end };
        let who = self.clients[client].who;
        match (answer, &name.expect) {
            (Ok(output), Ok(steps)) => {
                steps.iter().for_each(|edits| self.names.apply(edits));
                self.name_succeeded(&name, output, buffer.as_deref().unwrap_or(&[]), span, who)?;
                self.settle(client, &call, buffer, &name)?;
            }
            (Ok(output), Err(status)) => {
                return Err(format!("should have failed with {status}, answered {output:?}"));
            }
            (Err(error), expect) => {
                self.settle(client, &call, buffer, &name)?;
                if expect.as_ref().err() == error.status().as_ref() {
                    return Ok(());
                }
                if !self.is_excused(client, &call, &error) {
                    return Err(format!("expected {expect:?}, answered {error:?}"));
                }
                self.report.excused += 1;
                self.without_server(client, &error);
                if let Some(node) = name.node {
                    let file = self.names.node(node).file;
                    name.changes.iter().for_each(|change| self.files[file].failed(*change, end));
                }
                let now = self.now();
                self.name_unclear(*name, now);
            }
        }
        Ok(())
    }

    /// The call is over: its yards are free and its buffer is ours.
    fn settle(
        &mut self,
        client: usize,
        call: &Call,
        buffer: Option<Buffer>,
        name: &NameCall,
    ) -> Result<(), String> {
        name.yards.iter().for_each(|yard| self.busy_yards[*yard] = false);
        self.give_back(client, call, buffer)
    }

    fn name_succeeded(
        &mut self,
        name: &NameCall,
        output: Output<dafs_client::core::FileKey>,
        buffer: &[u8],
        span: Span,
        who: usize,
    ) -> Result<(), String> {
        match (name.op, output, name.node) {
            (NameOp::Remove | NameOp::Rename, Output::Unit, _) => Ok(()),
            (NameOp::ReadLink, Output::Target(target), Some(node)) => {
                let right = &self.names.node(node).target;
                if target == *right { Ok(()) } else { Err("another target".into()) }
            }
            (NameOp::ReadDir, Output::Entries { entries, end, .. }, Some(node)) => {
                self.check_entries(node, &entries, end)
            }
            (NameOp::Get, Output::Got { attr, bytes }, Some(node)) => {
                self.check_attr(node, &attr, Some(span))?;
                let file = self.names.node(node).file;
                let there = buffer.get(..bytes).ok_or("more bytes than asked for")?;
                self.files[file].check_read(span, 0, buffer.len() as u64, there)
            }
            (NameOp::Put { commit, piece }, Output::Attr(attr), Some(node)) => {
                let file = self.names.node(node).file;
                for change in &name.changes {
                    self.files[file].done(*change, span.end, None)?;
                }
                if piece.1 > 0
                    && !data::is_filled(
                        &Piece { offset: 0, len: piece.1, change: piece.0 },
                        buffer.get(..piece.1 as usize).unwrap_or(&[]),
                    )
                {
                    return Err("the source of a write was changed".into());
                }
                if commit {
                    let whole = Span { start: span.end + 1, end: span.end + 1 };
                    self.files[file].committed(who, None, whole, Safety::Durable, None);
                }
                // Links and names may have changed since the close that answered.
                self.check_identity(node, &attr)?;
                self.files[file].check_size(attr.size, span)
            }
            (NameOp::Chmod(mode), Output::Attr(attr), Some(node)) => {
                self.names.node_mut(node).mode = mode;
                self.check_attr(node, &attr, Some(span))
            }
            (_, Output::Attr(attr), Some(node)) => self.check_attr(node, &attr, Some(span)),
            (_, Output::Object(found), Some(node)) => {
                self.check_attr(node, &found.attr, Some(span))
            }
            (_, other, _) => Err(format!("an answer of another kind: {other:?}")),
        }
    }

    /// It is the object that it should be. Learns its number the first time.
    fn check_identity(&mut self, node: NodeId, attr: &Attr) -> Result<(), String> {
        let known = self.names.node(node).inode;
        let right = match known {
            Some(inode) => inode == attr.inode,
            None => !self.names.has_inode(attr.inode, &self.busy_yards),
        };
        if !right || attr.kind != self.names.node(node).kind {
            let node = self.names.node(node);
            let same = self.names.with_inode(attr.inode);
            return Err(format!("another object: {attr:?} instead of {node:?}, {same:?}"));
        }
        self.names.node_mut(node).inode = Some(attr.inode);
        Ok(())
    }

    fn check_attr(&mut self, id: NodeId, attr: &Attr, size: Option<Span>) -> Result<(), String> {
        self.check_identity(id, attr)?;
        let node = self.names.node(id);
        if node.mode != attr.mode && node.mode != MODE_UNKNOWN {
            return Err(format!("mode {:o} instead of {:o}", attr.mode, node.mode));
        }
        let links = self.names.links(id);
        if node.kind != FileKind::Directory && attr.links as usize != links {
            return Err(format!("{} links instead of {links}", attr.links));
        }
        match size {
            Some(span) if node.kind == FileKind::File => {
                self.files[node.file].check_size(attr.size, span)
            }
            _ => Ok(()),
        }
    }

    fn check_entries(
        &mut self,
        dir: NodeId,
        entries: &[dafs_protocol::DirEntry],
        end: bool,
    ) -> Result<(), String> {
        let mut found: Vec<String> =
            entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into()).collect();
        found.sort_unstable();
        let right: Vec<(String, NodeId)> =
            self.names.list(dir).map(|(name, node)| (name.clone(), node)).collect();
        if !end || found.iter().ne(right.iter().map(|entry| &entry.0)) {
            return Err(format!("lists {found:?} (end: {end}) instead of {right:?}"));
        }
        for entry in entries {
            let name = String::from_utf8_lossy(&entry.name);
            let node = right.iter().find(|other| other.0 == name).map(|other| other.1);
            if let (Some(node), Some(attr)) = (node, &entry.attr) {
                self.check_identity(node, attr)?;
            }
        }
        Ok(())
    }

    // --- what became of calls whose answers were lost ---

    /// The answer of a call says nothing, or never comes.
    pub(crate) fn name_unclear(&mut self, call: NameCall, not_before: Duration) {
        call.yards.iter().for_each(|yard| self.busy_yards[*yard] = false);
        if let (NameOp::Chmod(_), Some(node)) = (call.op, call.node) {
            self.names.node_mut(node).mode = MODE_UNKNOWN;
        }
        let NameCall { mut paths, yards, expect, .. } = call;
        let steps = expect.unwrap_or_default();
        if steps.is_empty() {
            // Nothing to be found out; but it may still run.
            paths.clear();
        }
        yards.iter().for_each(|yard| self.busy_yards[*yard] = true);
        self.looks.push(Look { paths, found: Vec::new(), steps, yards, not_before });
    }

    /// Somebody looks at what is unclear.
    pub(crate) fn look(&mut self) -> Result<(), String> {
        self.look_at_races();
        self.look_at_slots();
        let now = self.now();
        let due = self.looks.iter().position(|look| look.not_before <= now);
        let Some(due) = due else { return Ok(()) };
        let look = self.looks.swap_remove(due);
        let Some(path) = look.paths.get(look.found.len()) else { return self.clear_up(look) };
        let work = Work::Stat { place: place(path), no_follow: true };
        let client = self.rng.index(self.clients.len());
        let call = self.call(client, Kind::Look(Box::new(look)), 0);
        self.clients[client].submit(call, work, None);
        Ok(())
    }

    pub(crate) fn looked(
        &mut self,
        client: usize,
        mut call: Call,
        answer: Answer,
    ) -> Result<(), String> {
        let Kind::Look(mut look) = std::mem::replace(&mut call.kind, Kind::Ping) else {
            return Ok(());
        };
        match answer {
            Ok(Output::Attr(attr)) => look.found.push(Some(attr)),
            Err(error) if matches!(error.status(), Some(Status::NoEnt | Status::NotDir)) => {
                look.found.push(None);
            }
            Err(error) if self.is_excused(client, &call, &error) => {
                look.not_before = self.now() + Duration::from_millis(20);
            }
            other => return Err(format!("a look at {:?}: {other:?}", look.paths)),
        }
        if look.found.len() < look.paths.len() {
            self.looks.push(*look);
            return Ok(());
        }
        self.clear_up(*look)
    }

    /// One of the candidates is what was found.
    fn clear_up(&mut self, look: Look) -> Result<(), String> {
        for count in 0..=look.steps.len() {
            let mut after = self.names.clone();
            look.steps.iter().take(count).for_each(|edits| after.apply(edits));
            let fits = look.paths.iter().zip(&look.found).all(|(path, found)| {
                match (after.find(path).unwrap_or_default(), found) {
                    (None, None) => true,
                    (Some(node), Some(attr)) => {
                        let node = after.node(node);
                        let same = match node.inode {
                            Some(inode) => inode == attr.inode,
                            None => !self.names.has_inode(attr.inode, &self.busy_yards),
                        };
                        same && node.kind == attr.kind
                    }
                    _ => false,
                }
            });
            if fits {
                self.names = after;
                for (path, found) in look.paths.iter().zip(&look.found) {
                    if let (Ok(Some(node)), Some(attr)) = (self.names.find(path), found) {
                        self.names.node_mut(node).inode = Some(attr.inode);
                    }
                }
                look.yards.iter().for_each(|yard| self.busy_yards[*yard] = false);
                return Ok(());
            }
        }
        Err(format!("neither done nor not done, or done twice: {look:?}"))
    }
}
