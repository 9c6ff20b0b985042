//! What the scripted server does.

use dafs_protocol::*;

use super::{Chain, Fake, ROOT};

impl Fake {
    #[expect(clippy::too_many_lines, reason = "a table of operations")]
    pub(super) fn operation(
        &mut self,
        session: SessionId,
        chain: &mut Chain,
        operation: &Operation<'_>,
        data: &[u8],
    ) -> OpResult {
        use Operation as O;
        let verifier = self.verifier();
        let resolve = |chain: &Chain, handle: &FileHandle| {
            if *handle == FileHandle::PREVIOUS { chain.handle } else { *handle }
        };
        *self.executed.entry(name(operation)).or_default() += 1;
        *self.executed_as.entry((name(operation), self.acting)).or_default() += 1;
        match operation {
            O::Null => Ok(Outcome::Done),
            O::GetRoot { export: b"" } => Ok(Outcome::Found { handle: ROOT, attr: self.attr(b"") }),
            O::GetRoot { .. } => Err(Status::NoEnt),
            O::Lookup { dir, path, .. } => {
                let path = self.path(&resolve(chain, dir), path)?;
                let directory = path.split(|b| *b == b'/').all(|part| part.starts_with(b"dir"));
                if !self.memory.files.contains_key(&path) && !directory {
                    return Err(Status::NoEnt);
                }
                chain.handle = self.handle(&path);
                Ok(Outcome::Found { handle: chain.handle, attr: self.attr(&path) })
            }
            O::Open { .. } if self.script.refused_opens > 0 => {
                self.script.refused_opens -= 1;
                Err(Status::Access)
            }
            O::Open { dir, path, flags, .. } => {
                let path = self.path(&resolve(chain, dir), path)?;
                let exists = self.memory.files.contains_key(&path);
                match flags.create {
                    CreateMode::No if !exists => return Err(Status::NoEnt),
                    CreateMode::Exclusive if exists => return Err(Status::Exist),
                    _ => {}
                }
                if !exists {
                    self.put(&path, b"");
                }
                if flags.truncate {
                    self.memory.files.insert(path.clone(), Vec::new());
                    self.disk.files.insert(path.clone(), Vec::new());
                }
                chain.handle = self.handle(&path);
                self.next += 1;
                chain.state = StateId(self.next);
                let opens = &mut self.sessions.get_mut(&session).ok_or(Status::BadSession)?.opens;
                opens.insert(chain.state, chain.handle);
                let (handle, state) = (chain.handle, chain.state);
                Ok(Outcome::Opened { handle, state, attr: self.attr(&path), created: !exists })
            }
            O::Close { state } => {
                let (path, state) = self.open_file(session, chain, *state)?;
                self.sessions.get_mut(&session).ok_or(Status::BadSession)?.opens.remove(&state);
                // Handed to the file system, as the server does.
                if let Some(data) = self.memory.files.get(&path) {
                    self.disk.files.insert(path.clone(), data.clone());
                }
                Ok(Outcome::Closed { attr: self.attr(&path), verifier })
            }
            O::Read { state, extents, .. } => {
                let (path, _) = self.open_file(session, chain, *state)?;
                let file = self.memory.files.get(&path).ok_or(Status::Stale)?;
                let mut bytes = 0;
                for extent in extents.as_slice() {
                    let start = usize::try_from(extent.offset).expect("small").min(file.len());
                    let end = (start + extent.len as usize).min(file.len());
                    chain.data.extend_from_slice(&file[start..end]);
                    bytes += u32::try_from(end - start).expect("small");
                }
                Ok(Outcome::Read { bytes, end_of_file: false })
            }
            O::Write { .. } if self.script.refused_writes > 0 => {
                self.script.refused_writes -= 1;
                Err(Status::DQuot)
            }
            O::Write { state, extents, stability, .. } => {
                let (path, _) = self.open_file(session, chain, *state)?;
                let file = self.memory.files.get_mut(&path).ok_or(Status::Stale)?;
                let start = usize::try_from(extents.as_slice()[0].offset).expect("small");
                file.resize(file.len().max(start + data.len()), 0);
                file[start..start + data.len()].copy_from_slice(data);
                let bytes = u32::try_from(data.len()).expect("small");
                Ok(Outcome::Written { bytes, offset: 0, stability: *stability, verifier })
            }
            O::Append { state, stability, .. } => {
                let (path, _) = self.open_file(session, chain, *state)?;
                let file = self.memory.files.get_mut(&path).ok_or(Status::Stale)?;
                let offset = file.len() as u64;
                file.extend_from_slice(data);
                let bytes = u32::try_from(data.len()).expect("small");
                Ok(Outcome::Written { bytes, offset, stability: *stability, verifier })
            }
            O::Commit { .. } if self.script.disk_full => Err(Status::NoSpc),
            O::Commit { .. } | O::SyncFs { .. } => {
                self.disk = self.memory.clone();
                Ok(Outcome::Committed { verifier })
            }
            O::SyncDir { .. } => Ok(Outcome::Done),
            O::SetAttr { handle, set, .. } => {
                let path = self.path(&resolve(chain, handle), b"")?;
                if let Some(size) = set.size {
                    let size = usize::try_from(size).expect("small");
                    for files in [&mut self.memory.files, &mut self.disk.files] {
                        files.entry(path.clone()).or_default().resize(size, 0);
                    }
                }
                Ok(Outcome::Attributes { attr: self.attr(&path) })
            }
            O::Fallocate { state, mode, offset, len } => {
                let (path, _) = self.open_file(session, chain, *state)?;
                let file = self.memory.files.get_mut(&path).ok_or(Status::Stale)?;
                let place = *offset as usize..(*offset + *len) as usize;
                if let (true, Some(place)) = (*mode > 1, file.get_mut(place)) {
                    place.fill(0);
                }
                let flushed = file.clone();
                self.disk.files.insert(path, flushed);
                Ok(Outcome::Done)
            }
            O::GetAttr { handle, .. } => {
                let path = self.path(&resolve(chain, handle), b"")?;
                Ok(Outcome::Attributes { attr: self.attr(&path) })
            }
            O::Create { dir, name, .. } => {
                let path = self.path(&resolve(chain, dir), name)?;
                self.put(&path, b"");
                let handle = self.handle(&path);
                Ok(Outcome::Found { handle, attr: self.attr(&path) })
            }
            O::Rename { from_dir, from, to_dir, to, .. } => {
                let from = self.path(&resolve(chain, from_dir), from)?;
                let to = self.path(&resolve(chain, to_dir), to)?;
                let file = self.memory.files.remove(&from).ok_or(Status::NoEnt)?;
                let inode = self.memory.inodes.remove(&from).unwrap_or(0);
                self.memory.files.insert(to.clone(), file);
                self.memory.inodes.insert(to, inode);
                Ok(Outcome::Done)
            }
            O::Remove { dir, name, .. } => {
                let path = self.path(&resolve(chain, dir), name)?;
                self.memory.files.remove(&path).ok_or(Status::NoEnt)?;
                Ok(Outcome::Done)
            }
            O::ReadDir { cookie, bytes_max, .. } => {
                let entries = self.memory.files.keys().zip(1u64..);
                let mut end = true;
                for (name, cookie) in entries.filter(|(_, at)| *at > *cookie) {
                    let (attr, handle) = (None, None);
                    let entry =
                        DirEntry { cookie, name: name.clone(), kind: None, attr, handle, id: None };
                    if chain.data.len() + dir_entry_bytes(&entry) > *bytes_max as usize {
                        end = false;
                        break;
                    }
                    encode_dir_entry(&entry, &mut chain.data);
                }
                chain.data.iter_mut().filter(|b| **b == b'|').for_each(|b| *b = b'/');
                let bytes = u32::try_from(chain.data.len()).expect("small");
                Ok(Outcome::Data { bytes, end })
            }
            O::LookupParent { handle } => {
                let path = self.path(handle, b"")?;
                let above = path.iter().rposition(|b| *b == b'/').unwrap_or(0);
                let handle = self.handle(&path[..above]);
                Ok(Outcome::Found { handle, attr: self.attr(&path[..above]) })
            }
            O::Link { dir, name, .. } => {
                let path = self.path(dir, name)?;
                self.put(&path, b"");
                Ok(Outcome::Found { handle: self.handle(&path), attr: self.attr(&path) })
            }
            O::CopyRange { len, .. } => Ok(Outcome::Copied { bytes: *len }),
            O::CloneRange { .. } => Ok(Outcome::Done),
            O::Extents { .. } => {
                let extent = FileExtent { offset: 7, len: 9, ..FileExtent::default() };
                encode_file_extent(&extent, &mut chain.data);
                let bytes = u32::try_from(chain.data.len()).expect("small");
                Ok(Outcome::Data { bytes, end: true })
            }
            O::CacheQuery { state, .. } => {
                let range = CachedRange { offset: 4096, len: 8192, dirty: true };
                encode_cached_range(&range, &mut chain.data);
                let bytes = u32::try_from(chain.data.len()).expect("small");
                // By handle it goes on.
                let next = (*state == StateId::NONE).then_some(1 << 20);
                Ok(Outcome::Cached(CacheInfo { bytes, next, ..CacheInfo::default() }))
            }
            O::Advise { len, cache, .. } => Ok(Outcome::Advised { bytes: *len, cache: *cache }),
            O::CredRegister { uid, .. } => {
                let users = &mut self.sessions.get_mut(&session).ok_or(Status::BadSession)?.users;
                self.next += 1;
                let cred = CredHandle(u32::try_from(self.next).expect("few"));
                users.insert(cred.0, *uid);
                Ok(Outcome::Credential { cred })
            }
            O::CredRelease { cred } => {
                let users = &mut self.sessions.get_mut(&session).ok_or(Status::BadSession)?.users;
                users.remove(&cred.0).map(|_| Outcome::Done).ok_or(Status::NoCreds)
            }
            O::SlotQuery { session: former, slot, sequence } => {
                assert!(!self.sessions.contains_key(former), "of a session that lives");
                self.questions.push((*former, *slot, *sequence));
                Ok(Outcome::RequestOutcome(
                    self.script.request_outcome.unwrap_or(RequestOutcome::Unknown),
                ))
            }
            O::SessionDestroy => {
                self.sessions.remove(&session);
                Ok(Outcome::Done)
            }
            other => self.lock_operation(session, chain, other),
        }
    }

