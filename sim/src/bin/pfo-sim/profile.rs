//! The profile that a perfect measurement would give: the simulator's own tables, as far as a GPU
//! holds their clocks.

use std::fs::File;
use std::io::{self, Write};

use nvidia_ml::error::SimError;
use nvidia_ml::gpu_state::Board;
use nvidia_ml::silicon::Silicon;
use nvidia_ml::units::{Mhz, Milliwatts};
use nvidia_ml::work::{built_in, profile_csv};

use crate::args::ProfileArgs;

pub(crate) fn write(args: &ProfileArgs) -> Result<(), SimError> {
    let facts = args.gpu.facts();
    let stages = if let Some(path) = &args.work {
        profile_csv::read(path)?
    } else {
        let stages = usize::from(args.stages);
        (0..stages).map(|stage| built_in::stage(facts, stage, stages)).collect::<Result<_, _>>()?
    };
    let stages: Vec<_> = stages.into_iter().map(|stage| stage.scaled(args.time_scale)).collect();
    let lowest_share = f64::from(facts.highest().0) * built_in::LOWEST_PROFILED_SHARE;
    let lowest = args.from_mhz.map_or(Mhz(lowest_share.ceil() as u32), Mhz);
    let silicon = if args.ideal { Silicon::IDEAL } else { args.gpu.silicon() };
    let board = Board { facts, silicon, curves: None };
    let wanted = facts.sm_clocks().into_iter().filter(|&clock| clock >= lowest);
    let clocks: Vec<_> = wanted.map(|clock| (clock, board.held(clock))).collect();
    let limit = facts.default_power_limit();
    let most = if args.ideal { Milliwatts(u32::MAX) } else { limit };
    let failed = |path: &str, source| SimError::file("write", path, source);
    match &args.output {
        None => profile_csv::write(io::stdout().lock(), &stages, &clocks, most)
            .map_err(|e| failed("standard output", e)),
        Some(path) => {
            let name = path.to_string_lossy();
            let mut file = File::create(path).map_err(|e| failed(&name, e))?;
            profile_csv::write(&mut file, &stages, &clocks, most)
                .and_then(|()| file.flush())
                .map_err(|e| failed(&name, e))
        }
    }
}
