use std::fmt::Write;

use pfo_protocol::{
    AgentStatus, ClockTable, Instruction, Mhz, PlannedUnit, RanUnit, Stage, Status, Unit,
};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::{CrosstermBackend, TestBackend};
use ratatui::layout::Size;
use ratatui::style::Color;

use super::super::keys::Key;
use super::*;
use crate::status::Both;

/// A node that something is wrong with, and a job whose plan saves energy.
fn snapshot() -> Snapshot {
    let pfod: Status =
        serde_json::from_str(include_str!("../../../tests/golden/status.json")).unwrap();
    let agent: AgentStatus =
        serde_json::from_str(include_str!("../../../tests/golden/agent.json")).unwrap();
    let waits = pfod.jobs[0].ranks.iter().map(|rank| (rank.session, 0.1 * f64::from(rank.rank.0)));
    let (key, units) = ((pfod.jobs[0].uid, pfod.jobs[0].job.clone()), |stage: u32| {
        let unit = |microbatch: u32| PlannedUnit {
            unit: Unit::new(
                if microbatch.is_multiple_of(2) {
                    Instruction::Forward
                } else {
                    Instruction::Backward
                },
                microbatch / 2,
            ),
            mhz: Mhz(1410 - 60 * stage - 15 * microbatch),
            wait_mhz: None,
        };
        (0..8).map(unit).collect()
    });
    let table = ClockTable::new(4, None, (0..4).map(units).collect()).unwrap();
    Snapshot {
        users: [(pfod.jobs[0].uid, "alice".to_owned())].into(),
        waits: waits.collect(),
        plan: Some((key, table)),
        both: Both { pfod, agent: Ok(agent), tunes: Vec::new() },
    }
}

/// A node of 64 GPUs, each with a rank of one of eight jobs.
fn large() -> Snapshot {
    let mut snapshot = snapshot();
    let Status { gpus, jobs, .. } = &mut snapshot.both.pfod;
    let (first, job) = (gpus[0].clone(), jobs[0].clone());
    *gpus = (0..64)
        .map(|index| {
            let mut gpu = first.clone();
            gpu.index = index;
            gpu.uuid = format!("GPU-{index:08x}-8a11-4c6e-9d4e-0123456789a0").parse().unwrap();
            gpu.power_w = Some(f64::from(200 + index));
            let holder = gpu.holder.as_mut().unwrap();
            holder.job = format!("job-{}", index / 8).parse().unwrap();
            gpu
        })
        .collect();
    *jobs = (0..8)
        .map(|number| {
            let mut job = job.clone();
            job.job = format!("job-{number}").parse().unwrap();
            job
        })
        .collect();
    snapshot
}

fn shown(snapshot: Snapshot) -> Shown {
    let mut shown = Shown::new(Duration::from_secs(2), false);
    shown.take(Ok(Box::new(snapshot)), Instant::now());
    shown
}

/// The job has run a step: each stage as `plan` has it, one after the other's begin.
fn stepped(snapshot: Snapshot) -> Shown {
    let (key, table) = snapshot.plan.clone().unwrap();
    let ran = |stage: u64, place: u64, unit: &PlannedUnit| {
        let began_ns = (2 * stage + 3 * place) * 50_000_000;
        RanUnit { unit: unit.unit, began_ns, ended_ns: began_ns + 100_000_000 }
    };
    let stages = table.stages().iter().zip(0_u16..).map(|(units, stage)| {
        let units = units.iter().zip(0..);
        (Stage(stage), units.map(|(unit, place)| ran(stage.into(), place, unit)).collect())
    });
    let stages = stages.collect();
    let mut shown = shown(snapshot);
    shown.take_step(key, Ok(Step { stages }));
    shown
}

fn after(keys: &[Key], shown: &Shown, (width, height): (u16, u16)) -> State {
    let mut state = State::default();
    for key in keys {
        state.press(*key, &listing(shown, &state, Rect::new(0, 0, width, height)));
    }
    state
}

/// The screen as text, without blanks at the ends of lines.
fn screen(shown: &Shown, keys: &[Key], size: (u16, u16)) -> String {
    let state = after(keys, shown, size);
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|frame| draw(shown, &state, frame.area(), frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..size.1).fold(String::new(), |mut text, y| {
        writeln!(text, "{}", line(y).trim_end()).unwrap();
        text
    })
}

const JOB: &[Key] = &[Key::Char('2'), Key::Enter];

