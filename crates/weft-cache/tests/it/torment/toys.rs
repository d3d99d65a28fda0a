//! The harness tormented: things that are right or wrong on purpose, and must be found so.

use super::explore::{Case, explore};
use super::script::{Config, Family};
use super::subject::Subject;
use super::torment;
use super::world::{Disk, World};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use weft_block::{BlockDevice, Change, Filter, Result as BlockResult};
use weft_cache::Mode;

/// A way to be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrong {
    /// No cache at all, which is right.
    Nowhere,
    /// A flush is not passed on.
    Flush,
    /// The last four KiB that were read are served again for ever.
    Stale,
    /// Writes wait in memory for the next flush.
    Late,
    /// A flush that fails is made once more, and then all is well.
    Again,
    /// After a power cut a read shows the content of 4 KiB further on.
    Shifted,
}

struct Origin {
    inner: Arc<dyn BlockDevice>,
    wrong: Wrong,
    shifted: bool,
    kept: Mutex<BTreeMap<u64, Vec<u8>>>,
}

impl Filter for Origin {
    type Below = Arc<dyn BlockDevice>;

    fn below(&self) -> &Self::Below {
        &self.inner
    }

    fn filter_read(&self, buf: &mut [u8], offset: u64) -> BlockResult<()> {
        let end = offset + buf.len() as u64;
        let shift = self.shifted && end + 4096 <= self.inner.geometry().len_bytes;
        self.inner.read_at(buf, offset + if shift { 4096 } else { 0 })?;
        let mut kept = self.kept.lock().unwrap();
        if self.wrong == Wrong::Stale {
            kept.entry(offset).or_insert_with(|| buf.to_vec());
        }
        for (at, data) in kept.iter() {
            let from = offset.max(*at);
            let to = end.min(*at + data.len() as u64);
            if from < to {
                buf[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&data[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(())
    }

    fn filter_change(&self, change: Change<'_>) -> BlockResult<()> {
        if self.wrong != Wrong::Late {
            return change.apply(&self.inner);
        }
        change.apply_by_writes(|buf, at| {
            self.kept.lock().unwrap().insert(at, buf.to_vec());
            Ok(())
        })
    }

    fn filter_flush(&self) -> BlockResult<()> {
        match self.wrong {
            Wrong::Flush => Ok(()),
            Wrong::Again => self.inner.flush().or_else(|_| self.inner.flush()),
            Wrong::Late => {
                // In the order of offsets, not of the writes.
                for (at, data) in std::mem::take(&mut *self.kept.lock().unwrap()) {
                    self.inner.write_at(&data, at)?;
                }
                self.inner.flush()
            }
            _ => self.inner.flush(),
        }
    }
}

struct Toy<const WRONG: usize>(Vec<Origin>);

const WRONGS: [Wrong; 6] =
    [Wrong::Nowhere, Wrong::Flush, Wrong::Stale, Wrong::Late, Wrong::Shifted, Wrong::Again];

impl<const WRONG: usize> Subject for Toy<WRONG> {
    fn format(config: &Config) -> Result<Vec<Disk>, String> {
        let lens = std::iter::once(&4096).chain(&config.origin_bytes);
        Ok(lens.map(|len| Disk::new(*len, config.discard)).collect())
    }

    fn open(config: &Config, world: &Arc<World>) -> Result<Self, String> {
        let wrong = WRONGS[WRONG];
        let origin = |i| Origin {
            inner: world.device(i),
            wrong,
            // The first life starts on empty disks.
            shifted: wrong == Wrong::Shifted && world.visible(i).pages().next().is_some(),
            kept: Mutex::default(),
        };
        Ok(Self((1..=config.origin_bytes.len()).map(origin).collect()))
    }

    fn inspect(_: &Config, _: &[Disk]) -> Result<(), String> {
        Ok(())
    }

    fn device(&self, origin: usize) -> &dyn BlockDevice {
        &self.0[origin]
    }

    fn set_mode(&mut self, _: usize, _: Mode) -> Result<(), String> {
        Ok(())
    }

    fn tick(&mut self, _: u64) -> Result<(), String> {
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn write_back(&mut self, origin: usize) -> Result<(), String> {
        self.0[origin].flush().map_err(|e| e.to_string())
    }

    fn resize(&mut self, _: u64) -> Result<(), String> {
        Ok(())
    }

    fn reattach(&mut self, origin: usize) -> Result<(), String> {
        self.0[origin].flush().map_err(|e| e.to_string())
    }

    fn detach_all(&mut self) -> Result<(), String> {
        self.0.iter().try_for_each(BlockDevice::flush).map_err(|e| e.to_string())
    }

    fn close(self) -> Result<(), String> {
        self.0.iter().try_for_each(BlockDevice::flush).map_err(|e| e.to_string())
    }
}

/// The families that never change what is dirty: the toys write to the origin as they like.
const FAMILY: Family = Family::Mixed;

#[test]
fn a_plain_disk_breaks_no_promise() {
    for family in [FAMILY, Family::FailingMixed, Family::Failing(Mode::WriteThrough)] {
        let mut cuts = 0;
        for seed in 0..4 {
            let case = Case::new(Config::generate(family, seed), 40);
            cuts += explore::<Toy<0>>(&case, 1).unwrap_or_else(|f| panic!("{}", f.text)).cuts;
        }
        assert!(cuts > 100, "{}: {cuts}", family.name());
    }
}

/// Whether a mistake is found in a few cases.
fn found<const WRONG: usize>() -> String {
    let text = (0..6).find_map(|seed| torment::<Toy<WRONG>>(FAMILY, seed, 1).err());
    text.unwrap_or_else(|| panic!("{:?} is not found", WRONGS[WRONG]))
}

#[test]
fn a_disk_that_drops_flushes_is_found() {
    let text = found::<1>();
    assert!(text.contains("allowed"), "{text}");
}

#[test]
fn a_cache_that_serves_what_is_stale_is_found() {
    let text = found::<2>();
    assert!(text.contains("allowed"), "{text}");
}

#[test]
fn a_cache_that_writes_in_the_wrong_order_is_found() {
    found::<3>();
}

#[test]
fn a_cache_that_makes_nothing_of_a_failed_flush_is_found() {
    let found = |family| {
        let text = (0..6).find_map(|seed| torment::<Toy<5>>(family, seed, 1).err());
        text.unwrap_or_else(|| panic!("it is not found in {family:?}"))
    };
    found(Family::Failing(Mode::WriteThrough));
    // By what is lost alone, where nobody has to be told.
    assert!(found(Family::FailingMixed).contains("allowed"));
}

#[test]
fn content_at_the_wrong_place_is_found_named_and_made_small() {
    let text = found::<4>();
    assert!(text.contains(" to origin "), "{text}");
    let ops = text.lines().filter(|line| line.starts_with("  #")).count();
    assert!((1..=6).contains(&ops), "{text}");
}
