//! The plan with which the job begins, if its trainer or the environment names one: it is brought to
//! `pfo-agent` before the rank asks for its lease, so `pfod` has it when the first step begins.
//!
//! All of this is over before the session is open, on the background thread. This library reads the
//! file, because the rank's user may; it does not know what is in it.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pfo_protocol::{
    AgentRequest, AgentResponse, BeginningRank, ClientMessage, DaemonMessage, LARGEST_PAYLOAD,
    PlanFile, PlanStatus,
};

use crate::line::Phase;
use crate::link::{Link, SESSION_ANSWER};
use crate::problem::{Problem, ProblemCode};
use crate::shared::Shared;

/// In place of a file: the plan that pfo-agent keeps for the job.
const KEPT: &str = "auto";

/// What else is in the request: names, which are short.
const LARGEST_FILE: u64 = LARGEST_PAYLOAD as u64 - 4096;

/// The longest label of a plan, in bytes.
const LONGEST_LABEL: usize = 64;

/// How long the agent may take. A session that opens waits for the lease with what is left.
const LONGEST_ANSWER_TIME: Duration = Duration::from_secs(10);

/// Has the job begin with the plan that the description names.
pub(crate) fn bring(shared: &Shared) {
    let Some(named) = &shared.rank.plan else { return };
    let brought = plan_file(named).and_then(|plan| {
        let rank = BeginningRank {
            job: shared.rank.job.clone(),
            pp_degree: shared.rank.position.pp_degree,
            num_microbatches: shared.rank.num_microbatches.map(Into::into),
        };
        ask(shared, AgentRequest::JobBegins { rank, plan })
    });
    shared.lock().plan_problem = brought.err();
}

/// Learns, with the lease, whether the plan fits the rank and its GPU.
pub(crate) fn check(shared: &Shared) {
    if shared.rank.plan.is_none() || shared.lock().plan_problem.is_some() {
        return;
    }
    let refused = match ask(shared, AgentRequest::JobBegan(shared.rank.job.clone())) {
        Ok(Some(PlanStatus { label, suspended: Some(why), .. })) => Some(Problem::new(
            ProblemCode::PlanUnusable,
            format!("the job does not run plan {label}: {why}"),
            "make a plan for this job with `pfoctl plan optimize`",
        )),
        Ok(_) => None,
        Err(problem) => Some(problem),
    };
    shared.lock().plan_problem = refused;
}

/// The plan in a file; none for the one that is kept.
fn plan_file(named: &Path) -> Result<Option<PlanFile>, Problem> {
    if named == Path::new(KEPT) {
        return Ok(None);
    }
    let shown = named.display();
    let unusable = |why: &dyn std::fmt::Display| {
        let message = format!("the plan {shown} cannot be used: {why}");
        let remedy = "set PFO_PLAN to a plan that `pfoctl plan export` wrote, or to auto";
        Problem::new(ProblemCode::PlanUnusable, message, remedy)
    };
    // To open a pipe waits for who writes.
    if !fs::metadata(named).map_err(|error| unusable(&error))?.is_file() {
        return Err(unusable(&"it is no regular file"));
    }
    let mut json = Vec::new();
    let file = File::open(named).map_err(|error| unusable(&error))?;
    file.take(LARGEST_FILE + 1).read_to_end(&mut json).map_err(|error| unusable(&error))?;
    if json.len() as u64 > LARGEST_FILE {
        return Err(unusable(&format!("it is larger than {LARGEST_FILE} bytes")));
    }
    Ok(Some(PlanFile { label: label_of(named), json }))
}

/// What `pfoctl` would call the plan.
fn label_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let printable: String = name.chars().filter(|c| !c.is_control()).collect();
    let end = printable.floor_char_boundary(LONGEST_LABEL);
    if end == 0 { "plan".to_owned() } else { printable[..end].to_owned() }
}

fn ask(shared: &Shared, request: AgentRequest) -> Result<Option<PlanStatus>, Problem> {
    let socket = &shared.rank.agent_socket;
    let link = Link::connect(socket).map_err(|errno| {
        let problem = Problem::connecting(socket, errno, shared.rank.groups);
        Problem { remedy: "start pfo-agent: it hands plans over to pfod".into(), ..problem }
    })?;
    let link = Arc::new(link);
    {
        let mut line = shared.lock();
        if let Phase::Closed = line.phase {
            return Err(Problem::lost("the session is closed"));
        }
        line.attempt = Some(Arc::clone(&link));
    }
    let deadline = Instant::now() + (shared.rank.setup_timeout / 2).min(LONGEST_ANSWER_TIME);
    let said = link.say_all(&ClientMessage::AgentRequest(request), deadline);
    let answer = said.and_then(|()| link.answer(SESSION_ANSWER, deadline));
    shared.lock().attempt = None;
    match answer? {
        Some(DaemonMessage::AgentResponse(AgentResponse::Begins(plan))) => Ok(plan),
        Some(
            DaemonMessage::AgentResponse(AgentResponse::Refused(refusal))
            | DaemonMessage::Refusal(refusal),
        ) => Err(Problem::refused(refusal)),
        Some(_) => Err(Problem::garbled("it answers something else")),
        None => Err(Problem::new(
            ProblemCode::NoAnswer,
            format!("pfo-agent at {} has not answered yet", socket.display()),
            "the job may begin without its plan; `pfoctl status` shows what it runs",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_called_after_its_file() {
        assert_eq!(label_of(Path::new("/plans/1.02x.json")), "1.02x.json");
        assert_eq!(label_of(Path::new("/plans/a\nb\u{1b}[2J.json")), "ab[2J.json");
        assert_eq!(label_of(Path::new(&"é".repeat(100))).len(), LONGEST_LABEL);
        assert_eq!(label_of(Path::new("/")), "plan");
    }

    #[test]
    fn a_file_that_cannot_be_read_is_a_problem_that_names_it() {
        assert_eq!(plan_file(Path::new("auto")), Ok(None));
        let directory = tempfile::tempdir().unwrap();
        for (path, why) in [("missing.json", "No such file"), ("..", "no regular file")] {
            let problem = plan_file(&directory.path().join(path)).unwrap_err();
            assert_eq!(problem.code, ProblemCode::PlanUnusable);
            assert!(problem.message.contains(why) && problem.message.contains(path), "{problem}");
        }
        let path = directory.path().join("auto");
        fs::write(&path, "{}").unwrap();
        let plan = plan_file(&path).unwrap().unwrap();
        assert_eq!((plan.label.as_str(), &plan.json[..]), ("auto", &b"{}"[..]));
        File::create(&path).unwrap().set_len(LARGEST_FILE + 1).unwrap();
        assert!(plan_file(&path).unwrap_err().message.contains("larger than 8384512 bytes"));
    }
}
