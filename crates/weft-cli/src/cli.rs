//! The command line: verbs and their options, as clap derives them.

pub mod cache;
pub mod crash;
pub mod examples;
pub mod hfs;
mod known;
pub mod order;
#[cfg(feature = "ringer")]
pub mod ringer;
pub mod transform;

pub use cache::{Cache, Caching};
pub use crash::Crash;
use known::{FORKS, ORDERS, known};
pub use order::Ordered;
#[cfg(feature = "ringer")]
pub use ringer::Ringer;
pub use transform::{Transform, Transforming};

use clap::{Args, Parser, Subcommand, ValueEnum};
pub use hfs::Hfs;
use std::ffi::OsString;
use std::path::PathBuf;
use weft::Order;
use weft::hfs::view::Forks;

/// ext2, ext3 and classic Macintosh volumes that survive a pulled plug: made, mounted, read,
/// written and checked in user space.
#[derive(Debug, Parser)]
#[command(name = "weft", version, max_term_width = 100)]
#[command(after_help = "A volume path is IMAGE:/path; IMAGE is an image file or a block device, \
                        with ?partition=N for a partition of it, or nbd://HOST/EXPORT; in front of it \
                        delay=TIME: makes it slower, record=LOG: records its writes.\nExit codes: 0 done, 1 failed, \
                        2 wrong usage; weft fsck answers as fsck(8), weft crash with 3 for a \
                        broken promise.\nweft VERB --help has examples, man weft-VERB too; \
                        PREFIX/share/doc/weft has the documents.")]
pub struct Cli {
    /// Report in JSON, for machines
    #[arg(long, global = true)]
    pub json: bool,
    /// Print errors only, and no progress
    // Repeated when a command runs itself again in the background.
    #[arg(long, short, global = true, overrides_with = "quiet")]
    pub quiet: bool,
    /// Log internal events (twice for more); `WEFT_LOG` takes a filter
    #[arg(long, short, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// The local time that HFS and MFS volumes are in: local, utc, or an offset such as +02:00
    #[arg(
        long,
        global = true,
        value_name = "ZONE",
        default_value = "local",
        hide_default_value = true
    )]
    pub timezone: String,
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Make an empty volume
    Mkfs(Mkfs),
    /// Mount a volume on a directory, in the foreground unless --background
    Mount(Mount),
    /// Serve a volume or device to others
    Serve(Serve),
    /// A cache on a local disk, in front of a slow source
    #[command(subcommand)]
    Cache(Cache),
    /// Networks of transformations on files
    #[command(subcommand)]
    Transform(Transform),
    /// A folder shared by machines: serve one, mount one, inspect one
    #[cfg(feature = "ringer")]
    #[command(subcommand)]
    Ringer(Ringer),
    /// Watch a cache in use, or a mount with networks
    Top(cache::Top),
    /// Run programs whose changes reach the disk in order, without waiting for it
    Order(Ordered),
    /// Unmount a directory, and wait until everything is on the disk
    Umount(Umount),
    /// Show the properties of a volume
    Info(Info),
    /// List a directory
    Ls(Ls),
    /// Show a directory as a tree
    Tree(Tree),
    /// Show all metadata of a file
    Stat(Stat),
    /// Write files to standard output
    Cat(Cat),
    /// Copy within a volume, between volumes, or in and out
    Cp(Cp),
    /// Copy files out of a volume
    Get(Get),
    /// Copy files into a volume
    Put(Put),
    /// Make directories
    Mkdir(Mkdir),
    /// Remove files
    Rm(Rm),
    /// Rename a file
    Mv(Mv),
    /// Make a link
    Ln(Ln),
    /// Show how full a volume is
    Df(Df),
    /// Put a directory or a tar stream into a volume
    Import(Import),
    /// Take a tree out of a volume, into a directory or a tar stream
    Export(Export),
    /// Check a volume, and repair it
    Fsck(Fsck),
    /// Commands for Macintosh volumes: forks, types, flags, and files packed with both forks
    #[command(subcommand)]
    Hfs(Hfs),
    /// Build images that a power cut could leave, and judge each
    Crash(Crash),
    /// Explain why blocks are not written yet, and record what is written
    Trace(Trace),
    /// Print the completions for a shell
    Completions(Completions),
    /// Write the manual pages into a directory
    Man(Man),
}

