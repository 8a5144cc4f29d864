//! What was measured of a job, plan by plan. `tune`, guards and budgets run a plan in many windows, with default
//! clocks between them: all windows of a plan are one row here, and each is compared with the default clocks next
//! to it. How sure that is, these windows do not tell: several of a plan have the same default clocks beside
//! them. The ledger of `pfo-agent` compares turns, and has the interval.

use pfo_protocol::{JobStatus, PlanStatus, Window};

/// What was measured under a plan, or at default clocks, in all of its windows together.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Measured<'a> {
    /// The plan, as it ran last; none at default clocks.
    pub(crate) plan: Option<&'a PlanStatus>,
    /// The ranks on this node that were measured.
    pub(crate) ranks: u32,
    /// Whole steps.
    pub(crate) steps: u64,
    /// Mean time of a step, in seconds.
    pub(crate) time_s: f64,
    /// Mean energy of a step, in joules; none if a GPU has no energy counter.
    pub(crate) energy_j: Option<f64>,
    /// By which share a step takes longer than at default clocks.
    pub(crate) slowdown: Option<f64>,
    /// Which share of the energy of a step it saves beside default clocks.
    pub(crate) saving: Option<f64>,
}

/// A step or two, after a swap or while others come and go, tell nothing of default clocks.
const ENOUGH_STEPS: u64 = 5;

/// Windows one after another in which the same ran.
struct Stretch<'a> {
    plan: Option<&'a PlanStatus>,
    ranks: u32,
    steps: u64,
    time_s: f64,
    energy_j: Option<f64>,
}

impl<'a> Measured<'a> {
    /// What was measured of a job: default clocks first, then its plans in the order in which they ran first.
    pub(crate) fn all(job: &'a JobStatus) -> Vec<Self> {
        let stretches = stretches(&job.windows);
        let mut kinds: Vec<&Stretch> = Vec::new();
        for stretch in &stretches {
            if !kinds.iter().any(|kind| kind.is_same(stretch.plan, stretch.ranks)) {
                kinds.push(stretch);
            }
        }
        kinds.sort_by_key(|kind| kind.plan.is_some());
        kinds.into_iter().map(|kind| Self::of(kind, &stretches)).collect()
    }

    fn of(kind: &Stretch, stretches: &[Stretch<'a>]) -> Self {
        let is_own = |stretch: &&Stretch| stretch.is_same(kind.plan, kind.ranks);
        let own = || stretches.iter().filter(is_own);
        let pooled = Stretch::pooled(own());
        Self {
            plan: own().next_back().and_then(|last| last.plan),
            ranks: pooled.ranks,
            steps: pooled.steps,
            time_s: step_s(&pooled),
            energy_j: step_j(&pooled),
            slowdown: change_of(kind, stretches, |stretch| Some(step_s(stretch))),
            saving: change_of(kind, stretches, step_j).map(|change| -change),
        }
    }

    /// What was measured of what the job runs now.
    pub(crate) fn in_force(job: &'a JobStatus) -> Option<Self> {
        let is_it = |measured: &Self| are_same(measured.plan, job.plan.as_ref());
        // Of another number of ranks, the last one is it.
        Self::all(job).into_iter().rfind(is_it)
    }
}

/// By which share what a step takes of something changes from the default clocks next to the stretches of
/// this kind.
fn change_of(
    kind: &Stretch,
    stretches: &[Stretch],
    takes: impl Fn(&Stretch) -> Option<f64>,
) -> Option<f64> {
    kind.plan?;
    let (mut weights, mut logarithms) = (0.0, 0.0);
    let own = |(_, stretch): &(usize, &Stretch)| stretch.is_same(kind.plan, kind.ranks);
    for (place, stretch) in stretches.iter().enumerate().filter(own) {
        let Some(default) = default_beside(place, stretches) else { continue };
        let Some((before, after)) = takes(&default).zip(takes(stretch)) else { continue };
        let weight = weight(default.steps, stretch.steps);
        weights += weight;
        logarithms += weight * (after / before).ln();
    }
    (weights > 0.0).then(|| (logarithms / weights).exp_m1())
}

impl<'a> Stretch<'a> {
    fn of(window: &'a Window) -> Self {
        let steps = window.steps as f64;
        Self {
            plan: window.plan.as_ref(),
            ranks: window.ranks,
            steps: window.steps,
            time_s: steps * window.iteration_time_s,
            energy_j: window.iteration_energy_j.map(|energy_j| steps * energy_j),
        }
    }

