//! Power limits of GPUs: the backstop of a budget. They take effect at once, independently of the
//! job, but cost it more than a plan. `pfod` keeps each within the policy of its lease, and undoes
//! it with the lease.

use std::collections::{BTreeMap, BTreeSet};

use pfo_protocol::{GpuStatus, GpuUuid, RefusalCode, Request, Response};

use crate::budget::gather::Member;
use crate::job::JobKey;
use crate::journal;
use crate::pfod::{PfodError, Questions};

/// The GPUs that are held, or may be.
#[derive(Debug, Default)]
pub(super) struct Caps(BTreeMap<GpuUuid, Cap>);

#[derive(Clone, Copy, Debug, Default)]
struct Cap {
    /// The power that it is held below, in watts; none if it is to be let go.
    limit_w: Option<u32>,
    /// The last request to `pfod`.
    asked_w: Option<u32>,
}

impl Caps {
    /// What an earlier agent left. What is ordered of it is found out at the first look.
    pub(super) fn left(gpus: Vec<GpuUuid>) -> Self {
        Self(gpus.into_iter().map(|gpu| (gpu, Cap::default())).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn holds(&self, gpu: &GpuUuid) -> bool {
        self.0.contains_key(gpu)
    }

    pub(super) fn gpus(&self) -> Vec<GpuUuid> {
        self.0.keys().cloned().collect()
    }

    /// The limits of jobs, in equal shares for their GPUs.
    pub(super) fn of(
        members: &[&Member],
        limits: &BTreeMap<JobKey, f64>,
    ) -> BTreeMap<GpuUuid, u32> {
        let limited = members.iter().filter_map(|member| Some((member, limits.get(&member.key)?)));
        let caps = limited.flat_map(|(member, limit_w)| {
            let share_w = (limit_w / member.gpus.len().max(1) as f64).clamp(1.0, 1e4) as u32;
            member.gpus.iter().map(move |gpu| (gpu.clone(), share_w))
        });
        caps.collect()
    }

    /// Takes what is to be held now; what is not is let go. Whether other GPUs are concerned than before.
    pub(super) fn order(&mut self, caps: BTreeMap<GpuUuid, u32>) -> bool {
        let before = self.0.len();
        self.0.values_mut().for_each(|cap| cap.limit_w = None);
        for (gpu, limit_w) in caps {
            self.0.entry(gpu).or_default().limit_w = Some(limit_w);
        }
        self.0.len() != before
    }

    /// A GPU of these that has not taken its limit.
    pub(super) fn not_taken(&self, gpus: &BTreeSet<GpuUuid>, seen: &[GpuStatus]) -> Option<String> {
        let is_asked = |gpu: &GpuUuid| self.0.get(gpu).is_some_and(|cap| cap.asked_w.is_some());
        let gpu = seen.iter().find(|gpu| {
            gpus.contains(&gpu.uuid) && is_asked(&gpu.uuid) && gpu.power_limit_w.is_none()
        })?;
        Some(format!("GPU {} has not taken the power limit that is to hold it", gpu.uuid))
    }

    /// Asks for all of them: a `pfod` that was restarted knows none any more.
    pub(super) async fn carry_out(&mut self, pfod: &Questions) {
        for (gpu, Cap { limit_w, asked_w }) in self.0.clone() {
            let asked = Request::PowerCap { gpu: gpu.clone(), limit_w };
            match pfod.ask(asked).await {
                Ok(Response::Done) => {
                    if asked_w != limit_w {
                        say(&gpu, limit_w);
                    }
                    if limit_w.is_none() {
                        self.0.remove(&gpu);
                    } else {
                        self.0.insert(gpu, Cap { limit_w, asked_w: limit_w });
                    }
                }
                // Its lease has ended, and the limit with it.
                Err(PfodError::Refused(why)) if why.code == RefusalCode::UnknownGpu => {
                    self.0.remove(&gpu);
                }
                // It is asked again at the next look.
                Ok(_) | Err(_) => {}
            }
        }
    }
}

fn say(gpu: &GpuUuid, limit_w: Option<u32>) {
    match limit_w {
        Some(limit_w) => tracing::info!(
            name: journal::CAPPED, gpu_uuid = %gpu,
            "GPU {gpu} is to be held below {limit_w} W for a power budget; pfod sets no less than its policy allows"
        ),
        None => tracing::info!(
            name: journal::CAPPED, gpu_uuid = %gpu,
            "GPU {gpu} is not held below a power for a budget any more"
        ),
    }
}