/// The options for opening a volume, of the verbs that change it.
#[derive(Debug, Clone, Default, Args)]
pub struct Opening {
    /// Order of writes [default: soft, or journal=ordered where there is a journal]
    #[arg(long, value_name = "ORDER", value_parser = known::<Order>(ORDERS))]
    pub order: Option<Order>,
    /// The journal beside the volume [default of HFS: IMAGE.wjournal]
    #[arg(long, value_name = "FILE")]
    pub journal: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MkfsFormat {
    Ext2,
    Ext3,
    Hfs,
    Mfs,
}

#[derive(Debug, Args)]
pub struct Mkfs {
    /// The format
    pub format: MkfsFormat,
    /// The image file (made if it does not exist) or block device
    pub image: String,
    /// Size of the volume, such as 64M or 2G [default: the size of the image]
    #[arg(long, short)]
    pub size: Option<String>,
    /// Block size in bytes: 1024, 2048 or 4096; of HFS the allocation block, a multiple of 512
    #[arg(long, short, value_name = "BYTES")]
    pub block_size: Option<u32>,
    /// Inode size in bytes: 128 or 256
    #[arg(long, short = 'I', value_name = "BYTES")]
    pub inode_size: Option<u16>,
    /// One inode for this many bytes of the volume
    #[arg(long, short = 'i', value_name = "BYTES")]
    pub bytes_per_inode: Option<u32>,
    /// Number of inodes
    #[arg(long, short = 'N', value_name = "COUNT", conflicts_with = "bytes_per_inode")]
    pub inodes: Option<u32>,
    /// Name of the volume, at most 16 bytes; of HFS and MFS at most 27 letters
    #[arg(long, short = 'L')]
    pub label: Option<String>,
    /// UUID of the volume [default: random]
    #[arg(long, short = 'U')]
    pub uuid: Option<String>,
    /// Percentage of blocks kept for the superuser
    #[arg(long, short = 'm', value_name = "PERCENT")]
    pub reserved: Option<f64>,
    /// Features to set, or with a leading ^ to clear, comma-separated
    #[arg(long, short = 'O', value_name = "FEATURES")]
    pub features: Option<String>,
    /// Size of the journal (ext3), such as 16M
    #[arg(long, short = 'J', value_name = "SIZE")]
    pub journal_size: Option<String>,
    /// Put the journal (ext3) into this file beside the volume: give it with --journal from then on (needed
    /// after a crash, and for orders with a journal)
    #[arg(long, value_name = "FILE")]
    pub journal: Option<std::path::PathBuf>,
    /// Blocks in a group
    #[arg(long, short = 'g', value_name = "BLOCKS")]
    pub blocks_per_group: Option<u32>,
    /// On-disk revision: 0 or 1
    #[arg(long, short = 'r')]
    pub revision: Option<u32>,
    /// Owner of the root directory, UID:GID [default: yours]
    #[arg(long, value_name = "UID:GID")]
    pub root_owner: Option<String>,
    /// Behind an Apple partition map, as SCSI disks are (HFS)
    #[arg(long, conflicts_with = "diskcopy")]
    pub apm: bool,
    /// Take the drivers for the partition map from this disk: a Macintosh needs them
    #[arg(long, value_name = "IMAGE", requires = "apm")]
    pub drivers_from: Option<String>,
    /// In a DiskCopy 4.2 image: floppies of 400K, 720K, 800K or 1440K (HFS, MFS)
    #[arg(long)]
    pub diskcopy: bool,
    /// Size by which a growing file is extended, such as 64K (HFS)
    #[arg(long, value_name = "SIZE")]
    pub clump: Option<String>,
    /// Initial size of the catalog, such as 1M (HFS)
    #[arg(long, value_name = "SIZE")]
    pub catalog_size: Option<String>,
    /// Initial size of the extents file (HFS)
    #[arg(long, value_name = "SIZE")]
    pub extents_size: Option<String>,
    /// Blocks of the directory (MFS)
    #[arg(long, value_name = "COUNT")]
    pub directory_blocks: Option<u16>,
    /// Reproducible image: dates are `SOURCE_DATE_EPOCH`, or 2000-01-01 (HFS, MFS)
    #[arg(long)]
    pub reproducible: bool,
    /// Change names that do not fit (HFS): 31 letters of MacRoman
    #[arg(long, requires = "directory")]
    pub fit_names: bool,
    /// Fill the new volume with this directory
    #[arg(long, short = 'd', value_name = "DIR", visible_alias = "import")]
    pub directory: Option<PathBuf>,
    /// Overwrite existing content, even if it is recognised
    #[arg(long, short = 'F')]
    pub force: bool,
}

#[derive(Debug, Clone, Args)]
#[command(after_long_help = "On a mount of ext2 or ext3:\n\
        chattr and lsattr set and show the flags of files, and weft obeys them as the kernel does. \
        What an immutable or append-only file forbids is refused when it is written, not when it is \
        opened; with -o writeback, or through a mapping, as late as fsync(2), and an append-only file \
        is not protected from being overwritten there.\n\
        fstrim gives the volume's free space back: holes in an image file, unmap on a block device, \
        trim over NBD, and the copy of it in a cache. Root and the user who mounted may ask for it. \
        It makes everything durable before it discards anything.\n\
        O_TMPFILE makes files without a name; linkat(2) gives them one.")]
pub struct Mount {
    /// The image file or block device, or hostdir:PATH for a directory of the host
    pub image: String,
    /// The directory to mount on
    pub mountpoint: PathBuf,
    #[command(flatten)]
    pub opening: Opening,
    /// Return once it is mounted
    #[arg(long, short)]
    pub background: bool,
    /// Refuse writes
    #[arg(long, short)]
    pub read_only: bool,
    /// Show resource forks and Finder information as appledouble (._NAME, the default), suffix
    /// (NAME..rsrc, NAME..finf), xattr (forks of up to 64 KiB only) or none
    #[arg(long, value_name = "HOW", value_parser = known::<Forks>(FORKS))]
    pub forks: Option<Forks>,
    /// Options as in fstab: ro, allow_other, order=..., fsync=..., forks=..., uid=..., umask=..., noatime, ...
    ///
    /// io_uring=auto|on|off: requests over io_uring wake no other CPU; auto uses them where
    /// root has turned the kernel's switch on (echo Y >/sys/module/fuse/parameters/enable_uring, or
    /// "options fuse enable_uring=1" in /etc/modprobe.d; Linux 6.14), on fails where it is off.
    ///
    /// fsync=barrier makes fsync of all programs order and not wait, fsync=group:MS with all durable
    /// within MS milliseconds: a power cut may take the last changes that it confirmed, but never an
    /// earlier one without all later ones. See weft order for single programs. open_files tells weft
    /// of each file that is opened and closed, so that programs can order what is changed by one open
    /// file (docs/order.md).
    ///
    /// noxattr leaves out extended attributes and POSIX ACLs, for fewer requests. writeback lets
    /// the kernel collect writes before it passes them to weft, which is faster where a program
    /// writes one file in small pieces. With it write(2) does not report a full volume or too long
    /// a file (fsync(2) or close(2) may report it later), cp, tar -S and other programs that look
    /// for holes may miss data that was just written (they copy zeroes in its place), and setuid
    /// stays when others write.
    #[arg(short, long = "options", value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Number of threads that serve requests [default: the number of CPUs]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Write the process id to this file once mounted, and remove it at the end
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// The re-execution of this command behind --background
    #[arg(long, hide = true)]
    pub detached: bool,
    // Last, because later options would be listed under their headings in --help.
    #[command(flatten)]
    pub caching: Caching,
    #[command(flatten)]
    pub transforming: Transforming,
}

#[derive(Debug, Args)]
pub struct Serve {
    #[command(subcommand)]
    pub protocol: ServeProtocol,
}

#[derive(Debug, Subcommand)]
pub enum ServeProtocol {
    /// Over NBD, to the kernel, QEMU, libnbd and weft itself
    Nbd(ServeNbd),
}

#[derive(Debug, Args)]
pub struct ServeNbd {
    /// The image file, block device, partition of one, or nbd:// URI
    pub source: String,
    /// Listen on this address: HOST:PORT or HOST, with IPv6 addresses in brackets; more than once
    /// [default: the sockets of LISTEN_FDS (socket activation), or localhost:10809, unless there is
    /// a --socket]
    #[arg(long, short, value_name = "ADDRESS")]
    pub listen: Vec<String>,
    /// Listen on this Unix socket, which is made
    #[arg(long, short, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Permissions of the Unix socket, octal
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = octal)]
    pub socket_mode: u16,
    /// Name of the export; also used for clients that give no name
    #[arg(long, short, value_name = "NAME", default_value = "")]
    pub export: String,
    /// Description of the export, shown to clients
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub description: String,
    /// Refuse writes
    #[arg(long, short)]
    pub read_only: bool,
    /// Encryption: off, on (if the client asks for it) or require
    #[arg(long, value_enum, default_value_t = ServeTls::Off)]
    pub tls: ServeTls,
    /// Directory of server-cert.pem, server-key.pem and perhaps ca-cert.pem
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Admit only clients with a certificate signed by ca-cert.pem
    #[arg(long)]
    pub tls_verify_peer: bool,
    /// Allow listening for other machines although --tls does not restrict access
    #[arg(long)]
    pub insecure: bool,
    /// Maximum number of connections; further ones are refused
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub connections_max: usize,
    /// Maximum number of requests in progress on each connection
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub threads: usize,
    /// Close connections that send no request for this long [default: never]
    #[arg(long, value_name = "SECONDS")]
    pub idle_limit: Option<u64>,
    /// Return once it is served; SIGTERM ends the server, as in: kill $(cat FILE of --pid-file)
    #[arg(long, short)]
    pub background: bool,
    /// Write the process id to this file once it is served, and remove it at the end
    #[arg(long, value_name = "FILE")]
    pub pid_file: Option<PathBuf>,
    /// The re-execution of this command behind --background
    #[arg(long, hide = true)]
    pub detached: bool,
    // Last, because later options would be listed under its heading in --help.
    #[command(flatten)]
    pub caching: Caching,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ServeTls {
    Off,
    On,
    Require,
}

