//! `pfoctl grant` and `revoke-grant`: give GPUs to users, for the prolog and the epilog of a
//! scheduler.

use std::str::FromStr;

use clap::{ArgGroup, Args};
use pfo_protocol::{GpuGrant, GpuName, Request, Response, Uid};

use crate::arguments::{GpuArgumentError, GpuArguments};
use crate::daemons::{Connection, Daemons, Pfod};
use crate::error::Error;
use crate::lease::now_unix_s;
use crate::output::Output;
use crate::since;
use crate::status::quantity::span;
use crate::user;

/// Give GPUs of this node to a user
///
/// Until the grant ends, nobody else can lease these GPUs, and the user can lease them without opening
/// their device files. The rules of pfod.toml still apply to the user. Leases that others have on these
/// GPUs end. The grant survives a restart of pfod. For administrators, and for the prolog of a scheduler.
#[derive(Args)]
#[command(group = ArgGroup::new("gpus").required(true).multiple(true).args(["gpu", "device"]))]
pub(crate) struct Grant {
    /// The user, by name or number
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    uid: Uid,

    #[command(flatten)]
    gpus: GpuArguments,

    /// When the grant ends: job-end, which waits for `pfoctl revoke-grant`; a time from now such as
    /// 90min, 12h or 2d; or @ and seconds since 1970, as in `SLURM_JOB_END_TIME`
    #[arg(long, value_name = "job-end|TIME")]
    until: Until,

    /// Print JSON: an array of the grants
    #[arg(long)]
    json: bool,
}

/// End grants of GPUs, and the leases that their users have on these GPUs
///
/// Training continues at default clocks. Grants of other users stay, so an epilog that comes late
/// takes nothing from the next job. For administrators, and for the epilog of a scheduler.
#[derive(Args)]
#[command(group = ArgGroup::new("which").required(true).multiple(true).args(["uid", "gpu", "device"]))]
pub(crate) struct RevokeGrant {
    /// Only grants of this user, by name or number
    #[arg(long, value_name = "USER", value_parser = user::parse)]
    uid: Option<Uid>,

    #[command(flatten)]
    gpus: GpuArguments,

    /// Print JSON: an array of the grants that have ended
    #[arg(long)]
    json: bool,
}

/// When a grant ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Revoked,
    In { seconds: u64 },
    At { unix_s: u64 },
}

impl FromStr for Until {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no time; give job-end, 90min, 12h, 2d, or @ and seconds since 1970"
            )
        };
        if text.eq_ignore_ascii_case("job-end") {
            return Ok(Self::Revoked);
        }
        if let Some(unix_s) = text.strip_prefix('@') {
            return unix_s.parse().map(|unix_s| Self::At { unix_s }).map_err(|_| wrong());
        }
        let seconds = since::seconds(text).ok_or_else(wrong)?;
        Ok(Self::In { seconds })
    }
}

impl Until {
    fn unix_s(self, now: u64) -> Option<u64> {
        match self {
            Self::Revoked => None,
            Self::In { seconds } => Some(now.saturating_add(seconds)),
            Self::At { unix_s } => Some(unix_s),
        }
    }
}

impl Grant {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut pfod = daemons.pfod()?;
        let (uid, gpus) = (self.uid, resolve(&self.gpus, &mut pfod)?);
        let until_unix_s = self.until.unix_s(now_unix_s());
        let granted = ask(Request::Grant { uid, gpus, until_unix_s }, &mut pfod)?;
        if self.json {
            return output.json(&granted);
        }
        output.text(&lines(&granted))
    }
}

impl RevokeGrant {
    pub(crate) fn run(self, daemons: &Daemons, output: &mut Output) -> Result<(), Error> {
        let mut pfod = daemons.pfod()?;
        let gpus = resolve(&self.gpus, &mut pfod)?;
        let ended = ask(Request::GrantRevoke { uid: self.uid, gpus }, &mut pfod)?;
        if self.json {
            return output.json(&ended);
        }
        match ended.is_empty() {
            true => output.text("No such grant was in force.\n"),
            false => output.text(&format!("Ended:\n{}", lines(&ended))),
        }
    }
}

fn resolve(
    gpus: &GpuArguments,
    pfod: &mut Connection<Pfod>,
) -> Result<Vec<GpuName>, GpuArgumentError> {
    gpus.all().map(|gpu| gpu.resolve(pfod)).collect()
}

fn ask(request: Request, pfod: &mut Connection<Pfod>) -> Result<Vec<GpuGrant>, Error> {
    match pfod.ask(request)? {
        Response::Granted(grants) => Ok(grants),
        other => Err(pfod.unexpected(&other).into()),
    }
}

fn lines(grants: &[GpuGrant]) -> String {
    let now = now_unix_s();
    grants.iter().map(|grant| format!("  {}\n", in_words(grant, now))).collect()
}

/// A grant, as a line shows it.
pub(crate) fn in_words(grant: &GpuGrant, now_unix_s: u64) -> String {
    let end = match grant.until_unix_s {
        None => "until it is revoked".to_owned(),
        Some(until) => format!("for {}", span(until.saturating_sub(now_unix_s) as f64)),
    };
    let (user, by) = (user::name_of(grant.uid), user::name_of(grant.by_uid));
    format!("GPU {} to {user} {end}, by {by}", grant.gpu_uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_grant_is_the_jobs_a_span_or_a_time() {
        let end = |text: &str| text.parse::<Until>().unwrap().unix_s(1000);
        assert_eq!((end("job-end"), end("JOB-END")), (None, None));
        assert_eq!((end("30s"), end("90min"), end("12h")), (Some(1030), Some(6400), Some(44_200)));
        assert_eq!((end("2d"), end("@1795368000")), (Some(173_800), Some(1_795_368_000)));
    }

    #[test]
    fn a_time_that_is_none_is_named_with_what_would_be_one() {
        let wrong = [
            "",
            "12",
            "h",
            "0h",
            "-1h",
            "1.5h",
            "1w",
            "@",
            "@tomorrow",
            "jobend",
            "18446744073709551615h",
        ];
        insta::assert_snapshot!(wrong.map(|text| text.parse::<Until>().unwrap_err()).join("\n"));
    }

    #[test]
    fn a_grant_is_shown_with_its_user_and_its_end() {
        let mut grant = GpuGrant {
            gpu_uuid: "GPU-1".parse().unwrap(),
            uid: Uid(4_000_000_001),
            by_uid: Uid::ROOT,
            since_unix_s: 0,
            until_unix_s: None,
        };
        let text = in_words(&grant, 1000);
        assert_eq!(text, "GPU GPU-1 to 4000000001 until it is revoked, by root");
        grant.until_unix_s = Some(8500);
        assert_eq!(in_words(&grant, 1000), "GPU GPU-1 to 4000000001 for 2 h 5 min, by root");
        grant.until_unix_s = Some(500);
        assert_eq!(in_words(&grant, 1000), "GPU GPU-1 to 4000000001 for 0 s, by root");
    }
}
