//! The controller beside jobs that answer late, noisily or not at all.

use std::collections::VecDeque;

use fastrand::Rng;
use pfo_budget::{Controller, Curve, Now, Orders, Point, Seen, Steering};

const BUDGET_W: f64 = 16_000.0;

/// A job that changes this number of ticks after its order, and draws other power than its curve
/// says.
struct Plant {
    name: String,
    curve: Curve,
    running: usize,
    under_way: VecDeque<usize>,
    /// What it draws over its curve at its fastest point, and how much more of it at its slowest.
    factor: (f64, f64),
    /// The share of its power that its counters admit.
    admits: f64,
    is_deaf: bool,
    /// In the second half of a run.
    changes: usize,
}

impl Plant {
    fn new(number: usize, delay: usize) -> Self {
        let point = |place: u32| {
            let slow = 1.0 + f64::from(place) / 100.0;
            Point { time_s: slow, power_w: 1000.0 / slow.powf(1.7), tag: place }
        };
        Self {
            name: format!("job-{number:02}"),
            curve: Curve::new((0..60).map(point), None).unwrap(),
            running: 0,
            under_way: VecDeque::from(vec![0; delay]),
            factor: (1.0, 1.0),
            admits: 1.0,
            is_deaf: false,
            changes: 0,
        }
    }

    fn power_w(&self) -> f64 {
        let depth = self.running as f64 / self.curve.last() as f64;
        let (fast, slow) = self.factor;
        (fast + depth * (slow - fast)) * self.curve.points()[self.running].power_w
    }

    fn pass(&mut self, orders: &Orders) {
        let latest = self.under_way.back().copied().unwrap_or(self.running);
        self.under_way.push_back(orders.changes.get(&self.name).copied().unwrap_or(latest));
        let now = self.under_way.pop_front().unwrap();
        if !self.is_deaf && now != self.running {
            (self.running, self.changes) = (now, self.changes + 1);
        }
    }
}

/// Lets the controller work; returns the power after each tick, and the last orders.
fn run(plants: &mut [Plant], ticks: usize, noise: f64, has_meter: bool) -> (Vec<f64>, Orders) {
    let (mut controller, mut random) = (Controller::new(), Rng::with_seed(7));
    let mut powers_w = Vec::new();
    let mut last = None;
    for tick in 0..ticks {
        if tick == ticks / 2 {
            plants.iter_mut().for_each(|plant| plant.changes = 0);
        }
        let power_w: f64 = plants.iter().map(Plant::power_w).sum();
        powers_w.push(power_w);
        let seen: Vec<Seen<'_>> = plants
            .iter()
            .map(|plant| Seen {
                name: &plant.name,
                curve: &plant.curve,
                weight: 1.0,
                running: Some(plant.running),
                measured_w: Some(
                    plant.admits * plant.power_w() * (1.0 + noise * (random.f64() - 0.5)),
                ),
                is_held: false,
                has_floor: false,
                is_limited: false,
            })
            .collect();
        let now = Now {
            budget_w: BUDGET_W,
            base_w: 0.0,
            meter_w: has_meter.then_some(power_w),
            elapsed_s: 1.0,
            is_emergency: false,
        };
        let orders = controller.next(&seen, now).unwrap();
        plants.iter_mut().for_each(|plant| plant.pass(&orders));
        last = Some(orders);
    }
    (powers_w, last.unwrap())
}

fn twenty(delay: usize) -> Vec<Plant> {
    (0..20).map(|number| Plant::new(number, delay)).collect()
}

/// No tick after this number of them is above the budget, and jobs rarely change in the second
/// half.
fn assert_settled(plants: &mut [Plant], noise: f64, has_meter: bool, by: usize) {
    let (powers_w, _) = run(plants, 400, noise, has_meter);
    let above = powers_w.iter().rposition(|&power_w| power_w > BUDGET_W);
    assert!(above.is_some_and(|above| above < by), "above at tick {above:?}, not only before {by}");
    assert!(powers_w[399] > 0.9 * BUDGET_W, "{} W is too little", powers_w[399]);
    let changes: usize = plants.iter().map(|plant| plant.changes).sum();
    println!("{changes} changes, {} W", powers_w[399]);
    // A job changes once in 50 ticks at most, as a mean.
    assert!(changes <= 4 * plants.len(), "{changes} changes of {} jobs in 200 ticks", plants.len());
}