    fn pooled<'b>(stretches: impl Iterator<Item = &'b Self>) -> Self
    where
        'a: 'b,
    {
        let nothing = Self { plan: None, ranks: 0, steps: 0, time_s: 0.0, energy_j: Some(0.0) };
        stretches.fold(nothing, |sum, next| Self {
            plan: next.plan,
            ranks: next.ranks,
            steps: sum.steps + next.steps,
            time_s: sum.time_s + next.time_s,
            energy_j: sum.energy_j.zip(next.energy_j).map(|(sum, next)| sum + next),
        })
    }

    fn is_same(&self, plan: Option<&PlanStatus>, ranks: u32) -> bool {
        self.ranks == ranks && are_same(self.plan, plan)
    }
}

fn step_s(stretch: &Stretch) -> f64 {
    stretch.time_s / stretch.steps as f64
}

fn step_j(stretch: &Stretch) -> Option<f64> {
    Some(stretch.energy_j? / stretch.steps as f64)
}

fn stretches(windows: &[Window]) -> Vec<Stretch<'_>> {
    let mut stretches: Vec<Stretch> = Vec::new();
    for window in windows.iter().filter(|window| is_measured(window)) {
        let next = Stretch::of(window);
        match stretches.last_mut().filter(|last| last.is_same(next.plan, next.ranks)) {
            Some(last) => *last = Stretch::pooled([&*last, &next].into_iter()),
            None => stretches.push(next),
        }
    }
    stretches
}

fn is_measured(window: &Window) -> bool {
    let uses_energy = window.iteration_energy_j.is_none_or(|energy_j| energy_j > 0.0);
    window.steps > 0 && window.iteration_time_s > 0.0 && uses_energy
}

/// Whether it is the same plan, though it may have been taken up under another number.
fn are_same(one: Option<&PlanStatus>, other: Option<&PlanStatus>) -> bool {
    let content = |plan: &PlanStatus| {
        (plan.predicted_time_s, plan.predicted_energy_j, plan.power_limits_w.clone())
    };
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) => {
            one.number == other.number || one.label == other.label && content(one) == content(other)
        }
        _ => false,
    }
}

/// The default clocks next to this place, of as many ranks: the nearest stretches that have steps enough.
fn default_beside<'a>(place: usize, stretches: &[Stretch<'a>]) -> Option<Stretch<'a>> {
    let ranks = stretches[place].ranks;
    let at =
        |place: Option<usize>| stretches.get(place?).filter(|stretch| stretch.is_same(None, ranks));
    let mut near: Vec<&Stretch> = Vec::new();
    for away in 1..stretches.len() {
        near.extend([place.checked_sub(away), place.checked_add(away)].into_iter().filter_map(at));
        if near.iter().map(|stretch| stretch.steps).sum::<u64>() >= ENOUGH_STEPS {
            return Some(Stretch::pooled(near.into_iter()));
        }
    }
    None
}

/// How much a comparison counts: the variance of a mean is in proportion to one over its steps.
fn weight(one: u64, other: u64) -> f64 {
    1.0 / (1.0 / one as f64 + 1.0 / other as f64)
}

#[cfg(test)]
pub(crate) mod tests {
    use pfo_protocol::Uid;

    use super::*;

    pub(crate) fn plan(number: u32) -> PlanStatus {
        PlanStatus {
            number,
            label: "p.json".to_owned(),
            predicted_time_s: None,
            predicted_energy_j: None,
            suspended: None,
            power_limits_w: Vec::new(),
        }
    }

    pub(crate) fn window(
        plan: Option<u32>,
        steps: u64,
        time: f64,
        energy: impl Into<Option<f64>>,
    ) -> Window {
        let plan = plan.map(self::plan);
        let iteration_energy_j = energy.into();
        Window { plan, ranks: 4, steps, iteration_time_s: time, iteration_energy_j }
    }

    pub(crate) fn job(windows: Vec<Window>) -> JobStatus {
        JobStatus {
            job: "j".parse().unwrap(),
            uid: Uid::ROOT,
            pp_degree: 4,
            plan: None,
            loaded: None,
            measured_by: None,
            swap_at_step: None,
            measured_for_s: 7500.0,
            energy_j: Some(0.0),
            windows,
            ranks: Vec::new(),
        }
    }

    fn near(change: Option<f64>, share: f64) -> bool {
        change.is_some_and(|change| (change - share).abs() < 1e-9)
    }

