//! The command line of `weft ringer`.

mod care;
mod members;

pub use care::{Backup, Doctor, RestoreCell, Scrub};
use clap::{Args, Subcommand, ValueEnum};
pub use members::{Forget, Init, Invite, Join, Members, Revoke};
use std::path::PathBuf;
use weft::ringer_client::MemberId;

/// `weft ringer`.
#[derive(Debug, Subcommand)]
pub enum Ringer {
    /// Serve a cell: the names, attributes and leases of a shared folder
    Serve(Serve),
    /// Mount a cell, in the foreground unless --background
    Mount(Mount),
    /// Show the state of a cell and its clients, or that of a mount
    Status(Status),
    /// Show leases, messages and transfers, second by second
    Top(Top),
    /// List leases with their holders
    Leases(Leases),
    /// Find files by tags, attributes and words of their names
    #[command(
        after_help = "Conditions are combined with AND: WORD (a prefix of a word of the name), tag:TAG, \
        NAME:VALUE (the attribute user.NAME), kind:file|dir|link, size>10M, \
        mtime<2026-01-01. A leading - negates a condition; write -- before the first of \
        those."
    )]
    Search(Search),
    /// Show or change the tags of files
    Tag(Tag),
    /// Make, list and remove snapshots of a directory
    #[command(subcommand)]
    Snapshot(Snapshot),
    /// Check the consistency of a running cell
    #[command(after_help = "Exit codes: 0 no errors, 4 errors found, 8 the check failed.")]
    Doctor(Doctor),
    /// Back up a running cell into a file
    #[command(
        after_help = "Requires an administrator of the cell. The backup has names, attributes, versions, \
        members and the block hashes of files. It has no file content: blocks are on the \
        clients and in archives. Exit codes: 0 done, 1 failed, 4 the cell has errors (see \
        `doctor`)."
    )]
    Backup(Backup),
    /// Create a cell from a backup
    RestoreCell(RestoreCell),
    /// Check all blocks of a mount's store against their hashes, and repair them from other clients
    #[command(
        after_help = "Exit codes: 0 no damage, 1 all damage repaired, 4 some blocks have no other copy, 8 \
        the check failed."
    )]
    Scrub(Scrub),
    /// List conflicts: changes not sent because other clients had changed the same files or names
    Conflicts(Conflicts),
    /// Resolve a conflict
    Resolve(Resolve),
    /// Change the owner or mode of a cell's root, as an administrator of the cell
    #[command(
        after_help = "For the user who runs the mount, and root, on a mount of an administrator of the cell \
        (of a cell without certificates, every mount). The owner is stored as a number, which is \
        the same on all machines. To users of other machines a number may be another user."
    )]
    Own(Own),
    /// Attach another cell to an empty directory; it appears on every mount
    Attach(Attach),
    /// Detach a cell from a directory; the cell stays as it is
    Detach(Detach),
    /// Show or set the policy of a directory: copies, what fsync waits for, archives, versions,
    /// text search
    Policy(PolicyArgs),
    /// Show which clients keep copies of a file
    Holders(Holders),
    /// Encrypt an empty directory: server, other clients and archives get only ciphertext of
    /// content; names, lengths, attributes and times stay visible
    #[command(
        after_help = "Creates a key, which is stored only on this machine, in the local store of the \
        mount. Share it with `ringer key share`, and back it up with `ringer key export`: \
        without the key the files are lost. Subdirectories use the same key unless they are \
        encrypted separately while empty. Files cannot be renamed or hard-linked out of the \
        directory; mv copies them."
    )]
    Encrypt(Encrypt),
    /// Share encrypted directories with members: list, hand over, export and import their keys
    #[command(subcommand)]
    Key(Key),
    /// Pin a file or directory tree to this machine
    Pin(Pin),
    /// Remove a pin
    Unpin(Pin),
    /// List earlier versions of a file, or files removed below a directory
    History(History),
    /// Restore an earlier version of a file, or a removed file
    Restore(Restore),
    /// Make a cell's certificate authority, and certificates for its server and its administrator
    Init(Init),
    /// Print a single-use token with which a new member can join a cell
    Invite(Invite),
    /// Join a cell: get a certificate by a token
    Join(Join),
    /// Revoke a member permanently
    Revoke(Revoke),
    /// List the members of a cell
    Members(Members),
    /// Drop a client permanently: its copies no longer count
    Forget(Forget),
    /// Keep copies of files in a directory or in S3
    #[cfg(feature = "archive")]
    #[command(subcommand)]
    Archive(Archive),
}

