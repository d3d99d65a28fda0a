//! The images that a power cut can leave, enumerated from a recording.
//!
//! A recording is cut at its flushes into [`Epoch`]s. Everything before an epoch is durable; of its
//! own writes any subset may survive, each torn at 512-byte sectors, and where two writes overlap
//! the later of the survivors wins. A write of several blocks counts as several, since nothing
//! keeps its blocks together.
//!
//! Writes that change nothing are excluded from the choice, so that the subsets are all different
//! (most of the time; the explorer removes the rest by hash). Everything is a function of the
//! recording and the seed.

use crate::{Error, Result};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use weft_block::{Event, Image, Rng, SECTOR_BYTES, mix};

/// A part of a recorded write that survives or is lost as a whole.
#[derive(Debug, Clone)]
pub struct Atom {
    /// The index of its event.
    pub event: usize,
    /// Byte offset on the device.
    pub offset: u64,
    /// The written data; `None` for a discard, which leaves zeroes.
    data: Option<(Arc<[u8]>, usize)>,
    len: usize,
    /// Whether it changes any image.
    effective: bool,
}

/// The writes between two flushes.
#[derive(Debug, Clone)]
pub struct Epoch {
    /// The content that is durable in any case.
    pub durable: Image,
    /// Its writes, in order.
    pub atoms: Vec<Atom>,
    /// The event after which it begins.
    pub first_event: usize,
    /// The flush that ends it, or the end of the recording.
    pub end_event: usize,
}

/// The choice of an image: the surviving writes of an epoch, one of them possibly torn.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CrashState {
    /// The epoch's index in the recording.
    pub epoch: usize,
    /// The surviving writes, by their index in the epoch, in order.
    pub kept: Vec<u32>,
    /// A kept write that is torn: its index, and one bit for each of its sectors that survives.
    pub torn: Option<(u32, u64)>,
    /// The event before which the power was cut.
    pub at: usize,
}

impl fmt::Display for CrashState {
    /// `EPOCH:KEPT[:TORN/MASK]@EVENT`, such as `3:0-4,6:6/a1@57`; `-` for no write at all.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.epoch)?;
        if self.kept.is_empty() {
            f.write_str("-")?;
        }
        let mut rest = &self.kept[..];
        let mut first = true;
        while let Some(&from) = rest.first() {
            let run = (0..).zip(rest).take_while(|(i, k)| from + i == **k).count();
            let comma = if first { "" } else { "," };
            match run {
                1 => write!(f, "{comma}{from}")?,
                _ => write!(f, "{comma}{from}-{}", from + run as u32 - 1)?,
            }
            first = false;
            rest = &rest[run..];
        }
        if let Some((atom, mask)) = self.torn {
            write!(f, ":{atom}/{mask:x}")?;
        }
        write!(f, "@{}", self.at)
    }
}

impl FromStr for CrashState {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::Syntax(format!("{text:?} is no crash state (such as 3:0-4,6:6/a1@57)"));
        let number = |n: &str| n.parse::<u32>().ok();
        let parse = || {
            let (what, at) = text.split_once('@')?;
            let mut parts = what.split(':');
            let (epoch, kept) = (parts.next()?.parse().ok()?, parts.next()?);
            let mut numbers = BTreeSet::new();
            for range in kept.split(',').filter(|k| *k != "-") {
                let (from, to) = range.split_once('-').unwrap_or((range, range));
                let (from, to) = (number(from)?, number(to)?);
                if to.checked_sub(from)? > 1 << 20 {
                    return None;
                }
                numbers.extend(from..=to);
            }
            let torn = match parts.next() {
                None => None,
                Some(torn) => {
                    let (atom, mask) = torn.split_once('/')?;
                    Some((number(atom)?, u64::from_str_radix(mask, 16).ok()?))
                }
            };
            let kept = numbers.into_iter().collect();
            parts.next().is_none().then_some(Self { epoch, kept, torn, at: at.parse().ok()? })
        };
        parse().ok_or_else(bad)
    }
}

