//! Placeholder until written below.
/// What a recovery did.
#[derive(Debug)]
pub struct Recovered {}