/// The operations on a cell's archives.
#[cfg(feature = "archive")]
#[derive(Debug, Subcommand)]
pub enum Archive {
    /// Add an archive to the cell: an empty directory, or an empty S3 prefix. `policy` selects the
    /// files that are copied there
    #[command(
        after_help = "Each writing client connects to the archive directly and takes the credentials from \
        its environment: for S3 AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, and \
        for other providers than Amazon AWS_ENDPOINT_URL (with AWS_ALLOW_HTTP=true if it has \
        no TLS)."
    )]
    Add(ArchiveAdd),
    /// List the archives of a cell
    List(ArchiveList),
    /// Stop relying on an archive; its content stays
    Remove(ArchiveRemove),
    /// Delete blocks from an archive that no file and no kept version uses
    Sweep(ArchiveSweep),
}

#[cfg(feature = "archive")]
#[derive(Debug, Args)]
pub struct ArchiveAdd {
    #[command(flatten)]
    pub reaching: Reaching,
    /// URL of the archive: file:///PATH, which every client must see at that path, or
    /// s3://BUCKET/PREFIX
    pub url: String,
}

#[cfg(feature = "archive")]
#[derive(Debug, Args)]
pub struct ArchiveList {
    #[command(flatten)]
    pub reaching: Reaching,
}

#[cfg(feature = "archive")]
#[derive(Debug, Args)]
pub struct ArchiveRemove {
    #[command(flatten)]
    pub reaching: Reaching,
    /// Its number, as `list` shows it
    pub archive: String,
}

