//! The mount: forks as attributes, as AppleDoubles, as files with a suffix; names of both cases.

use super::{macbinary, noise, read, volume};
use crate::run::{Bench, can_mount};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A mounted volume; whatever a test does, nothing stays mounted.
struct Mounted<'a> {
    bench: &'a Bench,
    dir: PathBuf,
}

impl<'a> Mounted<'a> {
    fn new(bench: &'a Bench, more: &[&str]) -> Self {
        fs::create_dir_all(bench.path("m")).unwrap();
        let args = ["mount", "v.img", "m", "--background", "--quiet"];
        bench.ok(&[&args[..], more].concat());
        Self { bench, dir: bench.path("m") }
    }

    fn end(self) {
        self.bench.ok(&["umount", "m"]);
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn names(&self) -> Vec<String> {
        let all = fs::read_dir(&self.dir).unwrap();
        let mut all: Vec<String> =
            all.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        all.sort();
        all
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // Most often it is unmounted already; then this fails and that is well.
        let _ = self.bench.run(&["umount", "--lazy", "m"]);
    }
}

fn xattr(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 64 << 10];
    let len = rustix::fs::getxattr(path, OsStr::new(name), &mut value[..]).ok()?;
    value.truncate(len);
    Some(value)
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, OsStr::new(name), value, flags).unwrap();
}

/// `v.img` with a file of both forks.
fn with_game() -> Bench {
    let bench = volume();
    let packed = macbinary(b"Game", b"APPLWeFt", &noise(30_000, 1), &noise(9_000, 2));
    bench.write("Game.bin", &packed);
    bench.ok(&["put", "--as", "macbinary", "Game.bin", "v.img:/", "--quiet"]);
    bench
}

#[test]
fn forks_are_attributes() {
    if !can_mount() {
        return;
    }
    let bench = with_game();
    let mount = Mounted::new(&bench, &["--forks", "xattr"]);
    let game = mount.at("Game");
    assert_eq!(fs::read(&game).unwrap(), noise(30_000, 1));
    assert_eq!(xattr(&game, "user.com.apple.ResourceFork"), Some(noise(9_000, 2)));
    assert_eq!(xattr(&game, "user.hfs.type").as_deref(), Some(&b"APPL"[..]));
    let info = xattr(&game, "user.com.apple.FinderInfo").unwrap();
    assert_eq!((&info[..8], info.len()), (&b"APPLWeFt"[..], 32));
    set_xattr(&game, "user.com.apple.ResourceFork", &noise(20_000, 3));
    set_xattr(&game, "user.hfs.creator", b"XXXX");
    fs::write(mount.at("new.txt"), b"text").unwrap();
    assert_eq!(xattr(&mount.at("new.txt"), "user.hfs.type").as_deref(), Some(&b"TEXT"[..]));
    assert_eq!(mount.names(), ["Game", "new.txt"]);
    mount.end();
    let info = &bench.json(&["hfs", "info", "v.img:/Game"])[0];
    assert_eq!((&info["creator"], &info["resource_bytes"]), (&"XXXX".into(), &20_000.into()));
    bench.ok(&["fsck", "v.img"]);
}