#[derive(Debug, Args)]
pub struct Umount {
    /// The directory a volume is mounted on
    pub mountpoint: PathBuf,
    /// Detach it now, even if files on it are in use or its process has died
    #[arg(long, short)]
    pub lazy: bool,
}

#[derive(Debug, Args)]
pub struct Info {
    /// The image file or block device
    pub image: String,
}

#[derive(Debug, Args)]
pub struct Ls {
    /// IMAGE:/path, more than one if need be
    #[arg(required = true, value_name = "VOLUME_PATH")]
    pub paths: Vec<OsString>,
    /// One line with mode, links, owner, size and time for each
    #[arg(long, short)]
    pub long: bool,
    /// Names that begin with a dot too
    #[arg(long, short)]
    pub all: bool,
    /// The directory itself, not its content
    #[arg(long, short)]
    pub directory: bool,
    /// Everything below, too
    #[arg(long, short = 'R')]
    pub recursive: bool,
    /// Stop at the first unreadable item [default: skip it, report it, exit with 1]
    #[arg(long)]
    pub strict: bool,
}

#[derive(Debug, Args)]
pub struct Tree {
    /// IMAGE:/path
    pub path: OsString,
    /// Number of levels to show
    #[arg(long, short)]
    pub depth: Option<usize>,
    /// Stop at the first unreadable item [default: skip it, report it, exit with 1]
    #[arg(long)]
    pub strict: bool,
}

