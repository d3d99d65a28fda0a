//! The metadata of a Macintosh file.

/// One of the two forks of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Fork {
    /// The data fork: the content of the file on other systems.
    Data,
    /// The resource fork, which the Resource Manager reads: icons, menus, code.
    Resource,
}

impl Fork {
    /// `"data"` or `"resource"`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Resource => "resource",
        }
    }
}

/// The metadata of a Macintosh file. Each interchange format holds a part of it: fields that a
/// format cannot hold are left out, and come back as in [`Meta::default`].
///
/// Dates are seconds since 1904-01-01 00:00 local time, as HFS stores them; 0 if not set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// The name, in MacRoman.
    pub name: Vec<u8>,
    /// `FInfo` and `FXInfo` (Inside Macintosh: Macintosh Toolbox Essentials, "Finder Interface"):
    /// type, creator, flags, location, folder; icon, script, extended flags, comment, home folder.
    pub finder_info: [u8; 32],
    /// The date of creation.
    pub created: u32,
    /// The date of the last change of the content.
    pub modified: u32,
    /// The date of the last backup.
    pub backed_up: u32,
    /// The file is locked against changes.
    pub locked: bool,
    /// The comment of the Finder's information window, in MacRoman.
    pub comment: Vec<u8>,
    /// Length of the data fork in bytes. For a text that is still to be converted, the upper bound.
    pub data_bytes: u64,
    /// Length of the resource fork in bytes.
    pub resource_bytes: u64,
}

impl Default for Meta {
    fn default() -> Self {
        let mut finder_info = [0; 32];
        finder_info[..8].copy_from_slice(b"????????");
        Self {
            name: Vec::new(),
            finder_info,
            created: 0,
            modified: 0,
            backed_up: 0,
            locked: false,
            comment: Vec::new(),
            data_bytes: 0,
            resource_bytes: 0,
        }
    }
}

impl Meta {
    /// Returns the file type: four characters of MacRoman.
    #[must_use]
    pub fn file_type(&self) -> [u8; 4] {
        [self.finder_info[0], self.finder_info[1], self.finder_info[2], self.finder_info[3]]
    }

    /// Returns the creator: the signature of the application that opens the file.
    #[must_use]
    pub fn creator(&self) -> [u8; 4] {
        [self.finder_info[4], self.finder_info[5], self.finder_info[6], self.finder_info[7]]
    }

    /// Returns the Finder's flags: invisible 4000, bundle 2000, name locked 1000, stationery 0800,
    /// custom icon 0400, inited 0100, alias 8000.
    #[must_use]
    pub fn finder_flags(&self) -> u16 {
        u16::from_be_bytes([self.finder_info[8], self.finder_info[9]])
    }

    /// Sets type and creator.
    pub fn set_type(&mut self, file_type: [u8; 4], creator: [u8; 4]) {
        self.finder_info[..4].copy_from_slice(&file_type);
        self.finder_info[4..8].copy_from_slice(&creator);
    }

    /// Returns the length of a fork in bytes.
    #[must_use]
    pub fn fork_bytes(&self, fork: Fork) -> u64 {
        match fork {
            Fork::Data => self.data_bytes,
            Fork::Resource => self.resource_bytes,
        }
    }
}
