//! New volumes of a format that is given by its name, with the options that every format has.

use super::{MacFormat, MacOptions, MkfsOptions, make, make_mac};
use crate::{Error, Result};

/// Makes a volume of the format `ext2`, `ext3`, `hfs` or `mfs` in `image`, of `len_bytes` or of the
/// whole device, with a label (which may be empty). The root directory belongs to the user of this
/// process. Recognised content is overwritten only with `force`.
///
/// # Errors
/// [`Error::Usage`] for another format or a label that the format cannot have; those of [`make`] and
/// [`make_mac`].
pub fn make_named(
    image: &str,
    format: &str,
    len_bytes: Option<u64>,
    label: &str,
    force: bool,
) -> Result<()> {
    let mac = match format {
        "ext2" | "ext3" => {
            let mut options =
                if format == "ext2" { MkfsOptions::ext2() } else { MkfsOptions::ext3() };
            options.label = label.as_bytes().to_vec();
            options.root_uid = rustix::process::geteuid().as_raw();
            options.root_gid = rustix::process::getegid().as_raw();
            return make(image, len_bytes, force, &options).map(drop);
        }
        "hfs" => MacFormat::Hfs,
        "mfs" => MacFormat::Mfs,
        _ => {
            return Err(Error::Usage(format!(
                "weft makes no volumes of the format '{format}'; it is one of: ext2, ext3, hfs, mfs"
            )));
        }
    };
    let label = if label.is_empty() { "Untitled" } else { label };
    let name = weft_hfs::macroman::encode(label).map_err(|e| Error::Usage(e.to_string()))?;
    if name.len() > 27 || name.contains(&b':') {
        let why = "a volume's name has at most 27 letters, and no colon";
        return Err(Error::Usage(format!("'{label}': {why}")));
    }
    let created = weft_hfs::unix_now(0);
    let options = MacOptions { format: mac, name, created, ..MacOptions::default() };
    make_mac(image, len_bytes, force, &options).map(drop)
}
