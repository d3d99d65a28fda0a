//! Files whose content is in the cache of outputs, or on its way there.
//!
//! What of a file is in the cache is looked for when it is opened, and counts until the file looks
//! different or is changed. Nothing is kept of a file that was changed within the last seconds: its
//! times could stay the same with the next change.

use std::sync::Arc;

use blake3::{Hash, Hasher};
use weft_vfs::{Attr, FileSystem, Handle, Ino, Result, Time};

use super::TransformFs;
use super::base::locked;
use super::file::{Around, Attached, File, Seen};
use super::fill::{Fill, hand_over};
use super::ground::Ground;
use super::nodes::Node;
use crate::outputs::{Entry, OutputCache};

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
}

#[derive(Default, Clone)]
pub(super) enum What {
    #[default]
    Nothing,
    Kept(Arc<Entry>, Hash),
    Filling(Arc<Fill>),
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
    in_place: bool,
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
            _ => None,
        }
    }

    pub(super) fn is_kept(&self) -> bool {
        matches!(self.what, What::Kept(..))
    }
}

impl File {
    /// What the cache is to be asked; `None` if nothing is, or was already.
    fn output_asked(&self, around: &Around<'_>) -> Result<Option<Asked>> {
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
        if self.output.now(seen, self.version).is_some() {
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
        let found = self.with(node, |file, around| file.output_asked(around));
        let Ok(Some(asked)) = found else { return };
        if asked.attr.size_bytes == 0 || !is_settled(&asked.attr) {
            return;
        }
        let (of, what) = ((asked.seen, asked.version), self.output_of(cache, asked));
        let kept = matches!(what, What::Kept(..));
        let mut file = locked(&node.file);
        file.output = Output { of: Some(of), what };
        file.count(
            |meter| if kept { meter.outputs_found.add(1) } else { meter.outputs_missed.add(1) },
        );
    }

    fn output_of(&self, cache: &OutputCache, asked: Asked) -> What {
        let looks = self.options.identity.as_ref().filter(|_| asked.stored.0 < MADE_UP);
        let looks = looks.map(|identity| {
            let mut hasher = Hasher::new();
            hasher.update(asked.network.as_bytes()).update(identity.as_bytes());
            update_with_looks(&mut hasher, &asked.attr);
            hasher.finalize()
        });
        let (key, content) = match &looks {
            Some(looks) => (cache.memo(looks), None),
            None => match content_hash(&*self.ground.below, asked.stored) {
                Ok(content) => (Some(key(&asked.network, &content)), Some(content)),
                Err(_) => return What::Nothing,
            },
        };
        if let Some((entry, key)) = key.and_then(|key| Some((cache.get(&key)?, key))) {
            return What::Kept(Arc::new(entry), key);
        }
        match cache.begin() {
            Ok(filling) => {
                let in_place = asked.in_place;
                What::Filling(Arc::new(Fill::new(filling, in_place, asked, content, looks)))
            }
            Err(e) => {
                tracing::warn!("the output cache takes nothing: {e}");
                What::Nothing
            }
        }
    }

    /// The length of a file that is being opened, for an output that is on its way.
    pub(super) fn output_ends_at(&self, node: &Node, len_bytes: u64) {
        if let Some(What::Filling(fill)) = locked(&node.file).output() {
            fill.ends_at(len_bytes);
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
                    // It is made anew when the file is opened next.
                    locked(&node.file).output = Output::default();
                    read(buf)
                }
            },
            Some(What::Filling(fill)) => {
                let got = read(buf)?;
                let (cache, ours) = (cache.clone(), fill.clone());
                let done = move |ground: &Ground, node: &Node, len: u64| {
                    finish_output(ground, &cache, node, &ours, len);
                };
                hand_over(&self.ground, node, &fill, (offset, buf, got), done);
                Ok(got)
            }
            Some(What::Nothing) | None => read(buf),
        }
    }
}

/// All of an output is there.
fn finish_output(ground: &Ground, cache: &OutputCache, node: &Node, fill: &Fill, len: u64) {
    match finish(ground, node, cache, fill, len) {
        Ok(true) => tracing::debug!(ino = node.ino.0, len, "an output is kept"),
        Ok(false) => tracing::debug!(ino = node.ino.0, "the file changed meanwhile"),
        Err(e) => tracing::warn!("an output is not kept: {e}"),
    }
    // Whoever opens it next looks again.
    locked(&node.file).output = Output::default();
}

/// Keeps an output if the file is what it was.
fn finish(
    ground: &Ground,
    node: &Node,
    cache: &OutputCache,
    fill: &Fill,
    len: u64,
) -> crate::Result<bool> {
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
    cache.keep(&locked(&fill.filling), len, &key)?;
    if let Some(looks) = &fill.looks {
        cache.note(looks, &key)?;
    }
    Ok(true)
}
