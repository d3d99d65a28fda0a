//! The suite that every file system goes through, with the features that HFS lacks declared.

use crate::volume::{assert_sound, empty, mount, quiet};
use std::cell::RefCell;
use std::sync::Arc;
use weft_block::{BlockDevice, MemoryDevice};
use weft_hfs::view::{ForkView, Forks};
use weft_hfs::{Hfs, OpenOptions};
use weft_patch::{JournalMode, Options, Policy};
use weft_vfs::conformance::{Limits, run_checked};
use weft_vfs::{Caller, FileSystem, OpenFlags};

/// Names of 31 bytes of MacRoman in no case, one name for each file, no links, owners or modes
/// beyond a lock, one time that changes, ids and a catalog that only grow, two forks in place of
/// attributes of any name.
fn limits() -> Limits {
    Limits {
        name_bytes: 31,
        any_name_bytes: false,
        hard_links: false,
        symlinks: false,
        owners_and_modes: false,
        own_times: false,
        reuses_inodes: false,
        names_give_back_space: false,
        counts_subdirectories: false,
        special_files: false,
        exchange: false,
        holes: false,
        punch: false,
        xattr_bytes: 0,
        special_attributes: false,
        file_bytes: (1 << 31) - 1,
        time_unit_nanos: 1_000_000_000,
        seconds: -2_082_844_800..=2_212_122_495,
        sets_ctime: false,
        fill: true,
        names: 300,
        long_bytes: 1 << 20,
        random_runs: 4,
        ..Limits::default()
    }
}

fn conforms(policy: Policy) {
    conforms_with(policy, Options::default().clean_cache_bytes);
}

fn conforms_with(policy: Policy, clean_cache_bytes: usize) {
    let device: RefCell<Option<Arc<MemoryDevice>>> = RefCell::new(None);
    run_checked(
        || {
            let new = empty(6 << 20);
            let fs = match policy {
                Policy::Journal(_) => {
                    let engine = Options {
                        policy,
                        background: false,
                        clean_cache_bytes,
                        ..Options::default()
                    };
                    let journal: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(4 << 20));
                    let options = OpenOptions { engine, journal: Some(journal), ..quiet() };
                    Hfs::open(Arc::clone(&new) as Arc<dyn BlockDevice>, options).unwrap()
                }
                _ => {
                    let mut options = quiet();
                    options.engine.clean_cache_bytes = clean_cache_bytes;
                    Hfs::open(Arc::clone(&new) as Arc<dyn BlockDevice>, options).unwrap()
                }
            };
            *device.borrow_mut() = Some(new);
            fs as Arc<dyn FileSystem>
        },
        || {
            if let Some(device) = device.borrow().as_ref() {
                assert_sound(&**device);
            }
            Ok(())
        },
        &limits(),
    );
}

#[test]
fn by_ordered_writes() {
    conforms(Policy::Soft);
}

/// A cache of 16 blocks: nearly every operation is tried again, and not always with success.
#[test]
fn with_hardly_any_cache() {
    for policy in [Policy::Soft, Policy::Journal(JournalMode::Ordered)] {
        conforms_with(policy, 0);
    }
}

#[test]
fn with_a_journal() {
    conforms(Policy::Journal(JournalMode::Ordered));
}

/// Names that the view gives to forks are its own; all others are those of the volume.
#[test]
fn through_the_views_of_forks() {
    for forks in [Forks::AppleDouble, Forks::Suffix] {
        let device: RefCell<Option<Arc<MemoryDevice>>> = RefCell::new(None);
        run_checked(
            || {
                let new = empty(6 << 20);
                let fs = mount(&new);
                *device.borrow_mut() = Some(new);
                Arc::new(ForkView::new(fs, forks)) as Arc<dyn FileSystem>
            },
            || {
                if let Some(device) = device.borrow().as_ref() {
                    assert_sound(&**device);
                }
                Ok(())
            },
            &limits(),
        );
    }
}

#[test]
fn an_unmount_ends_files_that_are_open_and_gone() {
    for policy in [Policy::Soft, Policy::Journal(JournalMode::Ordered)] {
        let journaled = matches!(policy, Policy::Journal(_));
        let engine = Options { policy, background: false, ..Options::default() };
        let journal: Arc<dyn BlockDevice> = Arc::new(MemoryDevice::new(4 << 20));
        let options = OpenOptions { engine, journal: journaled.then_some(journal), ..quiet() };
        let device = empty(5 << 20);
        let fs = Hfs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options).unwrap();
        let free = fs.statfs().unwrap().blocks_free;
        let flags = OpenFlags::WRITE | OpenFlags::READ;
        for n in 0..40_u8 {
            let name = [b'f', n + b'0'];
            let made = fs.create(&Caller::ROOT, fs.root(), &name, 0o644, flags).unwrap();
            let (ino, handle) = (made.0.attr.ino, made.1.handle);
            // Allocation blocks of 512 bytes: all of it goes through the log.
            fs.write(&Caller::ROOT, ino, handle, 0, &[n; 50_000]).unwrap();
        }
        fs.sync().unwrap();
        for n in 0..40_u8 {
            fs.unlink(&Caller::ROOT, fs.root(), &[b'f', n + b'0']).unwrap();
        }
        assert!(fs.statfs().unwrap().blocks_free < free, "they are held");
        fs.unmount().unwrap();
        assert_sound(&*device);
        assert_eq!(mount(&device).statfs().unwrap().blocks_free, free);
    }
}
