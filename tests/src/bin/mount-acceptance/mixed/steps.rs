//! The steps: each draws what to do, does it, and judges what it sees.

mod names;
mod stores;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use dafs_tests::random::Random;
use dafs_tests::sys::{BLOCK, Mapping};

use super::MOUNTS;
use super::model::{Conflict, Edit};
use super::world::{
    ACTORS, Handle, Kind, NAMES, SIZE_MAX, World, close, is_missing, is_mount, read_fresh, text,
};

/// Descriptors of an actor.
const HANDLES_MAX: usize = 4;
/// Names are not removed below this.
const NAMES_MIN: usize = 4;
/// More than a file has.
const WHOLE: usize = SIZE_MAX + BLOCK;
/// In how many cases of 100 a step that would be open is replaced by one that makes it certain.
const AVOIDED: u64 = 80;
/// In how many cases of 100 a local program does not wait for the clock before it changes a file.
const AT_ONCE: u64 = 33;

/// What came of a step: nothing (it cannot be done now), or whether its result was open.
type Done = Result<Option<bool>, String>;
const CERTAIN: Done = Ok(Some(false));
const NOTHING: Done = Ok(None);

pub(crate) struct Mixed {
    world: World,
    random: Random,
    /// Steps of whose result the guarantees leave something open.
    pub(crate) open: u64,
    /// Local changes in the tick of the file's last use: the server may miss them.
    pub(crate) at_once: u64,
    /// The file of this step.
    at: usize,
}

/// Bytes that no other step writes in a row.
fn pattern(step: u64, len: usize) -> Vec<u8> {
    let mut random = Random::new(step);
    (0..len).map(|_| 1 + random.below(255) as u8).collect()
}

impl Mixed {
    /// Works in these directories of the actors.
    pub(crate) fn new(dirs: Vec<PathBuf>, seed: u64) -> Result<Mixed, String> {
        let (world, random) = (World::new(dirs)?, Random::new(seed));
        Ok(Mixed { world, random, open: 0, at_once: 0, at: 0 })
    }

    /// One step.
    ///
    /// # Errors
    /// What differs from the guarantees, and what was done with that file before.
    pub(crate) fn step(&mut self) -> Result<(), String> {
        self.world.step += 1;
        let mut done = Ok(None);
        while let Ok(None) = done {
            done = self.draw();
        }
        let open = done.and_then(|open| self.less_vague().map(|()| open));
        let open = open.map_err(|error| self.with_story(&error))?;
        self.open += u64::from(open == Some(true));
        Ok(())
    }

    fn with_story(&self, error: &str) -> String {
        format!("step {}: {error}\n{}", self.world.step, self.world.story(self.at))
    }

    fn tell(&mut self, who: usize, object: usize, what: &str) {
        self.at = object;
        self.world.tell(who, object, what);
    }

    fn draw(&mut self) -> Done {
        let who = self.random.index(ACTORS);
        let chosen = self.random.below(100);
        match chosen {
            0..14 => return self.open(who),
            14..18 => return self.rename(who),
            18..20 => return self.unlink(who),
            20..36 => return self.look(who),
            _ => {}
        }
        let Some(handle) = self.handle_of(who) else { return NOTHING };
        match chosen {
            36..42 => self.close(handle),
            42..56 => self.read(handle),
            56..72 => self.write(handle),
            72..77 => self.cut(handle),
            77..84 => self.sync(handle),
            84..95 => self.store(handle),
            95..99 => self.sync_mapping(handle),
            _ => self.contest(handle),
        }
    }

    fn handle_of(&mut self, who: usize) -> Option<usize> {
        let of = |(_, handle): &(usize, &Handle)| handle.who == who;
        let all: Vec<usize> =
            self.world.handles.iter().enumerate().filter(of).map(|(index, _)| index).collect();
        all.get(self.random.index(all.len())).copied()
    }

    // Names.

    /// Whether a step of this actor with this name is well defined; waits a moment for that.
    fn may_use(&mut self, who: usize, name: usize) -> bool {
        let settled = self.world.is_settled(who, name);
        if settled {
            self.world.settle_name(who, name);
        }
        settled
    }

