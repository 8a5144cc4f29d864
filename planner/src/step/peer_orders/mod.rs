//! Orders as the schedulers of training frameworks write them down.
//!
//! | file | written by |
//! |---|---|
//! | [`torch_csv`] | PyTorch's `_PipelineScheduleRuntime`, a row of actions for each rank |
//! | [`lists`] | Megatron-Core, a list of chunks for each stage: `[[1, 1, 2, -2, …], …]` |
//! | [`lists`] | DeepSpeed, the `repr` of a `TrainSchedule`'s steps for each stage |

mod lists;
mod torch_csv;

use crate::error::PlanError;
use crate::plan::Plan;
use crate::step::order::Order;
use crate::step::order_file::{refused, too_large};

impl Order {
    /// Reads an order: a file of pfo's own format, or one that PyTorch, Megatron-Core or DeepSpeed
    /// wrote.
    ///
    /// # Errors
    /// If the bytes are no such order, or a stage does not run every microbatch once forward and once
    /// backward.
    pub fn from_file(bytes: &[u8]) -> Result<Self, PlanError> {
        if bytes.len() > Plan::MAX_JSON_BYTES {
            return Err(too_large(bytes.len()));
        }
        let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
        let begin = text.trim_ascii_start().first();
        if begin == Some(&b'{') {
            return Self::from_json(text);
        }
        let text = std::str::from_utf8(text)
            .map_err(|_| refused("the file", "it is no UTF-8 text".to_owned()))?;
        match begin {
            Some(b'[') => lists::order(text),
            _ if torch_csv::is_one(text) => torch_csv::order(text),
            _ => Err(refused(
                "the file",
                "it is no order; pfo's own is JSON, {\"format\": \"pfo-order/1\", …} as `pfoctl plan \
                 order` writes it, PyTorch's a CSV of actions such as 0F0, and those of Megatron and \
                 DeepSpeed are lists in brackets"
                    .to_owned(),
            )),
        }
    }
}
