//! When to ask for the next clock before an instruction has ended, so that it is in force when the
//! next one begins. Pure, and without allocation on the way of an event.
//!
//! What an instruction took and how long the rank waited after it is learned from the steps before.
//! Where that varies too much, or a wait is long enough, the clock is asked for at the end.
//!
//! A wait that is predicted to be long enough for two changes may have a clock of its own. That of
//! the next instruction is then asked for before the wait ends. Where instructions have been late
//! for that reason too often, the wait has no clock of its own any more.

use pfo_protocol::Mhz;

/// The clock that is asked for too early slows what still runs, and too late what comes: a change to
/// a faster clock is made this many deviations earlier, and one to a slower clock later.
const SAFE_DEVIATIONS: u64 = 2;

/// Steps after which a prediction is trusted.
const LEAST_STEPS: u8 = 3;

/// An instruction that is late after a wait outweighs this many that are not.
const LATE_WEIGHT: u8 = 8;

/// A wait has no clock of its own any more when instructions after it have been late three times in
/// a row, or more often than the weight makes up for.
const TOO_LATE: u8 = 3 * LATE_WEIGHT;

/// A new observation counts as one in this many.
const MEMORY: u64 = 4;

/// The thread of a rank may wake up this late, however regular waits are.
const WAKING_NS: u64 = 1_000_000;

/// What is known of one instruction of the step.
#[derive(Clone, Copy, Debug, Default)]
struct Learned {
    took: Time,
    /// The wait after it, estimated low.
    wait: Time,
    /// What the late instructions after it weigh.
    late: u8,
}

/// A time that is learned from step to step.
#[derive(Clone, Copy, Debug, Default)]
struct Time {
    ns: u64,
    deviation_ns: u64,
    steps: u8,
}

impl Time {
    fn learn(&mut self, ns: u64) {
        let off_ns = ns.abs_diff(self.ns);
        (self.ns, self.deviation_ns) = match self.steps {
            0 => (ns, ns),
            1 => (ns, off_ns),
            _ => (nearer(self.ns, ns), nearer(self.deviation_ns, off_ns)),
        };
        self.steps = self.steps.saturating_add(1);
    }

    fn safe_ns(self) -> u64 {
        self.deviation_ns.saturating_mul(SAFE_DEVIATIONS)
    }
}

/// A change to another clock after the instruction that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NextChange {
    /// The place of the instruction in the step.
    pub position: usize,
    /// When it began.
    pub began_ns: u64,
    /// The next clock.
    pub to: Mhz,
    /// Whether it is higher.
    pub faster: bool,
}

/// The times of the instructions of a step.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    learned: Vec<Learned>,
    ended: Option<(usize, u64)>,
    /// When the next instruction's clock is asked for, in a wait that has a clock of its own.
    pub(crate) ask_back_at_ns: Option<u64>,
}

impl Ahead {
    /// Forgets everything: another plan is followed.
    pub(crate) fn forget(&mut self) {
        self.learned.clear();
        (self.ended, self.ask_back_at_ns) = (None, None);
    }

    /// Makes room for a step of this many instructions. It allocates after a change of plans.
    pub(crate) fn make_room(&mut self, instructions: usize) {
        if self.learned.len() != instructions {
            self.learned.resize(instructions, Learned::default());
        }
    }

    /// An instruction begins, with its clock in force or not. Returns whether it is late because of
    /// the clock of the wait before it.
    pub(crate) fn begins(&mut self, at_ns: u64, in_force: bool) -> bool {
        let had_clock = self.ask_back_at_ns.take().is_some();
        if let Some((position, ended_ns)) = self.ended.take()
            && let Some(learned) = self.learned.get_mut(position)
        {
            let waited_ns = at_ns.saturating_sub(ended_ns);
            learned.wait.learn(waited_ns);
            learned.wait.ns = learned.wait.ns.min(waited_ns);
            learned.late = match had_clock && !in_force {
                true => learned.late.saturating_add(LATE_WEIGHT),
                false => learned.late.saturating_sub(had_clock.into()),
            };
        }
        had_clock && !in_force
    }

    /// Gives the wait that begins a clock of its own, if it is predicted to be long enough for two
    /// changes: to that clock, and back.
    pub(crate) fn lower(&mut self, [down_ns, back_ns]: [u64; 2]) {
        self.ask_back_at_ns = self.ended.and_then(|(position, ended_ns)| {
            let learned = self.learned.get(position)?;
            let lead_ns = back_ns.saturating_add(learned.wait.safe_ns().max(WAKING_NS));
            let lowered_ns = learned.wait.ns.checked_sub(lead_ns)?;
            let is_known = learned.wait.steps >= LEAST_STEPS && learned.late < TOO_LATE;
            (is_known && lowered_ns >= down_ns).then(|| ended_ns.saturating_add(lowered_ns))
        });
    }