/// Bounds on the states of one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Maximum number of writes of which all subsets are taken (and never more than 16).
    pub all_subsets_of: usize,
    /// Number of random subsets in addition to the regular ones.
    pub samples: usize,
    /// Number of ways to tear each write, in addition to its prefixes and suffixes.
    pub tears: usize,
    /// Maximum number of states of one epoch; the most regular ones come first.
    pub states: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { all_subsets_of: 6, samples: 24, tears: 2, states: 400 }
    }
}

impl Atom {
    fn bytes(&self) -> Option<&[u8]> {
        let (data, start) = self.data.as_ref()?;
        data.get(*start..start + self.len)
    }

    /// Writes it to an image, or only the sectors in `mask`.
    fn apply(&self, image: &mut Image, mask: Option<u64>) -> Result<()> {
        let Some(bytes) = self.bytes() else {
            return Ok(image.zero(self.offset, self.len as u64)?);
        };
        let Some(mask) = mask else { return Ok(image.write(bytes, self.offset)?) };
        for (i, at, piece) in self.sectors() {
            if mask >> i & 1 == 1 {
                image.write(piece, at)?;
            }
        }
        Ok(())
    }

    /// Returns its content cut at the device's sectors: number, offset on the device, bytes.
    fn sectors(&self) -> impl Iterator<Item = (usize, u64, &[u8])> {
        let bytes = self.bytes().unwrap_or_default();
        let first = (SECTOR_BYTES - (self.offset % SECTOR_BYTES as u64) as usize).min(bytes.len());
        let (head, tail) = bytes.split_at(first);
        let pieces = std::iter::once(head).chain(tail.chunks(SECTOR_BYTES));
        let mut at = self.offset;
        pieces.take(64).enumerate().map(move |(i, piece)| {
            let here = at;
            at += piece.len() as u64;
            (i, here, piece)
        })
    }
}

/// Cuts a recording on top of `base` into epochs. Writes count by blocks of `block_bytes`.
///
/// # Errors
/// If the recording reaches past the end of the image.
pub fn epochs(base: &Image, events: &[Event], block_bytes: usize) -> Result<Vec<Epoch>> {
    let mut durable = base.clone();
    let mut pending: Vec<Atom> = Vec::new();
    let mut epochs = Vec::new();
    let mut first_event = 0;
    let mut close = |durable: &Image, pending: &[Atom], first: usize, end: usize| -> Result<()> {
        let (durable, mut atoms) = (durable.clone(), pending.to_vec());
        mark_effective(&durable, &mut atoms)?;
        epochs.push(Epoch { durable, atoms, first_event: first, end_event: end });
        Ok(())
    };
    for (i, event) in events.iter().enumerate() {
        match event {
            Event::Write { offset, data, fua } => {
                pending.extend(split(i, *offset, data, block_bytes));
                if *fua {
                    // Durable at once: it is a choice up to here, and not afterwards.
                    close(&durable, &pending, first_event, i + 1)?;
                    durable.write(data, *offset)?;
                    pending.retain(|a| a.event != i);
                    first_event = i + 1;
                }
            }
            Event::Discard { offset, len_bytes } => {
                let len = usize::try_from(*len_bytes)
                    .map_err(|_| Error::Target(format!("a discard of {len_bytes} bytes")))?;
                let data = None;
                pending.push(Atom { event: i, offset: *offset, data, len, effective: true });
            }
            Event::Flush { covers } => {
                close(&durable, &pending, first_event, i)?;
                let n = pending.partition_point(|a| a.event < *covers);
                for atom in pending.drain(..n) {
                    atom.apply(&mut durable, None)?;
                }
                first_event = i + 1;
            }
            Event::Mark(_) => {}
        }
    }
    close(&durable, &pending, first_event, events.len())?;
    Ok(epochs)
}

