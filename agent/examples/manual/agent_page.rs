//! pfo-agent(8): its arguments as declared, and what an administrator meets of it.

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use pfo_agent::{Arguments, MESSAGE_IDS};

use crate::sections::{journal, section};

const WHO: &[(&str, &str)] = &[
    (
        "root and group pfo-admin, on pfo-agent-admin.sock",
        "may measure, tune and guard every user's jobs, and set P2P-blocking powers and power \
         budgets.",
    ),
    (
        "group pfo, and the above on pfo-agent.sock",
        "may measure, tune and guard their own jobs, load plans and frontiers for them, and read \
         their own profiles and savings.",
    ),
    ("any other user", "may do nothing."),
];

const FILES: &[(&str, &str)] = &[
    ("/etc/pfo/agent.toml", "The configuration, see pfo-agent.toml(5)."),
    ("/run/pfo/pfo-agent.sock", "The socket for users, of group pfo."),
    ("/run/pfo/pfo-agent-admin.sock", "The socket for administration, of group pfo-admin."),
    ("/run/pfo/agent.sock", "The socket of pfod(8) that the agent connects to."),
    (
        "/usr/share/pfo",
        "A socket unit for metrics, which is not enabled, a board for Grafana, and alert rules for \
         Prometheus. See [metrics] in pfo-agent.toml(5).",
    ),
    (
        "/var/lib/pfo-agent/profiles",
        "The profiles that sweeps have measured, CSV by user, model, GPUs and partition. The 64 \
         newest of each user are kept.",
    ),
    ("/var/lib/pfo-agent/sweeps", "Unfinished sweeps. The next agent continues them."),
    ("/var/lib/pfo-agent/p2p.json", "P2P-blocking powers."),
    ("/run/pfo-agent/jobs", "The frontiers of running jobs."),
    (
        "/run/pfo-agent/standing",
        "The guards and straggler settings of running jobs, and the plans to which jobs return \
         after a straggler.",
    ),
];

const SIGNALS: &[(&str, &str)] = &[
    (
        "SIGHUP",
        "Reads the configuration again. A file with an error is refused, and the former \
         configuration stays in force.",
    ),
    (
        "SIGTERM, SIGINT",
        "Ends every recording and exits. The next agent continues unfinished sweeps.",
    ),
];

const ENVIRONMENT: &[(&str, &str)] =
    &[("PFO_LOG", "What is logged: error, warn, info (the default), debug or trace.")];

/// The page.
pub(crate) fn page() -> Result<Vec<u8>, std::io::Error> {
    let man = Man::new(Arguments::command()).section("8").manual("System administration");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut rest = Roff::new();
    section(&mut rest, "WHO MAY DO WHAT", WHO);
    section(&mut rest, "FILES", FILES);
    section(&mut rest, "SIGNALS", SIGNALS);
    section(&mut rest, "ENVIRONMENT", ENVIRONMENT);
    let catalog = concat!(
        include_str!("../../../systemd/pfo-agent.catalog"),
        include_str!("../../../systemd/pfod.catalog")
    );
    journal(&mut rest, MESSAGE_IDS, catalog);
    rest.text([roman(
        "Search for them with `journalctl MESSAGE_ID=...`; --catalog explains them. They have the \
         fields PFO_UID, PFO_PID, PFO_JOB, PFO_RANK, PFO_PLAN and PFO_GPU_UUID where these are \
         known.",
    )]);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([roman("pfoctl(1), pfod(8), pfo-agent.toml(5), systemd(1)")]);
    page.extend(rest.render().into_bytes());
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_every_option_and_every_message_id() {
        let page = String::from_utf8(page().unwrap()).unwrap();
        for option in Arguments::command().get_opts() {
            let name = option.get_long().unwrap().replace('-', "\\-");
            assert!(page.contains(&format!("\\-\\-{name}")), "{name} is missing");
        }
        for (kind, id) in MESSAGE_IDS {
            assert!(page.contains(id), "{kind} is missing");
        }
    }
}
