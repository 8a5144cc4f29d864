//! Metrics: the figures, the ways to get them, and what becomes of them when a daemon dies.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use nix::sys::signal::Signal;
use pfo_tests::metrics_node::{MetricsNode, ask, samples};
use pfo_tests::{Identity, Node, STAGES, Setup, programs};

const OPENMETRICS: &str = "Accept: application/openmetrics-text;version=1.0.0\r\n";

/// The energy of the job so far, GPU by GPU.
fn energies_j(served: &MetricsNode) -> BTreeMap<String, f64> {
    let name = "pfo_job_energy_joules_total";
    samples(&served.page()).into_iter().filter(|(series, _)| series.starts_with(name)).collect()
}

/// What was saved so far, as sums.
fn sums(served: &MetricsNode) -> BTreeMap<String, f64> {
    const NAMES: [&str; 6] = [
        "pfo_compared_joules_total",
        "pfo_saved_joules_total",
        "pfo_lost_joules_total",
        "pfo_saved_variance_total",
        "pfo_slower_seconds_total",
        "pfo_faster_seconds_total",
    ];
    let is_sum = |series: &str| NAMES.iter().any(|name| series.starts_with(name));
    samples(&served.page()).into_iter().filter(|(series, _)| is_sum(series)).collect()
}

#[test]
fn what_was_saved_is_in_sums_that_outlive_the_job_and_every_daemon() {
    // Comparisons may follow one another as they like.
    let agent_rules = "[guard]\ndefault_steps_permille = 1000\n";
    let mut served = MetricsNode::start_with(&Setup { agent_rules, ..Setup::default() });
    let training = served.train();
    let guard = |limit: &str| {
        let guard = ["plan", "guard", MetricsNode::JOB, limit];
        let _ = served.node.pfoctl(&Identity::own(), &guard).printed();
    };
    served.node.until("the sums begin at 0", || {
        let sums = sums(&served);
        let begun = sums.len() == 6 && sums.values().all(|sum| *sum == 0.0);
        if begun { Ok(()) } else { Err(format!("{sums:?}")) }
    });
    guard("300%");
    served.node.until("the plan was compared twice", || {
        let savings = served.node.pfoctl(&Identity::own(), &["savings", "--json"]).json();
        let comparisons = savings["total"]["comparisons"].as_u64();
        if comparisons >= Some(2) { Ok(()) } else { Err(savings.to_string()) }
    });
    guard("--off");
    training.stop();
    let uid = served.node.pfoctl(&Identity::own(), &["savings", "--by", "user", "--json"]).json();
    let uid = uid["rows"][0]["uid"].clone();
    let compared = format!("pfo_compared_joules_total{{uid=\"{uid}\",partition=\"\"}}");
    served.node.until("all that was measured is booked", || {
        let savings = served.node.pfoctl(&Identity::own(), &["savings", "--json"]).json();
        let measured_j = savings["total"]["compared_j"].as_f64().unwrap();
        let booked_j = sums(&served).get(&compared).copied().unwrap_or_default();
        let is_all = booked_j > 0.0 && (booked_j / measured_j - 1.0).abs() < 1e-9;
        if is_all { Ok(()) } else { Err(format!("{booked_j} of {measured_j} J")) }
    });
    let before = sums(&served);
    for end in [Node::kill_agent, Node::stop_agent] {
        end(&mut served.node);
        served.start_agent();
        served.node.until_is("the sums", &before, || sums(&served));
    }
    served.node.kill_daemon();
    served.node.start_daemon();
    served.node.until_is("the sums", &before, || sums(&served));
}

#[test]
fn figures_are_those_of_the_status() {
    let served = MetricsNode::start();
    let training = served.train();
    let (page, status) = (samples(&served.page()), served.node.status());
    let job = status.jobs.iter().find(|job| job.job.as_str() == MetricsNode::JOB).unwrap();
    let of_job = format!("pfo_job=\"{}\",uid=\"{}\"", job.job, job.uid);
    assert_eq!(page[&format!("pfo_job_ranks{{{of_job}}}")], f64::from(STAGES));
    let plan = job.plan.as_ref().unwrap();
    assert_eq!(page[&format!("pfo_job_plan{{{of_job}}}")], f64::from(plan.number));
    for rank in &job.ranks {
        let gpu = &rank.gpu_uuid;
        assert_eq!(page[&format!("pfo_gpu_leased{{gpu_uuid=\"{gpu}\"}}")], 1.0);
        let clock_hz = page[&format!("pfo_gpu_requested_clock_hertz{{gpu_uuid=\"{gpu}\"}}")];
        assert!(
            MetricsNode::CLOCKS_MHZ.iter().any(|mhz| f64::from(*mhz) * 1e6 == clock_hz),
            "{clock_hz}"
        );
        let instructions = page[&format!("pfo_rank_instructions_total{{gpu_uuid=\"{gpu}\"}}")];
        assert!(instructions > 0.0 && instructions <= rank.instructions as f64);
        let (number, stage) = (rank.rank, rank.stage);
        let of_rank = format!("gpu_uuid=\"{gpu}\",rank=\"{number}\",stage=\"{stage}\"");
        assert_eq!(page[&format!("pfo_job_info{{{of_job},{of_rank}}}")], 1.0);
    }
    training.stop();
}

