//! The upper interface: paths with colons, and open files with a place in them.

use crate::volume::{assert_sound, empty, mount, quiet};
use std::io::SeekFrom;
use std::sync::Arc;
use weft_block::{BlockDevice, Rng};
use weft_hfs::layout::{CatalogRecord, FInfo, FXInfo, Fork};
use weft_hfs::{Error, Hfs, Mac, OpenOptions};
use weft_vfs::{FileSystem, OpenFlags};

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

#[test]
fn paths_have_colons() {
    let device = empty(1 << 20);
    let mut mac = Mac::new(mount(&device));
    mac.create_folder(b"Folder").unwrap();
    mac.create_folder(b":Folder:Inner").unwrap();
    mac.create_file(b"Test Volume:Folder:Inner:file", *b"TEXT", *b"ttxt").unwrap();
    for path in
        [&b":Folder:Inner:file"[..], b"test volume:FOLDER:inner:FILE", b":Folder:Inner:file:"]
    {
        let (name, record) = mac.info(path).unwrap();
        assert_eq!(name.as_bytes(), b"file");
        assert!(matches!(record, CatalogRecord::File(f) if f.info.creator == *b"ttxt"));
    }
    assert!(matches!(mac.info(b"Other:Folder"), Err(Error::NotFound)));
    assert!(matches!(mac.create_folder(b"Folder"), Err(Error::Exists)));
    mac.change_folder(b":Folder:Inner").unwrap();
    // Each further colon is one folder up.
    assert!(mac.info(b"file").is_ok() && mac.info(b":file").is_ok());
    assert_eq!(mac.info(b"::Inner:file").unwrap(), mac.info(b":::Folder:Inner:file").unwrap());
    mac.move_item(b"file", b"::moved").unwrap();
    assert_eq!(mac.list(b"::").unwrap().len(), 2);
    assert!(mac.list(b":").unwrap().is_empty());
    let info = FInfo { file_type: *b"APPL", ..FInfo::default() };
    mac.set_finder_info(b"::moved", &info, &FXInfo::default()).unwrap();
    let (_, CatalogRecord::File(file)) = mac.info(b"::moved").unwrap() else { panic!("a file") };
    assert_eq!(file.info, info);
    assert!(matches!(mac.delete(b":::Folder"), Err(Error::NotEmpty)));
    mac.delete(b"::moved").unwrap();
    mac.delete(b":::Folder:Inner").unwrap();
    mac.volume().unmount().unwrap();
    assert_sound(&*device);
}

/// Random calls on both forks through several open files, against bytes in memory. What is gathered
/// is handed on before anything else looks.
#[test]
fn open_files_agree_with_a_model() {
    for seed in 0..20 {
        let device = empty(4 << 20);
        let mac = Mac::new(mount(&device));
        mac.create_file(b"file", *b"TEXT", *b"ttxt").unwrap();
        let mut model = [Vec::new(), Vec::new()];
        let mut rng = Rng::new(seed);
        for _ in 0..8 {
            let fork = Fork::ALL[rng.index(2)];
            let model: &mut Vec<u8> = &mut model[fork.index()];
            let mut file = mac.open(b"file", fork, BOTH).unwrap();
            let mut at = 0;
            for _ in 0..60 {
                match rng.below(8) {
                    0 => {
                        at = rng.index(model.len() + 3000);
                        assert_eq!(file.seek(SeekFrom::Start(at as u64)).unwrap(), at as u64);
                    }
                    1 => {
                        let mut buf = vec![0; rng.index(40_000)];
                        let got = file.read(&mut buf).unwrap();
                        let want = model.get(at..).unwrap_or(&[]);
                        assert_eq!(got, want.len().min(buf.len()), "seed {seed}");
                        assert!(buf[..got] == want[..got], "seed {seed}");
                        at += got;
                    }
                    2 => {
                        let len = rng.index(model.len() + 2000);
                        file.truncate(len as u64).unwrap();
                        model.resize(len, 0);
                    }
                    3 => assert_eq!(file.len_bytes().unwrap(), model.len() as u64),
                    4 if rng.chance(1, 4) => file.sync().unwrap(),
                    _ => {
                        let most = if rng.chance(1, 5) { 70_000 } else { 900 };
                        let mut data = vec![0; rng.index(most) + 1];
                        rng.fill(&mut data);
                        assert_eq!(file.write(&data).unwrap(), data.len());
                        let end = at + data.len();
                        model.resize(model.len().max(end), 0);
                        model[at..end].copy_from_slice(&data);
                        at = end;
                    }
                }
                assert_eq!(file.position(), at as u64, "seed {seed}");
            }
            if rng.chance(1, 2) {
                file.close().unwrap();
            }
        }
        mac.volume().unmount().unwrap();
        assert_sound(&*device);
        let mac = Mac::new(mount(&device));
        for fork in Fork::ALL {
            let mut file = mac.open(b"file", fork, OpenFlags::READ).unwrap();
            let mut buf = vec![0; 4 << 20];
            let mut got = 0;
            while let n @ 1.. = file.read(&mut buf[got..]).unwrap() {
                got += n;
            }
            assert!(buf[..got] == model[fork.index()], "seed {seed}");
        }
    }
}

#[test]
fn data_that_does_not_fit_fails_the_call_that_writes_it() {
    let device = empty(400 << 10);
    let mac = Mac::new(mount(&device));
    mac.create_file(b"file", *b"TEXT", *b"ttxt").unwrap();
    let mut file = mac.open(b"file", Fork::Data, BOTH).unwrap();
    let (mut written, mut told) = (0, false);
    for _ in 0..1000 {
        match file.write(&[7; 500]) {
            Ok(n) => written += n,
            Err(Error::NoSpace) => {
                told = true;
                break;
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert!(told, "{written} bytes fit on 400K");
    // The position is past the end.
    assert_eq!(file.position(), file.len_bytes().unwrap());
    assert!(file.len_bytes().unwrap() > 350 << 10);
    file.write(&[7; 500]).unwrap();
    assert!(matches!(file.close(), Err(Error::NoSpace)));
    let mut file = mac.open(b"file", Fork::Resource, BOTH).unwrap();
    file.seek(SeekFrom::Start((1 << 31) - 100)).unwrap();
    assert!(matches!(file.write(&[0; 500]), Err(Error::TooLarge)));
    assert!(matches!(file.seek(SeekFrom::Current(-(1 << 40))), Err(Error::Invalid(_))));
    drop(file);
    mac.volume().unmount().unwrap();
    assert_sound(&*device);

    let options = OpenOptions { read_only: true, ..quiet() };
    let fs = Hfs::open(Arc::clone(&device) as Arc<dyn BlockDevice>, options).unwrap();
    assert!(matches!(Mac::new(fs).open(b"file", Fork::Data, BOTH), Err(Error::ReadOnly)));
}
