//! Round trips of the codec, and recovery of logs built, cut and damaged in memory.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use weft_block::{BlockDevice, MemoryDevice};

const BLOCK: usize = 1024;

fn all_features() -> Vec<Features> {
    let mut all = Vec::new();
    for bits64 in [0, Features::BITS64] {
        for csum in [0, Features::CSUM_V2, Features::CSUM_V3] {
            all.push(Features {
                compat: 0,
                incompat: Features::REVOKE | bits64 | csum,
                ro_compat: 0,
            });
        }
    }
    all.push(Features { compat: Features::COMPAT_CHECKSUM, ..Features::revoke() });
    all
}

fn any_features() -> impl Strategy<Value = Features> {
    prop::sample::select(all_features())
}

/// Returns a device that holds `bytes`.
fn memory(bytes: &[u8]) -> Arc<MemoryDevice> {
    let device = MemoryDevice::new(bytes.len() as u64);
    device.write_at(bytes, 0).unwrap();
    Arc::new(device)
}

fn content(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; usize::try_from(device.geometry().len_bytes).unwrap()];
    device.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Flips bits of the byte at `at`.
fn flip(device: &MemoryDevice, at: usize, bits: u8) {
    let mut byte = [0];
    device.read_at(&mut byte, at as u64).unwrap();
    device.write_at(&[byte[0] ^ bits], at as u64).unwrap();
}

/// Returns a log of `len` blocks in memory whose next transaction is `sequence`.
fn new_log(features: Features, len: u32, sequence: u32) -> (Arc<MemoryDevice>, Log) {
    let block = format_journal_superblock(&FormatOptions {
        block_bytes: BLOCK as u32,
        len_blocks: len,
        superblock_at: 0,
        uuid: [3; 16],
        features,
        users: vec![],
    })
    .unwrap();
    let mut bytes = vec![0; BLOCK * len as usize];
    bytes[..BLOCK].copy_from_slice(&block);
    let device = memory(&bytes);
    let mut log = Log::open(LogMap::sidecar(device.clone()).unwrap()).unwrap();
    log.update(|s| s.sequence = sequence).unwrap();
    (device, log)
}

type Blocks = Vec<(u64, Vec<u8>)>;

/// Appends a transaction at log block `at`; returns the block after its commit.
fn append(log: &Log, sequence: u32, at: u32, blocks: &Blocks, revoked: &[u64]) -> u32 {
    let format = log.format();
    let borrowed: Vec<(u64, &[u8])> = blocks.iter().map(|(n, b)| (*n, &b[..])).collect();
    let transaction = build_transaction(&format, sequence, &borrowed, revoked).unwrap();
    assert_eq!(
        transaction.blocks.len() + 1,
        log_blocks_needed(&format, blocks.len(), revoked.len())
    );
    let at = log.write_ring(at, &transaction.blocks).unwrap();
    let commit = commit_block(&format, sequence, transaction.crc, CommitTime::default());
    log.write_ring(at, &[commit]).unwrap()
}

fn replay(log: &Log) -> Result<(Recovery, BTreeMap<u64, Vec<u8>>)> {
    let mut out = BTreeMap::new();
    let recovery = log.recover(1 << 20, |nr, block: &[u8]| {
        assert!(out.insert(nr, block.to_vec()).is_none(), "block {nr} written twice");
        Ok::<(), Infallible>(())
    })?;
    Ok((recovery, out))
}

fn block_of(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK]
}

fn magic_block(byte: u8) -> Vec<u8> {
    let mut block = block_of(byte);
    block[..4].copy_from_slice(&MAGIC.to_be_bytes());
    block
}

