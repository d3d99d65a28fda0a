//! The example of docs/library.md, which a test compares with that page and runs.

use weft::{Options, Volume};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    weft::mkfs::make_named("v.img", "ext2", Some(16 << 20), "state", false)?;
    let options = Options { order: Some("soft".parse()?), ..Options::default() };
    let volume = Volume::open("v.img", &options)?;

    let written = volume.group()?;
    written.enter_for(|| volume.write_file(b"/state.new", b"42\n", 0o644))??;
    let replaced = volume.group()?;
    replaced.depend(&written)?;
    replaced.enter_for(|| volume.rename(b"/state.new", b"/state"))??;
    replaced.sync()?;
    volume.close()?;
    Ok(())
}

// The page ends before this line: the test calls it.
#[allow(dead_code, clippy::main_recursion)]
pub fn run() -> Result<(), Box<dyn std::error::Error>> {
    main()
}
