//! What the targets start from: of every kind at least one input that is right, made by the code
//! that writes it, so that it never grows old.

use pfo_planner::{Frontier, Options, Pipeline, Profile, Schedule, Spread, Watts};
use pfo_protocol::{Frame, HEADER_BYTES, Kind};

use crate::kit;
use crate::state::BOOT;

/// A target, and what to start it from.
pub type Target = (&'static str, fn(&[u8]), fn() -> Vec<Vec<u8>>);

/// Every target.
pub const TARGETS: [Target; 18] = [
    ("agent", crate::agent::agent, noise),
    ("agent_config", crate::agent_config::agent_config, agent_config),
    ("config", crate::config::config, config),
    ("daemon", crate::daemon::daemon, noise),
    ("events", crate::events::events, events),
    ("frame", crate::frame::frame, frame),
    ("frontier", crate::frontier::frontier, frontier),
    ("hello", crate::hello::hello, hello),
    ("ledger", crate::ledger::ledger, ledger),
    ("lowtime_plan", crate::lowtime_plan::lowtime_plan, lowtime_plan),
    ("message", crate::message::message, message),
    ("order", crate::order::order, order),
    ("plan", crate::plan::plan, plan),
    ("powers", crate::powers::powers, powers),
    ("state", crate::state::state, state),
    ("sweep", crate::sweep::sweep, sweep),
    ("tap", crate::tap::tap, tap),
    ("terms", crate::terms::terms, terms),
];

const PLAN: &[u8] = include_bytes!("../../planner/tests/golden/plan.json");
const PFOD_TOML: &str = include_str!("../../daemon/pfod.toml");
const AGENT_TOML: &str = include_str!("../../agent/agent.toml");
const LOWTIME: [&[u8]; 2] = [
    include_bytes!("../../planner/tests/golden/freqs_pipeline_clocks.py"),
    include_bytes!("../../planner/tests/golden/freqs_pipeline_named.py"),
];

const PROFILE: &str = "stage,instruction,frequency,time,energy
0,forward,900,0.10,10\n0,forward,1200,0.08,12\n0,backward,900,0.20,20\n0,backward,1200,0.16,24
1,forward,900,0.11,11\n1,forward,1200,0.09,13\n1,backward,900,0.22,22\n1,backward,1200,0.18,26\n";

const ORDER: &str = r#"{"format": "pfo-order/1", "placement": "two-way", "transfer_time_s": 0.002,
    "dependencies": [{"of": {"stage": 0, "instruction": "forward", "microbatch": 1, "chunk": 1},
    "after": []}], "stages": [[
    {"instruction": "forward", "microbatch": 0}, {"instruction": "forward", "microbatch": 1, "chunk": 1},
    {"instruction": "forward_backward", "microbatch": 0, "forward": {"microbatch": 2}},
    {"instruction": "backward", "microbatch": 1, "chunk": 1},
    {"instruction": "backward", "microbatch": 2}]]}"#;

const LEDGER: &str = r#"{"format": "pfo-ledger/1", "boot_id": "b", "entries": [{"gpu_uuid": "GPU-1",
    "sm": true, "memory": false, "restore_to_mhz": [210, 1200], "job": "j", "uid": 7, "pid": 8,
    "session": 9}]}"#;

const REVOCATIONS: &str = r#"{"format": "pfo-revocations/1", "boot_id": "b", "revocations": [{"uid": 7,
    "job": "j", "gpu_uuid": "GPU-1", "by_uid": 0, "since_unix_s": 1763740800, "processes": [
    {"pid": 1, "started": 0}, {"pid": 8, "started": 14808702}]}]}"#;

const JOB: &str = r#"{"format": "pfo-job/1", "boot_id": "b", "job": {"uid": 7, "job": "team/j",
    "pp_degree": 1, "left_ns": 12, "swaps": [{"number": 1, "step": 0, "complete": true,
    "plan": null}, {"number": 2, "step": 5, "complete": false, "plan": {"status": {"number": 1,
    "label": "p.json", "predicted_time_s": 1.5, "predicted_energy_j": null, "suspended": null},
    "num_microbatches": 1, "stages": [[["Forward", 0, 0, 900], ["Backward", 0, 0, 1200]]]}}]}}"#;

const POWERS: &str = r#"{"format": "pfo-p2p/1", "powers": [{"model": "NVIDIA A100", "gpu_uuid": "GPU-1",
    "mhz": 1410, "power_w": 83.64, "error_w": 0.5, "count": 9, "source": "waits", "by_uid": 7,
    "since_unix_s": 1763740800}]}"#;

const SWEEP: &str = r#"{"format": "pfo-sweep/1", "sweep": {"uid": 7, "job": "team/j", "by_uid": 7,
    "model": "gpt", "settings": {"steps": 4, "settling_steps": 1, "stride_mhz": 1, "min_mhz": 0,
    "max_slowdown": 0.1}, "shape": {"pp_degree": 2, "dp_degree": 1, "tp_degree": 1,
    "num_microbatches": 8, "ranks": [[0, "NVIDIA A100"], [1, "NVIDIA A100"]]}, "clocks": [1400, 1390],
    "pause": {"why": "asked to"}, "attended": false, "default_step_s": 1.0, "measured": [{"mhz": 1400,
    "step_s": 1.0, "rows": [{"stage": 0, "rank": 0, "dp_rank": 0, "tp_rank": 0, "instruction":
    "Forward", "chunk": 0, "count": 4, "time_s": 0.5, "time_sd_s": 0.01, "energy_j": 9.0,
    "energy_sd_j": 0.5}]}], "repeats": 0}}"#;

