//! `pfoctl top` in a real terminal.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use nix::sys::signal::Signal;
use pfo_protocol::Pid;
use pfo_tests::{
    Identity, MICROBATCHES, MachineSetup, Node, Rank, STAGES, Setup, TestPlan, Tmux, Training,
    assert_printed, process,
};

const JOB: &str = "llama-70b";
const TOP: &str = "pfoctl top --every 1";

fn node(gpus: &'static str) -> Node {
    let machine = MachineSetup { gpus, ..MachineSetup::default() };
    Node::start_with(&Setup { machine, ..Setup::default() })
}

/// Steps of a job in the background while something else happens.
fn while_training<T>(ranks: &[Rank], meanwhile: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                ranks.iter().for_each(Rank::step);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // A failure of the test must not leave the steps running on.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(meanwhile));
        is_over.store(true, Relaxed);
        done.unwrap_or_else(|why| std::panic::resume_unwind(why))
    })
}

/// How the shell's terminal is set.
fn settings(terminal: &Tmux) -> String {
    terminal.press(&["clear; stty -g", "Enter"]);
    let screen = terminal.until("the settings are printed", |screen| {
        screen.lines().any(|line| line.matches(':').count() > 20) && screen.contains(Tmux::PROMPT)
    });
    screen.lines().find(|line| line.matches(':').count() > 20).unwrap().to_owned()
}

/// Waits until the shell is back and says how the program before ended, on the first screen.
fn ended_with(terminal: &Tmux, code: i32) {
    terminal.until("the shell is back", |screen| screen.trim_end().ends_with(Tmux::PROMPT));
    terminal.press(&["echo code=$?", "Enter"]);
    terminal.until("the exit code", |screen| screen.contains(&format!("\ncode={code}\n")));
    assert_eq!(terminal.variable("alternate_on"), "0");
    assert_eq!(terminal.variable("cursor_flag"), "1");
}

fn until_shown(terminal: &Tmux, what: &str) -> String {
    terminal.until(what, |screen| screen.contains(what))
}

#[test]
fn keys_lead_through_a_node_of_64_gpus_at_every_size() {
    if !Tmux::is_installed() {
        return;
    }
    let node = node("64xA40");
    let ranks = Rank::open_all(&node, JOB, STAGES, 2);
    node.take_up(JOB, &TestPlan::new(STAGES, 2, |stage, _| 900 + 15 * stage));
    while_training(&ranks, || {
        let terminal = Tmux::open(&node, 80, 24);
        terminal.press(&[TOP, "Enter"]);
        let screen = until_shown(&terminal, " of 64");
        assert!(screen.contains("1 GPUs 64") && screen.contains("3 Ranks 4"), "{screen}");
        terminal.until("a clock asked for", |screen| screen.contains("945"));
        terminal.press(&["End"]);
        until_shown(&terminal, "-64 of 64");
        terminal.press(&["3"]);
        terminal.until("four ranks and their GPUs", |screen| {
            screen.lines().filter(|line| line.starts_with(JOB)).count() == STAGES as usize
        });
        // By the rank, downwards.
        terminal.press(&[">", ">", "r"]);
        terminal.until("the last rank first", |screen| {
            let first = screen.lines().find(|line| line.starts_with(JOB));
            first.is_some_and(|line| line.split_whitespace().nth(1) == Some("3"))
        });
        terminal.press(&["2", "Enter"]);
        terminal.until("the last step, with clocks", |screen| {
            ["Last step, ", "stage 3", "900 MHz"].iter().all(|part| screen.contains(part))
        });
        terminal.press(&["Escape"]);
        until_shown(&terminal, "Enter job");
        terminal.press(&["1", "/"]);
        terminal.type_text("no-such-gpu");
        until_shown(&terminal, "No row contains the filter");
        // What follows an Escape at once would be one key with it.
        terminal.press(&["Escape"]);
        until_shown(&terminal, " of 64");
        terminal.press(&["?"]);
        until_shown(&terminal, "SM clock that pfo locked");
        terminal.press(&["Escape"]);
        for (width, height) in [(200, 50), (40, 10), (10, 3), (80, 24)] {
            terminal.resize(width, height);
            let lines = usize::from(height);
            terminal.until("the view has the new size", |screen| match width {
                10 => screen.starts_with("pfod"),
                40 => screen.contains("? help") && screen.lines().count() <= lines,
                200 => screen.contains("every 1 s") && screen.contains("A40"),
                _ => screen.contains(" of 64"),
            });
        }
        terminal.press(&["q"]);
        ended_with(&terminal, 0);
    });
}

/// The rows of the last step: what is drawn of each stage.
fn drawn_step(screen: &str) -> Vec<String> {
    let step = screen.lines().skip_while(|line| !line.starts_with("Last step, ")).skip(1);
    let rows = step.map_while(|line| line.strip_prefix("stage "));
    rows.map(|row| row.split_whitespace().nth(1).unwrap_or_default().to_owned()).collect()
}

