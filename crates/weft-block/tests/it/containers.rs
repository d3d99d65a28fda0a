//! Images in all their wrappings: what is inside comes out, what is written goes in, what lies is
//! refused; and other people's tools make and read the same.

use crate::wrap::{self, disk_copy_sum, volume};
use proptest::prelude::*;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use weft_block::container::{Layer, Opened, Options, open};
use weft_block::{BlockDevice, Error, Image, MemoryDevice, Result, list_partitions};

fn device(bytes: &[u8]) -> Arc<dyn BlockDevice> {
    let mut image = Image::new(bytes.len() as u64);
    image.write(bytes, 0).unwrap();
    Arc::new(MemoryDevice::from_image(image))
}

fn content(device: &dyn BlockDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().len_bytes as usize];
    device.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn opened(bytes: &[u8]) -> Opened {
    open(device(bytes), &Options::default()).unwrap()
}

fn names(opened: &Opened) -> Vec<String> {
    opened.layers.iter().map(ToString::to_string).collect()
}

/// Same bytes, also when they are read in pieces that end anywhere.
#[track_caller]
fn assert_same(device: &dyn BlockDevice, expected: &[u8]) {
    assert!(content(device) == expected, "the content differs");
    let mut at = 0;
    for step in (1..).map(|n| n * 7919 % 70_001 + 1) {
        let n = step.min(expected.len() - at);
        let mut piece = vec![0; n];
        device.read_at(&mut piece, at as u64).unwrap();
        assert!(piece == expected[at..at + n], "{n} bytes at {at} differ");
        at += n;
        if at == expected.len() {
            break;
        }
    }
    assert!(matches!(device.read_at(&mut [0], at as u64), Err(Error::OutOfRange { .. })));
}

#[test]
fn an_image_in_nothing_is_left_alone() {
    let plain = volume(50_000);
    let result = opened(&plain);
    assert!(result.layers.is_empty());
    assert_same(&*result.device, &plain);
    for odd in [&[][..], &[0], &[0; 1024], &[0xff; 4096]] {
        assert!(opened(odd).layers.is_empty());
    }
}

#[test]
fn files_around_an_image_are_taken_off_and_written_through() {
    let image = volume(409_600);
    for version in 1..=3 {
        let file = device(&wrap::macbinary(version, &image, b"resources"));
        let result = open(Arc::clone(&file), &Options::default()).unwrap();
        assert_eq!(result.layers, [Layer::MacBinary { version }]);
        assert_same(&*result.device, &image);
        result.device.write_at(b"changed", 5000).unwrap();
        let mut changed = [0; 7];
        file.read_at(&mut changed, 128 + 5000).unwrap();
        assert_eq!(&changed, b"changed");
    }
    let single = opened(&wrap::apple(Some(&image), b"resources"));
    assert_eq!(single.layers, [Layer::AppleSingle]);
    assert_same(&*single.device, &image);
}

#[test]
fn two_img_is_read_and_written_in_place() {
    let image = volume(819_200);
    let wrapped = |order: u32, blocks: u32, len: u32| {
        let mut head = b"2IMGWeFt\x40\0\x01\0".to_vec();
        for number in [order, 0, blocks, 64, len] {
            head.extend(number.to_le_bytes());
        }
        head.resize(64, 0);
        [&head[..], &image].concat()
    };
    for (blocks, len) in [(1600, 819_200), (1600, 0), (0, 819_200)] {
        let file = device(&wrapped(1, blocks, len));
        let result = open(Arc::clone(&file), &Options::default()).unwrap();
        assert_eq!(names(&result), ["2IMG"]);
        assert_same(&*result.device, &image);
        result.device.write_at(b"changed", 5000).unwrap();
        assert_eq!(content(&*file)[5064..5071], *b"changed");
    }
    // Another order, and a length that there is not.
    for (order, blocks, len) in [(0, 1600, 819_200), (2, 1600, 819_200), (1, 1601, 0), (1, 0, 0)] {
        assert!(opened(&wrapped(order, blocks, len)).layers.is_empty());
    }
}

