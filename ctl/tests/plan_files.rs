//! `pfoctl plan` from a profile to plan files of every format and back. No daemon is asked.

use std::fs;

use crate::pfoctl::Bench;

#[test]
fn a_frontier_sampled_as_python_files_is_imported_as_it_was() {
    for format in ["lowtime", "zeus"] {
        let bench = Bench::new();
        bench.frontier("made", 30);
        bench.done(&["plan", "sample", "made", "-n", "1", "-o", "files", "--format", format]);
        let said = bench.run(&[
            "plan",
            "import",
            "files",
            "--profile",
            "profile.csv",
            "--microbatches",
            "6",
            "--p2p-power",
            "400",
            "-o",
            "imported",
        ]);
        assert_printed!(said);
        let csv = |frontier: &str| bench.done(&["plan", "show", frontier, "--csv"]);
        assert_eq!(csv("imported"), csv("made"), "{format}");
    }
}

/// A profile of Kareus for one stage, with two payloads at its lower clock.
const KAREUS: &str = "stage,instruction,frequency,attention_configs,mlp_configs,time,energy\n\
                      0,forward,1410,a-1,m-1,0.05,20\n0,forward,1200,a-2,m-2,0.056,17\n\
                      0,forward,1200,a-3,m-3,0.055,19\n0,backward,1410,b-1,n-1,0.1,41\n\
                      0,backward,1200,b-2,n-2,0.112,35\n";

