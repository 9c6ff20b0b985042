//! All orders in which the steps of two who look and two who replace can come, one by one: each step is one
//! atomic operation, and all of them are sequentially consistent. With each rule left out in turn.

use std::collections::HashSet;

/// A rule that is not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Without {
    Nothing,
    /// A look does not make sure that what its line says is still there.
    SecondLook,
    /// Who replaces does not look through the lines.
    Lines,
    /// Who looks through the lines marks them by a plain store.
    Exchange,
    /// Who leaves does not look whether there is a share for him.
    Leave,
}

const READERS: usize = 2;
const WRITERS: usize = 2;
/// Things there are: one at first, and what each writer puts in its place.
const THINGS: usize = 1 + WRITERS;

/// What a line says: a thing, and whether who leaves has a share in it.
type Said = Option<(usize, bool)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Reader {
    Begins,
    Saw(usize),
    Wrote(usize),
    Looks(usize),
    Leaves,
    Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Writer {
    Begins,
    /// Has taken this out, and is to load this line.
    Loads(usize, usize),
    /// Has found it there, and made a share.
    Marks(usize, usize),
    Drops(usize),
    Ended,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    at: usize,
    shares: [usize; THINGS],
    lines: [Said; READERS],
    readers: [Reader; READERS],
    writers: [Writer; WRITERS],
}

impl World {
    fn new() -> World {
        World {
            at: 0,
            shares: [1; THINGS],
            lines: [None; READERS],
            readers: [Reader::Begins; READERS],
            writers: [Writer::Begins; WRITERS],
        }
    }

    /// Drops a share. `None`: there was none.
    fn drop_share(&mut self, thing: usize) -> Option<()> {
        self.shares[thing] = self.shares[thing].checked_sub(1)?;
        Some(())
    }

    /// One step. `None`: it touches what was freed.
    fn read(&mut self, me: usize, without: Without) -> Option<()> {
        self.readers[me] = match self.readers[me] {
            Reader::Begins => Reader::Saw(self.at),
            Reader::Saw(thing) => {
                self.lines[me] = Some((thing, false));
                Reader::Wrote(thing)
            }
            Reader::Wrote(thing) if self.at == thing || without == Without::SecondLook => {
                Reader::Looks(thing)
            }
            Reader::Wrote(_) => Reader::Leaves,
            Reader::Looks(thing) if self.shares[thing] == 0 => return None,
            Reader::Looks(_) => Reader::Leaves,
            Reader::Leaves => {
                if let Some((thing, true)) = self.lines[me].take()
                    && without != Without::Leave
                {
                    self.drop_share(thing)?;
                }
                Reader::Ended
            }
            Reader::Ended => Reader::Ended,
        };
        Some(())
    }

    fn write(&mut self, me: usize, without: Without) -> Option<()> {
        self.writers[me] = match self.writers[me] {
            Writer::Begins => {
                let old = std::mem::replace(&mut self.at, 1 + me);
                if without == Without::Lines { Writer::Drops(old) } else { Writer::Loads(old, 0) }
            }
            Writer::Loads(old, READERS) => Writer::Drops(old),
            Writer::Loads(old, line) if self.lines[line] == Some((old, false)) => {
                self.shares[old] += 1;
                Writer::Marks(old, line)
            }
            Writer::Loads(old, line) => Writer::Loads(old, line + 1),
            Writer::Marks(old, line) => {
                if self.lines[line] == Some((old, false)) || without == Without::Exchange {
                    self.lines[line] = Some((old, true));
                    Writer::Loads(old, line + 1)
                } else {
                    self.drop_share(old)?;
                    Writer::Loads(old, line)
                }
            }
            Writer::Drops(old) => {
                self.drop_share(old)?;
                Writer::Ended
            }
            Writer::Ended => Writer::Ended,
        };
        Some(())
    }

    /// What stays when all have ended: what is there, once, and nothing else.
    fn is_clean(&self) -> bool {
        let shares = (0..THINGS).all(|thing| self.shares[thing] == usize::from(thing == self.at));
        shares && self.lines == [None; READERS]
    }

    fn has_ended(&self) -> bool {
        self.readers == [Reader::Ended; READERS] && self.writers == [Writer::Ended; WRITERS]
    }
}

/// How many worlds there are, or one in which something goes wrong.
fn explore(without: Without) -> Result<usize, Box<World>> {
    let (mut seen, mut next) = (HashSet::new(), vec![World::new()]);
    while let Some(world) = next.pop() {
        if !seen.insert(world.clone()) {
            continue;
        }
        if world.has_ended() && !world.is_clean() {
            return Err(Box::new(world));
        }
        for me in 0..READERS + WRITERS {
            let mut after = world.clone();
            let step = match me.checked_sub(READERS) {
                None => after.read(me, without),
                Some(me) => after.write(me, without),
            };
            if step.is_none() {
                return Err(Box::new(world));
            }
            next.push(after);
        }
    }
    Ok(seen.len())
}

#[test]
fn nothing_is_freed_under_a_look_nor_stays_for_ever() {
    let worlds = explore(Without::Nothing).expect("nothing goes wrong");
    assert!(worlds > 1000, "{worlds} were seen");
}

#[test]
fn each_rule_is_needed() {
    for without in [Without::SecondLook, Without::Lines, Without::Exchange, Without::Leave] {
        assert!(explore(without).is_err(), "{without:?}");
    }
}