#[test]
fn disk_copy_keeps_its_checksums_when_it_is_written() {
    let image = volume(819_200);
    let tags: Vec<u8> = (0..1600 * 12).map(|i| (i * 37) as u8).collect();
    let file = device(&wrap::disk_copy(&image, &tags));
    let result = open(Arc::clone(&file), &Options::default()).unwrap();
    assert_eq!(names(&result), ["DiskCopy 4.2 \"My Disk\", with tags"]);
    assert_same(&*result.device, &image);

    result.device.write_at(&[9; 3000], 700_000).unwrap();
    let stale = open(Arc::clone(&file), &Options::default()).unwrap();
    assert_eq!(names(&stale), ["DiskCopy 4.2 \"My Disk\", with tags, checksum wrong"]);
    result.device.flush().unwrap();
    let now = content(&*file);
    let mut expected = image;
    expected[700_000..703_000].fill(9);
    assert!(now[84..84 + 819_200] == expected && now[84 + 819_200..] == tags);
    assert_eq!(now[72..76], disk_copy_sum(&expected).to_be_bytes());
    assert_eq!(names(&opened(&now)), ["DiskCopy 4.2 \"My Disk\", with tags"]);

    let vectored = [std::io::IoSlice::new(&[1; 600]), std::io::IoSlice::new(&[2; 10])];
    result.device.write_vectored_at(&vectored, 0).unwrap();
    result.device.write_zeroes(600, 5).unwrap();
    result.device.discard(100_000, 512).unwrap();
    result.device.flush().unwrap();
    assert!(!names(&opened(&content(&*file)))[0].contains("wrong"));

    // Tags of half of the blocks.
    let half = opened(&wrap::disk_copy(&volume(819_200), &tags[..9600]));
    assert_eq!(names(&half), ["DiskCopy 4.2 \"My Disk\", with tags"]);
    assert_same(&*half.device, &volume(819_200));
    for odd in [11, 1600 * 12 + 12] {
        assert!(opened(&wrap::disk_copy(&volume(819_200), &vec![1; odd])).layers.is_empty());
    }

    // A header that lies is no header.
    let mut lies = now;
    lies[64] = 0x7f;
    assert!(opened(&lies).layers.is_empty());
}

#[test]
fn partition_maps_are_read_whatever_they_say() {
    const HFS: &str = "Apple_HFS";
    let map = "Apple_partition_map";
    let with = |entries: &[(&str, u32, u32)]| {
        let mut disk = wrap::apple_map(1 << 20, entries);
        disk[50 * 512..50 * 512 + 51_200].copy_from_slice(&volume(51_200));
        disk
    };
    let usual =
        with(&[(map, 1, 63), ("Apple_Driver43", 30, 10), (HFS, 50, 100), ("Apple_Free", 150, 20)]);
    let result = opened(&usual);
    assert_eq!(names(&result), ["Apple partition 3 \"name\" (Apple_HFS)"]);
    assert_same(&*result.device, &volume(51_200));
    assert_eq!(list_partitions(&*device(&usual)).unwrap().partitions.len(), 4);
    let driver = Options { partition: Some(2), ..Options::default() };
    assert_eq!(open(device(&usual), &driver).unwrap().device.geometry().len_bytes, 5120);
    let absent = Options { partition: Some(9), ..Options::default() };
    assert!(matches!(open(device(&usual), &absent), Err(Error::Invalid(_))));
    assert!(matches!(open(device(&volume(5000)), &absent), Err(Error::Invalid(_))));

    // In any order and letters, without length, without descriptor, past the end.
    let length = |disk: &[u8]| opened(disk).device.geometry().len_bytes;
    assert_eq!(length(&with(&[("APPLE_HFS", 50, 100), (map, 1, 63)])), 51_200);
    assert_eq!(length(&with(&[("Apple_Free", 150, 9), (map, 1, 63), (HFS, 50, 0)])), 51_200);
    assert_eq!(length(&with(&[(HFS, 50, 0)])), (1 << 20) - 25_600);
    let long = with(&[(HFS, 50, 1 << 31), ("Apple_Free", 1 << 31, 7)]);
    assert_eq!(length(&long), (1 << 20) - 25_600);
    assert!(names(&opened(&long))[0].ends_with("cut short"));
    let mut bare = with(&[(HFS, 50, 100)]);
    bare[..4].fill(0);
    assert_eq!(length(&bare), 51_200);

    let two = open(device(&with(&[(HFS, 50, 10), (HFS, 60, 10)])), &Options::default());
    assert!(two.unwrap_err().to_string().contains("1 \"name\", 2 \"name\""));
    let outside = open(device(&with(&[(HFS, 5000, 10)])), &Options::default());
    assert!(matches!(outside, Err(Error::Corrupt { .. })));
    assert!(opened(&with(&[(map, 1, 63)])).layers.is_empty());
}

