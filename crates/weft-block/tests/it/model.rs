//! Random requests to a device and to a `Vec<u8>` must have the same results.

use proptest::prelude::*;
use std::io::IoSlice;
use std::sync::Arc;
use weft_block::{
    BlockDevice, CrashDevice, Error, Event, Fault, FaultDevice, FileDevice, Image, LogReader,
    LogWriter, MemoryDevice, Partition, PartitionInfo, PartitionType, Recorder, Request, Rule,
    replay,
};

/// No multiple of a sector, so that the last one is a short one.
const LEN: usize = 40_000 + 100;

#[derive(Debug, Clone)]
enum Op {
    Read(u64, usize),
    Write(u64, Vec<u8>),
    Vectored(u64, Vec<Vec<u8>>),
    Zeroes(u64, u64),
    Flush,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let at = || prop_oneof![0..LEN as u64 + 600, Just(LEN as u64), Just(u64::MAX)];
    let data = || (any::<u8>(), 0..5000_usize).prop_map(|(b, n)| vec![b; n]);
    let op = prop_oneof![
        2 => (at(), 0..9000_usize).prop_map(|(at, n)| Op::Read(at, n)),
        4 => (at(), data()).prop_map(|(at, d)| Op::Write(at, d)),
        2 => (at(), prop::collection::vec(data(), 0..5)).prop_map(|(at, d)| Op::Vectored(at, d)),
        1 => (at(), 0..20_000_u64).prop_map(|(at, n)| Op::Zeroes(at, n)),
        1 => Just(Op::Flush),
    ];
    prop::collection::vec(op, 1..40)
}

/// Applies an operation to both; returns whether it was in range.
fn apply(op: &Op, device: &dyn BlockDevice, model: &mut [u8]) -> Result<(), TestCaseError> {
    let fits = |at: u64, n: usize| at.checked_add(n as u64).is_some_and(|e| e <= LEN as u64);
    let (at, bytes, result) = match op {
        Op::Read(at, n) => {
            let mut got = vec![0xa5; *n];
            let result = device.read_at(&mut got, *at);
            if fits(*at, *n) {
                prop_assert_eq!(&got[..], &model[*at as usize..*at as usize + n]);
            }
            prop_assert_eq!(result.is_ok(), fits(*at, *n));
            return Ok(());
        }
        Op::Flush => {
            prop_assert!(device.flush().is_ok());
            return Ok(());
        }
        Op::Write(at, data) => (*at, data.clone(), device.write_at(data, *at)),
        Op::Vectored(at, parts) => {
            let slices: Vec<IoSlice<'_>> = parts.iter().map(|p| IoSlice::new(p)).collect();
            (*at, parts.concat(), device.write_vectored_at(&slices, *at))
        }
        Op::Zeroes(at, n) => (*at, vec![0; *n as usize], device.write_zeroes(*at, *n)),
    };
    if fits(at, bytes.len()) {
        prop_assert!(result.is_ok(), "{result:?}");
        model[at as usize..at as usize + bytes.len()].copy_from_slice(&bytes);
    } else {
        prop_assert!(matches!(result, Err(Error::OutOfRange { .. })), "{result:?}");
    }
    Ok(())
}

fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut all = vec![0; device.geometry().len_bytes as usize];
    device.read_at(&mut all, 0).unwrap();
    all
}

