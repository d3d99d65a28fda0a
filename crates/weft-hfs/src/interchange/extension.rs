//! Type and creator of a plain file from another system, by its extension.
//!
//! The guess is only for the Finder: no file is converted because of it, and a file of unknown
//! extension is `????`, not text. The pairs are those that common programs of the time registered
//! with Apple and that file sharing and CD mastering used.

/// Extension, type, creator; sorted by extension.
const TABLE: &[(&str, &[u8; 4], &[u8; 4])] = &[
    ("ai", b"TEXT", b"ART5"),
    ("aif", b"AIFF", b"TVOD"),
    ("aifc", b"AIFC", b"TVOD"),
    ("aiff", b"AIFF", b"TVOD"),
    ("arc", b"mArc", b"SITx"),
    ("arj", b"BINA", b"DArj"),
    ("asc", b"TEXT", b"ttxt"),
    ("asm", b"TEXT", b"CWIE"),
    ("au", b"ULAW", b"TVOD"),
    ("avi", b"VfW ", b"TVOD"),
    ("bas", b"TEXT", b"MSBB"),
    ("bib", b"TEXT", b"ttxt"),
    ("bmp", b"BMPp", b"ogle"),
    ("c", b"TEXT", b"CWIE"),
    ("cc", b"TEXT", b"CWIE"),
    ("cp", b"TEXT", b"CWIE"),
    ("cpp", b"TEXT", b"CWIE"),
    ("cpt", b"PACT", b"CPCT"),
    ("css", b"TEXT", b"MOSS"),
    ("csv", b"TEXT", b"XCEL"),
    ("cwk", b"CWWP", b"BOBO"),
    ("dc42", b"dImg", b"dCpy"),
    ("dif", b"TEXT", b"XCEL"),
    ("dimg", b"dImg", b"ddsk"),
    ("doc", b"WDBN", b"MSWD"),
    ("dsk", b"dImg", b"ddsk"),
    ("dvi", b"ODVI", b"OzTX"),
    ("dxf", b"TEXT", b"SWVL"),
    ("eps", b"EPSF", b"vgrd"),
    ("exe", b"DEXE", b"LMAN"),
    ("f", b"TEXT", b"MPS "),
    ("fm", b"FMPR", b"FMPR"),
    ("gif", b"GIFf", b"ogle"),
    ("gz", b"Gzip", b"Gzip"),
    ("h", b"TEXT", b"CWIE"),
    ("hlp", b"TEXT", b"ttxt"),
    ("hpp", b"TEXT", b"CWIE"),
    ("hqx", b"TEXT", b"SITx"),
    ("htm", b"TEXT", b"MOSS"),
    ("html", b"TEXT", b"MOSS"),
    ("icns", b"icns", b"ogle"),
    ("image", b"dImg", b"ddsk"),
    ("img", b"dImg", b"ddsk"),
    ("ini", b"TEXT", b"ttxt"),
    ("iso", b"rodh", b"ddsk"),
    ("jar", b"ZIP ", b"SITx"),
    ("java", b"TEXT", b"CWIE"),
    ("jfif", b"JPEG", b"ogle"),
    ("jpe", b"JPEG", b"ogle"),
    ("jpeg", b"JPEG", b"ogle"),
    ("jpg", b"JPEG", b"ogle"),
    ("js", b"TEXT", b"MOSS"),
    ("latex", b"TEXT", b"OzTX"),
    ("lha", b"LHA ", b"SITx"),
    ("log", b"TEXT", b"ttxt"),
    ("lzh", b"LHA ", b"SITx"),
    ("m3u", b"M3U ", b"hook"),
    ("mak", b"TEXT", b"CWIE"),
    ("md", b"TEXT", b"ttxt"),
    ("mid", b"Midi", b"TVOD"),
    ("midi", b"Midi", b"TVOD"),
    ("mod", b"STrk", b"TVOD"),
    ("moov", b"MooV", b"TVOD"),
    ("mov", b"MooV", b"TVOD"),
    ("mp3", b"MPG3", b"TVOD"),
    ("mpeg", b"MPEG", b"TVOD"),
    ("mpg", b"MPEG", b"TVOD"),
    ("nfo", b"TEXT", b"ttxt"),
    ("p", b"TEXT", b"CWIE"),
    ("pac", b"PACK", b"UPAC"),
    ("pas", b"TEXT", b"CWIE"),
    ("pbm", b"PPGM", b"GKON"),
    ("pct", b"PICT", b"ogle"),
    ("pcx", b"PCXx", b"GKON"),
    ("pdf", b"PDF ", b"CARO"),
    ("pgm", b"PPGM", b"GKON"),
    ("pic", b"PICT", b"ogle"),
    ("pict", b"PICT", b"ogle"),
    ("pit", b"PIT ", b"SITx"),
    ("pl", b"TEXT", b"McPL"),
    ("pm4", b"ALB4", b"ALD4"),
    ("pm5", b"ALB5", b"ALD5"),
    ("png", b"PNGf", b"ogle"),
    ("pntg", b"PNTG", b"ogle"),
    ("ppm", b"PPGM", b"GKON"),
    ("pps", b"PPSS", b"PPT3"),
    ("ppt", b"SLD3", b"PPT3"),
    ("ps", b"TEXT", b"vgrd"),
    ("psd", b"8BPS", b"8BIM"),
    ("py", b"TEXT", b"Pyth"),
    ("qif", b"TEXT", b"INTU"),
    ("qt", b"MooV", b"TVOD"),
    ("qxd", b"XDOC", b"XPR3"),
    ("r", b"TEXT", b"MPS "),
    ("ra", b"PNRA", b"PNst"),
    ("rm", b"PNRM", b"PNst"),
    ("rsrc", b"rsrc", b"RSED"),
    ("rtf", b"RTF ", b"MSWD"),
    ("s3m", b"S3M ", b"SNPL"),
    ("sea", b"APPL", b"aust"),
    ("sgi", b".SGI", b"ogle"),
    ("sit", b"SIT!", b"SIT!"),
    ("sitx", b"SITX", b"SITx"),
    ("slk", b"TEXT", b"XCEL"),
    ("smi", b"APPL", b"oneb"),
    ("snd", b"sfil", b"TVOD"),
    ("sty", b"TEXT", b"OzTX"),
    ("svg", b"TEXT", b"ttxt"),
    ("swf", b"SWFL", b"SWF2"),
    ("sylk", b"TEXT", b"XCEL"),
    ("tar", b"TARF", b"SITx"),
    ("tex", b"TEXT", b"OzTX"),
    ("text", b"TEXT", b"ttxt"),
    ("tga", b"TPIC", b"ogle"),
    ("tgz", b"Gzip", b"Gzip"),
    ("tif", b"TIFF", b"ogle"),
    ("tiff", b"TIFF", b"ogle"),
    ("toast", b"CDr3", b"TOAS"),
    ("tsv", b"TEXT", b"XCEL"),
    ("ttf", b"sfnt", b"movr"),
    ("txt", b"TEXT", b"ttxt"),
    ("url", b"AURL", b"Arch"),
    ("uu", b"TEXT", b"SITx"),
    ("uue", b"TEXT", b"SITx"),
    ("vcf", b"TEXT", b"ttxt"),
    ("wav", b"WAVE", b"TVOD"),
    ("wk1", b"XLBN", b"XCEL"),
    ("wks", b"XLBN", b"XCEL"),
    ("wmf", b"WMF ", b"GKON"),
    ("wp", b".WP5", b"WPC2"),
    ("wpd", b".WP5", b"WPC2"),
    ("wri", b"WDBN", b"MSWD"),
    ("xbm", b"XBM ", b"GKON"),
    ("xls", b"XLS5", b"XCEL"),
    ("xm", b"XM  ", b"SNPL"),
    ("xml", b"TEXT", b"ttxt"),
    ("z", b"ZIVU", b"LZIV"),
    ("zip", b"ZIP ", b"SITx"),
    ("zoo", b"Zoo ", b"Booz"),
];

