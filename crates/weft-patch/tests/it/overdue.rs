//! A block that changes all the time gets to the disk all the same.

use crate::device::Inspected;
use std::sync::{Arc, Mutex, Weak, mpsc};
use std::time::Duration;
use weft_patch::{BlockNr, Engine, Options};

const BLOCK: usize = 4096;
const DIR: BlockNr = BlockNr(0);

/// Makes an "inode" of its own and an entry for it in the directory block, which must follow it.
fn create(engine: &Engine, number: u32) {
    let mut op = engine.begin(2).unwrap();
    let inode_block = BlockNr(1 + u64::from(number) % 100);
    let bytes = number.to_le_bytes();
    let inode = op.write(inode_block, (number as usize / 100 * 4) % BLOCK, &bytes, &[]).unwrap();
    op.write(DIR, (number as usize * 4) % BLOCK, &bytes, &[inode]).unwrap();
}

#[test]
fn a_directory_that_is_never_ready_is_written_in_the_end() {
    // With each flush another entry is made, so whenever write-back looks the directory waits for
    // an inode. Without an end to that no entry would ever be durable.
    let engine: Arc<Mutex<Weak<Engine>>> = Arc::default();
    let (written, seen) = mpsc::channel();
    let creator = Arc::clone(&engine);
    let numbers = Mutex::new(1);
    let device = Inspected::new(
        101 * BLOCK,
        Box::new(move |_, writes| {
            if writes.iter().any(|(offset, _)| *offset == 0) {
                let _ = written.send(());
            }
            let engine = creator.lock().unwrap().upgrade();
            if let Some(engine) = engine {
                let mut number = numbers.lock().unwrap();
                *number += 1;
                create(&engine, *number);
            }
        }),
    );
    let options = Options {
        max_age: Duration::from_millis(100),
        background_bytes: 0, // so that it never rests
        ..Options::default()
    };
    let opened = Arc::new(Engine::new(Arc::new(device), BLOCK as u32, options).unwrap());
    // Read everything once: the hook runs within a flush, when the device cannot be read.
    for nr in 0..101 {
        opened.begin(0).unwrap().read(BlockNr(nr)).unwrap();
    }
    *engine.lock().unwrap() = Arc::downgrade(&opened);
    create(&opened, 1);
    seen.recv_timeout(Duration::from_secs(60)).expect("the directory is written while it changes");
    *engine.lock().unwrap() = Weak::new();
    opened.shutdown().unwrap();
}