#[test]
fn a_kill_of_the_agent_counts_no_joule_twice_and_loses_none() {
    let mut served = MetricsNode::start();
    let training = served.train();
    let before = energies_j(&served);
    assert_eq!(before.len(), STAGES as usize);
    for _ in 0..3 {
        served.node.kill_agent();
        served.start_agent();
    }
    let after = energies_j(&served);
    let now = served.node.job(MetricsNode::JOB);
    for rank in &now.ranks {
        let (series, before_j) =
            before.iter().find(|(series, _)| series.contains(rank.gpu_uuid.as_str())).unwrap();
        let (after_j, now_j) = (after[series], rank.energy_j.unwrap());
        assert!(
            *before_j > 0.0 && *before_j <= after_j,
            "{series}: {before_j} J, then {after_j} J"
        );
        assert!(after_j <= now_j, "{series}: {after_j} J, and pfod has counted {now_j} J");
    }
    training.stop();
}

#[test]
fn the_file_for_the_node_exporter_has_the_same_and_goes_with_the_agent() {
    let mut served = MetricsNode::start();
    let path = served.textfile();
    served.node.until("the file is written", || {
        let text = fs::read_to_string(&path).map_err(|error| error.to_string())?;
        if text.contains("\npfo_daemon_up 1") { Ok(()) } else { Err(text) }
    });
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o644);
    served.node.stop_agent();
    assert!(!path.exists(), "it would be true for ever");
}

#[test]
fn the_socket_is_for_its_group_and_speaks_both_formats() {
    let served = MetricsNode::start();
    let path = served.node.directory().join("metrics.sock");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
    let connect = || served.connect_to_socket();
    let classic = ask(connect(), "GET /metrics", "").unwrap();
    assert!(classic.contains("\r\ncontent-type: text/plain; version=0.0.4;"), "{classic}");
    let openmetrics = ask(connect(), "GET /metrics", OPENMETRICS).unwrap();
    assert!(
        openmetrics.contains("\r\ncontent-type: application/openmetrics-text;"),
        "{openmetrics}"
    );
    assert!(openmetrics.ends_with("\n# EOF\n"), "{openmetrics}");
    for (what, expected) in [("GET /", "404 "), ("POST /metrics", "405 "), ("DELETE /x", "405 ")] {
        let answer = ask(connect(), what, "").unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {expected}")), "{what}: {answer}");
    }
    let head = ask(connect(), "HEAD /metrics", "").unwrap();
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
}

#[test]
fn without_a_word_in_the_configuration_nothing_listens() {
    let node = Node::start();
    let pid = node.agent.as_ref().unwrap().process.pid();
    let sockets = |protocol: &str| {
        let listed = fs::read_to_string(format!("/proc/{pid}/net/{protocol}")).unwrap();
        listed.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let own: Vec<_> = descriptors
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter_map(|link| {
            Some(link.to_str()?.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
        })
        .collect();
    for line in [sockets("tcp"), sockets("tcp6")].concat() {
        let inode = line.split_whitespace().nth(9).unwrap();
        assert!(!own.iter().any(|own| own == inode), "{line}");
    }
}

#[test]
fn pfod_that_hangs_is_reported_as_away_in_time_for_the_scrape() {
    let mut served = MetricsNode::start();
    let daemon = served.node.daemon();
    daemon.process.signal(Signal::SIGSTOP);
    // A page that was made before may be served for a second.
    served.until_page_has("pfo_daemon_up 0.0");
    let page = served.page();
    served.node.daemon().process.signal(Signal::SIGCONT);
    assert!(!page.contains("pfo_gpu_"), "{page}");
    served.until_page_has("pfo_daemon_up 1.0");
}

#[test]
fn an_address_in_use_is_reported_and_the_agent_serves() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut node = Node::create(&Setup::default());
    let mut config = File::options().append(true).open(node.agent_config()).unwrap();
    let address = taken.local_addr().unwrap();
    writeln!(config, "[metrics]\nlisten = \"{address}\"").unwrap();
    drop(config);
    node.start_daemon();
    node.start_agent();
    node.until("the address is reported", || {
        let log = node.agent_log();
        let said = log.contains(&format!("cannot serve metrics on {address}: "))
            && log.contains("[metrics] in pfo-agent.toml(5)");
        if said { Ok(()) } else { Err(log) }
    });
    assert!(node.agent_status().pfod_problem.is_none());
    drop(taken);
    node.until("it is served when the address is free", || {
        TcpStream::connect(address).map(drop).map_err(|error| error.to_string())
    });
}

#[test]
fn a_wrong_address_is_an_error_with_its_place() {
    let node = Node::create(&Setup::without_agent());
    let config = node.agent_config();
    let text = fs::read_to_string(&config).unwrap();
    let line = text.lines().count() + 2;
    fs::write(&config, format!("{text}[metrics]\nlisten = 'node:1'\n")).unwrap();
    let mut command = Command::new(programs::program("pfo-agent"));
    let output = command.arg("--check-config").arg("--config").arg(&config).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let place =
        format!("agent.toml, line {line}, column 10: \"node:1\" is no address: give IP:PORT");
    assert!(output.status.code() == Some(78) && said.contains(&place), "{said}");
}
