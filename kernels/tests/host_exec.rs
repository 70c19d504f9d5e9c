//! Every case list on the host executor: all bits, three schedules, three fragment shapes.
#![cfg(feature = "host-exec")]

use ds4_kernels::KernelError;
use ds4_kernels::cases::reference::{self, Activations};
use ds4_kernels::cases::{self, Depth, Outcome, Runner};
use ds4_kernels::host::{BufferId, Host, Shape};
use ds4_kernels::launch::fp4f::Tile32;
use ds4_kernels::launch::{Call, bench};
use fpx_quant::Format;

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
fn float_matrices_equal_the_reference() {
    check(&cases::dense::run(&mut exec(0, Shape::Nvidia), Depth::Quick).unwrap());
    check(&cases::dense::run(&mut exec(9, Shape::Nvidia), Depth::Quick).unwrap());
}

#[test]
fn attention_equals_the_reference() {
    for seed in [0, 1, 77] {
        check(&cases::attend::run(&mut exec(seed, Shape::Nvidia), Depth::Quick).unwrap());
    }
}

#[test]
fn hyper_connections_equal_the_reference() {
    for seed in [0, 1, 77] {
        check(&cases::hc::run(&mut exec(seed, Shape::Nvidia), Depth::Quick).unwrap());
    }
}

#[test]
fn stored_rows_equal_the_reference() {
    for seed in [0, 1, 77] {
        check(&cases::rows::run(&mut exec(seed, Shape::Nvidia), Depth::Quick).unwrap());
    }
}

#[test]
fn routes_equal_the_reference() {
    for seed in [0, 1, 77] {
        check(&cases::route::run(&mut exec(seed, Shape::Nvidia), Depth::Quick).unwrap());
    }
}

#[test]
fn compressed_rows_equal_the_reference() {
    for seed in [0, 1, 77] {
        check(&cases::compress::run(&mut exec(seed, Shape::Nvidia), Depth::Quick).unwrap());
    }
}

#[test]
fn scores_and_key_lists_equal_the_reference() {
    for seed in [0, 1, 77] {
        check(&cases::index::run(&mut exec(seed, Shape::Nvidia), Depth::Quick).unwrap());
    }
    for shape in [Shape::Gfx11, Shape::Gfx12] {
        check(&cases::index::run(&mut exec(5, shape), Depth::Quick).unwrap());
    }
}

#[test]
fn tiled_matrices_and_experts_equal_the_reference() {
    check(&cases::tiled::run(&mut exec(0, Shape::Nvidia), Depth::Quick).unwrap());
    check(&cases::tiled::run(&mut exec(5, Shape::Nvidia), Depth::Quick).unwrap());
}

#[test]
fn grouped_products_equal_the_reference_on_nvidia_fragments() {
    check(&cases::grouped::run(&mut exec(0, Shape::Nvidia), Depth::Quick).unwrap());
}

#[test]
fn grouped_products_equal_the_reference_on_gfx11_fragments() {
    check(&cases::grouped::run(&mut exec(1, Shape::Gfx11), Depth::Quick).unwrap());
}

#[test]
fn grouped_products_equal_the_reference_on_gfx12_fragments() {
    check(&cases::grouped::run(&mut exec(77, Shape::Gfx12), Depth::Quick).unwrap());
}

#[test]
fn tokens_and_their_rows_equal_the_reference() {
    check(&cases::head::run(&mut exec(0, Shape::Nvidia), Depth::Quick).unwrap());
    check(&cases::head::run(&mut exec(3, Shape::Nvidia), Depth::Quick).unwrap());
}

#[test]
fn made_up_weights_equal_the_definition() {
    for seed in [0, 1, 77] {
        check(&cases::synth::run(&mut exec(seed, Shape::Nvidia), Depth::Quick).unwrap());
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

/// File blocks as codes in element order, then scales.
fn planar(raw: &[u8]) -> Vec<u8> {
    let (blocks, _) = raw.as_chunks::<17>();
    let code = |b: &[u8; 17], i: usize| if i < 16 { b[i] & 15 } else { b[i - 16] >> 4 };
    let codes = blocks
        .iter()
        .flat_map(|b| (0..16).map(|j| code(b, 2 * j) | code(b, 2 * j + 1) << 4));
    codes.chain(blocks.iter().map(|b| b[16])).collect()
}

#[test]
fn free_orders_are_close() {
    let (rows, k, cols) = (70, 2048, 8);
    let w = Tile32::new(rows, k).unwrap();
    let raw = cases::fp4f::random_matrix(rows, k, 5, false);
    let x = cases::Noise::new(6).activations(cols, k);
    let x = Activations::new(&x, cols, k);
    let want = reference::product(Format::Fp4Fast, rows, k, &raw, &x).unwrap();
    let norm = want.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>();
    let mut host = Host::new(0, Shape::Nvidia);
    let files = [
        host.load(&planar(&raw), 0),
        host.load(&cases::fp4f::packed(&w, &raw), 0),
    ];
    let inputs = [host.load(&x.q, 0), host.load(&x.meta, 0)];
    let dots = bench::free_dots(&w, cols)
        .unwrap()
        .into_iter()
        .map(|c| (files[0], c));
    let matrix = bench::free_matrix(&w, cols)
        .unwrap()
        .into_iter()
        .map(|c| (files[1], c));
    for (file, (name, call)) in dots.chain(matrix) {
        let y = host.poisoned(want.len() * 4, 0);
        host.launch(&call, &[file, inputs[0], inputs[1], y])
            .unwrap();
        let got = cases::to_f32(host.bytes(y));
        let error: f64 = want
            .iter()
            .zip(&got)
            .map(|(w, g)| f64::from(w - g).powi(2))
            .sum();
        assert!(
            (error / norm).sqrt() < 1e-6,
            "{name}: {}",
            (error / norm).sqrt()
        );
    }
}

#[test]
#[ignore = "soak: every case of the device lists on the emulated device, hours"]
fn soak_full_lists() {
    for (seed, shape) in [(0, Shape::Nvidia), (1, Shape::Gfx11), (2, Shape::Gfx12)] {
        for (name, run) in cases::families::<Exec>() {
            if name != "math" {
                check(&run(&mut exec(seed, shape), Depth::Full).unwrap());
            }
        }
    }
}