fn split(event: usize, offset: u64, data: &Arc<[u8]>, block_bytes: usize) -> Vec<Atom> {
    let mut atoms = Vec::new();
    let mut start = 0;
    while start < data.len() {
        let within = ((offset + start as u64) % block_bytes as u64) as usize;
        let len = (block_bytes - within).min(data.len() - start);
        let (at, data) = (offset + start as u64, Some((Arc::clone(data), start)));
        atoms.push(Atom { event, offset: at, data, len, effective: true });
        start += len;
    }
    atoms
}

/// Excludes writes from the choice that change nothing and that no other write of the epoch
/// overlaps.
fn mark_effective(durable: &Image, atoms: &mut [Atom]) -> Result<()> {
    let ranges: Vec<(u64, u64)> =
        atoms.iter().map(|a| (a.offset, a.offset + a.len as u64)).collect();
    for (i, atom) in atoms.iter_mut().enumerate() {
        let Some(bytes) = atom.bytes() else { continue };
        let mut there = vec![0; atom.len];
        durable.read(&mut there, atom.offset)?;
        let (from, to) = ranges[i];
        let alone = ranges.iter().enumerate().all(|(j, r)| i == j || r.1 <= from || r.0 >= to);
        atom.effective = there != bytes || !alone;
    }
    Ok(())
}

impl Epoch {
    /// Returns the image of a state.
    ///
    /// # Errors
    /// [`Error::Syntax`] if it refers to writes that do not exist.
    pub fn image(&self, state: &CrashState) -> Result<Image> {
        let mut image = self.durable.clone();
        for number in &state.kept {
            let Some(atom) = self.atoms.get(*number as usize) else {
                return Err(Error::Syntax(format!("there is no write {number} in {state}")));
            };
            let mask = state.torn.filter(|(torn, _)| torn == number).map(|(_, mask)| mask);
            atom.apply(&mut image, mask)?;
        }
        Ok(image)
    }

    /// Returns the first moment at which a power cut can leave these writes.
    #[must_use]
    pub fn earliest(&self, kept: &[u32]) -> usize {
        let last = kept.last().and_then(|k| self.atoms.get(*k as usize));
        last.map_or(self.first_event, |a| (a.event + 1).max(self.first_event))
    }

    /// Returns the states of this epoch, the most regular ones first: all and nothing, prefixes,
    /// one write lost or alone, all subsets of few, torn writes, then random ones.
    #[must_use]
    pub fn states(&self, number: usize, bounds: Bounds, rng: &mut Rng) -> Vec<CrashState> {
        let all: Vec<u32> =
            (0..).zip(&self.atoms).filter(|(_, a)| a.effective).map(|(i, _)| i).collect();
        let n = all.len();
        let mut list = List { states: Vec::new(), seen: BTreeSet::new(), limit: bounds.states };
        let mut add = |kept: Vec<u32>, torn| {
            let at = self.earliest(&kept);
            list.add(CrashState { epoch: number, kept, torn, at });
        };
        add(all.clone(), None);
        for i in 0..n {
            add(all[..i].to_vec(), None);
        }
        if n <= bounds.all_subsets_of.min(16) {
            for mask in 0..1_u32 << n {
                let kept = (0..n).filter(|i| mask >> i & 1 == 1).map(|i| all[i]).collect();
                add(kept, None);
            }
        } else {
            // If there are too many, a random part is taken: otherwise one huge epoch spends the
            // whole budget on its first writes.
            let each = (bounds.states / 4).max(1) as u64;
            for i in 0..n {
                if rng.chance(each, n as u64) {
                    add(all.iter().copied().filter(|k| *k != all[i]).collect(), None);
                    add(vec![all[i]], None);
                }
            }
        }
        let each = (bounds.states / 2).max(1) as u64;
        for (i, number) in all.iter().enumerate() {
            let masks = self.tears(*number, bounds.tears, rng);
            for mask in masks {
                if !rng.chance(each, (n * 4) as u64) && n * 4 > each as usize {
                    continue;
                }
                add(all[..=i].to_vec(), Some((*number, mask)));
                add(all.clone(), Some((*number, mask)));
                add(vec![*number], Some((*number, mask)));
            }
        }
        for _ in 0..bounds.samples {
            let density = rng.below(101);
            let kept: Vec<u32> = all.iter().copied().filter(|_| rng.chance(density, 100)).collect();
            let torn = rng.pick(&kept).copied().filter(|_| n > 1 && rng.chance(1, 3));
            let torn =
                torn.and_then(|t| Some((t, *rng.pick(&self.tears(t, 2, &mut rng.clone()))?)));
            add(kept, torn);
        }
        list.states
    }

