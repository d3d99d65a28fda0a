//! The command line of `weft order`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The meaning of fsync to the programs of `weft order`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FsyncMeaning {
    /// It waits until the file is durable
    Wait,
    /// It orders, and does not wait: a power cut may take the last changes that it confirmed, but
    /// never an earlier one without all later ones
    Barrier,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    weft order 'sort <in >out' then 'rm in'   in is never gone before out is there\n  \
    weft order --fsync=barrier svn update     svn's fsyncs order, and do not wait\n\n\
    What belongs to a command: all that it and the processes that it starts change on the mount by \
    system calls. Its exit code is that of the last command that ran.")]
pub struct Ordered {
    /// A directory on the mount
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub on: PathBuf,
    /// The meaning of fsync to the programs
    #[arg(long, value_name = "MEANING", default_value = "wait")]
    pub fsync: FsyncMeaning,
    /// Wait at the end until all that was changed is durable
    #[arg(long)]
    pub sync: bool,
    /// Commands, with the word `then` between those of which the changes of the second must not be
    /// durable before those of the first; a command of one word is a line for the shell
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub commands: Vec<OsString>,
}
