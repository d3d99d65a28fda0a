//! Puts a storage stack together from a description
