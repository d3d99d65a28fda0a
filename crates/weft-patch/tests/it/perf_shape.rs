//! Counts that show that the optimisations do what they are for.

use std::sync::Arc;
use weft_block::MemoryDevice;
use weft_patch::{BlockNr, Engine, Options, Owner};

fn engine(options: &Options) -> Arc<Engine> {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Engine::new(device, 4096, Options { background: false, ..options.clone() }).unwrap()
}

/// 1000 "files": bitmap bit, data, inode after both, name after inode.
fn create_files(engine: &Engine) {
    for i in 0..1000_u64 {
        let mut op = engine.begin(4).unwrap();
        let (word, bit) = ((i / 32) as usize * 4, 1 << (i % 32));
        let mapped = op.flip(BlockNr(1), word, bit, &[]).unwrap();
        let data =
            op.write_data(BlockNr(1000 + i), Owner(i + 1), 0, &[3; 4096], true, &[]).unwrap();
        let (inode, at) = (BlockNr(10 + i / 16), (i % 16) as usize * 256);
        let made = op.write(inode, at, &[1; 256], &[mapped, data]).unwrap();
        op.write(BlockNr(200 + i / 200), (i % 200) as usize * 20, &[2; 4], &[made]).unwrap();
    }
    engine.sync().unwrap();
}

#[test]
fn a_file_costs_one_patch_of_its_own_and_no_undo_data() {
    let engine = engine(&Options::default());
    create_files(&engine);
    let c = engine.counters();
    assert_eq!(c.undo_bytes, 0, "{c:?}");
    assert!(c.patches <= 1000 + 1 + 63 + 5, "{c:?}");
    assert_eq!(c.blocks_written, 1000 + 1 + 63 + 5, "{c:?}");
    assert_eq!(c.flushes, 3, "as deep as the graph: data and bitmap, inodes, names: {c:?}");
}

#[test]
fn without_optimisations_every_change_is_a_patch() {
    let engine = engine(&Options { hard_patches: false, merge: false, ..Options::default() });
    create_files(&engine);
    let c = engine.counters();
    assert_eq!(c.patches, 4000);
    assert_eq!(c.undo_bytes, 1000 * (4 + 4096 + 256 + 4));
    assert_eq!(c.undo_bytes_now, 0);
}

/// Names and their inodes come and go in two blocks, which makes patches again and again that wait
/// for those before them.
fn come_and_go(engine: &Engine, changes: u32) {
    let (names, inodes) = (BlockNr(1), BlockNr(2));
    let mut cleared = weft_patch::PatchId::DURABLE;
    for i in 0..changes {
        let mut op = engine.begin(2).unwrap();
        let at = (i % 50) as usize * 20;
        let made = op.write(inodes, at, &(i + 1).to_le_bytes(), &[cleared]).unwrap();
        let around = [at..at + 8, 2000..2400];
        let named =
            op.write_relying(names, at + 4, &(i + 1).to_le_bytes(), &around, &[made]).unwrap();
        cleared = op.write_relying(names, at, &i.to_le_bytes(), &around, &[named]).unwrap();
    }
}

#[test]
fn dependencies_of_a_busy_block_grow_with_its_changes_and_no_faster() {
    let engine = engine(&Options { block_patches_max: u32::MAX, ..Options::default() });
    let changes = 10_000;
    come_and_go(&engine, changes);
    let c = engine.counters();
    assert!(c.patches_now >= u64::from(changes), "the block must be busy: {c:?}");
    assert!(c.dependencies_now < 4 * c.patches_now + 128 * 128, "{c:?}");
    engine.sync().unwrap();
    assert_eq!(engine.counters().dependencies_now, 0);
}

/// A sync takes a flush for each change that waits for the one before.
#[test]
fn a_sync_waits_for_so_many_changes_of_a_busy_block_and_no_more() {
    for background in [false, true] {
        let device = Arc::new(MemoryDevice::new(64 << 20));
        let limits = Options { background, block_patches_max: 256, ..Options::default() };
        let engine = Engine::new(device, 4096, limits).unwrap();
        come_and_go(&engine, 5000);
        let c = engine.counters();
        assert!(c.patches_now <= 2 * 256 + 3, "{c:?}");
        assert!(c.flushes > 5000 / 256, "{c:?}");
        engine.sync().unwrap();
        assert!(engine.counters().flushes - c.flushes <= 2 * 256 + 3, "{c:?}");
    }
}

#[test]
fn freed_before_written_is_never_written() {
    let engine = engine(&Options::default());
    let mut op = engine.begin(4).unwrap();
    let data = op.write_data(BlockNr(100), Owner(5), 0, &[3; 4096], true, &[]).unwrap();
    let pointer = op.write(BlockNr(3), 0, &[100, 0, 0, 0], &[data]).unwrap();
    let cleared = op.write(BlockNr(3), 0, &[0; 4], &[]).unwrap();
    assert_eq!(pointer, cleared, "made and removed in one patch");
    op.free(BlockNr(100), cleared);
    drop(op);
    engine.sync().unwrap();
    let c = engine.counters();
    assert_eq!((c.cancelled, c.blocks_written), (1, 1), "{c:?}");
}

#[test]
fn what_somebody_else_waits_for_is_not_cancelled() {
    let engine = engine(&Options::default());
    let mut op = engine.begin(4).unwrap();
    let data = op.write_data(BlockNr(100), Owner(5), 0, &[3; 4096], true, &[]).unwrap();
    op.write(BlockNr(3), 0, &[100, 0, 0, 0], &[data]).unwrap();
    op.free(BlockNr(100), weft_patch::PatchId::DURABLE);
    drop(op);
    engine.sync().unwrap();
    assert_eq!(engine.counters().blocks_written, 2);
}

#[test]
fn a_sync_of_one_owner_leaves_the_others_alone() {
    let engine = engine(&Options::default());
    let mut op = engine.begin(4).unwrap();
    for i in 0..100 {
        op.write_data(BlockNr(100 + i), Owner(1 + i % 2), 0, &[3; 4096], true, &[]).unwrap();
    }
    drop(op);
    engine.sync_owner(Owner(2), &[]).unwrap();
    let c = engine.counters();
    assert_eq!((c.blocks_written, c.dirty_blocks_now, c.flushes), (50, 50, 1), "{c:?}");
}