#[test]
fn late_jobs_come_below_the_budget_and_stay_there() {
    for delay in [0, 1, 3, 8] {
        assert_settled(&mut twenty(delay), 0.0, false, 10 + 6 * delay);
    }
}

#[test]
fn noise_makes_no_job_swing() {
    for (delay, noise) in [(0, 0.04), (3, 0.04), (6, 0.1)] {
        assert_settled(&mut twenty(delay), noise, false, 60);
    }
}

#[test]
fn a_curve_that_is_wrong_at_one_end_is_corrected_without_swinging() {
    for factor in [(1.0, 1.15), (1.15, 1.0), (0.9, 1.1), (1.1, 1.1)] {
        let mut plants = twenty(3);
        plants.iter_mut().for_each(|plant| plant.factor = factor);
        assert_settled(&mut plants, 0.02, false, 80);
    }
}

#[test]
fn the_watts_of_a_law_that_is_wrong_are_used_once_its_points_were_measured() {
    for (delay, noise) in [(0, 0.0), (3, 0.02), (6, 0.04)] {
        let mut plants = twenty(delay);
        for plant in &mut plants {
            let points = plant.curve.points().to_vec();
            plant.curve = Curve::steered(Steering::UniformClocks, points, None).unwrap();
            plant.factor = (1.0, 0.7);
        }
        let (powers_w, orders) = run(&mut plants, 400, noise, false);
        let most_w = powers_w[10 + 6 * delay..].iter().copied().fold(0.0, f64::max);
        // A point that was not measured yet may draw a little more than those beside it suggest.
        assert!(most_w < 1.0025 * BUDGET_W, "{most_w} W, {delay} ticks late");
        let used = powers_w[200..].iter().sum::<f64>() / (200.0 * BUDGET_W);
        println!("{used} of the budget, {} W kept free", orders.reserve_w);
        assert!(used > 0.99, "{used} of the budget, {} W kept free", orders.reserve_w);
    }
}

#[test]
fn what_a_node_hides_the_meter_finds() {
    for admits in [0.0, 0.5, 0.8, f64::NAN] {
        let mut plants = twenty(2);
        plants[3].admits = admits;
        plants[4].admits = admits;
        assert_settled(&mut plants, 0.02, true, 80);
    }
}

#[test]
fn a_job_that_does_not_follow_is_counted_as_it_is_and_limited() {
    let mut plants = twenty(1);
    plants[5].is_deaf = true;
    let (powers_w, orders) = run(&mut plants, 100, 0.0, false);
    assert!(powers_w[99] <= BUDGET_W, "{} W", powers_w[99]);
    let limit_w = orders.limits["job-05"];
    assert!(limit_w < plants[5].power_w(), "{limit_w} W");
    assert_eq!(orders.limits.len(), 1);
    assert!(orders.changes.contains_key("job-05"));
}

#[test]
fn a_job_that_changes_slower_than_its_orders_is_not_limited_while_it_changes() {
    let (mut controller, mut plant) = (Controller::new(), Plant::new(0, 0));
    let mut orders = Vec::new();
    for second in 0..60 {
        let ramp_w = 950.0 - 5.0 * f64::from(second);
        let now = one(&mut controller, &plant, false, ramp_w);
        assert!(now.limits.is_empty(), "{:?} after {second} s", now.limits);
        orders.extend(now.changes.get("job-00").copied());
        // A swap takes four seconds, in which there is another order.
        if second % 4 == 3 {
            plant.running = orders[orders.len().saturating_sub(4)];
        }
    }
    assert!(plant.running > 20, "{}", plant.running);
    let deaf = (0..20).map(|_| one(&mut controller, &plant, false, 500.0)).last().unwrap();
    assert!(deaf.limits.contains_key("job-00"));
}

