//! Packed files: both ways through every format, and with other people's tools at either end.

use crate::tools::{have, run, tool};
use proptest::prelude::*;
use std::fs::File;
use std::io::{Cursor, Read, Seek};
use std::path::{Path, PathBuf};
use weft_hfs::interchange::{Error, Fork, Format, Meta, Reader, apple, detect, macbinary, write};

const PACKED: [Format; 4] =
    [Format::MacBinary, Format::AppleSingle, Format::AppleDouble, Format::BinHex];

#[derive(Debug, Clone)]
struct MacFile {
    meta: Meta,
    data: Vec<u8>,
    resource: Vec<u8>,
}

fn pack(format: Format, file: &MacFile) -> Vec<u8> {
    let mut packed = Vec::new();
    write(format, &file.meta, &mut &file.data[..], &mut &file.resource[..], &mut packed)
        .unwrap_or_else(|e| panic!("{format:?}: {e}"));
    packed
}

fn unpack<R: Read + Seek>(format: Format, from: R) -> Result<MacFile, Error> {
    let mut reader = Reader::open(format, from)?;
    let (mut data, mut resource) = (Vec::new(), Vec::new());
    // The second one first: a reader must find its way back.
    reader.copy_fork(Fork::Resource, &mut resource)?;
    reader.copy_fork(Fork::Data, &mut data)?;
    Ok(MacFile { meta: reader.meta().clone(), data, resource })
}

/// The parts of a file that a format can hold.
fn held(format: Format, file: &MacFile) -> Meta {
    let mut meta = file.meta.clone();
    let mut forget = |range: std::ops::Range<usize>| meta.finder_info[range].fill(0);
    match format {
        // Neither icon, comment number nor home folder.
        Format::MacBinary => {
            forget(16..24);
            forget(26..32);
            meta.backed_up = 0;
        }
        Format::BinHex => {
            forget(10..32);
            let Meta { name, finder_info, data_bytes, resource_bytes, .. } = meta;
            return Meta { name, finder_info, data_bytes, resource_bytes, ..Meta::default() };
        }
        Format::AppleDouble => meta.data_bytes = 0,
        Format::AppleSingle | Format::Data | Format::Text => {}
    }
    meta
}

/// Bytes as forks hold them: noise and runs.
fn fork() -> impl Strategy<Value = Vec<u8>> {
    let run = (prop_oneof![Just(0), Just(0x90), any::<u8>()], 1..700_usize);
    let runs = proptest::collection::vec(run, 0..6)
        .prop_map(|runs| runs.into_iter().flat_map(|(b, n)| vec![b; n]).collect());
    prop_oneof![runs, any::<Vec<u8>>()]
}

fn file() -> impl Strategy<Value = MacFile> {
    let name = proptest::collection::vec(any::<u8>(), 1..=63);
    let comment = proptest::collection::vec(any::<u8>(), 0..300);
    // Dates that every format has: not set, or from 1932 on.
    let date = || prop_oneof![Just(0), 900_000_000..=u32::MAX];
    let meta = (name, any::<[u8; 32]>(), [date(), date(), date()], any::<bool>(), comment);
    (meta, fork(), fork()).prop_map(|(meta, data, resource)| {
        let (name, finder_info, [created, modified, backed_up], locked, comment) = meta;
        let (data_bytes, resource_bytes) = (data.len() as u64, resource.len() as u64);
        let meta = Meta {
            name,
            finder_info,
            created,
            modified,
            backed_up,
            locked,
            comment,
            data_bytes,
            resource_bytes,
        };
        MacFile { meta, data, resource }
    })
}

/// One file with something in every field.
fn sample(name: &str) -> MacFile {
    let data: Vec<u8> =
        (0..5000_u32).flat_map(|n| (n / 7).wrapping_mul(0x0123_4567).to_be_bytes()).collect();
    let resource = [vec![0x90; 300], b"resources".to_vec(), vec![0; 777]].concat();
    let mut meta = Meta {
        name: name.into(),
        created: 3_000_000_000,
        modified: 3_100_000_001,
        data_bytes: data.len() as u64,
        resource_bytes: resource.len() as u64,
        ..Meta::default()
    };
    meta.set_type(*b"TyPe", *b"CrEa");
    MacFile { meta, data, resource }
}

