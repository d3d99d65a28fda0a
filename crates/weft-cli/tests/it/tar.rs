//! Tar streams beside other people's tar: sparse files in each form, times, names, and what is no
//! tar archive at all. The judge is GNU tar, and Python's reader of tar where it is there.

use crate::run::{Bench, Ran, tool};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, UNIX_EPOCH};

/// Runs the system's tar in the bench's directory.
fn tar(bench: &Bench, args: &[&str]) -> Option<Ran> {
    let dir = bench.dir().as_os_str();
    tool("tar", [OsStr::new("-C"), dir].into_iter().chain(args.iter().map(OsStr::new)))
}

fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as u8 | 1
    };
    (0..len).map(|_| next()).collect()
}

/// Files of data and holes: a hole at either end or between, nothing but a hole, an end that is no
/// multiple of a block, and so many pieces that a map takes several blocks in every form.
const SPARSE: [&str; 5] = ["middle", "ends", "hole", "odd", "many"];

fn make_sparse(bench: &Bench) {
    let make = |name: &str, pieces: &[(u64, usize)], len: u64| {
        let file = File::create(bench.path(name)).unwrap();
        for (at, n) in pieces {
            file.write_all_at(&noise(*n, *at as u32 + 7), *at).unwrap();
        }
        file.set_len(len).unwrap();
    };
    make("middle", &[(0, 4096), (9 << 20, 4096)], (9 << 20) + 4096);
    make("ends", &[(1 << 20, 300 << 10)], 8 << 20);
    make("hole", &[], 5 << 20);
    make("odd", &[(8192, 4096), (1 << 20, 77)], (1 << 20) + 77);
    let many: Vec<(u64, usize)> = (0..700).map(|i| (i * 12288, 4096)).collect();
    make("many", &many, 700 * 12288);
}

fn allocated(bench: &Bench, path: &str) -> u64 {
    bench.json(&["stat", path])[0]["allocated_bytes"].as_u64().expect("a number")
}

#[test]
fn a_sparse_file_comes_out_of_every_form_of_tar_as_it_went_in() {
    let bench = Bench::with_volume("ext2");
    make_sparse(&bench);
    bench.ok(&["mkdir", "v.img:/put"]);
    for name in SPARSE {
        bench.ok(&["put", name, "v.img:/put/"]);
    }
    let forms: [(&str, &[&str]); 4] = [
        ("gnu", &["--format=gnu"]),
        ("0.0", &["--format=posix", "--sparse-version=0.0"]),
        ("0.1", &["--format=posix", "--sparse-version=0.1"]),
        ("1.0", &["--format=posix", "--sparse-version=1.0"]),
    ];
    for (form, options) in forms {
        let archive = format!("{form}.tar");
        let path = bench.path(&archive);
        let mut args = vec!["-S", "-cf", path.to_str().unwrap()];
        args.extend(options);
        args.extend(SPARSE);
        let Some(made) = tar(&bench, &args) else { return };
        assert_eq!(made.code, 0, "{made:#?}");
        // The archive is in fact sparse: else this judges nothing.
        let (stored, whole) = (std::fs::metadata(&path).unwrap().len(), 30 << 20);
        assert!(stored < whole / 2, "{form}: {stored} bytes");
        bench.ok(&["import", &archive, &format!("v.img:/{form}")]);
        for name in SPARSE {
            let copy = format!("v.img:/{form}/{name}");
            let got = bench.command(&["cat", &copy]).output().unwrap().stdout;
            let want = std::fs::read(bench.path(name)).unwrap();
            assert!(got == want, "{copy}: {} bytes, {} wanted", got.len(), want.len());
            let put = allocated(&bench, &format!("v.img:/put/{name}"));
            assert_eq!(allocated(&bench, &copy), put, "{copy}: allocated bytes");
        }
    }
    bench.e2fsck_clean("v.img");
}

