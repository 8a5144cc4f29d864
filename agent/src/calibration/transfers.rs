//! Whether transfers wait for a call that sets a clock. Pure.
//!
//! Some drivers delay a rank's transfers while they set a clock. Then a stage that continues at
//! once without such a call continues only after the call where there is one. If it continues
//! earlier just once, transfers do not wait.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use pfo_protocol::{Instruction, TapRecord, Unit};

/// The share of its usual time for which a call still takes when an instruction ends: one that was made
/// earlier may be over, and one that was made later says nothing of that end.
const LEFT: RangeInclusive<f64> = 0.8..=1.25;

/// A stage continues at once if it waits for a smaller share of the time that a call still takes.
const AT_ONCE: f64 = 0.25;

/// Calls differ: one that holds transfers up does so for this share of what it usually still takes, at
/// least.
const HELD_UP: f64 = 0.3;

/// Fewer waits beside calls show nothing.
const LEAST_WAITS: usize = 6;

/// An instruction that ran, with the call that set its clock.
#[derive(Clone, Copy)]
struct Ran {
    unit: Unit,
    began_ns: u64,
    ended_ns: u64,
    called_ns: Option<u64>,
}

/// Whether what one rank ran shows that transfers wait for calls that take `call_ns`: none if it does
/// not show it.
pub(crate) fn wait_for_calls(records: &[TapRecord], call_ns: f64) -> Option<bool> {
    let ran: Vec<Ran> = records.iter().filter_map(ran).collect();
    let pairs = || ran.iter().zip(ran.iter().skip(1));
    let paused_ns = |before: &Ran, after: &Ran| after.began_ns.checked_sub(before.ended_ns);
    let mut at_least_ns = HashMap::new();
    for (before, after) in pairs().filter(|(before, after)| before.called_ns == after.called_ns) {
        if let Some(pause_ns) = paused_ns(before, after) {
            let least = at_least_ns.entry((before.unit, after.unit)).or_insert(pause_ns);
            *least = pause_ns.min(*least);
        }
    }
    // Of each kind of pair, what the waits were beside the time for which the call still ran.
    let mut waited: HashMap<[Instruction; 2], Vec<f64>> = HashMap::new();
    for (before, after) in pairs().filter(|(before, after)| before.called_ns != after.called_ns) {
        let Some(called_ns) = after.called_ns.filter(|&at_ns| at_ns > before.began_ns) else {
            continue;
        };
        let left_ns = called_ns as f64 + call_ns - before.ended_ns as f64;
        let usual_ns = at_least_ns.get(&(before.unit, after.unit)).map(|&ns| ns as f64);
        let goes_on = usual_ns.is_some_and(|usual_ns| usual_ns <= AT_ONCE * left_ns);
        if let Some(pause_ns) = paused_ns(before, after)
            && goes_on
            && LEFT.contains(&(left_ns / call_ns))
        {
            let kinds = [before.unit.instruction, after.unit.instruction];
            waited.entry(kinds).or_default().push(pause_ns as f64 / left_ns);
        }
    }
    waited.retain(|_, shares| shares.len() >= LEAST_WAITS);
    let are_held_up = |shares: &Vec<f64>| shares.iter().all(|&share| share >= HELD_UP);
    (!waited.is_empty()).then(|| waited.values().any(are_held_up))
}

fn ran(record: &TapRecord) -> Option<Ran> {
    let &TapRecord::Ran { unit, began_ns, ended_ns, locked, .. } = record else { return None };
    Some(Ran { unit, began_ns, ended_ns, called_ns: locked.map(|(_, called_ns)| called_ns) })
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Mhz;
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const CALL: f64 = 12e6;

    /// Steps of two forwards and two backwards of 40 ms, the first of them without a plan. The
    /// clock changes after every second instruction, with a call `ahead_ms` before its end that
    /// takes between 8 and 16 ms, and a stage continues `pause` after that.
    fn records(ahead_ms: u64, pause: impl Fn(u64, u64) -> u64) -> Vec<TapRecord> {
        let (mut now_ns, mut called_ns) = (1000 * MS, None);
        let mut records = Vec::new();
        for number in 0..60_u32 {
            let instruction =
                if number % 4 < 2 { Instruction::Forward } else { Instruction::Backward };
            let (began_ns, ended_ns) = (now_ns, now_ns + 40 * MS);
            records.push(TapRecord::Ran {
                unit: Unit::new(instruction, number % 2),
                began_ns,
                ended_ns,
                asked: called_ns.map(|_| Mhz(900)),
                locked: called_ns.map(|at_ns| (Mhz(900), at_ns)),
                astray: false,
            });
            now_ns = ended_ns;
            if number >= 3 && number % 2 == 1 {
                let begun_ns = ended_ns - ahead_ms * MS;
                let returned_ns = begun_ns + (8 + u64::from(number * 7 % 9)) * MS;
                now_ns += pause(u64::from(number), returned_ns.saturating_sub(ended_ns));
                called_ns = Some(begun_ns);
            }
        }
        records
    }

    #[test]
    fn a_stage_that_never_goes_on_before_a_call_has_returned_waits_for_it() {
        for ahead_ms in [0, 2] {
            let held_up = records(ahead_ms, |_, call_ns| call_ns);
            assert_eq!(wait_for_calls(&held_up, CALL), Some(true), "{ahead_ms}");
            let free = records(ahead_ms, |_, _| 100_000);
            assert_eq!(wait_for_calls(&free, CALL), Some(false), "{ahead_ms}");
        }
    }

    #[test]
    fn one_that_goes_on_at_once_now_and_then_waits_for_something_else() {
        let neighbour = |number, call_ns| if number % 11 == 0 { 0 } else { call_ns };
        assert_eq!(wait_for_calls(&records(0, neighbour), CALL), Some(false));
    }

    #[test]
    fn calls_that_are_over_when_an_instruction_ends_show_nothing() {
        assert_eq!(wait_for_calls(&records(16, |_, call_ns| call_ns), CALL), None);
        assert_eq!(wait_for_calls(&records(0, |_, call_ns| call_ns)[..8], CALL), None);
        assert_eq!(wait_for_calls(&[], CALL), None);
    }

    #[test]
    fn a_pair_that_waits_without_a_call_shows_nothing() {
        let mut waiting = records(0, |_, call_ns| call_ns);
        let quiet = |record: &mut TapRecord| {
            let TapRecord::Ran { began_ns, ended_ns, .. } = record else { return };
            (*began_ns, *ended_ns) = (*began_ns + 30 * MS, *ended_ns + 30 * MS);
        };
        // Before the plan, the second pair of a step waits for its input, and so does the next step.
        waiting[2..].iter_mut().for_each(quiet);
        waiting[4..].iter_mut().for_each(quiet);
        assert_eq!(wait_for_calls(&waiting, CALL), None);
    }

    proptest! {
        #[test]
        fn no_times_of_a_peer_do_harm(
            ran in prop::collection::vec((any::<u64>(), any::<u64>(), prop::option::of(any::<u64>())), 0..50),
            call_ns in 0.0_f64..1e12,
        ) {
            let record = |&(began_ns, ended_ns, called_ns): &(u64, u64, Option<u64>)| TapRecord::Ran {
                unit: Unit::new(Instruction::Forward, 0),
                began_ns,
                ended_ns,
                asked: None,
                locked: called_ns.map(|at_ns| (Mhz(900), at_ns)),
                astray: false,
            };
            let records: Vec<_> = ran.iter().map(record).collect();
            let _ = wait_for_calls(&records, call_ns);
        }
    }
}
