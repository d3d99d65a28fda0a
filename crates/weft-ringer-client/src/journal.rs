//! A journal in a file: records one after the other, each with its length and the beginning of its
//! BLAKE3 hash. A crash leaves a prefix of it; a torn end is cut off when it is opened.
//!
//! ```text
//! offset 0   8 bytes   "weftrj02"
//! record     4 bytes   length of the record, little-endian
//!            4 bytes   the first bytes of its hash
//!            ...       a JournalRecord
//! ```
//!
//! Damage is distinguished from a torn end by the data after it: a crash leaves no whole record
//! after a torn one. A damaged journal is kept as `NAME.damaged`, and the records before the damage
//! are used.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use weft_ringer::wire::{Wire, decode, encode};
use weft_ringer_net::private;
use weft_vfs::host_file;

use super::room::{allocate, is_full};

const MAGIC: &[u8; 8] = b"weftrj02";
const HEAD_BYTES: usize = 8;
/// The length beyond which a journal is rewritten, in bytes.
const LONG_BYTES: u64 = 32 << 20;
/// The length beyond which writers wait for the rewriting, in bytes.
const OVERLONG_BYTES: u64 = 2 * LONG_BYTES;
/// The length beyond which a sync rewrites the journal, in bytes.
const SYNC_BYTES: u64 = 1 << 20;
/// The allocation unit, in bytes.
const ALLOCATED_BYTES: u64 = 1 << 20;
/// The room reserved for records about changes already made, in bytes: a base amount, and an amount
/// for each change that the server may not have.
const KEPT_BYTES: u64 = 64 << 10;
const KEPT_FOR_EACH_BYTES: u64 = 1 << 10;

/// A journal, open to be appended to.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// The offset of the next record.
    end: u64,
    /// The offset up to which room is allocated.
    allocated: u64,
    /// Whether the file system cannot allocate ahead.
    is_thin: bool,
    /// Records that found no room. They are in memory, and sent to the server as others are.
    behind: Vec<u8>,
    /// The damage that was found when it was opened, for people.
    pub(super) damage: Option<String>,
}

fn check(payload: &[u8]) -> [u8; 4] {
    let hash = blake3::hash(payload);
    let [a, b, c, d, ..] = *hash.as_bytes();
    [a, b, c, d]
}

fn put<R: Wire>(record: &R, out: &mut Vec<u8>) {
    let payload = encode(record);
    // A change fits a frame, which is far below 4 GiB.
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(&check(&payload));
    out.extend_from_slice(&payload);
}

/// Returns the whole records at the beginning of `bytes`, and where they end.
fn parse<R: Wire>(bytes: &[u8]) -> (Vec<R>, usize) {
    let (mut records, mut at) = (Vec::new(), 0);
    while let Some(head) = bytes.get(at..at + HEAD_BYTES) {
        let (len, sum) = head.split_at(4);
        let len = u32::from_le_bytes(len.try_into().unwrap_or_default()) as usize;
        let begin = at + HEAD_BYTES;
        let Some(payload) = begin.checked_add(len).and_then(|end| bytes.get(begin..end)) else {
            break;
        };
        let Some(record) = (sum == check(payload)).then(|| decode(payload).ok()).flatten() else {
            break;
        };
        records.push(record);
        at = begin + len;
    }
    (records, at)
}

impl Journal {
    fn of(path: &Path, file: File, end: u64) -> Self {
        let (allocated, is_thin, behind, damage) = (0, false, Vec::new(), None);
        Self { path: path.into(), file, end, allocated, is_thin, behind, damage }
    }