#[derive(Debug, Args)]
pub struct Stat {
    /// IMAGE:/path, more than one if need be
    #[arg(required = true, value_name = "VOLUME_PATH")]
    pub paths: Vec<OsString>,
}

#[derive(Debug, Args)]
pub struct Cat {
    /// IMAGE:/path, more than one if need be
    #[arg(required = true, value_name = "VOLUME_PATH")]
    pub paths: Vec<OsString>,
    /// The resource fork (HFS, MFS, HFS Plus)
    #[arg(long)]
    pub resource: bool,
}

/// The attributes that are kept of each copied file.
#[derive(Debug, Clone, Args)]
pub struct Keeping {
    /// Owner of everything copied into the volume, UID:GID [default: as in the source]
    #[arg(long, value_name = "UID:GID")]
    pub owner: Option<String>,
    /// Leave extended attributes behind
    #[arg(long)]
    pub no_xattrs: bool,
    /// Change names that a Macintosh volume cannot have: 31 letters of MacRoman
    #[arg(long)]
    pub fit_names: bool,
}

#[derive(Debug, Args)]
pub struct Cp {
    /// The sources, then the destination: paths of the host or IMAGE:/path
    #[arg(required = true, num_args = 2.., value_name = "PATH")]
    pub paths: Vec<OsString>,
    /// Directories too: they are always copied whole
    #[arg(long, short, short_alias = 'R')]
    pub recursive: bool,
    #[command(flatten)]
    pub keeping: Keeping,
    #[command(flatten)]
    pub opening: Opening,
}

