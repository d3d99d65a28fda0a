//! Counts that were promised, as regression tests: unlike times they come out the same everywhere.

use std::sync::Arc;
use weft::block::{BlockDevice, MemoryDevice};
use weft::ext2::mkfs::{MkfsOptions, mkfs};
use weft::patch::{Counters, JournalMode, Options as Engine, Policy};
use weft::vfs::Walker;
use weft::{Options, Order, Stack};

/// An ext3 volume of 256 MiB in memory.
fn device() -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let options = MkfsOptions {
        block_bytes: Some(4096),
        inode_bytes: Some(128),
        uuid: Some([1; 16]),
        time: Some(1_700_000_000),
        ..MkfsOptions::ext3()
    };
    mkfs(&*device, &options).expect("a volume is made");
    device
}

/// Opens it without a background thread: only syncs write.
fn open(device: Arc<MemoryDevice>, policy: Policy, engine: &Engine) -> Stack {
    let engine = Engine { background: false, ..engine.clone() };
    let options = Options { order: Some(Order(policy)), engine, ..Options::default() };
    Stack::open_device("memory", device as Arc<dyn BlockDevice>, &options).expect("it opens")
}

/// What `work` and the sync after it cost.
fn counted(stack: &Stack, work: impl FnOnce(&Walker<'_>)) -> Counters {
    let before = stack.counters();
    work(&Walker::new(stack.fs()));
    stack.fs().sync().expect("a sync");
    let mut c = stack.counters();
    c.blocks_written -= before.blocks_written;
    c.log_blocks_written -= before.log_blocks_written;
    c.patches -= before.patches;
    c.undo_bytes -= before.undo_bytes;
    c.flushes -= before.flushes;
    c
}

fn create_100(walker: &Walker<'_>) {
    for i in 0..100 {
        let path = format!("/dir/file-{i:03}");
        walker.write_file(path.as_bytes(), &[0x5a; 2048], 0o644).expect("a file");
    }
}

fn replace_one(walker: &Walker<'_>) {
    walker.remove(b"/dir/file-050").expect("it was there");
    walker.write_file(b"/dir/another", &[0xa5; 2048], 0o644).expect("a file");
}

#[test]
fn small_changes_write_few_blocks() {
    for (policy, create_most, replace_most) in [
        (Policy::Soft, 122, 15),
        (Policy::Async, 122, 15),
        (Policy::Journal(JournalMode::Full), 245, 31),
    ] {
        let device = device();
        // All that a mount writes until its end, when everything is in place.
        let blocks = |work: fn(&Walker<'_>)| {
            let stack = open(Arc::clone(&device), policy, &Engine::default());
            work(&Walker::new(stack.fs()));
            stack.fs().sync().expect("a sync");
            stack.fs().unmount().expect("it unmounts");
            let c = stack.counters();
            c.blocks_written + c.log_blocks_written
        };
        blocks(|walker| drop(walker.mkdir(b"/dir", 0o755).expect("a directory")));
        let idle = blocks(|_| ());
        for (what, most, work) in [
            ("100 creates", create_most, create_100 as fn(&Walker<'_>)),
            ("remove and add", replace_most, replace_one),
        ] {
            let blocks = blocks(work) - idle;
            println!("{policy:?}: {what}: {blocks} blocks");
            assert!(blocks <= most, "{policy:?}: {what}: {blocks} blocks, promised {most}");
        }
    }
}

/// A tree as sources have it: many small files, some larger, in directories of some dozen.
fn tree(walker: &Walker<'_>) {
    for dir in 0..40 {
        let dir = format!("/tree-{dir:02}");
        drop(walker.mkdir(dir.as_bytes(), 0o755).expect("a directory"));
        for i in 0..40_usize {
            let path = format!("{dir}/file-{i:02}.c");
            let len = 700 + 977 * (i % 37);
            drop(walker.write_file(path.as_bytes(), &vec![b'x'; len], 0o644).expect("a file"));
        }
    }
}

fn remove_tree(walker: &Walker<'_>) {
    for dir in 0..40 {
        let dir = format!("/tree-{dir:02}");
        walker.remove_tree(dir.as_bytes(), &mut |_| {}).expect("it was there");
    }
}

#[test]
fn hard_patches_and_merging_save_what_they_are_for() {
    let run = |hard_patches, merge| {
        let engine = Engine { hard_patches, merge, ..Engine::default() };
        let stack = open(device(), Policy::Soft, &engine);
        let costs = (counted(&stack, tree), counted(&stack, remove_tree));
        stack.close().expect("it closes");
        costs
    };
    let (none, none_rm) = run(false, false);
    let (both, both_rm) = run(true, true);
    for (what, now, then) in [
        ("untar, patches", both.patches, none.patches),
        ("untar, undo bytes", both.undo_bytes, none.undo_bytes),
        ("rm, patches", both_rm.patches, none_rm.patches),
        ("rm, undo bytes", both_rm.undo_bytes, none_rm.undo_bytes),
    ] {
        println!("{what}: {now} of {then}");
    }
    // One patch for each block written is the least there can be: data blocks share none.
    assert!(both.patches * 20 <= both.blocks_written * 21, "a patch for each block: {both:?}");
    assert!(both.patches * 100 <= none.patches * 40, "60% fewer patches: {both:?}");
    assert!(both.undo_bytes * 1000 <= none.undo_bytes, "99.9% less undo data: {both:?}");
    assert!(both_rm.patches * 100 <= none_rm.patches * 5, "95% fewer patches: {both_rm:?}");
}

#[test]
fn flushes_follow_the_depth_of_the_graph_and_not_the_number_of_files() {
    let stack = open(device(), Policy::Soft, &Engine::default());
    counted(&stack, |walker| drop(walker.mkdir(b"/dir", 0o755).expect("a directory")));
    let few = counted(&stack, |walker| {
        drop(walker.write_file(b"/dir/first", b"x", 0o644).expect("a file"));
    });
    let many = counted(&stack, create_100);
    assert!(
        many.flushes <= few.flushes + 2,
        "{} for 1 file, {} for 100",
        few.flushes,
        many.flushes
    );
}
