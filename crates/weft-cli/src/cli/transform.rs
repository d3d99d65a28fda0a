//! The command line of `weft transform`, and the options of a mount with networks.

use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use weft::networks::{KeyPlace, KeySource};

/// Networks of transformations on the files of a mount.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Transformations")]
pub struct Transforming {
    /// Enable networks of transformations: by the rules in this file (gitignore patterns with a network
    /// each), by rules files .weftattributes in the tree, and by the attribute user.weft.network of
    /// files. Without a value, or with -, by the latter two alone; what follows must be another option
    #[arg(long, value_name = "RULES", num_args = 0..=1, default_missing_value = "-")]
    pub transform: Option<PathBuf>,
    /// Rules that win for a file that both match: those of the mount, or its attribute and the
    /// rules files in the tree
    #[arg(long, value_name = "WHOM", value_enum, default_value_t, requires = "transform")]
    pub transform_trust: Trusted,
    #[command(flatten)]
    pub keys: Keys,
    /// Let the stage log to=NAME append to this file
    #[arg(long, value_name = "NAME=FILE", requires = "transform")]
    pub log: Vec<String>,
    /// Cache the outputs of networks in this directory, for this mount and others: only of networks
    /// that always make the same output of the same input, without programs and without aead
    #[arg(long, value_name = "DIR", requires = "transform")]
    pub output_cache: Option<PathBuf>,
    /// Maximum space for these outputs, such as 500M or 10G
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub output_cache_size: u64,
    /// Let the kernel read views with cached outputs directly, as fast as any file of that
    /// directory (root only, Linux 6.9); a reader with an open view does not see later changes
    #[arg(long, requires = "output_cache")]
    pub snapshot_views: bool,
}

impl Transforming {
    /// Returns the same settings as arguments, for a background process with another working
    /// directory.
    pub fn to_args(&self) -> std::io::Result<Vec<OsString>> {
        let option = |name: &str, value: &std::ffi::OsStr| {
            let mut arg = OsString::from(format!("--{name}="));
            arg.push(value);
            arg
        };
        let mut args = Vec::new();
        if let Some(rules) = &self.transform {
            let keep = rules.as_os_str() == "-";
            let rules = if keep { rules.clone() } else { std::path::absolute(rules)? };
            args.push(option("transform", rules.as_os_str()));
        }
        if self.transform_trust == Trusted::Tree {
            args.push("--transform-trust=tree".into());
        }
        for key in &self.keys.keys {
            let place = match &key.place {
                KeyPlace::File(path) => std::path::absolute(path)?.into_os_string(),
                KeyPlace::Environment(name) => format!("env:{name}").into(),
                KeyPlace::Command(command) => format!("command:{command}").into(),
            };
            let mut key = OsString::from(format!("--key={}=", key.name));
            key.push(place);
            args.push(key);
        }
        for (name, command) in &self.keys.programs {
            args.push(option("program", format!("{name}={command}").as_ref()));
        }
        for (name, file) in &self.keys.modules {
            let file = std::path::absolute(file)?;
            args.push(option("module", format!("{name}={}", file.display()).as_ref()));
        }
        if let Some(directory) = &self.output_cache {
            let directory = std::path::absolute(directory)?;
            args.push(option("output-cache", directory.as_os_str()));
            args.push(format!("--output-cache-size={}", self.output_cache_size).into());
            if self.snapshot_views {
                args.push("--snapshot-views".into());
            }
        }
        for log in &self.log {
            let (name, file) = log.split_once('=').unwrap_or((log, ""));
            let file = std::path::absolute(file)?;
            args.push(option("log", format!("{name}={}", file.display()).as_ref()));
        }
        Ok(args)
    }
}

/// The rules that take precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Trusted {
    /// The rules of the mount
    #[default]
    Mount,
    /// The rules files and attributes in the tree
    Tree,
}

/// The keys, programs and modules by name.
#[derive(Debug, Clone, Default, Args)]
pub struct Keys {
    /// A key by name: NAME=FILE, NAME=env:VARIABLE or NAME=command:COMMAND; of several of one name
    /// the first seals new files, and all open old ones [default: files in ~/.config/weft/keys]
    #[arg(long = "key", value_name = "NAME=PLACE")]
    pub keys: Vec<KeySource>,
    /// A program by name, for the stage exec program=NAME: a shell command that turns its standard
    /// input into its standard output
    #[arg(long = "program", value_name = "NAME=COMMAND", value_parser = program)]
    pub programs: Vec<(String, String)>,
    /// A WebAssembly module by name, for the stage wasm module=NAME
    #[arg(long = "module", value_name = "NAME=FILE", value_parser = module)]
    pub modules: Vec<(String, PathBuf)>,
}

fn size(text: &str) -> Result<u64, String> {
    weft::block::parse_size(text).map_err(|e| e.to_string())
}

fn module(text: &str) -> Result<(String, PathBuf), String> {
    let (name, file) = text
        .split_once('=')
        .filter(|(name, file)| !name.is_empty() && !file.is_empty())
        .ok_or_else(|| format!("invalid module '{text}': write NAME=FILE"))?;
    Ok((name.to_owned(), file.into()))
}

