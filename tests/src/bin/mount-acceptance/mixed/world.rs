//! Who works in the directory, on what: actors with their descriptors, the files, and the names.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use dafs_tests::sys::{Aligned, Asynchronous, Mapping};
use nix::time::{ClockId, clock_gettime};

use super::MOUNTS;
use super::model::{Content, Edit, View};

/// Actors: mounts first, then local programs.
pub(crate) const ACTORS: usize = MOUNTS + 2;
/// Names that files can have.
pub(crate) const NAMES: usize = 8;
/// A file grows up to this.
pub(crate) const SIZE_MAX: usize = 96 << 10;
/// How long a mount believes a name, and a margin.
const NAMES_BELIEVED: Duration = Duration::from_millis(1300);
/// The mount that believes names.
const BELIEVER: usize = 2;
/// Steps after which a name is old enough for it, as a rule.
const NAME_STEPS: u64 = 400;
const TOLD: usize = 60;

/// Options of each mount.
pub(crate) const OPTIONS: [&str; MOUNTS] =
    ["entry_timeout=0", "entry_timeout=0,attr_timeout=0", ""];

pub(crate) fn is_mount(who: usize) -> bool {
    who < MOUNTS
}

/// How a file is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Append,
    /// O_DIRECT, through libaio.
    Direct,
}

pub(crate) struct Handle {
    pub(crate) who: usize,
    pub(crate) object: usize,
    pub(crate) kind: Kind,
    pub(crate) file: File,
    pub(crate) mapping: Option<Mapping>,
    /// Has written through a mount, and nobody has flushed.
    pub(crate) wrote: bool,
}

pub(crate) struct Object {
    pub(crate) content: Content,
    inode: u64,
    /// The tick of the file system's clock in which it was used last.
    tick: (i64, i64),
    /// What was done with it last.
    told: VecDeque<String>,
}

#[derive(Default)]
struct Name {
    object: Option<usize>,
    changed_in: u64,
    /// What it named, until when, and who changed that.
    was: Vec<(Option<usize>, Instant, usize)>,
}

pub(crate) struct World {
    dirs: Vec<PathBuf>,
    names: [Name; NAMES],
    pub(crate) objects: Vec<Object>,
    pub(crate) handles: Vec<Handle>,
    context: Asynchronous,
    pub(crate) step: u64,
}

pub(crate) fn text(what: &str) -> impl Fn(io::Error) -> String + '_ {
    move |error| format!("{what}: {error}")
}

fn tick() -> (i64, i64) {
    let now = clock_gettime(ClockId::CLOCK_REALTIME_COARSE).expect("a clock");
    (now.tv_sec(), now.tv_nsec())
}

fn named(who: usize) -> String {
    if is_mount(who) { format!("mount {who}") } else { format!("local {}", who - MOUNTS) }
}

impl World {
    /// Works in these directories, one of each actor.
    pub(crate) fn new(dirs: Vec<PathBuf>) -> Result<World, String> {
        let context = Asynchronous::new().map_err(text("io_setup"))?;
        let (names, objects, handles) = (Default::default(), Vec::new(), Vec::new());
        Ok(World { dirs, names, objects, handles, context, step: 0 })
    }

    pub(crate) fn path(&self, who: usize, name: usize) -> PathBuf {
        self.dirs[who].join(format!("name-{name}"))
    }

    pub(crate) fn content(&mut self, object: usize) -> &mut Content {
        &mut self.objects[object].content
    }

    /// Notes what is done, to be told if something is wrong.
    pub(crate) fn tell(&mut self, who: usize, object: usize, what: &str) {
        let line = format!("step {}: {} {what}", self.step, named(who));
        let told = &mut self.objects[object].told;
        if told.len() == TOLD {
            told.pop_front();
        }
        told.push_back(line);
    }

    /// The last steps with a file.
    pub(crate) fn story(&self, object: usize) -> String {
        let lines: Vec<&str> = self.objects[object].told.iter().map(String::as_str).collect();
        format!("file {object}:\n  {}", lines.join("\n  "))
    }

    // Names.

