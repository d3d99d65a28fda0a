//! The command line of `weft crash`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use weft::Order;
use weft_crash_test::Model;
use weft_crash_test::live::CallPattern;

use super::known::{ORDERS, known};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, after_help = super::operations())]
pub struct Crash {
    #[command(subcommand)]
    pub verb: Option<CrashVerb>,
    /// Begin every workload with a copy of this volume [default: an empty one of a few MiB]
    pub image: Option<String>,
    /// Begin no new workload after this many distinct images
    #[arg(long, default_value_t = 5000, value_name = "COUNT")]
    pub states: u64,
    /// Begin no new workload after this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// Order of writes [default: soft]
    #[arg(long, value_name = "ORDER", value_parser = known::<Order>(ORDERS))]
    pub order: Option<Order>,
    /// Explore HFS, not ext2 [with IMAGE: the format of that volume]
    #[arg(long, conflicts_with = "image")]
    pub hfs: bool,
    /// Block size of the volume in bytes [default: 1024]
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["image", "hfs"])]
    pub block_size: Option<u32>,
    /// Inode size of the volume in bytes [default: 256]
    #[arg(long, value_name = "BYTES", conflicts_with_all = ["image", "hfs"])]
    pub inode_size: Option<u32>,
    /// Explore every pair of operations, then random workloads until the time limit
    #[arg(long)]
    pub all_pairs: bool,
    /// Seed of the sampled states and the random workloads
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Run only this workload: operations as listed below, or as a failure prints it
    #[arg(long, value_name = "WORKLOAD")]
    pub workload: Option<String>,
    /// Run only this state of the workload, as a failure prints it
    #[arg(long, value_name = "STATE")]
    pub state: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum CrashVerb {
    /// Test what power cuts would leave of a program's files, and name the fsync that is missing
    ///
    /// The program runs in an empty folder; every call that changes something there is recorded.
    /// Then the states are built that a power cut could have left there, at any moment, on file
    /// systems that reorder what was not fsynced, and the check runs in each of them. Each command
    /// is a line for /bin/sh that starts in the folder, which is also in `WEFT_MNT`; the directory
    /// in which this command was started is in `WEFT_CWD`. The check says
    /// by its exit status whether the state is one that the program can live with (0), after any
    /// recovery that the program itself would make. It may change the folder: each state is a copy.
    ///
    /// Exit code 0: no state fails. 3: some fail; each kind is printed with the calls that matter.
    /// 1: nothing was tested, and why.
    #[command(after_help = "Models: posix (what was not fsynced may be lost in any combination), \
                            ext4-ordered, xfs-like, btrfs-like; docs/crash.md has their rules and \
                            sources.\nExample: weft crash run --setup 'echo old >f' --run 'echo new >t; \
                            mv t f' --check 'grep -qx -e old -e new f'")]
    Run(Box<CrashRun>),
    /// Mount a directory elsewhere, and keep apart what programs do not fsync there
    ///
    /// All content of the directory is in memory. Programs see at the mount what they have written;
    /// the directory follows, within a second, with what is durable under the model. weft crash report
    /// says what is not, weft crash lose takes it away, as a power cut would. Unmounting keeps
    /// everything: weft umount writes it to the directory.
    Mount(CrashMount),
    /// Show what programs have not made durable in a folder of weft crash mount
    Report(CrashLive),
    /// Cut the power: take away what is not durable in a folder of weft crash mount
    ///
    /// Programs that go on have lost the files that they had open (ESTALE), as far as they are not
    /// killed. Answers when it is done, also with --at: until then it waits.
    #[command(
        after_help = "Calls: any, creat, mkdir, mknod, symlink, link, unlink, rmdir, rename, \
                            open, read, write, truncate, fallocate, chmod, setxattr, removexattr, \
                            fsync, fdatasync, close.\nExample: weft crash lose --at 'fsync:wal/*' \
                            --nth 3 --kill /mnt/db"
    )]
    Lose(CrashLose),
    /// Make everything durable in a folder of weft crash mount
    Sync(CrashLive),
    /// A worker of `weft crash run`
    #[command(hide = true)]
    Worker,
}

