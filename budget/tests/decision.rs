//! Decisions held against optima that are computed in another way, and against numbers that no
//! measurement gives.

use crate::optimum::{Plain, Take, least_loss, least_loss_of_all};
use fastrand::Rng;
use pfo_budget::{BudgetError, Curve, Decision, Job, Point, Reason, Room, decide};
use proptest::prelude::*;

/// Small problems that are solved.
const ROUNDS: usize = 200;
/// Sums in another order differ by this share.
const ROUNDING: f64 = 1e-9;

fn point(time_s: f64, power_w: f64) -> Point {
    Point { time_s, power_w, tag: 0 }
}

fn curve(points: &[(f64, f64)]) -> Curve {
    Curve::new(points.iter().map(|&(t, p)| point(t, p)), None).unwrap()
}

fn decided(jobs: &[Plain], limit_w: f64) -> Decision {
    let curves: Vec<Curve> =
        jobs.iter().map(|job| Curve::new(job.points.iter().copied(), None).unwrap()).collect();
    let names: Vec<String> = (0..jobs.len()).map(|job| format!("job-{job}")).collect();
    let jobs: Vec<Job<'_>> = (0..jobs.len())
        .map(|index| Job { name: &names[index], curve: &curves[index], weight: jobs[index].weight })
        .collect();
    decide(&jobs, Room { budget_w: limit_w, base_w: 0.0 }).unwrap()
}

/// A job whose points scatter about a curve, some of them worse than others in both.
fn random_job(random: &mut Rng, points: usize) -> Plain {
    let (time_s, power_w) = (0.5 + 9.5 * random.f64(), 200.0 + 4000.0 * random.f64());
    let points = (0..points).map(|_| {
        let slow = 1.0 + 0.8 * random.f64();
        let scatter = 1.0 + 0.1 * random.f64();
        point(time_s * slow, power_w * scatter * (0.3 + 0.7 / slow.powi(2)))
    });
    Plain { points: points.collect(), weight: 0.5 + 7.5 * random.f64() }
}

/// What the jobs draw at their fastest and at their slowest points, in watts.
fn extent_w(jobs: &[Plain]) -> [f64; 2] {
    let slowest_w =
        |job: &Plain| job.points.iter().map(|p| p.power_w).fold(f64::INFINITY, f64::min);
    let fastest_w = |job: &Plain| {
        let first = |a: &&Point, b: &&Point| a.time_s.total_cmp(&b.time_s);
        job.points.iter().min_by(first).unwrap().power_w
    };
    [jobs.iter().map(fastest_w).sum(), jobs.iter().map(slowest_w).sum()]
}

/// The largest loss that one edge between two plans of one job can be.
fn largest_step(jobs: &[Plain]) -> f64 {
    let step = |job: &Plain| {
        let curve = Curve::new(job.points.iter().copied(), None).unwrap();
        job.weight * curve.lost(curve.last())
    };
    jobs.iter().map(step).fold(0.0, f64::max)
}

#[test]
fn the_bound_is_the_optimum_of_the_linear_program() {
    let mut random = Rng::with_seed(1);
    for round in 0..60 {
        let jobs: Vec<Plain> =
            (0..2 + round % 20).map(|_| random_job(&mut random, 1 + round % 30)).collect();
        let [most_w, least_w] = extent_w(&jobs);
        let limit_w = (least_w + (most_w - least_w) * random.f64()) * (1.0 + ROUNDING);
        let decision = decided(&jobs, limit_w);
        let exact = least_loss(&jobs, limit_w, Take::Mixture).unwrap();
        assert!(
            (decision.bound - exact).abs() <= 1e-7 * (1.0 + exact),
            "round {round}: {limit_w} W: {} is not {exact}",
            decision.bound
        );
        assert!(decision.power_w <= limit_w, "{} W of {limit_w} W", decision.power_w);
        assert!(decision.loss >= exact - 1e-7 && decision.loss <= exact + largest_step(&jobs));
    }
}

