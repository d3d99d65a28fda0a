//! Files whose content is in the output cache, or is being added to it.
//!
//! The output of a file is looked up in the cache when the file is opened, and is valid until the
//! file's attributes or content change. An attempt to cache an output that fails for a temporary
//! reason, such as a cache that cannot be written, is repeated when the file is opened later
//! ([`Retry`]); only an output that is too long is given up. Nothing is cached of a file that was
//! changed within the last seconds: its times could stay the same with the next change.

use std::sync::Arc;

use blake3::{Hash, Hasher};
use weft_vfs::{Attr, FileSystem, Handle, Ino, Result, Time};

use super::TransformFs;
use super::base::locked;
use super::file::{Around, Attached, File, Seen};
use super::fill::{Fill, ended, hand_over};
use super::ground::Ground;
use super::nodes::Node;
use crate::outputs::{End, Entry, OutputCache};

/// The time in seconds since the last change after which a file may be cached.
const SETTLED_SECS: i64 = 2;

/// Bytes of a stored file that are read at a time for hashing.
const HASHED_BYTES: usize = 1 << 20;

/// Inode numbers from here on were generated for inodes of other devices, and are not stable across
/// mounts.
const MADE_UP: u64 = u64::MAX / 2;

/// The state of a file's output in the cache.
#[derive(Default)]
pub(super) struct Output {
    /// The state of the file at the time of the cache lookup.
    of: Option<(Seen, u64)>,
    what: What,
    /// The schedule of repeated attempts.
    retry: Retry,
    /// The length of an entry that turned out to be damaged while it was read: readers in the
    /// middle of the file continue with newly produced output, and must not see a shorter length
    /// meanwhile.
    len_bytes: Option<u64>,
}

#[derive(Default, Clone)]
pub(super) enum What {
    /// The output is not cached, and will not be.
    #[default]
    Nothing,
    Kept(Arc<Entry>, Hash),
    /// The lookup is to be repeated when the file is opened, as scheduled by [`Retry`].
    Again,
    Filling(Arc<Fill>),
}

/// Exponential backoff, counted in opens: a failed attempt is repeated on a later open of the file,
/// because each attempt costs a file, and perhaps a read of the whole stored file.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Retry {
    failures: u32,
    /// The number of opens to skip before the next attempt.
    left: u32,
}

/// Maximum number of doublings: at most 63 opens are skipped.
const DOUBLINGS_MAX: u32 = 6;

impl Retry {
    fn failed(&mut self) {
        self.left = (1 << self.failures.min(DOUBLINGS_MAX)) - 1;
        self.failures += 1;
    }

    /// Returns true if an attempt is due on this open.
    fn is_due(&mut self) -> bool {
        let due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        due
    }
}

/// A request to the cache for the output of a file.
pub(super) struct Asked {
    seen: Seen,
    version: u64,
    stored: Ino,
    /// The attributes of the stored file.
    attr: Attr,
    network: Hash,
    /// All stages work in place.
    pub(super) in_place: bool,
}

impl Asked {
    /// Returns the state of the file at the time of the request.
    fn of(&self) -> (Seen, u64) {
        (self.seen, self.version)
    }
}

impl Output {
    /// Returns the state of the output, if the file is unchanged.
    fn now(&self, seen: Seen, version: u64) -> Option<&What> {
        (self.of == Some((seen, version))).then_some(&self.what)
    }

    /// Returns the length recorded in the entry.
    pub(super) fn len_bytes(&self, seen: Seen, version: u64) -> Option<u64> {
        match self.now(seen, version)? {
            What::Kept(entry, _) => Some(entry.len_bytes()),
            What::Nothing | What::Again | What::Filling(_) => self.len_bytes,
        }
    }

    fn is_damaged(&mut self, len_bytes: u64) {
        self.what = What::Again;
        self.len_bytes = Some(len_bytes);
    }

    pub(super) fn is_kept(&self) -> bool {
        matches!(self.what, What::Kept(..)) || self.len_bytes.is_some()
    }
}

impl File {
    /// Returns the request to the cache; `None` if the file is not cacheable, or the lookup was
    /// done already.
    fn output_asked(&mut self, around: &Around<'_>) -> Result<Option<Asked>> {
        if self.is_dirty() {
            return Ok(None);
        }
        let Some(stored) = self.stored(around) else { return Ok(None) };
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
        let seen = self.look(around)?.1;
        let is_due = match self.output.now(seen, self.version) {
            None => true,
            Some(What::Again) => self.output.retry.is_due(),
            Some(_) => false,
        };
        if !is_due {
            return Ok(None);
        }
        let attr = around.fs.getattr(stored)?;
        let (version, network) = (self.version, hasher.finalize());
        let in_place = self.in_place(around.place).is_some();
        Ok(Some(Asked { seen, version, stored, attr, network, in_place }))
    }