    /// The instruction at this place has ended.
    pub(crate) fn ends(&mut self, position: usize, began_ns: u64, ended_ns: u64) {
        self.ended = Some((position, ended_ns));
        if let Some(learned) = self.learned.get_mut(position) {
            learned.took.learn(ended_ns.saturating_sub(began_ns));
        }
    }

    /// When to ask for the clock after the instruction that runs, if before its end: a new clock is
    /// in force `settle_ns` after it was asked for.
    pub(crate) fn ask_at_ns(&self, next: NextChange, settle_ns: u64) -> Option<u64> {
        let Learned { took, wait, .. } = self.learned.get(next.position)?;
        let lead_ns = settle_ns.saturating_sub(wait.ns);
        let lead_ns = match next.faster {
            _ if lead_ns == 0 => return None,
            true => lead_ns.saturating_add(took.safe_ns()),
            false => lead_ns.checked_sub(took.safe_ns())?,
        };
        let is_known = took.steps >= LEAST_STEPS && lead_ns <= took.ns / 2;
        let after_ns = took.ns.saturating_sub(lead_ns);
        is_known.then(|| next.began_ns.saturating_add(after_ns))
    }
}

/// An estimate after one more observation.
fn nearer(estimate: u64, observed: u64) -> u64 {
    let step = estimate.abs_diff(observed) / MEMORY;
    if observed > estimate { estimate.saturating_add(step) } else { estimate.saturating_sub(step) }
}

