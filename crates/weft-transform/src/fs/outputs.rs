//! Files whose content is in the cache of outputs, or on its way there.
//!
//! What of a file is in the cache is looked for when it is opened, and counts until the file looks
//! different or is changed. An output that can be kept is kept at last: what comes to nothing for a
//! reason that may pass, as a cache that cannot be written, is tried again when the file is opened
//! later ([`Retry`]); only one that is too long is not. Nothing is kept of a file that was changed within the last seconds: its
//! times could stay the same with the next change.

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

/// How long a file must have stayed as it is.
const SETTLED_SECS: i64 = 2;

/// Bytes of a stored file that are hashed at a time.
const HASHED_BYTES: usize = 1 << 20;

/// Numbers from here on were made up for inodes of other devices, and mean nothing tomorrow.
const MADE_UP: u64 = u64::MAX / 2;

/// What a file has of the cache.
#[derive(Default)]
pub(super) struct Output {
    /// What the file was when that was looked for.
    of: Option<(Seen, u64)>,
    what: What,
    /// When what failed is tried again.
    retry: Retry,
    /// What an entry said that turned out to be damaged while it was read: who is in the middle of the
    /// file goes on with what is made anew, and must not take it for shorter meanwhile.
    len_bytes: Option<u64>,
}

#[derive(Default, Clone)]
pub(super) enum What {
    /// And there will not be.
    #[default]
    Nothing,
    Kept(Arc<Entry>, Hash),
    /// To be looked for again when the file is opened, as [`Retry`] says.
    Again,
    Filling(Arc<Fill>),
}

/// What failed is tried again when the file is opened next, and the more often it failed, the more
/// openings later: each time that costs a file, and perhaps a reading of all that is stored.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Retry {
    failures: u32,
    /// Openings that go by before.
    left: u32,
}

/// That many times the number of openings doubles: 63 of them go by at most.
const DOUBLINGS_MAX: u32 = 6;

impl Retry {
    fn failed(&mut self) {
        self.left = (1 << self.failures.min(DOUBLINGS_MAX)) - 1;
        self.failures += 1;
    }

    /// Whether it is tried again with this opening.
    fn is_due(&mut self) -> bool {
        let due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        due
    }
}

/// A file of which the cache might have the output.
pub(super) struct Asked {
    seen: Seen,
    version: u64,
    stored: Ino,
    /// Of what is stored, and how it is seen.
    attr: Attr,
    network: Hash,
    /// All stages work in place.
    pub(super) in_place: bool,
}

impl Asked {
    /// What the file was when the cache was asked.
    fn of(&self) -> (Seen, u64) {
        (self.seen, self.version)
    }
}

impl Output {
    /// What there is, if the file is still what it was.
    fn now(&self, seen: Seen, version: u64) -> Option<&What> {
        (self.of == Some((seen, version))).then_some(&self.what)
    }

    /// The length that an entry says.
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
    /// What the cache is to be asked; `None` if nothing is, or was already.
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
                // Several on top of each other are rare.
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

    /// The inode below that has what is stored.
    fn stored(&self, around: &Around<'_>) -> Option<Ino> {
        match &self.attached {
            Attached::Network(_) => Some(locked(around.place).ino),
            Attached::View(view) => Some(view.base.below()),
            Attached::Plain | Attached::Unusable(_) => None,
        }
    }

    /// What there is of the cache, without another look at what is stored.
    fn output(&self) -> Option<What> {
        self.output_and_state().map(|(_, what)| what)
    }

    /// Whether all that is read of the file goes to the cache.
    pub(super) fn is_filling(&self) -> bool {
        match self.output() {
            Some(What::Filling(fill)) => !fill.is_over(),
            _ => false,
        }
    }

    /// The same, and what the file was when that was looked for.
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

/// Whether a file has been as it is for a while.
fn is_settled(attr: &Attr) -> bool {
    let now = Time::from(std::time::SystemTime::now()).secs;
    attr.mtime.secs.max(attr.ctime.secs).saturating_add(SETTLED_SECS) <= now
}

/// Number, length and times of a stored file.
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

/// The hash of what is stored in an inode.
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

/// The key of an output.
fn key(network: &Hash, content: &Hash) -> Hash {
    let mut hasher = Hasher::new();
    hasher.update(network.as_bytes()).update(content.as_bytes());
    hasher.finalize()
}

impl TransformFs {
    /// Looks for the output of a file that is being opened.
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

    /// The length of a file that is being opened, for an output that is on its way.
    pub(super) fn output_ends_at(&self, node: &Node, len_bytes: u64) {
        let output = locked(&node.file).output();
        if let Some(What::Filling(fill)) = output
            && let Some(end) = fill.ends_at(len_bytes)
        {
            ended(&self.ground, node, &fill, end);
        }
    }

    /// Reads a file by `read`, or from the cache.
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

/// An output has ended so.
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
        // Whoever opens it next looks again.
        End::Whole(_) | End::Failed => What::Again,
        End::TooLong => What::Nothing,
    };
    if end == End::Failed {
        output.retry.failed();
    }
}

/// Keeps an output if the file is what it was: whether it is.
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
