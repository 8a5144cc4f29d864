//! Examples of every command.

use super::Tables;

/// Command lines, and what they do.
pub(super) const EXAMPLES: Tables = &[
    (
        "status",
        &[
            ("pfoctl status llama", "Show one job, its GPUs and its plans."),
            ("pfoctl status --watch 5", "Show everything again every five seconds."),
        ],
    ),
    ("top", &[("pfoctl top", "Show everything live; ? lists the keys.")]),
    (
        "plan optimize",
        &[(
            "pfoctl plan optimize profile.csv --microbatches 32 --p2p-power 84 -o llama.frontier",
            "Make the frontier of a pipeline of 32 microbatches.",
        )],
    ),
    ("plan show", &[("pfoctl plan show llama.frontier", "List some plans of a frontier.")]),
    (
        "plan export",
        &[
            (
                "pfoctl plan export llama.frontier --deadline 1.02x -o plan.json",
                "Write the plan of least energy for steps that take 2 % longer than the fastest.",
            ),
            (
                "pfoctl plan export llama.frontier --deadline 2.85s -o plan.json",
                "Write the plan for steps of 2.85 s.",
            ),
        ],
    ),
    (
        "plan pick",
        &[(
            "pfoctl plan pick llama.frontier --straggler 1.15 -o slow.json",
            "Write the plan for a pipeline that waits for one that takes 15 % longer.",
        )],
    ),
    (
        "plan bound",
        &[(
            "pfoctl plan bound llama.frontier --deadline fastest,1.05x",
            "Show how much less energy any plan could take at two deadlines.",
        )],
    ),
    (
        "plan compare",
        &[(
            "pfoctl plan compare profile.csv --microbatches 32 --p2p-power 84",
            "Compare pfo's plans with those of EnvPipe, Zeus and lowtime.",
        )],
    ),
    (
        "plan evaluate",
        &[("pfoctl plan evaluate profile.csv plan.json", "Replay a plan over another profile.")],
    ),
    (
        "plan import",
        &[(
            "pfoctl plan import plans --profile profile.csv --microbatches 32 --p2p-power 84 -o \
             perseus.frontier",
            "Convert the plan files that lowtime wrote into a directory.",
        )],
    ),
    (
        "plan order",
        &[(
            "pfoctl plan order profile.csv --microbatches 8 --schedule gpipe -o order.json",
            "Write GPipe's order as a file to change.",
        )],
    ),
    (
        "plan plot",
        &[
            ("pfoctl plan plot llama.frontier -o frontier.svg", "Draw energy over time."),
            (
                "pfoctl plan plot plan.json --profile profile.csv -o step.png",
                "Draw what each stage does during a step.",
            ),
        ],
    ),
    (
        "plan sample",
        &[(
            "pfoctl plan sample llama.frontier --every 20 -o plans",
            "Write every twentieth plan into a directory, for other tools.",
        )],
    ),
    (
        "plan smooth",
        &[(
            "pfoctl plan smooth profile.csv -o smoothed.csv",
            "Write the profile from which `plan optimize` makes plans.",
        )],
    ),
    (
        "plan load",
        &[
            (
                "pfoctl plan load llama llama.frontier",
                "Load the frontier that `job straggler` and power budgets take plans from.",
            ),
            (
                "pfoctl plan load --for llama plan.json",
                "Have the job begin with a plan whenever it starts.",
            ),
        ],
    ),
    ("plan list", &[("pfoctl plan list", "List the plans that jobs will begin with.")]),
    ("plan drop", &[("pfoctl plan drop llama", "Have the job begin at default clocks again.")]),
    (
        "plan swap",
        &[
            (
                "pfoctl plan swap llama plan.json --wait",
                "Run a plan, and return when all ranks follow it.",
            ),
            (
                "pfoctl plan swap llama plan.json --guard 1%",
                "Run it, and go back once steps take more than 1 % longer than at default clocks.",
            ),
        ],
    ),
    ("plan rollback", &[("pfoctl plan rollback llama --wait", "Return to what ran before.")]),
    (
        "plan guard",
        &[
            ("pfoctl plan guard llama 1%", "Allow steps that take 1 % longer, from now on."),
            ("pfoctl plan guard llama --off", "End the guard."),
        ],
    ),
    (
        "plan sweep",
        &[(
            "pfoctl plan sweep llama llama.frontier --plans 10 -o measured.csv",
            "Run ten plans of a frontier, and write what each takes.",
        )],
    ),
    (
        "job straggler",
        &[
            (
                "pfoctl job straggler llama 1.15",
                "Slow the job down to another pipeline that takes 15 % longer.",
            ),
            ("pfoctl job straggler llama --clear", "Return to the plan before that."),
        ],
    ),
    (
        "profile start",
        &[("pfoctl profile start llama", "Measure each instruction at one clock after the other.")],
    ),
    ("profile status", &[("pfoctl profile status", "Show how far the sweeps are.")]),
    ("profile pause", &[("pfoctl profile pause llama", "Pause the sweep, at default clocks.")]),
    ("profile resume", &[("pfoctl profile resume llama", "Continue where it was paused.")]),
    ("profile stop", &[("pfoctl profile stop llama", "End the sweep without a profile.")]),
    ("profile list", &[("pfoctl profile list", "List the stored profiles.")]),
    (
        "profile export",
        &[
            ("pfoctl profile export llama -o profile.csv", "Write the profile of a model."),
            (
                "pfoctl profile export llama --so-far -o profile.csv",
                "Write what a sweep has measured so far.",
            ),
        ],
    ),
    (
        "profile samples",
        &[(
            "pfoctl profile samples llama --mhz 1410,1200 --steps 20 -o samples.csv",
            "Measure each instruction of 20 steps at two clocks.",
        )],
    ),
    (
        "tune",
        &[
            (
                "pfoctl tune llama",
                "Find a plan whose steps take at most 0.5 % longer, and prove it on the job.",
            ),
            (
                "pfoctl tune llama --max-slowdown 3% --report llama.html",
                "Allow 3 %, and write a page about what was found.",
            ),
            ("pfoctl tune llama --attach", "Watch it again, from any terminal."),
        ],
    ),
    (
        "compare tune",
        &[(
            "pfoctl compare tune llama --policy zeus-global",
            "Prove on the job what Zeus finds for it.",
        )],
    ),
    (
        "compare sweep",
        &[(
            "pfoctl compare sweep llama frontier.pfo -o measured.csv --perseus artifact",
            "Measure 30 plans, and write them as Perseus' artifact does.",
        )],
    ),
    ("report", &[("pfoctl report llama -o llama.html", "Write a page about a job.")]),
    (
        "observe",
        &[(
            "pfoctl observe --report page.html -- torchrun train.py",
            "Run a training, and predict what clocks would save it.",
        )],
    ),
    (
        "p2p measure",
        &[(
            "pfoctl p2p measure --job llama",
            "Measure what GPUs draw in the waits of a running job.",
        )],
    ),
    ("p2p set", &[("pfoctl p2p set --model A100-SXM4-80GB 84", "Set 84 W for a model.")]),
    ("p2p show", &[("pfoctl p2p show", "Show every known power, and its origin.")]),
    (
        "clocks acknowledge",
        &[("pfoctl clocks acknowledge", "End the report that pfo may have lost locks.")],
    ),
    ("clocks reset", &[("pfoctl clocks reset", "Free clocks whose session has ended.")]),
    (
        "savings",
        &[
            ("pfoctl savings --since 7d --by user", "Show what each user saved in seven days."),
            (
                "pfoctl savings --month 2026-11 --by partition",
                "Show what each partition saved in a month.",
            ),
            ("pfoctl savings --fleet --month 2026-11 --by user", "Show what all nodes saved."),
            ("pfoctl savings --job llama --by plan --csv", "Write each plan of a job as CSV."),
        ],
    ),
    ("doctor", &[("pfoctl doctor", "Check this node; exits with 1 if something is wrong.")]),
    (
        "selftest",
        &[
            ("pfoctl selftest -o report.md", "Read only, and write the report to send in."),
            ("pfoctl selftest --set --gpu 0", "Lock and restore the clocks of one GPU, too."),
        ],
    ),
    ("lease allow", &[("pfoctl lease allow llama", "Let the job have its GPUs again.")]),
    ("lease list", &[("pfoctl lease list", "List who has which GPU.")]),
    (
        "lease revoke",
        &[("pfoctl lease revoke 3", "Take GPU 3 from pfo; its job trains on at default clocks.")],
    ),
    (
        "policy explain",
        &[(
            "pfoctl policy explain --user 1003",
            "Show which GPUs a user may lease, and by which line of which file.",
        )],
    ),
    (
        "grant",
        &[(
            "pfoctl grant --uid 1003 --gpu 0 --gpu 1 --until 12h",
            "Let nobody but this user lease two GPUs for twelve hours.",
        )],
    ),
    (
        "revoke-grant",
        &[("pfoctl revoke-grant --uid 1003", "End every grant of a user, and its leases.")],
    ),
    ("reload", &[("pfoctl reload", "Put the rules of pfod.toml into force.")]),
    ("drain", &[("pfoctl drain", "Have every GPU at default clocks for maintenance.")]),
    ("undrain", &[("pfoctl undrain", "Grant leases again after maintenance.")]),
    ("driver release", &[("pfoctl driver release", "Release the driver, to upgrade it.")]),
    ("gpus", &[("pfoctl gpus", "List the GPUs, and how to name them.")]),
    (
        "gpu calibrate",
        &[
            (
                "pfoctl gpu calibrate llama",
                "Measure when clocks are in force, with some steps of a job.",
            ),
            ("pfoctl gpu calibrate --gpu 0", "Measure it with a GPU that nobody uses."),
        ],
    ),
    ("gpu show", &[("pfoctl gpu show", "Show the measurements of each model.")]),
    (
        "budget set",
        &[
            ("pfoctl budget set 40kW", "Keep the jobs of this node below 40 kW."),
            (
                "pfoctl budget set --from /etc/pfo/day.csv --for fleet --key ann.key",
                "Keep the jobs of all nodes below the power in a file, by time of day.",
            ),
        ],
    ),
    (
        "budget terms",
        &[(
            "pfoctl budget terms --for job:llama --weight 16 --floor 10%",
            "Count a job as 16 GPUs, and slow it down by at most 10 %.",
        )],
    ),
    (
        "budget partition",
        &[
            (
                "pfoctl budget partition long --uid 1003 --gpu 0 --gpu 1",
                "Put the job of a user on two GPUs into partition long.",
            ),
            ("pfoctl budget partition --end --uid 1003 --gpu 0 --gpu 1", "End that with the job."),
        ],
    ),
    (
        "budget sign-key",
        &[("pfoctl budget sign-key ann.key --name ann", "Make a key, and show what nodes need.")],
    ),
    ("budget clear", &[("pfoctl budget clear", "End the budget of this node.")]),
    ("budget status", &[("pfoctl budget status", "Show the power, and what each job gives up.")]),
    (
        "budget explain",
        &[("pfoctl budget explain llama", "Say how much a budget slows a job down, and why.")],
    ),
    ("fleet check", &[("pfoctl fleet check", "Test the set-up before the first job.")]),
    ("fleet status", &[("pfoctl fleet status", "List the nodes and what they run.")]),
];
