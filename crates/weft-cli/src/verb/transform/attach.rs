//! `transform attach`, `detach`, `push`, `pop` and `link`.

use super::files::Target;
use super::networks;
use crate::cli::transform::{Attach, Detach, Files, Link, Pop, Purpose, Push};
use crate::failure::{DONE, FAILED, Failure, Outcome};
use crate::output::Output;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use weft::attach_ioctl;
use weft::transform::text::{Side, Text};
use weft::transform::{
    CONVERT_ATTRIBUTE, LINK, NETWORK_ATTRIBUTE, Need, Network, Registry, STORED_ATTRIBUTE, Write,
    link_content,
};

/// Calls `work` for each file, and reports the network that the file has then.
fn each(
    out: Output,
    args: &Files,
    mut work: impl FnMut(&Target) -> Result<String, Failure>,
) -> Outcome {
    let mut reports = Vec::new();
    for name in &args.files {
        let target = Target::find(name, &args.keys, true)?;
        let network = work(&target)?;
        reports.push(serde_json::json!({ "file": target.shown, "network": network }));
        target.close()?;
    }
    let text: Vec<String> = reports
        .iter()
        .map(|report| match (report["file"].as_str(), report["network"].as_str()) {
            (Some(file), Some("")) => format!("{file}: none"),
            (Some(file), network) => format!("{file}: {}", network.unwrap_or_default()),
            (None, _) => String::new(),
        })
        .collect();
    out.confirm(&reports, &text.join("\n"))?;
    Ok(DONE)
}

fn need(purpose: Purpose) -> Need {
    let (exact_size, random_read, write) = match purpose {
        Purpose::Read => (false, false, Write::None),
        Purpose::Seek => (false, true, Write::None),
        Purpose::Map => (true, true, Write::None),
        Purpose::Write => (true, true, Write::Rewrite),
        Purpose::Update => (true, true, Write::InPlace),
    };
    Need { exact_size, random_read, write }
}

/// The mount reports only an errno, so a network is checked here first.
fn checked(registry: &Registry, text: &str, purpose: Option<Purpose>) -> Result<Network, Failure> {
    let network = registry.parse(text)?;
    if let Some(purpose) = purpose {
        network.check(&need(purpose)).map_err(weft::transform::Error::from)?;
    }
    Ok(network)
}

/// `attach`.
pub fn attach(out: Output, args: &Attach) -> Outcome {
    let registry = networks(&args.files.keys).registry()?;
    let network = checked(&registry, &args.network, args.purpose)?;
    let is_view = network.text().side == Side::View;
    if !is_view && !args.as_stored {
        // The existing content is written through the network.
        network.check(&need(Purpose::Write)).map_err(weft::transform::Error::from)?;
    }
    let attribute = if is_view || args.as_stored { STORED_ATTRIBUTE } else { CONVERT_ATTRIBUTE };
    let text = network.to_string();
    each(out, &args.files, |target| {
        target.set(attribute, text.as_bytes()).map_err(|e| target.failed(&e))?;
        Ok(text.clone())
    })
}

/// `detach`.
pub fn detach(out: Output, args: &Detach) -> Outcome {
    each(out, &args.files, |target| {
        let explanation = target.explain()?;
        // A view stores nothing of its own: its content is in its base.
        let stored = args.as_stored || explanation.base.is_some() || explanation.write == "none";
        let attribute = if stored { STORED_ATTRIBUTE } else { CONVERT_ATTRIBUTE };
        target.set(attribute, b"").map_err(|e| target.failed(&e))?;
        Ok(String::new())
    })
}

/// The network of a file that is to be changed.
fn text_of(target: &Target) -> Result<Option<Text>, Failure> {
    let explanation = target.explain()?;
    if let Some(error) = explanation.error {
        return Err(Failure::new(format!("{}: {error}", target.shown)));
    }
    if explanation.base.is_some() {
        return Err(Failure::new(format!(
            "{}: a view or link has the network it has",
            target.shown
        )));
    }
    Ok(explanation.network.map(|text| text.parse()).transpose()?)
}

