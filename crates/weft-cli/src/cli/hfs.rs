//! The verbs of `weft hfs`, which are for Macintosh volumes only.

use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use weft::hfs::interchange::Format;
use weft::hfs::macroman;

use super::Opening;

#[derive(Debug, Subcommand)]
pub enum Hfs {
    /// List a folder with type, creator, the lengths of both forks, and dates
    Ls(Ls),
    /// Show all metadata of a file or folder
    Info(Info),
    /// Set type, creator, flags, dates and other fields of the Finder
    #[command(visible_aliases = ["set-type", "set-flags"])]
    Set(Box<Set>),
    /// Make a folder the startup folder of the Macintosh
    Bless(Bless),
    /// Show or set the name of a volume
    Label(Label),
    /// Set the dates of a volume
    Volume(Volume),
    /// Pack or unpack files of this computer: MacBinary, AppleSingle, AppleDouble, BinHex
    Convert(Convert),
    /// Write the content of a wrapped image as a plain image
    Unwrap(Unwrap),
}

/// Four letters: a type or a creator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code(pub [u8; 4]);

impl FromStr for Code {
    type Err = String;

    /// Up to four letters of MacRoman, or eight hexadecimal digits behind `0x`.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad =
            || format!("invalid type or creator '{text}': give four letters, or 0x and 8 digits");
        if let Some(hex) = text.strip_prefix("0x").filter(|hex| hex.len() == 8) {
            return u32::from_str_radix(hex, 16).map(|n| Self(n.to_be_bytes())).map_err(|_| bad());
        }
        let bytes = macroman::encode(text).map_err(|_| bad())?;
        if bytes.len() > 4 {
            return Err(bad());
        }
        let mut code = if bytes.is_empty() { [0; 4] } else { [b' '; 4] };
        code[..bytes.len()].copy_from_slice(&bytes);
        Ok(Self(code))
    }
}

/// The format of files on the host's side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum As {
    Packed(Format),
    Auto,
    Xattr,
    Basilisk,
}

/// The names of formats, as [`As`] reads them.
pub const FORMATS: &[&str] = &[
    "appledouble",
    "macbinary",
    "applesingle",
    "binhex",
    "data",
    "raw",
    "text",
    "auto",
    "xattr",
    "basilisk",
];

