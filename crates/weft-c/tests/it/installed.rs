//! The library as `scripts/install-library.sh` installs it: programs are compiled against it as its
//! users do, with what pkg-config says, and run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use tempfile::TempDir;
use weft::mount_options::MountOptions;

const PREFIX: &str = "/opt/weft";

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// The directory of the libraries that cargo has built: that of this test.
fn built() -> PathBuf {
    let test = std::env::current_exe().expect("the path of this test");
    test.parent().expect("a directory").to_owned()
}

fn text(output: &Output) -> String {
    let of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    of(&output.stdout) + &of(&output.stderr)
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(output.status.success(), "{command:?}: {}", text(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn is_there(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        println!("skipped: {tool} is not installed");
    }
    found
}

/// The library, installed for `PREFIX` below a directory, as packagers do; `None` if a tool is missing.
fn installed() -> Option<&'static Path> {
    static INSTALLED: OnceLock<TempDir> = OnceLock::new();
    if !is_there("cc") || !is_there("pkg-config") {
        return None;
    }
    let destination = INSTALLED.get_or_init(|| {
        let destination = tempfile::tempdir().expect("a temporary directory");
        install(destination.path());
        destination
    });
    Some(destination.path())
}

fn install(destination: &Path) {
    run(Command::new("bash")
        .arg(workspace().join("scripts/install-library.sh"))
        .arg(built())
        .arg(destination.join(&PREFIX[1..]))
        .arg(PREFIX));
}

/// The words of pkg-config's answer, with the paths of the destination.
fn pkg_config(destination: &Path, arguments: &[&str]) -> Vec<String> {
    let said = run(Command::new("pkg-config")
        .args(arguments)
        .arg("weft")
        .env("PKG_CONFIG_PATH", destination.join("opt/weft/lib/pkgconfig"))
        .env("PKG_CONFIG_SYSROOT_DIR", destination));
    said.split_whitespace().map(str::to_owned).collect()
}

/// A program, compiled, to be run with the shared library.
fn compiled(destination: &Path, source: &str, name: &str, more: &[&str]) -> Command {
    let program = destination.join(name);
    run(Command::new("cc")
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g"])
        .args(more)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(source))
        .arg("-o")
        .arg(&program)
        .args(pkg_config(destination, &["--cflags", "--libs"]))
        .arg("-lpthread"));
    let mut command = Command::new(program);
    command.env("LD_LIBRARY_PATH", destination.join("opt/weft/lib")).env("LC_ALL", "C");
    command
}

/// The output of the example for a new volume.
const EXAMPLE: &str = "\
durable: yes
file /mail/new, 21 bytes
From: ann

The mail.
No such file or directory: cannot open /mail/old in the volume: no such file or directory
check: sound
";

#[test]
fn the_example_runs_with_the_shared_library() {
    let Some(destination) = installed() else { return };
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let mut example = compiled(destination, "examples/order.c", "order", &[]);
    assert_eq!(run(example.arg(scratch.path().join("v.img"))), EXAMPLE);
}

#[test]
fn the_example_runs_with_the_static_library() {
    let Some(destination) = installed() else { return };
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let program = destination.join("order-static");
    let libs = pkg_config(destination, &["--static", "--libs"]);
    let archive = destination.join("opt/weft/lib/libweft.a");
    run(Command::new("cc")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/order.c"))
        .arg("-o")
        .arg(&program)
        .args(pkg_config(destination, &["--cflags"]))
        .arg(archive)
        .args(libs.iter().filter(|lib| *lib != "-lweft")));
    assert_eq!(run(Command::new(program).arg(scratch.path().join("v.img"))), EXAMPLE);
}

/// As docs/library.md says it: there is no static form of libgcc_s.
#[test]
fn the_example_runs_as_a_static_program() {
    let Some(destination) = installed() else { return };
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let page = std::fs::read_to_string(workspace().join("docs/library.md")).expect("the page");
    assert!(page.contains("--static --cflags --libs weft | sed 's/-lgcc_s/-lgcc_eh/'"), "{page}");
    let libs = pkg_config(destination, &["--static", "--cflags", "--libs"]);
    let program = destination.join("order-all-static");
    let linked = Command::new("cc")
        .arg("-static")
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/order.c"))
        .arg("-o")
        .arg(&program)
        .args(libs.iter().map(|lib| if lib == "-lgcc_s" { "-lgcc_eh" } else { lib }))
        .output()
        .expect("cc runs");
    assert!(linked.status.success(), "{}", text(&linked));
    assert_eq!(run(Command::new(program).arg(scratch.path().join("v.img"))), EXAMPLE);
}

#[test]
fn the_example_orders_system_calls_on_a_mount() {
    let Some(destination) = installed() else { return };
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let session = mounted(scratch.path(), "ext2", &weft::Options::default());
    let mut example = compiled(destination, "examples/order.c", "order-on-mount", &[]);
    let output = example.arg("--on").arg(scratch.path().join("m")).output().expect("it runs");
    session.unmount().expect("it is unmounted");
    assert_eq!(text(&output), "durable: yes\n");
}

/// A new volume, mounted on `m` in a directory.
fn mounted(directory: &Path, format: &str, options: &weft::Options) -> weft::Session {
    let (image, at) = (directory.join("v.img"), directory.join("m"));
    std::fs::create_dir(&at).expect("a directory");
    let image = image.to_str().expect("UTF-8");
    weft::mkfs::make_named(image, format, Some(256 << 20), "", false).expect("a volume");
    let stack = weft::Stack::open(image, options).expect("it opens");
    let how = MountOptions { leave_signals: true, ..MountOptions::default() };
    stack.mount(&at, &how).expect("it is mounted")
}