proptest! {
    #[test]
    fn every_format_returns_its_content(file in file()) {
        for format in PACKED {
            let packed = pack(format, &file);
            prop_assert_eq!(detect(&mut Cursor::new(&packed)).unwrap(), format);
            let back = unpack(format, Cursor::new(&packed)).unwrap();
            prop_assert_eq!(&back.meta, &held(format, &file));
            prop_assert_eq!(&back.resource, &file.resource);
            if format != Format::AppleDouble {
                prop_assert_eq!(&back.data, &file.data);
            }
            // And packed again, it is the same to the byte.
            prop_assert_eq!(pack(format, &back), packed);
        }
    }

    #[test]
    fn older_versions_come_back_too(file in file()) {
        use apple::{Kind, Version};
        let mut packed = Cursor::new(Vec::new());
        let (mut data, mut resource) = (&file.data[..], &file.resource[..]);
        apple::write(&file.meta, Kind::Single, Version::V1, &mut data, &mut resource, &mut packed)
            .unwrap();
        let back = unpack(Format::AppleSingle, packed).unwrap();
        prop_assert_eq!((&back.meta, back.data, back.resource), (&file.meta, file.data.clone(), file.resource.clone()));

        let mut first = file;
        first.meta.name.retain(|&b| b != 0);
        prop_assume!(!first.meta.name.is_empty());
        for version in [macbinary::Version::I, macbinary::Version::II] {
            let mut packed = Cursor::new(Vec::new());
            let (mut data, mut resource) = (&first.data[..], &first.resource[..]);
            macbinary::write(&first.meta, version, &mut data, &mut resource, &mut packed).unwrap();
            let header = macbinary::open(&mut packed).unwrap();
            prop_assert_eq!(header.version, version);
            let back = unpack(Format::MacBinary, packed).unwrap();
            prop_assert_eq!(back.data, &first.data[..]);
            prop_assert_eq!(back.resource, &first.resource[..]);
        }
    }

    #[test]
    fn cut_and_changed_files_are_errors_or_files(file in file(), cut: proptest::sample::Index, at: proptest::sample::Index, byte: u8) {
        for format in PACKED {
            let mut packed = pack(format, &file);
            let at = at.index(packed.len());
            packed[at] = byte;
            let _ = unpack(format, Cursor::new(&packed));
            packed.truncate(cut.index(packed.len()));
            let _ = detect(&mut Cursor::new(&packed));
            let _ = unpack(format, Cursor::new(&packed));
        }
    }
}

#[test]
fn a_plain_file_holds_the_data_fork() {
    let text = Cursor::new("één\n".as_bytes().to_vec());
    assert_eq!(detect(&mut text.clone()).unwrap(), Format::Data);
    assert_eq!(unpack(Format::Data, text.clone()).unwrap().data, "één\n".as_bytes());
    let converted = unpack(Format::Text, text).unwrap();
    assert_eq!(converted.data, b"\x8e\x8en\r");
    assert_eq!(pack(Format::Text, &converted), "één\n".as_bytes());
}

// ---- other people's tools ----