#[test]
fn a_job_gets_nothing_before_another_one_has_given_it() {
    let mut plants = twenty(0);
    run(&mut plants, 50, 0.0, false);
    // One job ends. What it drew goes to the others, never more than that.
    plants.pop();
    let (powers_w, _) = run(&mut plants, 50, 0.0, false);
    assert!(powers_w.iter().all(|&power_w| power_w <= BUDGET_W), "{powers_w:?}");
    assert!(powers_w[49] > 0.98 * BUDGET_W, "{} W", powers_w[49]);
}

fn one(controller: &mut Controller, plant: &Plant, is_emergency: bool, budget_w: f64) -> Orders {
    let seen = Seen {
        name: &plant.name,
        curve: &plant.curve,
        weight: 1.0,
        running: Some(plant.running),
        measured_w: None,
        is_held: false,
        has_floor: false,
        is_limited: false,
    };
    let now = Now { budget_w, base_w: 0.0, meter_w: None, elapsed_s: 1.0, is_emergency };
    controller.next(&[seen], now).unwrap()
}

#[test]
fn an_emergency_limits_power_at_once_and_gives_it_back_to_the_plan() {
    let (mut controller, mut plant) = (Controller::new(), Plant::new(0, 0));
    let orders = one(&mut controller, &plant, true, 700.0);
    assert!(orders.limits["job-00"] <= 700.0 && orders.decision.shortfall.is_none());
    plant.running = orders.changes["job-00"];
    let after = one(&mut controller, &plant, true, 700.0);
    assert!(after.limits.is_empty() && after.changes.is_empty());
    let below_floor = one(&mut controller, &plant, true, 100.0);
    assert!(below_floor.decision.shortfall.is_some());
    assert!(below_floor.limits["job-00"] <= 100.0);
}

#[test]
fn below_all_slowest_points_jobs_without_a_floor_are_limited_and_the_others_are_not() {
    let plants: Vec<Plant> = (0..3).map(|number| Plant::new(number, 0)).collect();
    let slowest_w = plants[0].curve.points()[plants[0].curve.last()].power_w;
    let seen = |is_limited| -> Vec<Seen<'_>> {
        let plants = plants.iter().enumerate();
        let seen = plants.map(|(number, plant)| Seen {
            name: &plant.name,
            curve: &plant.curve,
            weight: 1.0,
            running: Some(plant.curve.last()),
            measured_w: None,
            is_held: false,
            has_floor: number == 0,
            is_limited,
        });
        seen.collect()
    };
    let (mut controller, budget_w) = (Controller::new(), 2.0 * slowest_w);
    let mut now = Now { budget_w, base_w: 0.0, meter_w: None, elapsed_s: 1.0, is_emergency: false };
    for is_limited in [false, true, true] {
        let orders = controller.next(&seen(is_limited), now).unwrap();
        assert!(orders.decision.shortfall.is_some());
        assert_eq!(orders.limits.keys().collect::<Vec<_>>(), ["job-01", "job-02"]);
        let limits_w: f64 = orders.limits.values().sum();
        assert!(limits_w + slowest_w <= budget_w, "{limits_w} W");
    }
    now.is_emergency = true;
    let orders = controller.next(&seen(true), now).unwrap();
    assert!(orders.limits.len() == 3 && orders.limits.values().sum::<f64>() <= budget_w);
    now.budget_w = 4.0 * slowest_w;
    assert!(controller.next(&seen(true), now).unwrap().limits.is_empty(), "there is room again");
}

#[test]
fn a_job_that_was_limited_stays_so_under_the_next_controller_until_it_has_changed() {
    let plant = Plant::new(0, 0);
    let seen = |running, is_limited| Seen {
        name: &plant.name,
        curve: &plant.curve,
        weight: 1.0,
        running: Some(running),
        measured_w: None,
        is_held: false,
        has_floor: false,
        is_limited,
    };
    let now =
        Now { budget_w: 700.0, base_w: 0.0, meter_w: None, elapsed_s: 1.0, is_emergency: false };
    let mut controller = Controller::new();
    assert!(controller.next(&[seen(0, false)], now).unwrap().limits.is_empty(), "it may follow");
    let orders = Controller::new().next(&[seen(0, true)], now).unwrap();
    assert!(orders.limits["job-00"] <= 700.0);
    let changed = seen(orders.changes["job-00"], true);
    assert!(Controller::new().next(&[changed], now).unwrap().limits.is_empty());
}