#[test]
fn payloads_of_kareus_go_with_the_clocks_of_a_plan() {
    let bench = Bench::new();
    bench.write("kareus.csv", KAREUS);
    bench.write("freqs.py", "[\n[('forward', 1200), ('backward', 1410)],\n]\n# claims\n");
    bench.write("scheds.py", "[\n[(('forward', 'x', 'y'), ('backward', 'z', ''))],\n]\n# claims\n");
    let import = ["plan", "import", "freqs.py", "--profile", "kareus.csv", "--microbatches", "1"];
    let payloads = |more: &[&str]| -> Vec<String> {
        let json = bench.done(&[&import[..], more, &["-o", "-"]].concat());
        let plan: serde_json::Value = serde_json::from_str(&json).unwrap();
        let payloads = plan["payloads"].as_array().unwrap().iter();
        payloads.map(|one| one["payload"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(payloads(&[]), ["a-2,m-2", "b-1,n-1"]);
    assert_eq!(payloads(&["--payloads", "scheds.py"]), ["x,y", "z,"]);

    let optimize = ["plan", "optimize", "kareus.csv", "--microbatches", "1", "--p2p-power", "50"];
    bench.done(&[&optimize[..], &["-o", "made"]].concat());
    let export = ["plan", "export", "made", "--deadline", "fastest", "-o", "-"];
    let text = bench.done(&[&export[..], &["--format", "payloads"]].concat());
    assert_eq!(text, "[\n[(('forward', 'a-1', 'm-1'), ('backward', 'b-1', 'n-1'))],\n]\n");
}

#[test]
fn a_frontier_as_csv_falls_from_the_fastest_plan_on() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    let csv = bench.done(&["plan", "show", "made", "--csv"]);
    let mut lines = csv.lines();
    assert_eq!(lines.next(), Some("time,energy"));
    let rows: Vec<(f64, f64)> = lines
        .map(|line| line.split_once(',').unwrap())
        .map(|(time, energy)| (time.parse().unwrap(), energy.parse().unwrap()))
        .collect();
    assert!(rows.len() > 2 && rows.is_sorted_by(|a, b| a.0 < b.0 && a.1 > b.1), "{csv}");
}

#[test]
fn a_sample_has_numbers_that_rise_with_speed_and_the_fastest_plan() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    let said = bench.done(&["plan", "sample", "made", "-n", "4", "-o", "files"]);
    let mut names: Vec<String> = fs::read_dir(bench.path("files"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(said.contains(&format!("{} of ", names.len())), "{said}");
    assert_eq!(names[..2], ["plan_00000.json", "plan_00004.json"]);
    let time = |name: &String| {
        let json: serde_json::Value =
            serde_json::from_slice(&fs::read(bench.path("files").join(name)).unwrap()).unwrap();
        json["predicted"]["iteration_time_s"].as_f64().unwrap()
    };
    let times: Vec<f64> = names.iter().map(time).collect();
    assert!(times.is_sorted_by(|a, b| a > b), "{times:?}");
    let csv = bench.done(&["plan", "show", "made", "--csv"]);
    let fastest = csv.lines().nth(1).unwrap().split_once(',').unwrap().0.to_owned();
    assert_eq!(times.last().unwrap().to_string(), fastest);
}

#[test]
fn a_sample_among_older_files_is_refused_and_changes_nothing() {
    let bench = Bench::new();
    bench.frontier("made", 10);
    bench.done(&["plan", "sample", "made", "-n", "2", "-o", "files"]);
    assert_printed!(bench.run(&["plan", "sample", "made", "-n", "1", "-o", "files"]));
}

#[test]
fn a_stragglers_time_picks_the_plan_that_an_equal_deadline_exports() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    let picked = bench.done(&["plan", "pick", "made", "--straggler", "1.05"]);
    let exported = bench.done(&["plan", "export", "made", "--deadline", "1.05x"]);
    assert_eq!(picked, exported);
    let slow = bench.run(&["plan", "pick", "made", "--straggler", "99", "-o", "slow.json"]);
    let slowest = bench.done(&["plan", "export", "made", "--deadline", "99x"]);
    assert_eq!(fs::read_to_string(bench.path("slow.json")).unwrap(), slowest);
    assert_printed!(slow, bench.run(&["plan", "pick", "made", "--straggler", "0.9"]));
}

#[test]
fn no_plan_takes_less_than_the_bound_and_each_is_what_export_writes() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    let deadlines = ["1.02x", "min-energy", "1.3x"];
    let json = bench.done(&["plan", "bound", "made", "--deadline", &deadlines.join(","), "--json"]);
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    assert_eq!(rows.len(), deadlines.len());
    for (row, deadline) in rows.iter().zip(deadlines) {
        let exported = bench.done(&["plan", "export", "made", "--deadline", deadline]);
        let plan: serde_json::Value = serde_json::from_str(&exported).unwrap();
        let figure = |name: &str| plan["predicted"][name].as_f64().unwrap();
        let wait_s = row["time_s"].as_f64().unwrap() - figure("iteration_time_s");
        let until_j = figure("iteration_energy_j") + 2.0 * 400.0 * wait_s;
        assert!((row["energy_j"].as_f64().unwrap() - until_j).abs() < 1e-6, "{row}");
        assert!(row["least_energy_j"].as_f64().unwrap() <= until_j && wait_s >= 0.0, "{row}");
    }
    assert_printed!(bench.run(&["plan", "bound", "made"]));
}

#[test]
fn a_gpu_that_would_draw_more_while_it_waits_than_while_it_computes_is_refused() {
    let bench = Bench::new();
    let optimize = ["plan", "optimize", "profile.csv", "--microbatches", "6", "-o", "made"];
    assert_printed!(bench.run(&[&optimize[..], &["--p2p-power", "8364"]].concat()));
}

#[test]
fn where_the_site_draws_much_the_plan_of_least_energy_is_faster() {
    let bench = Bench::new();
    let optimize = ["plan", "optimize", "profile.csv", "--microbatches", "6", "--p2p-power", "80"];
    let mut times = Vec::new();
    for site in ["0", "500"] {
        bench.done(&[&optimize[..], &["--site-power", site, "-o", "made"]].concat());
        let shown: serde_json::Value =
            serde_json::from_str(&bench.done(&["plan", "show", "made", "--json"])).unwrap();
        let cheapest = shown["points"].as_array().unwrap().last().unwrap().clone();
        times.push(cheapest["iteration_time_s"].as_f64().unwrap());
    }
    assert!(times[1] < times[0], "{times:?}");
    assert_printed!(bench.run(&["plan", "show", "made"]));
}

#[test]
fn every_format_of_a_plan_is_evaluated_alike() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    let mut answers = Vec::new();
    for format in ["pfo", "lowtime", "zeus"] {
        let arguments = ["plan", "export", "made", "--deadline", "1.02x", "--format", format];
        bench.done(&[&arguments[..], &["-o", "plan"]].concat());
        let evaluate = ["plan", "evaluate", "profile.csv", "plan", "--p2p-power", "400", "--json"];
        answers.push(bench.done(&evaluate));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
}

#[test]
fn one_python_file_becomes_a_plan_with_its_replay() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    bench.done(&[
        "plan",
        "export",
        "made",
        "--deadline",
        "fastest",
        "--format",
        "zeus",
        "-o",
        "a.py",
    ]);
    let import = ["plan", "import", "a.py", "--profile", "profile.csv", "--microbatches", "6"];
    let json = bench.done(&[&import[..], &["--p2p-power", "400", "-o", "-"]].concat());
    assert_eq!(json, bench.done(&["plan", "export", "made", "--deadline", "fastest"]));
}