#[derive(Debug, Args)]
pub struct CrashRun {
    /// Prepares the folder; what it leaves is taken to be durable
    #[arg(long, value_name = "COMMAND", conflicts_with = "replay")]
    pub setup: Option<String>,
    /// The program to be tested
    #[arg(
        long,
        value_name = "COMMAND",
        required_unless_present_any = ["replay", "log_writes"],
        conflicts_with = "replay"
    )]
    pub run: Option<String>,
    /// Exits with 0 if the folder is in a state that the program can live with
    #[arg(long, value_name = "COMMAND", required_unless_present_any = ["record", "list", "fsck"])]
    pub check: Option<String>,
    /// The check is a server, started once for each job with the variable `WEFT_CHECK_SERVER`: it
    /// prints a line when it is ready; then, for each line on its standard input, it judges the folder
    /// in a process of its own, and answers with a line, the exit status (or the signal, below zero)
    #[arg(long)]
    pub check_server: bool,
    /// A model of what file systems may lose and reorder; may be repeated [default: ext4-ordered,
    /// xfs-like and btrfs-like]
    #[arg(long = "model", value_name = "MODEL", value_parser = known::<Model>(MODELS))]
    pub models: Vec<Model>,
    /// Run the program on a volume of weft, ext2 or ext3 (or HFS, --hfs), with this order of writes (soft, journal,
    /// journal=ordered, journal=full, async): states are made of the blocks that it wrote, and are
    /// recovered as weft does after a power cut
    #[arg(long, value_name = "ORDER", value_parser = known::<Order>(ORDERS), conflicts_with_all = ["models", "replay", "each_sync"])]
    pub order: Option<Order>,
    /// Run the program on an HFS volume [with --order; default of it: soft]
    #[arg(long, conflicts_with_all = ["models", "replay", "each_sync", "volume", "log_writes"])]
    pub hfs: bool,
    /// A copy of this volume instead of an empty one [with --order; default of it: soft]; with
    /// --log-writes the volume as it was before the first entry
    #[arg(long, value_name = "IMAGE", conflicts_with_all = ["models", "replay", "each_sync"])]
    pub volume: Option<PathBuf>,
    /// Lines that the program prints and that match this (* stands for any text) are promises of
    /// durability; the check finds those that were made in the file named by `WEFT_PROMISES`
    #[arg(long, value_name = "PATTERN", conflicts_with = "replay")]
    pub stdout_is_promise: Option<String>,
    /// Keep the recording in this file; without --check, only record
    #[arg(long, value_name = "LOG", conflicts_with = "replay")]
    pub record: Option<PathBuf>,
    /// Test a recording instead of running a program
    #[arg(long, value_name = "LOG")]
    pub replay: Option<PathBuf>,
    /// Test a log of dm-log-writes instead: what the kernel, or anything else, wrote to an ext2,
    /// ext3 or HFS volume. Each state is recovered and mounted by weft before the check; marks are promises
    #[arg(long, value_name = "LOG", conflicts_with_all = ["setup", "run", "replay", "models", "each_sync", "stdout_is_promise"])]
    pub log_writes: Option<PathBuf>,
    /// The content of the log up to this mark is durable, such as the making of the volume
    #[arg(long, value_name = "MARK", requires = "log_writes")]
    pub after_mark: Option<String>,
    /// Judge the volume of each state by weft's fsck, too, after its recovery: it may have leaks, and
    /// nothing worse; without --check, by that alone [with --order, --volume or --log-writes]
    #[arg(long, conflicts_with_all = ["models", "each_sync"])]
    pub fsck: bool,
    /// Judge only this state, as a failure prints it, under the one --model given
    #[arg(long, value_name = "STATE")]
    pub state: Option<String>,
    /// Leave out each call that makes something durable in turn, and tell whether a state fails
    /// without it: which are needed, and how much the check sees
    #[arg(long, conflicts_with_all = ["state", "junit"])]
    pub each_sync: bool,
    /// Leave the files of the --state in this directory
    #[arg(long, value_name = "DIR", requires = "state")]
    pub extract: Option<PathBuf>,
    /// Print the recorded calls
    #[arg(long)]
    pub list: bool,
    /// Judge at most this many states for each model
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    pub states: u64,
    /// Search at most this long for each model
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    pub time: Duration,
    /// Stop after this many kinds of failures
    #[arg(long, value_name = "COUNT", default_value_t = 8)]
    pub findings: usize,
    /// Seed of the random states, where there are too many for all
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Pages are written whole
    #[arg(long)]
    pub no_torn: bool,
    /// Number of checks that run at the same time [default: the number of CPUs]
    #[arg(long, value_name = "N")]
    pub jobs: Option<usize>,
    /// A check that takes longer fails
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = time)]
    pub check_limit: Duration,
    /// A program that takes longer is not tested
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = time)]
    pub run_limit: Duration,
    /// A program that writes more is not tested
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub write_limit: u64,
    /// The size of the file system that the program runs on [default: 4G; of a volume 32M; of that of a
    /// log without --volume, as far as its entries reach]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub size: Option<u64>,
    /// Test a program although it fails
    #[arg(long)]
    pub any_exit: bool,
    /// Write the result as JUnit XML to this file, too
    #[arg(long, value_name = "FILE")]
    pub junit: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct CrashMount {
    /// The directory; nothing else may change it meanwhile
    pub directory: String,
    /// The directory to mount on
    pub mountpoint: PathBuf,
    /// The model that says which changes are durable, and in which order
    #[arg(long, value_name = "MODEL", default_value = "ext4-ordered", value_parser = known::<Model>(MODELS))]
    pub model: Model,
    /// The size of the file system, all of which is in memory
    #[arg(long, value_name = "SIZE", default_value = "4G", value_parser = size)]
    pub size: u64,
    /// Hold at most this much data that is not durable; of more, the oldest are written back
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    pub unsynced_limit: u64,
    /// Answer requests on this Unix socket, too: one JSON request and answer to a line
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Other users may use the mount
    #[arg(long)]
    pub allow_other: bool,
    /// Return once it is mounted
    #[arg(long, short)]
    pub background: bool,
    /// Write the process id to this file once mounted, and remove it at the end
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// The re-execution of this command behind --background
    #[arg(long, hide = true)]
    pub detached: bool,
}

