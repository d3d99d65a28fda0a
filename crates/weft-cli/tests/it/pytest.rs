//! The plugin for pytest, by its own tests.

use std::path::Path;
use std::process::Command;

/// A Python that has pytest: that of the user, or Debian's.
pub fn python() -> Option<&'static str> {
    let has_pytest = |python: &&str| {
        let imported = Command::new(python).args(["-c", "import pytest"]).output();
        imported.is_ok_and(|ran| ran.status.success())
    };
    ["python3", "/usr/bin/python3"].into_iter().find(has_pytest)
}

#[test]
fn the_plugin_for_pytest_passes_its_tests() {
    if !crate::run::can_mount() {
        return;
    }
    let Some(python) = python() else {
        println!("skipped: pytest is not installed");
        return;
    };
    let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/pytest-weft-crash");
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let ran = Command::new(python)
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp"])
        .arg(scratch.path().join("tests"))
        .current_dir(&plugin)
        .env("PYTHONPATH", plugin.join("src"))
        .env("PYTHONPYCACHEPREFIX", scratch.path().join("compiled"))
        .env("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        .env("WEFT", env!("CARGO_BIN_EXE_weft"))
        .output()
        .expect("python runs");
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}{}", String::from_utf8_lossy(&ran.stderr));
    assert!(said.contains(" passed") && !said.contains("skipped"), "{said}");
    println!("{said}");
}
