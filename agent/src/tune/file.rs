//! The files of tunes. One that is not over has its order and the answers that it got; one that is over has
//! its last status and its report.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use pfo_protocol::{
    AgentRequest, AgentResponse, ClientMessage, DaemonMessage, Frame, JobName, Pid, Refusal,
    RefusalCode, TuneOrder, TuneReport, TuneStatus, Uid,
};
use pfo_service::{file_stem, parse_versioned, replace_in_own_directory};
use serde::{Deserialize, Serialize};

use crate::job::JobKey;
use crate::tune::answers::{self, Answers};

const FORMAT: &str = "pfo-tune/2";

/// The agent writes no longer file.
const LONGEST: u64 = 32 << 20;

/// All files that are read together, when the agent begins: what is beyond is left out.
const MOST_READ: usize = 64 << 20;

/// How often the agent may die while it plans for one tune.
const MOST_DEATHS: u8 = 2;

#[derive(Debug)]
pub(crate) struct TuneFiles(PathBuf);

/// Who tunes which job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Begun {
    format: String,
    pub(super) uid: Uid,
    pub(super) job: JobName,
    pub(super) by_uid: Uid,
    pub(super) by_person: Uid,
    pub(super) by_pid: Pid,
    pub(super) administrator: bool,
}

/// A tune as an earlier agent left it.
#[derive(Debug)]
pub(super) enum Left {
    Unfinished { begun: Begun, order: Box<TuneOrder>, answers: Answers },
    Over { status: Box<TuneStatus>, report: Option<Box<TuneReport>> },
}

impl Begun {
    pub(super) fn new(key: &JobKey, by_uid: Uid, by_person: Uid, by_pid: Pid) -> Self {
        let JobKey { uid, name: job } = key.clone();
        let format = FORMAT.to_owned();
        Self { format, uid, job, by_uid, by_person, by_pid, administrator: false }
    }

    pub(super) fn key(&self) -> JobKey {
        JobKey { uid: self.uid, name: self.job.clone() }
    }
}

impl TuneFiles {
    /// The files below the directory of what outlives the node's boot.
    pub(crate) fn under(state: &Path) -> Self {
        Self(state.join("tunes"))
    }

