//! The files of budgets of the fleet that were set at this node. What they say is handed on, and so is what is
//! wrong with them.

use std::collections::BTreeMap;

use pfo_protocol::{BudgetFileTrouble, BudgetLevel, BudgetScope};
use pfo_service::blocking;
use pfo_store::{StoreError, Topic};

use crate::budget::book::Kept;
use crate::budget::fleet::link::Link;
use crate::budget::fleet::record::NodeDraw;
use crate::budget::level::Level;
use crate::budget::trouble;

/// What is wrong with them.
#[derive(Default)]
pub(super) struct Files {
    /// None while it is not known what an earlier agent of the node has found.
    troubles: Option<BTreeMap<BudgetScope, BudgetFileTrouble>>,
}

impl Files {
    /// What is wrong, for the other nodes.
    pub(super) fn troubles(&self) -> Vec<(BudgetScope, BudgetFileTrouble)> {
        self.troubles.clone().unwrap_or_default().into_iter().collect()
    }

    /// Reads them, and hands on what they say now.
    pub(super) async fn reread(&mut self, link: &Link) {
        let before = match self.troubles.take() {
            Some(before) => Ok(before),
            None => found_before(link).await,
        };
        let Ok(mut before) = before.inspect_err(|error| {
            tracing::debug!("cannot ask what this node has said: {error}");
        }) else {
            return;
        };
        let mut troubles = BTreeMap::new();
        for (scope, kept) in link.book().orders {
            let is_ours = kept.by_node.as_ref() == Some(link.me());
            if !is_ours || !matches!(kept.order.level, BudgetLevel::File(_)) {
                continue;
            }
            let order = kept.order.clone();
            let Ok(read) = blocking(move || Level::of(&order, None)).await else { continue };
            let read = read.map_err(|why| why.message).and_then(|level| {
                let text = level.text().unwrap_or_default().to_owned();
                link.check_text(&scope, &text).map_err(|why| unsigned(&kept, &why))?;
                Ok(text)
            });
            let wrong = read.as_ref().err().cloned();
            if let Some(found) = trouble::after(&kept.order, before.remove(&scope), wrong) {
                let node = Some(link.me().to_string());
                troubles.insert(scope, BudgetFileTrouble { node, ..found });
            }
            if let Ok(text) = read
                && Some(&text) != kept.text.as_ref()
            {
                hand_on(link, &kept.order.scope, &text).await;
            }
        }
        self.troubles = Some(troubles);
    }
}

/// What this node has said last, maybe by an earlier agent.
async fn found_before(link: &Link) -> Result<BTreeMap<BudgetScope, BudgetFileTrouble>, StoreError> {
    let own = link.said::<NodeDraw>(Topic::Draw).await?.remove(link.me());
    Ok(own.map(|draw| draw.files.into_iter().collect()).unwrap_or_default())
}

/// What is wrong with a file whose powers nobody has signed.
fn unsigned(kept: &Kept, why: &str) -> String {
    let path = match &kept.order.level {
        BudgetLevel::File(path) => path.as_str(),
        BudgetLevel::Watts(_) => "",
    };
    format!("{path}: {why}; sign it with `pfoctl budget set --from {path} --key …`")
}

/// Hands on what a file says now.
async fn hand_on(link: &Link, scope: &BudgetScope, text: &str) {
    match link.hand_on(scope, text).await {
        Ok(true) => tracing::info!("the file of a power budget of the fleet says something else"),
        // The next look tries again.
        Ok(false) => {}
        Err(why) => tracing::warn!("what the file of a power budget says is not handed on: {why}"),
    }
}
