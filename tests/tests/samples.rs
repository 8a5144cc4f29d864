//! Each instruction of a running job by itself, as a researcher asks for it.

use std::collections::{BTreeMap, BTreeSet};

use nvidia_ml::heat::Cooling;
use nvidia_ml::machine::MachinePlan;
use pfo_protocol::{
    AgentRequest, AgentResponse, Doubt, InstructionSample, Mhz, Rank, RefusalCode, SamplePage,
    TrialRun,
};
use pfo_tests::{
    Client, Identity, MachineSetup, Node, STAGES, Setup, Training,
    control::{after_settling, job},
    honest,
};

const JOB: &str = "job";
const MICROBATCHES: u32 = 4;
const STEPS: u32 = 8;
const CLOCKS: [&str; 2] = ["1200", "900"];

/// NVML's bit for a software power cap.
const SW_POWER_CAP: u64 = 4;

fn start() -> (Node, Training) {
    train_on(Node::start())
}

fn train_on(node: Node) -> (Node, Training) {
    let options = ["--time-scale", "0.3", "--microbatches", &MICROBATCHES.to_string()];
    let training = Training::start(&node, JOB, &Identity::own(), &options);
    training.until_leased(&node);
    training.until_step(&node, 1);
    (node, training)
}

/// The rows of a CSV by their columns.
fn rows(csv: &str) -> Vec<BTreeMap<&str, &str>> {
    let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let header = lines.next().unwrap();
    lines.map(|fields| header.iter().copied().zip(fields).collect()).collect()
}

#[test]
fn every_instruction_of_every_step_is_reported_once_and_makes_a_plan() {
    let (node, training) = start();
    let path = node.directory().join("samples.csv").display().to_string();
    let (steps, clocks) = (STEPS.to_string(), CLOCKS.join(","));
    let arguments =
        ["profile", "samples", JOB, "--mhz", &clocks, "--steps", &steps, "--output", &path];
    let said = node.pfoctl(&Identity::own(), &arguments).printed();
    training.stop();
    let each = STAGES * 2 * MICROBATCHES * STEPS;
    assert!(said.starts_with(&format!("{} instructions measured", 2 * each)), "{said}");

    let csv = std::fs::read_to_string(&path).unwrap();
    let rows = rows(&csv);
    let key = |row: &BTreeMap<&str, &str>| {
        ["frequency", "rank", "step", "instruction", "microbatch"]
            .map(|column| row[column].to_owned())
    };
    let different: BTreeSet<_> = rows.iter().map(key).collect();
    assert_eq!(different.len(), 2 * each as usize);
    let mut ended_ns = BTreeMap::new();
    for row in &rows {
        let ns = |column: &str| row[column].parse::<u64>().unwrap();
        let (began_ns, until_ns) = (ns("begin_ns"), ns("end_ns"));
        let former_ns = ended_ns.insert(row["rank"], until_ns).unwrap_or(0);
        assert!(former_ns <= began_ns && began_ns < until_ns, "{row:?}");
        let time_s: f64 = row["time"].parse().unwrap();
        assert!((time_s - (until_ns - began_ns) as f64 / 1e9).abs() < 1e-9, "{row:?}");
        assert_eq!((row["job"], row["stage"]), (JOB, row["rank"]), "{row:?}");
        assert!(CLOCKS.contains(&row["frequency"]), "{row:?}");
        if row["left_out"].is_empty() {
            let seen_ns = ns("observed_ns");
            let inside = (began_ns..until_ns).contains(&seen_ns);
            assert!(!inside || row["observed_mhz"] == row["frequency"], "{row:?}");
            assert!(row["energy"].parse::<f64>().unwrap() > 0.0, "{row:?}");
        }
        if !row["counter_energy"].is_empty() {
            assert!(row["counter_energy"].parse::<f64>().unwrap() > 0.0, "{row:?}");
        }
    }
    let measured = rows.iter().filter(|row| row["left_out"].is_empty()).count();
    assert!(measured > rows.len() / 2, "{said}");

    let frontier = node.directory().join("frontier").display().to_string();
    let microbatches = MICROBATCHES.to_string();
    let optimize = ["plan", "optimize", &path, "--microbatches", &microbatches];
    let optimize = [&optimize[..], &["--p2p-power", "80", "-o", &frontier]].concat();
    node.pfoctl(&Identity::own(), &optimize).printed();
}