    pub(super) fn open_file(
        &self,
        session: SessionId,
        chain: &Chain,
        state: StateId,
    ) -> Result<(Vec<u8>, StateId), Status> {
        let state = if state == StateId::PREVIOUS { chain.state } else { state };
        let session = self.sessions.get(&session).ok_or(Status::BadSession)?;
        let handle = session.opens.get(&state).ok_or(Status::BadStateId)?;
        Ok((self.path(handle, b"")?, state))
    }
}

fn name(operation: &Operation<'_>) -> &'static str {
    match operation {
        Operation::Open { .. } => "open",
        Operation::Close { .. } => "close",
        Operation::Append { .. } => "append",
        Operation::Write { .. } => "write",
        Operation::Create { .. } => "create",
        Operation::Rename { .. } => "rename",
        Operation::Lookup { .. } => "lookup",
        Operation::Read { .. } => "read",
        Operation::CredRegister { .. } => "register",
        Operation::CredRelease { .. } => "release",
        Operation::Link { .. } => "link",
        Operation::Lock { .. } => "lock",
        Operation::Unlock { .. } => "unlock",
        Operation::LockCancel { .. } => "cancel",
        Operation::ReclaimComplete => "reclaim complete",
        Operation::SlotQuery { .. } => "query",
        Operation::Remove { .. } => "remove",
        Operation::SetAttr { .. } => "set attributes",
        Operation::Fallocate { .. } => "allocate",
        Operation::Null => "null",
        _ => "other",
    }
}

pub(super) fn is_write(header: &[u8]) -> bool {
    let request = decode_request(header).expect("a request");
    request.operations.iter().any(|operation| matches!(operation, Operation::Write { .. }))
}