fn save(dir: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn read(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn macutils_and_weft_unpack_each_others_files() {
    if !have(&["macsave", "hexbin", "binhex"]) {
        return;
    }
    let file = sample("sample");
    for version in [macbinary::Version::I, macbinary::Version::II, macbinary::Version::III] {
        let dir = tempfile::tempdir().unwrap();
        let mut packed = Vec::new();
        let (mut data, mut resource) = (&file.data[..], &file.resource[..]);
        macbinary::write(&file.meta, version, &mut data, &mut resource, &mut packed).unwrap();
        let input = save(dir.path(), "in.bin", &packed);
        run(tool(dir.path(), "macsave").arg("-3").stdin(File::open(input).unwrap()));
        assert_eq!(read(&dir.path().join("sample.data")), file.data, "{version:?}");
        assert_eq!(read(&dir.path().join("sample.rsrc")), file.resource, "{version:?}");
    }

    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), "in.hqx", &pack(Format::BinHex, &file));
    run(tool(dir.path(), "hexbin").args(["-3", "in.hqx"]));
    assert_eq!(read(&dir.path().join("sample.data")), file.data);
    assert_eq!(read(&dir.path().join("sample.rsrc")), file.resource);

    // Into MacBinary by hexbin, and from that back into BinHex, with and without runs.
    run(tool(dir.path(), "hexbin").arg("in.hqx"));
    let theirs = unpack(Format::MacBinary, File::open(dir.path().join("sample.bin")).unwrap());
    let theirs = theirs.unwrap();
    assert_eq!((&theirs.data, &theirs.resource), (&file.data, &file.resource));
    assert_eq!(theirs.meta.finder_info[..10], file.meta.finder_info[..10]);
    for flags in [&["sample.bin"][..], &["-R", "sample.bin"]] {
        let out = run(tool(dir.path(), "binhex").args(flags)).stdout;
        assert_eq!(detect(&mut Cursor::new(&out)).unwrap(), Format::BinHex);
        let theirs = unpack(Format::BinHex, Cursor::new(&out)).unwrap();
        assert_eq!((&theirs.data, &theirs.resource), (&file.data, &file.resource));
        assert_eq!(theirs.meta.name, b"sample");
    }
}

#[test]
fn hfsutils_and_weft_exchange_packed_files() {
    if !have(&["hformat", "hmount", "hcopy", "hattrib", "humount"]) {
        return;
    }
    let file = sample("sample");
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    save(dir, "volume", &vec![0; 1 << 20]);
    run(tool(dir, "hformat").arg("volume"));
    run(tool(dir, "hmount").arg("volume"));
    save(dir, "in.bin", &pack(Format::MacBinary, &file));
    save(dir, "in.hqx", &pack(Format::BinHex, &file));
    for (flag, input) in [("-m", "in.bin"), ("-b", "in.hqx")] {
        run(tool(dir, "hcopy").args([flag, input, ":"]));
        run(tool(dir, "hcopy").args(["-m", ":sample", "out.bin"]));
        run(tool(dir, "hcopy").args(["-b", ":sample", "out.hqx"]));
        for (format, name) in [(Format::MacBinary, "out.bin"), (Format::BinHex, "out.hqx")] {
            let mut packed = File::open(dir.join(name)).unwrap();
            assert_eq!(detect(&mut packed).unwrap(), format);
            let back = unpack(format, packed).unwrap();
            assert_eq!(back.data, file.data, "{input} to {name}");
            assert_eq!(back.resource, file.resource, "{input} to {name}");
            assert_eq!(back.meta.name, b"sample");
            assert_eq!(back.meta.finder_info[..8], *b"TyPeCrEa");
            if format == Format::MacBinary && flag == "-m" {
                assert_eq!(back.meta.modified, file.meta.modified);
            }
        }
        std::fs::remove_file(dir.join("out.bin")).unwrap();
        std::fs::remove_file(dir.join("out.hqx")).unwrap();
    }
}

#[test]
fn unar_unpacks_the_files_of_weft() {
    if !have(&["unar"]) {
        return;
    }
    let file = sample("sample");
    for format in [Format::MacBinary, Format::AppleSingle, Format::BinHex] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        // unar believes the extension of AppleSingle only.
        let name = format.file_name("packed");
        save(dir, &name, &pack(format, &file));
        run(tool(dir, "unar").args(["-q", "-D", "-k", "hidden", "-o", "out", &name]));
        assert_eq!(read(&dir.join("out/sample")), file.data, "{format:?}");
        // Its AppleDouble is read here.
        let double = File::open(dir.join("out/._sample")).unwrap();
        let double = unpack(Format::AppleDouble, double).unwrap();
        assert_eq!(double.resource, file.resource, "{format:?}");
        assert_eq!(double.meta.finder_info[..8], *b"TyPeCrEa", "{format:?}");
    }
}