    /// Returns the inode below of the stored file.
    fn stored(&self, around: &Around<'_>) -> Option<Ino> {
        match &self.attached {
            Attached::Network(_) => Some(locked(around.place).ino),
            Attached::View(view) => Some(view.base.below()),
            Attached::Plain | Attached::Unusable(_) => None,
        }
    }

    /// Returns the state of the output, without checking the stored file again.
    fn output(&self) -> Option<What> {
        self.output_and_state().map(|(_, what)| what)
    }

    /// Returns true if all data that is read of the file goes to the cache.
    pub(super) fn is_filling(&self) -> bool {
        match self.output() {
            Some(What::Filling(fill)) => !fill.is_over(),
            _ => false,
        }
    }

    /// Returns the state of the output, and the state of the file at the time of the lookup.
    pub(super) fn output_and_state(&self) -> Option<((Seen, u64), What)> {
        let (seen, version) = self.output.of?;
        if version != self.version || self.is_dirty() {
            return None;
        }
        if let Some(view) = self.view()
            && locked(&view.base.file).version != seen.version
        {
            return None;
        }
        Some(((seen, version), self.output.what.clone()))
    }
}

/// Returns true if a file was not changed within the last [`SETTLED_SECS`].
fn is_settled(attr: &Attr) -> bool {
    let now = Time::from(std::time::SystemTime::now()).secs;
    attr.mtime.secs.max(attr.ctime.secs).saturating_add(SETTLED_SECS) <= now
}

/// Hashes inode number, length and times of a stored file.
fn update_with_looks(hasher: &mut Hasher, attr: &Attr) {
    for n in [attr.ino.0, attr.size_bytes] {
        hasher.update(&n.to_le_bytes());
    }
    for time in [attr.mtime, attr.ctime] {
        hasher.update(&time.secs.to_le_bytes()).update(&time.nanos.to_le_bytes());
    }
}

fn looks_same(a: &Attr, b: &Attr) -> bool {
    (a.ino, a.size_bytes, a.mtime, a.ctime) == (b.ino, b.size_bytes, b.mtime, b.ctime)
}

/// Returns the hash of the stored content of an inode.
fn content_hash(fs: &dyn FileSystem, ino: Ino) -> Result<Hash> {
    let mut hasher = Hasher::new();
    let mut buf = vec![0; HASHED_BYTES];
    let mut at = 0;
    loop {
        let got = fs.read(ino, Handle::NONE, at, &mut buf)?;
        if got == 0 {
            return Ok(hasher.finalize());
        }
        hasher.update(&buf[..got]);
        at += got as u64;
    }
}

/// Returns the key of an output.
fn key(network: &Hash, content: &Hash) -> Hash {
    let mut hasher = Hasher::new();
    hasher.update(network.as_bytes()).update(content.as_bytes());
    hasher.finalize()
}

impl TransformFs {
    /// Looks up the output of a file that is being opened.
    pub(super) fn look_for_output(&self, node: &Node) {
        let Some(cache) = &self.options.outputs else { return };
        let found = self.with(node, File::output_asked);
        let Ok(Some(asked)) = found else { return };
        if asked.attr.size_bytes == 0 || !is_settled(&asked.attr) {
            return;
        }
        let (of, found) = (asked.of(), self.output_of(cache, asked));
        let mut file = locked(&node.file);
        let before = std::mem::take(&mut file.output);
        let same = before.of == Some(of);
        let (len_bytes, mut retry) =
            if same { (before.len_bytes, before.retry) } else { Default::default() };
        let what = found.unwrap_or_else(|e| {
            tracing::warn!("the output cache takes nothing: {e}");
            retry.failed();
            What::Again
        });
        let kept = matches!(what, What::Kept(..));
        file.output = Output { of: Some(of), what, retry, len_bytes };
        file.count(
            |meter| if kept { meter.outputs_found.add(1) } else { meter.outputs_missed.add(1) },
        );
    }