#[cfg(feature = "archive")]
#[derive(Debug, Args)]
pub struct ArchiveSweep {
    #[command(flatten)]
    pub reaching: Reaching,
    /// Number of the archive, as shown by `list` [default: all, one after the other]
    pub archive: Option<String>,
    /// Only report what would be deleted
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct Serve {
    /// The file of the cell, created if it does not exist; with --etcd its name. With --upstream:
    /// the store directory of this proxy
    pub cell: PathBuf,
    /// Run as a proxy for these servers of a cell: cache the leases and metadata that nearby
    /// clients use, and grant them again without asking upstream. HOST:PORT, HOST, quic://HOST:PORT
    /// or unix:/PATH, separated by commas
    #[arg(long, value_name = "SERVERS")]
    pub upstream: Option<String>,
    /// Directory of ca-cert.pem, client-cert.pem and client-key.pem for the upstream servers: the
    /// proxy is a member of the cell
    #[arg(long, value_name = "DIR", requires = "upstream")]
    pub upstream_certificates: Option<PathBuf>,
    #[cfg(feature = "etcd")]
    #[command(flatten)]
    pub etcd: Etcd,
    /// Listen here: HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH, with IPv6 addresses in
    /// brackets; more than once; over QUIC with --tls-certificates [default: the sockets of
    /// LISTEN_FDS (socket activation), or localhost:7473]
    #[arg(long, short, value_name = "ADDRESS")]
    pub listen: Vec<String>,
    /// Directory of ca-cert.pem, server-cert.pem and server-key.pem: use TLS, and admit only
    /// clients with a certificate of that authority; with an authority of `ringer init` only
    /// members, and invited machines can join
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Admit other machines and all local users without TLS: any process that reaches the port has
    /// full permissions [default without TLS: only root and this user, on this machine]
    #[arg(long, conflicts_with = "tls_certificates")]
    pub insecure: bool,
    /// Owner of the root of a new cell: USER or USER:GROUP, as numbers or as names of this machine
    /// [default: this process's user and group]
    #[arg(long, value_name = "USER[:GROUP]")]
    pub owner: Option<String>,
    /// Mode of the root of a new cell, such as 1777 for a folder in which every user may make files
    #[arg(long, value_name = "MODE", default_value = "0755")]
    pub root_mode: String,
    /// Lease term: how long the leases of an unresponsive client are kept
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub epoch: u64,
    /// Serve Prometheus metrics on this TCP address, under /metrics, such as localhost:9106
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Maximum number of connections; further ones are refused
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub connections_max: usize,
    /// Maximum number of relayed connections, between clients that cannot connect to each other
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub relays_max: usize,
    /// Return once it is served
    #[arg(long, short)]
    pub background: bool,
    /// Write the process id to this file once it is served, and remove it at the end
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// The re-execution of this command behind --background
    #[arg(long, hide = true)]
    pub detached: bool,
}

/// A cell that has several servers.
#[cfg(feature = "etcd")]
#[derive(Debug, Args)]
pub struct Etcd {
    /// Store the cell in etcd: http://HOST:PORT of each member, separated by commas. Run several
    /// servers for failover: one owns the cell, the others are standbys
    #[arg(long = "etcd", value_name = "URL", value_delimiter = ',', conflicts_with = "upstream")]
    pub members: Vec<String>,
    /// Directory of ca-cert.pem, client-cert.pem and client-key.pem for etcd
    #[arg(long, value_name = "DIR", requires = "members")]
    pub etcd_certificates: Option<PathBuf>,
    /// Time after which an unresponsive server loses the ownership of the cell
    #[arg(long, value_name = "SECONDS", default_value_t = 5, requires = "members", value_parser = clap::value_parser!(u64).range(2..=60))]
    pub session: u64,
    /// Address of this server for clients and other servers [default: the first --listen]
    #[arg(long, value_name = "ADDRESS", requires = "members")]
    pub advertise: Option<String>,
}

/// `ringer own`.
#[derive(Debug, Args)]
pub struct Own {
    /// The mount point of the cell
    pub mountpoint: PathBuf,
    /// The new owner: USER or USER:GROUP, as numbers or as names of this machine
    #[arg(long, value_name = "USER[:GROUP]", required_unless_present = "mode")]
    pub owner: Option<String>,
    /// The new mode, such as 1777
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
}

/// The address of a server, and the certificates for it.
#[derive(Debug, Args)]
pub struct Reaching {
    /// The metadata server: HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH; several with commas
    /// between them if the cell has several
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// Directory of ca-cert.pem, client-cert.pem and client-key.pem: TLS
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Mount {
    #[command(flatten)]
    pub reaching: Reaching,
    /// The directory to mount on
    pub mountpoint: PathBuf,
    /// The store directory of this client, for its identity, journal and blocks; created if it does
    /// not exist
    #[arg(long, short, value_name = "DIR")]
    pub store: PathBuf,
    /// Listen here for other clients that fetch blocks: HOST:PORT, quic://HOST:PORT or unix:/PATH
    /// [default: a socket in the store if the server is on one, else any port of the address that
    /// the server is reached from]
    #[arg(long, short, value_name = "ADDRESS")]
    pub listen: Option<String>,
    /// Directory of certificates for attached cells: for each cell DIR/NUMBER with ca-cert.pem,
    /// client-cert.pem and client-key.pem, as made by `ringer join --by-cell`
    #[arg(long, value_name = "DIR")]
    pub cells_certificates: Option<PathBuf>,
    /// Allow all users to attach cells where they may set attributes, not only root and this user
    #[arg(long)]
    pub allow_attach: bool,
    /// Size of the blocks of new files, 64K to 4M; a file has at most 65536
    #[arg(long, value_name = "SIZE", default_value = "256K")]
    pub block_size: String,
    /// Cache size for blocks fetched from other clients; each attached cell has as much
    #[arg(long, value_name = "SIZE", default_value = "10G")]
    pub cache_size: String,
    /// Limit for blocks written here and copies kept for other clients. Beyond it this client makes
    /// no copies, and drops files with enough other copies; files without another copy stay
    /// [default: the free space of the disk]
    #[arg(long, value_name = "SIZE")]
    pub store_size: Option<String>,
    /// Timeout of calls that wait for the server, and of reads that wait for other clients
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub patience: u64,
    /// Allow -shm files (SQLite in WAL mode). Only safe if no other machine opens the database:
    /// otherwise rows are lost
    #[arg(long)]
    pub allow_shared_memory: bool,
    /// Accept a cell that is older than the state this store last saw, as after restore-cell; later
    /// local changes are set aside in the store
    #[arg(long)]
    pub accept_older_cell: bool,
    /// Begin as another client with a store that is a copy, or an older state, of one that was used
    /// since; changes that it had not sent become conflicts, and its earlier identity is set aside
    #[arg(long)]
    pub adopt_store: bool,
    /// Owners and groups are those of the same name on this machine, not of the same number. The cell
    /// gets the names of users that make files; other owners are shown as nobody (65534), or as
    /// -o uid=N,gid=N
    #[arg(long)]
    pub map_users: bool,
    /// Return once it is mounted
    #[arg(long, short)]
    pub background: bool,
    /// Refuse writes
    #[arg(long, short)]
    pub read_only: bool,
    /// Options as in fstab: ro, allow_other, noxattr, nosuid, ...; uid=N,gid=N shows every file with
    /// this owner and group
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Write the process id to this file once mounted, and remove it at the end
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// The re-execution of this command behind --background
    #[arg(long, hide = true)]
    pub detached: bool,
}

#[derive(Debug, Args)]
pub struct Status {
    /// The metadata server (HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH), or the directory that
    /// a cell is mounted on
    #[command(flatten)]
    pub reaching: Reaching,
}

#[derive(Debug, Args)]
pub struct Top {
    /// The metadata server (HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH), or the directory that
    /// a cell is mounted on
    #[command(flatten)]
    pub reaching: Reaching,
    /// Milliseconds between two updates
    #[arg(long, short, value_name = "MS", default_value_t = 1000)]
    pub interval_ms: u64,
    /// Number of updates; 0: until interrupted
    #[arg(long, short = 'n', default_value_t = 0)]
    pub count: u64,
    /// Show the figures once
    #[arg(long, conflicts_with = "count")]
    pub once: bool,
}

#[derive(Debug, Args)]
pub struct Leases {
    #[command(flatten)]
    pub reaching: Reaching,
    /// Number of leases to show, at most 10000
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub limit: u32,
}

/// The condition for which `fsync` waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// This machine and the server's record.
    Local,
    /// This many other clients as well.
    Copies(u32),
}

fn waits(text: &str) -> Result<Waits, String> {
    let number = |text: &str| text.parse().ok().filter(|n| *n > 0).map(Waits::Copies);
    match text.strip_prefix("copies=") {
        None if text == "local" => Ok(Waits::Local),
        number_text => number_text.and_then(number).ok_or("expected local, or copies=N".into()),
    }
}

/// The time at which files are copied to archives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum When {
    /// Never
    No,
    /// Some time after a file was changed
    Later,
    /// The same, and fsync waits for it
    Fsync,
}

