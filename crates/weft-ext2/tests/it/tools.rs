//! Other people's tools as oracles. Where one is missing a test is skipped, and says so.

use std::path::Path;
use std::process::Command;

/// Whether e2fsprogs is here; says so if not.
pub fn have_e2fsprogs() -> bool {
    for tool in ["e2fsck", "debugfs", "dumpe2fs", "mke2fs"] {
        if Command::new(tool).arg("-V").output().is_err() {
            println!("skipped: {tool} is not installed");
            return false;
        }
    }
    true
}

/// The output of a tool and its exit status.
pub fn run(command: &mut Command) -> (String, i32) {
    // e2fsck shall not complain that the machine's clock was set back since.
    let tomorrow = (weft_vfs::Time::now().secs + 86_400).to_string();
    let out = command.env("LC_ALL", "C").env("E2FSCK_TIME", tomorrow).output().unwrap();
    let text =
        String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    (text, out.status.code().unwrap_or(-1))
}

/// The output of `e2fsck -fn` beyond its version, the names of its passes, and the summary.
pub fn e2fsck(image: &Path) -> (Vec<String>, i32) {
    let (text, status) = run(Command::new("e2fsck").arg("-fn").arg(image));
    let said = text
        .lines()
        .filter(|line| {
            let summary = line.contains(" files (") && line.ends_with(" blocks");
            !(summary
                || line.is_empty()
                || line.starts_with("e2fsck 1.")
                || line.starts_with("Pass "))
        })
        .map(str::to_owned)
        .collect();
    (said, status)
}

/// Panics unless `e2fsck -fn` finds nothing at all.
pub fn assert_clean(image: &Path, what: &str) {
    let (said, status) = e2fsck(image);
    assert!(status == 0 && said.is_empty(), "{what}: status {status}\n{}", said.join("\n"));
}

/// Unmounts. Tests run side by side in this process: while one of them starts a program, that has
/// the files of all others open until it execs, and so a mount may be busy for a moment.
pub fn unmount(mountpoint: &Path) {
    for _ in 0..100 {
        let (text, status) = run(Command::new("umount").arg(mountpoint));
        if status == 0 {
            return;
        }
        assert!(text.contains("busy"), "{text}");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("{} stays busy", mountpoint.display());
}
