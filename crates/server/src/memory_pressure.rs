//! Memory pressure: the cache takes less while the machine, or the control group that the server
//! runs in, is short of memory, and more again when it is not.
//!
//! Two things are watched: how long programs stall for memory (PSI: `memory.pressure` of the
//! group, or `/proc/pressure/memory`), and how near the groups around the server are to their
//! limits (`memory.max`, `memory.high`), since a group that is full is not stalled but killed.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often it is looked at.
pub(crate) const INTERVAL: Duration = Duration::from_millis(500);

/// Stalled for more than this part of the time: the cache becomes smaller.
const STALLED: f64 = 0.10;
/// And larger again only after so many looks at which almost nothing stalled.
const CALM_LOOKS: u32 = 20;
const CALM: f64 = 0.01;
/// A group should not use more than this part of its limit...
const FULL: f64 = 0.90;
/// ... and the cache grows below this part only.
const ROOMY: f64 = 0.80;

/// What was seen at one look.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Seen {
    /// The part of the time, 0 to 1, in which something stalled.
    stalled: f64,
    /// Bytes above (below, if negative) what a group should use, of the one that is worst off.
    over: Option<i64>,
    /// No group is beyond the part of its limit up to which the cache grows.
    roomy: bool,
}

/// Decides how much of its arena the cache may take.
#[derive(Debug)]
struct Sizer {
    arena: u64,
    size: u64,
    calm: u32,
}

impl Sizer {
    fn new(arena: u64) -> Sizer {
        Sizer { arena, size: arena, calm: 0 }
    }

    /// The new size, if it changes. `size` is what the cache has; it may be more than was wished.
    fn look(&mut self, seen: &Seen) -> Option<u64> {
        let over = seen.over.and_then(|over| u64::try_from(over).ok()).filter(|over| *over > 0);
        let wanted = if let Some(over) = over {
            self.calm = 0;
            self.size.saturating_sub(over.max(self.arena / 64))
        } else if seen.stalled > STALLED {
            self.calm = 0;
            self.size.saturating_sub(self.arena / 8)
        } else if seen.stalled < CALM && seen.roomy {
            self.calm += 1;
            if self.calm < CALM_LOOKS || self.size >= self.arena {
                return None;
            }
            (self.size + self.arena / 16).min(self.arena)
        } else {
            self.calm = 0;
            return None;
        };
        (wanted != self.size).then_some(wanted)
    }
}

/// A control group, of either version.
#[derive(Debug)]
struct Group {
    dir: PathBuf,
    files: &'static Files,
}

/// Where a group's numbers are.
#[derive(Debug)]
struct Files {
    limits: &'static [&'static str],
    usage: &'static str,
}

const VERSION_1: Files =
    Files { limits: &["memory.limit_in_bytes"], usage: "memory.usage_in_bytes" };
const VERSION_2: Files = Files { limits: &["memory.max", "memory.high"], usage: "memory.current" };

impl Group {
    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.dir.join(file)).ok()
    }

    fn number(&self, file: &str) -> Option<u64> {
        self.read(file)?.trim().parse().ok()
    }

    /// Its limit, if it has one, and what it uses besides the page cache, which gives way.
    fn usage(&self) -> Option<(u64, u64)> {
        // The first version has a very large number for none.
        let is_limit = |limit: &u64| *limit < 1 << 60;
        let limits = self.files.limits.iter().filter_map(|file| self.number(file));
        let limit = limits.filter(is_limit).min()?;
        let stat = self.read("memory.stat").unwrap_or_default();
        let used = self.number(self.files.usage)?.saturating_sub(page_cache(&stat));
        Some((limit, used))
    }
}

/// Bytes of `memory.stat` that are cached files of a disk.
fn page_cache(stat: &str) -> u64 {
    let of = |name: &str| {
        let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|text| text.trim().parse::<u64>().ok()).unwrap_or(0)
    };
    of("inactive_file").saturating_add(of("active_file"))
}

/// The groups around this process, the innermost first. `own` is `/proc/self/cgroup`.
fn groups(root: &Path, own: &str) -> Vec<Group> {
    let path_of = |line: &str| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let first = controllers.split(',').any(|name| name == "memory");
        let (base, files) = match first {
            true => (root.join("memory"), &VERSION_1),
            false if controllers.is_empty() => (root.to_path_buf(), &VERSION_2),
            false => return None,
        };
        Some((base, files, PathBuf::from(path.trim_start_matches('/'))))
    };
    let mut all = Vec::new();
    for (base, files, path) in own.lines().filter_map(path_of) {
        all.extend(path.ancestors().map(|path| Group { dir: base.join(path), files }));
    }
    all
}

/// Microseconds that something stalled so far: `some avg10=… avg60=… avg300=… total=N`.
fn total(text: &str) -> Option<u64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
}

/// Watches the memory of this process.
#[derive(Debug)]
pub(crate) struct Watch {
    groups: Vec<Group>,
    pressure: Option<PathBuf>,
    total: Option<u64>,
    sizer: Sizer,
}

impl Watch {
    /// For a cache with an arena of so many bytes.
    pub(crate) fn new(arena_bytes: u64) -> Watch {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let groups = groups(Path::new("/sys/fs/cgroup"), &own);
        let own = groups.first().map(|group| group.dir.join("memory.pressure"));
        let machine = PathBuf::from("/proc/pressure/memory");
        let pressure = own.into_iter().chain([machine]).find(|path| path.is_file());
        Watch { groups, pressure, total: None, sizer: Sizer::new(arena_bytes) }
    }