#[derive(Debug, Args)]
pub struct CrashLive {
    /// The mount, or the socket of its --control
    pub mountpoint: PathBuf,
}

#[derive(Debug, Args)]
pub struct CrashLose {
    /// The mount, or the socket of its --control
    pub mountpoint: PathBuf,
    /// Only what the newest N calls have changed: the disk was behind
    #[arg(long, value_name = "N", conflicts_with_all = ["random", "torn"])]
    pub newest: Option<u64>,
    /// A random part, in an order that the model allows: the disk has written later calls first
    #[arg(long, conflicts_with = "torn")]
    pub random: bool,
    /// A part of the last write: some of its pages, or some sectors of one
    #[arg(long)]
    pub torn: bool,
    /// The seed of --random and --torn
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Only what was changed in files that match (* stands for any text in a name, ** for any path)
    #[arg(long, value_name = "PATTERN")]
    pub path: Option<String>,
    /// Wait for this call, and cut the power there: CALL or CALL:PATTERN, such as 'rename:*.tmp'
    #[arg(long, value_name = "CALL")]
    pub at: Option<CallPattern>,
    /// The Nth such call from now on
    #[arg(long, value_name = "N", default_value_t = 1, requires = "at", value_parser = clap::value_parser!(u64).range(1..))]
    pub nth: u64,
    /// After the call has done its work, and before the program hears of it
    #[arg(long, requires = "at")]
    pub after: bool,
    /// Kill the processes that have used the folder, but for this command and its ancestors
    #[arg(long)]
    pub kill: bool,
    /// Give up after this long
    #[arg(long, value_name = "TIME", requires = "at", value_parser = time)]
    pub timeout: Option<Duration>,
}

/// The names of the models, for completion and errors.
pub const MODELS: &[&str] = &["posix", "ext4-ordered", "xfs-like", "btrfs-like"];

fn time(text: &str) -> Result<Duration, String> {
    humantime::parse_duration(text).map_err(|e| e.to_string())
}

fn size(text: &str) -> Result<u64, String> {
    weft::block::parse_size(text).map_err(|e| e.to_string())
}
