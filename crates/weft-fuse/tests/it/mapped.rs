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

#[test]
fn programs_run() {
    both_caches(|m| {
        let path = m.at("true");
        weft_testing::copy_program("/bin/true".as_ref(), &path);
        assert!(Command::new(&path).status().expect("run").success());
    });
}
