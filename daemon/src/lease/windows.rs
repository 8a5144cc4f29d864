//! Time and energy of a rank's steps, summed in one window for each plan (or default clocks) that
//! it runs.

use std::collections::VecDeque;

use pfo_protocol::RankWindow;

use crate::measure::Verdict;

/// Windows kept for each rank: the first one, which others are compared with, and the newest.
const KEPT: usize = 32;

/// A fault of a counter is found within half a minute. What was measured longer ago than this is right.
const VOID_NS: u64 = 60_000_000_000;

/// The windows of one rank, over all of its sessions: a daemon or a connection may end while the
/// rank continues to train. Each comes after the number of the swap that began it, 0 for the time
/// before the first, and before the time of its last step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RankWindows(VecDeque<(u64, RankWindow, u64)>);

impl RankWindows {
    /// The windows that contain a whole step, oldest first.
    pub(crate) fn measured(&self) -> impl Iterator<Item = (u64, RankWindow)> {
        let all = self.0.iter().map(|(swap, window, _)| (*swap, *window));
        all.filter(|(_, window)| window.steps > 0)
    }

    /// Adds what another session of the rank measured.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (swap, window, grew_ns) in &other.0 {
            self.add(*swap, *window, *grew_ns);
        }
    }

    /// Takes the energy out of the windows that have grown since.
    fn void_since(&mut self, since_ns: u64) {
        let recent = self.0.iter_mut().filter(|(_, _, grew_ns)| *grew_ns >= since_ns);
        recent.for_each(|(_, window, _)| window.energy_j = None);
    }

    fn add(&mut self, swap: u64, new: RankWindow, at_ns: u64) {
        let (_, own, grew_ns) = self.of_swap(swap);
        *grew_ns = at_ns.max(*grew_ns);
        own.steps = own.steps.saturating_add(new.steps);
        own.time_s += new.time_s;
        own.energy_j = own.energy_j.zip(new.energy_j).map(|(own_j, new_j)| own_j + new_j);
    }

    fn of_swap(&mut self, swap: u64) -> &mut (u64, RankWindow, u64) {
        // The newest window is nearly always the right one.
        let index = match self.0.iter().rposition(|(number, ..)| *number == swap) {
            Some(index) => index,
            None => {
                let empty = RankWindow { steps: 0, time_s: 0.0, energy_j: Some(0.0) };
                self.0.push_back((swap, empty, 0));
                if self.0.len() > KEPT {
                    self.0.remove(1);
                }
                self.0.len().saturating_sub(1)
            }
        };
        &mut self.0[index]
    }
}

/// When a step began and what the energy counter showed at that time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark {
    swap: u64,
    at_ns: u64,
    energy_j: Option<f64>,
    /// The rank changed to a swap in this step.
    settling: bool,
}

/// Everything measured in one session.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    /// The windows; the newest one is still growing.
    pub windows: RankWindows,
    /// Joules since the session began; none if the GPU has no energy counter, or it was in doubt.
    pub energy_j: Option<f64>,
    /// Whether the counter is read and believed.
    pub counts: bool,
    session_began_j: Option<f64>,
    verdict: Verdict,
    /// When that was asked for, by the clock of this daemon.
    judged_ns: u64,
    was_in_doubt: bool,
    last: Option<Mark>,
}

impl Measured {
    /// Starts the measurement; `energy_j` is the counter's reading now.
    pub(crate) fn begin(energy_j: Option<f64>, verdict: Verdict) -> Self {
        let (session_began_j, counts) = (energy_j, energy_j.is_some());
        let energy_j = energy_j.map(|_| 0.0);
        let was_in_doubt = verdict.in_doubt;
        Self { session_began_j, energy_j, counts, verdict, was_in_doubt, ..Self::default() }
    }

    /// Takes what the judge of the counter says now. If that has changed, what was read in the last
    /// minute is void.
    pub(crate) fn judged(&mut self, verdict: Verdict, now_ns: u64) {
        self.judged_ns = now_ns;
        if verdict == self.verdict {
            return;
        }
        self.verdict = verdict;
        self.windows.void_since(now_ns.saturating_sub(VOID_NS));
        self.last = None;
        if verdict.in_doubt {
            (self.counts, self.was_in_doubt, self.energy_j) = (false, true, None);
        }
    }

