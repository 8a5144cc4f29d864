//! A real Prometheus scrapes a node, and takes the board and the alert rules.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};

use pfo_tests::metrics_node::{MetricsNode, free_address, samples};
use pfo_tests::process::Process;
use pfo_tests::{Identity, STAGES, Setup, say_skipped};
use serde_json::Value;

const BOARD: &str = include_str!("../../packaging/grafana/pfo.json");
const RULES: &str = include_str!("../../packaging/prometheus/pfo.rules.yml");
const TESTS_OF_RULES: &str = include_str!("rules.test.yml");
const PAGE: &str = include_str!("../../docs/metrics.md");

/// Whether Prometheus is installed; says so if not.
fn has_prometheus() -> bool {
    let runs = |program| Command::new(program).arg("--version").output().is_ok();
    let has = runs("prometheus") && runs("promtool");
    if !has {
        say_skipped("prometheus or promtool is not installed; `make setup` installs them");
    }
    has
}

fn promtool(arguments: &[&str], input: &str) -> String {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let said =
        [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
    assert!(output.status.success(), "promtool {arguments:?}: {}\n{input}", said.concat());
    said.concat()
}

/// A Prometheus that scrapes a node.
struct Prometheus {
    address: SocketAddr,
    process: Process,
}

impl Prometheus {
    fn start(served: &MetricsNode) -> Self {
        let directory = served.node.directory();
        let (config, data) = (directory.join("prometheus.yml"), directory.join("prometheus"));
        fs::write(directory.join("pfo.rules.yml"), RULES).unwrap();
        let target = served.address;
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
             rule_files: [pfo.rules.yml]\n\
             scrape_configs: [{{job_name: pfo, static_configs: [{{targets: ['{target}']}}]}}]\n"
        );
        fs::write(&config, text).unwrap();
        let address = free_address();
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", data.display()))
            .arg(format!("--web.listen-address={address}"));
        let process = Process::start("prometheus", directory, &mut command);
        let prometheus = Self { address, process };
        served.node.until("Prometheus has scraped", || {
            let scrapes =
                prometheus.query("count_over_time(pfo_rank_instructions_total[1m]) >= 4")?;
            if scrapes.len() == STAGES as usize { Ok(()) } else { Err(format!("{scrapes:?}")) }
        });
        prometheus
    }

    fn get(&self, path: &str) -> Result<Value, String> {
        let mut stream = TcpStream::connect(self.address).map_err(|error| error.to_string())?;
        // Version 1.0 has no chunks.
        let request = format!("GET {path} HTTP/1.0\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
        let body = answer.split_once("\r\n\r\n").ok_or(&answer)?.1;
        let answer: Value =
            serde_json::from_str(body).map_err(|error| format!("{error}: {body}"))?;
        if answer["status"] != "success" {
            return Err(format!("{path}: {answer}"));
        }
        Ok(answer["data"].clone())
    }

    /// What a query returns.
    fn query(&self, query: &str) -> Result<Vec<Value>, String> {
        let escape = |byte: u8| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(byte).to_string(),
            _ => format!("%{byte:02X}"),
        };
        let query: String = query.bytes().map(escape).collect();
        let data = self.get(&format!("/api/v1/query?query={query}"))?;
        Ok(data["result"].as_array().unwrap().clone())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.process.kill();
    }
}

/// The panels of the board by their titles, each with its queries, whose variables are as they are when it is
/// opened.
fn panels_of_board() -> Vec<(String, Vec<String>)> {
    let board: Value = serde_json::from_str(BOARD).unwrap();
    let query = |target: &Value| {
        let query = target["expr"].as_str().unwrap();
        let query = query.replace("$instance", ".*").replace("$pfo_job", ".*");
        query.replace("$__rate_interval", "1m").replace("$__range", "1m")
    };
    let queries = |panel: &Value| panel["targets"].as_array().unwrap().iter().map(query).collect();
    let panels = board["panels"].as_array().unwrap().iter();
    panels.map(|panel| (panel["title"].as_str().unwrap().to_owned(), queries(panel))).collect()
}

fn queries_of_board() -> Vec<String> {
    panels_of_board().into_iter().flat_map(|(_, queries)| queries).collect()
}

fn queries_of_rules() -> Vec<String> {
    let queries = RULES.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    queries.map(str::to_owned).collect()
}