#[test]
fn the_lists_are_as_they_were_seen_to_be_good() {
    let pages: [(&str, &[Key]); 7] = [
        ("GPUs", &[]),
        ("jobs", &[Key::Char('2')]),
        (
            "ranks, sorted by the GPU",
            &[Key::Char('3'), Key::Right, Key::Right, Key::Right, Key::Right],
        ),
        ("a job", JOB),
        ("a job and its last step", JOB),
        ("what needs attention", &[Key::Char('a')]),
        ("help", &[Key::Char('?')]),
    ];
    let mut text = String::new();
    for (width, height) in [(80, 24), (200, 50), (40, 10)] {
        for (name, keys) in &pages {
            let shown =
                if name.ends_with("step") { stepped(snapshot()) } else { shown(snapshot()) };
            let screen = screen(&shown, keys, (width, height));
            write!(text, "===== {name}, {width}x{height}\n{}\n", screen.trim_end()).unwrap();
        }
    }
    insta::assert_snapshot!(text);
}

#[test]
fn the_saving_and_the_clocks_are_seen_at_every_size() {
    for size in [(200, 50), (80, 24), (40, 10)] {
        let jobs = screen(&shown(snapshot()), &[Key::Char('2')], size);
        assert!(jobs.contains("gpt-7b") && jobs.contains("15.2 %"), "{jobs}");
        let gpus = screen(&shown(snapshot()), &[], size);
        for figure in ["1260", "1140", "298 W"] {
            assert!(gpus.contains(figure), "{figure}: {gpus}");
        }
    }
}

#[test]
fn every_one_of_64_gpus_is_reached_and_the_place_is_told() {
    let shown = shown(large());
    let (first, last) = (
        screen(&shown, &[], (80, 24)),
        screen(&shown, &[Key::End, Key::PageUp, Key::End], (80, 24)),
    );
    insta::assert_snapshot!([first, last].join("\n=====\n"));
    let mut seen = Vec::new();
    for pages in 0..8 {
        let keys = vec![Key::PageDown; pages];
        let text = screen(&shown, &keys, (80, 24));
        seen.extend((0..64).filter(|index| text.contains(&format!("{} W", 200 + index))));
    }
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen.len(), 64);
}

#[test]
fn sorting_and_filtering_change_the_rows_and_what_the_header_says() {
    let shown = shown(large());
    let by_power = [Key::Right; 7];
    let keys = [&by_power[..], &[Key::Char('r')]].concat();
    insta::assert_snapshot!("sorted_by_falling_power", screen(&shown, &keys, (80, 24)));
    let keys: Vec<Key> = "/job-3".chars().map(Key::Char).chain([Key::Enter]).collect();
    insta::assert_snapshot!("filtered", screen(&shown, &keys, (80, 24)));
    let keys: Vec<Key> = "/no such".chars().map(Key::Char).collect();
    insta::assert_snapshot!("filtered_to_nothing", screen(&shown, &keys, (80, 24)));
}

#[test]
fn names_of_others_cannot_command_the_terminal() {
    const EVIL: &str = "\x1b[2J\x1b]0;owned\x07\x1b[31m\u{202e}evil\r\n";
    let mut snapshot = snapshot();
    let Status { gpus, jobs, daemon } = &mut snapshot.both.pfod;
    let plan = jobs[0].plan.as_mut().unwrap();
    plan.label = EVIL.to_owned();
    plan.suspended = Some(EVIL.to_owned());
    jobs[0].loaded.as_mut().unwrap().label = EVIL.to_owned();
    jobs[0].windows[1].plan = jobs[0].plan.clone();
    jobs[0].ranks[0].problem = Some(EVIL.to_owned());
    jobs[0].ranks[1].last_mismatch = Some(EVIL.to_owned());
    gpus[0].problem = Some(EVIL.to_owned());
    gpus[1].model = EVIL.to_owned();
    daemon.driver = Some(EVIL.to_owned());
    snapshot.users.insert(jobs[0].uid, EVIL.to_owned());
    let mut shown = shown(snapshot);
    let pages: [&[Key]; 5] = [&[], &[Key::Char('2')], &[Key::Char('3')], JOB, &[Key::Char('a')]];
    for away in [false, true] {
        if away {
            shown.away = Some((crate::text::harmless(EVIL).into_owned(), Duration::ZERO));
        }
        for keys in pages {
            let state = after(keys, &shown, (200, 50));
            let mut terminal = Terminal::new(TestBackend::new(200, 50)).unwrap();
            terminal.draw(|frame| draw(&shown, &state, frame.area(), frame.buffer_mut())).unwrap();
            let mut evil = false;
            for cell in terminal.backend().buffer().content() {
                let bad = |c: char| c.is_control() || c == '\u{202e}';
                assert!(!cell.symbol().contains(bad), "{:?}", cell.symbol());
                evil |= cell.symbol() == "\\";
            }
            assert!(evil, "nothing escaped on {keys:?}");
        }
    }
}