    /// Opens the journal at `path`, and makes it if there is none. Returns its records.
    pub(super) fn open<R: Wire>(path: &Path) -> io::Result<(Self, Vec<R>)> {
        let mut file = private().read(true).write(true).create(true).truncate(false).open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut damage = None;
        let (records, end) = match bytes.strip_prefix(MAGIC) {
            Some(rest) => {
                let (records, end) = parse(rest);
                let left = rest.get(end..).unwrap_or_default();
                if let Some(at) = whole_record_in::<R>(left) {
                    damage = Some(keep_damaged(path, &bytes, MAGIC.len() + end, at)?);
                }
                (records, MAGIC.len() + end)
            }
            // A crash while it was made.
            None if MAGIC.starts_with(&bytes) => {
                file.write_all_at(MAGIC, 0)?;
                (Vec::new(), MAGIC.len())
            }
            None => return Err(io::Error::new(io::ErrorKind::InvalidData, "not a journal")),
        };
        file.set_len(end as u64)?;
        file.sync_all()?;
        host_file::sync_parent(path)?;
        Ok((Self { damage, ..Self::of(path, file, end as u64) }, records))
    }

    /// Appends a record. If there is no room, it is kept for [`catch_up`](Self::catch_up).
    pub(super) fn append<R: Wire>(&mut self, record: &R) {
        put(record, &mut self.behind);
        if let Err(e) = self.catch_up() {
            tracing::error!(
                "{}: {e}; changes are refused until there is room",
                self.path.display()
            );
        }
    }

