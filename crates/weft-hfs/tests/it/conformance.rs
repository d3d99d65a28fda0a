//! The suite that every file system goes through, as far as HFS can.

use crate::volume::{assert_sound, empty, mount};
use std::cell::RefCell;
use std::sync::Arc;
use weft_block::MemoryDevice;
use weft_vfs::FileSystem;
use weft_vfs::conformance::{Limits, run_checked};

/// What the suite demands of every file system and HFS can do. The others need what it does not
/// have: links and special files, owners and modes, names of more than 31 bytes or of any byte,
/// access times, and attributes of any name; or count the subfolders of a folder.
const CASES: &[&str] = &["names::forbidden"];

fn limits() -> Limits {
    Limits {
        file_bytes: (1 << 31) - 1,
        time_unit_nanos: 1_000_000_000,
        seconds: -2_082_844_800..=2_212_122_495,
        holes: false,
        allocate: true,
        punch: false,
        special_files: false,
        exchange: false,
        xattr_bytes: 0,
        names: 300,
        long_bytes: 1 << 20,
        random_runs: 0,
        ..Limits::default()
    }
}

fn run(only: &str) {
    let device: RefCell<Option<Arc<MemoryDevice>>> = RefCell::new(None);
    run_checked(
        || {
            let new = empty(24 << 20);
            let fs = mount(&new);
            *device.borrow_mut() = Some(new);
            fs as Arc<dyn FileSystem>
        },
        || {
            if let Some(device) = device.borrow().as_ref() {
                assert_sound(&**device);
            }
            Ok(())
        },
        &Limits { only: Some(only.to_owned()), ..limits() },
    );
}

#[test]
fn as_far_as_hfs_can() {
    let failed: Vec<_> =
        CASES.iter().filter(|case| std::panic::catch_unwind(|| run(case)).is_err()).collect();
    assert!(failed.is_empty(), "{failed:?}");
}