/// Programs that know nothing of forks: nothing that they do with one of the two files destroys the
/// other.
#[test]
fn no_fork_is_lost_by_a_program_that_does_not_know_of_it() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    let fork = noise(70_000, 2);
    bench.write("Game.bin", &macbinary(b"Game", b"APPLWeFt", &noise(30_000, 1), &fork));
    bench.ok(&["put", "--as", "macbinary", "Game.bin", "v.img:/", "--quiet"]);
    let mount = Mounted::new(&bench, &[]);
    assert_eq!(mount.names(), ["._Game", "Game"]);
    let run = |command: &str| {
        let done = std::process::Command::new("sh")
            .args(["-e", "-c", command])
            .current_dir(bench.dir())
            .status()
            .unwrap();
        assert!(done.success(), "{command}");
    };
    // Out of the mount, and back.
    run("mkdir x; mv m/Game x/");
    assert_eq!(mount.names(), ["._Game"]);
    assert!(fs::read(mount.at("._Game")).unwrap().ends_with(&fork));
    run("mv x/Game m/");
    assert_eq!(mount.names(), ["._Game", "Game"]);
    run("mv m/Game m/._Game x/");
    assert_eq!(mount.names(), [""; 0]);
    assert!(fs::read(bench.path("x/._Game")).unwrap().ends_with(&fork));
    run("mv x/Game x/._Game m/");
    // By a program that writes a new file in place of the old one.
    run("echo new > m/new; mv m/new m/Game");
    assert_eq!(fs::read(mount.at("Game")).unwrap(), b"new\n");
    assert!(fs::read(mount.at("._Game")).unwrap().ends_with(&fork));
    // What is no AppleDouble is a file.
    run("echo notes > m/._Other; echo data > m/Other; echo more > m/._Other");
    assert_eq!(mount.names(), ["._Game", "._Other", "Game", "Other"]);
    // The kernel keeps a listing until a name in it changes.
    run("echo notes > m/._Game; echo x > m/x; rm m/x");
    assert_eq!(mount.names(), ["._Game", "._Other", "Game", "Other", "\u{2024}_Game"]);
    mount.end();
    assert_eq!(bench.ok(&["cat", "v.img:/._Other"]), "more\n");
    assert_eq!(bench.ok(&["cat", "v.img:/._Game"]), "notes\n");
    let back = bench.command(&["cat", "--resource", "v.img:/Game"]).output().unwrap();
    assert!(back.stdout == fork);
    // A folder is removed as a whole.
    let mount = Mounted::new(&bench, &[]);
    run("mkdir m/d; cp m/Game m/d; cp m/._Game m/d; rm -r m/d");
    // Without its file, a `._Game` that is a file is called that again.
    run("rm m/Game m/Other; rm m/._*");
    assert_eq!(mount.names(), [""; 0]);
    mount.end();
    bench.ok(&["fsck", "v.img"]);
    // As attributes the fork is too long, and that is said.
    bench.ok(&["put", "--as", "macbinary", "Game.bin", "v.img:/", "--quiet"]);
    let said = bench.fails(1, &["get", "--as", "xattr", "v.img:/Game", "y"]);
    assert!(said.contains("64 KiB") && said.contains("appledouble"), "{said}");
}