    fn open(&mut self, who: usize) -> Done {
        if self.world.handles.iter().filter(|handle| handle.who == who).count() >= HANDLES_MAX {
            let handle = self.handle_of(who);
            return handle.map_or(NOTHING, |handle| self.close(handle));
        }
        let name = self.random.index(NAMES);
        let kind = match self.random.below(10) {
            0..6 => Kind::Plain,
            6..8 => Kind::Append,
            _ if is_mount(who) => Kind::Direct,
            _ => Kind::Plain,
        };
        match self.world.named(name) {
            None if self.random.percent(20) => self.miss(who, name),
            None if self.may_use(who, name) => self.create(who, name, kind),
            None => NOTHING,
            Some(_) if self.world.is_settled(who, name) || !self.random.percent(AVOIDED) => {
                self.open_that(who, name, kind)
            }
            Some(_) => NOTHING,
        }
    }

    /// A name that is not there.
    fn miss(&mut self, who: usize, name: usize) -> Done {
        if self.world.may_be(who, name).len() > 1 {
            return NOTHING;
        }
        match self.world.open(who, name, Kind::Plain, (false, false)) {
            Err(error) if is_missing(&error) => CERTAIN,
            Err(error) => Err(format!("actor {who}: open of no name: {error}")),
            Ok(_) => Err(format!("actor {who}: name {name} is there, which it is not")),
        }
    }

    fn create(&mut self, who: usize, name: usize, kind: Kind) -> Done {
        let file = self.world.open(who, name, kind, (true, false));
        let file = file.map_err(|error| format!("actor {who}: create of name {name}: {error}"))?;
        let object = self.world.add_object(&file)?;
        self.world.set_name(who, name, Some(object));
        self.tell(who, object, &format!("makes name {name}, {kind:?}"));
        self.world.used(object);
        self.add_handle(who, object, kind, file);
        CERTAIN
    }

    fn add_handle(&mut self, who: usize, object: usize, kind: Kind, file: File) {
        let handle = Handle { who, object, kind, file, mapping: None, wrote: false };
        self.world.handles.push(handle);
    }

    fn open_that(&mut self, who: usize, name: usize, kind: Kind) -> Done {
        let may_be = self.world.may_be(who, name);
        let truncate = kind != Kind::Append && may_be.len() == 1 && self.random.percent(6);
        let truncate =
            truncate && may_be.iter().flatten().all(|object| self.may_empty(who, *object));
        if truncate && !is_mount(who) {
            may_be.iter().flatten().for_each(|object| self.world.wait_for_tick(*object));
        }
        self.at = may_be[0].unwrap_or(self.at);
        let file = match self.world.open(who, name, kind, (false, truncate)) {
            Err(_) if may_be.len() > 1 => return Ok(Some(true)),
            other => other.map_err(|error| format!("actor {who}: open of name {name}: {error}"))?,
        };
        let object = self.world.which(&file, &may_be)?;
        self.tell(who, object, &format!("opens name {name}, {kind:?}, O_TRUNC: {truncate}"));
        self.opened(who, object);
        if may_be.len() > 1 {
            // The kernel may have it as another one than under its new name.
            return close(file).map(|()| Some(true));
        }
        self.add_handle(who, object, kind, file);
        if truncate {
            self.edited(self.world.handles.len() - 1, &Edit::Cut { len: 0 }, false);
        }
        CERTAIN
    }

    fn may_empty(&mut self, who: usize, object: usize) -> bool {
        let content = self.world.content(object);
        let conflict = content.local_conflict(&Edit::Cut { len: 0 });
        content.mapped().is_none() && (is_mount(who) || conflict.is_none())
    }

    fn opened(&mut self, who: usize, object: usize) {
        if is_mount(who) {
            self.world.content(object).opened(who);
        }
        self.world.used(object);
    }

    fn is_open(&self, who: usize, object: usize, kind: Kind, at: usize, len: usize) -> bool {
        !self.world.view(who, object, kind).agrees(at, len)
    }

    fn read(&mut self, handle: usize) -> Done {
        let Handle { who, object, kind, .. } = self.world.handles[handle];
        let (at, len) = self.range(object, kind);
        if self.is_open(who, object, kind, at, len) && self.random.percent(AVOIDED) {
            return self.make_certain(who, object);
        }
        if self.world.handles[handle].mapping.is_some() && self.random.percent(50) {
            return self.load(handle, at, len);
        }
        if kind == Kind::Direct && self.random.percent(50) {
            return self.read_asynchronously(handle, at, len);
        }
        self.read_range(handle, at, len)
    }

    fn read_range(&mut self, handle: usize, at: usize, len: usize) -> Done {
        let Handle { who, object, kind, .. } = self.world.handles[handle];
        self.tell(who, object, &format!("reads {len} at {at}, {kind:?}"));
        let bytes = self.world.read(handle, at, len).map_err(text("read"))?;
        self.world.view(who, object, kind).judge(at, len, &bytes)?;
        self.world.used(object);
        Ok(Some(self.is_open(who, object, kind, at, len)))
    }

