//! Time and energy of a rank's steps, added up in one window for each plan (or none) that it runs.

use std::collections::VecDeque;

/// Windows kept for each rank.
const KEPT: usize = 16;

/// The steps of one rank under one swap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankWindow {
    /// The number of the swap that began it, 0 for the time before any.
    pub swap: u64,
    /// Whole steps measured.
    pub steps: u64,
    /// Seconds that they took.
    pub time_s: f64,
    /// Joules that they took.
    pub energy_j: f64,
}

/// When a step began and what the energy counter showed then.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Mark {
    at_ns: u64,
    energy_j: f64,
}

/// Everything measured in one session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The windows, oldest first; the last one runs on.
    pub windows: VecDeque<RankWindow>,
    /// Joules since the session began.
    pub energy_j: f64,
    session_began_j: Option<f64>,
    last: Option<Mark>,
    settling: bool,
}

impl Measured {
    /// What is measured from here on; `energy_j` is the counter's reading now.
    #[must_use]
    pub fn begin(energy_j: Option<f64>) -> Self {
        Self { session_began_j: energy_j, ..Self::default() }
    }

    /// A step begins, as the rank says at `at_ns`, `steps` after the last one that was told here.
    ///
    /// The step in which a swap is taken up is left out: its clocks still settle.
    pub fn step_begins(&mut self, swap: u64, steps: u64, at_ns: u64, energy_j: f64) {
        self.energy_j = energy_j - *self.session_began_j.get_or_insert(energy_j);
        let known = self.windows.back().is_some_and(|window| window.swap == swap);
        if !known {
            self.windows.push_back(RankWindow { swap, steps: 0, time_s: 0.0, energy_j: 0.0 });
            if self.windows.len() > KEPT {
                self.windows.pop_front();
            }
            self.settling = true;
        } else if self.settling {
            self.settling = false;
        } else if let (Some(window), Some(last)) = (self.windows.back_mut(), self.last) {
            window.steps += steps;
            window.time_s += at_ns.saturating_sub(last.at_ns) as f64 / 1e9;
            window.energy_j += energy_j - last.energy_j;
        }
        self.last = Some(Mark { at_ns, energy_j });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn the_step_that_takes_up_a_swap_is_in_no_window() {
        let mut measured = Measured::begin(Some(1000.0));
        for step in 0..5 {
            measured.step_begins(0, 1, step * SECOND, 1000.0 + 10.0 * step as f64);
        }
        // The step that begins at 5 s still costs as before: it is the one that settles.
        for step in 5..8 {
            measured.step_begins(1, 1, step * SECOND, 1050.0 + 7.0 * (step - 5) as f64);
        }
        assert_eq!(
            measured.windows,
            [
                RankWindow { swap: 0, steps: 3, time_s: 3.0, energy_j: 30.0 },
                RankWindow { swap: 1, steps: 1, time_s: 1.0, energy_j: 7.0 }
            ]
        );
        assert_eq!(measured.energy_j, 64.0);
    }

    #[test]
    fn no_more_than_a_few_windows_are_kept() {
        let mut measured = Measured::begin(None);
        for swap in 0..1000 {
            measured.step_begins(swap, 1, swap * SECOND, 0.0);
        }
        assert_eq!(measured.windows.len(), KEPT);
        assert_eq!(measured.windows.back().map(|window| window.swap), Some(999));
    }
}
