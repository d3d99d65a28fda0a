//! Checking and repairing a volume.

use super::volume::Volume;
use weft_block::BlockDevice;
use weft_vfs::Result;

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Inconsistencies that a power cut leaves, and that an open corrects: structure, location,
    /// problem.
    pub loose: Vec<String>,
    /// All other problems.
    pub damage: Vec<String>,
    /// All of the problems have been corrected.
    pub repaired: bool,
    /// The number of files on the volume, after the repair.
    pub files: usize,
}

impl Report {
    /// Returns true if the check found no problems.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.loose.is_empty() && self.damage.is_empty()
    }
}

/// Checks a volume that is not open. With `repair`, corrects the problems: forks are cut where
/// their chains leave the file or enter another, duplicate names and numbers are made unique, and
/// map, counts and the copy of the master directory block are rewritten.
///
/// # Errors
/// [`weft_vfs::Error::Corrupt`] if there is no volume, or no valid master directory block.
pub fn check(device: &dyn BlockDevice, repair: bool) -> Result<Report> {
    let mut volume = Volume::read(device)?;
    let mut report = Report {
        loose: std::mem::take(&mut volume.loose),
        damage: std::mem::take(&mut volume.damage),
        repaired: false,
        files: volume.files.len(),
    };
    if repair && !report.is_clean() {
        make_unique(&mut volume);
        report.files = volume.files.len();
        volume.write(device)?;
        let again = Volume::read(device)?;
        report.repaired = again.loose.is_empty() && again.damage.is_empty();
    }
    Ok(report)
}

/// Gives files with an invalid or duplicate name or number new ones.
fn make_unique(volume: &mut Volume) {
    let mut numbers = std::collections::BTreeSet::new();
    for file in &mut volume.files {
        file.entry.name.iter_mut().filter(|b| **b == 0).for_each(|b| *b = b'-');
        if file.entry.number == 0 || !numbers.insert(file.entry.number) {
            file.entry.number = volume.mdb.next_number;
            numbers.insert(file.entry.number);
            volume.mdb.next_number = volume.mdb.next_number.saturating_add(1);
        }
    }
    for at in 1..volume.files.len() {
        let (before, rest) = volume.files.split_at_mut(at);
        let entry = &mut rest[0].entry;
        let version = entry.version;
        let taken = |name: &[u8]| {
            before.iter().any(|f| {
                f.entry.version == version && crate::relstring::compare(&f.entry.name, name).is_eq()
            })
        };
        // The entry must not become longer: the last characters are replaced by a number.
        let original = entry.name.clone();
        let mut tries = 0_u32;
        while taken(&entry.name) {
            tries += 1;
            let suffix = tries.to_string().into_bytes();
            let keep = original.len().saturating_sub(suffix.len());
            entry.name = [&original[..keep], &suffix].concat();
            entry.name.truncate(original.len());
            if suffix.len() > original.len() {
                break;
            }
        }
    }
    // A name of one character may have no free replacement: its file is dropped.
    let mut seen = std::collections::BTreeSet::new();
    volume.files.retain(|f| {
        let folded: Vec<u8> = f.entry.name.iter().map(|&b| crate::relstring::weight(b)).collect();
        seen.insert((folded, f.entry.version))
    });
    volume.mdb.files = volume.files.len() as u16;
    let used: std::collections::BTreeSet<u16> =
        volume.files.iter().flat_map(|f| f.chains.iter().flatten().copied()).collect();
    for number in volume.map.numbers() {
        let value = volume.map.get(number);
        if !used.contains(&number) && value != super::layout::DIRECTORY {
            volume.map.set(number, super::layout::FREE);
        }
    }
    volume.mdb.free_blocks = volume.map.free();
}
