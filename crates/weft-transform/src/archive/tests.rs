//! The reads that listing an archive takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::store::MemoryStore;

/// The number of calls, and of bytes.
#[derive(Default)]
struct Counts(AtomicU64, AtomicU64);

struct Counted(MemoryStore, Arc<Counts>);

impl Store for Counted {
    fn len_bytes(&mut self) -> Result<Option<u64>> {
        self.0.len_bytes()
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let got = self.0.read_at(offset, buf)?;
        self.1.0.fetch_add(1, Ordering::Relaxed);
        self.1.1.fetch_add(got as u64, Ordering::Relaxed);
        Ok(got)
    }
}

fn tarred(count: usize, len: usize) -> Vec<u8> {
    let mut tar = ::tar::Builder::new(Vec::new());
    for nr in 0..count {
        let mut header = ::tar::Header::new_gnu();
        header.set_size(len as u64);
        header.set_mode(0o644);
        let data = vec![nr as u8; len];
        tar.append_data(&mut header, format!("d/{nr:06}"), &data[..]).expect("added");
    }
    tar.into_inner().expect("a tar")
}

/// Lists an archive, and returns the number of calls and of bytes that it took.
fn listed(stored: Vec<u8>, files: usize) -> (u64, u64) {
    let counts = Arc::<Counts>::default();
    let store = Box::new(Counted(MemoryStore::new(stored), counts.clone()));
    let archive = Archive::open(store).expect("an archive").expect("an archive");
    let d = archive.child(0, b"d").expect("listed");
    assert_eq!(archive.children(d, 0).count(), files);
    (counts.0.load(Ordering::Relaxed), counts.1.load(Ordering::Relaxed))
}

#[test]
fn small_members_are_listed_in_large_reads() {
    let stored = tarred(20_000, 50);
    let len = stored.len() as u64;
    let (calls, bytes) = listed(stored, 20_000);
    assert!(calls <= len / (100 << 10) + 20, "{calls} calls for {len} bytes");
    assert!(bytes <= len + (len >> 4), "{bytes} bytes of {len}");
}

#[test]
fn of_large_members_little_more_than_the_headers_is_read() {
    let (calls, bytes) = listed(tarred(100, 300_000), 100);
    assert!(calls <= 220 && bytes <= 100 * (4 << 10), "{calls} calls, {bytes} bytes");
}

/// An unreadable block beyond a header does not prevent the listing.
#[test]
fn a_member_that_cannot_be_read_is_listed() {
    struct Bad(MemoryStore);
    impl Store for Bad {
        fn len_bytes(&mut self) -> Result<Option<u64>> {
            self.0.len_bytes()
        }

        fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<usize> {
            let bad = 5 * 3584 + 600;
            if (offset..offset + buf.len() as u64).contains(&bad) {
                return Err(corrupt(bad, "a bad block"));
            }
            self.0.read_at(offset, buf)
        }
    }
    // Each member takes a header and 3072 bytes.
    let bad = Bad(MemoryStore::new(tarred(40, 3000)));
    let mut archive = Archive::open(Box::new(bad)).expect("an archive").expect("an archive");
    let d = archive.child(0, b"d").expect("listed");
    let files: Vec<usize> = archive.children(d, 0).map(|(nr, _)| nr).collect();
    assert_eq!(files.len(), 40);
    for (nr, file) in files.into_iter().enumerate() {
        let read = archive.read(file, 0, &mut [0; 3000]);
        assert_eq!(read.is_ok(), nr != 5, "file {nr}: {read:?}");
    }
}