/// Anything, where all bytes are choices.
fn noise() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(1);
    (0..64).map(|_| (0..random.usize(64..1024)).map(|_| random.u8(..)).collect()).collect()
}

fn frame() -> Vec<Vec<u8>> {
    let mut seeds: Vec<_> = kit::frames().into_iter().map(|frame| frame.bytes).collect();
    seeds.push(kit::session().concat());
    seeds
}

/// The number of its kind among all, and the payload.
fn message() -> Vec<Vec<u8>> {
    let seed = |frame: kit::Recorded| {
        let read = Frame::first_of(&frame.bytes).ok()??;
        let number = Kind::ALL.iter().position(|kind| *kind == read.kind)?;
        Some([&[number as u8], read.payload].concat())
    };
    kit::frames().into_iter().filter_map(seed).collect()
}

fn payloads(starts_with: &str) -> Vec<Vec<u8>> {
    let frames = kit::frames().into_iter().filter(|frame| frame.name.starts_with(starts_with));
    frames.map(|frame| frame.bytes[HEADER_BYTES..].to_vec()).collect()
}

fn hello() -> Vec<Vec<u8>> {
    let hellos: Vec<_> = payloads("hello")
        .into_iter()
        .filter_map(|payload| Some([&[u8::try_from(payload.len()).ok()?], &payload[..]].concat()))
        .collect();
    let twice = [hellos.concat(), hellos.concat()].concat();
    [hellos, vec![twice]].concat()
}

fn events() -> Vec<Vec<u8>> {
    vec![kit::session().concat()]
}

fn tap() -> Vec<Vec<u8>> {
    payloads("tap-batch")
}

fn plan() -> Vec<Vec<u8>> {
    vec![PLAN.to_vec()]
}

/// Of a V with instructions of two, with what may be beside the stages.
fn terms() -> Vec<Vec<u8>> {
    let given = br#"{"policy": "zeus-global", "schedule": "gpipe", "noise": "factor=5%",
        "p2p_power_w": [83.6, 70.4], "fixed": ["load"], "sweep_max_slowdown": 0.1}"#;
    vec![pfo_experiment::Terms::default().to_json().expect("terms"), given.to_vec()]
}

fn order() -> Vec<Vec<u8>> {
    vec![ORDER.as_bytes().to_vec()]
}

fn lowtime_plan() -> Vec<Vec<u8>> {
    let kareus =
        b"[\n[(('forward', '0-8-27-1024', 'm'), ('backward', '', 'none-none-16-1024'))],\n]\n";
    LOWTIME.map(<[u8]>::to_vec).into_iter().chain([kareus.to_vec()]).collect()
}

pub(crate) fn frontier() -> Vec<Vec<u8>> {
    let profile = Profile::from_csv(PROFILE.as_bytes()).unwrap();
    let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 2).unwrap();
    let options = Options { plans: 4, spread: Spread::Even };
    let frontier = Frontier::optimize(&pipeline, Watts(50.0), options, &|_| {}).unwrap();
    vec![frontier.to_bytes().unwrap()]
}

/// A shipped configuration: as it is, with its defaults in force, and with its examples too.
fn shipped(file: &str) -> Vec<Vec<u8>> {
    let in_force = |marks: &[&str]| -> Vec<u8> {
        let bare = |line: &str| {
            let mark = marks.iter().find_map(|mark| line.strip_prefix(mark));
            mark.unwrap_or(line).to_owned() + "\n"
        };
        file.lines().map(bare).collect::<String>().into_bytes()
    };
    vec![file.as_bytes().to_vec(), in_force(&["#: "]), in_force(&["#: ", "#> "])]
}

fn config() -> Vec<Vec<u8>> {
    shipped(PFOD_TOML)
}

fn agent_config() -> Vec<Vec<u8>> {
    shipped(AGENT_TOML)
}

/// A ledger of this boot, whose entries count, and one of another boot.
fn ledger() -> Vec<Vec<u8>> {
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let of_this_boot =
        LEDGER.replace(r#""boot_id": "b""#, &format!("\"boot_id\": {:?}", boot_id.trim()));
    vec![of_this_boot.into_bytes(), LEDGER.as_bytes().to_vec()]
}

fn state() -> Vec<Vec<u8>> {
    [REVOCATIONS, JOB].map(|text| text.replace(r#""b""#, &format!("{BOOT:?}")).into_bytes()).into()
}

fn powers() -> Vec<Vec<u8>> {
    vec![POWERS.as_bytes().to_vec()]
}

fn sweep() -> Vec<Vec<u8>> {
    vec![SWEEP.as_bytes().to_vec()]
}
