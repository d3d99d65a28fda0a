//! Makes a failing case small.

use super::explore::{Case, Failure};

/// Leaves operations out of a case for as long as what is left still fails, in at most `tries`
/// tries.
pub fn shrink(
    mut case: Case,
    mut failure: Failure,
    mut tries: u32,
    mut fails: impl FnMut(&Case) -> Option<Failure>,
) -> (Case, Failure) {
    let mut size = case.script.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        let mut smaller = false;
        while at < case.script.len() {
            if tries == 0 {
                return (case, failure);
            }
            tries -= 1;
            let mut less = case.clone();
            less.script.drain(at..(at + size).min(case.script.len()));
            match fails(&less) {
                Some(found) => {
                    (case, failure) = (less, found);
                    smaller = true;
                }
                None => at += size,
            }
        }
        if size > 1 {
            size = size.div_ceil(2);
        } else if !smaller {
            break;
        }
    }
    (case, failure)
}
