//! What a verb passes over, as it cannot be read: said at once, counted, and an exit code at the end.

use crate::failure::{DONE, FAILED, Failure, Outcome};
use crate::output::{Output, count, shown};
use weft::Stack;

/// The things that a verb has passed over.
#[derive(Debug)]
pub struct Damage {
    out: Output,
    /// The first one ends the verb.
    strict: bool,
    things: u64,
    /// How many of those that a volume tells of have been said, and of which volume.
    told: (String, usize),
}

impl Damage {
    /// Nothing yet.
    pub fn new(out: Output, strict: bool) -> Self {
        Self { out, strict, things: 0, told: (String::new(), 0) }
    }

    /// Passes over what failed, or returns it.
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

    /// Takes in what the volume has passed over by itself.
    pub fn look(&mut self, stack: &Stack) -> Result<(), Failure> {
        self.tell(stack.source(), &stack.passed_over())
    }

    /// Takes in all that the volume `source` has passed over so far.
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

    /// The exit code, and the count for a person.
    pub fn outcome(&self) -> Outcome {
        if self.things == 0 {
            return Ok(DONE);
        }
        let things = count(self.things, "thing");
        self.out.error(&format!(
            "{things} could not be read and {} passed over; weft fsck tells more",
            if self.things == 1 { "was" } else { "were" }
        ));
        Ok(FAILED)
    }
}