fn check(device: &dyn BlockDevice, ops: &[Op]) -> Result<Vec<u8>, TestCaseError> {
    prop_assert_eq!(device.geometry().len_bytes, LEN as u64);
    let mut model = vec![0; LEN];
    for op in ops {
        apply(op, device, &mut model)?;
    }
    prop_assert_eq!(&content(device), &model);
    Ok(model)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_image_file_behaves(ops in ops()) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.img");
        let model = check(&FileDevice::create(&path, LEN as u64).unwrap(), &ops)?;
        prop_assert_eq!(std::fs::read(&path).unwrap(), model);
    }

    #[test]
    fn memory_behaves_and_snapshots_do_not_change(ops in ops(), cut in 0..40_usize) {
        let device = MemoryDevice::new(LEN as u64);
        let mut model = vec![0; LEN];
        let mut snapshot = (Image::new(LEN as u64), model.clone());
        for (i, op) in ops.iter().enumerate() {
            if i == cut {
                snapshot = (device.snapshot(), model.clone());
            }
            apply(op, &device, &mut model)?;
        }
        prop_assert_eq!(content(&device), &model[..]);
        let apart = device.snapshot().pages_apart(&snapshot.0);
        for (number, (old, new)) in snapshot.1.chunks(4096).zip(model.chunks(4096)).enumerate() {
            prop_assert!(old == new || apart.contains(&(number as u64)));
        }
        prop_assert_eq!(content(&MemoryDevice::from_image(snapshot.0)), snapshot.1);
    }

    #[test]
    fn a_partition_behaves(ops in ops()) {
        let info = PartitionInfo {
            number: 1,
            start_bytes: 512,
            len_bytes: LEN as u64,
            kind: PartitionType::Mbr(0x83),
            id: None,
            name: String::new(),
        };
        let disk = Arc::new(MemoryDevice::new(LEN as u64 + 1024));
        disk.write_at(&[1; 512], 0).unwrap();
        disk.write_at(&[2; 512], LEN as u64 + 512).unwrap();
        check(&Partition::new(Arc::clone(&disk), &info).unwrap(), &ops)?;
        let all = content(&disk);
        prop_assert!(all[..512] == [1; 512] && all[LEN + 512..] == [2; 512]);
    }

    #[test]
    fn faults_that_do_not_fire_change_nothing(ops in ops()) {
        let device = FaultDevice::new(MemoryDevice::new(LEN as u64));
        device.add(Rule::nth(Request::Any, 10_000, Fault::EIO));
        check(&device, &ops)?;
    }

    #[test]
    fn a_recording_replays_to_the_same_content(ops in ops()) {
        let device = Recorder::new(MemoryDevice::new(LEN as u64));
        let model = check(&device, &ops)?;
        let events = device.events();
        let copy = MemoryDevice::new(LEN as u64);
        replay(&events, &copy).unwrap();
        prop_assert_eq!(content(&copy), model);
        for (i, event) in events.iter().enumerate() {
            if let Event::Flush { covers } = event {
                prop_assert_eq!(*covers, i, "one thread: everything before it had completed");
            }
        }
    }

    #[test]
    fn a_log_on_disk_replays_to_the_same_content(ops in ops()) {
        // The format knows whole sectors only.
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let device = Recorder::to_log(
            MemoryDevice::new(1 << 16),
            std::fs::File::create(&path).unwrap(),
        ).unwrap();
        for op in &ops {
            match op {
                Op::Write(at, data) if *at < 1 << 15 => {
                    let n = data.len() / 512 * 512;
                    device.write_at(&data[..n], at / 512 * 512).unwrap();
                }
                Op::Flush => device.flush().unwrap(),
                _ => device.mark("here").unwrap(),
            }
        }
        device.finish().unwrap();
        let log = LogReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        let events = log.read_all().unwrap();
        let copy = MemoryDevice::new(1 << 16);
        replay(&events, &copy).unwrap();
        prop_assert_eq!(content(&copy), content(device.inner()));
        let mut again = LogWriter::new(std::fs::File::create(dir.path().join("again")).unwrap())
            .unwrap();
        events.iter().for_each(|e| again.append(e).unwrap());
        again.finish().unwrap();
        prop_assert!(std::fs::read(&path).unwrap() == std::fs::read(dir.path().join("again")).unwrap());
    }

    /// Whatever is left after a crash: flushed bytes are there, and each other sector is either as
    /// it was at the last flush or as one of the writes since left it in the cache.
    #[test]
    fn every_crash_is_explainable(ops in ops(), seed: u64, capacity in prop_oneof![Just(usize::MAX), 0..20_000_usize]) {
        let device = CrashDevice::with_capacity(MemoryDevice::new(LEN as u64), seed, capacity);
        let mut model = vec![0; LEN];
        let mut versions: Vec<Vec<u8>> = vec![model.clone()];
        for op in &ops {
            apply(op, &device, &mut model)?;
            if matches!(op, Op::Flush) {
                versions.clear();
            }
            versions.push(model.clone());
        }
        prop_assert_eq!(content(&device), &model[..]);
        device.crash().unwrap();
        prop_assert!(device.flush().is_err());
        device.power_on();
        let left = content(&device);
        for (i, sector) in left.chunks(512).enumerate() {
            let at = i * 512;
            let known = versions.iter().any(|v| v[at..at + sector.len()] == *sector);
            prop_assert!(known, "sector {i} holds what was never there");
        }
    }
}