    /// Makes sure of room for a record of `len_bytes`, and after it for records about changes
    /// already made, of which `unsent` may not be with the server.
    ///
    /// # Errors
    /// There is no room: the change must not be made.
    pub(super) fn make_room(&mut self, len_bytes: u64, unsent: usize) -> io::Result<()> {
        let kept_bytes = KEPT_BYTES + KEPT_FOR_EACH_BYTES * (unsent as u64 + 1);
        let wanted = self.end + HEAD_BYTES as u64 + len_bytes + kept_bytes;
        if self.is_thin || wanted <= self.allocated {
            return Ok(());
        }
        // More than that will be needed soon; on a nearly full disk the minimum will do.
        let full = |e: &io::Error| is_full(e);
        for upto in [wanted + ALLOCATED_BYTES, wanted] {
            match allocate(&self.file, self.end, upto - self.end) {
                Ok(true) => {
                    self.allocated = upto;
                    return Ok(());
                }
                Ok(false) => {
                    self.is_thin = true;
                    return Ok(());
                }
                Err(e) if full(&e) && upto > wanted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Returns true if there are records that found no room.
    pub(super) fn is_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Tries again to write records that found no room.
    pub(super) fn catch_up(&mut self) -> io::Result<()> {
        if self.behind.is_empty() {
            return Ok(());
        }
        if let Err(e) = self.file.write_all_at(&self.behind, self.end) {
            // A partial write is overwritten the next time.
            let _ = self.file.set_len(self.end);
            // That frees the bytes allocated after the end.
            self.allocated = self.end;
            return Err(e);
        }
        self.end += self.behind.len() as u64;
        self.behind.clear();
        Ok(())
    }

    /// A handle whose `sync_data` makes everything appended so far durable.
    pub(super) fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Returns true if the journal should be rewritten with the records still needed; sooner, if it
    /// is to be made durable.
    pub(super) fn is_long(&self, to_sync: bool) -> bool {
        self.end > if to_sync { SYNC_BYTES } else { LONG_BYTES }
    }

    /// Returns true if it must be rewritten before more is written.
    pub(super) fn is_overlong(&self) -> bool {
        self.end > OVERLONG_BYTES
    }

    /// Restarts the journal with these records alone. On failure it stays as it is.
    pub(super) fn restart<R: Wire>(&mut self, records: &[R]) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        records.iter().for_each(|record| put(record, &mut bytes));
        let path = self.path.with_extension("new");
        let made = || -> io::Result<Self> {
            let mut file =
                private().read(true).write(true).create(true).truncate(true).open(&path)?;
            file.write_all(&bytes)?;
            let mut new = Self::of(&self.path, file, bytes.len() as u64);
            // Allocates as much as the old one has: freed room may be taken by other processes at
            // once.
            new.make_room(0, records.len())?;
            new.file.sync_all()?;
            host_file::rename(&path, &self.path)?;
            Ok(new)
        };
        let new = made().inspect_err(|_| drop(std::fs::remove_file(&path)))?;
        *self = new;
        Ok(())
    }
}

/// Returns the offset at which another whole record begins in the data after a journal's records.
fn whole_record_in<R: Wire>(bytes: &[u8]) -> Option<usize> {
    (1..bytes.len()).find(|at| {
        let rest = &bytes[*at..];
        let Some((head, rest)) = rest.split_at_checked(HEAD_BYTES) else { return false };
        let len = head.first_chunk::<4>().map_or(0, |len| u32::from_le_bytes(*len)) as usize;
        // Four bytes of a hash match by chance once in four thousand million.
        len > 0
            && rest.get(..len).is_some_and(|payload| {
                head.get(4..) == Some(&check(payload)[..]) && decode::<R>(payload).is_ok()
            })
    })
}

/// Stores a copy of a journal that is damaged in its middle. Returns what is to be said of it.
fn keep_damaged(path: &Path, bytes: &[u8], end: usize, at: usize) -> io::Result<String> {
    let aside = path.with_extension("damaged");
    weft_ringer_net::replace(&aside, bytes)?;
    let text = format!(
        "{} is damaged at byte {end}, and intact again {at} bytes later: changes recorded from \
        there on that the server does not have are lost. The damaged file is kept as {}",
        path.display(),
        aside.display()
    );
    tracing::error!("{text}");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_ringer::Seq;
    use weft_ringer::client::JournalRecord;

    #[test]
    fn torn_records_are_cut_off() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("journal");
        let records: Vec<_> = (1..=5).map(|n| JournalRecord::Applied { seq: Seq(n) }).collect();
        let (mut journal, none) = Journal::open::<JournalRecord>(&path).expect("a journal");
        assert!(none.is_empty());
        records.iter().for_each(|r| journal.append(r));
        let whole = std::fs::read(&path).expect("bytes");
        for len in 0..=whole.len() {
            std::fs::write(&path, &whole[..len]).expect("a torn file");
            let (mut journal, found) = Journal::open::<JournalRecord>(&path).expect("a journal");
            assert!(records.starts_with(&found), "{len}");
            journal.append(&JournalRecord::Applied { seq: Seq(9) });
            let (_, again) = Journal::open::<JournalRecord>(&path).expect("a journal");
            assert_eq!(again.len(), found.len() + 1, "{len}");
        }
        let kept = path.with_extension("damaged");
        assert!(!kept.exists(), "a torn end is no damage");
        for at in MAGIC.len()..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 0x10;
            std::fs::write(&path, &bad).expect("a damaged file");
            let (_, found) = Journal::open::<JournalRecord>(&path).expect("a journal");
            assert!(found.len() < records.len() && records.starts_with(&found), "{at}");
            let is_last = found.len() + 1 == records.len();
            assert_eq!(kept.exists(), !is_last, "{at}");
            if !is_last {
                assert!(std::fs::read(&kept).expect("kept") == bad, "{at}");
                std::fs::remove_file(&kept).expect("removed");
            }
        }
    }

    #[test]
    fn restart_replaces_the_journal() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("journal");
        let (mut journal, _) = Journal::open::<JournalRecord>(&path).expect("a journal");
        (1..100).for_each(|n| journal.append(&JournalRecord::Applied { seq: Seq(n) }));
        journal.restart(&[JournalRecord::Applied { seq: Seq(99) }]).expect("a new one");
        journal.append(&JournalRecord::GivenUp { seq: Seq(100) });
        let (_, found) = Journal::open::<JournalRecord>(&path).expect("a journal");
        assert_eq!(found.len(), 2);
    }
}