    /// The size at which the cache can be filled without going beyond a group's limit, if that is
    /// less than its arena.
    pub(crate) fn at_start(&mut self) -> Option<u64> {
        let room = self.groups.iter().filter_map(Group::usage);
        let room = room.map(|(limit, used)| part(limit, FULL).saturating_sub(used)).min()?;
        (room < self.sizer.arena).then_some(room)
    }

    /// To be asked each [`INTERVAL`]: the size that the cache should have from now on, if it is to
    /// change.
    pub(crate) fn look(&mut self) -> Option<u64> {
        let text = self.pressure.as_ref().and_then(|path| fs::read_to_string(path).ok());
        let total = text.as_deref().and_then(total);
        let stalled = total.zip(self.total).map_or(0, |(now, before)| now.saturating_sub(before));
        self.total = total;
        let usages: Vec<(u64, u64)> = self.groups.iter().filter_map(Group::usage).collect();
        let over = |(limit, used): &(u64, u64)| {
            i64::try_from(*used).ok()?.checked_sub(i64::try_from(part(*limit, FULL)).ok()?)
        };
        let seen = Seen {
            stalled: stalled as f64 / INTERVAL.as_micros() as f64,
            over: usages.iter().filter_map(over).max(),
            roomy: usages.iter().all(|(limit, used)| *used < part(*limit, ROOMY)),
        };
        self.sizer.look(&seen)
    }

    /// The size that the cache has now.
    pub(crate) fn resized(&mut self, size: u64) {
        self.sizer.size = size;
    }
}

fn part(of: u64, part: f64) -> u64 {
    (of as f64 * part) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn roomy() -> Seen {
        Seen { stalled: 0.0, over: Some(-1000), roomy: true }
    }

    #[test]
    fn the_cache_shrinks_under_pressure_and_grows_when_it_is_calm() {
        let mut sizer = Sizer::new(GIB);
        assert_eq!(sizer.look(&roomy()), None);
        let pressed = Seen { stalled: 0.3, ..roomy() };
        assert_eq!(sizer.look(&pressed), Some(GIB / 8 * 7));
        sizer.size = GIB / 8 * 7;
        assert_eq!(sizer.look(&pressed), Some(GIB / 8 * 6));
        sizer.size = GIB / 8 * 6;
        for _ in 1..CALM_LOOKS {
            assert_eq!(sizer.look(&roomy()), None);
        }
        assert_eq!(sizer.look(&roomy()), Some(GIB / 16 * 13));
        sizer.size = GIB / 16 * 13;
        assert_eq!(sizer.look(&pressed), Some(GIB / 16 * 11));
        assert_eq!(sizer.look(&roomy()), None, "it has to be calm for a while again");
    }

    #[test]
    fn a_full_group_is_left_by_as_much_as_it_is_over() {
        let mut sizer = Sizer::new(GIB);
        let over = Seen { over: Some(100 << 20), roomy: false, ..roomy() };
        assert_eq!(sizer.look(&over), Some(GIB - (100 << 20)));
        let near = Seen { over: Some(1), ..over };
        assert_eq!(sizer.look(&near), Some(GIB - GIB / 64));
        sizer.size = GIB / 2;
        let narrow = Seen { over: Some(-5), ..over };
        for _ in 0..3 * CALM_LOOKS {
            assert_eq!(sizer.look(&narrow), None, "neither full nor roomy");
        }
    }

    #[test]
    fn pressure_files_are_read() {
        let text = "some avg10=0.12 avg60=0.00 avg300=0.00 total=84215\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=7\n";
        assert_eq!(total(text), Some(84_215));
        assert_eq!(total("full avg10=0.00 total=7"), None);
        assert_eq!(total(""), None);
    }

    #[test]
    fn limits_of_all_groups_around_count() {
        let dir = tempfile::tempdir().expect("tempdir");
        let inner = dir.path().join("a/b");
        fs::create_dir_all(&inner).expect("mkdir");
        let write = |name: &str, text: &str| {
            fs::write(dir.path().join(name), text).expect("write");
        };
        write("a/memory.max", "1000\n");
        write("a/memory.high", "max\n");
        write("a/memory.current", "1100\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.high", "max\n");
        write("a/b/memory.current", "10\n");
        let stat = "anon 5\ninactive_file 100\nactive_file 50\nshmem 9\n";
        write("a/memory.stat", stat);
        let groups = groups(dir.path(), "0::/a/b\n");
        let usages: Vec<_> = groups.iter().filter_map(Group::usage).collect();
        assert_eq!(usages, [(1000, 950)], "the page cache does not count");
        let sizer = Sizer::new(500);
        let mut watch = Watch { groups, pressure: None, total: None, sizer };
        assert_eq!(watch.at_start(), Some(0));
        assert_eq!(watch.look(), Some(450));
        write("a/memory.high", "2000\n");
        write("a/memory.max", "max\n");
        assert_eq!(watch.look(), None);
        assert_eq!(watch.at_start(), None);
        fs::create_dir_all(dir.path().join("memory/x")).expect("mkdir");
        write("memory/x/memory.limit_in_bytes", "3000\n");
        write("memory/x/memory.usage_in_bytes", "10\n");
        write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        write("memory/memory.usage_in_bytes", "10\n");
        let older = super::groups(dir.path(), "5:cpu:/y\n4:memory:/x\n");
        assert_eq!(older.iter().filter_map(Group::usage).collect::<Vec<_>>(), [(3000, 10)]);
    }
}
