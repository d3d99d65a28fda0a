//! FUSE over io_uring, which the kernel's module allows by a parameter that is off by default: on
//! for the time of a measurement.

use crate::report::Section;
use anyhow::{Context, Result, ensure};
use std::fmt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The parameter of the kernel's FUSE module (Linux 6.14 and later).
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The way in which a FUSE server receives its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Reads and writes of `/dev/fuse`.
    Device,
    /// Queues shared with the kernel.
    IoUring,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Device => "io_uring off",
            Self::IoUring => "io_uring on",
        })
    }
}

/// Returns the reason why no server can use io_uring now, if there is one.
pub fn missing() -> Option<String> {
    match std::fs::read_to_string(PARAMETER) {
        Ok(value) if value.trim() == "Y" => None,
        Ok(_) => Some(format!("{PARAMETER} is off")),
        Err(_) => Some("the kernel has no FUSE over io_uring (Linux 6.14 and later)".into()),
    }
}

/// The kernel's permission to use io_uring, if it can be had, until this is dropped.
#[derive(Debug)]
pub struct Allowed {
    /// Puts the old value back; `None` if nothing was changed.
    _old: Option<Overridden>,
}

impl Allowed {
    /// Sets the parameter to `Y` if this process may (root); otherwise `section` says why not.
    pub fn set(section: &mut Section) -> Self {
        if missing().is_none() {
            return Self { _old: None };
        }
        match Overridden::set(Path::new(PARAMETER), "Y") {
            Ok(old) => Self { _old: Some(old) },
            Err(e) => {
                section.line(&format!("FUSE over io_uring was off: {e:#}."));
                Self { _old: None }
            }
        }
    }
}

/// A file of the kernel's settings with another value for a while. A child process puts the old
/// value back as soon as its standard input is closed, which also happens when this process is
/// interrupted or killed.
#[derive(Debug)]
struct Overridden {
    file: PathBuf,
    old: String,
    restorer: Child,
}

/// Waits for the end of standard input, then writes the value `$1` to the file `$2`.
const RESTORE: &str = r#"read -r _; printf '%s\n' "$1" > "$2""#;

impl Overridden {
    fn set(file: &Path, value: &str) -> Result<Self> {
        let old = std::fs::read_to_string(file)
            .with_context(|| format!("read {}", file.display()))?
            .trim()
            .to_owned();
        // Without this a child would be started only to fail at the end.
        let can_write = std::fs::OpenOptions::new().write(true).open(file);
        can_write.with_context(|| format!("set {} (this needs root)", file.display()))?;
        let restorer = Command::new("sh")
            .args(["-c", RESTORE, "sh", &old])
            .arg(file)
            .stdin(Stdio::piped())
            // Ctrl-C goes to all processes of the terminal's group, and must not end this one.
            .process_group(0)
            .spawn()
            .context("run sh")?;
        let overridden = Self { file: file.to_owned(), old, restorer };
        std::fs::write(file, value).with_context(|| format!("set {}", file.display()))?;
        Ok(overridden)
    }

    fn restore(&mut self) -> Result<()> {
        drop(self.restorer.stdin.take());
        self.restorer.wait()?;
        let now = std::fs::read_to_string(&self.file)?;
        ensure!(now.trim() == self.old, "{} is {}", self.file.display(), now.trim());
        Ok(())
    }
}

impl Drop for Overridden {
    fn drop(&mut self) {
        if let Err(e) = self.restore() {
            eprintln!("weft-bench: {} should be {} again: {e:#}", self.file.display(), self.old);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(dir: &Path) -> PathBuf {
        let file = dir.join("enable");
        std::fs::write(&file, "N\n").unwrap();
        file
    }

    #[test]
    fn the_old_value_is_back_at_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let file = setting(dir.path());
        let overridden = Overridden::set(&file, "Y").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "Y");
        drop(overridden);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "N\n");
    }

    #[test]
    fn the_child_alone_puts_the_old_value_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = setting(dir.path());
        let mut overridden = Overridden::set(&file, "Y").unwrap();
        // All that happens when this process is killed: the kernel closes the pipe.
        drop(overridden.restorer.stdin.take());
        overridden.restorer.wait().unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "N\n");
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let e = Overridden::set(Path::new("/nonexistent/enable"), "Y").unwrap_err();
        assert!(format!("{e:#}").contains("/nonexistent/enable"), "{e:#}");
    }
}
