//! What was seen and what it means, as people read it: on a terminal, and as a page.

use pfo_planner::{Instruction, Prospect, Stage};

use super::seen::{Seen, Work};
use crate::output::Look;
use crate::profile::throttle_reasons;
use crate::report::{document, element, list, table as html_table};
use crate::status::quantity::{joules, percent, seconds, watts};
use crate::status::table::{Cell, Table, heading};

const NOT_SEEN: &str = "No step was seen: the command opened no session with pfo, or ended before its \
                        third step. docs/frameworks.md says how a trainer reports its instructions.";

const ASK: [&str; 2] = [
    "pfo has set nothing. To save this energy, ask the administrator of this node to install pfo: then \
     `pfod` sets clocks for you, and you need no root (README, For administrators).",
    "Then `pfoctl tune JOB --max-slowdown 1%` finds a plan, and measures what it saves on the job itself.",
];

const HEADER: [&str; 7] =
    ["Stage", "Instruction", "In a step", "Time", "Energy", "Power", "Clock kept down"];

fn counted(count: u64, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// The cells of each kind of instruction.
fn instructions(seen: &Seen) -> Vec<[Option<String>; 7]> {
    let row = |(&(stage, instruction), work): (&(Stage, Instruction), &Work)| {
        let energy = work.energy_j();
        let power_w = energy.map(|(energy_j, _)| energy_j / work.time_s());
        [
            Some(stage.to_string()),
            Some(instruction.to_string()),
            Some(format!("{:.0}", seen.per_step(stage, work))),
            Some(seconds(work.time_s())),
            energy.map(|(energy_j, error_j)| {
                format!("{} ± {}", joules(energy_j), percent(error_j / energy_j))
            }),
            power_w.map(watts),
            work.throttled().map(percent),
        ]
    };
    seen.work.iter().map(row).collect()
}

/// What is known of steps, waits and GPUs, in sentences.
fn facts(seen: &Seen) -> Vec<String> {
    let mut facts = Vec::new();
    if let Some(step_s) = seen.steps.time_s() {
        let energy = seen.steps.energy_j().map(|energy_j| format!(" and {}", joules(energy_j)));
        let (count, ranks) = (seen.steps.count, seen.ranks);
        facts.push(format!(
            "A step takes {}{}, the mean of {} of {}.",
            seconds(step_s),
            energy.unwrap_or_default(),
            counted(count, "step"),
            counted(ranks as u64, "rank")
        ));
    }
    if let Some(split @ [work_j, waits_j, rest_j]) = seen.split() {
        let of = |part: f64| percent(part / split.iter().sum::<f64>());
        facts.push(format!(
            "Its energy goes into work ({}), waiting for neighbours ({}) and the rest ({}).",
            of(work_j),
            of(waits_j),
            of(rest_j)
        ));
    }
    for (stage, waits) in &seen.waits {
        let (waits_s, power) = (seen.waits_s(*stage), waits.power_w().map(watts));
        if let (Some(waits_s), Some(power)) = (waits_s.filter(|waits_s| *waits_s > 0.0), power) {
            facts.push(format!("Stage {stage} waits {} in a step, at {power}.", seconds(waits_s)));
        }
    }
    for (index, gpu) in &seen.gpus {
        let mhz = |clock: Option<u32>| clock.map_or("no".to_owned(), |mhz| format!("{mhz} MHz"));
        let reasons = match throttle_reasons(gpu.throttle_reasons) {
            text if text.is_empty() => "nothing kept it down".to_owned(),
            text => format!("kept down by {text}"),
        };
        let hottest = gpu.hottest_c.map_or(String::new(), |heat| format!(", {heat} °C at most"));
        facts.push(format!(
            "GPU {index} ({}) held {}, {} at most; {reasons}{hottest}.",
            gpu.model,
            mhz(gpu.usual_mhz),
            mhz(gpu.highest_mhz)
        ));
    }
    facts
}

/// What clocks would save, in sentences that cannot be taken for a measurement.
fn predictions(seen: &Seen, prospects: &Result<Vec<Prospect>, String>) -> Vec<String> {
    let prospects = match prospects {
        Ok(prospects) => prospects,
        Err(why) => return vec![format!("Nothing can be predicted: {why}.")],
    };
    let mut said = Vec::new();
    for Prospect { slowdown, least, likely, most } in prospects {
        let Some(likely) = likely else {
            let model = seen.model().unwrap_or("this model");
            said.push(format!(
                "pfo has no published curves of {model}, and so a bound but no estimate: clocks save at most \
                 {} of the energy, the part beyond what waiting at low clocks takes.",
                percent(*most)
            ));
            break;
        };
        let when = match slowdown {
            0.0 => "without longer steps".to_owned(),
            slowdown => format!("with steps up to {} longer", percent(*slowdown)),
        };
        said.push(format!(
            "Predicted, {when}: {} of the energy, between {} and {}.",
            percent(*likely),
            percent(*least),
            percent(*most)
        ));
    }
    if seen.stages.len() == 1 {
        said.push(
            "The job has one stage, which waits for no neighbour: it saves only where instructions run no \
             slower at a lower clock, or if steps may take longer."
                .to_owned(),
        );
    }
    said
}

/// For a terminal.
pub(super) fn text(seen: &Seen, prospects: &Result<Vec<Prospect>, String>, look: Look) -> String {
    let mut text = heading("Seen by pfo, which set nothing", look);
    let lines =
        |lines: &[String]| lines.iter().map(|line| format!("  {line}\n")).collect::<String>();
    if seen.steps.count == 0 {
        text += &lines(&[NOT_SEEN.to_owned()]);
        text +=
            &seen.trouble.iter().map(|why| format!("  The last look: {why}\n")).collect::<String>();
        return text;
    }
    text += &lines(&facts(seen));
    if !seen.work.is_empty() {
        let mut table = Table::new(look);
        for (place, name) in HEADER.into_iter().enumerate() {
            table = if place < 2 { table.left(name) } else { table.right(name) };
        }
        for row in instructions(seen) {
            table.row(row.map(Cell::option));
        }
        text += &format!("\n{}", table.render());
    }
    text += &format!("\n{}", heading("What clocks would save", look));
    text += &lines(&predictions(seen, prospects));
    text += &format!("\n{}", heading("What to do", look));
    text + &lines(&ASK.map(str::to_owned))
}

/// For a browser.
pub(super) fn page(
    seen: &Seen,
    prospects: &Result<Vec<Prospect>, String>,
    command: &str,
) -> String {
    let title = format!("Observed: {command}");
    let mut parts = vec![element("h1", &title)];
    if seen.steps.count == 0 {
        parts.push(element("p", NOT_SEEN));
        parts.extend(seen.trouble.iter().map(|why| element("p", &format!("The last look: {why}"))));
        return document(&title, &parts);
    }
    parts.extend([
        element("p", "pfo looked at this job and set nothing. Figures are measured unless they say predicted."),
        element("h2", "Seen"),
        list(&facts(seen)),
        html_table(HEADER, instructions(seen)),
        element("h2", "What clocks would save, predicted"),
        list(&predictions(seen, prospects)),
        element("p", "The curves behind it and their sources are in planner/src/prospect/curves.csv."),
        element("h2", "What to do"),
        list(&ASK.map(|line| line.replace('`', "'"))),
    ]);
    document(&title, &parts)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::observe::prospect::prospects;
    use crate::observe::seen::tests::example;

    #[test]
    fn the_report_says_what_is_measured_what_is_predicted_and_whom_to_ask() {
        let seen = example();
        let text = text(&seen, &prospects(&seen), Look::default());
        for words in
            ["set nothing", "Predicted, without longer steps", "between", "ask the administrator"]
        {
            assert!(text.contains(words), "{words}: {text}");
        }
        insta::assert_snapshot!(text);
    }

    #[test]
    fn a_model_without_curves_has_bounds_only() {
        let mut seen = example();
        seen.gpus.values_mut().for_each(|gpu| gpu.model = "NVIDIA H100 80GB HBM3".to_owned());
        let said = predictions(&seen, &prospects(&seen)).join("\n");
        assert!(
            said.contains("no published curves of NVIDIA H100") && !said.contains("Predicted,"),
            "{said}"
        );
    }

    #[test]
    fn steps_without_instructions_have_a_time_and_say_what_is_missing() {
        let seen = Seen { work: BTreeMap::new(), ..example() };
        let text = text(&seen, &prospects(&seen), Look::default());
        assert!(text.contains("A step takes 2.0") && !text.contains("Stage  "), "{text}");
        assert!(text.contains("predicted: the job reports steps, but none of their"), "{text}");
    }

    #[test]
    fn a_page_obeys_no_name_that_it_shows() {
        let seen = example();
        let page = page(&seen, &prospects(&seen), "sh -c '<script>alert(1)</script>'");
        assert!(page.contains("&lt;script&gt;") && !page.contains("<script"), "{page}");
    }

    #[test]
    fn a_command_of_which_no_step_was_seen_has_no_figure() {
        let seen = Seen::default();
        let text = text(&seen, &prospects(&seen), Look::default());
        assert!(text.contains("No step was seen") && !text.contains('%'), "{text}");
    }
}
