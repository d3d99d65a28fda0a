//! e2fsck as a judge: runs it on an image and classifies its messages into defects that soft
//! updates may leave and those that must never occur.
//!
//! Allowed are leaked blocks and inodes (bitmap differences that only over-count, unattached
//! inodes, unconnected directories), link counts that are too high, wrong free counts, deleted
//! inodes without a time, and sizes and block counts of files that lag behind their indirect
//! blocks. While a directory is being renamed it may have two names, so that it never has none.
//! Every unknown line counts as damage.

use crate::target::{Findings, Severity};
use crate::{Error, Result};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use weft_block::{Image, PAGE_BYTES};
use weft_vfs::Time;

/// Runs e2fsck on images, through one file in memory to which only changed pages are written.
#[derive(Debug)]
pub struct E2fsck {
    program: PathBuf,
    dir: tempfile::TempDir,
    file: File,
    /// The content of the file, unless e2fsck may have changed it.
    held: Option<Image>,
}

/// Returns the path of e2fsck, if it is installed.
#[must_use]
pub fn find_e2fsck() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    dirs.map(|d| d.join("e2fsck")).find(|p| p.is_file())
}

impl E2fsck {
    /// Prepares to run `program` (see [`find_e2fsck`]).
    ///
    /// # Errors
    /// If there is no room for the image.
    pub fn new(program: PathBuf) -> Result<Self> {
        let tool = |source| Error::Tool { program: "e2fsck".into(), source };
        let memory = Path::new("/dev/shm");
        let dir = if memory.is_dir() {
            tempfile::Builder::new().prefix("weft-crash").tempdir_in(memory)
        } else {
            tempfile::Builder::new().prefix("weft-crash").tempdir()
        }
        .map_err(tool)?;
        let file = File::create_new(dir.path().join("image")).map_err(tool)?;
        Ok(Self { program, dir, file, held: None })
    }

    fn load(&mut self, image: &Image) -> std::io::Result<()> {
        let write = |number: u64| {
            let at = number * PAGE_BYTES as u64;
            let n = (image.len_bytes() - at).min(PAGE_BYTES as u64) as usize;
            let page = image.page(number).unwrap_or(&[0; PAGE_BYTES]);
            self.file.write_all_at(&page[..n], at)
        };
        match self.held.take() {
            Some(held) if held.len_bytes() == image.len_bytes() => {
                image.pages_apart(&held).into_iter().try_for_each(write)?;
            }
            _ => {
                self.file.set_len(0)?;
                self.file.set_len(image.len_bytes())?;
                image.pages().map(|(number, _)| number).try_for_each(write)?;
            }
        }
        self.held = Some(image.clone());
        Ok(())
    }

    fn run(&mut self, image: &Image, options: &[&str]) -> Result<Output> {
        let tool = |source| Error::Tool { program: "e2fsck".into(), source };
        self.load(image).map_err(tool)?;
        Command::new(&self.program)
            .args(options)
            .arg("image")
            .current_dir(self.dir.path())
            .env("LC_ALL", "C")
            // A clock that was set back on the machine is no defect of the volume.
            .env("E2FSCK_TIME", (Time::now().secs + 86_400).to_string())
            .stdin(Stdio::null())
            .output()
            .map_err(tool)
    }

    /// Checks an image (`e2fsck -fn`). `renames_dirs`: the workload renames directories.
    ///
    /// # Errors
    /// If e2fsck cannot be run.
    pub fn check(&mut self, image: &Image, renames_dirs: bool) -> Result<Findings> {
        let output = self.run(image, &["-fn"])?;
        let text = String::from_utf8_lossy(&output.stdout);
        let mut findings = classify(&text, renames_dirs);
        match output.status.code() {
            Some(0) => {}
            Some(4) if findings.severity == Severity::Clean => {
                findings.severity = Severity::Leaks;
            }
            Some(4) => {}
            other => {
                findings.severity = Severity::Damage;
                let stderr = String::from_utf8_lossy(&output.stderr);
                findings.damage.push(format!("e2fsck ended with {other:?}: {}", stderr.trim()));
            }
        }
        Ok(findings)
    }