#[test]
fn a_job_that_is_held_keeps_its_plan_and_is_counted() {
    let plants = twenty(0);
    let seen: Vec<Seen<'_>> = plants
        .iter()
        .enumerate()
        .map(|(number, plant)| Seen {
            name: &plant.name,
            curve: &plant.curve,
            weight: 1.0,
            running: None,
            measured_w: None,
            is_held: number == 0,
            has_floor: false,
            is_limited: false,
        })
        .collect();
    let now =
        Now { budget_w: BUDGET_W, base_w: 0.0, meter_w: None, elapsed_s: 1.0, is_emergency: false };
    let orders = Controller::new().next(&seen, now).unwrap();
    assert!(!orders.changes.contains_key("job-00"));
    assert_eq!(orders.changes.len(), 19);
    assert!(orders.decision.power_w <= BUDGET_W);
}

#[test]
fn hostile_numbers_of_the_cluster_are_refused_and_of_counters_passed_over() {
    let plant = Plant::new(0, 0);
    for bad in [f64::NAN, f64::INFINITY, -1.0] {
        let seen = Seen {
            name: "job",
            curve: &plant.curve,
            weight: 1.0,
            running: Some(usize::MAX),
            measured_w: Some(bad),
            is_held: false,
            has_floor: false,
            is_limited: false,
        };
        let good = Now {
            budget_w: 700.0,
            base_w: 10.0,
            meter_w: Some(bad),
            elapsed_s: 1.0,
            is_emergency: true,
        };
        let orders = Controller::new().next(&[seen], good).unwrap();
        assert!(orders.decision.power_w.is_finite() && orders.reserve_w.is_finite());
        for wrong in [
            Now { budget_w: bad, ..good },
            Now { base_w: bad, ..good },
            Now { elapsed_s: bad, ..good },
        ] {
            assert!(Controller::new().next(&[seen], wrong).is_err());
        }
    }
}

#[test]
fn a_new_controller_leaves_jobs_alone_that_keep_the_budget() {
    let mut plants = twenty(0);
    run(&mut plants, 400, 0.0, false);
    let before: Vec<usize> = plants.iter().map(|plant| plant.running).collect();
    run(&mut plants, 50, 0.0, false);
    let after: Vec<usize> = plants.iter().map(|plant| plant.running).collect();
    assert_eq!(before, after);
}

#[test]
fn a_new_controller_gives_away_no_watt_that_the_one_before_has_ordered() {
    let mut plants = twenty(3);
    let last = plants[0].curve.last();
    plants.iter_mut().for_each(|plant| plant.running = last);
    let now =
        Now { budget_w: BUDGET_W, base_w: 0.0, meter_w: None, elapsed_s: 1.0, is_emergency: false };
    let seen = |plant: &'static Plant| Seen {
        name: &plant.name,
        curve: &plant.curve,
        weight: 1.0,
        running: Some(plant.running),
        measured_w: None,
        is_held: false,
        has_floor: false,
        is_limited: false,
    };
    let plants: &'static [Plant] = plants.leak();
    let all: Vec<Seen<'_>> = plants.iter().map(seen).collect();
    let mut next = Controller::new();
    // These were told to be as fast as they can, and may be at any moment.
    let told: Vec<&str> = plants[..10].iter().map(|plant| &*plant.name).collect();
    told.iter().for_each(|name| next.resume(name, 0));
    let orders = next.next(&all, now).unwrap();
    let most_w = |plant: &Plant| {
        let place = orders.changes.get(&plant.name).copied().unwrap_or(plant.running);
        let place = if told.contains(&&*plant.name) { 0 } else { place };
        plant.curve.points()[place].power_w
    };
    let most_w: f64 = plants.iter().map(most_w).sum();
    assert!(most_w <= BUDGET_W, "{most_w} W");
}