#[test]
fn sparse_files_leave_as_sparse_files() {
    let bench = Bench::with_volume("ext2");
    make_sparse(&bench);
    let long = format!("{}/{}", "d".repeat(120), "n".repeat(120));
    std::fs::create_dir(bench.path(&"d".repeat(120))).unwrap();
    std::fs::rename(bench.path("odd"), bench.path(&long)).unwrap();
    bench.ok(&["mkdir", "v.img:/s"]);
    let names = ["middle", "ends", "hole", &long, "many"];
    for name in ["middle", "ends", "hole", "many"] {
        bench.ok(&["put", name, "v.img:/s/"]);
    }
    bench.ok(&["put", &"d".repeat(120), "v.img:/s/"]);
    bench.ok(&["export", "v.img:/s", "s.tar"]);
    let stored = std::fs::metadata(bench.path("s.tar")).unwrap().len();
    assert!(stored < 4 << 20, "{stored} bytes for 3.2 MiB of data");

    std::fs::create_dir(bench.path("out")).unwrap();
    let (archive, to) = (bench.path("s.tar"), bench.path("out"));
    let args = ["-xf", archive.to_str().unwrap(), "-C", to.to_str().unwrap()];
    let Some(ran) = tar(&bench, &args) else { return };
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:#?}");
    for name in names {
        let (from, copy) = (bench.path(name), bench.path("out").join(name));
        assert!(std::fs::read(&from).unwrap() == std::fs::read(&copy).unwrap(), "{name}");
        let blocks = |path| std::fs::metadata(path).unwrap().blocks();
        // Of the host's file system: it may take some blocks for its own map.
        assert!(blocks(&copy) <= blocks(&from) + 16, "{name} has lost its holes");
    }
    // And weft reads what it wrote.
    bench.ok(&["import", "s.tar", "v.img:/again"]);
    for name in names {
        let got = bench.command(&["cat", &format!("v.img:/again/{name}")]).output().unwrap().stdout;
        assert!(got == std::fs::read(bench.path(name)).unwrap(), "{name}");
        let (a, b) = (format!("v.img:/s/{name}"), format!("v.img:/again/{name}"));
        assert_eq!(allocated(&bench, &a), allocated(&bench, &b), "{name}");
    }
    bench.e2fsck_clean("v.img");
}

#[test]
fn times_with_fractions_and_before_1970_are_kept() {
    let bench = Bench::with_volume("ext2");
    let times = [
        ("fraction", UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789)),
        ("before", UNIX_EPOCH - Duration::new(86_400 * 365, 0)),
        ("before-fraction", UNIX_EPOCH - Duration::new(1, 250_000_000)),
        ("late", UNIX_EPOCH + Duration::from_secs(5_000_000_000)),
        ("whole", UNIX_EPOCH + Duration::from_secs(1_000_000_000)),
    ];
    std::fs::create_dir(bench.path("t")).unwrap();
    for (name, time) in times {
        let file = File::create(bench.path(&format!("t/{name}"))).unwrap();
        file.set_modified(time).unwrap();
    }
    bench.ok(&["put", "t", "v.img:/"]);
    bench.ok(&["export", "v.img:/t", "t.tar"]);
    std::fs::create_dir(bench.path("out")).unwrap();
    let (archive, to) = (bench.path("t.tar"), bench.path("out"));
    // tar wonders at times before 1970 and in the future.
    let (archive, to) = (archive.to_str().unwrap(), to.to_str().unwrap());
    let Some(ran) = tar(&bench, &["--warning=no-timestamp", "-xf", archive, "-C", to]) else {
        return;
    };
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:#?}");
    for (name, time) in times {
        let meta = std::fs::metadata(bench.path("out").join(name)).unwrap();
        assert_eq!(meta.modified().unwrap(), time, "{name} through weft export and tar");
    }
    // The other way, through both formats of tar; GNU's own has whole seconds.
    for format in ["gnu", "posix"] {
        let (path, from) = (bench.path("u.tar"), bench.path("t"));
        let args =
            ["-cf", path.to_str().unwrap(), "--format", format, "-C", from.to_str().unwrap(), "."];
        let Some(made) = tar(&bench, &args) else { return };
        assert_eq!(made.code, 0, "{made:#?}");
        let to = format!("v.img:/{format}");
        bench.ok(&["import", "u.tar", &to]);
        for (name, time) in times {
            let (sign, from_1970) = match time.duration_since(UNIX_EPOCH) {
                Ok(after) => ("", after),
                Err(before) => ("-", before.duration()),
            };
            let (mut secs, mut nanos) = (from_1970.as_secs(), from_1970.subsec_nanos());
            if format == "gnu" {
                secs += u64::from(!sign.is_empty() && nanos > 0);
                nanos = 0;
            }
            let stat = bench.ok(&["stat", &format!("{to}/{name}"), "--json"]);
            let want = format!("\"modified\": {sign}{secs}.{nanos:09},");
            assert!(stat.contains(&want), "{name} from {format}: {want} in {stat}");
        }
    }
}

