//! `include/weft.h` is what cbindgen makes of the sources.

use std::path::Path;
use std::process::Command;

#[test]
fn the_header_is_that_of_the_sources() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    if Command::new("cbindgen").arg("--version").output().is_err() {
        println!("skipped: cbindgen is not installed");
        return;
    }
    // The packages of this workspace are enough: nothing is downloaded for it.
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let metadata = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--locked"])
        .current_dir(here)
        .output()
        .expect("cargo runs");
    assert!(metadata.status.success(), "{}", String::from_utf8_lossy(&metadata.stderr));
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let described = scratch.path().join("metadata.json");
    std::fs::write(&described, metadata.stdout).expect("a file");
    let made = Command::new("cbindgen")
        .args(["--quiet", "--config", "cbindgen.toml", "--crate", "weft-c"])
        .args(["--lockfile", "../../Cargo.lock", "--metadata"])
        .arg(&described)
        .arg(".")
        .current_dir(here)
        .output()
        .expect("cbindgen runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let made = String::from_utf8(made.stdout).expect("UTF-8");
    let header = here.join("include/weft.h");
    if std::env::var_os("WEFT_BLESS").is_some() {
        std::fs::write(&header, &made).expect("the header");
    }
    let kept = std::fs::read_to_string(&header).expect("the header");
    // Another version of cbindgen may break lines elsewhere.
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&kept), words(&made), "WEFT_BLESS=1 cargo test -p weft-c writes the header");
}
