//! `pfoctl plan plot`: pictures that are whole, on a machine without a font or a screen.

use std::fs;

use crate::pfoctl::Bench;
use insta::assert_snapshot;

/// A PNG's width and height; it must begin and end as one.
fn png_size(bytes: &[u8]) -> (u32, u32) {
    assert!(
        bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes[bytes.len() - 8..].starts_with(b"IEND")
    );
    let side = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
    (side(16), side(20))
}

fn svg(bench: &Bench, name: &str) -> String {
    let text = bench.text(name);
    assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"), "{name}");
    text
}

/// Everything that is written in a picture, and how many shapes of each kind are drawn in it.
fn written(svg: &str) -> String {
    let label = |text: &str| {
        let (label, _) = text.split_once("\n</text>").unwrap();
        label.split_once(">\n").unwrap().1.to_owned()
    };
    let mut lines: Vec<_> = svg.split("<text ").skip(1).map(label).collect();
    for shape in ["rect", "circle", "line", "polyline", "polygon"] {
        lines.push(format!("[{shape}: {}]", svg.matches(&format!("<{shape} ")).count()));
    }
    lines.join("\n")
}

#[test]
fn a_frontier_shows_the_chosen_plan_the_highest_clocks_and_points_of_others() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    bench.write("measured.csv", "time,energy\n1.2,500\n1.3,480\n");
    let plot = ["plan", "plot", "made", "--deadline", "1.05x", "--over", "measured.csv", "-o"];
    bench.done(&[&plot[..], &["a.svg"]].concat());
    assert_snapshot!(written(&svg(&bench, "a.svg")));
    bench.done(&[&plot[..], &["a.png", "--size", "800x500"]].concat());
    assert_eq!(png_size(&fs::read(bench.path("a.png")).unwrap()), (800, 500));
}

#[test]
fn what_lies_over_a_frontier_is_labelled_as_what_it_is() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    bench.frontier("others", 5);
    bench.write("claims.csv", "time,energy\n0.1,1\n1.5,90000\n1.4,1\n");
    bench.write("swept.csv", "plan,time,energy,steps\na,1.4,1,10\n");
    let over = ["claims.csv", "swept.csv", "others"].map(|name| ["--over", name]).concat();
    bench.done(&[&["plan", "plot", "made", "-o", "a.svg"], &over[..]].concat());
    assert_snapshot!(written(&svg(&bench, "a.svg")));
}

#[test]
fn a_timeline_has_a_bar_for_each_instruction_and_the_critical_path() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    bench.done(&["plan", "plot", "made", "--kind", "timeline", "-o", "a.svg"]);
    assert_snapshot!(written(&svg(&bench, "a.svg")));
    bench.done(&[
        "plan",
        "plot",
        "made",
        "--kind",
        "timeline",
        "--colour",
        "frequency",
        "-o",
        "a.png",
    ]);
    let (width, height) = png_size(&fs::read(bench.path("a.png")).unwrap());
    assert!(width >= 1000 && height >= 240);
}

#[test]
fn a_long_step_is_broken_into_bands_and_a_long_pipeline_stays_a_picture() {
    let bench = Bench::new();
    bench.done(&[
        "plan",
        "optimize",
        "profile.csv",
        "--microbatches",
        "200",
        "--p2p-power",
        "80",
        "--plans",
        "2",
        "-o",
        "long",
    ]);
    bench.done(&["plan", "plot", "long", "--kind", "timeline", "-o", "a.svg"]);
    assert!(svg(&bench, "a.svg").matches(">\nstage 1\n").count() > 3);
    bench.done(&["plan", "plot", "long", "--kind", "timeline", "--size", "200x200", "-o", "a.png"]);
    assert_eq!(png_size(&fs::read(bench.path("a.png")).unwrap()), (200, 200));
}

#[test]
fn the_chunks_of_an_interleaved_step_are_told_apart() {
    let bench = Bench::new();
    let schedule = ["--schedule", "interleaved-1f1b", "--chunks", "3", "--microbatches", "4"];
    let optimize = ["plan", "optimize", "profile.csv", "--p2p-power", "80", "-o", "made"];
    bench.done(&[&optimize[..], &schedule].concat());
    bench.done(&["plan", "plot", "made", "--kind", "timeline", "-o", "a.svg"]);
    assert_snapshot!(written(&svg(&bench, "a.svg")));
}

#[test]
fn a_plan_of_any_format_is_drawn_over_its_profile() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    for format in ["pfo", "zeus"] {
        let export = ["plan", "export", "made", "--deadline", "fastest", "--format", format];
        bench.done(&[&export[..], &["-o", "plan"]].concat());
        bench.done(&["plan", "plot", "plan", "--profile", "profile.csv", "-o", "a.svg"]);
        assert!(svg(&bench, "a.svg").contains("critical path"));
    }
}

#[test]
fn what_cannot_be_drawn_is_told_with_what_to_give_instead() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    bench.write("bad.csv", "time,power\n1,2\n");
    bench.done(&["plan", "export", "made", "--deadline", "fastest", "-o", "plan.json"]);
    let refused = |arguments: &[&str]| {
        let ran = bench.run(&[&["plan", "plot"], arguments].concat());
        assert!(!bench.path("a.svg").exists() && !bench.path("a.pdf").exists());
        ran
    };
    assert_printed!(
        refused(&["made", "-o", "a.pdf"]),
        refused(&["plan.json", "-o", "a.svg"]),
        refused(&["plan.json", "--kind", "frontier", "-o", "a.svg"]),
        refused(&["made", "--over", "bad.csv", "-o", "a.svg"]),
        refused(&["made", "--deadline", "0.001", "-o", "a.svg"]),
        refused(&["made", "--size", "5", "-o", "a.svg"]),
    );
}
