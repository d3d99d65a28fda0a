//! ext2 and ext3 volumes: layout, mkfs, check and repair, the file system
