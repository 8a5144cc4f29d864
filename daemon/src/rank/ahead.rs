//! When to ask for the next clock before an instruction has ended, so that it is in force when the
//! next one begins. Pure, and without allocation on the way of an event.
//!
//! What an instruction took and how long the rank waited after it is learned from the steps before.
//! Where that varies too much, or a wait is long enough, the clock is asked for at the end.

/// The clock that is asked for too early slows what still runs, and too late what comes: a change to
/// a faster clock is made this many deviations earlier, and one to a slower clock later.
const SAFE_DEVIATIONS: u64 = 2;

/// Steps after which a prediction is trusted.
const LEAST_STEPS: u8 = 3;

/// A new observation counts as one in this many.
const MEMORY: u64 = 4;

/// What is known of one instruction of the step.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    took_ns: u64,
    deviation_ns: u64,
    /// A low estimate of the wait after it.
    wait_ns: u64,
    steps: u8,
}

/// A change to another clock after the instruction that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextChange {
    /// The place of the instruction in the step.
    pub position: usize,
    /// When it began.
    pub began_ns: u64,
    /// Whether the next clock is higher.
    pub faster: bool,
}

/// The times of the instructions of a step.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    learned: Vec<Learned>,
    ended: Option<(usize, u64)>,
}

impl Ahead {
    /// Forgets everything: another plan is followed.
    pub(crate) fn forget(&mut self) {
        self.learned.clear();
        self.ended = None;
    }

    /// Makes room for a step of this many instructions. It allocates after a change of plans.
    pub(crate) fn make_room(&mut self, instructions: usize) {
        if self.learned.len() != instructions {
            self.learned.resize(instructions, Learned::default());
        }
    }

    /// The instruction at this place begins.
    pub(crate) fn begins(&mut self, at_ns: u64) {
        if let Some((position, ended_ns)) = self.ended.take()
            && let Some(learned) = self.learned.get_mut(position)
        {
            let waited_ns = at_ns.saturating_sub(ended_ns);
            learned.wait_ns = nearer(learned.wait_ns, waited_ns).min(waited_ns);
        }
    }

    /// The instruction at this place has ended.
    pub(crate) fn ends(&mut self, position: usize, began_ns: u64, ended_ns: u64) {
        self.ended = Some((position, ended_ns));
        let Some(learned) = self.learned.get_mut(position) else { return };
        let took_ns = ended_ns.saturating_sub(began_ns);
        let off_ns = took_ns.abs_diff(learned.took_ns);
        (learned.took_ns, learned.deviation_ns) = match learned.steps {
            0 => (took_ns, took_ns),
            1 => (took_ns, off_ns),
            _ => (nearer(learned.took_ns, took_ns), nearer(learned.deviation_ns, off_ns)),
        };
        learned.steps = learned.steps.saturating_add(1);
    }

    /// When to ask for the clock after the instruction that runs, if before its end: a new clock is
    /// in force `settle_ns` after it was asked for.
    #[must_use]
    pub(crate) fn ask_at_ns(&self, next: NextChange, settle_ns: u64) -> Option<u64> {
        let learned = self.learned.get(next.position)?;
        let safe_ns = learned.deviation_ns.saturating_mul(SAFE_DEVIATIONS);
        let lead_ns = settle_ns.saturating_sub(learned.wait_ns);
        let lead_ns = match next.faster {
            _ if lead_ns == 0 => return None,
            true => lead_ns.saturating_add(safe_ns),
            false => lead_ns.checked_sub(safe_ns)?,
        };
        let is_known = learned.steps >= LEAST_STEPS && lead_ns <= learned.took_ns / 2;
        let after_ns = learned.took_ns.saturating_sub(lead_ns);
        is_known.then(|| next.began_ns.saturating_add(after_ns))
    }
}

/// An estimate after one more observation.
fn nearer(estimate: u64, observed: u64) -> u64 {
    let step = estimate.abs_diff(observed) / MEMORY;
    if observed > estimate { estimate.saturating_add(step) } else { estimate.saturating_sub(step) }
}