fn next_page(client: &mut Client) -> Option<SamplePage> {
    match client.ask_agent(AgentRequest::Samples(job(JOB))) {
        Ok(AgentResponse::Samples(page)) => page,
        other => panic!("the answer to a request for samples is {other:?}"),
    }
}

#[test]
fn instructions_are_kept_on_request_and_handed_out_once() {
    let (node, training) = start();
    let mut client = node.agent_control();
    let record = |client: &mut Client, samples| {
        client.record(JOB, TrialRun::DefaultClocks, after_settling(1), samples).unwrap();
    };
    record(&mut client, false);
    assert_eq!(next_page(&mut client), None);
    record(&mut client, true);
    let refusal = node.agent_control().ask_agent(AgentRequest::Samples(job(JOB))).unwrap_err();
    assert_eq!(refusal.code, RefusalCode::UnknownJob);
    let pages: Vec<_> = std::iter::from_fn(|| next_page(&mut client)).collect();
    assert!(pages.iter().map(|page| page.rank).eq((0..STAGES).map(Rank)));
    let each = 2 * MICROBATCHES as usize;
    assert!(pages.iter().all(|page| page.samples.len() == each && page.dropped == 0), "{pages:?}");
    assert_eq!(next_page(&mut client), None);
    training.stop();
}

#[test]
fn instructions_of_a_power_capped_gpu_carry_the_reason_and_stay() {
    let (node, training) = start();
    node.machine.limit_power(1, 150.0);
    let mut client = node.agent_control();
    let run = TrialRun::Uniform(Mhz(1740));
    let recorded = client.record(JOB, run, after_settling(2), true).unwrap();
    for page in std::iter::from_fn(|| next_page(&mut client)) {
        let is_capped = |sample: &&InstructionSample| sample.throttle_reasons & SW_POWER_CAP != 0;
        let capped = page.samples.iter().filter(is_capped).count();
        let is_throttled = |sample: &InstructionSample| sample.left_out == Some(Doubt::Throttled);
        assert!(!page.samples.iter().any(is_throttled), "{page:?}");
        let is_held_back = capped > page.samples.len() / 2;
        assert_eq!(
            (is_held_back, capped == 0),
            (page.rank == Rank(1), page.rank != Rank(1)),
            "{page:?}"
        );
    }
    for row in &recorded.ranks[1].rows {
        assert!(row.observed_mhz.is_none_or(|mhz| mhz < 1700.0), "{row:?}");
    }
    training.stop();
}

/// Lets the GPUs of a machine overheat, and asks for the reason of each instruction.
fn heat_is_seen(made: fn(MachinePlan) -> MachinePlan) {
    let machine = MachineSetup { gpus: "4xB200", made, ..MachineSetup::default() };
    let (node, training) = train_on(Node::start_with(&Setup { machine, ..Setup::default() }));
    let mut client = node.agent_control();
    // A GPU that has to wait for its trainer cools down.
    node.until("most instructions of every rank are left out for heat", || {
        client.record(JOB, TrialRun::DefaultClocks, after_settling(2), true).unwrap();
        let pages: Vec<_> = std::iter::from_fn(|| next_page(&mut client)).collect();
        let is_throttled = |sample: &&InstructionSample| sample.left_out == Some(Doubt::Throttled);
        let throttled = |page: &SamplePage| {
            2 * page.samples.iter().filter(is_throttled).count() > page.samples.len()
        };
        if pages.iter().all(throttled) { Ok(()) } else { Err(format!("{pages:?}")) }
    });
    training.stop();
}

fn overheated(plan: MachinePlan) -> MachinePlan {
    MachinePlan { cooling: Cooling::Failed, warm: true, ..honest(plan) }
}

#[test]
fn instructions_of_an_overheated_gpu_are_left_out_with_a_current_driver() {
    heat_is_seen(|plan| MachinePlan { driver: "580.95.05".parse().unwrap(), ..overheated(plan) });
}

#[test]
fn instructions_of_an_overheated_gpu_are_left_out_with_a_driver_that_numbers_fields_as_before() {
    heat_is_seen(|plan| MachinePlan { driver: "570.86.15".parse().unwrap(), ..overheated(plan) });
}
