//! The input to building a stage: its parameters, and the resources that the caller supplies.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use crate::keys::KeyRing;
use crate::{Error, Result, Transform};

/// The resources that stages use, supplied by the caller: the library itself reads no environment
/// variable and opens no file.
#[derive(Clone, Default)]
pub struct Context {
    /// Keys by name.
    pub keys: KeyRing,
    /// The sinks that `log to=NAME` writes to, by name.
    pub logs: BTreeMap<String, Arc<dyn LogSink>>,
    /// The programs that `exec program=NAME` runs, by name.
    pub programs: BTreeMap<String, Program>,
    /// The modules that `wasm module=NAME` runs, by name.
    #[cfg(feature = "wasm")]
    pub modules: BTreeMap<String, Arc<crate::wasm::Guest>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let logs: Vec<&String> = self.logs.keys().collect();
        f.debug_struct("Context").field("keys", &self.keys).field("logs", &logs).finish()
    }
}

/// The destination of a log. Called by the thread that reads or writes, which waits for it.
pub trait LogSink: Send + Sync {
    /// Records one block, with its byte offset in the file.
    ///
    /// # Errors
    /// An error fails the read or write.
    fn record(&self, offset: u64, block: &[u8]) -> Result<()>;
}

/// A program, as configured by the caller of the library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// The command for `sh -c`.
    pub command: String,
    /// Maximum CPU time of a process in `mode=once`, in seconds.
    pub cpu_seconds: u32,
    /// Maximum memory of a process, in bytes.
    pub memory_bytes: u64,
}

impl Program {
    /// Creates a program with the default limits: a minute of CPU time, a GiB of memory.
    pub fn new(command: impl Into<String>) -> Self {
        Self { command: command.into(), cpu_seconds: 60, memory_bytes: 1 << 30 }
    }
}

/// A function that builds a stage from its parameters.
pub type Make = fn(&mut Parameters<'_>, &Context) -> Result<Arc<dyn Transform>>;

/// A stage that can be named in a network text.
#[derive(Debug, Clone, Copy)]
pub struct StageInfo {
    /// Its name.
    pub name: &'static str,
    /// Its function, in one line.
    pub summary: &'static str,
    /// Its parameters: each a name, and a description with the default.
    pub parameters: &'static [(&'static str, &'static str)],
    /// Its constructor.
    pub make: Make,
}

/// Parses a number of bytes with an optional unit, `64K` or `2 MiB` (powers of 1024).
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    parse_size::Config::new().with_binary().parse_size(text).ok()
}

/// The parameters of a stage under construction: those that it does not take are unknown.
#[derive(Debug)]
pub struct Parameters<'a> {
    pub(crate) info: &'a StageInfo,
    pub(crate) left: Vec<(String, String)>,
}

impl Parameters<'_> {
    /// Returns an error about these parameters.
    #[must_use]
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::Parameter { stage: self.info.name.to_owned(), message: message.into() }
    }

    /// Takes the text of a parameter.
    pub fn text(&mut self, name: &str) -> Option<String> {
        let at = self.left.iter().position(|(given, _)| given == name)?;
        Some(self.left.remove(at).1)
    }

    /// Takes the text of a required parameter.
    ///
    /// # Errors
    /// [`Error::Parameter`] if it is missing.
    pub fn required(&mut self, name: &str) -> Result<String> {
        self.text(name).ok_or_else(|| self.error(format!("needs {name}=...")))
    }

    /// Takes a number within a range.
    ///
    /// # Errors
    /// [`Error::Parameter`].
    pub fn number<T>(&mut self, name: &str, range: RangeInclusive<T>, default: T) -> Result<T>
    where
        T: FromStr + PartialOrd + fmt::Display,
    {
        let Some(text) = self.text(name) else { return Ok(default) };
        match text.parse::<T>() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => {
                let (first, last) = (range.start(), range.end());
                Err(self.error(format!("{name}={text} is not a number from {first} to {last}")))
            }
        }
    }

    /// Takes a number of bytes with an optional unit, `64K` or `2 MiB` (powers of 1024).
    ///
    /// # Errors
    /// [`Error::Parameter`].
    pub fn bytes(&mut self, name: &str, range: RangeInclusive<u64>, default: u64) -> Result<u64> {
        let Some(text) = self.text(name) else { return Ok(default) };
        let number = parse_bytes(&text);
        number.filter(|n| range.contains(n)).ok_or_else(|| {
            let (first, last) = (range.start(), range.end());
            self.error(format!("{name}={text} is not a size from {first} to {last} bytes"))
        })
    }

    /// Takes one of several words.
    ///
    /// # Errors
    /// [`Error::Parameter`].
    pub fn choice<T: Copy>(&mut self, name: &str, of: &[(&str, T)], default: T) -> Result<T> {
        let Some(text) = self.text(name) else { return Ok(default) };
        of.iter().find(|(word, _)| *word == text).map(|(_, value)| *value).ok_or_else(|| {
            let words: Vec<&str> = of.iter().map(|(word, _)| *word).collect();
            self.error(format!("{name}={text} is none of {}", words.join(", ")))
        })
    }

    pub(crate) fn all_taken(&self) -> Result<()> {
        let Some((name, _)) = self.left.first() else { return Ok(()) };
        let known: Vec<&str> = self.info.parameters.iter().map(|(known, _)| *known).collect();
        let has = if known.is_empty() {
            "it has none".to_owned()
        } else {
            format!("it has {}", known.join(", "))
        };
        Err(self.error(format!("has no parameter \"{name}\" ({has})")))
    }
}