/// How much of an instruction, from `began_ns` until `ended_ns`, ran at another clock than its own.
/// Its clock was asked for at one time, and the next one, if that was before its end, at another.
#[must_use]
pub(crate) fn off_plan_ns(
    [began_ns, ended_ns]: [u64; 2],
    own_asked_ns: Option<u64>,
    next_asked_ns: Option<u64>,
    settle_ns: u64,
) -> u64 {
    let took_ns = ended_ns.saturating_sub(began_ns);
    let Some(own_asked_ns) = own_asked_ns else { return took_ns };
    let settled = |asked_ns: u64| asked_ns.saturating_add(settle_ns);
    let late_ns = settled(own_asked_ns).saturating_sub(began_ns);
    let early_ns = next_asked_ns.map_or(0, |asked_ns| ended_ns.saturating_sub(settled(asked_ns)));
    late_ns.saturating_add(early_ns).min(took_ns)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MS: u64 = 1_000_000;
    const SETTLE: u64 = 20 * MS;

    /// A rank whose only instruction takes these times, and then waits, again and again.
    fn after(times_ns: &[u64], wait_ns: u64) -> (Ahead, u64) {
        let (mut ahead, mut now_ns) = (Ahead::default(), 0);
        ahead.make_room(1);
        for took_ns in times_ns {
            ahead.begins(now_ns);
            ahead.ends(0, now_ns, now_ns + took_ns);
            now_ns += took_ns + wait_ns;
        }
        ahead.begins(now_ns);
        (ahead, now_ns)
    }

    fn lead_ns(times_ns: &[u64], wait_ns: u64, faster: bool) -> Option<u64> {
        let (ahead, began_ns) = after(times_ns, wait_ns);
        let at_ns = ahead.ask_at_ns(NextChange { position: 0, began_ns, faster }, SETTLE)?;
        Some(began_ns + ahead.learned[0].took_ns - at_ns)
    }

    #[test]
    fn the_clock_is_asked_for_as_long_before_the_end_as_it_takes_to_settle() {
        for faster in [true, false] {
            assert_eq!(lead_ns(&[100 * MS; 8], 0, faster), Some(SETTLE));
        }
    }

    #[test]
    fn a_wait_is_used_first_and_a_long_one_leaves_nothing_to_do_ahead() {
        assert_eq!(lead_ns(&[100 * MS; 40], 5 * MS, true).unwrap() / MS, 15);
        assert_eq!(lead_ns(&[100 * MS; 40], 25 * MS, true), None);
    }

    #[test]
    fn one_step_without_the_usual_wait_is_enough_to_rely_on_it_no_more() {
        let (mut ahead, now_ns) = after(&[100 * MS; 40], 25 * MS);
        ahead.ends(0, now_ns, now_ns + 100 * MS);
        ahead.begins(now_ns + 101 * MS);
        let next = NextChange { position: 0, began_ns: now_ns + 101 * MS, faster: true };
        assert!(ahead.ask_at_ns(next, SETTLE).is_some());
    }

    #[test]
    fn what_varies_is_made_faster_early_and_slower_late() {
        let times: Vec<_> = (0..100).map(|step| (100 + step % 2 * 4) * MS).collect();
        let (faster, slower) = (lead_ns(&times, 0, true), lead_ns(&times, 0, false));
        assert!(faster.unwrap() > SETTLE + 2 * MS && slower.unwrap() < SETTLE - 2 * MS);
    }

    #[test]
    fn nothing_is_asked_for_ahead_without_a_prediction() {
        assert_eq!(lead_ns(&[100 * MS; 2], 0, true), None, "too few steps");
        assert_eq!(lead_ns(&[30 * MS; 9], 0, true), None, "too short");
        let erratic: Vec<_> = (0..50).map(|step| (50 + step * 37 % 100) * MS).collect();
        assert_eq!(lead_ns(&erratic, 0, true), None);
        assert_eq!(lead_ns(&erratic, 0, false), None);
        let unknown = NextChange { position: 7, began_ns: 0, faster: true };
        assert_eq!(after(&[MS], 0).0.ask_at_ns(unknown, SETTLE), None);
    }

    #[test]
    fn what_ran_at_another_clock_is_what_came_before_its_own_and_after_the_next_one_settled() {
        let off = |own, next| off_plan_ns([100 * MS, 200 * MS], own, next, SETTLE) / MS;
        assert_eq!(off(Some(0), None), 0);
        assert_eq!(off(Some(90 * MS), None), 10);
        assert_eq!(off(Some(90 * MS), Some(175 * MS)), 15);
        assert_eq!(off(Some(190 * MS), None), 100);
        assert_eq!(off(None, Some(0)), 100);
    }

    proptest! {
        #[test]
        fn no_times_of_a_peer_are_too_large_to_be_learned_from(
            events in prop::collection::vec((any::<usize>(), any::<u64>(), any::<u64>()), 0..50),
            settle_ns: u64, faster: bool,
        ) {
            let mut ahead = Ahead::default();
            ahead.make_room(3);
            for (position, began_ns, ended_ns) in events {
                ahead.begins(began_ns);
                ahead.ends(position % 4, began_ns, ended_ns);
                let next = NextChange { position: position % 4, began_ns, faster };
                let at_ns = ahead.ask_at_ns(next, settle_ns);
                prop_assert!(at_ns.is_none_or(|at_ns| at_ns >= began_ns));
                let off_ns = off_plan_ns([began_ns, ended_ns], Some(ended_ns), at_ns, settle_ns);
                prop_assert!(off_ns <= ended_ns.saturating_sub(began_ns));
            }
        }
    }
}