    /// Begins the file of a tune, in the place of the job's former one.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(super) fn begin(&self, begun: &Begun, order: &TuneOrder) -> io::Result<Answers> {
        let path = self.path(&begun.key(), "tune");
        let request = ClientMessage::AgentRequest(AgentRequest::TuneStart(order.clone()));
        let order = request.to_frame().map_err(io::Error::other)?;
        let head = serde_json::to_vec(begun)?;
        let content = [&head[..], b"\n", &order].concat();
        replace_in_own_directory(&path, &content)?;
        for end in ["tuned", "planning"] {
            let _ = fs::remove_file(self.path(&begun.key(), end));
        }
        let kept = content.len() as u64;
        Ok(Answers::new(Vec::new(), answers::open(&path, kept)?, kept))
    }

    /// Keeps what became of a tune, in the place of its answers.
    pub(super) fn end(&self, key: &JobKey, status: &TuneStatus, report: Option<&TuneReport>) {
        let responses = [
            Some(AgentResponse::Tune(Box::new(status.clone()))),
            report.map(|report| AgentResponse::TuneReport(Box::new(report.clone()))),
        ];
        let frames = responses.into_iter().flatten();
        let frames = frames.filter_map(|one| DaemonMessage::AgentResponse(one).to_frame().ok());
        let content = frames.collect::<Vec<_>>().concat();
        match replace_in_own_directory(&self.path(key, "tuned"), &content) {
            Ok(()) => {
                for end in ["tune", "planning"] {
                    let _ = fs::remove_file(self.path(key, end));
                }
            }
            Err(error) => tracing::warn!(
                uid = key.uid.0, job = %key.name,
                "a restart of the agent will look at the end of the tune of {key} again: cannot write \
                 it: {error}"
            ),
        }
    }

    pub(super) fn remove(&self, key: &JobKey) {
        for end in ["tune", "tuned", "planning"] {
            let _ = fs::remove_file(self.path(key, end));
        }
    }

    /// Notes that the agent plans for a tune. If it dies of that, the next one knows.
    ///
    /// # Errors
    /// If agents have died of that already, one after the other.
    pub(super) fn plan(&self, key: &JobKey) -> Result<(), Refusal> {
        let path = self.path(key, "planning");
        let deaths = fs::read(&path).ok().and_then(|bytes| bytes.first().copied()).unwrap_or(0);
        if deaths >= MOST_DEATHS {
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                format!("the agent died {deaths} times while it planned for {key}"),
                "make a plan with `pfoctl plan optimize`, and run it with `pfoctl plan swap`",
            ));
        }
        let _ = replace_in_own_directory(&path, &[deaths.saturating_add(1)]);
        Ok(())
    }

    /// Notes that the agent has planned.
    pub(super) fn planned(&self, key: &JobKey) {
        let _ = fs::remove_file(self.path(key, "planning"));
    }

    /// Every tune. A file that is none is left where it is, and reported.
    pub(super) fn read(&self) -> Vec<Left> {
        let Ok(files) = fs::read_dir(&self.0) else { return Vec::new() };
        let mut paths: Vec<_> = files.filter_map(|file| Some(file.ok()?.path())).collect();
        paths.sort();
        let mut room = MOST_READ;
        let read = |path: PathBuf| match self.read_one(&path, &mut room) {
            Ok(left) => left,
            Err(why) => {
                tracing::warn!(
                    "cannot continue the tune of {}: {why}; remove the file and begin it again",
                    path.display()
                );
                None
            }
        };
        paths.into_iter().filter_map(read).collect()
    }

    fn read_one(&self, path: &Path, room: &mut usize) -> Result<Option<Left>, String> {
        let end = path.extension().and_then(|end| end.to_str());
        let bytes = match end {
            Some("tune" | "tuned") => bytes_of(path).map_err(|error| error.to_string())?,
            _ => return Ok(None),
        };
        *room = room.checked_sub(bytes.len()).ok_or("there are too many tunes")?;
        let (key, left) = match end {
            Some("tune") => unfinished(path, &bytes)?,
            _ => over(&bytes)?,
        };
        match self.path(&key, end.unwrap_or_default()) == path {
            true => Ok(Some(left)),
            false => Err(format!("it is of {key}")),
        }
    }

    fn path(&self, key: &JobKey, end: &str) -> PathBuf {
        self.0.join(format!("{}.{end}", file_stem(key.uid, &key.name)))
    }
}

fn bytes_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn unfinished(path: &Path, bytes: &[u8]) -> Result<(JobKey, Left), String> {
    let line = bytes.iter().position(|byte| *byte == b'\n').ok_or("it has no first line")?;
    let (head, rest) = bytes.split_at(line);
    let begun: Begun = parse_versioned(head, FORMAT)?;
    let rest = rest.get(1..).unwrap_or_default();
    let frame = Frame::first_of(rest).map_err(|error| error.to_string())?;
    let frame = frame.ok_or("its order is torn")?;
    let order = match ClientMessage::from_payload(frame.kind, frame.payload) {
        Ok(ClientMessage::AgentRequest(AgentRequest::TuneStart(order))) => Box::new(order),
        _ => return Err("it has no order".to_owned()),
    };
    let begin = line.saturating_add(1).saturating_add(frame.total_bytes());
    let (before, read) = answers::parse(bytes.get(begin..).unwrap_or_default());
    let kept = begin.saturating_add(read) as u64;
    let file = answers::open(path, kept).map_err(|error| error.to_string())?;
    let answers = Answers::new(before, file, kept);
    Ok((begun.key(), Left::Unfinished { begun, order, answers }))
}

fn over(bytes: &[u8]) -> Result<(JobKey, Left), String> {
    let (status, rest) = response(bytes)?;
    let AgentResponse::Tune(status) = status else { return Err("it has no status".to_owned()) };
    let report = match response(rest) {
        Ok((AgentResponse::TuneReport(report), _)) => Some(report),
        _ => None,
    };
    let key = JobKey { uid: status.uid, name: status.job.clone() };
    Ok((key, Left::Over { status, report }))
}