    /// Returns ways to tear a write that give a new image: prefixes, suffixes, and single sectors
    /// of those that change, and some at random.
    fn tears(&self, number: u32, random: usize, rng: &mut Rng) -> Vec<u64> {
        let Some(atom) = self.atoms.get(number as usize) else { return Vec::new() };
        let mut changed = Vec::new();
        for (i, at, piece) in atom.sectors() {
            let mut there = vec![0; piece.len()];
            if self.durable.read(&mut there, at).is_ok() && there != piece {
                changed.push(1_u64 << i);
            }
        }
        if changed.len() < 2 {
            return Vec::new();
        }
        let sum = |bits: &[u64]| bits.iter().sum::<u64>();
        let mut masks = BTreeSet::new();
        for i in 1..changed.len() {
            masks.insert(sum(&changed[..i]));
            masks.insert(sum(&changed[i..]));
        }
        masks.extend(&changed);
        let whole = sum(&changed);
        for _ in 0..random {
            let mask = rng.next_u64() & whole;
            if mask != 0 && mask != whole {
                masks.insert(mask);
            }
        }
        masks.into_iter().collect()
    }
}

/// Kept writes, and the torn one with its kept sectors.
type Choice = (Vec<u32>, Option<(u32, u64)>);

struct List {
    states: Vec<CrashState>,
    seen: BTreeSet<Choice>,
    limit: usize,
}

impl List {
    fn add(&mut self, state: CrashState) {
        if self.states.len() < self.limit && self.seen.insert((state.kept.clone(), state.torn)) {
            self.states.push(state);
        }
    }
}