#[test]
fn the_map_of_the_macintosh_plus_ends_at_a_zero() {
    let mut disk = vec![0; 1 << 20];
    disk[512..526].copy_from_slice(b"TS\0\0\0\x22\0\0\0\x64TFS1");
    // What follows is no part of it, as on the disc that it was seen on.
    disk[530..545].copy_from_slice(b"DVer\0\x03\0\x02d into ");
    disk[0x22 * 512..][..51_200].copy_from_slice(&volume(51_200));
    let result = opened(&disk);
    assert_eq!(names(&result), ["old Apple partition 1 \"\" (TFS1)"]);
    assert_same(&*result.device, &volume(51_200));
}

#[test]
fn ndif_is_read_with_its_resource_fork_wherever_that_is() {
    let image = volume(500_224);
    let (data, resource) = wrap::ndif(&image);
    let beside = |fork: &[u8]| {
        let options = Options { resource_fork: Some(device(fork)), ..Options::default() };
        open(device(&data), &options).unwrap()
    };
    let in_double = wrap::apple(None, &resource);
    let results = [
        beside(&resource),
        beside(&in_double),
        opened(&wrap::macbinary(2, &data, &resource)),
        opened(&wrap::apple(Some(&data), &resource)),
    ];
    for result in results {
        assert_eq!(names(&result).last().unwrap(), "NDIF \"ndif\", 62 chunks");
        assert_same(&*result.device, &image);
        assert!(result.device.geometry().read_only);
        assert!(matches!(result.device.write_at(&[1], 0), Err(Error::ReadOnly)));
    }
    // A fork without the resource changes nothing.
    let other = wrap::resource_fork(b"vers", &[(1, b"1.0")]);
    assert!(beside(&other).layers.is_empty());
}

#[test]
fn a_chunk_of_an_unknown_kind_hides_only_itself() {
    let image = volume(100 * 512);
    let (data, mut resource) = wrap::ndif(&image);
    // The kind of the second chunk, in the map behind 256 bytes of header and a length.
    resource[256 + 4 + 128 + 12 + 3] = 0x80;
    let options = Options { resource_fork: Some(device(&resource)), ..Options::default() };
    let result = open(device(&data), &options).unwrap();
    let mut first = vec![0; 16 * 512];
    result.device.read_at(&mut first, 0).unwrap();
    assert!(first == image[..16 * 512]);
    let refused = result.device.read_at(&mut [0], 16 * 512);
    assert!(matches!(refused, Err(Error::Unsupported { .. })), "{refused:?}");
    result.device.read_at(&mut first, 32 * 512).unwrap();
}

type Pack = fn(&[u8]) -> Vec<u8>;

const PACKINGS: [(u32, &str, Pack); 6] = [
    (1, "raw", <[u8]>::to_vec),
    (0x8000_0004, "ADC", wrap::adc),
    (0x8000_0005, "zlib", |bytes| {
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }),
    (0x8000_0006, "bzip2", |bytes| {
        let mut packed = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::best());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }),
    (0x8000_0007, "LZFSE", |bytes| {
        let mut packed = Vec::new();
        lzfse_rust::encode_bytes(bytes, &mut packed).unwrap();
        packed
    }),
    (0x8000_0008, "LZMA", |bytes| {
        let options = lzma_rust2::XzOptions::with_preset(0);
        let mut packed = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    }),
];