/// A second run of rsync has nothing to send.
#[test]
fn rsync_settles() {
    if !can_mount() || !super::have(&["rsync"]) {
        return;
    }
    let bench = volume();
    let meta = weft::hfs::interchange::Meta { resource_bytes: 5000, ..Default::default() };
    let head = weft::hfs::interchange::apple::short_header(&meta).unwrap();
    // As macOS writes it, and as unar does.
    let mut macos = head.clone();
    macos[8..24].copy_from_slice(b"Mac OS X        ");
    for (name, head) in [("App", head), ("Other", macos)] {
        bench.write(&format!("in/{name}"), b"data");
        bench.write(&format!("in/._{name}"), &[&head[..], &noise(5000, 3)].concat());
    }
    let at = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
    for entry in fs::read_dir(bench.path("in")).unwrap() {
        fs::File::open(entry.unwrap().path()).unwrap().set_modified(at).unwrap();
    }
    let sync = |more: &str| {
        let done = std::process::Command::new("rsync")
            .args(["-a", "--itemize-changes", more, "in/", "m/"])
            .current_dir(bench.dir())
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    let mount = Mounted::new(&bench, &[]);
    assert!(sync("--no-owner").contains("._App"));
    let again = sync("--checksum");
    assert!(!again.contains(">f"), "{again}");
    mount.end();
    // In the next mount, too; of other layouts only the content differs.
    let mount = Mounted::new(&bench, &[]);
    let again = sync("--no-owner");
    assert!(!again.contains(">f"), "{again}");
    mount.end();
}

#[test]
fn forks_are_appledoubles() {
    if !can_mount() {
        return;
    }
    let bench = with_game();
    let mount = Mounted::new(&bench, &["--forks", "appledouble"]);
    assert_eq!(mount.names(), ["._Game", "Game"]);
    let double = fs::read(mount.at("._Game")).unwrap();
    assert_eq!(double[..4], [0, 5, 0x16, 7]);
    assert_eq!(fs::metadata(mount.at("._Game")).unwrap().len(), double.len() as u64);
    assert!(double.ends_with(&noise(9_000, 2)));
    assert_eq!(xattr(&mount.at("Game"), "user.com.apple.ResourceFork"), None);

    // A copy of both halves is a copy of the file, in either order.
    fs::copy(mount.at("Game"), mount.at("First")).unwrap();
    fs::write(mount.at("._First"), &double).unwrap();
    fs::write(mount.at("._Second"), &double).unwrap();
    assert!(mount.names().contains(&"._Second".to_owned()), "it waits for its file");
    fs::copy(mount.at("Game"), mount.at("Second")).unwrap();
    // As rsync does it: under another name, then renamed.
    fs::copy(mount.at("Game"), mount.at("Third")).unwrap();
    fs::write(mount.at(".x.tmp"), &double).unwrap();
    fs::rename(mount.at(".x.tmp"), mount.at("._Third")).unwrap();
    // What moves takes its companion with it.
    fs::rename(mount.at("Third"), mount.at("Moved")).unwrap();
    assert!(!mount.at("._Third").exists());
    assert_eq!(fs::read(mount.at("._Moved")).unwrap().len(), double.len());
    // Large, in pieces.
    let large = noise(700_000, 4);
    let mut whole = double[..double.len() - 9_000].to_vec();
    let entry = (0..4).map(|n| 26 + 12 * n).find(|&e| whole[e..e + 4] == [0, 0, 0, 2]).unwrap();
    whole[entry + 8..entry + 12].copy_from_slice(&(large.len() as u32).to_be_bytes());
    whole.extend_from_slice(&large);
    fs::write(mount.at("._First"), &whole).unwrap();
    fs::remove_file(mount.at("._Second")).unwrap();
    assert!(!mount.at("._Second").exists() && mount.at("Second").exists());
    assert_eq!(mount.names(), ["._First", "._Game", "._Moved", "First", "Game", "Moved", "Second"]);
    mount.end();

    let of = |name: &str| bench.json(&["hfs", "info", &format!("v.img:/{name}")])[0].clone();
    assert_eq!(of("First")["resource_bytes"], 700_000);
    assert_eq!(of("First")["file_type"], "APPL");
    assert_eq!(of("Moved")["resource_bytes"], 9_000);
    assert_eq!(of("Moved")["modified"], of("Game")["modified"], "dates come with it");
    assert_eq!(of("Second")["resource_bytes"], 0);
    assert_eq!(bench.ok(&["ls", "-a", "v.img:/"]).matches("._").count(), 0);
    let back = bench.command(&["cat", "--resource", "v.img:/First"]).output().unwrap();
    assert!(back.stdout == large);
    bench.ok(&["fsck", "v.img"]);
}

#[test]
fn a_tree_is_copied_through_the_mount_with_cp_and_back() {
    if !can_mount() {
        return;
    }
    let bench = with_game();
    bench.ok(&["mkdir", "v.img:/A Folder"]);
    for n in 0..40 {
        bench.ok(&["cp", "v.img:/Game", &format!("v.img:/A Folder/Copy {n}"), "--quiet"]);
    }
    let mount = Mounted::new(&bench, &["-o", "forks=appledouble"]);
    let copy = |from: &PathBuf, to: &PathBuf| {
        let done = std::process::Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap();
        assert!(done.success());
    };
    copy(&mount.at("A Folder"), &bench.path("out"));
    assert_eq!(fs::read_dir(bench.path("out")).unwrap().count(), 80);
    copy(&bench.path("out"), &mount.at("Back"));
    mount.end();
    let list = bench.json(&["hfs", "ls", "v.img:/Back"]);
    assert_eq!(list[0].as_array().unwrap().len(), 40);
    for row in list[0].as_array().unwrap() {
        assert_eq!(row["resource_bytes"], 9_000, "{row}");
        assert_eq!(row["file_type"], "APPL", "{row}");
    }
    bench.ok(&["fsck", "v.img"]);
}

#[test]
fn forks_are_files_with_a_suffix() {
    if !can_mount() {
        return;
    }
    let bench = with_game();
    let mount = Mounted::new(&bench, &["--forks", "suffix"]);
    assert_eq!(mount.names(), ["Game", "Game..finf", "Game..rsrc"]);
    assert_eq!(fs::read(mount.at("Game..rsrc")).unwrap(), noise(9_000, 2));
    assert_eq!(fs::read(mount.at("Game..finf")).unwrap()[..8], *b"APPLWeFt");
    fs::write(mount.at("Game..rsrc"), noise(500_000, 5)).unwrap();
    fs::write(mount.at("bare"), b"").unwrap();
    fs::write(mount.at("bare..rsrc"), b"resource").unwrap();
    let mut info = [0; 32];
    info[..8].copy_from_slice(b"rsrcRSED");
    fs::write(mount.at("bare..finf"), info).unwrap();
    mount.end();
    let back = bench.command(&["cat", "--resource", "v.img:/Game"]).output().unwrap();
    assert!(back.stdout == noise(500_000, 5));
    let bare = &bench.json(&["hfs", "info", "v.img:/bare"])[0];
    assert_eq!((&bare["file_type"], &bare["resource_bytes"]), (&"rsrc".into(), &8.into()));
    bench.ok(&["fsck", "v.img"]);
}

#[test]
fn forks_are_not_shown() {
    if !can_mount() {
        return;
    }
    let bench = with_game();
    let mount = Mounted::new(&bench, &["--forks", "none", "--read-only"]);
    assert_eq!(mount.names(), ["Game"]);
    assert_eq!(xattr(&mount.at("Game"), "user.com.apple.FinderInfo"), None);
    mount.end();
}

#[test]
fn a_name_is_one_in_both_cases() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    let mount = Mounted::new(&bench, &[]);
    assert!(!mount.at("README").exists());
    fs::write(mount.at("ReadMe"), b"one").unwrap();
    assert_eq!(fs::read(mount.at("README")).unwrap(), b"one", "it was looked for before");
    // The kernel takes two spellings of one name for one file, and moves nothing.
    fs::rename(mount.at("readme"), mount.at("other")).unwrap();
    fs::rename(mount.at("OTHER"), mount.at("README")).unwrap();
    assert_eq!(mount.names(), ["README"]);
    fs::remove_file(mount.at("ReadMe")).unwrap();
    assert!(!mount.at("README").exists());
    mount.end();
}