#[test]
fn the_last_step_of_a_job_is_drawn_stage_by_stage_with_its_waits() {
    if !Tmux::is_installed() {
        return;
    }
    let node = node("4xA40");
    let training = Training::start(&node, JOB, &Identity::own(), &[]);
    training.until_leased(&node);
    training.until_step(&node, 1);
    let terminal = Tmux::open(&node, 80, 24);
    terminal.press(&[TOP, "Enter"]);
    until_shown(&terminal, "1 GPUs 4");
    terminal.press(&["2", "Enter"]);
    let screen = terminal.until("a row for each stage", |screen| {
        drawn_step(screen).len() == STAGES as usize && screen.contains("\u{b7} waits")
    });
    let rows = drawn_step(&screen);
    // The last stage has its backward at once; the first one waits for the pipeline to be filled.
    assert!(rows[0].starts_with('F') && rows[3].starts_with('\u{b7}'), "{screen}");
    for row in &rows {
        assert!(row.contains('F') && row.contains('B') && row.chars().count() == 70, "{screen}");
    }
    // A plan's clocks are bars.
    node.take_up(JOB, &TestPlan::new(STAGES, MICROBATCHES, |stage, _| 900 + 90 * stage));
    let screen = until_shown(&terminal, "900 MHz \u{2581} to 1170 \u{2588}");
    assert!(!drawn_step(&screen)[0].contains('\u{2588}'), "{screen}");
    assert!(!drawn_step(&screen)[3].contains('\u{2581}'), "{screen}");
    terminal.resize(80, 40);
    until_shown(&terminal, "Clocks of the plan");
    terminal.press(&["q"]);
    ended_with(&terminal, 0);
    training.stop();
}

#[test]
fn a_daemon_that_goes_away_is_shown_until_it_is_back() {
    if !Tmux::is_installed() {
        return;
    }
    let mut node = node("4xA40");
    let terminal = Tmux::open(&node, 80, 24);
    terminal.press(&[TOP, "Enter"]);
    until_shown(&terminal, "1 GPUs 4");
    node.kill_daemon();
    let away = until_shown(&terminal, "pfod has not answered for");
    assert!(away.contains("1 GPUs 4") && away.contains("Observed"), "{away}");
    terminal.press(&["2"]);
    until_shown(&terminal, "No jobs.");
    node.start_daemon();
    terminal
        .until("it is back", |screen| screen.starts_with("pfod ") && !screen.contains("has not"));
    node.stop_agent();
    until_shown(&terminal, "1 needs attention");
    terminal.press(&["a"]);
    until_shown(&terminal, "pfo-agent does not answer");
    terminal.press(&["q"]);
    ended_with(&terminal, 0);
}

#[test]
fn the_terminal_is_given_back_however_it_ends() {
    if !Tmux::is_installed() {
        return;
    }
    let node = node("2xA40");
    let terminal = Tmux::open(&node, 80, 24);
    let before = settings(&terminal);
    for (end, code) in [("q", 0), ("C-c", 130), ("SIGTERM", 143), ("SIGHUP", 129)] {
        // The shell says who it becomes.
        let said = node.directory().join("top.pid");
        let into = said.display();
        terminal.press(&[&format!("clear; sh -c 'echo $$ > {into}; exec {TOP}'"), "Enter"]);
        until_shown(&terminal, "1 GPUs 2");
        assert_eq!(terminal.variable("alternate_on"), "1");
        match end {
            "SIGTERM" | "SIGHUP" => {
                let pid = std::fs::read_to_string(&said).unwrap();
                process::send(Pid(pid.trim().parse().unwrap()), end.parse::<Signal>().unwrap());
            }
            key => terminal.press(&[key]),
        }
        ended_with(&terminal, code);
        assert_eq!(settings(&terminal), before, "after {end}");
    }
}

#[test]
fn a_plan_that_is_called_like_a_command_to_the_terminal_is_shown_and_not_obeyed() {
    const NAME: &str = "\x1b]2;owned\x07\x1b[2Jplan.json";
    if !Tmux::is_installed() {
        return;
    }
    let node = node("2xA40");
    let ranks = Rank::open_all(&node, JOB, 2, 2);
    let path = node.plan_file(NAME, &TestPlan::new(2, 2, |_, _| 900).to_json());
    let _ = node.pfoctl(&Identity::own(), &["plan", "swap", JOB, &path]).printed();
    while_training(&ranks, || {
        let terminal = Tmux::open(&node, 120, 24);
        terminal.press(&[TOP, "Enter"]);
        let screen = until_shown(&terminal, "]2;owned[2Jplan.json");
        assert!(screen.contains("1 GPUs 2"), "{screen}");
        assert_ne!(terminal.variable("pane_title"), "owned");
        terminal.press(&["q"]);
        ended_with(&terminal, 0);
    });
}

#[test]
fn without_a_terminal_or_a_daemon_it_says_so_and_touches_nothing() {
    let mut node = node("2xA40");
    let top = |arguments: &[&str]| node.pfoctl(&Identity::own(), arguments);
    assert_printed!(
        top(&["top"]),
        top(&["top", "--every=0.1"]),
        top(&["top", "--every=0"]),
        top(&["top", "--every=-1"]),
        top(&["top", "--every=nan"]),
        top(&["top", "--every=1e9"]),
    );
    if Tmux::is_installed() {
        let terminal = Tmux::open(&node, 80, 24);
        terminal.press(&["echo x | pfoctl top", "Enter"]);
        until_shown(&terminal, "standard input is none");
        ended_with(&terminal, 2);
        node.kill_daemon();
        terminal.press(&["clear; pfoctl top", "Enter"]);
        until_shown(&terminal, "cannot reach pfod");
        ended_with(&terminal, 3);
    }
}
