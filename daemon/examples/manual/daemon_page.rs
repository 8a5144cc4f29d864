//! pfod(8): what its arguments do, as declared, and what an administrator meets of it.

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use pfod::Arguments;
use pfod::MESSAGE_IDS;

const WHO: &[(&str, &str)] = &[
    ("root and group pfo-admin", "see and change every job, and reset clocks."),
    ("group pfo", "run jobs as the rules of pfod.toml(5) allow, and see and change their own."),
    ("any other user", "may do nothing, unless an administrator lets them open the socket."),
];

const FILES: &[(&str, &str)] = &[
    ("/etc/pfo/pfod.toml", "The configuration, see pfod.toml(5)."),
    ("/run/pfo/pfod.sock", "The socket for training processes and status, of group pfo."),
    ("/run/pfo/admin.sock", "The socket for administration, of group pfo-admin."),
    (
        "/run/pfo/ledger.json",
        "What is locked now, written before it is locked. If nothing is left of a daemon, `pfod \
         --restore-only` frees what this file names.",
    ),
    (
        "/var/lib/pfo/profiles",
        "The profiles that sweeps have measured, CSV by user, model, GPUs and partition; of each user the \
         64 newest.",
    ),
    (
        "/var/lib/pfo/sweeps",
        "How far sweeps are that are not over; the next pfod goes on with them.",
    ),
];

const SIGNALS: &[(&str, &str)] = &[
    (
        "SIGHUP",
        "Reads the configuration again, and keeps sessions; pfod.toml(5) says what changes for them. One \
         that is wrong is refused, and what was in force before stays. `pfoctl reload` does the same, \
         and says what came of it.",
    ),
    ("SIGTERM, SIGINT", "Ends every lease, restores what is locked, and exits."),
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
    section(&mut rest, "JOURNAL", &MESSAGE_IDS.map(|(kind, id)| (id, kind)));
    rest.text([roman(
        "Search for them with `journalctl MESSAGE_ID=...`; --catalog explains them. They have the \
         fields PFO_UID, PFO_PID, PFO_JOB, PFO_GPU_UUID, PFO_OLD_MHZ and PFO_NEW_MHZ where these are \
         known.",
    )]);
    rest.control("SH", ["SEE ALSO"]);
    rest.text([roman("pfoctl(1), pfod.toml(5), systemd(1), nvidia-smi(1)")]);
    page.extend(rest.render().into_bytes());
    Ok(page)
}

fn section(page: &mut Roff, title: &str, rows: &[(&str, &str)]) {
    page.control("SH", [title]);
    for (name, meaning) in rows {
        page.control("TP", []);
        page.text([bold(*name)]);
        page.text([roman(*meaning)]);
    }
    page.control("PP", []);
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