fn any_block() -> impl Strategy<Value = Vec<u8>> {
    (any::<u8>(), any::<bool>())
        .prop_map(|(b, magic)| if magic { magic_block(b) } else { block_of(b) })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Committed transactions come back: last copy, revokes respected, with any features, any
    /// position in the ring and any sequence number.
    #[test]
    fn committed_transactions_come_back(
        features in any_features(),
        first_sequence in prop_oneof![Just(1_u32), Just(u32::MAX - 2), any::<u32>()],
        rotate in 0_u32..400,
        transactions in prop::collection::vec(
            (prop::collection::btree_map(0_u64..40, any_block(), 0..90),
             prop::collection::btree_set(0_u64..40, 0..10)), 1..6),
    ) {
        let (_, mut log) = new_log(features, 512, first_sequence);
        let start = log.superblock().advance(1, rotate);
        log.set_tail(first_sequence, start).unwrap();
        let (mut at, mut sequence) = (start, first_sequence);
        let mut want: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        for (blocks, revoked) in &transactions {
            let blocks: Blocks = blocks.clone().into_iter().collect();
            let revoked: Vec<u64> = revoked.iter().copied()
                .filter(|nr| !blocks.iter().any(|b| b.0 == *nr)).collect();
            at = append(&log, sequence, at, &blocks, &revoked);
            for nr in revoked { want.remove(&nr); }
            want.extend(blocks);
            sequence = sequence.wrapping_add(1);
        }
        let reopened = Log::open(log.map().clone()).unwrap();
        let (recovery, got) = replay(&reopened).unwrap();
        prop_assert_eq!(recovery.transactions as usize, transactions.len());
        prop_assert_eq!(recovery.next_sequence, sequence.wrapping_add(1));
        prop_assert_eq!(recovery.blocks_replayed, want.len() as u64);
        prop_assert!(got == want);
        // A second recovery, as after a crash in the first, has the same result.
        prop_assert!(replay(&reopened).unwrap().1 == want);
        log.reset(recovery.next_sequence).unwrap();
        prop_assert!(replay(&Log::open(log.map().clone()).unwrap()).unwrap().1.is_empty());
    }

    #[test]
    fn descriptor_round_trip(
        features in any_features(),
        numbers in prop::collection::vec((any::<u32>(), any::<u32>(), any::<bool>()), 1..40),
    ) {
        let high = |v: u32| if features.incompat & Features::BITS64 != 0 { u64::from(v) << 32 } else { 0 };
        let tags: Vec<_> = numbers.iter().take(descriptor::tags_per_block(features, BLOCK))
            .map(|&(low, top, escape)| descriptor::Tag {
                block: u64::from(low) | high(top),
                flags: if escape { descriptor::ESCAPE } else { 0 },
                checksum: descriptor::tag_checksum(features, top),
            }).collect();
        let block = descriptor::encode(features, &[9; 16], 5, &tags, BLOCK);
        prop_assert_eq!(Header::parse(&block),
            Some(Header { block_type: BlockType::Descriptor, sequence: 5 }));
        prop_assert!(descriptor::tail_fits(&block, features, &[9; 16]));
        let back: Vec<_> = descriptor::tags(&block, features)
            .map(|tag| descriptor::Tag { flags: tag.flags & descriptor::ESCAPE, ..tag }).collect();
        prop_assert_eq!(back, tags);
    }

    #[test]
    fn revoke_round_trip(features in any_features(), numbers in prop::collection::vec(any::<u32>(), 0..120)) {
        let numbers: Vec<u64> = numbers.into_iter().map(u64::from).collect();
        let block = revoke::encode(features, &[9; 16], 5, &numbers, BLOCK);
        prop_assert!(descriptor::tail_fits(&block, features, &[9; 16]));
        let back: Vec<u64> = revoke::records(&block, features).unwrap().collect();
        prop_assert_eq!(back, numbers);
    }

    #[test]
    fn superblock_round_trip(features in any_features(), len in 2_u32.., sequence: u32, errno: i32, users in 0_usize..48) {
        let superblock = Superblock {
            version2: true, block_bytes: 4096, len_blocks: len, first: 1, sequence,
            start: len / 2, errno, features, uuid: [7; 16], users: vec![[1; 16]; users],
        };
        let mut raw = vec![0; 1024];
        superblock.encode(&mut raw).unwrap();
        prop_assert_eq!(Superblock::parse(&raw).unwrap(), superblock);
    }

    /// Any bytes: a value or an error.
    #[test]
    fn codec_survives_any_bytes(raw in prop::collection::vec(any::<u8>(), 0..1100), typ in 0_u32..7) {
        crate::jbd2::tests::decode_everything(&raw);
        let mut raw = raw;
        if raw.len() >= 12 {
            raw[..4].copy_from_slice(&MAGIC.to_be_bytes());
            raw[4..8].copy_from_slice(&typ.to_be_bytes());
            decode_everything(&raw);
        }
    }

    /// A log with random damage never makes recovery panic, hang, or write outside the volume.
    #[test]
    fn damaged_logs_are_survived(
        features in any_features(),
        hits in prop::collection::vec((0_usize..64 * BLOCK, any::<u8>()), 1..40),
    ) {
        let (device, mut log) = new_log(features, 64, 7);
        log.set_tail(7, 50).unwrap();
        let mut at = 50;
        for i in 0..5_u8 {
            at = append(&log, 7 + u32::from(i), at,
                &vec![(u64::from(i), block_of(i)), (30, magic_block(i))], &[40]);
        }
        for (offset, byte) in hits {
            device.write_at(&[byte], offset as u64).unwrap();
        }
        if let Ok(log) = Log::open(log.map().clone()) {
            let _ = log.recover_before_damage(64, |nr, _| {
                assert!(nr < 64);
                Ok::<(), Infallible>(())
            });
        }
    }
}

