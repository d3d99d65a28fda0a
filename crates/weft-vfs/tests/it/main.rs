//! The file plug on a real kernel.

mod descriptors;
mod hostdir;