#[test]
fn a_group_takes_the_changes_of_a_thread_a_process_or_an_open_file() {
    let Some(destination) = installed() else { return };
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let options = weft::Options { open_files: true, ..weft::Options::default() };
    let session = mounted(scratch.path(), "ext2", &options);
    let mut scopes = compiled(destination, "tests/c/scopes.c", "scopes", &[]);
    let output = scopes.arg(scratch.path()).output().expect("it runs");
    session.unmount().expect("it is unmounted");
    assert_eq!(text(&output), "all as expected\n");
}

#[test]
fn a_group_is_of_a_kind_and_tells_that_it_is_durable() {
    let Some(destination) = installed() else { return };
    if !can_mount() {
        return;
    }
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let session = mounted(scratch.path(), "ext3", &weft::Options::default());
    let mut kinds = compiled(destination, "tests/c/kinds.c", "kinds", &[]);
    let output = kinds.arg(scratch.path()).output().expect("it runs");
    session.unmount().expect("it is unmounted");
    assert_eq!(text(&output), "all as expected\n");
}

#[test]
fn what_a_program_does_wrong_is_an_error() {
    let Some(destination) = installed() else { return };
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let mut hostile = compiled(destination, "tests/c/hostile.c", "hostile", &[]);
    assert_eq!(run(hostile.arg(scratch.path())), "all as expected\n");
}

#[test]
fn a_child_of_fork_changes_nothing_and_prints_nothing() {
    let Some(destination) = installed() else { return };
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let mut forks = compiled(destination, "tests/c/fork.c", "fork", &[]);
    let output = forks.arg(scratch.path()).output().expect("it runs");
    assert_eq!(text(&output), "all as expected\n");
    for image in ["a.img", "b.img", "c.img"] {
        let image = scratch.path().join(image);
        let options = weft::check::Options::default();
        let found = weft::check::check(image.to_str().expect("UTF-8"), &options).expect("it reads");
        assert_eq!(found.problems(), [""; 0], "{}", image.display());
    }
}

#[test]
fn neither_address_nor_undefined_behaviour_sanitizer_complains() {
    let Some(destination) = installed() else { return };
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let mut example = compiled(destination, "examples/order.c", "order-checked", &sanitizers);
    assert_eq!(run(example.arg(scratch.path().join("e.img"))), EXAMPLE);
    let mut hostile = compiled(destination, "tests/c/hostile.c", "hostile-checked", &sanitizers);
    assert_eq!(run(hostile.arg(scratch.path())), "all as expected\n");
}

#[test]
fn an_installation_is_whole_and_leaves_nothing_when_removed() {
    let Some(destination) = installed() else { return };
    let lib = destination.join("opt/weft/lib");
    let target = std::fs::read_link(lib.join("libweft.so")).expect("a link");
    assert_eq!(target, Path::new("libweft.so.0"));
    assert!(lib.join("libweft.so.0").exists() && lib.join("libweft.a").exists());
    let dynamic = run(Command::new("readelf").arg("-d").arg(lib.join("libweft.so")));
    assert!(dynamic.contains("soname: [libweft.so.0]"), "{dynamic}");
    let symbols =
        run(Command::new("nm").args(["-D", "--defined-only"]).arg(lib.join("libweft.so")));
    let names = symbols.lines().filter_map(|line| line.split_whitespace().last());
    let foreign: Vec<_> = names.filter(|name| !name.starts_with("weft_")).collect();
    assert!(foreign.is_empty(), "symbols that are not weft's: {foreign:?}");
    let header = std::fs::read_to_string(destination.join("opt/weft/include/weft.h")).expect("it");
    let functions = symbols.lines().count();
    let declared = header.matches("(").count();
    assert!(functions > 30 && declared >= functions, "{functions} functions, {declared}");

    let other = tempfile::tempdir().expect("a temporary directory");
    install(other.path());
    let prefix = other.path().join("opt/weft");
    run(Command::new("bash").arg(workspace().join("scripts/uninstall.sh")).arg(&prefix));
    let left = run(Command::new("find").arg(&prefix).args(["-not", "-type", "d"]));
    assert_eq!(left, "");
}

fn can_mount() -> bool {
    let root = run(Command::new("id").arg("-u")).trim() == "0";
    let helper = Command::new("fusermount3").arg("--version").output().is_ok();
    if !Path::new("/dev/fuse").exists() {
        println!("skipped: there is no /dev/fuse");
        return false;
    }
    if !root && !helper {
        println!("skipped: not root, and there is no fusermount3");
    }
    root || helper
}

#[test]
fn the_program_of_the_documentation_runs() {
    let Some(destination) = installed() else { return };
    let page = std::fs::read_to_string(workspace().join("docs/library.md")).expect("the page");
    let program = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let source = destination.join("state.c");
    std::fs::write(&source, program.expect("a program in C")).expect("a file");
    let source = source.to_str().expect("UTF-8");
    let scratch = tempfile::tempdir().expect("a temporary directory");
    run(compiled(destination, source, "state", &[]).current_dir(scratch.path()));
    let image = scratch.path().join("v.img");
    let image = image.to_str().expect("UTF-8");
    let volume = weft::Volume::open(image, &weft::Options::read_only()).expect("a volume");
    assert_eq!(volume.read_file(b"/state").expect("the file"), b"42\n");
}
