//! pfod(8): its arguments as declared, and its roles, files, signals and journal entries.

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use pfod::{Arguments, MESSAGE_IDS};

use crate::sections::{journal, section};

const WHO: &[(&str, &str)] = &[
    (
        "root and group pfo-admin",
        "may see and change every job, and reset clocks, but only through admin.sock. On pfod.sock \
         root is a member of group pfo.",
    ),
    ("group pfo", "may run jobs as the rules of pfod.toml(5) allow, and see and change their own."),
    (
        "group pfo-agent",
        "is for pfo-agent, which reads everything, and changes and measures jobs in the name of a \
         user, within the rights of that user.",
    ),
    ("any other user", "may do nothing, unless an administrator lets that user open pfod.sock."),
];

const FILES: &[(&str, &str)] = &[
    ("/etc/pfo/pfod.toml", "The configuration, see pfod.toml(5)."),
    ("/run/pfo/pfod.sock", "The socket for training processes and status, of group pfo."),
    (
        "/run/pfo/admin.sock",
        "The socket for administration, of group pfo-admin. No other socket serves administration.",
    ),
    ("/run/pfo/agent.sock", "The socket for pfo-agent, of group pfo-agent."),
    (
        "/run/pfo/ledger.json",
        "The clocks and power limits that pfod has set, each written before pfod sets it. If a \
         daemon ended without restoring them, the next one does, or `pfod --restore-only`.",
    ),
    (
        "/run/pfo/ledger.damaged",
        "A damaged ledger, which may name locks that pfod could not read. pfod keeps and reports it \
         until `pfoctl clocks acknowledge`.",
    ),
    (
        "/run/pfo/pfod.toml",
        "A copy of the configuration with which pfod started. `pfod --restore-only` uses it if \
         /etc/pfo/pfod.toml is wrong.",
    ),
    (
        "/run/pfo/jobs/",
        "The plans that jobs run. The next pfod continues with them after a restart.",
    ),
    (
        "/run/pfo/attempt.json",
        "The jobs that pfod resumed from its predecessor; pfod removes the file after ten seconds. \
         After four daemons that died within that time, the next ones leave out one job each, to \
         find the one that killed them.",
    ),
];

const SIGNALS: &[(&str, &str)] = &[
    (
        "SIGHUP",
        "Reads the configuration again, and keeps sessions; pfod.toml(5) says what changes for \
         them. An invalid configuration is refused, and the previous one stays in force. `pfoctl \
         reload` does the same, and reports the result.",
    ),
    ("SIGTERM, SIGINT", "Ends every lease, restores what is locked, and exits."),
];

const ENVIRONMENT: &[(&str, &str)] = &[(
    "PFO_LOG",
    "The most detailed level that is logged: error, warn, info (the default), debug or trace.",
)];

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
    journal(&mut rest, &MESSAGE_IDS, include_str!("../../../systemd/pfod.catalog"));
    rest.text([roman(
        "Search for them with `journalctl MESSAGE_ID=...`; --catalog explains them. They have the \
         fields PFO_UID, PFO_PID, PFO_JOB, PFO_GPU_UUID, PFO_OLD_MHZ and PFO_NEW_MHZ where these \
         are known.",
    )]);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([roman("pfoctl(1), pfod.toml(5), pfo-agent(8), systemd(1), nvidia-smi(1)")]);
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
