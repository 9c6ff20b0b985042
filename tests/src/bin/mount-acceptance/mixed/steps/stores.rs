//! Loads and stores by mappings.

use super::*;

impl Mixed {
    /// Reads through a mapping.
    pub(super) fn load(&mut self, handle: usize, at: usize, len: usize) -> Done {
        let Handle { who, object, kind, .. } = self.world.handles[handle];
        let end = self.mapped_end(handle)?;
        let (at, len) = (at.min(end), len.min(end - at.min(end)));
        self.tell(who, object, &format!("loads {len} at {at}"));
        let Some(mapping) = &self.world.handles[handle].mapping else { return NOTHING };
        let bytes = mapping.load(at, len);
        self.world.view(who, object, kind).judge(at, len, &bytes)?;
        Ok(Some(self.is_open(who, object, kind, at, len)))
    }

    /// Bytes that can be used through a mapping.
    pub(super) fn mapped_end(&mut self, handle: usize) -> Result<usize, String> {
        let Handle { who, object, kind, ref file, .. } = self.world.handles[handle];
        self.at = object;
        let view = self.world.view(who, object, kind);
        let len = file.metadata().map_err(text("fstat"))?.len() as usize;
        if view.is_certain() && len < view.least_len() {
            return Err(format!("actor {who}: fstat says {len} bytes of {}", view.least_len()));
        }
        Ok(view.least_len().min(len).min(SIZE_MAX))
    }

    /// Stores through a mapping.
    pub(super) fn store(&mut self, handle: usize) -> Done {
        let Handle { who, object, kind, .. } = self.world.handles[handle];
        let mut others = self.world.handles.iter().enumerate();
        let other = others.any(|(index, other)| {
            let same = (other.who, other.object) == (who, object);
            index != handle && same && other.mapping.is_some()
        });
        if other || kind != Kind::Plain {
            return NOTHING;
        }
        let end = self.mapped_end(handle)?;
        if end == 0 {
            return NOTHING;
        }
        let at = self.random.index(end);
        let len = (1 + self.random.index(3000)).min(end - at);
        let edit = Edit::Write { at, bytes: pattern(self.world.step, len) };
        let content = self.world.content(object);
        let conflict = match is_mount(who) {
            true => content.store_conflict(who),
            false if !content.disk().is_certain() => {
                Some(content.mapped().map_or(Conflict::Unflushed, |_| Conflict::Mapped))
            }
            false => content.local_conflict(&edit),
        };
        if let Some(conflict) = conflict {
            return self.remedy(who, object, conflict);
        }
        self.store_there(handle, at, &edit)?;
        match is_mount(who) {
            true if self.random.percent(25) => self.cut_under(handle),
            false if self.random.percent(20) => self.store_twice(handle, at, len),
            _ => CERTAIN,
        }
    }

    /// Another mount cuts a file in which this one has stored, and then that is synced.
    pub(super) fn cut_under(&mut self, handle: usize) -> Done {
        let Handle { who, object, .. } = self.world.handles[handle];
        let Some(name) = self.world.name_of(object) else { return CERTAIN };
        let other = (who + 1 + self.random.index(MOUNTS - 1)) % MOUNTS;
        if !self.may_use(other, name) {
            return CERTAIN;
        }
        let file = self.world.open(other, name, Kind::Plain, (false, false));
        let file = file.map_err(|error| format!("actor {other}: open of name {name}: {error}"))?;
        self.tell(other, object, "opens it");
        self.opened(other, object);
        self.add_handle(other, object, Kind::Plain, file);
        let size = self.world.content(object).len();
        let len = self.random.index(size + 1);
        self.cut_to(self.world.handles.len() - 1, size, len)?;
        if self.random.percent(50) { CERTAIN } else { self.sync_stores(handle) }
    }

    /// Stores again what a mount has seen: only the first store into a page leaves a trace.
    pub(super) fn store_twice(&mut self, handle: usize, at: usize, len: usize) -> Done {
        let Handle { object, .. } = self.world.handles[handle];
        let of = |other: &Handle| other.object == object && is_mount(other.who);
        let Some(reader) = self.world.handles.iter().position(of) else { return CERTAIN };
        self.look_again(reader)?;
        let bytes = pattern(self.world.step ^ u64::MAX, len);
        self.store_there(handle, at, &Edit::Write { at, bytes })?;
        self.look_again(reader)
    }

    pub(super) fn store_there(&mut self, handle: usize, at: usize, edit: &Edit) -> Done {
        let Handle { who, object, ref file, ref mapping, .. } = self.world.handles[handle];
        let Edit::Write { bytes, .. } = edit else { return NOTHING };
        if mapping.is_none() {
            let new = Mapping::new(file, SIZE_MAX).map_err(text("mmap"))?;
            self.world.handles[handle].mapping = Some(new);
        }
        self.tell(who, object, &format!("stores {} at {at}", bytes.len()));
        let at_once = self.before_change(handle);
        if let Some(mapping) = &mut self.world.handles[handle].mapping {
            mapping.store(at, bytes);
        }
        match is_mount(who) {
            true => self.world.content(object).by_mapping(who, edit),
            false => self.world.content(object).by_local(edit, at_once),
        }
        self.world.used(object);
        CERTAIN
    }

    pub(super) fn sync_mapping(&mut self, handle: usize) -> Done {
        if self.world.handles[handle].mapping.is_none() {
            return NOTHING;
        }
        if self.random.percent(60) {
            return self.sync_stores(handle);
        }
        self.unmap(handle);
        CERTAIN
    }

    pub(super) fn sync_stores(&mut self, handle: usize) -> Done {
        let Handle { who, object, .. } = self.world.handles[handle];
        self.tell(who, object, "syncs its mapping");
        if let Some(mapping) = &self.world.handles[handle].mapping {
            mapping.sync().map_err(text("msync"))?;
        }
        if is_mount(who) {
            self.synced(who, object);
        }
        CERTAIN
    }
}
