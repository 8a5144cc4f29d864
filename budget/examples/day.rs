//! Draws a day of the simulated cluster under a budget that follows a price, as SVG on standard output:
//! `cargo run --release -p pfo-budget --example day > docs/budget-day.svg`

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/cluster/mod.rs"]
mod cluster;

use std::fmt::Write as _;

use cluster::kind::kinds;
use cluster::policy::Policy;
use cluster::{Cluster, Outcome, TICK_S};
use pfo_budget::{BudgetError, Ramp, Ramped, Series};

const JOBS: usize = 100;
const HOUR_S: f64 = 3600.0;
/// The cluster runs for so long before the day that is drawn.
const BEFORE_S: f64 = HOUR_S;
const DAY_S: f64 = 24.0 * HOUR_S;
/// One point of a line stands for this time.
const BUCKET_S: f64 = 300.0;
const RAMP_W_PER_S: f64 = 40.0;

/// A made-up price of each hour, in euros for a `MWh`: cheap nights and noons, a dear evening.
const PRICES: [f64; 24] = [
    62.0, 58.0, 55.0, 54.0, 57.0, 68.0, 95.0, 128.0, 132.0, 104.0, 78.0, 60.0, 48.0, 42.0, 46.0,
    64.0, 92.0, 136.0, 178.0, 186.0, 152.0, 112.0, 84.0, 70.0,
];

/// The picture, in pixels: its width, the edges of both panels, and where power begins, in kW.
const LEFT: f64 = 56.0;
const RIGHT: f64 = 784.0;
const POWER: (f64, f64) = (48.0, 290.0);
const PRICE: (f64, f64) = (330.0, 410.0);

/// The largest power of each bucket of the day, in watts, with the budget.
struct Day {
    power_w: Vec<f64>,
    budget_w: Vec<f64>,
    outcome: Outcome,
}

/// The share of the full power that a site buys at a price.
fn share(price: f64) -> f64 {
    match price {
        _ if price >= 150.0 => 0.72,
        _ if price >= 100.0 => 0.84,
        _ => 0.95,
    }
}

/// The file that `pfoctl budget set --from` would read.
fn file(full_w: f64) -> String {
    (0..)
        .zip(PRICES)
        .map(|(hour, price)| format!("{hour:02}:00,{:.1}kW\n", share(price) * full_w / 1e3))
        .collect()
}

fn run(budget_w: &[f64]) -> Result<Day, BudgetError> {
    let kinds = kinds();
    let buckets = (DAY_S / BUCKET_S) as usize;
    let mut day = Day {
        power_w: vec![0.0; buckets],
        budget_w: vec![0.0; buckets],
        outcome: Outcome::default(),
    };
    let at = |at_s: f64| budget_w[(at_s / TICK_S).round() as usize];
    let (power_w, limits_w) = (&mut day.power_w, &mut day.budget_w);
    let each = |at_s: f64, limit_w: f64, now_w: f64| {
        if at_s >= BEFORE_S {
            let bucket = ((at_s - BEFORE_S) / BUCKET_S) as usize;
            power_w[bucket] = power_w[bucket].max(now_w);
            limits_w[bucket] = limit_w;
        }
    };
    day.outcome =
        Cluster::new(&kinds, JOBS, 0, 1).run(Policy::Frontiers, BEFORE_S + DAY_S, at, each)?;
    Ok(day)
}

fn x(hour: f64) -> f64 {
    LEFT + hour / 24.0 * (RIGHT - LEFT)
}

/// Where a value is in a panel that shows this range.
fn y(panel: (f64, f64), range: (f64, f64), value: f64) -> f64 {
    panel.1 - (value - range.0) / (range.1 - range.0) * (panel.1 - panel.0)
}

fn line(class: &str, range_kw: (f64, f64), values_w: &[f64]) -> String {
    let mut points = String::new();
    for (bucket, value_w) in (0_u32..).zip(values_w) {
        let hour = (f64::from(bucket) + 0.5) * BUCKET_S / HOUR_S;
        let _ = write!(points, "{:.1},{:.1} ", x(hour), y(POWER, range_kw, value_w / 1e3));
    }
    format!("<polyline class=\"{class}\" points=\"{}\"/>\n", points.trim_end())
}

