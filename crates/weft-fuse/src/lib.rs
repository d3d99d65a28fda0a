//! Any weft file system as a FUSE mount
