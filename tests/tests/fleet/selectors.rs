//! Budgets of a partition, a user and a job in the fleet, which take from nobody else; and an emergency, which
//! takes from all.

use std::collections::BTreeSet;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use pfo_tests::{Identity, Node, Training, needs_root, wait};

use super::budgets::{
    AT, LOCAL, ROOM, SITES_W, admin, beside_the_whole, drawn_w, is_slowed, label, limited, setup,
    status, until_below, until_said_alike,
};
use super::cluster::{JOB, NODES, PATIENCE};
use super::staged::{Staged, TIME_SCALE};

/// The jobs of another user: one GPU each, on two nodes.
const THEIRS: [(usize, &str); 2] = [(2, "theirs-c"), (3, "theirs-d")];

/// The site's share of a GPU, in watts.
const SITE_W: f64 = 10.0;

/// Everything that runs: the training over all nodes, that of one, and those of another user.
struct Running {
    staged: Staged,
    local: Training,
    theirs: Vec<Training>,
}

impl Running {
    fn start() -> Option<Self> {
        let staged = Staged::start_with(setup)?;
        let nodes = &staged.nodes;
        let local = beside_the_whole(nodes);
        let one = ["--time-scale", TIME_SCALE, "--gpus", "0", "--stages", "1"];
        let start = |(at, job): (usize, &str)| {
            let training = Training::start(&nodes[at], job, &Identity::trainer(), &one);
            nodes[at].until_so("it trains", || {
                let ranks = nodes[at].find_job(job).map(|job| job.ranks).unwrap_or_default();
                ranks.iter().any(|rank| rank.step >= Some(4))
            });
            training
        };
        let theirs = THEIRS.map(start).into();
        Some(Self { staged, local, theirs })
    }

    fn nodes(&self) -> &[Node] {
        &self.staged.nodes
    }

    /// Which jobs a budget has slowed down.
    fn slowed(&self) -> BTreeSet<&'static str> {
        let single = [(AT, LOCAL)].into_iter().chain(THEIRS);
        let whole = (0..NODES.len()).map(|at| (at, JOB));
        let slowed = single.chain(whole).filter(|(at, job)| is_slowed(&self.nodes()[*at], job));
        slowed.map(|(_, job)| job).collect()
    }

    /// Sets a budget of 0.85 of what these GPUs draw, and waits until they draw less. The site counts.
    fn hold(&self, at: usize, scope: &str, gpus: &[(usize, usize)]) {
        let sites_w = SITE_W * gpus.len() as f64;
        let budget_w = sites_w + 0.85 * self.drawn_w(gpus);
        let set = ["budget", "set", &format!("{budget_w:.0}W"), "--for", scope];
        let _ = admin(&self.nodes()[at], &set);
        let began = Instant::now();
        let below = wait::until_within(PATIENCE, || match sites_w + self.drawn_w(gpus) {
            drawn_w if drawn_w < ROOM * budget_w => Ok(()),
            drawn_w => Err(drawn_w),
        });
        println!("{scope} below {budget_w:.0} W after {:.1} s", began.elapsed().as_secs_f64());
        let all = status(&self.nodes()[at]);
        below.unwrap_or_else(|drawn_w| panic!("{scope}: {drawn_w} W of {budget_w} W: {all}"));
    }

    /// What GPUs draw, by node and number, in watts.
    fn drawn_w(&self, gpus: &[(usize, usize)]) -> f64 {
        let one_j = |(node, gpu): &(usize, usize)| self.nodes()[*node].machine.energy_j(*gpu);
        let counted_j = || gpus.iter().map(one_j).sum::<f64>();
        let (began, before_j) = (Instant::now(), counted_j());
        sleep(Duration::from_secs(4));
        (counted_j() - before_j) / began.elapsed().as_secs_f64()
    }

    /// Waits until some of these jobs are slowed down, or none if there are none, and no other one.
    fn until_slowed(&self, jobs: &[&'static str]) {
        let among: BTreeSet<_> = jobs.iter().copied().collect();
        let is_so = |slowed: &BTreeSet<_>| {
            slowed.is_subset(&among) && slowed.is_empty() == among.is_empty()
        };
        let slowed = wait::until_within(PATIENCE, || match self.slowed() {
            slowed if is_so(&slowed) => Ok(slowed),
            slowed => Err(slowed),
        });
        let slowed = slowed.unwrap_or_else(|slowed| {
            panic!("{slowed:?}, not some of {among:?}: {}", status(&self.nodes()[AT]))
        });
        println!("{slowed:?} of {among:?} are slowed down");
    }

    /// A scheduler says that the job over all nodes is in a partition, or that it has ended.
    fn place(&self, partition: &str) {
        let uid = Identity::own().uid.to_string();
        for (number, node) in self.nodes().iter().enumerate() {
            let gpu = number.to_string();
            let _ = admin(node, &["budget", "partition", partition, "--uid", &uid, "--gpu", &gpu]);
        }
    }

    fn clear(&self, at: usize, scope: &str) {
        let _ = admin(&self.nodes()[at], &["budget", "clear", "--for", scope]);
    }

    fn until_none_is_limited(&self) {
        for node in self.nodes() {
            node.until_is("GPUs with a power limit", &0, || limited(node));
        }
    }

    fn stop(self) {
        self.local.stop();
        self.staged.training.stop();
        self.theirs.into_iter().for_each(|mut training| training.process.kill());
    }

    /// Watches the drivers until a GPU of every node has been limited.
    fn until_all_were_limited(&self) {
        let mut were = [false; NODES.len()];
        let limited = wait::until_within(PATIENCE, || {
            for (was, node) in were.iter_mut().zip(self.nodes()) {
                *was |= limited(node) > 0;
            }
            if were.iter().all(|was| *was) { Ok(()) } else { Err(were) }
        });
        limited.unwrap_or_else(|were| panic!("{were:?}: {}", status(&self.nodes()[AT])));
    }
}