fn axis(panel: (f64, f64), range: (f64, f64), every: f64) -> String {
    let mut drawn = String::new();
    let mut value = range.0;
    while value <= range.1 {
        let at = y(panel, range, value);
        let _ = writeln!(
            drawn,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{RIGHT}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{value}</text>",
            LEFT - 6.0,
            at + 4.0
        );
        value += every;
    }
    drawn
}

fn hours() -> String {
    let label = |hour: u32| {
        let at = x(f64::from(hour));
        format!("<text x=\"{at:.1}\" y=\"428\" text-anchor=\"middle\">{hour:02}:00</text>\n")
    };
    (0..=24).step_by(3).map(label).collect()
}

fn prices() -> String {
    let bar = |(hour, price): (u32, f64)| {
        let (from, top) = (x(f64::from(hour)), y(PRICE, (0.0, 200.0), price));
        let (width, height) = ((RIGHT - LEFT) / 24.0 - 2.0, PRICE.1 - top);
        format!(
            "<rect class=\"price\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>\n",
            from + 1.0
        )
    };
    (0..).zip(PRICES).map(bar).collect()
}

fn legend() -> String {
    [
        ("without", "without a budget"),
        ("budget", "budget"),
        ("power", "power, the most in 5 minutes"),
    ]
    .into_iter()
    .zip([230.0, 390.0, 500.0])
    .map(|((class, text), at)| {
        format!(
            "<path class=\"{class}\" d=\"M{at} 20h28\"/><text x=\"{}\" y=\"24\">{text}</text>\n",
            at + 34.0
        )
    })
    .collect()
}

fn picture(without: &Day, day: &Day) -> String {
    let most_kw = without.power_w.iter().copied().fold(0.0, f64::max) / 1e3;
    let range_kw = ((most_kw * 0.6 / 50.0).floor() * 50.0, (most_kw / 50.0).ceil() * 50.0);
    let style = "text{font:12px sans-serif;fill:#333}polyline,path{fill:none}\
        .grid{stroke:#8885}.without{stroke:#888;stroke-dasharray:3 3}\
        .budget{stroke:#d6532a;stroke-width:2}.power{stroke:#2a7fd6;stroke-width:1.5}\
        .price{fill:#8a8f98}\
        @media(prefers-color-scheme:dark){text{fill:#ddd}\
        .budget{stroke:#ff8a5c}.power{stroke:#6db3ff}}";
    [
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 800 440\" width=\"800\" height=\"440\" \
         role=\"img\">\n<title>Power of a day under a budget that follows the price</title>\n",
        &format!("<style>{style}</style>\n"),
        &format!("<text x=\"{LEFT}\" y=\"24\">kW</text>\n"),
        &legend(),
        &axis(POWER, range_kw, 50.0),
        &line("without", range_kw, &without.power_w),
        &line("budget", range_kw, &day.budget_w),
        &line("power", range_kw, &day.power_w),
        &format!("<text x=\"{LEFT}\" y=\"318\">€ for a MWh</text>\n"),
        &axis(PRICE, (0.0, 200.0), 100.0),
        &prices(),
        &hours(),
        "</svg>\n",
    ]
    .concat()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ticks = ((BEFORE_S + DAY_S) / TICK_S) as u32;
    let without = run(&vec![1e12; ticks as usize])?;
    let series = Series::from_csv(&file(without.outcome.mean_w))?;
    let mut ramped = Ramped::new(Ramp { up_w_per_s: RAMP_W_PER_S, down_w_per_s: RAMP_W_PER_S });
    let at_s = |tick| f64::from(tick) * TICK_S - BEFORE_S + DAY_S;
    let budget_w: Vec<f64> = (0..ticks).map(|tick| ramped.next(&series, at_s(tick))).collect();
    let day = run(&budget_w)?;
    let Outcome { progress, optimum, above_s, longest_s, slowest_step_s, energy_kwh, .. } =
        day.outcome;
    eprintln!(
        "{:.2} % of the progress that perfect knowledge could have had; {energy_kwh:.0} kWh, without a \
         budget {:.0} kWh; above the budget for {above_s:.0} s, {longest_s:.0} s in a row; the slowest \
         step takes {slowest_step_s:.0} s",
        100.0 * progress / optimum,
        without.outcome.energy_kwh
    );
    print!("{}", picture(&without, &day));
    Ok(())
}
