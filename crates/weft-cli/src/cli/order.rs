//! The command line of `weft order`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use weft::patchgroups::Fsync;

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    weft order 'sort <in >out' then 'rm in'   in is never gone before out is there\n  \
    weft order --fsync=barrier svn update     svn's fsyncs order, and do not wait\n  \
    weft order --atomic 'mv a b; mv c a'      both are renamed, or neither\n  \
    weft order --list --on /mnt               the groups of programs there\n\n\
    What belongs to a command: all that it and the processes that it starts change on the mount by \
    system calls. Its exit code is that of the last command that ran.")]
pub struct Ordered {
    /// A directory on the mount
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub on: PathBuf,
    /// The meaning of fsync to the programs: wait, until the file is durable; barrier, which orders and
    /// does not wait; or group:MS, which orders, and is durable within MS milliseconds (group: 1000)
    ///
    /// With barrier and group a power cut may take the last changes that fsync confirmed, but never an
    /// earlier one without all later ones.
    #[arg(long, value_name = "MEANING", default_value = "wait")]
    pub fsync: Fsync,
    /// After a power cut all changes of the command are there, or none; and none if it fails or is killed
    ///
    /// Needs a journal, and root or the user who runs the mount. Fails if the command takes longer than 5
    /// seconds while others wait, or changes more than the journal may hold or memory may keep
    #[arg(long, conflicts_with = "linear")]
    pub atomic: bool,
    /// Each change is never durable before the one before it
    #[arg(long)]
    pub linear: bool,
    /// Wait at the end until all that was changed is durable
    #[arg(long)]
    pub sync: bool,
    /// List the groups of programs on the mount, in place of running commands: your own, and all for
    /// root and the user who runs the mount
    #[arg(long, conflicts_with_all = ["fsync", "atomic", "linear", "sync", "commands"])]
    pub list: bool,
    /// The most groups that --list lists
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub limit: usize,
    /// Commands, with the word `then` between those of which the changes of the second must not be
    /// durable before those of the first; a command of one word is a line for the shell
    #[arg(
        required_unless_present = "list",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub commands: Vec<OsString>,
}