    fn output_of(&self, cache: &Arc<OutputCache>, asked: Asked) -> crate::Result<What> {
        let looks = self.options.identity.as_ref().filter(|_| asked.stored.0 < MADE_UP);
        let looks = looks.map(|identity| {
            let mut hasher = Hasher::new();
            hasher.update(asked.network.as_bytes()).update(identity.as_bytes());
            update_with_looks(&mut hasher, &asked.attr);
            hasher.finalize()
        });
        let (key, content) = match &looks {
            Some(looks) => (cache.memo(looks), None),
            None => {
                let content = content_hash(&*self.ground.below, asked.stored)?;
                (Some(key(&asked.network, &content)), Some(content))
            }
        };
        if let Some((entry, key)) = key.and_then(|key| Some((cache.get(&key)?, key))) {
            return Ok(What::Kept(Arc::new(entry), key));
        }
        let filling = cache.begin()?;
        Ok(What::Filling(Arc::new(Fill::new(cache.clone(), filling, asked, content, looks))))
    }

    /// Passes the length of a file that is being opened to an output that is being added.
    pub(super) fn output_ends_at(&self, node: &Node, len_bytes: u64) {
        let output = locked(&node.file).output();
        if let Some(What::Filling(fill)) = output
            && let Some(end) = fill.ends_at(len_bytes)
        {
            ended(&self.ground, node, &fill, end);
        }
    }

    /// Reads a file from the cache, or else by `read`.
    pub(super) fn read_output(
        &self,
        node: &Arc<Node>,
        offset: u64,
        buf: &mut [u8],
        read: impl FnOnce(&mut [u8]) -> Result<usize>,
    ) -> Result<usize> {
        let Some(cache) = &self.options.outputs else { return read(buf) };
        let output = locked(&node.file).output();
        match output {
            Some(What::Kept(entry, key)) => match entry.read_at(offset, buf) {
                Ok(got) => {
                    let read = Ok(got);
                    locked(&node.file).count_read(&read);
                    read
                }
                Err(e) => {
                    tracing::warn!("output cache: {e}");
                    cache.discard(&key);
                    locked(&node.file).output.is_damaged(entry.len_bytes());
                    read(buf)
                }
            },
            Some(What::Filling(fill)) => {
                let got = read(buf)?;
                hand_over(&self.ground, node, &fill, (offset, buf, got));
                Ok(got)
            }
            Some(What::Nothing | What::Again) | None => read(buf),
        }
    }
}

/// Records the outcome of adding an output to the cache.
pub(super) fn output_ended(ground: &Ground, node: &Node, fill: &Fill, end: End) {
    let end = match end {
        End::Whole(len) => match keep(ground, node, fill, len) {
            Ok(true) => {
                tracing::debug!(ino = node.ino.0, len, "an output is kept");
                end
            }
            Ok(false) => {
                tracing::debug!(ino = node.ino.0, "the file changed meanwhile");
                end
            }
            Err(e) => {
                tracing::warn!("an output is not kept: {e}");
                End::Failed
            }
        },
        End::TooLong | End::Failed => end,
    };
    let mut file = locked(&node.file);
    let output = &mut file.output;
    if output.of != Some(fill.asked.of()) {
        return;
    }
    output.what = match end {
        // The next open looks it up again.
        End::Whole(_) | End::Failed => What::Again,
        End::TooLong => What::Nothing,
    };
    if end == End::Failed {
        output.retry.failed();
    }
}

/// Adds an output to the cache if the file is unchanged; returns false if it is not.
fn keep(ground: &Ground, node: &Node, fill: &Fill, len: u64) -> crate::Result<bool> {
    let asked = &fill.asked;
    let content = match fill.content {
        Some(content) => content,
        None => content_hash(&*ground.below, asked.stored)?,
    };
    let same = looks_same(&ground.below.getattr(asked.stored)?, &asked.attr)
        && ground.with(node, |file, around| {
            let seen = file.look(around)?.1;
            Ok(file.version == asked.version && seen == asked.seen && !file.is_dirty())
        })?;
    if !same {
        return Ok(false);
    }
    let key = key(&asked.network, &content);
    fill.cache.keep(&locked(&fill.filling), len, &key)?;
    if let Some(looks) = &fill.looks {
        fill.cache.note(looks, &key)?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_is_tried_again_ever_more_openings_later() {
        let mut retry = Retry::default();
        let tried: Vec<usize> =
            (0..300).filter(|_| retry.is_due().then(|| retry.failed()).is_some()).collect();
        assert_eq!(tried, [0, 1, 3, 7, 15, 31, 63, 127, 191, 255]);
    }
}
