//! The events of a volume among the calls of a recording.

use std::sync::Arc;

use bytes::Bytes;
use weft_block::Event;

use crate::calls::{Action, Call, CallNr, Process};

/// Puts the events of a volume among the calls. `positions` has for each call the number of events
/// before it.
pub(crate) fn merge(
    calls: Vec<Call>,
    positions: &[usize],
    events: &[Event],
    block_bytes: u32,
) -> Vec<Call> {
    let mut merged = Vec::with_capacity(calls.len() + events.len());
    // The place of each event among the calls.
    let mut places = Vec::with_capacity(events.len() + 1);
    let mut next = 0;
    let mut put = |merged: &mut Vec<Call>, upto: usize, at_nanos: u64| {
        while next < upto.min(events.len()) {
            places.push(CallNr(merged.len() as u32));
            let (action, data): (_, Bytes) = match &events[next] {
                Event::Write { offset, data, fua } => {
                    let (offset, durable) = (*offset, *fua);
                    (
                        Action::BlockWrite { offset, block_bytes, durable },
                        Bytes::from_owner(Arc::clone(data)),
                    )
                }
                Event::Discard { offset, len_bytes } => {
                    let (offset, len_bytes) = (*offset, *len_bytes);
                    (Action::BlockDiscard { offset, len_bytes }, Bytes::new())
                }
                Event::Flush { covers } => {
                    let here = CallNr(merged.len() as u32);
                    let covers = places.get(*covers).copied().unwrap_or(here);
                    (Action::BlockFlush { covers }, Bytes::new())
                }
                Event::Mark(text) => (Action::Mark { text: text.clone() }, Bytes::new()),
            };
            merged.push(Call { action, process: Process::default(), at_nanos, data });
            next += 1;
        }
    };
    let mut last = 0;
    for (call, position) in calls.into_iter().zip(positions) {
        last = call.at_nanos;
        // The end of the program comes after all that its volume still wrote.
        let upto = if call.action == Action::End { usize::MAX } else { *position };
        put(&mut merged, upto, last);
        merged.push(call);
    }
    put(&mut merged, usize::MAX, last);
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Model, Units};

    fn write(offset: u64) -> Event {
        Event::Write { offset, data: Arc::from([1; 1024].as_slice()), fua: false }
    }

    fn call(action: Action) -> Call {
        Call { action, process: Process::default(), at_nanos: 0, data: Bytes::new() }
    }

    #[test]
    fn events_stand_before_the_call_that_came_after_them() {
        let calls = vec![call(Action::Sync), call(Action::End)];
        let events = [write(0), Event::Flush { covers: 1 }, write(2048), write(4096)];
        let merged = merge(calls, &[2, 2], &events, 1024);
        let names: Vec<_> = merged.iter().map(|call| call.action.name()).collect();
        let write = "block write";
        assert_eq!(names, [write, "block flush", "sync", write, write, "exit"]);
        assert_eq!(merged[1].action, Action::BlockFlush { covers: CallNr(1) });
    }

    #[test]
    fn a_block_is_pending_until_the_flush_that_covers_it() {
        // The second write completed after the flush had begun.
        let events = [write(0), write(2048), Event::Flush { covers: 1 }, write(4096)];
        let calls = merge(vec![call(Action::End)], &[4], &events, 1024);
        let units = Units::new(Model::Volume, &calls, &|_| None);
        let pending: Vec<usize> =
            crate::states::epochs(&units, &calls).map(|epoch| epoch.pending.len()).collect();
        assert_eq!(pending, [2, 2]);
        assert_eq!(units.units[0].durable_after, Some(CallNr(2)));
        assert_eq!(units.units[1].durable_after, None);
    }

    #[test]
    fn a_write_of_two_blocks_is_torn_between_them() {
        let data: Arc<[u8]> = Arc::from([1; 2048].as_slice());
        let events = [Event::Write { offset: 1024, data, fua: false }];
        let calls = merge(vec![call(Action::End)], &[1], &events, 1024);
        let units = Units::new(Model::Volume, &calls, &|_| None);
        assert_eq!(units.units.len(), 2);
    }
}
