//! The one price at which the jobs together draw what they may: exact, by halving what is left.

use crate::job::Job;

/// What the relaxed problem says: each job at a corner of its hull, one of them between two.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Priced {
    /// For each job, the corner of its hull from which on a watt is dearer than the price.
    pub(crate) corners: Vec<usize>,
    /// The job whose last edge is the dearest that was taken, if any had to be.
    pub(crate) last: Option<usize>,
    /// Weighted progress that the last watt costs.
    pub(crate) price: f64,
    /// The least loss if that job could run a mixture of two plans: nothing is below it.
    pub(crate) bound: f64,
}

/// An edge of a job's hull. Edges are taken by rising price, then by job, then along the hull, so
/// that two that cost the same have an order, too.
#[derive(Clone, Copy)]
struct Edge {
    price: f64,
    job: usize,
    edge: usize,
    /// The edges of its job that are still in question.
    left: usize,
}

/// Takes the cheapest edges until the jobs draw no more than `limit_w`. None if all edges are not
/// enough.
///
/// The edges of a hull rise in price, so those that are taken of a job are its first. Which is the last
/// edge is found as a weighted median is (Johnson and Mizoguchi 1978): of each job the middle edge that is
/// in question, of these the median; it decides about a quarter of all edges at least.
pub(crate) fn price(jobs: &[Job<'_>], limit_w: f64) -> Option<Priced> {
    let mut low = vec![0; jobs.len()];
    let mut high: Vec<usize> = jobs.iter().map(|job| job.curve.prices().len()).collect();
    if draw_w(jobs, &high) > limit_w {
        return None;
    }
    if draw_w(jobs, &low) <= limit_w {
        let bound = loss(jobs, &low);
        return Some(Priced { corners: low, last: None, price: 0.0, bound });
    }
    let mut last = None;
    let mut cut = low.clone();
    while let Some(pivot) = median(jobs, &low, &high) {
        for (job, cut) in cut.iter_mut().enumerate() {
            *cut = taken(&jobs[job], job, pivot, low[job], high[job]);
        }
        if draw_w(jobs, &cut) <= limit_w {
            high.copy_from_slice(&cut);
            high[pivot.job] = pivot.edge;
            last = Some(pivot);
        } else {
            low.copy_from_slice(&cut);
        }
    }
    // All edges together are enough, so if no pivot was, the last of them all is.
    let Edge { price, job, .. } = last?;
    let (over_w, before) = (draw_w(jobs, &low) - limit_w, loss(jobs, &low));
    let (from, to) = (jobs[job].curve.corner(low[job]), jobs[job].curve.corner(low[job] + 1));
    let edge_w = jobs[job].power_w(from) - jobs[job].power_w(to);
    let edge_loss = jobs[job].loss(to) - jobs[job].loss(from);
    low[job] += 1;
    let bound = before + edge_loss * (over_w / edge_w).min(1.0);
    Some(Priced { corners: low, last: Some(job), price, bound })
}

/// The median, by the edges in question, of the middle edges of all jobs.
fn median(jobs: &[Job<'_>], low: &[usize], high: &[usize]) -> Option<Edge> {
    let mut middles: Vec<Edge> = (0..jobs.len())
        .filter(|&job| low[job] < high[job])
        .map(|job| {
            let edge = low[job].midpoint(high[job]);
            Edge { price: jobs[job].price(edge), job, edge, left: high[job] - low[job] }
        })
        .collect();
    middles.sort_unstable_by(|a, b| a.price.total_cmp(&b.price).then(a.job.cmp(&b.job)));
    let half = middles.iter().map(|edge| edge.left).sum::<usize>() / 2;
    let mut passed = 0;
    middles.into_iter().find(|edge| {
        passed += edge.left;
        passed > half
    })
}

/// How many edges of a job are taken with the pivot.
fn taken(job: &Job<'_>, index: usize, pivot: Edge, low: usize, high: usize) -> usize {
    if index == pivot.job {
        return pivot.edge + 1;
    }
    let is_taken = |edge: usize| {
        let price = job.price(edge);
        price < pivot.price || price == pivot.price && index < pivot.job
    };
    let (mut from, mut to) = (low, high);
    while from < to {
        let middle = from.midpoint(to);
        if is_taken(middle) { from = middle + 1 } else { to = middle }
    }
    from
}

fn draw_w(jobs: &[Job<'_>], corners: &[usize]) -> f64 {
    jobs.iter().zip(corners).map(|(job, &corner)| job.power_w(job.curve.corner(corner))).sum()
}

fn loss(jobs: &[Job<'_>], corners: &[usize]) -> f64 {
    jobs.iter().zip(corners).map(|(job, &corner)| job.loss(job.curve.corner(corner))).sum()
}