/// How much of an instruction, from `began_ns` until `ended_ns`, ran at another clock than its own.
/// Its clock was in force from one time on, and the next one, if it was asked for before the end, from
/// another.
pub(crate) fn off_plan_ns(
    [began_ns, ended_ns]: [u64; 2],
    own_from_ns: Option<u64>,
    next_from_ns: Option<u64>,
) -> u64 {
    let took_ns = ended_ns.saturating_sub(began_ns);
    let Some(own_from_ns) = own_from_ns else { return took_ns };
    let late_ns = own_from_ns.saturating_sub(began_ns);
    let early_ns = next_from_ns.map_or(0, |from_ns| ended_ns.saturating_sub(from_ns));
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
            ahead.begins(now_ns, true);
            ahead.ends(0, now_ns, now_ns + took_ns);
            now_ns += took_ns + wait_ns;
        }
        ahead.begins(now_ns, true);
        (ahead, now_ns)
    }

    fn lead_ns(times_ns: &[u64], wait_ns: u64, faster: bool) -> Option<u64> {
        let (ahead, began_ns) = after(times_ns, wait_ns);
        let at_ns =
            ahead.ask_at_ns(NextChange { position: 0, began_ns, to: Mhz(900), faster }, SETTLE)?;
        Some(began_ns + ahead.learned[0].took.ns - at_ns)
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
        ahead.begins(now_ns + 101 * MS, true);
        let next =
            NextChange { position: 0, began_ns: now_ns + 101 * MS, to: Mhz(900), faster: true };
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
        let unknown = NextChange { position: 7, began_ns: 0, to: Mhz(900), faster: true };
        assert_eq!(after(&[MS], 0).0.ask_at_ns(unknown, SETTLE), None);
    }

    /// A rank that waits so long after its only instruction, again and again, in a wait with a clock
    /// of its own where that is predicted to be long enough. Returns how many waits had one, and
    /// how many instructions were late for that reason.
    fn waiting(ahead: &mut Ahead, waits_ns: impl IntoIterator<Item = u64>) -> (u64, u64) {
        let (mut now_ns, mut lowered, mut late) = (0, 0, 0);
        ahead.make_room(1);
        for wait_ns in waits_ns {
            ahead.ends(0, now_ns, now_ns + 100 * MS);
            now_ns += 100 * MS + wait_ns;
            ahead.lower([SETTLE; 2]);
            let in_force_ns = ahead.ask_back_at_ns.map_or(0, |asked_ns| asked_ns + SETTLE);
            lowered += u64::from(ahead.ask_back_at_ns.is_some());
            late += u64::from(ahead.begins(now_ns, in_force_ns <= now_ns));
        }
        (lowered, late)
    }

    /// How long the next wait after these has a clock of its own.
    fn lowered_ns(waits_ns: impl IntoIterator<Item = u64>) -> Option<u64> {
        let mut ahead = Ahead::default();
        waiting(&mut ahead, waits_ns);
        ahead.ends(0, 0, 100 * MS);
        ahead.lower([SETTLE; 2]);
        Some(ahead.ask_back_at_ns? - 100 * MS)
    }

    #[test]
    fn a_wait_long_enough_for_two_changes_has_a_clock_until_there_is_just_time_for_one() {
        assert_eq!(lowered_ns([200 * MS; 5]), Some(200 * MS - SETTLE - WAKING_NS));
        assert_eq!(lowered_ns([2 * SETTLE + WAKING_NS; 5]), Some(SETTLE));
        assert_eq!(lowered_ns([2 * SETTLE + WAKING_NS - 1; 5]), None, "too short");
        assert_eq!(lowered_ns([200 * MS; 2]), None, "too few steps");
    }

    #[test]
    fn the_clock_of_a_wait_that_varies_is_asked_back_earlier_and_of_one_that_varies_much_never() {
        let noisy = (0..100).map(|step| (200 + step * 7 % 11) * MS);
        assert!(lowered_ns(noisy.clone()).unwrap() < 200 * MS - SETTLE);
        let (lowered, late) = waiting(&mut Ahead::default(), noisy);
        assert!(lowered > 90 && late == 0, "{late} of {lowered}");
        assert_eq!(lowered_ns((0..100).map(|step| [200, 10][step % 2] * MS)), None);
    }

    #[test]
    fn a_wait_after_which_instructions_are_late_in_a_row_has_no_clock_any_more() {
        let mut ahead = Ahead::default();
        waiting(&mut ahead, [800 * MS; 9]);
        for late in 1..=3 {
            ahead.ends(0, 0, 0);
            ahead.lower([SETTLE; 2]);
            assert!(ahead.ask_back_at_ns.is_some(), "{late}");
            assert!(ahead.begins(800 * MS, false));
        }
        assert_eq!(waiting(&mut ahead, [800 * MS; 99]), (0, 0));
        ahead.forget();
        assert!(waiting(&mut ahead, [800 * MS; 9]).0 > 0, "another plan");
    }

    #[test]
    fn one_wait_that_ends_early_does_not_take_the_others_their_clock() {
        let mut ahead = Ahead::default();
        let early = |step| if step % 40 == 39 { 5 * MS } else { 800 * MS };
        let (lowered, late) = waiting(&mut ahead, (0..400).map(early));
        assert!(late == 10 && lowered > 200, "{late} of {lowered}");
    }

    #[test]
    fn what_ran_at_another_clock_is_what_came_before_its_own_and_after_the_next_one_settled() {
        let off = |own, next| off_plan_ns([100 * MS, 200 * MS], own, next) / MS;
        assert_eq!(off(Some(0), None), 0);
        assert_eq!(off(Some(110 * MS), None), 10);
        assert_eq!(off(Some(110 * MS), Some(195 * MS)), 15);
        assert_eq!(off(Some(210 * MS), None), 100);
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
                ahead.begins(began_ns, true);
                ahead.ends(position % 4, began_ns, ended_ns);
                ahead.lower([settle_ns; 2]);
                let settled_ns = ended_ns.saturating_add(settle_ns);
                prop_assert!(ahead.ask_back_at_ns.is_none_or(|at_ns| at_ns >= settled_ns));
                let next = NextChange { position: position % 4, began_ns, to: Mhz(900), faster };
                let at_ns = ahead.ask_at_ns(next, settle_ns);
                prop_assert!(at_ns.is_none_or(|at_ns| at_ns >= began_ns));
                let off_ns = off_plan_ns([began_ns, ended_ns], Some(ended_ns), at_ns);
                prop_assert!(off_ns <= ended_ns.saturating_sub(began_ns));
            }
        }

        #[test]
        fn whatever_waits_take_late_instructions_are_few(
            waits_ns in prop::collection::vec(0..400 * MS, 0..40), repeated in 1..20_usize,
        ) {
            let mut ahead = Ahead::default();
            let waits_ns = waits_ns.iter().flat_map(|wait_ns| vec![*wait_ns; repeated]);
            let (lowered, late) = waiting(&mut ahead, waits_ns);
            let (weight, in_time) = (u64::from(LATE_WEIGHT), lowered - late);
            let most = u64::from(TOO_LATE) + weight + in_time;
            prop_assert!(late * weight < most, "{late} of {lowered}");
        }
    }
}