    /// Reads bytes as the server has them, up to the length that the mount knows.
    fn read_asynchronously(&mut self, handle: usize, at: usize, len: usize) -> Done {
        let Handle { who, object, .. } = self.world.handles[handle];
        self.tell(who, object, &format!("reads {len} at {at} asynchronously"));
        let bytes = self.world.read_asynchronously(handle, at, len).map_err(text("io_submit"))?;
        let content = self.world.content(object);
        let counts = content.mount(who).counts(at, len);
        if !counts.contains(&bytes.len()) {
            return Err(format!("{} bytes at {at} of {len}, not of {counts:?}", bytes.len()));
        }
        content.server().judge_bytes(at, &bytes)?;
        self.world.used(object);
        let certain = counts.iter().all(|count| *count == counts[0]);
        Ok(Some(!certain || self.is_open(who, object, Kind::Direct, at, len)))
    }

    fn range(&mut self, object: usize, kind: Kind) -> (usize, usize) {
        let size = self.world.content(object).len();
        if self.random.percent(30) {
            return (0, WHOLE);
        }
        let (at, len) = (self.random.index(size + 1), 1 + self.random.index(12_000));
        match kind {
            Kind::Direct => (at / BLOCK * BLOCK, len.next_multiple_of(BLOCK)),
            _ => (at, len),
        }
    }

    // What makes results certain.

    fn make_certain(&mut self, who: usize, object: usize) -> Done {
        let mapped = self.world.content(object).mapped().is_some_and(|by| by != who);
        let conflict = match is_mount(who) {
            _ if mapped => Conflict::Mapped,
            true => self.world.content(object).unseen_conflict(),
            false => Conflict::Unflushed,
        };
        self.remedy(who, object, conflict)
    }

    fn remedy(&mut self, who: usize, object: usize, conflict: Conflict) -> Done {
        if conflict == Conflict::Missed {
            return Ok(self.settle_times(object)?.then_some(false));
        }
        let mapped = self.world.content(object).mapped();
        let mut handles = self.world.handles.iter();
        let found = handles.position(|handle| {
            handle.object == object
                && match conflict {
                    Conflict::Mapped => handle.mapping.is_some() && Some(handle.who) == mapped,
                    Conflict::Unflushed => handle.wrote,
                    Conflict::Unseen | Conflict::Missed => handle.who == who,
                }
        });
        match (found, conflict) {
            (Some(handle), Conflict::Mapped) => self.sync_stores(handle),
            (Some(handle), Conflict::Unflushed) => self.sync(handle),
            (Some(handle), Conflict::Unseen | Conflict::Missed) => self.look_again(handle),
            (None, _) => NOTHING,
        }
    }

    /// Changes that the server may have missed it does not miss any more; false where nobody can
    /// see to that.
    fn settle_times(&mut self, object: usize) -> Result<bool, String> {
        if !self.world.content(object).is_in_doubt() {
            return Ok(true);
        }
        self.tell(MOUNTS, object, "gives it another time");
        self.world.touch(object).map_err(text("utimes"))
    }

    /// Opens the file of a descriptor again, whatever its name is now.
    fn look_again(&mut self, handle: usize) -> Done {
        let Handle { who, object, ref file, .. } = self.world.handles[handle];
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        self.at = object;
        let read = read_fresh(&path).map_err(text("open of an open file"))?;
        self.looked(who, object, "reads its open file anew", read).map(Some)
    }

    /// After many unsynced changes nearly everything would be allowed.
    fn less_vague(&mut self) -> Result<(), String> {
        let object = self.at;
        if !self.world.objects.get(object).is_some_and(|object| object.content.is_vague()) {
            return Ok(());
        }
        if !self.settle_times(object)? {
            return Ok(());
        }
        if let Some(mount) = self.world.content(object).mapped() {
            self.remedy(mount, object, Conflict::Mapped)?;
        }
        self.remedy(0, object, Conflict::Unflushed)?;
        for mount in 0..MOUNTS {
            if self.remedy(mount, object, Conflict::Unseen)?.is_none() {
                // Nobody looks before the next open.
                self.world.content(object).unwatched(mount);
            }
        }
        Ok(())
    }

    // Changes.

    fn conflict(&mut self, handle: usize, edit: &Edit) -> Option<Conflict> {
        let Handle { who, object, kind, .. } = self.world.handles[handle];
        let content = self.world.content(object);
        match is_mount(who) {
            true if kind == Kind::Direct && content.mapped().is_some() => Some(Conflict::Mapped),
            true => content.mount_conflict(who, edit),
            false => content.local_conflict(edit),
        }
    }