#[test]
fn most_decisions_for_few_jobs_are_the_best_there_is_and_none_is_far_from_it() {
    let mut random = Rng::with_seed(2);
    let (mut best, mut worst) = (0, 0.0f64);
    for _ in 0..ROUNDS {
        let jobs: Vec<Plain> = (0..4).map(|_| random_job(&mut random, 9)).collect();
        let [most_w, least_w] = extent_w(&jobs);
        let limit_w = least_w + (most_w - least_w) * random.f64();
        let decision = decided(&jobs, limit_w);
        let exact = least_loss_of_all(&jobs, limit_w).unwrap();
        assert!(decision.loss >= exact - ROUNDING, "{} is below {exact}", decision.loss);
        assert!(decision.bound <= exact + ROUNDING, "{} is above {exact}", decision.bound);
        best += usize::from(decision.loss <= exact + ROUNDING);
        worst = worst.max(decision.loss - exact);
    }
    println!("{best} of {ROUNDS} are the best, and none loses {worst} more");
    assert!(best >= ROUNDS * 8 / 10, "only {best} of {ROUNDS} are the best there is");
}

#[test]
fn an_integer_program_finds_nothing_better_than_one_plan_less() {
    let mut random = Rng::with_seed(3);
    for _ in 0..8 {
        let jobs: Vec<Plain> = (0..6).map(|_| random_job(&mut random, 8)).collect();
        let [most_w, least_w] = extent_w(&jobs);
        let limit_w = least_w + (most_w - least_w) * (0.1 + 0.8 * random.f64());
        let exact = least_loss(&jobs, limit_w, Take::One).unwrap();
        let decision = decided(&jobs, limit_w);
        assert!(decision.loss >= exact - 1e-6);
        assert!(decision.loss - exact <= 0.1 * largest_step(&jobs));
    }
}

#[test]
fn what_is_convex_of_a_curve_has_its_ends_and_decides_nearly_as_well() {
    let points: Vec<(f64, f64)> = (0..5000)
        .map(|at| 1.0 + f64::from(at) / 5000.0)
        .map(|s| (s, 900.0 / s.powf(1.8)))
        .collect();
    let all = curve(&points);
    for most in [2, 3, 64, 10_000] {
        let convex = all.convex(most);
        assert!(convex.len() <= most.max(2), "{most}: {}", convex.len());
        let ends = [convex[0], convex[convex.len() - 1]];
        assert_eq!(ends, [all.points()[0], all.points()[all.last()]]);
        assert!(convex.windows(2).all(|pair| pair[0].time_s < pair[1].time_s));
    }
    let few = Curve::new(all.convex(64), None).unwrap();
    let room = Room { budget_w: 700.0, base_w: 0.0 };
    let loss = |curve: &Curve| decide(&[Job { name: "j", curve, weight: 1.0 }], room).unwrap().loss;
    assert!(loss(&few) - loss(&all) < 0.01, "{} and {}", loss(&few), loss(&all));
    let one = curve(&[(1.0, 5.0)]);
    assert_eq!(one.convex(64), one.points());
}

#[test]
fn a_budget_for_all_slows_nobody_down() {
    let jobs = [random_job(&mut Rng::with_seed(4), 20), random_job(&mut Rng::with_seed(5), 20)];
    let [most_w, _] = extent_w(&jobs);
    let decision = decided(&jobs, most_w * (1.0 + ROUNDING));
    assert!(decision.shares.values().all(|share| share.reason == Reason::Fastest));
    assert_eq!((decision.loss, decision.bound, decision.price), (0.0, 0.0, 0.0));
}

