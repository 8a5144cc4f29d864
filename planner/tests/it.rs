//! The integration tests of the planner: one program, so that it is linked once.

mod blocking_calls;
mod dependencies;
mod event_by_event;
mod face;
mod interrupted;
mod late_clocks;
mod linear_program;
mod measured;
mod measured_data;
mod measured_runs;
mod mixed_gpus;
mod noisy_plans;
mod noisy_profiles;
mod optimum;
mod order_files;
mod peers_orders;
mod policies;
mod properties;
mod public_api;
mod real_runs;
mod replanned;
mod schedules;
mod second_replay;
mod smoothing;
mod true_tables;
mod yardstick;
