//! Reads rules, keys and logs from files, for networks of transformations on the files of a tree.

use crate::{Error, Result};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use weft_transform::stages::{LogSink, Program};
use weft_transform::text::{Side, Text};
use weft_transform::{
    Context, Key, KeyRing, Meters, Need, OutputCache, Registry, Rules, TransformFs,
    TransformOptions, Trust, Write as Writes,
};
use weft_vfs::FileSystem;

/// The name of keys, and their location.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeySource {
    /// The name that networks use (`aead key=NAME`).
    pub name: String,
    /// The location of its keys.
    pub place: KeyPlace,
}

/// The location of keys: they are 64 hex digits, one key a line, of which the first seals new files
/// and all open old ones; a file may also be one key of 32 bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeyPlace {
    /// In a file.
    File(PathBuf),
    /// In an environment variable.
    Environment(String),
    /// In the output of a shell command, such as a query to an agent or a password manager.
    Command(String),
}

impl FromStr for KeySource {
    type Err = Error;

    /// `NAME=FILE`, `NAME=env:VARIABLE` or `NAME=command:COMMAND`.
    fn from_str(text: &str) -> Result<Self> {
        let wrong = || {
            Error::Invalid(format!(
                "'{text}' names no key; write NAME=FILE, NAME=env:VARIABLE or NAME=command:COMMAND"
            ))
        };
        let (name, place) = text.split_once('=').ok_or_else(wrong)?;
        if name.is_empty() || place.is_empty() {
            return Err(wrong());
        }
        let place = match place.split_once(':') {
            Some(("env", variable)) => KeyPlace::Environment(variable.to_owned()),
            Some(("command", command)) => KeyPlace::Command(command.to_owned()),
            _ => KeyPlace::File(place.into()),
        };
        Ok(Self { name: name.to_owned(), place })
    }
}

impl KeyPlace {
    fn read(&self) -> Result<Vec<u8>> {
        match self {
            Self::File(path) => std::fs::read(path).map_err(|e| Error::host("read", path, e)),
            Self::Environment(name) => std::env::var(name)
                .map(String::into_bytes)
                .map_err(|e| Error::Invalid(format!("key in the environment, {name}: {e}"))),
            Self::Command(command) => {
                let run = std::process::Command::new("sh")
                    .args(["-c", command])
                    .stdin(std::process::Stdio::null())
                    .stderr(std::process::Stdio::inherit())
                    .output();
                match run {
                    Ok(out) if out.status.success() => Ok(out.stdout),
                    Ok(out) => Err(Error::Invalid(format!("{command}: {}", out.status))),
                    Err(e) => Err(Error::Invalid(format!("{command}: {e}"))),
                }
            }
        }
    }

    /// Reads the keys, the one for new files first.
    ///
    /// # Errors
    /// [`Error::Host`], [`Error::Invalid`]; no message contains any part of a key.
    pub fn keys(&self) -> Result<Vec<Key>> {
        let content = self.read()?;
        if let Some(key) = Key::from_file_content(&content) {
            return Ok(vec![key]);
        }
        let lines = content.split(|&b| b == b'\n').filter(|line| !line.trim_ascii().is_empty());
        let keys: Option<Vec<Key>> = lines.map(Key::from_file_content).collect();
        keys.filter(|keys| !keys.is_empty()).ok_or_else(|| {
            Error::Invalid(format!("{self}: no key; weft transform keys new makes one"))
        })
    }
}

impl std::fmt::Display for KeyPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Environment(name) => write!(f, "${name}"),
            Self::Command(command) => write!(f, "{command}"),
        }
    }
}

/// The configuration of a tree's networks, before anything is opened.
#[derive(Debug, Clone, Default)]
pub struct Networks {
    /// A rules file that applies from the root down.
    pub rules: Option<PathBuf>,
    /// Whether the mount's rules or the tree's take precedence for a file that these rules match.
    pub trust: Trust,
    /// Keys; those of the same name are tried in this order.
    pub keys: Vec<KeySource>,
    /// A directory in which a file NAME holds the key of any other NAME.
    pub key_directory: Option<PathBuf>,
    /// Files that `log to=NAME` appends to, by name.
    pub logs: Vec<(String, PathBuf)>,
    /// Shell commands that `exec program=NAME` runs, by name.
    pub programs: Vec<(String, String)>,
    /// WebAssembly modules that `wasm module=NAME` runs, by name: files in binary form.
    pub modules: Vec<(String, PathBuf)>,
    /// A directory of the user's own where compiled modules are kept.
    pub module_cache: Option<PathBuf>,
    /// The counters of the networks; with them the mount has a directory `.weft`.
    pub meters: Option<Arc<Meters>>,
    /// A directory for outputs of networks, and the bytes they may take together.
    pub output_cache: Option<(PathBuf, u64)>,
    /// Whether views whose output is kept there are snapshots: the kernel reads them from there
    /// directly, and a program with an open view does not see changes of its base.
    pub snapshot_views: bool,
}

