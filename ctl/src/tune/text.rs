//! A tune in words.

use pfo_protocol::{TuneEnd, TuneState, TuneStatus, Uid};

use crate::status::quantity::{percent, span};
use crate::text::harmless;

/// What it does, or what became of it, as a sentence with what to do about it.
pub(crate) fn in_words(status: &TuneStatus) -> String {
    let job = &status.job;
    let text = match &status.state {
        TuneState::Ended(TuneEnd::Kept) => {
            format!("Job {job} is tuned; `pfoctl tune {job} --attach` shows the report.")
        }
        TuneState::Ended(TuneEnd::KeptUncertain) => format!(
            "Job {job} is tuned, with a plan that most likely is within the allowed slowdown; \
             `pfoctl tune {job} --attach` shows the report."
        ),
        TuneState::Ended(TuneEnd::NothingKept) => format!(
            "No plan was kept: job {job} is at default clocks; `pfoctl tune {job} --attach` shows \
             the report."
        ),
        TuneState::Ended(TuneEnd::Stopped) => {
            format!("Stopped; job {job} returns to default clocks at its next step.")
        }
        TuneState::Ended(TuneEnd::Failed(refusal)) => {
            format!("The tune of job {job} failed: {}.", refusal.message)
        }
        _ => format!(
            "Job {job} is being tuned: {}.\n`pfoctl tune {job} --attach` watches it, `pfoctl tune \
             {job} --stop` ends it.",
            progress(status)
        ),
    };
    let lines: Vec<_> = text.lines().map(|line| harmless(line).into_owned() + "\n").collect();
    lines.concat()
}

/// What is being done, how much of it, and for how long still.
fn progress(status: &TuneStatus) -> String {
    let TuneStatus { now, done, remaining_s, saving, .. } = status;
    let done = if *done > 0.0 { format!(", {:.0} %", 100.0 * done) } else { String::new() };
    let left = remaining_s.map_or_else(String::new, |left_s| format!(", {} left", span(left_s)));
    let saving = saving.map_or_else(String::new, |saving| {
        format!("; the best plan so far saves {}", percent(saving))
    });
    format!("{now}{done}{left}{saving}")
}

/// The tunes that are not over, a line each.
pub(crate) fn lines(tunes: &[TuneStatus], user: &dyn Fn(Uid) -> String) -> Option<String> {
    let running = tunes.iter().filter(|tune| !matches!(tune.state, TuneState::Ended(_)));
    let line = |tune: &TuneStatus| {
        let (job, user, progress) = (&tune.job, user(tune.uid), progress(tune));
        harmless(&format!("Tuning job {job} of {user}: {progress}")).into_owned() + "\n"
    };
    let lines: String = running.map(line).collect();
    (!lines.is_empty()).then_some(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(state: TuneState) -> TuneStatus {
        TuneStatus {
            job: "j".parse().unwrap(),
            uid: Uid(7),
            changed: 3,
            state,
            now: "proving pfo 1, turn 3 of 8".to_owned(),
            done: 0.25,
            remaining_s: Some(95.0),
            saving: Some(0.131),
            remarks: Vec::new(),
        }
    }

    #[test]
    fn a_tune_that_is_not_over_is_a_line_with_its_progress_and_the_time_left() {
        let tunes = [status(TuneState::Proof), status(TuneState::Ended(TuneEnd::Kept))];
        let expected = "Tuning job j of 7: proving pfo 1, turn 3 of 8, 25 %, 1 min 35 s left; the best \
                        plan so far saves 13.1 %\n";
        assert_eq!(lines(&tunes, &|uid| uid.to_string()).as_deref(), Some(expected));
        assert_eq!(lines(&tunes[1..], &|uid| uid.to_string()), None);
    }

    #[test]
    fn what_others_wrote_moves_no_cursor() {
        let mut tune = status(TuneState::Proof);
        tune.now = "a\u{1b}[2Jb".to_owned();
        assert!(!in_words(&tune).contains('\u{1b}'));
        assert!(!lines(&[tune], &|uid| uid.to_string()).unwrap().contains('\u{1b}'));
    }
}
