//! The problem a second time, for comparison: a linear program, and every choice there is. Shares
//! nothing with the crate but its points.

use microlp::{ComparisonOp, Error, OptimizationDirection, Problem};
use pfo_budget::Point;

/// A job in plain numbers.
#[derive(Clone, Debug)]
pub(crate) struct Plain {
    pub(crate) points: Vec<Point>,
    pub(crate) weight: f64,
}

impl Plain {
    /// (watts, weighted loss) of each point.
    fn choices(&self) -> Vec<(f64, f64)> {
        let fastest_s = self.points.iter().map(|point| point.time_s).fold(f64::INFINITY, f64::min);
        let choice = |point: &Point| {
            let loss = self.weight * (1.0 - fastest_s / point.time_s);
            (point.power_w, loss)
        };
        self.points.iter().map(choice).collect()
    }
}

/// Whether a job must run one point, or may mix several.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Take {
    One,
    Mixture,
}

/// The least loss with at most this power, or none if there is no such choice.
pub(crate) fn least_loss(jobs: &[Plain], limit_w: f64, take: Take) -> Option<f64> {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let mut draws = Vec::new();
    for job in jobs {
        let mut shares = Vec::new();
        for (power_w, loss) in job.choices() {
            let share = match take {
                Take::One => problem.add_binary_var(loss),
                Take::Mixture => problem.add_var(loss, (0.0, 1.0)),
            };
            shares.push((share, 1.0));
            draws.push((share, power_w));
        }
        problem.add_constraint(shares, ComparisonOp::Eq, 1.0);
    }
    problem.add_constraint(draws, ComparisonOp::Le, limit_w);
    match problem.solve() {
        Ok(outcome) => Some(outcome.into_solution().unwrap().objective()),
        Err(Error::Infeasible) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The least loss of all choices, tried one by one.
pub(crate) fn least_loss_of_all(jobs: &[Plain], limit_w: f64) -> Option<f64> {
    let Some((first, rest)) = jobs.split_first() else {
        return (limit_w >= 0.0).then_some(0.0);
    };
    let with = |(power_w, loss): (f64, f64)| {
        (power_w <= limit_w).then(|| least_loss_of_all(rest, limit_w - power_w))?.map(|l| l + loss)
    };
    first.choices().into_iter().filter_map(with).reduce(f64::min)
}