#[test]
fn udif_is_read_in_every_packing() {
    let image = volume(1_000_448);
    for (kind, name, pack) in PACKINGS {
        for old in [false, true] {
            let result = opened(&wrap::udif(&image, kind, old, &pack));
            assert_eq!(result.layers, [Layer::Udif { chunks: 31, intact: true }], "{name}");
            assert_same(&*result.device, &image);
            assert!(result.has_checksums());
            assert!(result.verify().is_empty(), "{name}: {:?}", result.verify());
        }
    }
}

#[test]
fn checksums_of_udif_say_what_is_damaged() {
    // Not less than two tables, and zeroes in both.
    let mut image = volume(1_000_448);
    image[100 * 512..300 * 512].fill(0);
    let good = wrap::udif(&image, 1, true, &<[u8]>::to_vec);
    assert!(opened(&good).verify().is_empty(), "{:?}", opened(&good).verify());
    let said = |at: usize| {
        let mut bytes = good.clone();
        bytes[at] ^= 1;
        let result = opened(&bytes);
        let wrong = result.verify().iter().map(ToString::to_string).collect::<Vec<_>>();
        (names(&result)[0].contains("checksum wrong"), wrong.join("; "))
    };
    // Content of the second table: the fork's checksum and that table's.
    let data_len = good.len() - 512 - 2048;
    let mut sectors = good.windows(512);
    let stored = sectors.rposition(|w| w == &image[1100 * 512..1101 * 512]).unwrap();
    assert!(stored < data_len);
    let (at_open, all) = said(stored);
    assert!(!at_open && all.contains("data fork") && all.contains("block table 1"), "{all}");
    assert!(!all.contains("block table 0") && !all.contains("trailer"), "{all}");
    // A table's checksum: that table's, and that of all, which is seen without unpacking.
    let table = good.windows(4).position(|w| w == b"mish").unwrap();
    let (at_open, all) = said(table + 64 + 11);
    assert!(at_open && all.contains("block table 0") && all.contains("UDIF trailer"), "{all}");
    assert!(!all.contains("data fork"), "{all}");
    // That of the data fork by itself.
    let (at_open, all) = said(good.len() - 512 + 88);
    assert!(!at_open && all.contains("UDIF data fork") && !all.contains("table"), "{all}");
    // A type that is not known is not looked at.
    let mut bytes = good.clone();
    let trailer = good.len() - 512;
    bytes[trailer + 83] = 9;
    assert!(opened(&bytes).verify().is_empty());
}

#[test]
fn compressions_nobody_has_described_are_named() {
    let image = volume(409_600);
    // Whether there is a volume in the image cannot be seen without it.
    let dmg = wrap::udif(&image, 0x8000_0001, false, &<[u8]>::to_vec);
    let error = open(device(&dmg), &Options::default()).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("KenCode"), "{error}");
    let (data, resource) = wrap::ndif(&image);
    // Chunks of ADC as KenCode's.
    let map = resource.windows(5).position(|w| w == b"\x04ndif").unwrap() - 4;
    let mut fork = resource.clone();
    for entry in fork[map + 128..].chunks_exact_mut(12) {
        if entry[3] == 0x83 {
            entry[3] = 0x80;
        }
    }
    let options = Options { resource_fork: Some(device(&fork)), ..Options::default() };
    let ndif = open(device(&data), &options).unwrap();
    let at = 16 * 512;
    let error = ndif.device.read_at(&mut [0; 512], at).unwrap_err();
    assert!(matches!(error, Error::Unsupported { offset, .. } if offset == at), "{error}");
    assert!(error.to_string().contains("KenCode"), "{error}");
}

