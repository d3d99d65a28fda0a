//! The Finder's information on files and folders: `FInfo`, `FXInfo`, `DInfo`, `DXInfo`, 16 bytes
//! each. Source: *Inside Macintosh: Macintosh Toolbox Essentials*, chapter 7, "Finder Interface".

use super::{get, get8, get16, get32, put, put16, put32};

/// Flags of `fdFlags` and `frFlags`.
#[allow(missing_docs)]
pub mod finder_flags {
    pub const IS_ON_DESK: u16 = 0x0001;
    pub const COLOR: u16 = 0x000e;
    pub const IS_SHARED: u16 = 0x0040;
    pub const HAS_NO_INITS: u16 = 0x0080;
    pub const HAS_BEEN_INITED: u16 = 0x0100;
    pub const HAS_CUSTOM_ICON: u16 = 0x0400;
    pub const IS_STATIONERY: u16 = 0x0800;
    pub const NAME_LOCKED: u16 = 0x1000;
    pub const HAS_BUNDLE: u16 = 0x2000;
    pub const IS_INVISIBLE: u16 = 0x4000;
    pub const IS_ALIAS: u16 = 0x8000;
}

/// A position in a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Point {
    /// The vertical coordinate, downwards.
    pub v: i16,
    /// The horizontal coordinate, to the right.
    pub h: i16,
}

/// The rectangle of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[allow(missing_docs)]
pub struct Rect {
    pub top: i16,
    pub left: i16,
    pub bottom: i16,
    pub right: i16,
}

fn signed(raw: &[u8], at: usize) -> i16 {
    get16(raw, at).cast_signed()
}

fn point(raw: &[u8], at: usize) -> Point {
    Point { v: signed(raw, at), h: signed(raw, at + 2) }
}

fn put_point(raw: &mut [u8], at: usize, point: Point) {
    put16(raw, at, point.v.cast_unsigned());
    put16(raw, at + 2, point.h.cast_unsigned());
}

/// The Finder's information on a file (`FInfo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct FInfo {
    /// `fdType`
    pub file_type: [u8; 4],
    /// `fdCreator`
    pub creator: [u8; 4],
    /// `fdFlags`, see [`finder_flags`].
    pub flags: u16,
    /// `fdLocation`: the icon's position.
    pub location: Point,
    /// `fdFldr`: the window that shows it.
    pub folder: i16,
}

impl FInfo {
    /// Reads 16 bytes.
    #[must_use]
    pub fn parse(raw: &[u8; 16]) -> Self {
        Self {
            file_type: get(raw, 0),
            creator: get(raw, 4),
            flags: get16(raw, 8),
            location: point(raw, 10),
            folder: signed(raw, 14),
        }
    }

    /// Returns the 16 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; 16] {
        let mut raw = [0; 16];
        put(&mut raw, 0, &self.file_type);
        put(&mut raw, 4, &self.creator);
        put16(&mut raw, 8, self.flags);
        put_point(&mut raw, 10, self.location);
        put16(&mut raw, 14, self.folder.cast_unsigned());
        raw
    }
}

/// The Finder's extended information on a file (`FXInfo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct FXInfo {
    /// `fdIconID`
    pub icon_id: i16,
    /// `fdUnused`
    pub unused: [u8; 6],
    /// `fdScript`: script of the name.
    pub script: i8,
    /// `fdXFlags`
    pub x_flags: i8,
    /// `fdComment`: id of the comment.
    pub comment_id: i16,
    /// `fdPutAway`: folder that the file was taken from.
    pub put_away: u32,
}

impl FXInfo {
    /// Reads 16 bytes.
    #[must_use]
    pub fn parse(raw: &[u8; 16]) -> Self {
        Self {
            icon_id: signed(raw, 0),
            unused: get(raw, 2),
            script: get8(raw, 8).cast_signed(),
            x_flags: get8(raw, 9).cast_signed(),
            comment_id: signed(raw, 10),
            put_away: get32(raw, 12),
        }
    }

    /// Returns the 16 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; 16] {
        let mut raw = [0; 16];
        put16(&mut raw, 0, self.icon_id.cast_unsigned());
        put(&mut raw, 2, &self.unused);
        put(&mut raw, 8, &[self.script.cast_unsigned(), self.x_flags.cast_unsigned()]);
        put16(&mut raw, 10, self.comment_id.cast_unsigned());
        put32(&mut raw, 12, self.put_away);
        raw
    }
}

/// The Finder's information on a folder (`DInfo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct DInfo {
    /// `frRect`: the folder's window.
    pub rect: Rect,
    /// `frFlags`, see [`finder_flags`].
    pub flags: u16,
    /// `frLocation`: the icon's position.
    pub location: Point,
    /// `frView`: view of the items.
    pub view: i16,
}

impl DInfo {
    /// Reads 16 bytes.
    #[must_use]
    pub fn parse(raw: &[u8; 16]) -> Self {
        Self {
            rect: Rect {
                top: signed(raw, 0),
                left: signed(raw, 2),
                bottom: signed(raw, 4),
                right: signed(raw, 6),
            },
            flags: get16(raw, 8),
            location: point(raw, 10),
            view: signed(raw, 14),
        }
    }

    /// Returns the 16 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; 16] {
        let mut raw = [0; 16];
        let Rect { top, left, bottom, right } = self.rect;
        for (i, side) in [top, left, bottom, right].into_iter().enumerate() {
            put16(&mut raw, 2 * i, side.cast_unsigned());
        }
        put16(&mut raw, 8, self.flags);
        put_point(&mut raw, 10, self.location);
        put16(&mut raw, 14, self.view.cast_unsigned());
        raw
    }
}

/// The Finder's extended information on a folder (`DXInfo`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct DXInfo {
    /// `frScroll`: scroll position of the window.
    pub scroll: Point,
    /// `frOpenChain`: the chain of open folders.
    pub open_chain: u32,
    /// `frScript`: script of the name.
    pub script: i8,
    /// `frXFlags`
    pub x_flags: i8,
    /// `frComment`: id of the comment.
    pub comment_id: i16,
    /// `frPutAway`: folder that the folder was taken from.
    pub put_away: u32,
}

impl DXInfo {
    /// Reads 16 bytes.
    #[must_use]
    pub fn parse(raw: &[u8; 16]) -> Self {
        Self {
            scroll: point(raw, 0),
            open_chain: get32(raw, 4),
            script: get8(raw, 8).cast_signed(),
            x_flags: get8(raw, 9).cast_signed(),
            comment_id: signed(raw, 10),
            put_away: get32(raw, 12),
        }
    }

    /// Returns the 16 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; 16] {
        let mut raw = [0; 16];
        put_point(&mut raw, 0, self.scroll);
        put32(&mut raw, 4, self.open_chain);
        put(&mut raw, 8, &[self.script.cast_unsigned(), self.x_flags.cast_unsigned()]);
        put16(&mut raw, 10, self.comment_id.cast_unsigned());
        put32(&mut raw, 12, self.put_away);
        raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_sixteen_bytes_come_back(raw: [u8; 16]) {
            prop_assert_eq!(FInfo::parse(&raw).encode(), raw);
            prop_assert_eq!(FXInfo::parse(&raw).encode(), raw);
            prop_assert_eq!(DInfo::parse(&raw).encode(), raw);
            prop_assert_eq!(DXInfo::parse(&raw).encode(), raw);
        }
    }
}