#[derive(Debug, Args)]
pub struct Get {
    /// IMAGE:/path, more than one if the destination is a directory
    #[arg(required = true, value_name = "VOLUME_PATH")]
    pub paths: Vec<OsString>,
    /// The destination: an existing directory, the name of the copy, or - for standard output
    #[arg(value_name = "DESTINATION")]
    pub destination: PathBuf,
    /// Leave extended attributes behind
    #[arg(long)]
    pub no_xattrs: bool,
    /// Format in which both forks of a Macintosh file are packed: appledouble, macbinary,
    /// applesingle, binhex, data (or raw), text, auto (macbinary where there is more than data),
    /// xattr, basilisk (.rsrc/ and .finf/, as Basilisk II shares folders) [default: appledouble]
    #[arg(long = "as", value_name = "FORMAT", value_parser = known::<hfs::As>(hfs::FORMATS))]
    pub format: Option<hfs::As>,
    /// Directories too: they are always copied whole
    #[arg(long, short, short_alias = 'R')]
    pub recursive: bool,
    /// Stop at the first unreadable item [default: skip it, report it, exit with 1]
    #[arg(long)]
    pub strict: bool,
}

#[derive(Debug, Args)]
pub struct Put {
    /// Files and directories of the host, or - for standard input
    #[arg(required = true, value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Format of packed files for a Macintosh volume: macbinary, applesingle, appledouble, binhex,
    /// data (or raw), text (UTF-8), auto (by their content), xattr, basilisk [default: as they are,
    /// with the ._NAME beside them]
    #[arg(long = "as", value_name = "FORMAT", value_parser = known::<hfs::As>(hfs::FORMATS))]
    pub format: Option<hfs::As>,
    /// The type of the files, four letters [default: that of the packed file, or by extension]
    #[arg(long = "type", value_name = "TYPE")]
    pub file_type: Option<hfs::Code>,
    /// The creator of the files, four letters
    #[arg(long, value_name = "CREATOR")]
    pub creator: Option<hfs::Code>,
    /// Directories too: they are always copied whole
    #[arg(long, short, short_alias = 'R')]
    pub recursive: bool,
    /// The destination: IMAGE:/path of an existing directory, or the name of the copy
    #[arg(value_name = "VOLUME_PATH")]
    pub destination: OsString,
    #[command(flatten)]
    pub keeping: Keeping,
    #[command(flatten)]
    pub opening: Opening,
}

#[derive(Debug, Args)]
pub struct Mkdir {
    /// IMAGE:/path, more than one if need be
    #[arg(required = true, value_name = "VOLUME_PATH")]
    pub paths: Vec<OsString>,
    /// Make missing parents too, and accept existing directories
    #[arg(long, short)]
    pub parents: bool,
    /// Permissions, octal
    #[arg(long, short, default_value = "755", value_parser = octal)]
    pub mode: u16,
    #[command(flatten)]
    pub opening: Opening,
}

#[derive(Debug, Args)]
pub struct Rm {
    /// IMAGE:/path, more than one if need be
    #[arg(required = true, value_name = "VOLUME_PATH")]
    pub paths: Vec<OsString>,
    /// Directories too, with all that is in them
    #[arg(long, short)]
    pub recursive: bool,
    /// Ignore paths that do not exist
    #[arg(long, short)]
    pub force: bool,
    #[command(flatten)]
    pub opening: Opening,
}

#[derive(Debug, Args)]
pub struct Mv {
    /// IMAGE:/path
    pub from: OsString,
    /// IMAGE:/path of the same volume: the new name, or a directory to move into
    pub to: OsString,
    /// Fail if the new name exists
    #[arg(long, short)]
    pub no_replace: bool,
    #[command(flatten)]
    pub opening: Opening,
}

#[derive(Debug, Args)]
pub struct Ln {
    /// The target of the link: IMAGE:/path, or with --symbolic any text
    pub target: OsString,
    /// IMAGE:/path of the link
    pub link: OsString,
    /// A symbolic link
    #[arg(long, short)]
    pub symbolic: bool,
    #[command(flatten)]
    pub opening: Opening,
}

