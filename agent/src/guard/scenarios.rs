//! Guards and stragglers on the model, as `agent/scenarios` describes them.

use std::sync::Arc;
use std::time::Duration;

use pfo_planner::Straggler;
use pfo_protocol::{Refusal, SwapTarget};
use pfo_service::People;

use crate::fleet::AllSlow;
use crate::guard::runner::{Allowed, JobGuard};
use crate::steer::model::Model;
use crate::steer::{Steer, SwapRequest, allow_slowdown, owner, scenario};
use crate::straggler::tests::{frontier_of, job as example_job};
use crate::straggler::{JobFiles, JobFrontier, Labelled, SlowStages, Stragglers};

/// The share of steps at default clocks that the shipped configuration allows.
const SHARE: f64 = 0.005;

const STAGES: u16 = 2;

/// A job, its guard, and what knows its frontier.
struct Stage {
    model: Model,
    guard: JobGuard,
    stragglers: Arc<Stragglers>,
    runtime: tokio::runtime::Runtime,
    in_budget: bool,
    _directory: tempfile::TempDir,
}

impl Stage {
    fn set() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let people = Arc::new(People::in_file(directory.path().join("subuid")));
        let files = JobFiles::under(directory.path());
        let stragglers = Arc::new(Stragglers::new(files, people));
        let frontier = JobFrontier::read("f".into(), &frontier_of(STAGES, 4), 1 << 20).unwrap();
        Self {
            model: Model::of(example_job(STAGES), frontier),
            guard: JobGuard::new(Arc::clone(&stragglers)),
            stragglers,
            runtime: tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap(),
            in_budget: false,
            _directory: directory,
        }
    }

    fn command(&mut self, line: &str) -> String {
        let words: Vec<_> = line.split_whitespace().collect();
        match words[..] {
            ["job"] => {
                *self = Self::set();
                String::new()
            }
            ["slower", share] => {
                self.model.slow_down(percent(share));
                String::new()
            }
            ["hold" | "release"] => {
                self.model.hold_for_others(line == "hold");
                String::new()
            }
            ["away" | "back"] => {
                self.model.go_away(line == "away");
                String::new()
            }
            ["budget", on] => {
                self.in_budget = on == "on";
                String::new()
            }
            ["restart"] => {
                self.guard = JobGuard::new(Arc::clone(&self.stragglers));
                String::new()
            }
            ["slow", stage, share] => {
                let stage = pfo_protocol::Stage(stage.parse().unwrap());
                let stages = SlowStages::from([(stage, percent(share))]);
                self.answer_slow(&AllSlow::of_node(&stages, &Default::default()))
            }
            ["slow", "none"] => self.answer_slow(&AllSlow::default()),
            ["run", hours] => self.run(3600.0 * number(hours)),
            ["state"] => self.state(),
            _ => said(self.runtime.block_on(self.request(&words))),
        }
    }

    /// What a user requests.
    async fn request(&self, words: &[&str]) -> Result<(), Refusal> {
        let (model, stragglers) = (&self.model, &self.stragglers);
        let (view, by) = (example_job(STAGES), owner(model.key()));
        match words {
            ["load"] => {
                let loaded = ("f".to_owned(), frontier_of(STAGES, 4));
                stragglers.load(&view, loaded, false).await.map(drop)
            }
            ["swap", factor, guard @ ..] => {
                let Labelled { label, table } = model.plan_at(number(factor));
                let target = SwapTarget::Table { label, table };
                let max_slowdown = guard.first().map(|most| percent(most));
                let request = SwapRequest { by, target, at_step: None, max_slowdown, wait: false };
                model.swap(request).await.map(drop).map_err(Refusal::from)
            }
            ["guard", most] => {
                let most = (*most != "off").then(|| percent(most));
                allow_slowdown(model, by, most).await
            }
            ["straggler", "off"] => stragglers.end(model, (by, false)).await.map(drop),
            ["straggler", factor] => {
                let straggler = Straggler::new(number(factor)).unwrap();
                stragglers.answer(model, &view, straggler, (by, false)).await.map(drop)
            }
            ["auto", on] => stragglers.set_auto(model, &view, (by, *on == "on")).await.map(drop),
            _ => panic!("no command: {words:?}"),
        }
    }

    fn answer_slow(&self, slow: &AllSlow) -> String {
        let view = example_job(STAGES);
        let answered = self.stragglers.answer_slow(&self.model, &view, slow);
        let answered = self.runtime.block_on(answered).map_err(Refusal::from);
        match answered {
            Ok(Some(_)) => String::new(),
            Ok(None) => "left alone\n".into(),
            Err(refusal) => said(Err(refusal)),
        }
    }

    /// Looks at the job each second, and says when it changes to something else.
    fn run(&mut self, time_s: f64) -> String {
        let (mut said, until_s) = (String::new(), self.model.now_s() + time_s);
        let mut ran = self.runs();
        while self.model.now_s() < until_s {
            self.model.pass(1.0);
            let is_bound = self.in_budget;
            let allowed = Allowed { share: SHARE, in_budget: &move || is_bound };
            let now = Duration::from_secs_f64(self.model.now_s());
            let _ = self.runtime.block_on(self.guard.look(&self.model, allowed, now));
            let runs = self.runs();
            if runs != ran {
                said += &format!("step {}: {runs}\n", self.model.step());
                ran = runs;
            }
        }
        said
    }

    fn runs(&self) -> String {
        let stands = self.runtime.block_on(self.model.stands());
        stands.map_or_else(|_| "away".into(), |stands| stands.run.to_string())
    }

    fn state(&self) -> String {
        let stands = self.runtime.block_on(self.model.stands()).unwrap();
        let mut said = stands.run.to_string();
        if let Some(straggler) = &stands.standing.straggler {
            said += &format!(", for {}x, before: {}", straggler.factor, straggler.before);
        }
        if stands.standing.watch.is_some() {
            said += ", answers slow stages";
        }
        if let Some(guard) = &stands.standing.guard {
            let steps = self.model.step().saturating_sub(guard.began).max(1);
            let spent = 100.0 * guard.spent as f64 / steps as f64;
            let most = 100.0 * guard.max_slowdown;
            said += &format!(", within {most} %: {} comparisons, {spent:.1} %", guard.compared);
            let shares: Vec<_> =
                guard.slowdowns.iter().map(|share| format!("{:.1}", 100.0 * share)).collect();
            said += &format!(" of steps, [{}]", shares.join(" "));
            for (what, share) in [("corrected", guard.corrected), ("given up", guard.given_up)] {
                said +=
                    &share.map_or_else(String::new, |s| format!(", {what} at {:.1} %", 100.0 * s));
            }
        }
        said + "\n"
    }
}

fn said(done: Result<(), Refusal>) -> String {
    done.map_or_else(|refusal| format!("refused: {}\n", refusal.message), |()| String::new())
}

fn number(text: &str) -> f64 {
    text.trim_end_matches(['x', 'h']).parse().unwrap()
}

fn percent(text: &str) -> f64 {
    text.trim_end_matches('%').parse::<f64>().unwrap() / 100.0
}

#[test]
fn a_guard_decides_as_its_scenarios_say() {
    let mut stage = Stage::set();
    scenario::run("guard.txt", |line| stage.command(line));
}

#[test]
fn a_straggler_is_answered_as_its_scenarios_say() {
    let mut stage = Stage::set();
    scenario::run("straggler.txt", |line| stage.command(line));
}