#[test]
fn a_packed_chunk_that_lies_is_an_error_and_takes_no_memory() {
    let image = volume(1_000_448);
    let (kind, _, pack) = PACKINGS[2];
    let good = wrap::udif(&image, kind, true, &pack);
    let table = good.windows(4).position(|w| w == b"mish").unwrap();
    let first = table + 204;
    let hurt = |at: usize, value: u64| {
        let mut bytes = good.clone();
        bytes[first + at..first + at + 8].copy_from_slice(&value.to_be_bytes());
        open(device(&bytes), &Options::default())
            .and_then(|opened| opened.device.read_at(&mut [0; 512], 0))
    };
    assert!(hurt(16, 64).is_ok());
    // More sectors than any packer puts in a chunk; than there are; packed bytes outside the file.
    for (at, value) in [
        (16, 1 << 30),
        (16, u64::MAX / 512),
        (16, 65),
        (24, 1 << 40),
        (24, u64::MAX),
        (32, 1 << 33),
    ] {
        let result = hurt(at, value);
        assert!(matches!(result, Err(Error::Corrupt { .. })), "{at} {value}: {result:?}");
    }
    // A stream that ends early or goes wrong.
    for at in [0, 40] {
        let mut bytes = good.clone();
        bytes[at..at + 4].fill(0xa5);
        let result = open(device(&bytes), &Options::default());
        assert!(matches!(result, Err(Error::Corrupt { .. })), "{result:?}");
    }
}

#[test]
fn wrappings_stack() {
    let image = volume(409_600);
    let copy = wrap::disk_copy(&image, &[]);
    let file = device(&wrap::macbinary(2, &copy, b"resources"));
    let result = open(Arc::clone(&file), &Options::default()).unwrap();
    assert_eq!(names(&result), ["MacBinary II", "DiskCopy 4.2 \"My Disk\""]);
    result.device.write_at(&[5; 100], 9999).unwrap();
    result.device.flush().unwrap();
    let again = open(file, &Options::default()).unwrap();
    assert_eq!(names(&again), ["MacBinary II", "DiskCopy 4.2 \"My Disk\""]);

    let mut disk = wrap::apple_map(700_416, &[("Apple_HFS", 64, 800)]);
    disk[64 * 512..64 * 512 + 409_600].copy_from_slice(&image);
    let (kind, _, pack) = PACKINGS[2];
    let result = opened(&wrap::macbinary(3, &wrap::udif(&disk, kind, false, &pack), &[]));
    assert_eq!(result.layers.len(), 3);
    assert_same(&*result.device, &image);
    // Without end, somebody would never come back.
    let mut deep = image;
    for _ in 0..20 {
        deep = wrap::macbinary(3, &deep, &[]);
    }
    assert_eq!(opened(&deep).layers.len(), 8);
}