#[test]
fn what_does_not_fit_is_told_with_the_files_name_and_the_place() {
    let bench = Bench::new();
    bench.write("odd.py", "[\n[1400, 1400],\n[__import__('os')],\n]\n");
    bench.write("short.py", "[[1400, 1400], [1400, 1400]]\n");
    fs::create_dir(bench.path("empty")).unwrap();
    let refused = |plans: &str| {
        let import = ["plan", "import", plans, "--profile", "profile.csv", "--microbatches", "6"];
        let ran = bench.run(&[&import[..], &["--p2p-power", "400", "-o", "out"]].concat());
        assert!(!bench.path("out").exists());
        ran
    };
    assert_printed!(
        refused("odd.py"),
        refused("short.py"),
        refused("empty"),
        refused("/nowhere.py"),
    );
}

#[test]
fn a_comparison_has_every_policy_and_ours_never_take_more_energy_in_their_time() {
    let bench = Bench::new();
    let compare = ["plan", "compare", "profile.csv", "--microbatches", "6", "--p2p-power", "80"];
    let json = bench.done(&[&compare[..], &["--json", "--slowdown", "0%,5%"]].concat());
    let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
    let row = |name: &str| {
        let found = rows.iter().find(|row| row["policy"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {json}"))
    };
    for policy in [
        "envpipe-baseline",
        "envpipe-uniform-default",
        "envpipe-uniform-greedy",
        "envpipe-uniform-balanced",
        "envpipe-envelope-default",
        "envpipe-envelope-greedy",
        "envpipe-envelope-balanced",
        "envpipe-offline",
        "zeus-global",
        "zeus-global, up to +5 %",
        "zeus-per-stage",
        "lowtime-perseus",
        "lowtime-perseus, up to +5 %",
        "lowtime-zeus",
    ] {
        let theirs_j = row(policy)["iteration_energy_j"].as_f64().unwrap();
        let ours_j = row(policy)["ours_at_that_time_j"].as_f64().unwrap();
        // The plans of a frontier have times of their own, so one may be a little early.
        assert!(ours_j < 1.001 * theirs_j, "{policy}: {ours_j} J against {theirs_j} J");
    }
    assert_eq!(row("all-max")["saving"], 0.0);
    assert!(row("pfo, up to +5 %")["saving"].as_f64() >= row("pfo, fastest")["saving"].as_f64());
    assert_printed!(bench.run(&compare), bench.run(&[&compare[..], &["--csv"]].concat()));
}

#[test]
fn others_are_compared_with_as_they_are_told_to_run() {
    let bench = Bench::new();
    let compare = ["plan", "compare", "profile.csv", "--microbatches", "6", "--p2p-power", "80"];
    let row = |policy: &str, tuning: &[&str]| {
        let json = bench.done(&[&compare[..], tuning, &["--json"]].concat());
        let rows: Vec<serde_json::Value> = serde_json::from_str(&json).unwrap();
        rows.into_iter().find(|row| row["policy"] == policy).unwrap()
    };
    for (policy, tuning) in [
        ("lowtime-perseus", &["--unit-time-ms", "0.1"][..]),
        ("envpipe-offline", &["--unit-time-ms", "50"]),
        ("zeus-global", &["--zeus-eta", "1"]),
        ("envpipe-uniform-default", &["--envpipe-profile-step", "20"]),
        (
            "envpipe-envelope-balanced",
            &["--envpipe-profile-step", "30", "--envpipe-raise-step", "5"],
        ),
        (
            "envpipe-envelope-greedy",
            &[
                "--envpipe-profile-step",
                "30",
                "--envpipe-threshold",
                "9",
                "--envpipe-transfer-ms",
                "8",
            ],
        ),
    ] {
        assert_ne!(row(policy, tuning), row(policy, &[]), "{policy} {tuning:?}");
    }
    for tuning in [
        ["--unit-time-ms", "0"],
        ["--unit-time-ms", "nan"],
        ["--zeus-eta", "1.5"],
        ["--envpipe-threshold", "-1"],
        ["--envpipe-profile-step", "0"],
        ["--envpipe-raise-step", "0"],
    ] {
        assert_eq!(bench.run(&[&compare[..], &tuning].concat()).code, Some(2), "{tuning:?}");
    }
}

#[test]
fn who_can_make_nothing_of_a_profile_is_left_out_by_name() {
    let bench = Bench::new();
    let profile = fs::read_to_string(bench.path("profile.csv")).unwrap();
    let without: String =
        profile.lines().filter(|line| !line.contains("1370")).map(|l| format!("{l}\n")).collect();
    bench.write("profile.csv", &without);
    let compare = ["plan", "compare", "profile.csv", "--microbatches", "6", "--p2p-power", "80"];
    assert_printed!(bench.run(&compare));
}

#[test]
fn a_comparison_asks_for_slowdowns_in_percent() {
    let bench = Bench::new();
    let compare = ["plan", "compare", "profile.csv", "--microbatches", "6", "--p2p-power", "80"];
    assert_printed!(bench.run(&[&compare[..], &["--slowdown", "fast"]].concat()));
}

#[test]
fn a_plan_is_shown_as_envpipes_table() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    bench.done(&["plan", "export", "made", "--deadline", "fastest", "-o", "plan.json"]);
    let show = ["plan", "show", "plan.json", "--envpipe"];
    assert_printed!(
        bench.run(&[&show[..], &["--profile", "profile.csv"]].concat()),
        bench.run(&show),
    );
}

#[test]
fn a_plan_is_shown_and_drawn_over_the_ranks_and_the_latency_that_it_was_made_for() {
    let bench = Bench::new();
    bench.frontier("made", 30);
    bench.done(&["plan", "export", "made", "--deadline", "fastest", "-o", "plan.json"]);
    let profile = fs::read_to_string(bench.path("profile.csv")).unwrap();
    // The second rank of each stage is slower by 20 ms in its first forward's clock.
    let ranks: String = profile
        .lines()
        .map(|row| match row {
            "stage,instruction,frequency,time,energy" => format!("{row},dp_rank\n"),
            _ => format!("{row},0\n{},1\n", row.replace("1400,0.050", "1400,0.070")),
        })
        .collect();
    bench.write("ranks.csv", &ranks);
    let show = |arguments: &[&str]| {
        let show = ["plan", "show", "plan.json", "--envpipe", "--profile", "ranks.csv"];
        bench.done(&[&show[..], arguments].concat())
    };
    assert!(show(&[]).contains("Stage 1 | [F0 1400 60.0]"));
    assert!(show(&["--combine", "slowest"]).contains("Stage 1 | [F0 1400 70.0]"));
    assert_ne!(show(&["--switch-latency-ms", "15"]), show(&[]));

    let plot = |name: &str, arguments: &[&str]| {
        let plot = ["plan", "plot", "plan.json", "--profile", "ranks.csv", "-o", name];
        bench.done(&[&plot[..], arguments].concat());
        fs::read(bench.path(name)).unwrap()
    };
    assert_ne!(plot("a.svg", &["--combine", "slowest"]), plot("b.svg", &[]));
    assert_printed!(
        bench.run(&["plan", "show", "made", "--combine", "slowest"]),
        bench.run(&["plan", "plot", "made", "--combine", "mean", "-o", "c.svg"]),
        bench.run(&["plan", "plot", "made", "--colour", "power", "-o", "c.svg"]),
        bench.run(&["plan", "plot", "made", "--kind", "timeline", "--over", "made", "-o", "c.svg"]),
        bench.run(&[
            "plan",
            "plot",
            "plan.json",
            "--profile",
            "ranks.csv",
            "--over",
            "made",
            "-o",
            "c.svg"
        ]),
    );
}

#[test]
fn a_plan_of_few_clocks_is_not_polished_into_one_of_many() {
    let bench = Bench::new();
    let arguments = ["--microbatches", "6", "--p2p-power", "100", "--clock-per", "stage"];
    bench.done(&[&["plan", "optimize", "profile.csv", "-o", "f"][..], &arguments].concat());
    let ran = bench.run(&["plan", "export", "f", "--deadline", "1.1x", "--polish", "1"]);
    assert_eq!((ran.code, &*ran.stdout), (Some(2), ""), "{ran:?}");
    assert!(ran.stderr.contains("a clock per stage"), "{ran:?}");
}

#[test]
fn the_plan_for_a_deadline_is_compared_with_the_fastest_of_the_frontier() {
    let bench = Bench::new();
    let own = ["profile.csv", "--microbatches", "6", "--p2p-power", "100"];
    let fastest_j = |name: &str, arguments: &[&str]| {
        bench.done(&[&["plan", "optimize"][..], &own, arguments, &["-o", name]].concat());
        if name == "f" {
            bench.done(&["plan", "export", "f", "--deadline", "fastest", "-o", "fastest.json"]);
        }
        let plan = if name == "f" { "fastest.json" } else { name };
        let plan: serde_json::Value = serde_json::from_str(&bench.text(plan)).unwrap();
        plan["predicted"]["iteration_energy_j"].as_f64().unwrap()
    };
    let of_frontier = fastest_j("f", &[]);
    let alone = fastest_j("plan.json", &["--deadline", "fastest"]);
    assert!((alone / of_frontier - 1.0).abs() < 0.002, "{alone} J, {of_frontier} J");
    let said = [&["plan", "optimize"][..], &own, &["--deadline", "fastest", "-o", "p"]].concat();
    let said = bench.done(&said);
    assert!(said.contains("0.0 % energy compared with the fastest plan"), "{said}");
}

#[test]
fn a_format_without_clocks_for_waits_has_the_figures_of_a_plan_without_them() {
    let bench = Bench::new();
    let wait = ["--microbatches", "6", "--wait-power", "1370:30,1400:90"];
    bench.done(&[&["plan", "optimize", "profile.csv", "-o", "w"][..], &wait].concat());
    let export = ["plan", "export", "w", "--deadline", "1.1x", "--format", "zeus", "-o", "w.py"];
    assert!(bench.done(&export).contains("this format has no clocks for waits"));
    let export = ["plan", "export", "w", "--deadline", "1.1x", "-o", "w.json"];
    assert!(!bench.done(&export).contains("this format"));
    let evaluated = |name: &str| {
        let json = bench.done(&["plan", "evaluate", "profile.csv", name, "--json"]);
        serde_json::from_str::<serde_json::Value>(&json).unwrap()
    };
    let evaluated = evaluated("w.json");
    let without_j = evaluated["without_waits"]["iteration_energy_j"].as_f64().unwrap();
    assert!(without_j > 1.001 * evaluated["iteration_energy_j"].as_f64().unwrap());
    let text = bench.text("w.py");
    let claimed = text.lines().find_map(|line| line.split("predicted iteration energy: ").nth(1));
    let number =
        |text: &str| text.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let claimed: String = claimed.map(number).unwrap();
    let claimed: f64 = claimed.parse().unwrap();
    assert!((claimed / without_j - 1.0).abs() < 1e-4, "{claimed} J, {without_j} J");
}

#[test]
fn a_frontier_goes_through_a_pipe() {
    let bench = Bench::new();
    bench.frontier("f", 20);
    let arguments = ["--microbatches", "6", "--p2p-power", "400", "--plans", "20", "-o", "-"];
    let mut piped = bench.pfoctl(&[&["plan", "optimize", "profile.csv"][..], &arguments].concat());
    let output = piped.output().unwrap();
    assert!(output.status.success());
    assert_eq!(output.stdout, fs::read(bench.path("f")).unwrap());
    assert!(!bench.path("-").exists());
}
