//! libweft as a C program meets it: the header, an installation, the example and a hostile program.

mod header;
mod installed;
