//! The type of a request.

macro_rules! opcodes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// The requests that this front end answers; all others are unknown to it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Opcode {
            $($name = $number),*
        }

        impl Opcode {
            pub(crate) fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

opcodes! {
    Lookup = 1,
    Forget = 2,
    GetAttr = 3,
    SetAttr = 4,
    ReadLink = 5,
    Symlink = 6,
    MkNod = 8,
    MkDir = 9,
    Unlink = 10,
    RmDir = 11,
    Rename = 12,
    Link = 13,
    Open = 14,
    Read = 15,
    Write = 16,
    StatFs = 17,
    Release = 18,
    FSync = 20,
    SetXattr = 21,
    GetXattr = 22,
    ListXattr = 23,
    RemoveXattr = 24,
    Flush = 25,
    OpenDir = 27,
    ReadDir = 28,
    ReleaseDir = 29,
    FSyncDir = 30,
    GetLk = 31,
    SetLk = 32,
    SetLkW = 33,
    Create = 35,
    Interrupt = 36,
    Destroy = 38,
    Ioctl = 39,
    BatchForget = 42,
    FAllocate = 43,
    ReadDirPlus = 44,
    Rename2 = 45,
    LSeek = 46,
    CopyFileRange = 47,
    SyncFs = 50,
    TmpFile = 51,
    StatX = 52,
}
