//! Files whose content is in the output cache, or is being added to it.
//!
//! The output of a file is looked up in the cache when the file is opened, and is valid until the
//! file's attributes or content change. An attempt to cache an output that fails for a temporary
//! reason, such as a cache that cannot be written, is repeated when the file is opened later
//! ([`Retry`](super::output::Retry)); only an output that is too long is given up. Nothing is cached of a file that was
//! changed within the last seconds: its times could stay the same with the next change.

use std::sync::Arc;

use blake3::Hasher;
use weft_vfs::Result;

use super::fill::{Fill, OutputRequest};
use super::inode::{Attached, FileState, Inode};
use super::locked_file::LockedFile;
use super::locks::locked;
use super::output::{Output, OutputState, content_hash, is_settled, key, update_with_looks};
use super::output_writer::{ended, pass_to_writer};
use super::transform_fs::TransformFs;
use super::version::FileVersion;
use crate::outputs::OutputCache;

/// Inode numbers from here on were generated for inodes of other devices, and are not stable across
/// mounts.
const MADE_UP: u64 = u64::MAX / 2;

impl LockedFile<'_> {
    /// Returns the request to the cache; `None` if the file is not cacheable, or the lookup was
    /// done already.
    fn output_request(&mut self) -> Result<Option<OutputRequest>> {
        if self.is_dirty() {
            return Ok(None);
        }
        let stored = match &self.attached {
            Attached::Network(_) => self.below(),
            Attached::View(view) => view.base.below(),
            Attached::Plain | Attached::Unusable(_) => return Ok(None),
        };
        let mut hasher = Hasher::new();
        if let Some(view) = self.view() {
            match &locked(&view.base.file).attached {
                Attached::Plain => {}
                Attached::Network(network) => {
                    let Some(hash) = network.kept_as() else { return Ok(None) };
                    hasher.update(hash.as_bytes());
                }
                // Views of views are rare.
                Attached::View(_) | Attached::Unusable(_) => return Ok(None),
            }
        }
        let Ok(Some(hash)) = self.network().map(|network| network.kept_as()) else {
            return Ok(None);
        };
        hasher.update(hash.as_bytes());
        let seen = self.look()?.1;
        let is_due = match self.output.now(seen, self.version()) {
            None => true,
            Some(OutputState::Again) => self.output.retry.is_due(),
            Some(_) => false,
        };
        if !is_due {
            return Ok(None);
        }
        let attr = self.mount.below.getattr(stored)?;
        let (version, network) = (self.version(), hasher.finalize());
        let in_place = self.in_place().is_some();
        Ok(Some(OutputRequest { seen, version, stored, attr, network, in_place }))
    }
}

impl FileState {
    /// Returns the state of the output, without checking the stored file again.
    fn output(&self) -> Option<OutputState> {
        self.output_and_state().map(|(_, state)| state)
    }

    /// Returns true if all data that is read of the file goes to the cache.
    pub(super) fn is_filling(&self) -> bool {
        match self.output() {
            Some(OutputState::Filling(fill)) => !fill.is_over(),
            _ => false,
        }
    }

    /// Returns the state of the output, and the state of the file at the time of the lookup.
    pub(super) fn output_and_state(&self) -> Option<((FileVersion, u64), OutputState)> {
        let (seen, version) = self.output.of?;
        if version != self.version() || self.is_dirty() {
            return None;
        }
        if let Some(view) = self.view()
            && view.base.version() != seen.changes
        {
            return None;
        }
        Some(((seen, version), self.output.state.clone()))
    }
}

impl TransformFs {
    /// Looks up the output of a file that is being opened.
    pub(super) fn look_for_output(&self, inode: &Inode) {
        let Some(cache) = &self.options.outputs else { return };
        let found = self.mount.file(inode).output_request();
        let Ok(Some(request)) = found else { return };
        if request.attr.size_bytes == 0 || !is_settled(&request.attr) {
            return;
        }
        let (of, found) = (request.of(), self.output_of(cache, request));
        if found.as_ref().is_err_and(crate::Error::is_interrupted) {
            return;
        }
        let mut file = locked(&inode.file);
        let before = std::mem::take(&mut file.output);
        let same = before.of == Some(of);
        let (len_bytes, mut retry) =
            if same { (before.len_bytes, before.retry) } else { Default::default() };
        let state = found.unwrap_or_else(|e| {
            tracing::warn!("the output cache takes nothing: {e}");
            retry.failed();
            OutputState::Again
        });
        let kept = matches!(state, OutputState::Kept(..));
        file.output = Output { of: Some(of), state, retry, len_bytes };
        file.count(
            |meter| if kept { meter.outputs_found.add(1) } else { meter.outputs_missed.add(1) },
        );
    }

    fn output_of(
        &self,
        cache: &Arc<OutputCache>,
        request: OutputRequest,
    ) -> crate::Result<OutputState> {
        let looks = self.options.identity.as_ref().filter(|_| request.stored.0 < MADE_UP);
        let looks = looks.map(|identity| {
            let mut hasher = Hasher::new();
            hasher.update(request.network.as_bytes()).update(identity.as_bytes());
            update_with_looks(&mut hasher, &request.attr);
            hasher.finalize()
        });
        let (key, content) = match &looks {
            Some(looks) => (cache.memo(looks), None),
            None => {
                let content = content_hash(&*self.mount.below, request.stored)?;
                (Some(key(&request.network, &content)), Some(content))
            }
        };
        if let Some((entry, key)) = key.and_then(|key| Some((cache.get(&key)?, key))) {
            return Ok(OutputState::Kept(Arc::new(entry), key));
        }
        let filling = cache.begin()?;
        Ok(OutputState::Filling(Arc::new(Fill::new(
            cache.clone(),
            filling,
            request,
            content,
            looks,
        ))))
    }

    /// Passes the length of a file that is being opened to an output that is being added.
    pub(super) fn output_ends_at(&self, inode: &Inode, len_bytes: u64) {
        let output = locked(&inode.file).output();
        if let Some(OutputState::Filling(fill)) = output
            && let Some(end) = fill.ends_at(len_bytes)
        {
            ended(&self.mount, inode, &fill, end);
        }
    }

    /// Reads a file from the cache, or else by `read`.
    pub(super) fn read_output(
        &self,
        inode: &Arc<Inode>,
        offset: u64,
        buf: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let Some(cache) = &self.options.outputs else { return read(buf) };
        let output = locked(&inode.file).output();
        match output {
            Some(OutputState::Kept(entry, key)) => match entry.read_at(offset, buf) {
                Ok(got) => {
                    let read = Ok(got);
                    locked(&inode.file).count_read(&read);
                    read
                }
                Err(e) => {
                    tracing::warn!("output cache: {e}");
                    cache.discard(&key);
                    locked(&inode.file).output.is_damaged(entry.len_bytes());
                    read(buf)
                }
            },
            Some(OutputState::Filling(fill)) => {
                let got = read(buf)?;
                pass_to_writer(&self.mount, inode, &fill, (offset, buf, got));
                Ok(got)
            }
            Some(OutputState::Nothing | OutputState::Again) | None => read(buf),
        }
    }
}