#[test]
fn an_owner_is_chosen_and_a_journal_is_replayed_after_a_kill() {
    if !can_mount() {
        return;
    }
    let bench = volume();
    // What belongs to another user is closed to all but root.
    let user = rustix::process::geteuid();
    let wanted = (if user.is_root() { 1234 } else { user.as_raw() }, 99);
    let options = format!("order=journal=ordered,uid={},gid={}", wanted.0, wanted.1);
    let mount = Mounted::new(&bench, &["-o", &options, "--pid-file", "pid"]);
    let meta = fs::metadata(&mount.dir).unwrap();
    let owner =
        (std::os::unix::fs::MetadataExt::uid(&meta), std::os::unix::fs::MetadataExt::gid(&meta));
    assert_eq!(owner, wanted);
    // Longer than the log, as a hole and as data.
    let long = fs::File::create(mount.at("long")).unwrap();
    long.set_len(6_000_000).unwrap();
    fs::write(mount.at("data"), noise(3_000_000, 7)).unwrap();
    for n in 0..50 {
        fs::create_dir(mount.at(&format!("d{n}"))).unwrap();
        let file = fs::File::create(mount.at(&format!("d{n}/f"))).unwrap();
        std::io::Write::write_all(&mut &file, &noise(3000, n)).unwrap();
        if n == 30 {
            file.sync_all().unwrap();
        }
    }
    let pid: i32 = fs::read_to_string(bench.path("pid")).unwrap().trim().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    drop(mount);
    // A check without a repair replays the journal in memory, and leaves the image alone.
    let before = read(&bench.path("v.img"));
    let report = bench.run(&["fsck", "--json", "v.img"]);
    assert_eq!(read(&bench.path("v.img")), before);
    let report: serde_json::Value = serde_json::from_str(&report.out).unwrap();
    assert_eq!(
        (&report["clean"], &report["journal_replayed"]),
        (&true.into(), &true.into()),
        "{report}"
    );
    bench.ok(&["get", "v.img:/d30/f", "back"]);
    assert_eq!(read(&bench.path("back")), noise(3000, 30));
    bench.ok(&["put", "back", "v.img:/again", "--quiet"]);
    bench.ok(&["fsck", "v.img"]);
}

/// What `umask=` takes away is away from files, their companions and folders; `chmod` still locks.
#[test]
fn a_mask_keeps_a_volume_to_its_owner() {
    if !can_mount() {
        return;
    }
    let bench = with_game();
    bench.ok(&["mkdir", "v.img:/folder"]);
    let mode = |path: PathBuf| {
        std::os::unix::fs::MetadataExt::mode(&fs::symlink_metadata(path).unwrap()) & 0o777
    };
    for (forks, companion) in [("appledouble", "._game"), ("suffix", "game..rsrc")] {
        let mount = Mounted::new(&bench, &["--forks", forks, "-o", "umask=077"]);
        let name = mount.names().into_iter().find(|n| n.eq_ignore_ascii_case("game")).unwrap();
        let companion = companion.replace("game", &name);
        assert_eq!(mode(mount.dir.clone()), 0o700);
        assert_eq!(mode(mount.at("folder")), 0o700);
        assert_eq!((mode(mount.at(&name)), mode(mount.at(&companion))), (0o600, 0o600), "{forks}");
        let set = |bits| fs::set_permissions(mount.at(&name), fs::Permissions::from_mode(bits));
        set(0o444).unwrap();
        assert_eq!((mode(mount.at(&name)), mode(mount.at(&companion))), (0o400, 0o400), "{forks}");
        set(0o600).unwrap();
        mount.end();
    }
    let mount = Mounted::new(&bench, &["-o", "fmask=222"]);
    let name = mount.names().into_iter().find(|n| n.eq_ignore_ascii_case("game")).unwrap();
    assert_eq!((mode(mount.at(&name)), mode(mount.at("folder"))), (0o444, 0o755));
    // No permission to write is seen, so that this takes none away: the file is not locked by it.
    fs::set_permissions(mount.at(&name), fs::Permissions::from_mode(0o444)).unwrap();
    mount.end();
    let mount = Mounted::new(&bench, &[]);
    assert_eq!(mode(mount.at(&name)), 0o644);
    mount.end();
}

