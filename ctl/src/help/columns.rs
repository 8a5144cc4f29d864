//! The columns of tables whose headers do not explain them.

use super::Tables;

pub(super) const COLUMNS: Tables = &[
    (
        "top",
        &[
            (
                "Waits",
                "share of the last 30 s in which the rank ran no instruction of its plan; of a job, the \
                 mean of its ranks",
            ),
            ("Others", "as in `pfoctl status`"),
        ],
    ),
    ("plan show", PLANS),
    ("plan evaluate", PLANS),
    (
        "plan bound",
        &[
            ("Time, Energy", "what a step takes under the plan for the deadline"),
            ("Bound", "energy that no plan for the deadline can stay below"),
            ("Above it", "how much more the plan takes than the bound"),
        ],
    ),
    (
        "plan compare",
        &[
            ("Iteration, Energy", "what a step takes, by replay"),
            ("Saving, Slower", "the same compared with the highest clocks"),
            ("Rounds", "trials that the policy needs on a job; * if it has not settled by then"),
            ("pfo then, takes", "pfo's plan that is as fast, and how much less energy it takes"),
        ],
    ),
    (
        "plan sweep",
        &[
            ("Time/step, Energy/step", "what was measured, in the mean"),
            ("Scatter", "standard deviation of single steps"),
            ("Predicted", "what the replay of the plan says"),
            ("Off by", "how much more was measured than predicted"),
        ],
    ),
    ("plan list", &[("State", "whether a job runs the plan")]),
    (
        "profile status",
        &[
            ("Clocks", "how many clocks were measured, and how many there are"),
            ("MHz", "the clock that is measured now"),
            ("Time/step, Slowdown", "time of a step at it, and compared with default clocks"),
            ("Left at most", "time until the sweep ends if it measures every clock"),
        ],
    ),
    (
        "profile list",
        &[
            ("GPUs", "their model, and how many there are"),
            ("Partition", "pipeline stages, data- and tensor-parallel ranks, and microbatches"),
            ("Size", "bytes of the profile"),
        ],
    ),
    (
        "tune",
        &[
            ("Predicted", "how much longer a step takes by replay than at default clocks"),
            (
                "Slower by, Saving",
                "what was measured against default clocks, with the 95 % interval",
            ),
            ("Rounds", "turns of the plan and of default clocks that were compared"),
        ],
    ),
    (
        "compare tune",
        &[
            ("Predicted", "how much longer a step takes by replay than at default clocks"),
            (
                "Slower by, Saving",
                "what was measured against default clocks, with the 95 % interval",
            ),
            ("Rounds", "turns of the plan and of default clocks that were compared"),
        ],
    ),
    (
        "p2p show",
        &[
            ("GPU", "the GPU with this power, or all GPUs of a model"),
            ("Clock", "the SM clock at which it was measured"),
            ("±", "standard error of the mean"),
            ("Count", "measurements in the mean"),
            ("From", "how it was measured, or that somebody set it"),
            ("By", "whose job or command it was"),
        ],
    ),
    (
        "gpu show",
        &[
            ("Clock", "the SM clock after the change"),
            ("In force", "median time from the call that sets the clock until it is in force"),
            ("Spread", "how far these times are apart"),
            ("Seen", "changes that were measured"),
        ],
    ),
    (
        "savings",
        &[
            ("Steps, Time, Used", "what ran under plans, and the energy of its GPUs"),
            ("Saved", "energy that default clocks would have used beyond that"),
            ("95 % interval", "where the saving lies with 95 % certainty"),
            ("Share", "the saving as a share of what default clocks would have used"),
            ("Money, CO2e", "the saving at the tariff of agent.toml"),
            ("Slower by", "time that steps took beyond default clocks, by the same comparisons"),
            ("Given up", "what a power budget took from jobs; no saving includes it"),
        ],
    ),
    (
        "lease list",
        &[
            ("For", "how long ago the lease began"),
            ("Asked, Observed", "SM clock that pfo locked, and the one that the driver reports"),
            ("PID, Session", "the training process, and its connection to pfod"),
        ],
    ),
    (
        "budget status",
        &[
            ("Drawn", "power by the energy counters"),
            ("Reserve", "power that pfo-agent keeps free because counters are not exact"),
            ("From", "the file from which pfo-agent reads the budget"),
            ("Ordered by", "who set it; of a fleet's budget, on which node and with which key"),
            ("Weight", "how much the progress of the job counts"),
            ("Gives up, Slower by", "what the budget takes from the job"),
            ("Why", "why it runs what it runs; `budget explain` says more"),
        ],
    ),
];

const PLANS: &[(&str, &str)] = &[
    ("Iteration, Energy", "what a step takes, by replay"),
    ("Saving, Slower", "the same compared with the highest clocks"),
];
