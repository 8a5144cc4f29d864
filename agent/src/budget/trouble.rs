//! What is wrong with the file of a budget, and since when.

use std::time::SystemTime;

use pfo_protocol::{BudgetFileTrouble, BudgetLevel, BudgetOrder};
use pfo_service::unix_s;

/// The trouble with a file after it was read, from that of before. The journal says what is new.
pub(super) fn after(
    order: &BudgetOrder,
    before: Option<BudgetFileTrouble>,
    why: Option<String>,
) -> Option<BudgetFileTrouble> {
    let Some(why) = why else {
        if let (Some(_), BudgetLevel::File(path)) = (before, &order.level) {
            tracing::info!("the file of a power budget is followed again: {path}");
        }
        return None;
    };
    if before.as_ref().is_none_or(|before| before.why != why) {
        tracing::warn!("the last valid content of a power budget's file stays in force: {why}");
    }
    let since_unix_s = before.map_or_else(|| unix_s(SystemTime::now()), |b| b.since_unix_s);
    Some(BudgetFileTrouble { node: None, why, since_unix_s })
}

#[cfg(test)]
mod tests {
    use pfo_protocol::BudgetScope;

    use super::*;

    #[test]
    fn a_trouble_lasts_from_the_first_time_on_whatever_is_wrong_until_nothing_is() {
        let order = BudgetOrder {
            scope: BudgetScope::Node,
            level: BudgetLevel::File("/etc/pfo/day.csv".into()),
            up_w_per_s: None,
            down_w_per_s: None,
            emergency: false,
        };
        assert_eq!(after(&order, None, None), None);
        let first = BudgetFileTrouble { since_unix_s: 7, node: None, why: "away".into() };
        let next = after(&order, Some(first), Some("line 1".into())).unwrap();
        assert_eq!((next.since_unix_s, &*next.why), (7, "line 1"));
        assert_eq!(after(&order, Some(next), None), None);
        assert!(after(&order, None, Some("away".into())).unwrap().since_unix_s > 7);
    }
}