/// A file written anew is beside the old one for a while, under a name that must fit.
#[test]
fn files_with_networks_are_written_whatever_the_length_of_their_names() {
    if !can_mount() {
        return;
    }
    for kind in ["hfs", "mfs"] {
        let bench = Bench::new();
        let size = if kind == "mfs" { "800K" } else { "20M" };
        bench.ok(&["mkfs", kind, "v.img", "--size", size, "--quiet"]);
        bench.write("rules", b"*.z zstd\n*.s aead key=work\n");
        bench.write("key", "5a".repeat(32).as_bytes());
        let options = ["--transform", "rules", "--key", "work=key"];
        let mount = Mounted::new(&bench, &options);
        let long = format!("{}.z", "n".repeat(29));
        let sealed = format!("{}.s", "n".repeat(29));
        for (name, byte) in [("a.z", b'a'), (&long, b'b'), ("a.s", b'c'), (&sealed, b'd')] {
            for len in [10, 9000, 40_000] {
                fs::write(mount.at(name), vec![byte; len]).unwrap();
            }
            let file = fs::File::open(mount.at(name)).unwrap();
            file.sync_all().unwrap_or_else(|e| panic!("{kind}, {name}: {e}"));
        }
        fs::rename(mount.at("a.z"), mount.at("b.z")).unwrap();
        fs::write(mount.at("b.z"), "again").unwrap();
        mount.end();
        let mount = Mounted::new(&bench, &options);
        assert_eq!(fs::read(mount.at("b.z")).unwrap(), b"again", "{kind}");
        for (name, byte) in [(long.as_str(), b'b'), ("a.s", b'c'), (&sealed, b'd')] {
            assert!(fs::read(mount.at(name)).unwrap() == vec![byte; 40_000], "{kind}, {name}");
        }
        mount.end();
        bench.ok(&["fsck", "v.img"]);
    }
}

/// A SCSI disk of two volumes is the usual case.
#[test]
fn two_partitions_of_one_image_are_mounted_for_writing_at_once() {
    if !can_mount() {
        return;
    }
    let bench = Bench::new();
    // An MBR with partitions of 4 MiB at 1 and at 5 MiB.
    let mut disk = vec![0; 9 << 20];
    for (entry, start) in [(446, 2048_u32), (462, 10240)] {
        disk[entry + 4] = 0xaf;
        disk[entry + 8..entry + 12].copy_from_slice(&start.to_le_bytes());
        disk[entry + 12..entry + 16].copy_from_slice(&8192_u32.to_le_bytes());
    }
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    bench.write("d.img", &disk);
    let parts = ["d.img?partition=1", "d.img?partition=2"];
    for (part, dir) in parts.iter().zip(["one", "two"]) {
        std::fs::create_dir(bench.path(dir)).unwrap();
        bench.ok(&["mkfs", "hfs", part, "--force", "--label", dir, "--quiet"]);
        bench.ok(&["mount", part, dir, "--background", "--quiet"]);
    }
    for dir in ["one", "two"] {
        std::fs::write(bench.path(dir).join("file"), noise(300_000, dir.len() as u64)).unwrap();
    }
    std::fs::create_dir(bench.path("third")).unwrap();
    let said = bench.fails(1, &["mount", parts[0], "third", "--background"]);
    assert!(said.contains("in use"), "{said}");
    let said = bench.fails(1, &["mkfs", "hfs", "d.img", "--force"]);
    assert!(said.contains("in use"), "all of it: {said}");
    bench.ok(&["umount", "one"]);
    // The other one goes on meanwhile.
    bench.ok(&["fsck", parts[0]]);
    std::fs::write(bench.path("two/later"), "later").unwrap();
    bench.ok(&["umount", "two"]);
    for (part, dir) in parts.iter().zip(["one", "two"]) {
        bench.ok(&["fsck", part]);
        bench.ok(&["get", &format!("{part}:/file"), "back", "--quiet"]);
        assert_eq!(read(&bench.path("back")), noise(300_000, dir.len() as u64));
    }
    assert_eq!(bench.ok(&["cat", "d.img?partition=2:/later"]), "later");
}
