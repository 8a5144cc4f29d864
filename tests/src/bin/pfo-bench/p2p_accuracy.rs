//! How near measured P2P-blocking powers come to what the simulated GPUs draw.

use nvidia_ml::model::GpuModel;
use pfo_tests::{Identity, MachineSetup, Node, Setup, Training, programs::program_for_all};

use crate::Result;
use crate::extent::Extent;
use crate::report::{Cell, Report};

const JOB: &str = "bench-p2p";

/// Measures two GPUs that wait for each other, and the waits of a job whose steps are short.
pub(crate) fn measure(extent: Extent, report: &mut Report) -> Result<()> {
    let machine = MachineSetup {
        gpus: "4xA100",
        set_latency_ms: 8,
        settle_ms: 15,
        ..MachineSetup::default()
    };
    let node = Node::start_with(&Setup { machine, ..Setup::default() });
    let user = Identity::trainer();
    let trainer = program_for_all("pfo-sim-trainer", node.directory());
    let helper = format!("{} p2p --state {}", trainer.display(), node.machine.state().display());
    let receive = ["p2p", "measure", "--helper", &helper, "--steps", "2", "--json"];
    let measured = Measured { node: &node, user: &user, times: extent.of(3, 1) };
    let receive = measured.row("blocking receive", &receive)?;
    let training = Training::start(&node, JOB, &user, &["--time-scale", "0.05"]);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let waits = measured.row("waits of a job", &["p2p", "measure", "--job", JOB, "--json"])?;
    training.stop();
    report.table(
        "p2p_accuracy",
        "How far measured P2P-blocking powers are from the true one (aim: 1 %)",
        &[
            ("way", "way"),
            ("powers", "powers"),
            ("median_percent", "off % p50"),
            ("worst_percent", "worst"),
        ],
        &[receive, waits],
    );
    Ok(())
}

/// Who measures, and how often each way.
struct Measured<'n> {
    node: &'n Node,
    user: &'n Identity,
    times: usize,
}

impl Measured<'_> {
    fn row(&self, way: &str, arguments: &[&str]) -> Result<Vec<Cell>> {
        let truth_w = GpuModel::A100.facts().p2p_blocking_w;
        let mut off = Vec::new();
        for _ in 0..self.times {
            let kept = self.node.pfoctl(self.user, arguments).json();
            let powers_w = kept.as_array().into_iter().flatten();
            let powers_w = powers_w.filter_map(|power| power["power_w"].as_f64());
            off.extend(powers_w.map(|power_w| (power_w / truth_w - 1.0).abs()));
        }
        off.sort_by(f64::total_cmp);
        let worst = off.last().ok_or("no power was kept")?;
        Ok(vec![
            Cell::text(way),
            Cell::count(off.len() as u64),
            Cell::Figure(100.0 * off[off.len() / 2], 2),
            Cell::Figure(100.0 * worst, 2),
        ])
    }
}