/// Parses a time; returns it in seconds.
fn seconds(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(['s', 'm', 'h', 'd']);
    let unit = match text.strip_prefix(digits) {
        Some("" | "s") => 1,
        Some("m") => 60,
        Some("h") => 3600,
        Some("d") => 86400,
        _ => return Err("expected a number with s, m, h or d".into()),
    };
    let number: u64 =
        digits.parse().map_err(|_| "expected a number with s, m, h or d".to_owned())?;
    number.checked_mul(unit).ok_or_else(|| "the time is too long".into())
}

/// Parses the length of the longest text file that is searched, in bytes, as a policy has it.
fn text_size(text: &str) -> Result<u64, String> {
    const WHAT: &str = "expected none, or a size with K or M, at most 1M";
    if text.contains(char::is_whitespace) {
        return Err(WHAT.into());
    }
    let policy = format!("text={text}").parse::<weft::ringer::Policy>();
    policy.map(|policy| policy.text_bytes).map_err(|_| WHAT.into())
}

#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// A directory of a mounted cell
    pub directory: PathBuf,
    /// Number of copies of each file on other clients than the one that wrote it
    #[arg(long, value_name = "N")]
    pub copies: Option<u32>,
    /// Durability that fsync waits for: the local disk and the server (local), or N copies on other
    /// clients too (copies=N)
    #[arg(long, value_name = "WHAT", value_parser = waits)]
    pub fsync: Option<Waits>,
    /// Time at which files are copied to the cell's archives: never, some time after a change, or before
    /// fsync returns (by at least one archive)
    #[arg(long, value_name = "WHEN")]
    pub archive: Option<When>,
    /// Number of earlier versions of a file that are kept; unless it is 0, removed files are kept
    /// too
    #[arg(long, value_name = "N")]
    pub versions: Option<u32>,
    /// How long versions and removed files are kept: a number with s, m, h or d [default: 7d]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub keep: Option<u64>,
    /// The shortest time between two versions that one client keeps [default: 10s]
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    pub every: Option<u64>,
    /// Index the words of text files of up to this size for search (64K, at most 1M); none for no
    /// file
    #[arg(long, value_name = "SIZE", value_parser = text_size)]
    pub text: Option<u64>,
    /// Remove the directory's own policy, and inherit that of its parent
    #[arg(long, conflicts_with_all = ["copies", "fsync", "archive", "versions", "keep", "every", "text"])]
    pub inherit: bool,
}