#[test]
fn a_budget_below_all_floors_is_said_with_the_watts_and_the_largest_job() {
    let (small, large) =
        (curve(&[(1.0, 300.0), (1.5, 200.0)]), curve(&[(1.0, 900.0), (1.5, 700.0)]));
    let job = |name, curve| Job { name, curve, weight: 1.0 };
    let jobs = [job("small", &small), job("large", &large)];
    let decision = decide(&jobs, Room { budget_w: 950.0, base_w: 100.0 }).unwrap();
    let shortfall = decision.shortfall.unwrap();
    assert_eq!((shortfall.over_w, shortfall.largest.as_deref()), (50.0, Some("large")));
    assert!(decision.shares.values().all(|share| share.reason == Reason::Floor));
    let enough = decide(&jobs, Room { budget_w: 1000.0, base_w: 100.0 }).unwrap();
    assert_eq!(enough.shortfall, None);
    let empty = decide(&[], Room { budget_w: 50.0, base_w: 100.0 }).unwrap();
    assert_eq!(empty.shortfall.unwrap().over_w, 50.0);
}

#[test]
fn a_floor_cuts_a_curve_and_the_others_pay() {
    let points =
        [(1.0, 1000.0), (1.1, 800.0), (1.2, 700.0), (1.5, 600.0)].map(|(t, p)| point(t, p));
    let free = Curve::new(points, None).unwrap();
    let held = Curve::new(points, Some(1.15)).unwrap();
    assert!(held.is_cut() && !free.is_cut());
    let job = |name, curve| Job { name, curve, weight: 1.0 };
    let decision =
        decide(&[job("free", &free), job("held", &held)], Room { budget_w: 1500.0, base_w: 0.0 });
    let shares = decision.unwrap().shares;
    assert_eq!((shares["held"].reason, shares["held"].power_w), (Reason::Floor, 800.0));
    assert_eq!(shares["held"].next_price, None);
    assert_eq!((shares["free"].reason, shares["free"].power_w), (Reason::Price, 700.0));
    assert!(shares["free"].next_price.is_some());
}

#[test]
fn weight_says_who_is_slowed_down() {
    let points = [(1.0, 1000.0), (1.25, 700.0)];
    let (light, heavy) = (curve(&points), curve(&points));
    let jobs = [
        Job { name: "a-heavy", curve: &heavy, weight: 2.0 },
        Job { name: "b-light", curve: &light, weight: 1.0 },
    ];
    let shares = decide(&jobs, Room { budget_w: 1700.0, base_w: 0.0 }).unwrap().shares;
    assert_eq!(shares["a-heavy"].reason, Reason::Fastest);
    assert_eq!((shares["b-light"].place, shares["b-light"].lost), (1, 1.0 - 1.0 / 1.25));
    assert_eq!(shares["b-light"].given_w, 300.0);
}

#[test]
fn numbers_that_no_measurement_gives_are_refused_with_their_place() {
    for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -1.0, 1e300] {
        for points in [[(1.0, 1.0), (bad, 1.0)], [(1.0, 1.0), (1.0, bad)]] {
            let refused = Curve::new(points.map(|(t, p)| point(t, p)), None).unwrap_err();
            assert!(refused.to_string().contains("of point 1 is"), "{refused}");
        }
        let curve = curve(&[(1.0, 1.0)]);
        let job = Job { name: "mine", curve: &curve, weight: bad };
        let refused = decide(&[job], Room { budget_w: 1.0, base_w: 0.0 }).unwrap_err();
        assert!(refused.to_string().contains("of job mine is"), "{refused}");
        if bad != 0.0 {
            assert!(decide(&[], Room { budget_w: bad, base_w: 0.0 }).is_err());
            assert!(decide(&[], Room { budget_w: 1.0, base_w: bad }).is_err());
        }
    }
    assert_eq!(Curve::new([], None).unwrap_err(), BudgetError::NoPoint);
    for floor in [f64::NAN, 0.99, -1.0] {
        assert!(Curve::new([point(1.0, 1.0)], Some(floor)).is_err());
    }
    let curve = curve(&[(1.0, 1.0)]);
    let twice = [Job { name: "a", curve: &curve, weight: 1.0 }; 2];
    let refused = decide(&twice, Room { budget_w: 1.0, base_w: 0.0 }).unwrap_err();
    assert_eq!(refused, BudgetError::SameName("a".into()));
}