    /// Takes a reading of the energy counter, if there is one.
    pub(crate) fn counter_reads(&mut self, energy_j: Option<f64>) {
        let Some(now_j) = energy_j else { return };
        self.counts = true;
        if !self.was_in_doubt {
            self.energy_j = Some(now_j - *self.session_began_j.get_or_insert(now_j));
        }
    }

    /// Takes the beginning of a step at `at_ns` by the rank's clock, `steps` after the last one
    /// recorded here.
    ///
    /// The step in which the rank changes to a swap is left out, because its clocks still settle,
    /// and so are those around a begin at which the counter could not be read.
    pub(crate) fn step_begins(&mut self, swap: u64, steps: u64, at_ns: u64, energy_j: Option<f64>) {
        if energy_j.is_none() && self.counts {
            self.last = None;
            return;
        }
        self.counter_reads(energy_j);
        let went_on = self.last.filter(|last| last.swap == swap);
        if let Some(last) = went_on.filter(|last| !last.settling) {
            let time_s = at_ns.saturating_sub(last.at_ns) as f64 / 1e9;
            let energy_j = energy_j.zip(last.energy_j).map(|(now_j, last_j)| now_j - last_j);
            // The clock of a trainer in a time namespace of its own may be far behind.
            let grew_ns = at_ns.max(self.judged_ns);
            self.windows.add(swap, RankWindow { steps, time_s, energy_j }, grew_ns);
        }
        let settling = went_on.is_none();
        self.last = Some(Mark { swap, at_ns, energy_j, settling });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_step_that_takes_up_a_swap_is_in_no_window() {
        let mut measured = Measured::begin(Some(1000.0), Verdict::default());
        for step in 0..5 {
            measured.step_begins(0, 1, step * SECOND, Some(1000.0 + 10.0 * step as f64));
        }
        // The step that begins at 5 s still costs as before: it is the one that settles.
        for step in 5..8 {
            let energy_j = 1050.0 + 7.0 * (step - 5) as f64;
            measured.step_begins(1, 1, step * SECOND, Some(energy_j));
        }
        assert_eq!(
            measured.windows.measured().collect::<Vec<_>>(),
            [
                (0, RankWindow { steps: 3, time_s: 3.0, energy_j: Some(30.0) }),
                (1, RankWindow { steps: 1, time_s: 1.0, energy_j: Some(7.0) })
            ]
        );
        assert_eq!(measured.energy_j, Some(64.0));
    }

    #[test]
    fn without_an_energy_counter_a_step_has_a_time_and_no_energy() {
        let mut measured = Measured::begin(None, Verdict::default());
        (0..4).for_each(|step| measured.step_begins(0, 1, step * SECOND, None));
        let window = (0, RankWindow { steps: 2, time_s: 2.0, energy_j: None });
        assert_eq!(measured.windows.measured().collect::<Vec<_>>(), [window]);
        assert_eq!(measured.energy_j, None);
    }

    #[test]
    fn a_counter_that_cannot_be_read_once_costs_the_steps_around_it_and_no_figure() {
        let mut measured = Measured::begin(Some(0.0), Verdict::default());
        for step in 0..8 {
            let energy_j = Some(5.0 * step as f64).filter(|_| step != 3);
            measured.step_begins(0, 1, step * SECOND, energy_j);
        }
        let window = (0, RankWindow { steps: 3, time_s: 3.0, energy_j: Some(15.0) });
        assert_eq!(measured.windows.measured().collect::<Vec<_>>(), [window]);
    }

    #[test]
    fn no_more_than_a_few_windows_are_kept_and_the_first_of_all() {
        let mut measured = Measured::begin(None, Verdict::default());
        for step in 0..3000 {
            measured.step_begins(step / 3, 1, step * SECOND, Some(0.0));
        }
        let swaps: Vec<u64> = measured.windows.0.iter().map(|(swap, ..)| *swap).collect();
        assert_eq!((swaps.len(), swaps[0], swaps[1], swaps[KEPT - 1]), (KEPT, 0, 969, 999));
    }

    #[test]
    fn the_sessions_of_a_rank_add_up_swap_by_swap() {
        let measure = |swap| {
            let mut measured = Measured::begin(Some(0.0), Verdict::default());
            for step in 0..4 {
                measured.step_begins(swap, 1, step * SECOND, Some(step as f64));
            }
            measured.windows
        };
        let mut windows = measure(1);
        windows.merge(&measure(1));
        windows.merge(&measure(2));
        let steps: Vec<_> = windows.measured().map(|(swap, window)| (swap, window.steps)).collect();
        assert_eq!(steps, [(1, 4), (2, 2)]);
    }
    #[test]
    fn numbers_of_a_peer_at_their_end_and_times_that_run_backwards_do_no_harm() {
        let mut measured = Measured::begin(Some(f64::MAX), Verdict::default());
        for at_ns in [0, u64::MAX, 0, u64::MAX, 1] {
            measured.step_begins(u64::MAX, u64::MAX, at_ns, Some(0.0));
        }
        let mut windows = measured.windows.clone();
        windows.merge(&measured.windows);
        let (swap, window) = windows.measured().next().unwrap();
        assert_eq!((swap, window.steps), (u64::MAX, u64::MAX));
        assert!(window.time_s >= 0.0);
    }

    #[test]
    fn a_counter_that_starts_over_leaves_figures_that_are_finite() {
        let mut measured = Measured::begin(Some(1e12), Verdict::default());
        (0..4).for_each(|step| measured.step_begins(0, 1, step * SECOND, Some(0.0)));
        assert!(measured.energy_j.unwrap().is_finite());
        assert!(
            measured.windows.measured().all(|(_, window)| window.energy_j.unwrap().is_finite())
        );
    }

    #[test]
    fn a_doubt_takes_the_energy_out_of_the_windows_of_the_last_minute_and_of_the_session() {
        let mut measured = Measured::begin(Some(0.0), Verdict::default());
        for step in 0..200 {
            measured.step_begins(step / 100, 1, step * SECOND, Some(10.0 * step as f64));
        }
        let doubt = Verdict { spoiled: 1, in_doubt: true };
        measured.judged(doubt, 200 * SECOND);
        let energies = |measured: &Measured| -> Vec<_> {
            measured.windows.measured().map(|(_, window)| window.energy_j).collect()
        };
        assert_eq!(energies(&measured), [Some(980.0), None]);
        assert_eq!((measured.energy_j, measured.counts), (None, false));
        measured.step_begins(1, 1, 201 * SECOND, None);
        measured.step_begins(1, 1, 202 * SECOND, None);
        measured.judged(Verdict { spoiled: 2, in_doubt: false }, 300 * SECOND);
        for step in 300..304 {
            measured.step_begins(2, 1, step * SECOND, Some(step as f64));
        }
        assert_eq!(energies(&measured), [Some(980.0), None, Some(2.0)]);
        assert_eq!((measured.energy_j, measured.counts), (None, true), "a part of it is not known");
    }

    #[test]
    fn a_doubt_voids_what_a_rank_measured_whose_clock_is_far_behind() {
        let mut measured = Measured::begin(Some(0.0), Verdict::default());
        for step in 0..9 {
            measured.judged(Verdict::default(), (1000 + step) * SECOND);
            measured.step_begins(0, 1, step * SECOND, Some(10.0 * step as f64));
        }
        measured.judged(Verdict { spoiled: 1, in_doubt: true }, 1009 * SECOND);
        assert!(measured.windows.measured().all(|(_, window)| window.energy_j.is_none()));
    }

    #[test]
    fn what_was_read_wrongly_once_is_void_and_the_energy_of_the_session_goes_on() {
        let mut measured = Measured::begin(Some(0.0), Verdict::default());
        (0..9).for_each(|step| measured.step_begins(0, 1, step * SECOND, Some(step as f64)));
        measured.judged(Verdict { spoiled: 1, in_doubt: false }, 9 * SECOND);
        measured.counter_reads(Some(9.0));
        assert_eq!(
            measured.windows.measured().map(|(_, window)| window.energy_j).last(),
            Some(None)
        );
        assert_eq!((measured.energy_j, measured.counts), (Some(9.0), true));
    }
}