    fn edited(&mut self, handle: usize, edit: &Edit, at_once: bool) {
        let Handle { who, object, .. } = self.world.handles[handle];
        self.world.handles[handle].wrote |= is_mount(who);
        self.world.edited(who, object, edit, at_once);
    }

    /// Local programs wait for the clock, as a rule; whether this change comes at once.
    fn before_change(&mut self, handle: usize) -> bool {
        let Handle { who, object, .. } = self.world.handles[handle];
        if is_mount(who) {
            return false;
        }
        let at_once = self.random.percent(AT_ONCE) && self.world.is_at_once(object);
        if !at_once {
            self.world.wait_for_tick(object);
        }
        self.at_once += u64::from(at_once);
        at_once
    }

    fn write(&mut self, handle: usize) -> Done {
        let Handle { who, object, kind, .. } = self.world.handles[handle];
        let (at, len) = self.place(object, kind);
        if at + len > SIZE_MAX {
            return self.cut(handle);
        }
        let bytes = pattern(self.world.step, len);
        let edit = Edit::Write { at, bytes: bytes.clone() };
        if let Some(conflict) = self.conflict(handle, &edit) {
            return self.remedy(who, object, conflict);
        }
        let beside = self.reader_beside(handle)?;
        let reader = if beside.is_some() { ", beside a reader" } else { "" };
        self.tell(who, object, &format!("writes {len} at {at}, {kind:?}{reader}"));
        let at_once = self.before_change(handle);
        self.world.write(handle, at, &bytes, beside).map_err(text("write"))?;
        self.edited(handle, &edit, at_once);
        beside.map_or(CERTAIN, |reader| self.read_range(reader, at, len))
    }

    /// For an asynchronous write: another descriptor of the same file and mount, which reads through
    /// the kernel's cache.
    fn reader_beside(&mut self, handle: usize) -> Result<Option<usize>, String> {
        let Handle { who, object, kind, ref file, .. } = self.world.handles[handle];
        if kind != Kind::Direct || !self.random.percent(60) {
            return Ok(None);
        }
        let same =
            |other: &Handle| (other.who, other.object, other.kind) == (who, object, Kind::Plain);
        if let Some(found) = self.world.handles.iter().position(same) {
            return Ok(Some(found));
        }
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(text("open"))?;
        self.opened(who, object);
        self.add_handle(who, object, Kind::Plain, file);
        Ok(Some(self.world.handles.len() - 1))
    }

    fn place(&mut self, object: usize, kind: Kind) -> (usize, usize) {
        let size = self.world.content(object).len();
        let len = 1 + match self.random.below(4) {
            0 => self.random.index(200),
            1 => self.random.index(5000),
            2 => self.random.index(20_000),
            _ => BLOCK * (1 + self.random.index(3)) - 1,
        };
        let at = match self.random.below(10) {
            0..8 => self.random.index(size + 1),
            8 => self.random.index(size + 1) / BLOCK * BLOCK,
            _ => size + self.random.index(6000),
        };
        match kind {
            Kind::Plain => (at, len),
            Kind::Append => (size, len),
            // Within the file the kernel really does not wait.
            Kind::Direct if size >= BLOCK && self.random.percent(80) => {
                let at = at.min(size - BLOCK) / BLOCK * BLOCK;
                (at, (size - at) / BLOCK * BLOCK)
            }
            Kind::Direct => (at / BLOCK * BLOCK, len.next_multiple_of(BLOCK)),
        }
    }

    fn cut(&mut self, handle: usize) -> Done {
        let Handle { who, object, .. } = self.world.handles[handle];
        let size = self.world.content(object).len();
        let len = match self.random.below(10) {
            0..7 => self.random.index(size + 1),
            7 => self.random.index(size + 1) / BLOCK * BLOCK,
            _ => (size + self.random.index(9000)).min(SIZE_MAX),
        };
        if let Some(conflict) = self.conflict(handle, &Edit::Cut { len }) {
            return self.remedy(who, object, conflict);
        }
        self.cut_to(handle, size, len)
    }

    fn cut_to(&mut self, handle: usize, size: usize, len: usize) -> Done {
        let Handle { who, object, .. } = self.world.handles[handle];
        self.tell(who, object, &format!("cuts it from {size} to {len}"));
        let at_once = self.before_change(handle);
        self.world.handles[handle].file.set_len(len as u64).map_err(text("ftruncate"))?;
        self.edited(handle, &Edit::Cut { len }, at_once);
        CERTAIN
    }

