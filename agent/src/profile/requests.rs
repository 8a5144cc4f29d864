//! What peers ask of stored profiles. To be called where files may be read.

use std::collections::BTreeSet;

use pfo_protocol::{AgentResponse, ProfileSelector, Refusal, RefusalCode, StoredProfile};

use crate::authority::Permit;
use crate::profile::store::ProfileStore;
use crate::refusal::internal;

/// Models that a refusal names.
const MOST_NAMED: usize = 5;

/// The stored profiles that a peer may see.
pub(crate) fn list(profiles: &ProfileStore, permit: &Permit) -> AgentResponse {
    AgentResponse::Profiles(profiles.list(permit.only_of()))
}

/// The CSV of the one stored profile that a peer means.
///
/// # Errors
/// If none or several that it may see are meant, or it cannot be read.
pub(crate) fn read(
    profiles: &ProfileStore,
    permit: &Permit,
    selector: &ProfileSelector,
) -> Result<AgentResponse, Refusal> {
    let visible = permit.only_of();
    let mut meant = profiles.list(selector.uid.or(visible));
    meant.retain(|profile| visible.is_none_or(|uid| uid == profile.key.uid));
    let stored = models(&meant);
    let fits = |part: &str, wanted: &Option<String>| wanted.as_ref().is_none_or(|w| w == part);
    meant.retain(|profile| {
        let key = &profile.key;
        key.model == selector.model
            && fits(&key.gpus, &selector.gpus)
            && fits(&key.partition, &selector.partition)
    });
    // An administrator's own profile goes before those of others.
    if selector.uid.is_none() && meant.iter().any(|profile| profile.key.uid == permit.uid()) {
        meant.retain(|profile| profile.key.uid == permit.uid());
    }
    let model = &selector.model;
    match &meant[..] {
        [profile] => {
            let csv = profiles.read(profile).map_err(|error| internal(&error))?;
            Ok(AgentResponse::Profile { profile: profile.clone(), csv })
        }
        [] => Err(Refusal::new(
            RefusalCode::UnknownJob,
            format!("no such profile of model {model} is stored; {stored}"),
            "`pfoctl profile list` shows every stored profile; `pfoctl tune` and `profile start` measure one",
        )),
        several => Err(Refusal::new(
            RefusalCode::UnknownJob,
            format!("{} profiles of model {model} are stored", several.len()),
            "say which with --gpus, --partition or --user; `pfoctl profile list` shows them",
        )),
    }
}

/// In words, of which models there are profiles.
fn models(profiles: &[StoredProfile]) -> String {
    let models: BTreeSet<_> = profiles.iter().map(|profile| profile.key.model.as_str()).collect();
    let named: Vec<_> = models.iter().take(MOST_NAMED).copied().collect();
    match models.len().saturating_sub(named.len()) {
        _ if models.is_empty() => "there is none that you may see".to_owned(),
        0 => format!("there are profiles of {}", named.join(", ")),
        more => format!("there are profiles of {} and {more} more models", named.join(", ")),
    }
}
