//! What requires a systemd, in booted Debians: `make test-booted`.

mod booted_admin;
mod booted_ansible;
mod booted_containers;
mod booted_debian;
mod booted_guides;
mod booted_hostile;
mod booted_kill_matrix;
mod booted_observe;
mod booted_packages;
mod booted_repository;
mod booted_restart;
mod booted_rpm;
mod booted_slurm;
mod soak;
