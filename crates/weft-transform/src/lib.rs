//! Transformations of files as they are read and written: compressed, encrypted, seen as another
//! format, one after the other without copies in between.
#![warn(missing_docs)]