/// Attaches a network to files while a command runs; returns the exit code of the command.
fn push_during(args: &Push, command: &str) -> Outcome {
    let mut held = Vec::new();
    for name in &args.files.files {
        let path = Path::new(name);
        let failed = |e: std::io::Error| Failure::from(weft::Error::host("open", path, e));
        // O_DIRECT avoids the kernel's passthrough to a plain file, to which nothing can be
        // attached.
        let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        let opened = File::options().read(true).custom_flags(direct).open(path);
        let file = opened.map_err(failed)?;
        attach_ioctl::push(&file, &args.stage)
            .map_err(|e| Failure::new(format!("{}: {e}", path.display())))?;
        held.push(file);
    }
    let ended = Command::new("sh").arg("-c").arg(command).status()?;
    drop(held);
    // As shells report a command that was ended by a signal.
    let signal = || ended.signal().map_or(FAILED, |nr| u8::try_from(128 + nr).unwrap_or(FAILED));
    Ok(ended.code().map_or_else(signal, |code| u8::try_from(code).unwrap_or(FAILED)))
}

/// `push`: adds a stage at the reader's end.
pub fn push(out: Output, args: &Push) -> Outcome {
    if let Some(command) = &args.during {
        return push_during(args, command);
    }
    let registry = networks(&args.files.keys).registry()?;
    let stage = checked(&registry, &args.stage, None)?;
    each(out, &args.files, |target| {
        let text = match text_of(target)? {
            None => stage.text().clone(),
            Some(text) => text.with_on_top(stage.text().clone()),
        };
        let text = checked(&registry, &text.to_string(), None)?.to_string();
        target.set(STORED_ATTRIBUTE, text.as_bytes()).map_err(|e| target.failed(&e))?;
        Ok(text)
    })
}

/// `pop`: removes the stage at the reader's end.
pub fn pop(out: Output, args: &Pop) -> Outcome {
    each(out, &args.files, |target| {
        let text = text_of(target)?;
        let text =
            text.ok_or_else(|| Failure::new(format!("{}: it carries no network", target.shown)))?;
        let text = text.without_top().map(|text| text.to_string()).unwrap_or_default();
        target.set(STORED_ATTRIBUTE, text.as_bytes()).map_err(|e| target.failed(&e))?;
        Ok(text)
    })
}

/// The bits that this process takes from the mode of new files.
fn umask() -> u32 {
    let bits = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(bits);
    bits.bits()
}

/// `link`.
pub fn link(out: Output, args: &Link) -> Outcome {
    let network = checked(&networks(&args.keys).registry()?, &args.network, None)?;
    let path = &args.link;
    let failed = |e: std::io::Error| Failure::from(weft::Error::host("make", path, e));
    if path.symlink_metadata().is_ok() {
        return Err(failed(std::io::ErrorKind::AlreadyExists.into()));
    }
    // The name appears when it leads to a whole link, also after a power cut.
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let directory = above.unwrap_or(Path::new("."));
    let fresh = tempfile::Builder::new().prefix(".weft-link-").tempfile_in(directory);
    let mut fresh = fresh.map_err(failed)?;
    let mode = std::fs::Permissions::from_mode(0o666 & !umask());
    fresh.as_file().set_permissions(mode).map_err(failed)?;
    let target = Target::find(fresh.path().as_os_str(), &args.keys, true)?;
    // On a mount a rule may have given the new file a network.
    target.set(NETWORK_ATTRIBUTE, b"").map_err(|e| target.failed(&e))?;
    fresh.write_all(link_content(&args.base, &network).as_bytes()).map_err(failed)?;
    fresh.as_file().sync_all().map_err(failed)?;
    let fresh = fresh.into_temp_path();
    target.set(NETWORK_ATTRIBUTE, LINK).map_err(|e| target.failed(&e))?;
    target.close()?;
    fresh.persist_noclobber(path).map_err(|e| failed(e.error))?;
    File::open(directory).and_then(|directory| directory.sync_all()).map_err(failed)?;
    let (shown, base) = (path.display().to_string(), &args.base);
    let report = serde_json::json!({
        "link": shown, "base": base, "network": network.to_string(),
    });
    out.confirm(&report, &format!("{shown} shows {base} through {network}"))?;
    Ok(DONE)
}
