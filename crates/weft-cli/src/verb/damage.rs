//! Unreadable items that a verb skips: each is reported at once and counted, and sets the exit
//! code.

use crate::failure::{DONE, FAILED, Failure, Outcome};
use crate::output::{Output, count, shown};
use weft::Stack;

/// The record of the items that a verb has skipped.
#[derive(Debug)]
pub struct Damage {
    out: Output,
    /// Whether the first item ends the verb.
    strict: bool,
    things: u64,
    /// The volume whose skipped parts were reported last, and how many of them.
    told: (String, usize),
}

impl Damage {
    /// Makes an empty record.
    pub fn new(out: Output, strict: bool) -> Self {
        Self { out, strict, things: 0, told: (String::new(), 0) }
    }

    /// Reports and counts a failure, or returns it if strict.
    pub fn pass(&mut self, what: Failure) -> Result<(), Failure> {
        if self.strict {
            return Err(what);
        }
        self.things += 1;
        self.out.error(&what.message);
        Ok(())
    }

    /// As [`pass`](Self::pass), for errors of the library.
    pub fn pass_error(&mut self, e: weft::Error) -> weft::Result<()> {
        if self.strict {
            return Err(e);
        }
        self.things += 1;
        self.out.error(&Failure::from(e).message);
        Ok(())
    }

    /// Reports the parts that the volume itself has skipped.
    pub fn look(&mut self, stack: &Stack) -> Result<(), Failure> {
        self.tell(stack.source(), &stack.passed_over())
    }

    /// Reports the parts in `all`, which the volume `source` has skipped so far; each only once.
    pub fn tell(&mut self, source: &str, all: &[String]) -> Result<(), Failure> {
        if self.told.0 != source {
            self.told = (source.to_owned(), 0);
        }
        for what in all.iter().skip(self.told.1) {
            let what = format!("{source}: {}", shown(what.as_bytes()));
            self.told.1 += 1;
            self.pass(Failure::new(what))?;
        }
        Ok(())
    }

    /// Returns the exit code, and prints the count.
    pub fn outcome(&self) -> Outcome {
        if self.things == 0 {
            return Ok(DONE);
        }
        let things = count(self.things, "thing");
        self.out.error(&format!(
            "{things} could not be read and {} skipped; see weft fsck",
            if self.things == 1 { "was" } else { "were" }
        ));
        Ok(FAILED)
    }
}