/// The names of series in a text.
fn names_in(text: &str) -> Vec<&str> {
    let words = text.split(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'));
    words.filter(|word| word.starts_with("pfo_") && *word != "pfo_job").collect()
}

#[test]
fn promtool_finds_nothing_wrong_with_the_metrics() {
    if !has_prometheus() {
        return;
    }
    let served = MetricsNode::start();
    let training = served.train();
    assert_eq!(promtool(&["check", "metrics"], &served.page()), "");
    training.stop();
    // The file has the same.
    assert_eq!(
        promtool(&["check", "metrics"], &fs::read_to_string(served.textfile()).unwrap()),
        ""
    );
}

#[test]
fn every_alert_is_raised_where_everything_is_wrong_and_none_where_nothing_is() {
    if !has_prometheus() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let [rules, tests] =
        ["pfo.rules.yml", "rules.test.yml"].map(|name| directory.path().join(name));
    fs::write(&rules, RULES).unwrap();
    fs::write(&tests, TESTS_OF_RULES).unwrap();
    promtool(&["check", "rules", rules.to_str().unwrap()], "");
    promtool(&["test", "rules", tests.to_str().unwrap()], "");
}

#[test]
fn prometheus_scrapes_the_agent_and_answers_the_queries_of_the_board_and_of_the_rules() {
    if !has_prometheus() {
        return;
    }
    let served = MetricsNode::start();
    let training = served.train();
    let _ = served.node.pfoctl(&Identity::administrator(), &["budget", "set", "100kW"]).printed();
    served.node.until("the page has the budget", || {
        let page = served.page();
        let has = ["pfo_budget_watts{", "pfo_budget_drawn_watts{"].map(|name| page.contains(name));
        if has == [true; 2] { Ok(()) } else { Err(page) }
    });
    let prometheus = Prometheus::start(&served);
    let targets = prometheus.get("/api/v1/targets").unwrap();
    let target = &targets["activeTargets"][0];
    assert_eq!((&target["health"], &target["lastError"]), (&"up".into(), &"".into()));
    let page = served.page();
    let is_present = |name: &&str| {
        page.lines()
            .any(|line| line.strip_prefix(*name).is_some_and(|rest| rest.starts_with(['{', ' '])))
    };
    let mut with_data = 0;
    for query in queries_of_board() {
        let result = prometheus.query(&query).unwrap();
        let names = names_in(&query);
        assert!(!names.is_empty(), "{query}");
        if names.iter().all(is_present) {
            assert!(!result.is_empty(), "{query} of the board returns nothing");
            with_data += 1;
        }
    }
    assert!(with_data >= 17, "only {with_data} queries of the board have data");
    for query in queries_of_rules() {
        let result = prometheus.query(&query).unwrap();
        assert!(result.is_empty(), "nothing is wrong here, but {query} says {result:?}");
    }
    let groups = prometheus.get("/api/v1/rules").unwrap()["groups"].clone();
    let rules = groups[0]["rules"].as_array().unwrap();
    assert_eq!(rules.len(), queries_of_rules().len());
    assert!(rules.iter().all(|rule| rule["health"] != "err"), "{rules:?}");
    // What is wrong is noticed, and the series of a job go with it.
    training.stop();
    served.node.until("the job's series end", || {
        let left = prometheus.query("{__name__=~\"pfo_job_.*|pfo_rank_.*\"}")?;
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    let MetricsNode { mut node, .. } = served;
    node.kill_daemon();
    node.until("the daemon is seen to be away", || {
        let away = prometheus.query("pfo_daemon_up == 0")?;
        if away.len() == 1 { Ok(()) } else { Err(format!("{away:?}")) }
    });
}

/// Panels about what a job that saves on one node, without a budget to keep to, does not have.
const OF_OTHERS: [&str; 6] = [
    "Drift from the prediction",
    "Throttled, share of the time",
    "Ranks that are slow",
    "Nodes late, and store away",
    "Power given up for a budget",
    "Speed given up for a budget",
];

#[test]
fn every_panel_of_the_board_has_data_of_a_job_that_saves() {
    if !has_prometheus() {
        return;
    }
    // Comparisons may follow one another as they like.
    let agent_rules = "[guard]\ndefault_steps_permille = 1000\n\
                       [ledger]\nprice_per_kwh = 0.3\ncurrency = \"EUR\"\n";
    let served = MetricsNode::start_with(&Setup { agent_rules, ..Setup::default() });
    let training = served.train();
    let guard = ["plan", "guard", MetricsNode::JOB, "300%"];
    let _ = served.node.pfoctl(&Identity::own(), &guard).printed();
    let _ = served.node.pfoctl(&Identity::administrator(), &["budget", "set", "100kW"]).printed();
    let prometheus = Prometheus::start(&served);
    let panels = panels_of_board();
    let (_, savings) = panels.iter().find(|(title, _)| title.starts_with("Saved by")).unwrap();
    let bounds =
        served.node.until("the panel has the saving and both ends of its interval", || {
            let result = prometheus.query(&savings[0])?;
            if result.len() == 3 { Ok(result) } else { Err(format!("{result:?}")) }
        });
    let bound = |name: &str| {
        let found = bounds.iter().find(|series| series["metric"]["bound"] == name).unwrap();
        found["value"][1].as_str().unwrap().parse::<f64>().unwrap()
    };
    let [low, estimate, high] = ["low", "estimate", "high"].map(bound);
    assert!(low <= estimate && estimate <= high, "{bounds:?}");
    served.node.until("every panel has data", || {
        let has_data = |query: &String| prometheus.query(query).map(|result| !result.is_empty());
        for (title, queries) in &panels {
            let has = queries.iter().map(has_data).collect::<Result<Vec<_>, _>>()?;
            if !has.contains(&true) && !OF_OTHERS.contains(&title.as_str()) {
                return Err(format!("{title}: {queries:?}"));
            }
        }
        Ok(())
    });
    training.stop();
}

#[test]
fn every_series_that_is_served_or_asked_for_is_on_the_page_of_the_documents() {
    let served = MetricsNode::start();
    let training = served.train();
    let page = served.page();
    training.stop();
    let queries = [queries_of_board(), queries_of_rules()].concat();
    let asked = queries.iter().flat_map(|query| names_in(query)).map(str::to_owned);
    let name = |series: &String| series.split('{').next().unwrap().to_owned();
    for name in samples(&page).keys().map(name).chain(asked) {
        assert!(PAGE.contains(&format!("\n| `{name}` |")), "{name} is not in docs/metrics.md");
    }
}