    /// Makes e2fsck replay the journal of an image, and nothing else.
    ///
    /// # Errors
    /// If e2fsck cannot be run, or refuses.
    pub fn replay_journal(&mut self, image: &Image) -> Result<Image> {
        let output = self.run(image, &["-fy", "-E", "journal_only"])?;
        self.held = None;
        if !matches!(output.status.code(), Some(0 | 1)) {
            let text = String::from_utf8_lossy(&output.stdout);
            return Err(Error::Target(format!("e2fsck does not replay the journal: {text}")));
        }
        let tool = |source| Error::Tool { program: "e2fsck".into(), source };
        let mut replayed = Image::new(image.len_bytes());
        let mut buf = vec![0; 1 << 20];
        let mut at = 0;
        while at < image.len_bytes() {
            let n = buf.len().min((image.len_bytes() - at) as usize);
            File::open(self.dir.path().join("image"))
                .and_then(|f| f.read_exact_at(&mut buf[..n], at))
                .map_err(tool)?;
            replayed.write(&buf[..n], at)?;
            at += n as u64;
        }
        Ok(replayed)
    }
}

/// Classifies the output of `e2fsck -fn`.
#[must_use]
pub fn classify(output: &str, renames_dirs: bool) -> Findings {
    let mut findings = Findings::CLEAN;
    let unconnected = output.contains("Unconnected directory inode");
    for line in output.lines().map(str::trim) {
        let mut found = severity(line, renames_dirs, unconnected);
        if found == Severity::Leaks && is_of_second_name(line, output) {
            found = Severity::SecondNames;
        }
        findings.severity = findings.severity.max(found);
        match found {
            Severity::Clean => {}
            Severity::SecondNames | Severity::Leaks => findings.leaks.push(line.to_owned()),
            Severity::Damage => findings.damage.push(line.to_owned()),
        }
    }
    findings
}

/// Reports whether an allowed line is about a directory with two names. (Which of them `..` returns,
/// e2fsck does not ask: it takes the first.)
fn is_of_second_name(line: &str, output: &str) -> bool {
    if let Some(rest) = line.strip_prefix("'..' in ") {
        let inode = rest.split_once(" (").and_then(|(_, rest)| rest.split_once(')'));
        return inode.is_some_and(|(inode, _)| {
            output.lines().any(|l| {
                l.contains(" is a link to directory ") && l.trim().ends_with(&format!("({inode})."))
            })
        });
    }
    if let Some(rest) = line.strip_prefix("Inode ") {
        // The directory with the second name counts it.
        let inode = rest.split(' ').next().unwrap_or_default();
        return line.contains(" ref count is ")
            && output.lines().map(str::trim).any(|l| {
                (l.contains(" is a link to directory ") || l.starts_with("'..' in "))
                    && l.contains(&format!("({inode})"))
            })
            && output.contains(" is a link to directory ");
    }
    line.starts_with("Entry '") && line.contains(" is a link to directory ")
}

/// Returns the numbers in a line, in order.
fn numbers(line: &str) -> Vec<i64> {
    let parts = line.split(|c: char| !c.is_ascii_digit());
    parts.filter_map(|n| n.parse().ok()).collect()
}

