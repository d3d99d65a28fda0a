//! The Rust example of docs/library.md: it is what stands in `examples/state.rs`, and it runs.

#[path = "../../examples/state.rs"]
mod state;

use std::path::Path;
use std::process::Command;

/// Set in the process that runs the example, in a directory of its own.
const RUNS: &str = "WEFT_RUNS_EXAMPLE";

#[test]
fn the_example_of_the_page_runs() {
    if std::env::var_os(RUNS).is_some() {
        state::run().expect("it runs");
        return;
    }
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(here.join("../../docs/library.md")).expect("the page");
    let block = page.split("```rust,no_run\n").nth(1).and_then(|rest| rest.split("```").next());
    let block = block.expect("an example in Rust");
    assert!(!block.lines().any(|line| line.starts_with("# ")), "hidden lines stand on the page");
    let example = std::fs::read_to_string(here.join("examples/state.rs")).expect("the example");
    let code = example.split_once("\n\n").map(|(_, code)| code);
    let code = code.and_then(|code| code.split("\n// The page ends").next());
    assert_eq!(code, Some(block), "examples/state.rs is not what the page has");
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let ran = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "documents::the_example_of_the_page_runs"])
        .env(RUNS, "1")
        .current_dir(scratch.path())
        .output()
        .expect("it starts");
    assert!(ran.status.success(), "{ran:?}");
    let image = scratch.path().join("v.img");
    let image = image.to_str().expect("UTF-8");
    let volume = weft::Volume::open(image, &weft::Options::read_only()).expect("a volume");
    assert_eq!(volume.read_file(b"/state").expect("the file"), b"42\n");
}