impl Networks {
    /// Builds the registry of stages, with keys and logs. A key of the key directory that this user may
    /// not read is missing only where a network names it.
    ///
    /// # Errors
    /// [`Error::Host`], [`Error::Invalid`].
    pub fn registry(&self) -> Result<Registry> {
        let is_denied = |path: &Path| {
            File::open(path).is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied)
        };
        self.registry_with(|_, path| !is_denied(path))
    }

    /// The same, with only those keys of the key directory whose names and files are `wanted`.
    fn registry_with(&self, wanted: impl Fn(&str, &Path) -> bool) -> Result<Registry> {
        let mut keys = KeyRing::default();
        for source in &self.keys {
            for key in source.place.keys()? {
                keys.add(&source.name, key);
            }
        }
        for (name, path) in self.key_files() {
            if wanted(&name, &path) && keys.named(&name).is_empty() {
                for key in KeyPlace::File(path).keys()? {
                    keys.add(&name, key);
                }
            }
        }
        let mut context = Context { keys, ..Context::default() };
        for (name, path) in &self.logs {
            // The log may hold content of files that other users may not read.
            let file = File::options().append(true).create(true).mode(0o600).open(path);
            let file = file.map_err(|e| Error::host("open", path, e))?;
            context.logs.insert(name.clone(), Arc::new(LogFile(Mutex::new(file))));
        }
        for (name, command) in &self.programs {
            context.programs.insert(name.clone(), Program::new(command));
        }
        self.load_modules(&mut context)?;
        Ok(Registry::new(context))
    }

    #[cfg(feature = "wasm")]
    fn load_modules(&self, context: &mut Context) -> Result<()> {
        for (name, path) in &self.modules {
            let module = std::fs::read(path).map_err(|e| Error::host("read", path, e))?;
            let guest = weft_transform::wasm::Guest::load(&module, self.module_cache.as_deref());
            let guest = guest.map_err(|e| Error::Invalid(format!("{}: {e}", path.display())))?;
            context.modules.insert(name.clone(), Arc::new(guest));
        }
        Ok(())
    }

    #[cfg(not(feature = "wasm"))]
    fn load_modules(&self, _: &mut Context) -> Result<()> {
        match self.modules.first() {
            None => Ok(()),
            Some((name, _)) => Err(Error::Invalid(format!(
                "module {name}: this weft was built without the feature wasm"
            ))),
        }
    }

    /// The files of the key directory by name; none if the directory does not exist.
    pub fn key_files(&self) -> Vec<(String, PathBuf)> {
        let Some(directory) = &self.key_directory else { return Vec::new() };
        let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
        let mut files: Vec<_> = entries
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
            .filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())))
            // A key that is just being written.
            .filter(|(name, _)| !name.starts_with('.'))
            .collect();
        files.sort();
        files
    }

    fn rules(&self) -> Result<Rules> {
        let Some(path) = &self.rules else { return Ok(Rules::default()) };
        let content = std::fs::read(path).map_err(|e| Error::host("read", path, e))?;
        let named = |e: weft_transform::Error| Error::Invalid(format!("{}: {e}", path.display()));
        Rules::parse(&content).map_err(named)
    }

    /// Checks that each network of the rules can be built and fits its rule: must be writable,
    /// unless it is a view.
    fn check_rules(&self, rules: &Rules, registry: &Registry) -> Result<()> {
        let Some(path) = &self.rules else { return Ok(()) };
        for (line, is_view, text) in rules.networks() {
            check_rule(registry, is_view, text)
                .map_err(|e| Error::Invalid(format!("{}, line {line}: {e}", path.display())))?;
        }
        Ok(())
    }

    /// Puts these networks on the files of the file system `below`, for the user who owns the keys.
    /// `shared`: others change the file system too.
    ///
    /// # Errors
    /// [`Error::Invalid`] names the rule that cannot be applied, the reason, and an alternative.
    pub fn over(&self, below: Arc<dyn FileSystem>, shared: bool) -> Result<Arc<TransformFs>> {
        self.over_with(below, shared, None, self.rules()?, self.registry()?)
    }

    /// The same for all users of a mount. The files that they store in the tree, and the names that
    /// they look up, name keys too: so only those keys of the key directory count that the mount's
    /// own rules name. Where inode numbers and times decide whether files are the same, `identity`
    /// distinguishes them from those of other trees.
    ///
    /// # Errors
    /// As [`over`](Self::over).
    pub(crate) fn over_for_mount(
        &self,
        below: Arc<dyn FileSystem>,
        shared: bool,
        identity: Option<String>,
    ) -> Result<Arc<TransformFs>> {
        let rules = self.rules()?;
        let named =
            |key: &str, _: &Path| rules.networks().any(|(.., text)| text.keys().any(|k| k == key));
        let registry = self.registry_with(named)?;
        self.over_with(below, shared, identity, rules, registry)
    }

    fn over_with(
        &self,
        below: Arc<dyn FileSystem>,
        shared: bool,
        identity: Option<String>,
        rules: Rules,
        registry: Registry,
    ) -> Result<Arc<TransformFs>> {
        self.check_rules(&rules, &registry)?;
        let meters = self.meters.clone();
        let outputs = match &self.output_cache {
            Some((directory, max_bytes)) => {
                let cache = OutputCache::open(directory, *max_bytes);
                Some(Arc::new(cache.map_err(|e| Error::Invalid(e.to_string()))?))
            }
            None => None,
        };
        let options = TransformOptions {
            rules,
            trust: self.trust,
            shared,
            meters,
            outputs,
            snapshot_views: self.snapshot_views,
            identity,
            ..TransformOptions::default()
        };
        let fs = TransformFs::new(below, registry, options);
        Ok(Arc::new(fs.map_err(|e| Error::file("open", b"/", e))?))
    }
}

