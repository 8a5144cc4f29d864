//! The integration tests of the fuzz targets: one program, so that it is linked once.

mod mutated_seeds;
mod random_operations;
