//! What was profiled of a stage, as it crosses the store to the nodes that run the stage, so that they
//! know when it is slow.

use pfo_fleet::Digest;
use pfo_planner::{Measurement, Profile};
use pfo_protocol::{Instruction, JobView, Mhz, Refusal, Stage};
use pfo_store::Store;
use serde::{Deserialize, Serialize};

use super::parts::Fleet;
use crate::job::JobKey;

/// The format of what was profiled of a stage, and its version.
const FORMAT: &str = "pfo-stage-profile/1";

/// The longest time (s) and the largest energy (J) that an instruction may have.
const MOST_S: f64 = 1e6;
const MOST_J: f64 = 1e9;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StageProfile {
    format: String,
    rows: Vec<Row>,
}

/// Instruction, clock, seconds and joules.
#[derive(Serialize, Deserialize)]
struct Row(Instruction, Mhz, f64, f64);

fn written(profile: &Profile, stage: Stage) -> Vec<u8> {
    let rows = profile.rows().filter(|(of, ..)| *of == stage);
    let row =
        |(_, kind, row): (_, _, Measurement)| Row(kind, row.frequency, row.time_s, row.energy_j);
    let written = StageProfile { format: FORMAT.into(), rows: rows.map(row).collect() };
    // Numbers and names: nothing of it can fail to be JSON.
    serde_json::to_vec(&written).unwrap_or_default()
}

fn read(slice: &[u8]) -> Result<Vec<(Instruction, Measurement)>, String> {
    let StageProfile { format, rows } =
        serde_json::from_slice(slice).map_err(|error| format!("no profile of a stage: {error}"))?;
    if format != FORMAT {
        return Err(format!("a profile is {format:?} and not {FORMAT}: update pfo-agent"));
    }
    let row = |Row(kind, frequency, time_s, energy_j)| {
        let is_measured = time_s > 0.0 && time_s <= MOST_S && (0.0..=MOST_J).contains(&energy_j);
        let wrong = || format!("a profile in which {kind} takes {time_s} s and {energy_j} J");
        is_measured.then_some((kind, Measurement { frequency, time_s, energy_j })).ok_or_else(wrong)
    };
    rows.into_iter().map(row).collect()
}

/// A profile that says something of these stages only: the others have what the first of these has.
fn of_own_stages(
    stages: u32,
    own: &[(Stage, Vec<(Instruction, Measurement)>)],
) -> Result<Profile, String> {
    let first = own.first().map(|(_, rows)| rows).ok_or("no stage is here")?;
    let rows_of = |stage| own.iter().find(|(of, _)| *of == stage).map_or(first, |(_, rows)| rows);
    let stages = (0..u16::try_from(stages).unwrap_or(u16::MAX)).map(Stage);
    let rows = stages.flat_map(|stage| {
        rows_of(stage).iter().map(move |(kind, row)| (stage, *kind, *row)).collect::<Vec<_>>()
    });
    Profile::from_measurements(rows).map_err(|error| error.to_string())
}

impl Fleet {
    /// Hands what was profiled to the store, stage by stage.
    ///
    /// # Errors
    /// If the store does not take it.
    pub(crate) async fn publish_profile(
        &self,
        key: &JobKey,
        profile: &Profile,
    ) -> Result<Vec<Digest>, Refusal> {
        let mut digests = Vec::new();
        for stage in (0..profile.num_stages()).map(Stage) {
            digests.push(self.keep(key, &written(profile, stage)).await?);
        }
        Ok(digests)
    }

    /// What was profiled of the stages of a job that are on this node.
    ///
    /// # Errors
    /// If the store does not have it, or it is something else.
    pub(crate) async fn fetch_profile(
        &self,
        job: &JobView,
        digests: &[Digest],
    ) -> Result<Profile, String> {
        let store = self.store_now().map_err(|why| why.to_string())?;
        let id = self.id_of(&JobKey::of(job));
        let mut own = Vec::<(Stage, _)>::new();
        for stage in job.ranks.iter().map(|rank| rank.position.pp_rank) {
            if own.iter().any(|(known, _)| *known == stage) {
                continue;
            }
            let digest = digests.get(stage.index());
            let digest = digest.ok_or_else(|| format!("nothing was profiled of stage {stage}"))?;
            let slice = store.fetch(&id, *digest).await.map_err(|error| error.to_string())?;
            own.push((stage, read(&slice)?));
        }
        of_own_stages(job.pp_degree, &own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(mhz: u32, time_s: f64) -> Measurement {
        Measurement { frequency: Mhz(mhz), time_s, energy_j: 2.5 }
    }

    #[test]
    fn what_was_profiled_of_a_stage_is_read_as_it_was_written() {
        let rows = (0..3).flat_map(|stage| {
            let of = |kind, time_s| (Stage(stage), kind, row(900, time_s));
            [of(Instruction::Forward, 0.1), of(Instruction::Backward, 0.2 + f64::from(stage))]
        });
        let profile = Profile::from_measurements(rows).unwrap();
        let own = [(Stage(1), read(&written(&profile, Stage(1))).unwrap())];
        let part = of_own_stages(3, &own).unwrap();
        assert_eq!(part.num_stages(), 3);
        let of = |profile: &Profile| profile.table(Stage(1), Instruction::Backward).to_vec();
        assert_eq!(of(&part), of(&profile));
        assert!(of_own_stages(3, &[]).is_err());
    }

    #[test]
    fn what_nothing_measures_is_no_profile() {
        for (slice, said) in [
            ("no", "no profile of a stage"),
            (r#"{"format":"pfo-stage-profile/2","rows":[]}"#, "pfo-stage-profile/2"),
            (r#"{"format":"pfo-stage-profile/1","rows":[["forward",900,-1.0,1.0]]}"#, "takes -1 s"),
            (
                r#"{"format":"pfo-stage-profile/1","rows":[["forward",900,1.0,1e10]]}"#,
                "10000000000 J",
            ),
        ] {
            let error = read(slice.as_bytes()).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