#[derive(Debug, Args)]
pub struct Df {
    /// The image files or block devices
    #[arg(required = true)]
    pub images: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Import {
    /// A directory, a tar file (not compressed), or - for a tar stream on standard input
    pub from: PathBuf,
    /// IMAGE:/path of the directory to put it into; it is made if it does not exist
    #[arg(value_name = "VOLUME_PATH")]
    pub to: OsString,
    /// It is a layer: .wh.NAME (OCI), or a device 0:0 (overlayfs), removes NAME, and .wh..wh..opq or
    /// trusted.overlay.opaque all that a directory had [default: they are imported]
    #[arg(long)]
    pub whiteouts: bool,
    #[command(flatten)]
    pub keeping: Keeping,
    #[command(flatten)]
    pub opening: Opening,
}

#[derive(Debug, Args)]
pub struct Export {
    /// IMAGE:/path
    #[arg(value_name = "VOLUME_PATH")]
    pub from: OsString,
    /// A directory, a name that ends in .tar, or - for a tar stream on standard output (which
    /// gzip, xz or zstd may compress)
    pub to: PathBuf,
    /// Write a tar stream, whatever the name
    #[arg(long)]
    pub tar: bool,
    /// Leave extended attributes behind
    #[arg(long)]
    pub no_xattrs: bool,
    /// Stop at the first unreadable item [default: skip it, report it, exit with 1]
    #[arg(long)]
    pub strict: bool,
}

#[derive(Debug, Args)]
pub struct Fsck {
    /// The image file or block device
    pub image: String,
    /// Repair what can be repaired without loss
    #[arg(long, short, visible_alias = "yes", short_alias = 'y')]
    pub repair: bool,
    /// Report what a repair would do, and change nothing
    #[arg(long, short = 'n', conflicts_with = "repair")]
    pub dry_run: bool,
    /// As fsck(8) calls a checker when the system starts: skip a volume that was unmounted; repair what
    /// a crash leaves, and nothing at all if there is other damage
    #[arg(long, short = 'p', short_alias = 'a', conflicts_with_all = ["repair", "dry_run"])]
    pub preen: bool,
    /// With --preen: check a volume that was unmounted, too
    #[arg(long, short)]
    pub force: bool,
    /// Write the progress to this file descriptor, in lines as e2fsck writes them; 0: show it
    #[arg(short = 'C', value_name = "FD", allow_negative_numbers = true)]
    pub progress_to: Option<i32>,
    /// The journal beside the volume, if it was made with one
    #[arg(long, value_name = "FILE")]
    pub journal: Option<String>,
}

/// What `--workload` takes, for the help of those who take one.
fn operations() -> String {
    let forms = weft_crash::OPERATIONS.join("\n  ");
    format!(
        "Operations of a workload, separated by ';' (paths are relative to the root and have no blanks; sizes \
         as 9000 or 8K; what stands before a '|' is durable before):\n  {forms}"
    )
}

#[derive(Debug, Args)]
#[command(after_help = operations())]
pub struct Trace {
    /// The volume that the operations begin with; it is not changed
    pub image: String,
    /// The operations, listed below: "mkdir D; creat D/a; write D/a 0 9000"
    #[arg(long, value_name = "WORKLOAD")]
    pub workload: String,
    /// Order of writes [default: soft on ext2, journal=ordered on ext3]
    #[arg(long, value_name = "ORDER", value_parser = known::<Order>(ORDERS))]
    pub order: Option<Order>,
    /// Explain only this block
    #[arg(long, value_name = "BLOCK")]
    pub block: Option<u64>,
    /// Print the patch graph as Graphviz text: weft trace ... --dot | dot -Tsvg
    #[arg(long, conflicts_with = "block")]
    pub dot: bool,
    /// Then sync, and record everything written in this file, in the format of dm-log-writes
    #[arg(long, value_name = "FILE")]
    pub record: Option<std::path::PathBuf>,
}

#[derive(Debug, Args)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub struct Man {
    /// The directory; it is made if it does not exist
    pub directory: PathBuf,
}

fn octal(text: &str) -> Result<u16, String> {
    u16::from_str_radix(text, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777)
        .ok_or_else(|| format!("'{text}' is no mode; write it in octal, such as 755"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
