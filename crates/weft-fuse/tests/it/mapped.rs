//! Files as memory.

use std::fs;
use std::process::Command;

use super::both_caches;

/// `python3` maps in place of us: a mapping needs `unsafe` here.
#[test]
fn shared_writable_mapping() {
    let script = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 0)
assert m[:5] == b'hello', m[:5]
m[6:11] = b'WORLD'
m[20000:20004] = b'tail'
m.flush()
os.pwrite(fd, b'J', 0)
assert m[:1] == b'J'
m.close()
os.close(fd)
";
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3 here");
        return;
    }
    both_caches(|m| {
        let path = m.at("file");
        let mut want = b"hello world".to_vec();
        want.resize(30_000, b'.');
        fs::write(&path, &want).expect("write");
        let status = Command::new("python3").args(["-c", script]).arg(&path).status();
        assert!(status.expect("python3").success());
        want[..11].copy_from_slice(b"Jello WORLD");
        want[20_000..20_004].copy_from_slice(b"tail");
        assert!(fs::read(&path).expect("read") == want);
        let inside = weft_vfs::Walker::new(&*m.fs).read_file(b"/file").expect("read inside");
        assert!(inside == want, "the mapping's pages reached the file system");
    });
}

/// `cp` and `tar -S` copy nothing of a hole.
#[test]
fn what_is_stored_through_a_mapping_is_no_hole() {
    let script = r#"
import errno, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
size = os.fstat(fd).st_size
def data(at):
    try: return os.lseek(fd, at, os.SEEK_DATA)
    except OSError as e: return e.errno == errno.ENXIO and 'none'
def hole(at): return os.lseek(fd, at, os.SEEK_HOLE)
assert (data(0), hole(0)) == ('none', 0), (data(0), hole(0))
m = mmap.mmap(fd, 0)
m[300000:300004] = b'data'
assert data(0) // 4096 == 300000 // 4096, data(0)
assert hole(300000) == (300000 // 4096 + 1) * 4096, hole(300000)
m[:] = b'D' * size
assert (data(0), hole(0)) == (0, size), (data(0), hole(0))
assert os.pread(fd, size, 0) == b'D' * size
m[0:1] = b'E'
os.ftruncate(fd, size + 65536)
assert (data(size - 1), hole(0)) == (size - 1, size)
"#;
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: there is no python3 here");
        return;
    }
    both_caches(|m| {
        let path = m.at("file");
        fs::File::create(&path).expect("a file").set_len(1 << 20).expect("a hole");
        let ran =
            Command::new("python3").args(["-c", script]).arg(&path).output().expect("python3");
        assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    });
}

#[test]
fn programs_run() {
    both_caches(|m| {
        let path = m.at("true");
        weft_testing::copy_program("/bin/true".as_ref(), &path);
        assert!(Command::new(&path).status().expect("run").success());
    });
}
