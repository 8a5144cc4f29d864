//! Uses the watts that one last plan leaves over: what a few jobs gain by other points, not only by
//! corners of their hulls.

use crate::job::Job;

/// How often a change is looked for.
const ROUNDS: usize = 16;
/// How far from its point a job is looked at, in points.
const NEAR: usize = 48;
/// How many changes of single jobs are tried in pairs.
const MOST: usize = 256;

/// A job at another point.
#[derive(Clone, Copy)]
struct Move {
    job: usize,
    to: usize,
    more_w: f64,
    loss: f64,
    /// What it is worse by than the price: at least 0 from where the price is right.
    regret: f64,
}

/// Improves places of jobs that keep the limit, and still keeps it.
///
/// Seen from the relaxed optimum, a choice loses the price of the watts that it leaves unused and the
/// regret of every job that is not on its best corner. So only a move whose regret is below the price of
/// the unused watts can be part of a gain, and those are few.
pub(crate) fn exchange(jobs: &[Job<'_>], places: &mut [usize], limit_w: f64, price: f64) {
    for _ in 0..ROUNDS {
        let spare_w = limit_w - draw_w(jobs, places);
        let moves = moves(jobs, places, spare_w, price);
        let Some(best) = best(&moves, spare_w) else { return };
        let before: Vec<(usize, usize)> =
            best.iter().flatten().map(|step| (step.job, places[step.job])).collect();
        for step in best.iter().flatten() {
            places[step.job] = step.to;
        }
        if draw_w(jobs, places) > limit_w {
            for (job, place) in before {
                places[job] = place;
            }
            return;
        }
    }
}

/// What all jobs draw at these places, always summed in the same order.
pub(crate) fn draw_w(jobs: &[Job<'_>], places: &[usize]) -> f64 {
    jobs.iter().zip(places).map(|(job, &place)| job.power_w(place)).sum()
}

fn moves(jobs: &[Job<'_>], places: &[usize], spare_w: f64, price: f64) -> Vec<Move> {
    let mut moves = Vec::new();
    for (index, (job, &place)) in jobs.iter().zip(places).enumerate() {
        let most_w = job.power_w(place) + spare_w;
        let mut offer = |to: usize| {
            let more_w = job.power_w(to) - job.power_w(place);
            let loss = job.loss(to) - job.loss(place);
            let regret = loss + price * more_w;
            if regret < price * spare_w || loss < 0.0 && more_w <= spare_w {
                moves.push(Move { job: index, to, more_w, loss, regret });
            }
        };
        let fits = job.curve.fastest_within(most_w);
        if let Some(fastest) = fits.filter(|&to| to + NEAR < place) {
            offer(fastest);
        }
        let near = place.saturating_sub(NEAR)..=(place + NEAR).min(job.curve.last());
        near.filter(|&to| to != place).for_each(offer);
    }
    moves.sort_unstable_by(|a, b| {
        a.regret.total_cmp(&b.regret).then(a.job.cmp(&b.job)).then(a.to.cmp(&b.to))
    });
    moves.truncate(MOST);
    moves
}

/// The one move, or the two of different jobs, that gain most.
fn best(moves: &[Move], spare_w: f64) -> Option<[Option<Move>; 2]> {
    let (mut best, mut least) = (None, -f64::EPSILON);
    for (index, first) in moves.iter().enumerate() {
        if first.more_w <= spare_w && first.loss < least {
            (best, least) = (Some([Some(*first), None]), first.loss);
        }
        for second in &moves[..index] {
            let loss = first.loss + second.loss;
            let fits = first.more_w + second.more_w <= spare_w;
            if fits && loss < least && first.job != second.job {
                (best, least) = (Some([Some(*first), Some(*second)]), loss);
            }
        }
    }
    best
}