/// Returns a hash of an image's content, fast for an image that shares most of its pages with
/// `base`. Equal content has equal hashes as long as `base` is the same.
#[must_use]
pub fn content_hash(image: &Image, base: &Image) -> u64 {
    let mut sum: u64 = 0;
    for number in image.pages_apart(base) {
        let (page, old) = (image.page(number), base.page(number));
        let zero = |p: Option<&weft_block::Page>| p.is_none_or(|p| p.iter().all(|b| *b == 0));
        if page == old || (zero(page) && zero(old)) {
            continue;
        }
        let mut hash = mix(number);
        for word in page.into_iter().flat_map(|p| p.as_chunks::<8>().0) {
            hash = (hash ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
        // A sum, so that the order of the pages does not matter.
        sum = sum.wrapping_add(mix(hash));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use weft_block::{BlockDevice, MemoryDevice, Recorder};

    fn content(image: &Image) -> Vec<u8> {
        let mut all = vec![0; image.len_bytes() as usize];
        image.read(&mut all, 0).unwrap();
        all
    }

    fn explore(
        run: impl Fn(&dyn BlockDevice),
        bounds: Bounds,
    ) -> (Vec<Epoch>, Vec<Vec<CrashState>>) {
        let device = Recorder::new(MemoryDevice::new(16 << 10));
        let base = device.inner().snapshot();
        run(&device);
        let epochs = epochs(&base, &device.events(), 1024).unwrap();
        let mut rng = Rng::new(1);
        let states = (0..).zip(&epochs).map(|(i, e)| e.states(i, bounds, &mut rng)).collect();
        (epochs, states)
    }

    #[test]
    fn all_subsets_and_all_tears_of_a_few_writes() {
        let run = |d: &dyn BlockDevice| {
            d.write_at(&[1; 1024], 0).unwrap();
            d.flush().unwrap();
            d.write_at(&[2; 2048], 0).unwrap();
            d.write_at(&[3; 1024], 1024).unwrap();
        };
        let (epochs, states) = explore(run, Bounds::default());
        assert_eq!(epochs.len(), 2);
        let images: BTreeMap<Vec<u8>, &CrashState> =
            states[1].iter().map(|s| (content(&epochs[1].image(s).unwrap()), s)).collect();
        for image in images.keys() {
            let sectors: Vec<u8> = image.chunks(512).map(|s| s[0]).take(4).collect();
            assert!(matches!(sectors[..], [1 | 2, 1 | 2, 0 | 2 | 3, 0 | 2 | 3]), "{sectors:?}");
        }
        // One torn write at a time: of 4 * 9 images all but those with both blocks torn.
        assert!(images.len() >= 2 * 3 + 2 * 3, "{}", images.len());
        let whole: Vec<u8> = [[2; 1024], [3; 1024]].concat();
        assert!(images.keys().any(|i| i[..2048] == whole));
        // The base survives whichever writes are lost.
        assert!(images.keys().any(|i| i[..1024] == [1; 1024] && i[1024..2048] == [0; 1024]));
        for state in &states[1] {
            assert_eq!(state.to_string().parse::<CrashState>().unwrap(), *state);
        }
    }

    #[test]
    fn many_writes_are_sampled_within_bounds_and_by_seed() {
        let run = |d: &dyn BlockDevice| {
            for i in 0..12_u8 {
                d.write_at(&[i + 1; 1024], u64::from(i) * 1024).unwrap();
            }
        };
        let bounds = Bounds { states: 100, ..Bounds::default() };
        let (epochs, states) = explore(run, bounds);
        assert_eq!(states[0].len(), 100);
        assert_eq!(states, explore(run, bounds).1);
        let distinct: BTreeSet<u64> = states[0]
            .iter()
            .map(|s| content_hash(&epochs[0].image(s).unwrap(), &epochs[0].durable))
            .collect();
        assert!(distinct.len() > 90, "{}", distinct.len());
        // Every prefix is there.
        for n in 0..=12_u32 {
            assert!(states[0].iter().any(|s| s.kept == (0..n).collect::<Vec<_>>()), "{n}");
        }
    }

    #[test]
    fn a_write_during_a_flush_is_not_made_durable_by_it_and_fua_is_at_once() {
        let write = |offset, byte, fua| Event::Write { offset, data: vec![byte; 1024].into(), fua };
        let events = [
            write(0, 1, false),
            write(1024, 2, false),
            Event::Flush { covers: 1 },
            write(2048, 3, true),
        ];
        let epochs = epochs(&Image::new(8192), &events, 1024).unwrap();
        let durable: Vec<Vec<u8>> = epochs
            .iter()
            .map(|e| content(&e.durable).chunks(1024).take(3).map(|b| b[0]).collect())
            .collect();
        assert_eq!(durable, [[0, 0, 0], [1, 0, 0], [1, 0, 3]]);
        let pending: Vec<usize> = epochs.iter().map(|e| e.atoms.len()).collect();
        assert_eq!(pending, [2, 2, 1]);
    }

    #[test]
    fn the_hash_is_of_the_content_and_not_of_its_history() {
        let base = Image::new(1 << 20);
        let mut a = base.clone();
        a.write(&[1; 5000], 3000).unwrap();
        a.write(&[0; 5000], 3000).unwrap();
        assert_eq!(content_hash(&a, &base), content_hash(&base, &base));
        a.write(&[7], 9).unwrap();
        let mut b = base.clone();
        b.write(&[7], 9).unwrap();
        assert_eq!(content_hash(&a, &base), content_hash(&b, &base));
        b.write(&[7], 10).unwrap();
        assert_ne!(content_hash(&a, &base), content_hash(&b, &base));
    }
}
