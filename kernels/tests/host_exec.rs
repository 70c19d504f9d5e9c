//! Every case list on the host executor: all bits, three schedules, three fragment shapes.
#![cfg(feature = "host-exec")]

use ds4_kernels::KernelError;
use ds4_kernels::cases::{self, Depth, Outcome, Runner};
use ds4_kernels::host::{BufferId, Host, Shape};
use ds4_kernels::launch::Call;

/// The executor as a runner of cases.
struct Exec(Host);

impl Runner for Exec {
    type Buffer = BufferId;

    fn load(&mut self, data: &[u8], skew: usize) -> Result<BufferId, KernelError> {
        Ok(self.0.load(data, skew))
    }
    fn poisoned(&mut self, len: usize) -> Result<BufferId, KernelError> {
        Ok(self.0.poisoned(len, 0))
    }
    fn launch(&mut self, call: &Call, buffers: &[BufferId]) -> Result<(), KernelError> {
        self.0.launch(call, buffers)
    }
    fn read(&mut self, buffer: BufferId) -> Result<Vec<u8>, KernelError> {
        Ok(self.0.bytes(buffer).to_vec())
    }
    fn reset(&mut self) {
        self.0.clear();
    }
    fn width(&self) -> usize {
        self.0.shape.width()
    }
}

fn check(outcomes: &[Outcome]) {
    assert!(!outcomes.is_empty());
    let wrong: Vec<&Outcome> = outcomes.iter().filter(|o| !o.equal()).collect();
    assert!(
        wrong.is_empty(),
        "{} of {}: {wrong:#?}",
        wrong.len(),
        outcomes.len()
    );
}

fn exec(seed: u64, shape: Shape) -> Exec {
    Exec(Host::new(seed, shape))
}

#[test]
fn activations_quantise_to_the_reference() {
    for seed in [0, 1, 77] {
        check(&cases::a8::run(&mut exec(seed, Shape::Nvidia), Depth::Quick).unwrap());
    }
}

#[test]
fn norms_and_softmax_equal_the_reference() {
    for seed in [0, 1, 77] {
        check(&cases::norm::run(&mut exec(seed, Shape::Nvidia), Depth::Quick).unwrap());
    }
}

#[test]
fn functions_equal_the_reference() {
    check(&cases::math::run(&mut exec(0, Shape::Nvidia), Depth::Quick).unwrap());
}

#[test]
fn fp4_products_equal_the_reference_on_nvidia_fragments() {
    check(&cases::fp4f::run(&mut exec(0, Shape::Nvidia), Depth::Quick).unwrap());
}

#[test]
fn fp4_products_equal_the_reference_on_gfx11_fragments() {
    check(&cases::fp4f::run(&mut exec(1, Shape::Gfx11), Depth::Quick).unwrap());
}

#[test]
fn fp4_products_equal_the_reference_on_gfx12_fragments() {
    check(&cases::fp4f::run(&mut exec(77, Shape::Gfx12), Depth::Quick).unwrap());
}

#[test]
#[ignore = "soak: every case of the device lists on the emulated device, about an hour"]
fn soak_full_lists() {
    for (seed, shape) in [(0, Shape::Nvidia), (1, Shape::Gfx11), (2, Shape::Gfx12)] {
        check(&cases::fp4f::run(&mut exec(seed, shape), Depth::Full).unwrap());
        check(&cases::norm::run(&mut exec(seed, shape), Depth::Full).unwrap());
        check(&cases::a8::run(&mut exec(seed, shape), Depth::Full).unwrap());
    }
}