/// Decodes bytes as the fuzz target does.
fn decode_everything(raw: &[u8]) {
    let _ = Header::parse(raw);
    let _ = Superblock::parse(raw);
    for features in all_features() {
        let _ = descriptor::tags(raw, features).count();
        let _ = revoke::records(raw, features).map(Iterator::count);
        let _ = descriptor::tail_fits(raw, features, &[0; 16]);
        let _ = commit::fits(raw, features, &[0; 16], 0);
        let _ = commit::time(raw);
    }
}

/// Returns a log with three transactions, each of which writes block 1 anew, from log block 1 on.
fn three_transactions(features: Features) -> (Arc<MemoryDevice>, Log, [u32; 4]) {
    let (device, mut log) = new_log(features, 64, 10);
    log.set_tail(10, 1).unwrap();
    let mut starts = [1; 4];
    for i in 0..3_u8 {
        let next = starts[usize::from(i)];
        starts[usize::from(i) + 1] = append(
            &log,
            10 + u32::from(i),
            next,
            &vec![(1, block_of(i)), (u64::from(i) + 10, magic_block(i))],
            &[60],
        );
    }
    (device, log, starts)
}

fn damage_block(device: &MemoryDevice, log_block: u32) {
    let at = log_block as usize * BLOCK;
    // After the header, and in the checksummed part of every kind of block.
    flip(device, at + 20, 0x40);
}

#[test]
fn a_transaction_cut_anywhere_is_ignored() {
    for features in all_features() {
        let (device, log, starts) = three_transactions(features);
        let whole = content(&device);
        for cut in starts[2]..starts[3] {
            // The blocks from `cut` on never reached the disk; those before it did.
            let mut bytes = whole.clone();
            bytes[cut as usize * BLOCK..].fill(0);
            device.write_at(&bytes, 0).unwrap();
            let (recovery, got) = replay(&log).unwrap();
            assert_eq!(recovery.transactions, 2, "{features:?}, cut at {cut}");
            assert_eq!(recovery.next_sequence, 13);
            assert_eq!(got[&1], block_of(1));
            assert!(!got.contains_key(&12));
        }
        // All but the commit block, with the blocks before it in any state.
        for lost in starts[2]..starts[3] - 1 {
            let mut bytes = whole.clone();
            for gone in [lost, starts[3] - 1] {
                bytes[gone as usize * BLOCK..][..BLOCK].fill(0xa5);
            }
            device.write_at(&bytes, 0).unwrap();
            assert_eq!(replay(&log).unwrap().0.transactions, 2, "{features:?}, lost {lost}");
        }
    }
}

#[test]
fn damage_before_the_end_is_named_and_nothing_is_written() {
    for features in all_features() {
        let (device, log, starts) = three_transactions(features);
        let whole = content(&device);
        // A destroyed header is noticed whatever the features.
        for log_block in [starts[1], starts[2] - 1] {
            device.write_at(&whole, 0).unwrap();
            flip(&device, log_block as usize * BLOCK, 1);
            let error = replay(&log).unwrap_err();
            let Error::Damaged(damage) = error else { panic!("{error}") };
            assert_eq!((damage.sequence, damage.log_block), (11, log_block), "{features:?}");
        }
        if !features.csum() {
            continue;
        }
        for log_block in starts[1]..starts[2] {
            device.write_at(&whole, 0).unwrap();
            damage_block(&device, log_block);
            let mut written = 0;
            let error = log
                .recover(1 << 20, |_, _: &[u8]| {
                    written += 1;
                    Ok::<(), Infallible>(())
                })
                .unwrap_err();
            assert!(matches!(error, Error::Damaged(_)), "{features:?}, {log_block}: {error}");
            assert_eq!(written, 0);
            let mut last = Vec::new();
            let recovery = log
                .recover_before_damage(1 << 20, |nr, block: &[u8]| {
                    if nr == 1 {
                        last = block.to_vec();
                    }
                    Ok::<(), Infallible>(())
                })
                .unwrap();
            assert_eq!(recovery.transactions, 1);
            assert_eq!(last, block_of(0));
            assert!(is_after(recovery.next_sequence, 13), "stale transactions must not come alive");
        }
    }
}

