//! Whole trees, and many threads.

use std::fs;
use std::process::Command;
use std::thread;

use super::both_caches;
use weft_testing::wait_until;

#[test]
fn tar_there_and_back() {
    both_caches(|m| {
        let source = tempfile::tempdir().expect("temporary directory");
        for dir in 0..10 {
            let dir = source.path().join(format!("dir{dir}/deeper"));
            fs::create_dir_all(&dir).expect("mkdir");
            for file in 0..30_usize {
                let content = vec![file as u8; file * 1000];
                fs::write(dir.join(format!("file{file}")), content).expect("write");
            }
            std::os::unix::fs::symlink("file3", dir.join("link")).expect("symlink");
        }
        let copy = format!(
            "tar -C {} -cf - . | tar -C {} -xpf - && diff -r --no-dereference {0} {1}",
            source.path().display(),
            m.path().display()
        );
        let output = Command::new("sh").args(["-c", &copy]).output().expect("sh");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
        for entry in fs::read_dir(m.path()).expect("list") {
            fs::remove_dir_all(entry.expect("entry").path()).expect("remove");
        }
    });
}

#[test]
fn many_threads() {
    both_caches(|m| {
        thread::scope(|scope| {
            for nr in 0..8 {
                let dir = m.at(&format!("thread{nr}"));
                scope.spawn(move || {
                    fs::create_dir(&dir).expect("mkdir");
                    for at in 0..200_usize {
                        let path = dir.join(format!("f{at}"));
                        let content = vec![at as u8; at * 50];
                        fs::write(&path, &content).expect("write");
                        assert!(fs::read(&path).expect("read") == content);
                        if at % 2 == 0 {
                            fs::rename(&path, dir.join(format!("g{at}"))).expect("rename");
                        } else {
                            fs::remove_file(&path).expect("remove");
                        }
                    }
                    assert_eq!(fs::read_dir(&dir).expect("list").count(), 100);
                });
            }
        });
    });
}

/// The references that the kernel takes and gives back balance: what is removed is gone.
#[test]
fn nothing_leaks() {
    let Some(m) = super::mounted() else { return };
    let free = weft_vfs::FileSystem::statfs(&*m.fs).expect("statfs").inodes_free;
    for round in 0..3 {
        for at in 0..300 {
            fs::write(m.at(&format!("file{at}")), format!("{round}")).expect("write");
            fs::metadata(m.at(&format!("file{at}"))).expect("stat");
        }
        for entry in fs::read_dir(m.path()).expect("list") {
            fs::remove_file(entry.expect("entry").path()).expect("remove");
        }
    }
    // Forgetting is told in the background.
    let left = || free - weft_vfs::FileSystem::statfs(&*m.fs).expect("statfs").inodes_free;
    wait_until("no inode without a name is held", || left() == 0);
}
