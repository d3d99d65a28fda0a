//! The file plug on a real kernel.

mod hostdir;
