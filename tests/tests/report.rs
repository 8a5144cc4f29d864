//! `pfoctl report` in a real browser.

use std::path::{Path, PathBuf};
use std::process::Command;

use pfo_protocol::SavingsReport;
use pfo_tests::{
    Identity, MICROBATCHES, Node, STAGES, Setup, TestPlan, Training, say_skipped, true_frontier,
};

const JOB: &str = "llama-70b";
const SCALE: &str = "0.02";

/// A browser without a screen; says so if there is none. One from a snap has another `/tmp`.
fn has_chromium() -> bool {
    let ran = Command::new("chromium").arg("--version").output();
    let version = ran.map(|ran| String::from_utf8_lossy(&ran.stdout).into_owned());
    let has = version.is_ok_and(|version| !version.trim_end().ends_with("snap"));
    if !has {
        say_skipped("chromium is not installed, or as a snap; `make setup` installs it on Debian");
    }
    has
}

/// Opens a page; returns what the browser logs of it and the size of the picture that it takes.
fn opened(node: &Node, page: &str, name: &str, width: u32, dark: bool) -> (String, u64) {
    let picture: PathBuf = node.directory().join(name).with_extension("png");
    let mut command = Command::new("chromium");
    command
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--enable-logging=stderr", "--v=0", "--hide-scrollbars"])
        .args(["--disable-background-networking", "--host-resolver-rules=MAP * ~NOTFOUND"])
        .arg(format!("--user-data-dir={}", node.directory().join("chromium").display()))
        .arg(format!("--screenshot={}", picture.display()))
        .arg(format!("--window-size={width},2400"));
    if dark {
        command.arg("--blink-settings=preferredColorScheme=0");
    }
    let output = command.arg(format!("file://{page}")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (said, picture.metadata().map_or(0, |file| file.len()))
}

/// Keeps what a person should look at, where `PFO_PICTURES` names a directory.
fn keep(path: &Path) {
    if let Some(directory) = std::env::var_os("PFO_PICTURES") {
        let _ = std::fs::copy(path, Path::new(&directory).join(path.file_name().unwrap()));
    }
}

fn report(node: &Node, options: &[&str]) -> (String, String) {
    let page = node.directory().join("report.html").display().to_string();
    let arguments = [&["report", JOB, "-o", &page], options].concat();
    let _ = node.pfoctl(&Identity::own(), &arguments).printed();
    let text = std::fs::read_to_string(&page).unwrap();
    (page, text)
}

#[test]
fn a_page_opens_in_a_browser_and_asks_nobody_for_anything() {
    let node = Node::start();
    let training = Training::start(&node, JOB, &Identity::own(), &[]);
    training.until_leased(&node);
    training.until_step(&node, 3);
    let frontier = true_frontier(&node, SCALE);
    let plan = node.directory().join("<script>alert(1)<").display().to_string() + "b>.json";
    let export = ["plan", "export", &frontier, "--deadline", "1.02x", "-o", &plan];
    let _ = node.pfoctl(&Identity::own(), &export).printed();
    let _ = node.pfoctl(&Identity::own(), &["plan", "swap", JOB, &plan, "--wait"]).printed();
    node.until_so("the plan is measured", || {
        node.job(JOB).windows.last().is_some_and(|window| window.plan.is_some() && window.steps > 2)
    });
    let (page, text) = report(&node, &["--frontier", &frontier, "--observe", "2"]);
    assert_eq!(text.matches("<svg ").count(), 4, "{text}");
    assert!(text.contains("points: measured on this job"), "{text}");
    assert!(text.contains("&lt;script&gt;alert(1)&lt;b&gt;.json"), "{text}");
    for bad in ["<script", "<link", "<img", "<iframe", "href=", "src=", "@import", "url("] {
        assert!(!text.contains(bad), "{bad}");
    }
    keep(Path::new(&page));
    let _ = node.pfoctl(&Identity::own(), &["plan", "load", JOB, &frontier]).printed();
    let (_, of_agent) = report(&node, &["--observe", "2"]);
    assert_eq!(of_agent.matches("<svg ").count(), 4, "{of_agent}");
    if !has_chromium() {
        return;
    }
    let mut sizes = Vec::new();
    for (name, width, dark) in
        [("light", 1200, false), ("dark", 1200, true), ("narrow", 400, false)]
    {
        let (said, bytes) = opened(&node, &page, name, width, dark);
        assert!(bytes > 10_000, "no picture of {name}: {said}");
        // A policy that is broken, and an error of whatever kind.
        assert!(!said.contains("CONSOLE"), "{name}: {said}");
        keep(&node.directory().join(name).with_extension("png"));
        sizes.push(bytes);
    }
    assert_ne!(sizes[0], sizes[1], "dark looks like light");
}

#[test]
fn the_page_of_a_job_that_has_ended_shows_what_the_ledger_has_of_it() {
    // Comparisons may follow one another as they like.
    let agent_rules = "[guard]\ndefault_steps_permille = 1000\n";
    let mut node = Node::start_with(&Setup { agent_rules, ..Setup::default() });
    let training = Training::start(&node, JOB, &Identity::own(), &["--time-scale", "0.05"]);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let _ = training.take_up(&node, &TestPlan::new(STAGES, MICROBATCHES, |_, _| 1200));
    let _ = node.pfoctl(&Identity::own(), &["plan", "guard", JOB, "300%"]).printed();
    node.until("three comparisons", || {
        let printed = node.pfoctl(&Identity::own(), &["savings", "--json"]).printed();
        let report: SavingsReport = serde_json::from_str(&printed).unwrap();
        if report.total.comparisons >= 3 { Ok(()) } else { Err(printed) }
    });
    // A guarded job is shown after its end, too.
    let _ = node.pfoctl(&Identity::own(), &["plan", "guard", JOB, "--off"]).printed();
    training.stop();
    node.until_so("the job has ended for both daemons", || {
        node.find_watched(JOB).is_none()
            && node.find_job(JOB).is_none_or(|job| job.ranks.is_empty())
    });
    month_seen(&node);
    // For a quarter of an hour pfod remembers it, too; the ledger does over boots.
    let (page, text) = report(&node, &[]);
    for words in ["default clocks", "95 % interval", "Has ended", "It ran plan"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    seen(&node, &page, "just-ended");
    node.kill_daemon();
    std::fs::remove_dir_all(node.ledger().with_file_name("jobs")).unwrap();
    node.start_daemon();
    let (page, text) = report(&node, &[]);
    for words in ["it has ended", "95 % interval", "hottest GPU"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    seen(&node, &page, "ended");
}

/// The page of what a node saved is one that a browser shows, wide and narrow.
fn month_seen(node: &Node) {
    let page = node.directory().join("month.html").display().to_string();
    let arguments = ["savings", "--since", "1d", "--report", &page];
    let _ = node.pfoctl(&Identity::own(), &arguments).printed();
    let text = std::fs::read_to_string(&page).unwrap();
    for words in ["Saved on ", "By whom", "By model of GPUs", "What limited it", JOB, "<svg "] {
        assert!(text.contains(words), "{words}: {text}");
    }
    keep(Path::new(&page));
    if !has_chromium() {
        return;
    }
    for (name, width) in [("month", 1200), ("month-narrow", 400)] {
        let (said, bytes) = opened(node, &page, name, width, false);
        assert!(bytes > 10_000 && !said.contains("CONSOLE"), "{name}: {said}");
        keep(&node.directory().join(name).with_extension("png"));
    }
}

/// Opens a page if there is a browser: there is a picture, and nothing that the browser complains about.
fn seen(node: &Node, page: &str, name: &str) {
    if !has_chromium() {
        return;
    }
    let (said, bytes) = opened(node, page, name, 1200, false);
    assert!(bytes > 10_000 && !said.contains("CONSOLE"), "{name}: {said}");
    keep(&node.directory().join(name).with_extension("png"));
}

#[test]
fn a_job_without_plan_or_profile_has_a_page_and_one_that_never_ran_an_error() {
    let node = Node::start();
    let mut training = Training::start_for(&node, JOB, &Identity::own(), 0, &[]);
    training.until_leased(&node);
    let (_, text) = report(&node, &["--observe", "0"]);
    assert!(text.contains("nobody looked") && text.contains("nothing of this job yet"), "{text}");
    for words in
        ["<dd>default clocks, running", "the job has no plan of clocks", "no frontier is loaded"]
    {
        assert!(text.contains(words), "{words}: {text}");
    }
    training.process.kill();
    node.until_so("the job has ended", || {
        node.find_job(JOB).is_none_or(|job| job.ranks.is_empty())
    });
    let page = node.directory().join("none.html").display().to_string();
    let ran = node.pfoctl(&Identity::own(), &["report", "no-such-job", "-o", &page]);
    assert!(ran.code == Some(4) && ran.stderr.contains("no job named no-such-job"), "{ran:?}");
    assert!(!Path::new(&page).exists());
}