    fn sync(&mut self, handle: usize) -> Done {
        let Handle { who, object, .. } = self.world.handles[handle];
        self.tell(who, object, "syncs");
        self.world.handles[handle].file.sync_all().map_err(text("fsync"))?;
        if is_mount(who) {
            self.synced(who, object);
        }
        CERTAIN
    }

    fn synced(&mut self, who: usize, object: usize) {
        if self.world.content(object).mapped() == Some(who) {
            self.world.content(object).unmapped();
        }
        self.world.all_flushed(object);
    }

    fn unmap(&mut self, handle: usize) {
        let Handle { who, object, .. } = self.world.handles[handle];
        if self.world.handles[handle].mapping.take().is_none() {
            return;
        }
        self.tell(who, object, "unmaps it");
        if self.world.content(object).mapped() == Some(who) {
            self.world.content(object).unmapped();
            self.world.handles[handle].wrote = true;
        }
        self.world.used(object);
    }

    fn close(&mut self, handle: usize) -> Done {
        let Handle { who, object, .. } = self.world.handles[handle];
        self.unmap(handle);
        if !is_mount(who) && self.world.name_of(object).is_none() {
            self.settle_times(object)?;
        }
        self.tell(who, object, "closes");
        let handle = self.world.handles.swap_remove(handle);
        close(handle.file)?;
        if is_mount(who) {
            self.world.flushed_by(object);
        }
        CERTAIN
    }

    // Both sides at once.

    /// A mount and a local program write one block at the same time: it gets one of the two, and
    /// all see the same.
    fn contest(&mut self, handle: usize) -> Done {
        let Handle { who, object, kind, .. } = self.world.handles[handle];
        let Some(name) = self.world.name_of(object) else { return NOTHING };
        let content = self.world.content(object);
        let size = content.len();
        if !is_mount(who) || kind != Kind::Plain || size < 1000 || !content.is_settled() {
            return NOTHING;
        }
        let at = self.random.index((size - 1000) / BLOCK + 1) * BLOCK;
        let bytes = pattern(self.world.step, 600);
        let (mine, theirs) = (bytes[..400].to_vec(), bytes[200..].to_vec());
        let edits = [
            Edit::Write { at: at + 100, bytes: mine },
            Edit::Write { at: at + 300, bytes: theirs },
        ];
        let local_first = self.random.percent(50);
        self.tell(who, object, &format!("and a local program write at {at}, {local_first}"));
        let path = self.world.path(MOUNTS, name);
        let local = OpenOptions::new().write(true).open(path).map_err(text("open"))?;
        self.world.wait_for_tick(object);
        let mount = &self.world.handles[handle].file;
        let mut pair = [(mount, &edits[0]), (&local, &edits[1])];
        pair.rotate_left(usize::from(local_first));
        for (file, edit) in pair {
            write_edit(file, edit).map_err(text("write"))?;
        }
        mount.sync_all().map_err(text("fsync"))?;
        self.world.all_flushed(object);
        let (_, _, found) = read_fresh(&self.world.path(MOUNTS, name)).map_err(text("read"))?;
        let [mine, theirs] = [&edits[0], &edits[1]];
        let content = self.world.content(object);
        let outcomes: [&[&Edit]; 4] = [&[mine], &[theirs], &[mine, theirs], &[theirs, mine]];
        if !outcomes.iter().any(|edits| content.changed(edits) == found) {
            return Err("of two writes of a block neither is there".into());
        }
        content.decided(&found);
        self.world.used(object);
        Ok(Some(true))
    }

    /// Closes everything, and lets all look at all.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub(crate) fn end(&mut self) -> Result<(), String> {
        while !self.world.handles.is_empty() {
            self.close(0).map_err(|error| self.with_story(&error))?;
        }
        for (who, name) in (0..ACTORS).flat_map(|who| (0..NAMES).map(move |name| (who, name))) {
            let Some(object) = self.world.named(name) else { continue };
            self.at = object;
            self.world.settle_name(who, name);
            self.settle_times(object)?;
            let read = read_fresh(&self.world.path(who, name)).map_err(text("read at the end"))?;
            self.looked(who, object, "reads at the end", read)
                .map_err(|error| self.with_story(&error))?;
        }
        Ok(())
    }
}

fn write_edit(file: &File, edit: &Edit) -> io::Result<()> {
    match edit {
        Edit::Write { at, bytes } => file.write_all_at(bytes, *at as u64),
        Edit::Cut { len } => file.set_len(*len as u64),
    }
}
