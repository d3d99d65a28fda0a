//! The Python package as it is installed: the sources of `python/weft` with the module that cargo has
//! built, run by the package's own tests.

use std::path::Path;
use std::process::Command;

/// A Python that has pytest: that of the user, or Debian's.
fn python() -> Option<&'static str> {
    let has_pytest = |python: &&str| {
        let imported = Command::new(python).args(["-c", "import pytest"]).output();
        imported.is_ok_and(|ran| ran.status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(has_pytest)
}

#[test]
fn the_package_passes_its_tests() {
    let Some(python) = python() else {
        println!("skipped: pytest is not installed");
        return;
    };
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/weft");
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let package = scratch.path().join("site/weft");
    std::fs::create_dir_all(&package).expect("a directory");
    for entry in std::fs::read_dir(here.join("src/weft")).expect("the package") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            std::fs::copy(&path, package.join(path.file_name().expect("a name"))).expect("a copy");
        }
    }
    // Cargo has put the module beside this test.
    let test = std::env::current_exe().expect("the path of this test");
    let module = test.with_file_name("libweft_python.so");
    std::os::unix::fs::symlink(&module, package.join("_weft.abi3.so")).expect("a link");
    let ran = Command::new(python)
        .args(["-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "--basetemp"])
        .arg(scratch.path().join("tests"))
        .current_dir(&here)
        .env("PYTHONPATH", scratch.path().join("site"))
        .env("PYTHONPYCACHEPREFIX", scratch.path().join("compiled"))
        .env("WEFT_DOCUMENTATION", here.join("../../docs"))
        .env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        .output()
        .expect("python runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains(" passed"), "{said}");
    if said.contains("SKIPPED") {
        println!("skipped: {}", said.lines().find(|l| l.contains("SKIPPED")).unwrap_or_default());
    }
    println!("{said}");
}