fn response(bytes: &[u8]) -> Result<(AgentResponse, &[u8]), String> {
    let frame = Frame::first_of(bytes).map_err(|error| error.to_string())?;
    let frame = frame.ok_or("it is torn")?;
    let rest = bytes.get(frame.total_bytes()..).unwrap_or_default();
    match DaemonMessage::from_payload(frame.kind, frame.payload) {
        Ok(DaemonMessage::AgentResponse(response)) => Ok((response, rest)),
        Ok(_) => Err("it has another frame".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pfo_protocol::{TuneEnd, TuneState};

    use super::*;
    use crate::tune::answers::{Answer, digest};

    fn key() -> JobKey {
        JobKey { uid: Uid(7), name: "a/b".parse().unwrap() }
    }

    fn order() -> TuneOrder {
        let (terms, profile, order) = (b"{}".to_vec(), Some(b"csv".to_vec()), None);
        TuneOrder { job: key().selector(), terms, profile, order }
    }

    fn begun() -> Begun {
        Begun::new(&key(), Uid(7), Uid(7), Pid(9))
    }

    #[test]
    fn a_tune_that_is_not_over_is_found_again_with_its_order_and_its_answers() {
        let directory = tempfile::tempdir().unwrap();
        let files = TuneFiles::under(directory.path());
        assert!(files.read().is_empty());
        let mut answers = files.begin(&begun(), &order()).unwrap();
        let digest = digest(&ClientMessage::AgentRequest(AgentRequest::Sweeps));
        let message = DaemonMessage::AgentResponse(AgentResponse::Sweeps(Vec::new()));
        let answer = Answer { digest, at: Duration::from_secs(3), message };
        answers.keep(&answer);
        let mut left = files.read();
        let Some(Left::Unfinished { begun: found, order: ordered, mut answers }) = left.pop()
        else {
            panic!("nothing is left: {left:?}");
        };
        assert_eq!((found, *ordered), (begun(), order()));
        assert_eq!(answers.next(digest), Some(answer.clone()));
        answers.keep(&answer);
        assert!(matches!(&files.read()[..], [Left::Unfinished { .. }]));
        files.remove(&key());
        assert!(files.read().is_empty());
    }

    #[test]
    fn one_that_is_over_has_its_status_and_its_report_and_no_answers_any_more() {
        let directory = tempfile::tempdir().unwrap();
        let files = TuneFiles::under(directory.path());
        files.begin(&begun(), &order()).unwrap();
        let status = TuneStatus {
            job: key().name,
            uid: key().uid,
            changed: 3,
            state: TuneState::Ended(TuneEnd::Kept),
            now: String::new(),
            done: 1.0,
            remaining_s: None,
            saving: Some(0.1),
            remarks: Vec::new(),
        };
        let report = TuneReport { report: b"{}".to_vec(), plan: None, frontier: None };
        files.end(&key(), &status, Some(&report));
        match &files.read()[..] {
            [Left::Over { status: found, report: Some(kept) }] => {
                assert_eq!((&**found, &**kept), (&status, &report));
            }
            other => panic!("{other:?}"),
        }
        files.begin(&begun(), &order()).unwrap();
        assert!(matches!(&files.read()[..], [Left::Unfinished { .. }]));
    }

    #[test]
    fn an_agent_that_dies_while_it_plans_does_not_do_so_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let files = TuneFiles::under(directory.path());
        files.plan(&key()).unwrap();
        files.planned(&key());
        for _ in 0..MOST_DEATHS {
            files.plan(&key()).unwrap();
        }
        let refusal = files.plan(&key()).unwrap_err();
        assert!(refusal.message.contains("died 2 times"), "{refusal}");
        files.begin(&begun(), &order()).unwrap();
        files.plan(&key()).unwrap();
    }

    #[test]
    fn what_is_no_tune_or_that_of_another_job_is_not_continued() {
        let directory = tempfile::tempdir().unwrap();
        let files = TuneFiles::under(directory.path());
        files.begin(&begun(), &order()).unwrap();
        let path = files.path(&key(), "tune");
        let good = fs::read(&path).unwrap();
        let head = good.iter().position(|byte| *byte == b'\n').unwrap();
        let with = |from: &str, to: &str| {
            let text = String::from_utf8(good[..head].to_vec()).unwrap().replace(from, to);
            [text.as_bytes(), &good[head..]].concat()
        };
        // What an agent of another version has begun was measured by other rules.
        let (other, older) = (with("\"uid\":7", "\"uid\":8"), with(FORMAT, "pfo-tune/1"));
        assert_ne!(older, good);
        for spoilt in [&good[..head], &good[..good.len() - 1], &other, &older] {
            fs::write(&path, spoilt).unwrap();
            assert!(files.read().is_empty(), "{}", String::from_utf8_lossy(spoilt));
        }
    }
}
