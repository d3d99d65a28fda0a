//! Tables made by hand, whole and hurt.

use super::*;
use crate::MemoryDevice;

fn put_entry(device: &MemoryDevice, sector: u64, slot: u64, kind: u8, start: u32, len: u32) {
    let mut entry = [0; 16];
    entry[4] = kind;
    entry[8..12].copy_from_slice(&start.to_le_bytes());
    entry[12..].copy_from_slice(&len.to_le_bytes());
    device.write_at(&entry, sector * 512 + 446 + slot * 16).unwrap();
    device.write_at(&[0x55, 0xaa], sector * 512 + 510).unwrap();
}

/// Primary 1, extended with logical 5 and 6.
fn mbr_disk() -> MemoryDevice {
    let device = MemoryDevice::new(1 << 20);
    put_entry(&device, 0, 0, 0x83, 64, 100);
    put_entry(&device, 0, 2, 0x05, 1000, 500);
    put_entry(&device, 1000, 0, 0x83, 10, 50);
    put_entry(&device, 1000, 1, 0x05, 200, 100);
    put_entry(&device, 1200, 0, 0x82, 5, 60);
    device
}

fn numbers(table: &PartitionTable) -> Vec<(u32, u64, u64)> {
    let sector = u64::from(table.sector_bytes);
    let row = |p: &PartitionInfo| (p.number, p.start_bytes / sector, p.len_bytes / sector);
    table.partitions.iter().map(row).collect()
}

#[test]
fn primary_and_logical_partitions_are_numbered_as_linux_does() {
    let table = list_partitions(&mbr_disk()).unwrap();
    assert_eq!(table.scheme, Scheme::Mbr);
    assert_eq!(numbers(&table), [(1, 64, 100), (5, 1010, 50), (6, 1205, 60)]);
    assert_eq!(table.partitions[2].kind, PartitionType::Mbr(0x82));
}

#[test]
fn a_circle_of_logical_partitions_is_an_error() {
    let device = mbr_disk();
    put_entry(&device, 1200, 1, 0x05, 0, 100);
    let e = list_partitions(&device).unwrap_err().to_string();
    assert!(e.contains("circle"), "{e}");
    put_entry(&device, 1200, 1, 0x05, u32::MAX, 100);
    let e = list_partitions(&device).unwrap_err().to_string();
    assert!(e.contains("past the end"), "{e}");
}

fn put_gpt(device: &MemoryDevice, sector: u64, lba: u64, other: u64, array: u64, entries: &[u8]) {
    let mut header = vec![0; 92];
    header[..8].copy_from_slice(b"EFI PART");
    header[8..12].copy_from_slice(&0x10000_u32.to_le_bytes());
    header[12..16].copy_from_slice(&92_u32.to_le_bytes());
    for (at, n) in [(24, lba), (32, other), (40, 34), (48, 2000), (72, array)] {
        header[at..at + 8].copy_from_slice(&n.to_le_bytes());
    }
    header[80..84].copy_from_slice(&(entries.len() as u32 / 128).to_le_bytes());
    header[84..88].copy_from_slice(&128_u32.to_le_bytes());
    header[88..92].copy_from_slice(&crc32fast::hash(entries).to_le_bytes());
    let sum = crc32fast::hash(&header);
    header[16..20].copy_from_slice(&sum.to_le_bytes());
    device.write_at(entries, array * sector).unwrap();
    device.write_at(&header, lba * sector).unwrap();
}

fn gpt_disk(sector: u64) -> MemoryDevice {
    let sectors = 2048;
    let device = MemoryDevice::new(sectors * sector);
    put_entry(&device, 0, 0, 0xee, 1, u32::MAX);
    let mut entries = vec![0; 128 * 128];
    entries[128..144].fill(7);
    entries[144..160].copy_from_slice(&std::array::from_fn::<u8, 16, _>(|i| i as u8));
    entries[160..168].copy_from_slice(&100_u64.to_le_bytes());
    entries[168..176].copy_from_slice(&299_u64.to_le_bytes());
    for (i, c) in "data é".encode_utf16().enumerate() {
        entries[184 + 2 * i..186 + 2 * i].copy_from_slice(&c.to_le_bytes());
    }
    put_gpt(&device, sector, 1, sectors - 1, 2, &entries);
    put_gpt(&device, sector, sectors - 1, 1, sectors - 40, &entries);
    device
}

#[test]
fn both_sector_sizes_and_the_backup_are_read() {
    for sector in [512, 4096] {
        let device = gpt_disk(sector);
        let table = list_partitions(&device).unwrap();
        assert_eq!((table.scheme, table.from_backup), (Scheme::Gpt, false));
        assert_eq!(numbers(&table), [(2, 100, 200)]);
        assert_eq!(table.partitions[0].name, "data é");
        let id = table.partitions[0].id.unwrap().to_string();
        assert_eq!(id, "03020100-0504-0706-0809-0a0b0c0d0e0f");
        // A bad header, and a bad entry behind a good header.
        for at in [sector + 50, 2 * sector + 3] {
            let device = gpt_disk(sector);
            device.write_at(&[0x99], at).unwrap();
            let table = list_partitions(&device).unwrap();
            assert!(table.from_backup && numbers(&table) == [(2, 100, 200)], "{table:?}");
        }
        device.write_at(&[0; 4096], sector).unwrap();
        device.write_zeroes(2047 * sector, sector).unwrap();
        assert!(matches!(list_partitions(&device), Err(Error::Corrupt { .. })));
    }
}

#[test]
fn a_partition_is_a_window_and_nothing_outside_it_is_touched() {
    let device = gpt_disk(512);
    let before = device.snapshot();
    let part = Partition::open(&device, 2).unwrap();
    assert_eq!(part.geometry().len_bytes, 200 * 512);
    part.write_at(&[5; 512], 199 * 512).unwrap();
    assert!(matches!(part.write_at(&[5; 513], 199 * 512), Err(Error::OutOfRange { .. })));
    assert!(part.write_zeroes(u64::MAX, 1).is_err());
    let mut byte = [0];
    device.read_at(&mut byte, 299 * 512).unwrap();
    assert_eq!(byte, [5]);
    assert_eq!(device.snapshot().pages_apart(&before), [299 * 512 / 4096]);
    let e = Partition::open(&device, 1).unwrap_err().to_string();
    assert!(e.contains("there is: 2"), "{e}");
}

#[test]
fn a_partition_past_the_end_is_listed_but_not_opened() {
    let device = mbr_disk();
    put_entry(&device, 0, 1, 0x83, 2000, 1000);
    assert_eq!(list_partitions(&device).unwrap().partitions.len(), 4);
    let e = Partition::open(&device, 2).unwrap_err().to_string();
    assert!(e.contains("cut short"), "{e}");
    assert!(Partition::open(&device, 1).is_ok());
}
