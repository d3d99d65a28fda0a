//! The daemon of a mount with networks is killed while networks are attached and files move between
//! rules: each name that is there afterwards leads to the whole content.

use crate::run::{Bench, can_mount};
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

const RULES: &str = "/a/ zstd\n/b/ lz4\n/e/ aead key=work\n";

/// Networks that are attached in turn.
const ATTACHING: &str = "while :; do for n in zstd 'aead key=work' rot13 ''; do \
                         setfattr -n user.weft.convert -v \"$n\" m/c/f || exit 0; done; done";

/// Rules under which a file is moved in turn.
const MOVING: &str = "cd m; at=$(ls */f | head -n 1 | cut -d / -f 1); while :; do \
                      for d in a b c e; do [ $d = \"$at\" ] && continue; \
                      mv \"$at/f\" $d/f 2>/dev/null || exit 0; at=$d; done; done";

fn kill(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("a process"), rustix::process::Signal::KILL)
        .expect("the daemon is there");
}

/// Kills the daemon while a shell script changes the file again and again.
fn killed_while(script: &str, kills: u64) {
    let bench = Bench::new();
    for directory in ["m", "data/a", "data/b", "data/c", "data/e"] {
        fs::create_dir_all(bench.path(directory)).unwrap();
    }
    bench.write("rules", RULES.as_bytes());
    bench.write("key", "5a".repeat(32).as_bytes());
    let content: String = (0..5000).map(|n| format!("{n}\n")).collect();
    bench.write("data/c/f", content.as_bytes());
    let mut rng = weft::block::Rng::new(kills);
    for round in 0..=kills {
        bench.ok(&[
            "mount",
            "hostdir:data",
            "m",
            "--background",
            "--pid-file",
            "pid",
            "--transform",
            "rules",
            "--key",
            "work=key",
        ]);
        let mut found = 0;
        for directory in ["a", "b", "c", "e"] {
            let path = bench.path(&format!("m/{directory}/f"));
            match fs::read(&path) {
                Ok(read) => {
                    assert!(read == content.as_bytes(), "round {round}: {directory}/f");
                    found += 1;
                }
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
                Err(e) => panic!("round {round}: {directory}/f: {e}"),
            }
        }
        assert!(found > 0, "round {round}: the file is lost");
        if round == kills {
            bench.ok(&["umount", "m"]);
            return;
        }
        // Of two names one goes, so that the next round begins with one file.
        for directory in ["a", "b", "c", "e"].iter().rev() {
            if found > 1 && fs::remove_file(bench.path(&format!("m/{directory}/f"))).is_ok() {
                found -= 1;
            }
        }
        let mut changing = Command::new("sh")
            .args(["-c", script])
            .current_dir(bench.dir())
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("a shell");
        std::thread::sleep(Duration::from_millis(20 + rng.below(200)));
        kill(fs::read_to_string(bench.path("pid")).unwrap().trim().parse().unwrap());
        let _ = bench.run(&["umount", "--lazy", "m"]);
        changing.wait().expect("the script ends");
    }
}

fn can_run() -> bool {
    let has_setfattr = Command::new("setfattr").arg("--version").output().is_ok();
    if !has_setfattr {
        println!("skipped: there is no setfattr");
    }
    has_setfattr && can_mount()
}

#[test]
fn a_killed_daemon_leaves_whole_files_whatever_it_was_attaching() {
    if can_run() {
        killed_while(ATTACHING, 3);
        killed_while(MOVING, 3);
    }
}

#[test]
#[ignore = "a campaign: make test-long"]
fn long_many_kills_while_networks_change() {
    if can_run() {
        killed_while(ATTACHING, 40);
        killed_while(MOVING, 60);
    }
}
