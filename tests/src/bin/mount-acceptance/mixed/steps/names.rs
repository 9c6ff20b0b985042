//! Changes of names, and looks at them.

use super::*;

impl Mixed {
    pub(super) fn rename(&mut self, who: usize) -> Done {
        let (from, to) = (self.random.index(NAMES), self.random.index(NAMES));
        let Some(object) = self.world.named(from) else { return NOTHING };
        let over = self.world.named(to);
        let few = over.is_some() && self.world.count_names() <= NAMES_MIN;
        if from == to || few || !self.may_use(who, from) || !self.may_use(who, to) {
            return NOTHING;
        }
        if let Some(over) = over {
            self.settle_times(over)?;
        }
        self.tell(who, object, &format!("renames it from {from} to {to}"));
        if let Some(over) = over {
            self.world.tell(who, over, &format!("renames another one over it, to {to}"));
        }
        let (old, new) = (self.world.path(who, from), self.world.path(who, to));
        fs::rename(old, new).map_err(|error| format!("rename: {error}"))?;
        self.world.set_name(who, from, None);
        self.world.set_name(who, to, Some(object));
        CERTAIN
    }

    pub(super) fn unlink(&mut self, who: usize) -> Done {
        let name = self.random.index(NAMES);
        let Some(object) = self.world.named(name) else { return NOTHING };
        if self.world.count_names() <= NAMES_MIN || !self.may_use(who, name) {
            return NOTHING;
        }
        self.settle_times(object)?;
        self.tell(who, object, &format!("removes name {name}"));
        fs::remove_file(self.world.path(who, name)).map_err(|error| format!("unlink: {error}"))?;
        self.world.set_name(who, name, None);
        CERTAIN
    }

    // What is seen.

    /// Opens a file, reads all of it, and closes it.
    pub(super) fn look(&mut self, who: usize) -> Done {
        let name = self.random.index(NAMES);
        let Some(object) = self.world.named(name) else { return NOTHING };
        if !self.world.is_settled(who, name) && self.random.percent(AVOIDED) {
            return NOTHING;
        }
        if !is_mount(who) && self.is_open(who, object, Kind::Plain, 0, WHOLE) {
            if self.random.percent(AVOIDED) {
                return self.make_certain(who, object);
            }
        } else if self.world.content(object).mapped().is_some_and(|by| by != who)
            && self.random.percent(AVOIDED)
        {
            return self.remedy(who, object, Conflict::Mapped);
        } else if self.world.content(object).is_in_doubt() && self.random.percent(AVOIDED) {
            return self.remedy(who, object, Conflict::Missed);
        }
        let may_be = self.world.may_be(who, name);
        let mut all = may_be.iter().flatten();
        if may_be.len() > 1 && all.any(|object| self.world.content(*object).mapped() == Some(who)) {
            return NOTHING;
        }
        self.at = object;
        let read = match read_fresh(&self.world.path(who, name)) {
            Err(_) if may_be.len() > 1 => return Ok(Some(true)),
            other => other.map_err(|error| format!("actor {who}: reads name {name}: {error}"))?,
        };
        let object = self.world.which(&read.0, &may_be)?;
        let open = self.looked(who, object, &format!("reads name {name} anew"), read)?;
        Ok(Some(open || may_be.len() > 1))
    }

    pub(super) fn looked(
        &mut self,
        who: usize,
        object: usize,
        what: &str,
        (file, len, bytes): (File, u64, Vec<u8>),
    ) -> Result<bool, String> {
        self.tell(who, object, what);
        self.opened(who, object);
        let view = self.world.view(who, object, Kind::Plain);
        view.judge(0, WHOLE, &bytes)?;
        let asks_each_time = who == 1 || !is_mount(who);
        if asks_each_time && !view.has_len(len as usize) {
            return Err(format!("fstat says {len} bytes, read {}", bytes.len()));
        }
        let open = !view.agrees(0, WHOLE);
        close(file)?;
        Ok(open)
    }
}
