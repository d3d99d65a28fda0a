//! Figures, for people: `cargo test --release -p weft-hfs --test it speed -- --ignored --nocapture`.

use crate::volume::{name, quiet};
use std::sync::Arc;
use std::time::Instant;
use weft_block::{BlockDevice, FileDevice, OpenMode};
use weft_hfs::layout::{Fork, Name, ROOT_ID};
use weft_hfs::mkfs::{MkfsOptions, mkfs};
use weft_hfs::volume::New;
use weft_hfs::{Hfs, Mac};
use weft_vfs::{FileSystem, OpenFlags};

#[test]
#[ignore = "a measurement"]
fn of_the_paper() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("speed.img");
    let device = FileDevice::create(&path, 240 << 20).unwrap();
    mkfs(&device, &MkfsOptions::new(name("Speed"), 3_000_000_000)).unwrap();
    drop(device);
    let open = || {
        let device = Arc::new(FileDevice::open(&path, OpenMode::READ_WRITE).unwrap());
        Hfs::open(device as Arc<dyn BlockDevice>, quiet()).unwrap()
    };
    let names: Vec<Name> = (0..5000).map(|i| name(&format!("file{i:05}"))).collect();
    let fs = open();
    let start = Instant::now();
    for name in &names {
        fs.create_item(ROOT_ID, name, &New::FILE).unwrap();
    }
    let made = start.elapsed();
    fs.unmount().unwrap();
    let all = start.elapsed();
    println!(
        "create {:.0}/s, with unmount {:.0}/s; {:?}",
        5000.0 / made.as_secs_f64(),
        5000.0 / all.as_secs_f64(),
        fs.engine().counters()
    );
    drop(fs);
    let fs = open();
    let start = Instant::now();
    for name in &names {
        fs.delete_item(ROOT_ID, name).unwrap();
    }
    let made = start.elapsed();
    fs.unmount().unwrap();
    let all = start.elapsed();
    println!(
        "delete {:.0}/s, with unmount {:.0}/s",
        5000.0 / made.as_secs_f64(),
        5000.0 / all.as_secs_f64()
    );
    drop(fs);
    const BYTES: usize = 5_000_000;
    let data = vec![7; BYTES];
    let mut back = vec![0; BYTES];
    for request in [500, 5000, 50_000] {
        let fs = open();
        let mac = Mac::new(Arc::clone(&fs));
        mac.create_file(b"data", *b"TEXT", *b"ttxt").unwrap();
        let mut rates = Vec::new();
        for what in ["write", "overwrite", "read"] {
            let start = Instant::now();
            let mut file =
                mac.open(b"data", Fork::Data, OpenFlags::READ | OpenFlags::WRITE).unwrap();
            if what == "read" {
                for piece in back.chunks_mut(request) {
                    assert_eq!(file.read(piece).unwrap(), piece.len());
                }
            } else {
                for piece in data.chunks(request) {
                    assert_eq!(file.write(piece).unwrap(), piece.len());
                }
            }
            let made = start.elapsed();
            file.sync().unwrap();
            let all = start.elapsed();
            let rate = |t: std::time::Duration| BYTES as f64 / 1e6 / t.as_secs_f64();
            rates.push(format!("{what} {:.0} ({:.0} synced)", rate(made), rate(all)));
        }
        assert_eq!(back, data);
        println!("{request} B a request, MB/s: {}", rates.join(", "));
        mac.delete(b"data").unwrap();
        fs.unmount().unwrap();
    }
}