#[test]
fn a_job_with_one_point_is_counted_and_left_alone() {
    let (fixed, free) = (curve(&[(2.0, 500.0)]), curve(&[(1.0, 500.0), (1.3, 300.0)]));
    let job = |name, curve| Job { name, curve, weight: 1.0 };
    let jobs = [job("fixed", &fixed), job("free", &free)];
    let shares = decide(&jobs, Room { budget_w: 900.0, base_w: 0.0 }).unwrap().shares;
    assert_eq!((shares["fixed"].reason, shares["free"].reason), (Reason::Fastest, Reason::Floor));
}

#[test]
fn large_jobs_with_many_points_leave_next_to_nothing_unused() {
    let mut random = Rng::with_seed(6);
    let jobs: Vec<Plain> = (0..200).map(|_| random_job(&mut random, 300)).collect();
    let [most_w, least_w] = extent_w(&jobs);
    for share in [0.02, 0.2, 0.5, 0.8, 0.98] {
        let limit_w = least_w + (most_w - least_w) * share;
        let decision = decided(&jobs, limit_w);
        assert!(decision.power_w <= limit_w);
        let gap = (decision.loss - decision.bound) / largest_step(&jobs);
        println!("{gap} of one job's way from its fastest plan to its slowest, at {limit_w} W");
        assert!(gap <= 0.01, "{gap} of a job's whole way could perhaps be spared at {limit_w} W");
    }
}

fn any_jobs() -> impl Strategy<Value = Vec<Plain>> {
    // Few values, so that times, powers and prices are often equal.
    let points = proptest::collection::vec((1u8..6, 1u8..6), 1..7);
    let job = (points, 1u8..4).prop_map(|(points, weight)| Plain {
        points: points.into_iter().map(|(t, p)| point(t.into(), p.into())).collect(),
        weight: weight.into(),
    });
    proptest::collection::vec(job, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_equal_the_decision_keeps_the_budget_and_its_bound(
        jobs in any_jobs(), limit in 0u16..100, order in any::<u64>()
    ) {
        let limit_w = f64::from(limit) / 2.0;
        let decision = decided(&jobs, limit_w);
        let exact = least_loss_of_all(&jobs, limit_w);
        prop_assert_eq!(decision.shortfall.is_some(), exact.is_none());
        if let Some(exact) = exact {
            prop_assert!(decision.power_w <= limit_w);
            prop_assert!(decision.bound <= exact + ROUNDING);
            prop_assert!(decision.loss >= exact - ROUNDING);
            prop_assert!(decision.loss <= decision.bound + largest_step(&jobs) + ROUNDING);
        }
        // The points of a job in another order are the same job.
        let mut shuffled = jobs.clone();
        let mut random = Rng::with_seed(order);
        for job in &mut shuffled {
            random.shuffle(&mut job.points);
        }
        prop_assert_eq!(decided(&shuffled, limit_w), decision);
    }

    #[test]
    fn jobs_in_any_order_get_the_same_decision(jobs in any_jobs(), seed in any::<u64>()) {
        let curves: Vec<Curve> =
            jobs.iter().map(|job| Curve::new(job.points.iter().copied(), None).unwrap()).collect();
        let names: Vec<String> = (0..jobs.len()).map(|job| format!("job-{job}")).collect();
        let mut listed: Vec<Job<'_>> = (0..jobs.len()).map(|index| Job {
            name: &names[index],
            curve: &curves[index],
            weight: jobs[index].weight,
        }).collect();
        let [most_w, least_w] = extent_w(&jobs);
        let room = Room { budget_w: (most_w + least_w) / 2.0, base_w: 0.0 };
        let before = decide(&listed, room).unwrap();
        Rng::with_seed(seed).shuffle(&mut listed);
        prop_assert_eq!(decide(&listed, room).unwrap(), before);
    }
}
