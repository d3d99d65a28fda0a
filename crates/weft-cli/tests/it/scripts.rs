//! The scripts behind `make`: what `make test` says of skipped tests, what `make install` puts where
//! and `make uninstall` takes away, and which packages each needs.

use crate::run::{Bench, Ran, ran, tool};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts").join(name)
}

/// Runs a copy of scripts/test.sh with a cargo that says what `said` does when it is told to test.
fn run_test_script(said: &str, require_all: bool) -> Ran {
    let bench = Bench::new();
    fs::create_dir_all(bench.path("scripts")).unwrap();
    fs::copy(script("test.sh"), bench.path("scripts/test.sh")).unwrap();
    bench.write("scripts/io-uring.sh", b"exit 0\n");
    bench.write("said", said.as_bytes());
    let cargo =
        "#!/bin/sh\n[ \"$1\" = test ] || exit 0\ncase \"$*\" in *--all-targets*) cat said;; esac\n";
    bench.write("cargo", cargo.as_bytes());
    fs::set_permissions(bench.path("cargo"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(bench.path("bin")).unwrap();
    weft_testing::copy_program(&bench.path("cargo"), &bench.path("bin/cargo"));
    let path = format!("{}:{}", bench.path("bin").display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command.arg("scripts/test.sh").current_dir(bench.dir()).env("PATH", path);
    command.env_remove("CARGO").env_remove("WEFT_REQUIRE_ALL").stdin(Stdio::null());
    if require_all {
        command.env("WEFT_REQUIRE_ALL", "1");
    }
    ran(&command.output().unwrap())
}

const SAID: &str = "\
running 3 tests
test a::one ... ok
test b::two ... ok
test c::three ... ok

successes:

---- a::one stdout ----
skipped: frob is not installed

---- b::two stdout ----
what it prints is no reading
skipped: frob is not installed

---- c::three stdout ----
not here: this kernel has no passthrough


successes:
    a::one
    b::two
    c::three

test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s
";

#[test]
fn skipped_tests_are_listed_and_counted() {
    let ran = run_test_script(SAID, false);
    assert_eq!(ran.code, 0, "{ran:#?}");
    let end = ran.out.rsplit("\nnot here:\n").next().unwrap();
    assert_eq!(
        end,
        "  this kernel has no passthrough: c::three\n\nskipped:\n  frob is not installed: a::one \
         b::two\n3 passed, 0 failed, 2 skipped\n"
    );
    assert!(!ran.out.contains("no reading"), "{ran:#?}");
}

#[test]
fn where_all_is_required_a_skip_is_a_failure() {
    let ran = run_test_script(SAID, true);
    assert_eq!(ran.code, 1, "{ran:#?}");
    assert!(ran.out.contains("WEFT_REQUIRE_ALL=1"), "{ran:#?}");
    assert!(ran.out.ends_with("3 passed, 0 failed, 2 skipped\n"), "{ran:#?}");
    // What this kernel does not have is no skip.
    let ran = run_test_script(&SAID.replace("skipped: ", "not here: "), true);
    assert_eq!(ran.code, 0, "{ran:#?}");
    assert!(ran.out.ends_with("3 passed, 0 failed, 0 skipped\n"), "{ran:#?}");
}

#[test]
fn ci_requires_all() {
    let run = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.ci/run");
    assert!(fs::read_to_string(run).unwrap().contains("export WEFT_REQUIRE_ALL=1"));
}

fn files_below(dir: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.is_symlink() {
                dirs.push(path);
            } else {
                found.insert(path);
            }
        }
    }
    found
}

#[test]
fn what_is_installed_is_small_works_and_goes_away_again() {
    let bench = Bench::new();
    // Copied: what is kept apart lies beside the binary.
    let (built, prefix) = (bench.path("weft"), bench.path("prefix"));
    fs::copy(env!("CARGO_BIN_EXE_weft"), &built).unwrap();
    fs::create_dir_all(prefix.join("bin")).unwrap();
    fs::write(prefix.join("bin/other"), b"of somebody else").unwrap();
    let args = [script("install.sh"), built.clone(), prefix.clone()];
    let installed = tool("bash", args.iter().map(|a| a.as_os_str())).unwrap();
    assert_eq!(installed.code, 0, "{installed:#?}");
    let weft = prefix.join("bin/weft");
    let version = Command::new(&weft).arg("--version").output().unwrap();
    assert!(version.status.success());
    let page = fs::read(prefix.join("share/man/man1/weft-mount.1")).unwrap();
    assert!(!page.is_empty());
    if tool("objcopy", [OsStr::new("--version")]).is_some() {
        let len = |path: &Path| fs::metadata(path).unwrap().len();
        assert!(len(&weft) < len(&built) / 2, "{} of {}", len(&weft), len(&built));
        let mut debug = built.into_os_string();
        debug.push(".debug");
        let sections = [OsStr::new("-h"), debug.as_os_str()];
        let sections = tool("objdump", sections).unwrap();
        assert!(sections.out.contains(".debug_line"), "{sections:#?}");
        let own = tool("objdump", [OsStr::new("-h"), weft.as_os_str()]).unwrap();
        assert!(own.out.contains(".gnu_debuglink") && !own.out.contains(".debug_line"), "{own:#?}");
    }
    let removed = tool("bash", [script("uninstall.sh").as_os_str(), prefix.as_os_str()]).unwrap();
    assert_eq!(removed.code, 0, "{removed:#?}");
    assert_eq!(files_below(&prefix), BTreeSet::from([prefix.join("bin/other")]));
}

/// What the first step needs of a bare Debian, as README.md says it.
#[test]
fn the_demo_installs_what_the_readme_says() {
    let text = fs::read_to_string(script("setup.sh")).unwrap();
    let packages = |list: &str| -> Vec<String> {
        let from = text.split(&format!("{list}=(\n")).nth(1).expect("a list");
        let lines = from.split("\n)").next().unwrap().lines();
        lines
            .map(|l| l.trim_matches([' ', '"']).split_whitespace().nth(1).unwrap().into())
            .collect()
    };
    let demo = [packages("needs"), packages("demo")].concat();
    let readme = fs::read_to_string(script("../README.md")).unwrap();
    let readme = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(readme.contains(&format!("{}.", demo.join(", "))), "{demo:?}");
    // No server among them, and nothing that only tests compare with.
    for package in packages("tests") {
        assert!(!demo.contains(&package), "{package} is for tests");
    }
}
