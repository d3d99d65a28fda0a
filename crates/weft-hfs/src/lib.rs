//! Classic Macintosh volumes: HFS and MFS, with both forks of their files.
#![warn(missing_docs)]