fn severity(line: &str, renames_dirs: bool, unconnected: bool) -> Severity {
    let question = ["Fix? no", "Clear? no", "Connect to /lost+found? no", "Salvage? no"];
    let frame = line.is_empty()
        || question.contains(&line)
        || ["Pass ", "e2fsck "].iter().any(|p| line.starts_with(p))
        || line.contains("********** WARNING: Filesystem still has errors **********")
        || (line.contains(" files (") && line.contains(" non-contiguous"))
        || line.contains("was not cleanly unmounted, check forced")
        || line.contains("contains a file system with errors, check forced")
        || line.starts_with("Warning: skipping journal recovery");
    if frame {
        return Severity::Clean;
    }
    let allow = |allowed: bool| if allowed { Severity::Leaks } else { Severity::Damage };
    let starts = |prefix: &str| line.starts_with(prefix);
    if starts("Inode ") && line.contains(" ref count is ") {
        return allow(matches!(numbers(line)[..], [_, is, should, ..] if is > should));
    }
    if starts("Inode ") && line.contains(", i_size is ") {
        return allow(matches!(numbers(line)[..], [_, is, should, ..] if is < should));
    }
    if starts("Inode ") && line.contains(", i_blocks is ") {
        return Severity::Leaks;
    }
    for what in ["Block bitmap differences:", "Inode bitmap differences:"] {
        if let Some(list) = line.strip_prefix(what) {
            let list = list.replace("Fix? no", "");
            return allow(list.split_whitespace().all(|item| item.starts_with('-')));
        }
    }
    let leaks = [
        "Unattached inode ",
        "Unattached zero-length inode ",
        "Unconnected directory inode ",
        "Free blocks count wrong",
        "Free inodes count wrong",
        "Directories count wrong",
    ];
    if leaks.iter().any(|l| starts(l)) || (starts("Deleted inode ") && line.contains("zero dtime"))
    {
        return Severity::Leaks;
    }
    // A directory being renamed has both names, and ".." refers to one of its two parents; the ".."
    // of one that is unconnected is not needed.
    if starts("Entry '") && line.contains(" is a link to directory ") {
        return allow(renames_dirs);
    }
    if starts("'..' in ") && line.contains(", should be ") {
        return allow(renames_dirs || unconnected);
    }
    Severity::Damage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leaks_are_told_from_damage() {
        let leaks = "e2fsck 1.47.0 (5-Feb-2023)\nPass 1: Checking inodes, blocks, and sizes\n\
            Deleted inode 14 has zero dtime.  Fix? no\n\nPass 4: Checking reference counts\n\
            Inode 12 ref count is 2, should be 1.  Fix? no\n\nUnattached inode 13\n\
            Connect to /lost+found? no\n\nBlock bitmap differences:  -123 -(130--140)\nFix? no\n\n\
            Free blocks count wrong (1, counted=2).\nFix? no\n\n\
            image: ********** WARNING: Filesystem still has errors **********\n\n\
            image: 14/128 files (0.0% non-contiguous), 100/2048 blocks\n";
        let found = classify(leaks, false);
        assert_eq!((found.severity, found.damage.len()), (Severity::Leaks, 0), "{found:?}");
        let second = "Entry 'x' in /a (13) is a link to directory /b/x (14).\nClear? no\n\n\
            '..' in /a/x (14) is /b (12), should be /a (13).\nFix? no\n";
        assert_eq!(classify(second, true).severity, Severity::SecondNames);
        let old = "'..' in /a/x (14) is /b (12), should be /a (13).\nFix? no\n";
        assert_eq!(classify(old, true).severity, Severity::Leaks);
        for damage in [
            "Inode 12 ref count is 1, should be 2.  Fix? no",
            "Block bitmap differences:  -123 +(130--140)",
            "Entry 'x' in / (2) has deleted/unused inode 12.  Clear? no",
            "Multiply-claimed block(s) in inode 12: 100",
            "Inode 12, i_size is 2048, should be 1024.  Fix? no",
            "Entry 'x' in / (2) is a link to directory /y (12).",
        ] {
            let found = classify(damage, false);
            assert_eq!(found.damage, [damage], "{damage}");
        }
        assert_eq!(
            classify("Pass 5: Checking group summary information\n", false),
            Findings::CLEAN
        );
    }

    #[test]
    fn e2fsck_itself_agrees_on_an_image_that_is_none() {
        let Some(program) = find_e2fsck() else {
            println!("skipped: e2fsck is not installed");
            return;
        };
        let mut e2fsck = E2fsck::new(program).unwrap();
        let found = e2fsck.check(&Image::new(1 << 20), false).unwrap();
        assert_eq!(found.severity, Severity::Damage, "{found:?}");
    }
}