#[test]
fn budgets_of_selectors_take_from_nobody_else_in_the_fleet_and_an_emergency_takes_from_all() {
    needs_root!();
    let Some(running) = Running::start() else { return };
    let full_w = drawn_w(running.nodes(), 3.0);

    running.place("long");
    let whole = [(0, 0), (1, 1), (2, 2), (3, 3)];
    running.hold(3, "fleet/partition:long", &whole);
    running.until_slowed(&[JOB]);
    until_said_alike(running.nodes(), JOB);
    let explained = admin(&running.nodes()[2], &["budget", "explain", JOB]);
    assert!(explained.contains("partition long"), "{explained}");
    running.place("--end");
    running.until_slowed(&[]);
    running.clear(1, "fleet/partition:long");

    let user = format!("fleet/user:{}", Identity::trainer().uid);
    running.hold(1, &user, &THEIRS.map(|(at, _)| (at, 0)));
    let theirs = THEIRS.map(|(_, job)| job);
    running.until_slowed(&theirs);
    let of_job = format!("fleet/job:{LOCAL}");
    running.hold(AT, &of_job, &[(AT, 1), (AT, 2), (AT, 3), (AT, 4)]);
    running.until_slowed(&[LOCAL, theirs[0], theirs[1]]);
    running.clear(AT, &of_job);
    running.clear(2, &user);
    running.until_slowed(&[]);

    let budget_w = SITES_W + 0.8 * (full_w - SITES_W);
    let began = Instant::now();
    let emergency = ["budget", "set", &format!("{budget_w:.0}W"), "--for", "fleet", "--emergency"];
    let _ = admin(&running.nodes()[1], &emergency);
    running.until_all_were_limited();
    println!("power limits on all nodes after {:.2} s", began.elapsed().as_secs_f64());
    running.until_slowed(&[JOB, LOCAL, theirs[0], theirs[1]]);
    running.until_none_is_limited();
    println!("plans alone after {:.2} s", began.elapsed().as_secs_f64());
    until_below(running.nodes(), budget_w);

    let over = ["budget", "set", &format!("{:.0}W", 2.0 * full_w), "--for", "fleet"];
    let _ = admin(&running.nodes()[3], &over);
    running.until_slowed(&[]);
    running.until_none_is_limited();
    for node in running.nodes() {
        node.until_is("default clocks", &None, || label(node, JOB));
    }
    running.stop();
}

#[test]
#[ignore = "measures on a quiet machine: make test-measured"]
fn an_emergency_of_the_fleet_holds_within_a_second() {
    needs_root!();
    let Some(running) = Running::start() else { return };
    let full_w = drawn_w(running.nodes(), 5.0);
    let budget_w = SITES_W + 0.8 * (full_w - SITES_W);
    // It is the first budget of the fleet: no node has said yet what it draws.
    let began = Instant::now();
    let emergency = ["budget", "set", &format!("{budget_w:.0}W"), "--for", "fleet", "--emergency"];
    let took_s = thread::scope(|scope| {
        // The command ends when the driver has confirmed every limit; they are in force before.
        let _ = scope.spawn(|| admin(&running.nodes()[2], &emergency));
        running.until_all_were_limited();
        began.elapsed().as_secs_f64()
    });
    sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
    let first_w = drawn_w(running.nodes(), 2.0);
    println!("power limits after {took_s:.2} s, then {first_w:.0} W of {budget_w:.0} W");
    assert!(took_s < 1.0 && first_w < ROOM * budget_w, "{took_s} s, {first_w} W of {budget_w} W");
    for _ in 0..10 {
        let drawn_w = drawn_w(running.nodes(), 2.0);
        assert!(drawn_w < ROOM * budget_w, "{drawn_w} W of {budget_w} W");
    }
    running.stop();
}