/// The type and creator of a file with an unknown extension.
pub const UNKNOWN: ([u8; 4], [u8; 4]) = (*b"????", *b"????");

/// Returns type and creator of a plain file of this name. The case of the extension does not
/// matter.
///
/// ```
/// use weft_hfs::interchange::extension::{UNKNOWN, guess};
/// assert_eq!(guess(b"Photo.JPG"), (*b"JPEG", *b"ogle"));
/// assert_eq!(guess(b"README"), UNKNOWN);
/// ```
#[must_use]
pub fn guess(name: &[u8]) -> ([u8; 4], [u8; 4]) {
    let Some(dot) = name.iter().rposition(|&b| b == b'.') else { return UNKNOWN };
    let extension = name[dot + 1..].to_ascii_lowercase();
    let found = TABLE.binary_search_by(|entry| entry.0.as_bytes().cmp(&extension));
    found.map_or(UNKNOWN, |at| (*TABLE[at].1, *TABLE[at].2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_found() {
        assert!(TABLE.windows(2).all(|pair| pair[0].0 < pair[1].0));
        for (extension, file_type, creator) in TABLE {
            assert_eq!(guess(format!("a.b.{extension}").as_bytes()), (**file_type, **creator));
        }
        assert_eq!(guess(b".txt").0, *b"TEXT");
        assert_eq!(guess(b"txt"), UNKNOWN);
        assert_eq!(guess(b"a."), UNKNOWN);
        assert_eq!(guess(b""), UNKNOWN);
    }
}