/// Reads what can be read, after all kinds of harm.
fn torment(bytes: &[u8], fork: Option<&[u8]>) -> Result<()> {
    let options = Options { resource_fork: fork.map(device), ..Options::default() };
    let opened = open(device(bytes), &options)?;
    let _ = opened.verify();
    let len = opened.device.geometry().len_bytes;
    let mut buffer = vec![0; 4096];
    for at in [0, 1024, len / 2, len.saturating_sub(4096)] {
        let n = (len - at.min(len)).min(4096) as usize;
        let _ = opened.device.read_at(&mut buffer[..n], at);
    }
    let _ = opened.device.flush();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn harmed_containers_are_errors(
        which in 0..12_usize,
        harm in prop::collection::vec((any::<prop::sample::Index>(), prop_oneof![Just(0), Just(0xff), any::<u8>()], any::<bool>()), 1..8),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let image = volume(40_960);
        let (data, resource) = wrap::ndif(&image);
        let mut bytes = match which {
            0 => wrap::macbinary(1, &image, b"r"),
            1 => wrap::macbinary(2, &data, &resource),
            2 => wrap::apple(Some(&data), &resource),
            3 => wrap::disk_copy(&image, &[1; 960]),
            4 => wrap::apple_map(1 << 16, &[("Apple_HFS", 10, 50), ("Apple_Free", 60, 50)]),
            5 => data.clone(),
            i => {
                let (kind, _, pack) = PACKINGS[i - 6];
                wrap::udif(&image, kind, i % 2 == 0, &pack)
            }
        };
        let mut fork = resource;
        for (at, byte, near) in &harm {
            // Half of it where the headers are: at the beginning or in the trailer.
            let len = bytes.len();
            let at = match (which, near) {
                (5, _) => {
                    let at = at.index(fork.len());
                    fork[at] = *byte;
                    continue;
                }
                (6.., true) => len - 1 - at.index(len.min(6000)),
                (_, true) => at.index(len.min(700)),
                (_, false) => at.index(len),
            };
            bytes[at] = *byte;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        let _ = torment(&bytes, (which == 5).then_some(&fork));
    }
}

// ---- other people's tools ----

fn have(tools: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    for tool in tools {
        if !std::env::split_paths(&path).any(|dir| dir.join(tool).is_file()) {
            println!("skipped: {tool} is not installed");
            return false;
        }
    }
    true
}

fn run(dir: &Path, name: &str, arguments: &[&str]) {
    let out =
        Command::new(name).args(arguments).current_dir(dir).env("HOME", dir).output().unwrap();
    assert!(
        out.status.success(),
        "{name} {arguments:?}: {}{}",
        String::from_utf8_lossy(&out.stdout),
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn others_read_the_images_that_the_tests_pack() {
    let image = volume(1_000_448);
    for (tool, packings) in [("qemu-img", 0..3), ("dmg2img", 0..4), ("7zz", 0..6)] {
        if !have(&[tool]) {
            continue;
        }
        for (kind, name, pack) in &PACKINGS[packings] {
            // qemu knows no ADC.
            if tool == "qemu-img" && *name == "ADC" {
                continue;
            }
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("in.dmg"), wrap::udif(&image, *kind, false, pack))
                .unwrap();
            let arguments: &[&str] = match tool {
                "qemu-img" => &["convert", "-f", "dmg", "-O", "raw", "in.dmg", "out"],
                "dmg2img" => &["-s", "in.dmg", "out"],
                // It takes what each block table holds for a file.
                _ => &["x", "in.dmg"],
            };
            run(dir.path(), tool, arguments);
            if tool == "7zz" {
                let parts = ["0.part 0", "1.part 1"].map(|part| dir.path().join(part));
                let parts = parts.map(|part| std::fs::read(part).unwrap());
                std::fs::write(dir.path().join("out"), parts.concat()).unwrap();
            }
            let out = std::fs::read(dir.path().join("out")).unwrap();
            assert!(out == image, "{tool} {name}");
        }
    }
}

#[test]
fn hybrid_discs_have_a_volume_behind_their_map() {
    if !have(&["genisoimage", "hformat", "hmount", "hcopy", "humount"]) {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::create_dir(dir.join("tree")).unwrap();
    std::fs::write(dir.join("tree/file.txt"), vec![b'x'; 100_000]).unwrap();
    for part in [&[][..], &["-part"]] {
        let arguments = ["-quiet", "-hfs", "-probe", "-V", "Hybrid", "-o", "disc.iso"];
        run(dir, "genisoimage", &[&arguments[..], part, &["tree"]].concat());
        let disc = std::fs::read(dir.join("disc.iso")).unwrap();
        assert_eq!(disc[0x8001..0x8006], *b"CD001");
        let result = opened(&disc);
        let mdb = &content(&*result.device)[1024..1536];
        assert_eq!(
            (&mdb[..2], &mdb[36..43]),
            (&b"BD"[..], &b"\x06Hybrid"[..]),
            "{:?}",
            result.layers
        );
        if part.is_empty() {
            continue;
        }
        assert!(matches!(result.layers[..], [Layer::Partition { .. }]), "{:?}", result.layers);
        // What is behind the map is a volume to hfsutils too.
        std::fs::write(dir.join("volume"), content(&*result.device)).unwrap();
        run(dir, "hmount", &["volume"]);
        run(dir, "hcopy", &["-r", ":file.txt", "out"]);
        run(dir, "humount", &[]);
        assert_eq!(std::fs::read(dir.join("out")).unwrap(), vec![b'x'; 100_000]);
    }
}
