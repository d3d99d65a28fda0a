//! Random operations between snapshots of the file system in memory.

use super::Limits;
use super::compare::picture;
use super::operations::{Side, random_operation};
use super::seeded::Random;
use crate::{MemFs, Result};

/// A snapshot is the tree of its moment whatever happens later, restoring it brings that back, and
/// what is restored goes on like any file system.
#[test]
fn restoring_brings_the_former_tree_back() -> Result<()> {
    let limits = Limits::default();
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let fs = MemFs::new();
        let mut taken = Vec::new();
        for _ in 0..8 {
            // Files that are open at the time of a restoring are stale: another side each time.
            let mut side = Side::new(&fs, &limits);
            for _ in 0..random.below(60) {
                // Refused operations are part of it.
                let _ = side.apply(&random_operation(&mut random, &limits));
            }
            side.close_all()?;
            let seen = picture(&fs, true, &limits)?;
            let snapshot = fs.snapshot();
            taken.push((snapshot.hash(), snapshot, seen));
            if random.below(2) == 0 {
                continue;
            }
            let (hash, snapshot, seen) = &taken[random.below(taken.len())];
            let restored = fs.restore(snapshot);
            assert_eq!((restored.unnamed, restored.dropped_names), (0, 0), "seed {seed}");
            let now = picture(&fs, true, &limits)?;
            assert_eq!(now.difference(seen), None, "seed {seed}");
            assert_eq!(fs.snapshot().hash(), *hash, "seed {seed}");
        }
        let free =
            |fs: &MemFs| crate::FileSystem::statfs(fs).map(|s| (s.blocks_free, s.inodes_free));
        for (hash, snapshot, seen) in &taken {
            assert_eq!(snapshot.hash(), *hash, "seed {seed}");
            let other = MemFs::new();
            other.restore(snapshot);
            assert_eq!(picture(&other, true, &limits)?.difference(seen), None, "seed {seed}");
            fs.restore(snapshot);
            assert_eq!(free(&fs)?, free(&other)?, "seed {seed}");
        }
    }
    Ok(())
}

/// The random comparison of a file system that was restored from a snapshot before.
#[test]
fn a_restored_file_system_conforms() {
    let limits = Limits { random_runs: 3, ..Limits::default() };
    let make = || -> std::sync::Arc<dyn crate::FileSystem> {
        let fs = MemFs::new();
        let empty = fs.snapshot();
        for _ in 0..3 {
            let walker = crate::Walker::new(&fs);
            walker.write_file(b"/file", b"content", 0o644).expect("write");
            walker.mkdir(b"/dir", 0o755).expect("mkdir");
            fs.restore(&empty);
        }
        std::sync::Arc::new(fs)
    };
    super::run(make, &limits);
}