fn program(text: &str) -> Result<(String, String), String> {
    let (name, command) = text
        .split_once('=')
        .filter(|(name, command)| !name.is_empty() && !command.is_empty())
        .ok_or_else(|| format!("invalid program '{text}': write NAME=COMMAND"))?;
    Ok((name.to_owned(), command.to_owned()))
}

#[derive(Debug, Subcommand)]
pub enum Transform {
    /// Give files a network, keeping their content
    Attach(Attach),
    /// Take the network from files, keeping their content
    Detach(Detach),
    /// Put a stage on top of a file's network: the stored file stays, readers see it through the
    /// stage
    Push(Push),
    /// Take the topmost stage off a file's network: the stored file stays
    Pop(Pop),
    /// Show the networks of files
    Show(Show),
    /// Show the rule that gave a file its network, and the declarations of each stage
    Explain(Explain),
    /// Make a link: a small text file that shows another file through a network
    Link(Link),
    /// Check on samples that stored data reads back the same
    Test(Test),
    /// Run a network on a stream, from standard input to standard output
    Run(Run),
    /// List the stages
    List,
    /// Make keys, and list them
    #[command(subcommand)]
    Keys(KeysVerb),
}

/// Files: on a mount, in a volume, or in a directory of the host.
#[derive(Debug, Args)]
pub struct Files {
    /// A path on a weft mount, IMAGE:/path, or a path of the host
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<OsString>,
    #[command(flatten)]
    pub keys: Keys,
}

/// A required capability of a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Purpose {
    /// Be read from the beginning to the end
    Read,
    /// Be read anywhere
    Seek,
    /// Be mapped into memory: read anywhere, the length known
    Map,
    /// Be written, at the cost of writing the stored file anew
    Write,
    /// Be written in the middle, at the cost of the blocks written: databases
    Update,
}

#[derive(Debug, Args)]
pub struct Attach {
    /// The network, such as "zstd | aead key=work" or "view: upper"
    pub network: String,
    #[command(flatten)]
    pub files: Files,
    /// This network made the stored bytes already: leave them unchanged
    #[arg(long)]
    pub as_stored: bool,
    /// Refuse a network that cannot do this
    #[arg(long = "for", value_enum, value_name = "PURPOSE")]
    pub purpose: Option<Purpose>,
}

#[derive(Debug, Args)]
pub struct Detach {
    #[command(flatten)]
    pub files: Files,
    /// Leave the stored bytes unchanged, and show them from now on
    #[arg(long)]
    pub as_stored: bool,
}

#[derive(Debug, Args)]
pub struct Push {
    /// The stage, such as rot13
    pub stage: String,
    #[command(flatten)]
    pub files: Files,
    /// Only while this shell command runs, and stored nowhere: all readers of the files, which are
    /// on a mount, see them through the stage
    #[arg(long, value_name = "COMMAND")]
    pub during: Option<String>,
}

#[derive(Debug, Args)]
pub struct Pop {
    #[command(flatten)]
    pub files: Files,
}

#[derive(Debug, Args)]
pub struct Show {
    #[command(flatten)]
    pub files: Files,
}

#[derive(Debug, Args)]
pub struct Explain {
    #[command(flatten)]
    pub files: Files,
}

#[derive(Debug, Args)]
pub struct Link {
    /// The file to show, relative to the directory of the link
    pub base: String,
    /// The link: a path on a weft mount, or of the host
    pub link: PathBuf,
    /// The network to show it through, such as "view: json"
    pub network: String,
    #[command(flatten)]
    pub keys: Keys,
}

#[derive(Debug, Args)]
pub struct Test {
    /// The network
    pub network: String,
    /// Files to try it on, beside the samples that weft makes
    pub samples: Vec<PathBuf>,
    #[command(flatten)]
    pub keys: Keys,
}

#[derive(Debug, Args)]
pub struct Run {
    /// The network; a store network runs as files are written, a view as they are read
    pub network: String,
    /// Run the network in reverse: a store network as files are read
    #[arg(long)]
    pub inverse: bool,
    /// Read this file [default: standard input]
    #[arg(long, short, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// Write this file [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Threads for independent blocks [default: the number of CPUs]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Fail when the stages take longer than this for one block
    #[arg(long, value_name = "MILLISECONDS")]
    pub deadline: Option<u64>,
    #[command(flatten)]
    pub keys: Keys,
}

#[derive(Debug, Subcommand)]
pub enum KeysVerb {
    /// Make a new key; with --rotate it is put before those that the file has
    New(NewKey),
    /// Show names and ids of keys, never the keys themselves
    List(ListKeys),
}

#[derive(Debug, Args)]
pub struct NewKey {
    /// The name of the key, in ~/.config/weft/keys, or a path
    pub name: String,
    /// Add the key to an existing file: new files are sealed with it, old files still open with the
    /// earlier keys
    #[arg(long)]
    pub rotate: bool,
}

#[derive(Debug, Args)]
pub struct ListKeys {
    #[command(flatten)]
    pub keys: Keys,
}