fn check_rule(registry: &Registry, is_view: bool, text: &Text) -> weft_transform::Result<()> {
    if text.to_string().as_bytes() == weft_transform::LINK {
        return Ok(());
    }
    let side = if is_view { Side::View } else { text.side };
    let network = registry.network(&Text { side, ..text.clone() })?;
    if side == Side::Store {
        network.check(&Need { exact_size: true, random_read: true, write: Writes::Rewrite })?;
    }
    Ok(())
}

/// A log on the host: for each block a line with offset and length, then the bytes.
struct LogFile(Mutex<File>);

impl LogSink for LogFile {
    fn record(&self, offset: u64, block: &[u8]) -> weft_transform::Result<()> {
        let mut file = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut entry = format!("{offset} {}\n", block.len()).into_bytes();
        entry.extend_from_slice(block);
        entry.push(b'\n');
        Ok(file.write_all(&entry)?)
    }
}

/// The default directory of keys, below the user's configuration directory.
#[must_use]
pub fn key_directory(configuration: &Path) -> PathBuf {
    configuration.join("weft/keys")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_from_files_variables_and_commands() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = ("11".repeat(32), "22".repeat(32));
        std::fs::write(dir.path().join("work"), format!("{two}\n{one}\n")).unwrap();
        std::fs::write(dir.path().join("raw"), [7; 32]).unwrap();
        let networks = Networks {
            keys: vec![
                format!("shell=command:echo {one}").parse().unwrap(),
                format!("raw={}", dir.path().join("raw").display()).parse().unwrap(),
            ],
            key_directory: Some(dir.path().into()),
            ..Networks::default()
        };
        let registry = networks.registry().unwrap();
        for network in ["aead key=work", "aead key=shell", "aead key=raw"] {
            registry.parse(network).unwrap();
        }
        assert!(registry.parse("aead key=none").is_err());
        let ids = |place: KeyPlace| -> Vec<_> {
            place.keys().unwrap().iter().map(weft_transform::Key::id).collect()
        };
        let rotated = ids(KeyPlace::File(dir.path().join("work")));
        assert_eq!(rotated.len(), 2);
        assert_eq!(rotated[1], ids(KeyPlace::Command(format!("echo {one}")))[0]);
        for bad in ["work", "=x", "work="] {
            assert!(bad.parse::<KeySource>().is_err(), "{bad}");
        }
        for bad in ["command:exit 3", "command:echo nonsense", "env:WEFT_NO_SUCH_VARIABLE"] {
            let source: KeySource = format!("k={bad}").parse().unwrap();
            let error = source.place.keys().unwrap_err().to_string();
            assert!(!error.contains("nonsense\n"), "{error}");
        }
    }

    #[test]
    fn a_rule_that_cannot_hold_is_refused_with_what_would() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rules");
        let refused = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let networks = Networks { rules: Some(path.clone()), ..Networks::default() };
            let below = Arc::new(weft_vfs::MemFs::new());
            networks.over(below, false).map(drop).unwrap_err().to_string()
        };
        let error = refused("*.log zstd\n*.gz zstd | gzip\n");
        assert!(error.contains("line 2") && error.contains("\"gzip\" would do"), "{error}");
        let error = refused("secret/ aead key=nobody\n");
        assert!(error.contains("line 1") && error.contains("nobody"), "{error}");
        let error = refused("* zsdt\n");
        assert!(error.contains("did you mean \"zstd\"?"), "{error}");
        let error = refused("*.up upper\n");
        assert!(error.contains("inverse"), "{error}");
    }
}