    pub(crate) fn named(&self, name: usize) -> Option<usize> {
        self.names[name].object
    }

    pub(crate) fn name_of(&self, object: usize) -> Option<usize> {
        self.names.iter().position(|name| name.object == Some(object))
    }

    pub(crate) fn count_names(&self) -> usize {
        self.names.iter().filter(|name| name.object.is_some()).count()
    }

    /// What an actor may find under a name: what it names, first, and what a mount believes yet.
    pub(crate) fn may_be(&self, who: usize, name: usize) -> Vec<Option<usize>> {
        let name = &self.names[name];
        let mut all = vec![name.object];
        if who != BELIEVER {
            return all;
        }
        for (object, until, by) in name.was.iter().rev() {
            if *by == who || until.elapsed() > NAMES_BELIEVED {
                break;
            }
            all.push(*object);
        }
        // That a name is not there is asked each time.
        let believed = all.split_off(1);
        all.extend(believed.into_iter().filter(Option::is_some));
        all
    }

    /// Whether the name has been as it is for some steps, or this actor asks each time.
    pub(crate) fn is_settled(&self, who: usize, name: usize) -> bool {
        let name = &self.names[name];
        who != BELIEVER || name.was.is_empty() || self.step - name.changed_in > NAME_STEPS
    }

    /// Waits until this actor believes nothing old of the name.
    pub(crate) fn settle_name(&self, who: usize, name: usize) {
        while self.may_be(who, name).len() > 1 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn set_name(&mut self, who: usize, name: usize, object: Option<usize>) {
        let name = &mut self.names[name];
        let before = std::mem::replace(&mut name.object, object);
        name.changed_in = self.step;
        name.was.retain(|(_, until, _)| until.elapsed() < NAMES_BELIEVED * 2);
        name.was.push((before, Instant::now(), who));
    }

    // Files.

    /// What an actor may see through a descriptor.
    pub(crate) fn view(&self, who: usize, object: usize, kind: Kind) -> &View {
        let content = &self.objects[object].content;
        match kind {
            _ if !is_mount(who) => content.disk(),
            Kind::Direct => content.server(),
            _ => content.mount(who),
        }
    }

    /// A file that was just made.
    pub(crate) fn add_object(&mut self, file: &File) -> Result<usize, String> {
        let inode = file.metadata().map_err(text("fstat"))?.ino();
        let (content, told) = (Content::new(b""), VecDeque::new());
        self.objects.push(Object { content, inode, tick: (0, 0), told });
        Ok(self.objects.len() - 1)
    }

    /// Which of these a descriptor is of.
    pub(crate) fn which(&self, file: &File, of: &[Option<usize>]) -> Result<usize, String> {
        let of: Vec<usize> = of.iter().flatten().copied().collect();
        if let [one] = of[..] {
            return Ok(one);
        }
        let inode = file.metadata().map_err(text("fstat"))?.ino();
        let found = of.iter().copied().find(|object| self.objects[*object].inode == inode);
        found.ok_or_else(|| format!("inode {inode} is none of the files {of:?}"))
    }

    /// The file system's clock has not ticked since the last use of a file: of two changes in one
    /// tick a server cannot tell.
    pub(crate) fn is_at_once(&self, object: usize) -> bool {
        tick() == self.objects[object].tick
    }

    /// Waits for the next tick after the last use of a file.
    pub(crate) fn wait_for_tick(&self, object: usize) {
        while self.is_at_once(object) {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    pub(crate) fn used(&mut self, object: usize) {
        self.objects[object].tick = tick();
    }

    /// The content after a change by a call, and whether a local one came at once.
    pub(crate) fn edited(&mut self, who: usize, object: usize, edit: &Edit, at_once: bool) {
        match is_mount(who) {
            true => self.content(object).by_mount(who, edit),
            false => self.content(object).by_local(edit, at_once),
        }
        self.used(object);
    }

    /// A local program gives a file another time, which no server misses; false where none has it.
    pub(crate) fn touch(&mut self, object: usize) -> io::Result<bool> {
        self.wait_for_tick(object);
        let of = |handle: &&Handle| handle.object == object && !is_mount(handle.who);
        let now = SystemTime::now();
        match (self.name_of(object), self.handles.iter().find(of)) {
            (Some(name), _) => File::open(self.path(MOUNTS, name))?.set_modified(now)?,
            (None, Some(handle)) => handle.file.set_modified(now)?,
            (None, None) => return Ok(false),
        }
        self.content(object).touched();
        self.used(object);
        Ok(true)
    }

    /// Everything of a file that mounts have written has been flushed.
    pub(crate) fn all_flushed(&mut self, object: usize) {
        for handle in self.handles.iter_mut().filter(|handle| handle.object == object) {
            handle.wrote = false;
        }
        self.content(object).flushed();
        self.used(object);
    }

    /// One writer has flushed what it wrote.
    pub(crate) fn flushed_by(&mut self, object: usize) {
        if !self.handles.iter().any(|handle| handle.object == object && handle.wrote) {
            self.content(object).flushed();
        }
        self.used(object);
    }

    /// Opens a name, or makes a file of that name.
    pub(crate) fn open(
        &self,
        who: usize,
        name: usize,
        kind: Kind,
        (create, truncate): (bool, bool),
    ) -> io::Result<File> {
        let flags = if kind == Kind::Direct { libc::O_DIRECT } else { 0 };
        let mut options = OpenOptions::new();
        // `append` alone would leave out O_WRONLY's offsets only.
        options.read(true).write(true).append(kind == Kind::Append);
        options.create_new(create).truncate(truncate).custom_flags(flags);
        options.open(self.path(who, name))
    }

    /// Up to `len` bytes, fewer only at the end of the file.
    pub(crate) fn read(&self, handle: usize, at: usize, len: usize) -> io::Result<Vec<u8>> {
        read_range(&self.handles[handle].file, at, len)
    }

    /// As `read`, of a descriptor for direct I/O, asynchronously: the kernel ends that at the length
    /// that it knows, so who reads so asks for that first.
    pub(crate) fn read_asynchronously(
        &mut self,
        handle: usize,
        at: usize,
        len: usize,
    ) -> io::Result<Vec<u8>> {
        let file = &self.handles[handle].file;
        file.metadata()?;
        let buffer = self.context.read(file, at as u64, Aligned::new(len))?;
        Ok(buffer.bytes().to_vec())
    }

    /// Writes all; for direct I/O asynchronously, and meanwhile `beside` reads the same bytes.
    pub(crate) fn write(
        &mut self,
        handle: usize,
        at: usize,
        bytes: &[u8],
        beside: Option<usize>,
    ) -> io::Result<()> {
        let Handle { kind, ref file, .. } = self.handles[handle];
        let done = match kind {
            Kind::Plain => return file.write_all_at(bytes, at as u64),
            Kind::Append => (&*file).write(bytes)?,
            Kind::Direct => {
                let mut call = self.context.write(file, at as u64, Aligned::of(bytes))?;
                if let Some(reader) = beside {
                    // The last bytes: the kernel reads in what comes after them, not before.
                    read_range(&self.handles[reader].file, at, bytes.len())?;
                }
                call.wait()?
            }
        };
        if done == bytes.len() {
            return Ok(());
        }
        Err(io::Error::other(format!("{done} of {} bytes written", bytes.len())))
    }
}

pub(crate) fn read_range(file: &File, at: usize, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut done = 0;
    while done < len {
        match file.read_at(&mut bytes[done..], (at + done) as u64)? {
            0 => break,
            more => done += more,
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// Closes; what FLUSH answers is the answer of close.
pub(crate) fn close(file: File) -> Result<(), String> {
    nix::unistd::close(file).map_err(|error| format!("close: {error}"))
}

/// A name in a directory of an actor is not there.
pub(crate) fn is_missing(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
}

/// The file under a path, read whole by an open of its own; its length as fstat says.
pub(crate) fn read_fresh(path: &Path) -> io::Result<(File, u64, Vec<u8>)> {
    let file = File::open(path)?;
    let len = file.metadata()?.len();
    let bytes = read_range(&file, 0, SIZE_MAX + 4096)?;
    Ok((file, len, bytes))
}