    #[test]
    fn turns_of_a_plan_are_one_row_that_is_compared_with_the_default_clocks_beside_it() {
        // It becomes warmer: both take more from turn to turn. The first window is hardly one.
        let mut windows = vec![window(None, 1, 0.9, 700.0)];
        for (turn, warmer) in (0..).zip([1.0, 1.1, 1.2]) {
            windows.push(window(None, 12, 1.0, 1000.0 * warmer));
            windows.push(window(Some(2 * turn + 1), 15, 1.01, 900.0 * warmer));
            windows.push(window(Some(2 * turn + 2), 15, 1.01, 900.0 * warmer));
        }
        windows.push(window(None, 12, 1.0, 1200.0));
        let job = job(windows);
        let [default, plan] = &Measured::all(&job)[..] else { panic!("{:?}", Measured::all(&job)) };
        assert_eq!((default.plan, default.steps, default.saving), (None, 49, None));
        assert_eq!((plan.plan.unwrap().number, plan.steps), (6, 90));
        assert!((plan.time_s - 1.01).abs() < 1e-9 && (plan.energy_j.unwrap() - 990.0).abs() < 1e-9);
        let saving = plan.saving.unwrap();
        assert!((0.05..0.15).contains(&saving), "{saving}");
    }

    #[test]
    fn without_default_clocks_there_is_no_comparison() {
        let compared = job(vec![window(None, 10, 1.0, 1000.0), window(Some(1), 10, 1.01, 850.0)]);
        let plan = &Measured::all(&compared)[1];
        assert!(near(plan.saving, 0.15) && near(plan.slowdown, 0.01), "{plan:?}");
        let alone = job(vec![window(Some(1), 10, 1.0, 850.0)]);
        assert_eq!(
            (Measured::all(&alone)[0].saving, Measured::all(&alone)[0].slowdown),
            (None, None)
        );
    }

    #[test]
    fn few_steps_at_default_clocks_are_no_baseline() {
        let few = job(vec![window(None, 4, 1.0, 940.0), window(Some(1), 100, 1.0, 870.0)]);
        assert_eq!(Measured::all(&few)[1].saving, None);
        let windows = [(None, 40, 0.188), (Some(1), 300, 0.194), (None, 1, 0.203)];
        let between =
            job(windows.map(|(plan, steps, time)| window(plan, steps, time, 100.0)).into());
        let slowdown = Measured::all(&between)[1].slowdown.unwrap();
        assert!((0.02..0.035).contains(&slowdown), "{slowdown}");
        let short = [window(None, 1, 0.203, 100.0), window(Some(1), 9, 0.194, 90.0)];
        let short = job([&short[..], &[window(None, 20, 0.188, 100.0)]].concat());
        let slowdown = Measured::all(&short)[1].slowdown.unwrap();
        assert!((0.02..0.035).contains(&slowdown), "{slowdown}");
    }

    #[test]
    fn windows_of_other_ranks_are_rows_of_their_own_and_compared_with_nothing_else() {
        let fewer = Window { ranks: 3, ..window(Some(1), 10, 1.0, 600.0) };
        let job = job(vec![window(None, 10, 1.0, 1000.0), window(Some(1), 10, 1.0, 850.0), fewer]);
        let rows = Measured::all(&job);
        assert_eq!(rows.iter().map(|row| row.ranks).collect::<Vec<_>>(), [4, 4, 3]);
        assert!(near(rows[1].saving, 0.15) && rows[2].saving.is_none(), "{rows:?}");
    }

    #[test]
    fn other_plans_of_one_name_are_other_rows() {
        let mut windows = vec![window(Some(1), 10, 1.0, 850.0), window(Some(2), 10, 1.0, 850.0)];
        windows[1].plan.as_mut().unwrap().predicted_time_s = Some(1.0);
        assert_eq!(Measured::all(&job(windows)).len(), 2);
    }

    #[test]
    fn what_is_in_force_is_what_was_measured_of_the_plan_that_runs() {
        let windows = vec![window(None, 10, 1.0, 1000.0), window(Some(1), 10, 1.01, 850.0)];
        let plan = windows[1].plan.clone();
        let mut job = job(windows);
        assert_eq!(Measured::in_force(&job).unwrap().saving, None);
        job.plan = plan;
        let measured = Measured::in_force(&job).unwrap();
        assert!(near(measured.saving, 0.15) && near(measured.slowdown, 0.01));
        job.plan.as_mut().unwrap().number = 2;
        assert!(Measured::in_force(&job).is_some(), "the same plan again");
        job.plan.as_mut().unwrap().label = "q.json".into();
        assert!(Measured::in_force(&job).is_none());
    }

    #[test]
    fn a_window_without_a_whole_step_is_nothing() {
        let empty = || window(None, 0, 0.0, 0.0);
        assert_eq!(Measured::all(&job(vec![empty()])), []);
        let job = job(vec![empty(), window(Some(1), 3, 1.0, 850.0)]);
        assert_eq!((Measured::all(&job).len(), Measured::all(&job)[0].saving), (1, None));
    }
}