/// What a terminal is sent.
#[derive(Clone, Default)]
struct Link(std::rc::Rc<std::cell::RefCell<Vec<u8>>>);

impl std::io::Write for Link {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.borrow_mut().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn over_a_slow_link_only_what_changed_is_sent() {
    let link = Link::default();
    let area = Rect::new(0, 0, 80, 24);
    let options = ratatui::TerminalOptions { viewport: ratatui::Viewport::Fixed(area) };
    let mut terminal =
        Terminal::with_options(CrosstermBackend::new(link.clone()), options).unwrap();
    let mut sent = |shown: &Shown| {
        link.0.borrow_mut().clear();
        let state = State::default();
        terminal.draw(|frame| draw(shown, &state, area, frame.buffer_mut())).unwrap();
        link.0.borrow().len()
    };
    let all = sent(&shown(large()));
    let same = sent(&shown(large()));
    let mut changed = large();
    changed.both.pfod.gpus[3].power_w = Some(333.0);
    let one = sent(&shown(changed));
    assert!(all > 1000 && same < 40 && (same + 3..100).contains(&one), "{all} {same} {one}");
}

#[test]
fn a_daemon_that_is_away_is_said_to_be_and_its_last_figures_stay() {
    let mut shown = shown(snapshot());
    let later = Instant::now() + Duration::from_secs(12);
    shown.take(Err("cannot reach pfod: there is no socket".to_owned()), later);
    let [wide, narrow] = [(80, 24), (40, 10)].map(|size| screen(&shown, &[], size));
    insta::assert_snapshot!([wide, narrow].join("\n=====\n"));
    shown.take(Ok(Box::new(snapshot())), later);
    assert!(screen(&shown, &[], (80, 24)).starts_with("pfod 0.1.0"));
}

#[test]
fn why_a_step_is_not_known_is_said_above_the_plan() {
    let snapshot = snapshot();
    let key = snapshot.plan.clone().unwrap().0;
    let mut shown = shown(snapshot);
    shown.take_step(key.clone(), Err("job gpt-7b of alice has ranks on other nodes".to_owned()));
    let [narrow, wide] = [(80, 24), (200, 50)].map(|size| screen(&shown, JOB, size));
    insta::assert_snapshot!([narrow, wide].join("\n=====\n"));
    let other = (key.0, "another".parse().unwrap());
    shown.take_step(other, Err("whatever".to_owned()));
    assert!(!screen(&shown, JOB, (80, 24)).contains("whatever"));
}

#[test]
fn without_colour_no_cell_has_one() {
    let mut shown = shown(snapshot());
    for colour in [false, true] {
        shown.colour = colour;
        let state = after(JOB, &shown, (80, 40));
        let mut buffer = Buffer::empty(Rect::from(Size::new(80, 40)));
        draw(&shown, &state, buffer.area, &mut buffer);
        assert_eq!(buffer.content().iter().any(|cell| cell.fg != Color::Reset), colour);
    }
}

fn any_key() -> impl Strategy<Value = Key> {
    use Key::{
        BackTab, Backspace, Char, Down, End, Enter, Escape, Home, PageDown, PageUp, Tab, Up,
    };
    prop_oneof![
        proptest::sample::select(vec![
            Enter, Escape, Backspace, Tab, BackTab, Up, Down, PageUp, PageDown, Home, End,
        ]),
        proptest::sample::select("123sS<>r/a?jkxyz ".chars().collect::<Vec<_>>()).prop_map(Char),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_size_and_no_key_is_too_much(
        width in 0_u16..210,
        height in 0_u16..60,
        keys in proptest::collection::vec(any_key(), 0..12),
    ) {
        for snapshot in [snapshot(), large()] {
            screen(&stepped(snapshot), &keys, (width, height));
        }
    }
}