impl PolicyArgs {
    /// Returns true if any option sets a value.
    pub fn sets(&self) -> bool {
        let numbers = [self.copies, self.versions];
        let sizes = [self.keep, self.every, self.text];
        self.fsync.is_some()
            || self.archive.is_some()
            || numbers.iter().any(Option::is_some)
            || sizes.iter().any(Option::is_some)
    }
}

#[derive(Debug, Args)]
pub struct Attach {
    /// An empty directory of a mounted cell
    pub directory: PathBuf,
    /// The metadata server of the other cell: HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH, as
    /// every client reaches it; several with commas between them if the cell has several
    #[arg(value_name = "SERVER")]
    pub server: String,
    /// Directory of ca-cert.pem, client-cert.pem and client-key.pem for that cell: TLS, to ask its
    /// server for its number
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Detach {
    /// A directory where a cell is attached; that cell need not be reachable
    pub directory: PathBuf,
}

#[derive(Debug, Args)]
pub struct Holders {
    /// A file of a mounted cell
    pub path: PathBuf,
}

#[derive(Debug, Args)]
pub struct Pin {
    /// A file or directory of a mounted cell
    pub path: PathBuf,
}

#[derive(Debug, Args)]
pub struct Encrypt {
    /// An empty directory of a mounted cell
    pub directory: PathBuf,
}

#[derive(Debug, Subcommand)]
pub enum Key {
    /// List the keys that a mount has, by their ids
    List {
        /// The directory that the cell is mounted on
        mountpoint: PathBuf,
    },
    /// Print the key of an encrypted directory as a line of text, with which anyone can read its
    /// content
    Export {
        /// An encrypted directory of a mounted cell, or anything in it
        directory: PathBuf,
    },
    /// Import a key that `export` has printed, from standard input
    Import {
        /// The directory that the cell is mounted on
        mountpoint: PathBuf,
        /// Read it from this file
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
    },
    /// Print the id that others need to share encrypted directories with this mount. It is not
    /// secret
    #[command(
        after_help = "Send the id to the members who share with you over a channel that does not go \
        through the cell's server, such as mail, a message or a phone call. An attacker who \
        can replace the id can read what is shared with you."
    )]
    Id {
        /// The directory that the cell is mounted on
        mountpoint: PathBuf,
    },
    /// Accept keys from members, by their ids, from now on; without an id, list them
    #[command(
        after_help = "Keys from other members are rejected: the giver of a key can read what you write \
        with it. Get the member's id (`key id`) in person, not through the cell."
    )]
    Trust {
        /// The directory that the cell is mounted on
        mountpoint: PathBuf,
        /// Ids, as `key id` prints them
        #[arg(value_name = "ID")]
        ids: Vec<MemberId>,
        /// Stop accepting keys from these members; keys accepted before stay
        #[arg(long, requires = "ids")]
        remove: bool,
    },
    /// Share an encrypted directory with members, by their ids
    #[command(
        after_help = "Stores the directory's key in the cell, encrypted separately for each of these \
        members. A member receives the key on first access to the directory, from a mount \
        that trusts the id of this mount (`key trust`)."
    )]
    Share {
        /// The directory that was encrypted
        directory: PathBuf,
        /// Ids, as `key id` prints them on the others' mounts
        #[arg(required = true, value_name = "ID")]
        ids: Vec<MemberId>,
    },
    /// List the members that an encrypted directory is shared with
    Members {
        /// The directory that was encrypted
        directory: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct Tag {
    /// Files or directories of a mounted cell
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,
    /// Add a tag; more than once, or several with commas between them
    #[arg(long, short, value_name = "TAG", value_delimiter = ',')]
    pub add: Vec<String>,
    /// Remove a tag
    #[arg(long, short, value_name = "TAG", value_delimiter = ',')]
    pub remove: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub enum Snapshot {
    /// Make a snapshot: DIRECTORY/.snapshots/NAME keeps the directory as it is now
    Create(SnapshotOf),
    /// List the snapshots of a directory
    List {
        /// A directory of a mounted cell
        directory: PathBuf,
    },
    /// Remove a snapshot; space that only it uses is free within minutes
    Remove(SnapshotOf),
}

#[derive(Debug, Args)]
pub struct SnapshotOf {
    /// A directory of a mounted cell
    pub directory: PathBuf,
    /// The name of the snapshot
    pub name: std::ffi::OsString,
}

#[derive(Debug, Args)]
pub struct Search {
    /// The metadata server (HOST:PORT, HOST, quic://HOST:PORT or unix:/PATH), or the mount point of
    /// a cell: then attached cells are searched too
    #[command(flatten)]
    pub reaching: Reaching,
    /// Conditions, such as tag:un project:x 'mtime>2026-01-01' report
    #[arg(required = true, value_name = "CONDITION")]
    pub conditions: Vec<String>,
    /// Number of results to show
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub limit: u32,
}

#[derive(Debug, Args)]
pub struct Conflicts {
    /// The directory that the cell is mounted on
    pub mountpoint: PathBuf,
}

/// The side of a conflict that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Keep {
    /// Apply the local changes to the current state
    Mine,
    /// Keep the changes of other clients
    Theirs,
    /// Keep the file, and apply the local changes to a copy of it: see --as
    Both,
}

#[derive(Debug, Args)]
pub struct Resolve {
    /// The directory that the cell is mounted on
    pub mountpoint: PathBuf,
    /// Number of the conflict, as shown by `conflicts`
    #[arg(value_name = "NUMBER")]
    pub number: u64,
    /// The side to keep
    #[arg(long, value_name = "SIDE")]
    pub keep: Keep,
    /// The path of the copy, from the root of the cell
    #[arg(long = "as", value_name = "PATH", required_if_eq("keep", "both"))]
    pub copy: Option<std::ffi::OsString>,
}

#[derive(Debug, Args)]
pub struct History {
    /// A file or directory of a mounted cell
    pub path: PathBuf,
}

#[derive(Debug, Args)]
pub struct Restore {
    /// A file of a mounted cell; or with --removed the directory given to `history`
    pub path: PathBuf,
    /// Number of the version, as shown by `history`
    #[arg(long, value_name = "NUMBER", required_unless_present = "removed")]
    pub version: Option<u64>,
    /// Number of the removed file, as shown by `history`
    #[arg(long, value_name = "NUMBER", conflicts_with = "version")]
    pub removed: Option<u64>,
    /// Restore into a new file, and leave the existing one as it is
    #[arg(long = "as", value_name = "PATH")]
    pub copy: Option<PathBuf>,
}
