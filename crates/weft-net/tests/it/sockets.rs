//! The permissions of Unix sockets.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use weft_net::{Address, Listener, bind_unix};

/// Names a directory, in which the child makes its sockets.
const DIRECTORY: &str = "WEFT_TEST_SOCKETS";

fn mode_of(path: &Path) -> Option<u32> {
    std::fs::symlink_metadata(path).ok().map(|meta| meta.permissions().mode() & 0o777)
}

/// The umask belongs to a whole process, so each is tried in one of its own.
#[test]
fn a_socket_has_the_permissions_asked_for_under_any_umask() {
    for umask in ["000", "002", "022", "027", "077", "177", "777"] {
        let dir = tempfile::tempdir().expect("a directory");
        let child = Command::new("sh")
            .arg("-c")
            .arg(format!("umask {umask} && exec \"$0\" --exact sockets::makes_sockets --ignored"))
            .arg(std::env::current_exe().expect("this program"))
            .env(DIRECTORY, dir.path())
            .output()
            .expect("sh");
        let said = String::from_utf8_lossy(&child.stdout);
        assert!(child.status.success(), "umask {umask}: {said}");
        assert!(said.contains("1 passed"), "umask {umask}: {said}");
        assert!(std::fs::read_dir(dir.path()).expect("a directory").next().is_none(), "removed");
    }
}

#[test]
#[ignore = "a child of the test above"]
fn makes_sockets() {
    let Some(dir) = std::env::var_os(DIRECTORY) else { return };
    let dir = Path::new(&dir);
    for mode in [0o600, 0o660, 0o666, 0o620, 0o777, 0o200] {
        let path = dir.join(format!("{mode:o}"));
        let listener = Listener::bind(&Address::Unix(path.clone()), mode).expect("it listens");
        assert_eq!(mode_of(&path), Some(mode), "{mode:o}");
        drop(listener);
        // At no moment it is more open than that.
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watched = scope.spawn(|| {
                let mut seen = 0;
                while !stop.load(Ordering::SeqCst) {
                    seen |= mode_of(&path).unwrap_or(0);
                }
                seen
            });
            for _ in 0..300 {
                drop(bind_unix(&path, mode).expect("it listens"));
                std::fs::remove_file(&path).expect("it is there");
            }
            stop.store(true, Ordering::SeqCst);
            let more = watched.join().expect("no panic") & !mode;
            assert_eq!(more, 0, "{mode:o}: for a moment these permissions more: {more:o}");
        });
    }
    let there = dir.join("file");
    std::fs::write(&there, "x").expect("written");
    bind_unix(&there, 0o600).expect_err("a file is there");
    std::fs::set_permissions(&there, PermissionsExt::from_mode(0o600)).expect("its owner's");
    assert_eq!(std::fs::read(&there).expect("still there"), b"x");
    std::fs::remove_file(&there).expect("it is there");
}