#[test]
fn names_and_attributes_of_any_bytes_pass() {
    let bench = Bench::with_volume("ext2");
    std::fs::create_dir(bench.path("n")).unwrap();
    let odd: Vec<Vec<u8>> = vec![
        b"line\nbreak".to_vec(),
        b"not utf-8 \xff\xfe".to_vec(),
        [b"\xff".as_slice(), &[b'y'; 200]].concat(),
        vec![b'z'; 255],
        b"=17 mtime=3".to_vec(),
    ];
    for name in &odd {
        std::fs::write(bench.path("n").join(OsStr::from_bytes(name)), name).unwrap();
    }
    std::os::unix::fs::symlink("t".repeat(300), bench.path("n/link")).unwrap();
    bench.ok(&["put", "n", "v.img:/"]);
    bench.ok(&["export", "v.img:/n", "n.tar"]);
    std::fs::create_dir(bench.path("out")).unwrap();
    let (archive, to) = (bench.path("n.tar"), bench.path("out"));
    let args = ["-xf", archive.to_str().unwrap(), "-C", to.to_str().unwrap()];
    let Some(ran) = tar(&bench, &args) else { return };
    assert_eq!(ran.code, 0, "{ran:#?}");
    for name in &odd {
        let copy = bench.path("out").join(OsStr::from_bytes(name));
        assert_eq!(&std::fs::read(&copy).unwrap(), name, "{copy:?}");
    }
    assert_eq!(std::fs::read_link(bench.path("out/link")).unwrap().as_os_str().len(), 300);
}

/// A value with a newline in it, as the capabilities of a program may have: records are cut by
/// their length.
#[test]
fn an_attribute_with_a_newline_in_it_is_imported() {
    let bench = Bench::with_volume("ext2");
    let record = |key: &str, value: &[u8]| {
        let rest = key.len() + value.len() + 3;
        let len = rest + 2;
        assert!((10..100).contains(&len));
        [format!("{len} {key}=").as_bytes(), value, b"\n"].concat()
    };
    let value = b"one\ntwo\n\0three";
    let records = record("SCHILY.xattr.user.lines", value);
    let header = |name: &str, kind: u8, len: usize| {
        let mut block = [0; 512];
        block[..name.len()].copy_from_slice(name.as_bytes());
        block[100..108].copy_from_slice(b"0000644\0");
        block[108..116].copy_from_slice(b"0000000\0");
        block[116..124].copy_from_slice(b"0000000\0");
        block[124..136].copy_from_slice(format!("{len:011o}\0").as_bytes());
        block[136..148].copy_from_slice(b"00000000000\0");
        block[156] = kind;
        block[257..265].copy_from_slice(b"ustar\x0000");
        block[148..156].fill(b' ');
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        block
    };
    let mut stream = header("PaxHeader", b'x', records.len()).to_vec();
    stream.extend(&records);
    stream.resize(1024, 0);
    stream.extend(header("file", b'0', 0));
    stream.resize(stream.len() + 1024, 0);
    bench.write("x.tar", &stream);
    bench.ok(&["import", "x.tar", "v.img:/"]);
    bench.ok(&["export", "v.img:/file", "y.tar"]);
    let out = std::fs::read(bench.path("y.tar")).unwrap();
    let found = out.windows(value.len()).any(|w| w == value);
    assert!(found, "the value went in whole, and came out whole");
}

#[test]
fn what_is_no_tar_archive_is_refused() {
    let bench = Bench::with_volume("ext2");
    bench.ok(&["mkfs", "ext2", "w.img", "--size", "4M", "-q"]);
    bench.write("empty", b"");
    bench.write("short", b"some text");
    bench.write("text", &b"all work and no play ".repeat(100));
    // A volume begins with 1024 zeroes: the end of an archive, to a reader that looks no further.
    for (file, why) in [
        ("w.img", "not a tar archive"),
        ("empty", "not a tar archive: the stream is empty"),
        ("short", "not a tar archive: only 9 bytes long"),
        ("text", "not a tar archive: it does not begin with a tar header"),
    ] {
        let err = bench.fails(1, &["import", file, "v.img:/"]);
        assert!(err.starts_with("weft: tar stream: ") && err.contains(why), "{file}: {err}");
    }
    // An archive with no members is one.
    bench.write("none.tar", &[0; 10240]);
    bench.ok(&["import", "none.tar", "v.img:/"]);
    bench.e2fsck_clean("v.img");
}

#[test]
fn an_archive_that_is_to_be_compressed_is_refused_with_the_way_to_do_it() {
    let bench = Bench::with_volume("ext2");
    for (name, how) in [
        ("x.tar.gz", "weft export v.img:/ - | gzip > x.tar.gz"),
        ("x.tgz", "weft export v.img:/ - | gzip > x.tgz"),
        ("x.tar.zst", "weft export v.img:/ - | zstd > x.tar.zst"),
        ("x.tar.xz", "weft export v.img:/ - | xz > x.tar.xz"),
        ("x.tar.bz2", "weft export v.img:/ - | bzip2 > x.tar.bz2"),
    ] {
        for more in [&[][..], &["--tar"]] {
            let args = [&["export", "v.img:/", name][..], more].concat();
            let err = bench.fails(2, &args);
            assert!(err.contains(how), "{err}");
            assert!(!bench.path(name).exists(), "{name} was made");
        }
    }
}
