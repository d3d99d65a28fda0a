//! Foreign data, mutated: errors are fine, panics and endless loops are not.

use proptest::prelude::*;
use std::io::Cursor;
use weft_block::{BlockDevice, LogReader, LogWriter, MemoryDevice, Partition, list_partitions};

/// A few numbers that parsers like least.
fn nasty() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 1..16),
        Just(vec![0xff; 8]),
        Just(vec![0; 8]),
        Just(vec![0xff, 0xff, 0xff, 0x7f]),
        Just(vec![0x05, 0, 0, 0, 1, 0, 0, 0]),
    ]
}

fn list(device: &MemoryDevice) {
    if let Ok(table) = list_partitions(device) {
        assert!(table.partitions.len() <= 4096);
        for info in &table.partitions {
            if let Ok(part) = Partition::new(device, info) {
                let end = part.geometry().len_bytes;
                assert!(part.read_at(&mut [0], end).is_err());
                if end > 0 {
                    part.read_at(&mut [0], end - 1).unwrap();
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn partition_tables(
        len in prop_oneof![Just(0_u64), 1..3000_u64, Just(1 << 20)],
        gpt: bool,
        spots in prop::collection::vec((0..6000_u64, nasty()), 0..30),
    ) {
        let device = MemoryDevice::new(len);
        let put = |bytes: &[u8], at: u64| {
            let _ = device.write_at(bytes, at);
        };
        if gpt {
            put(b"EFI PART", 512);
            put(&[0xee], 450);
        } else {
            for slot in 0..4 {
                put(&[0, 0, 0, 0, 5 + 0x7e * (slot % 2), 0, 0, 0, 1, 0, 0, 0, 9], 446 + u64::from(slot) * 16);
            }
        }
        for (at, bytes) in &spots {
            put(bytes, *at);
        }
        for sector in 0..12 {
            put(&[0x55, 0xaa], sector * 512 + 510);
        }
        list(&device);
    }

    #[test]
    fn logs(spots in prop::collection::vec((0..4000_usize, nasty()), 1..8)) {
        let mut log = LogWriter::new(Cursor::new(Vec::new())).unwrap();
        log.finish().unwrap();
        let mut bytes = vec![0; 4096];
        bytes[..8].copy_from_slice(&weft_block::LOG_MAGIC.to_le_bytes());
        bytes[8] = 1;
        bytes[16] = 9;
        bytes[25] = 2;
        for (at, spot) in &spots {
            let n = spot.len().min(bytes.len() - at);
            bytes[*at..at + n].copy_from_slice(&spot[..n]);
        }
        let _ = LogReader::new(Cursor::new(bytes)).and_then(LogReader::read_all);
    }
}