impl FromStr for As {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "xattr" => Ok(Self::Xattr),
            "basilisk" => Ok(Self::Basilisk),
            "raw" => Ok(Self::Packed(Format::Data)),
            _ => text
                .parse()
                .map(Self::Packed)
                .map_err(|e: String| format!("{e}, raw, auto, xattr, basilisk")),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum YesNo {
    Yes,
    No,
}

#[derive(Debug, Args)]
pub struct Ls {
    /// IMAGE:/path, more than one if need be
    #[arg(required = true, value_name = "VOLUME_PATH")]
    pub paths: Vec<OsString>,
    /// The folder itself, not its content
    #[arg(long, short)]
    pub directory: bool,
    /// Everything below, too
    #[arg(long, short = 'R')]
    pub recursive: bool,
}

#[derive(Debug, Args)]
pub struct Info {
    /// IMAGE:/path, more than one if need be
    #[arg(required = true, value_name = "VOLUME_PATH")]
    pub paths: Vec<OsString>,
}

/// The dates that both an item and a volume have.
#[derive(Debug, Args)]
pub struct Dates {
    /// Date of creation: YYYY-MM-DD or "YYYY-MM-DD HH:MM:SS", as a clock on the Macintosh shows it
    #[arg(long, value_name = "DATE")]
    pub created: Option<String>,
    /// Date of the last change
    #[arg(long, value_name = "DATE")]
    pub modified: Option<String>,
    /// Date of the last backup, or never
    #[arg(long, value_name = "DATE")]
    pub backed_up: Option<String>,
}

/// The further fields of the Finder.
#[derive(Debug, Args)]
pub struct MoreFields {
    /// The window that a file's icon is in (fdFldr)
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub folder: Option<i16>,
    /// The id of a file's icon (fdIconID)
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub icon_id: Option<i16>,
    /// Scroll position of the folder's window: RIGHT,DOWN (frScroll)
    #[arg(long, value_name = "H,V", allow_hyphen_values = true)]
    pub scroll: Option<String>,
    /// The folder's place in the chain of open folders (frOpenChain)
    #[arg(long, value_name = "NUMBER")]
    pub open_chain: Option<u32>,
    /// The script that the name is to be shown in (fdScript, frScript)
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub script: Option<i8>,
    /// Extended flags (fdXFlags, frXFlags)
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub x_flags: Option<i8>,
    /// The id of the comment in the desktop database (fdComment, frComment)
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub comment_id: Option<i16>,
    /// The id of the folder that it came from, for Put Away (fdPutAway, frPutAway)
    #[arg(long, value_name = "ID")]
    pub put_away: Option<u32>,
}

#[derive(Debug, Args)]
pub struct Set {
    /// IMAGE:/path, more than one if need be
    #[arg(required = true, value_name = "VOLUME_PATH")]
    pub paths: Vec<OsString>,
    /// The type, four letters
    #[arg(long = "type", short = 't', value_name = "TYPE")]
    pub file_type: Option<Code>,
    /// The creator, four letters
    #[arg(long, short, value_name = "CREATOR")]
    pub creator: Option<Code>,
    /// Flags to set (+) or clear (-), comma-separated: alias, invisible, bundle, name-locked,
    /// stationery, custom-icon, inited, no-inits, shared, on-desk; or a number for all of them
    #[arg(long, short, value_name = "FLAGS", allow_hyphen_values = true)]
    pub flags: Option<String>,
    /// Whether the file is locked
    #[arg(long, short, value_name = "YES|NO")]
    pub locked: Option<YesNo>,
    /// Colour of the label, 0 to 7
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(0..8))]
    pub color: Option<u16>,
    /// Position of the icon in its window: RIGHT,DOWN
    #[arg(long, value_name = "H,V", allow_hyphen_values = true)]
    pub location: Option<String>,
    /// The folder's window: LEFT,TOP,RIGHT,BOTTOM
    #[arg(long, value_name = "RECT", allow_hyphen_values = true)]
    pub window: Option<String>,
    /// View of the folder's window, by the Finder's numbers (256: by icon)
    #[arg(long, value_name = "NUMBER", allow_hyphen_values = true)]
    pub view: Option<i16>,
    #[command(flatten)]
    pub more: MoreFields,
    #[command(flatten)]
    pub dates: Dates,
    /// All 32 bytes of Finder information, in hexadecimal; the other options change those then
    #[arg(long, value_name = "HEX")]
    pub finder_info: Option<String>,
    #[command(flatten)]
    pub opening: Opening,
}

#[derive(Debug, Args)]
pub struct Bless {
    /// IMAGE:/path of the folder, or IMAGE: with --none
    #[arg(value_name = "VOLUME_PATH")]
    pub path: OsString,
    /// Bless no folder
    #[arg(long)]
    pub none: bool,
    /// Copy the boot blocks, which are Apple's, from this volume
    #[arg(long, value_name = "IMAGE", conflicts_with = "none")]
    pub boot_blocks_from: Option<String>,
    #[command(flatten)]
    pub opening: Opening,
}

#[derive(Debug, Args)]
pub struct Label {
    /// The image file or block device
    pub image: String,
    /// The new name
    pub label: Option<String>,
    #[command(flatten)]
    pub opening: Opening,
}

#[derive(Debug, Args)]
pub struct Volume {
    /// The image file or block device
    pub image: String,
    #[command(flatten)]
    pub dates: Dates,
    #[command(flatten)]
    pub opening: Opening,
}

#[derive(Debug, Args)]
pub struct Convert {
    /// The packed file; with data or text beside an AppleDouble, either of the two
    pub from: PathBuf,
    /// The new file, or a directory to put it into
    pub to: PathBuf,
    /// Format of the new file: macbinary, applesingle, appledouble, binhex, data (or raw), text
    #[arg(long = "as", value_name = "FORMAT")]
    pub format: Format,
    /// Format of the packed file [default: by its content]
    #[arg(long, value_name = "FORMAT")]
    pub from_format: Option<Format>,
}

#[derive(Debug, Args)]
pub struct Unwrap {
    /// The image: DiskCopy, NDIF, UDIF, MacBinary, a disk with a partition map
    pub image: String,
    /// The new image
    pub to: PathBuf,
}