#[test]
fn old_transaction_checksum_is_checked() {
    let features = Features { compat: Features::COMPAT_CHECKSUM, ..Features::revoke() };
    let (device, log, starts) = three_transactions(features);
    damage_block(&device, starts[1] + 2);
    assert!(matches!(replay(&log), Err(Error::Damaged(damage)) if damage.sequence == 11));
}

#[test]
fn a_target_outside_the_volume_is_refused() {
    let (_, mut log) = new_log(Features::revoke(), 64, 1);
    log.set_tail(1, 1).unwrap();
    append(&log, 1, 1, &vec![(5, block_of(1)), (100, block_of(2))], &[]);
    let result = log.recover(100, |_, _: &[u8]| -> Result<(), Infallible> { panic!("written") });
    assert!(matches!(result, Err(Error::Damaged(_))), "{result:?}");
    assert!(log.recover(101, |_, _: &[u8]| Ok::<(), Infallible>(())).is_ok());
}

#[test]
fn write_errors_name_the_block() {
    let (_, mut log) = new_log(Features::revoke(), 64, 1);
    log.set_tail(1, 1).unwrap();
    append(&log, 1, 1, &vec![(5, block_of(1))], &[]);
    let result = log.recover(100, |_, _: &[u8]| Err("medium error"));
    assert!(matches!(result, Err(Error::Replay { block: 5, .. })), "{result:?}");
}

#[test]
fn writing_and_revoking_a_block_in_one_transaction_is_refused() {
    let format = new_log(Features::revoke(), 64, 1).1.format();
    let block = block_of(1);
    assert!(build_transaction(&format, 1, &[(7, &block)], &[7]).is_err());
    assert!(build_transaction(&format, 1, &[(1 << 40, &block)], &[]).is_err());
    assert!(build_transaction(&format, 1, &[(7, &block[..100])], &[]).is_err());
    let plain = Format { features: Features::default(), ..format };
    assert!(build_transaction(&plain, 1, &[], &[7]).is_err());
}

#[test]
fn absurd_superblocks_are_refused() {
    let (device, log, _) = three_transactions(Features::revoke());
    let whole = content(&device);
    let cases: [(u64, u32); 9] = [
        (0x00, 1),
        (0x04, 1),
        (0x0c, 1023),
        (0x0c, 4096),
        (0x10, 65),
        (0x14, 0),
        (0x14, 64),
        (0x1c, 64),
        (0x28, 0x8000_0001),
    ];
    for (offset, value) in cases {
        device.write_at(&whole, 0).unwrap();
        device.write_at(&value.to_be_bytes(), offset).unwrap();
        assert!(Log::open(log.map().clone()).is_err(), "{value:#x} at {offset:#x}");
    }
}

#[test]
fn a_log_of_descriptors_without_end_is_left() {
    let (_, mut log) = new_log(Features::revoke(), 64, 1);
    log.set_tail(1, 1).unwrap();
    let revoke = revoke::encode(Features::revoke(), &[3; 16], 1, &[], BLOCK);
    log.write_ring(1, &vec![revoke; 63]).unwrap();
    assert_eq!(replay(&log).unwrap().0.transactions, 0);
}

#[test]
fn a_fragmented_log_is_followed() {
    let device = memory(&[0; 100 * BLOCK]);
    let blocks: Vec<u64> = (0..40).map(|i| if i % 3 == 0 { 10 + i } else { 99 - i }).collect();
    let map = LogMap::from_blocks(device.clone(), BLOCK as u32, &blocks).unwrap();
    let written: Vec<Vec<u8>> = (0..40_u8).map(block_of).collect();
    map.write(0, &written).unwrap();
    let bytes = content(&device);
    for (i, block) in blocks.iter().enumerate() {
        let at = usize::try_from(*block).unwrap() * BLOCK;
        assert_eq!(bytes[at..at + BLOCK], written[i]);
    }
    assert!(map.locate(40).is_err());
    assert!(LogMap::from_blocks(device, BLOCK as u32, &[1, 2, 100]).is_err());
}
