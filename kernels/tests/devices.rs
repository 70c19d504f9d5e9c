//! Case lists through the device layer: on the CPU, and on the fake device in a hostile order.
#![cfg(feature = "host-exec")]
#![allow(clippy::unwrap_used)]

use device::driver::Driver;
use device::{Place, Runtime, cpu, fake};
use ds4_kernels::cases::{self, Depth, List};
use ds4_kernels::launch::{Arg, Call, norm};
use ds4_kernels::run::{Kernels, Runner};

fn check<R: Driver>(runtime: &Runtime<R>, lists: &[(&str, List<Runner<R>>)]) {
    let device = runtime.open(0).unwrap();
    let mut runner = Runner::new(Kernels::new(&device, None)).unwrap();
    for (name, list) in lists {
        let outcomes = list(&mut runner, Depth::Quick).unwrap();
        let wrong: Vec<_> = outcomes.iter().filter(|o| !o.equal()).collect();
        assert!(
            !outcomes.is_empty() && wrong.is_empty(),
            "{name}: {wrong:#?}"
        );
    }
}

#[test]
fn cases_are_equal_on_the_cpu_as_a_device() {
    check(
        &cpu::runtime(1 << 30),
        &[
            ("a8", cases::a8::run),
            ("fp4f", cases::fp4f::run),
            ("norm", cases::norm::run),
            ("route", cases::route::run),
            ("compress", cases::compress::run),
        ],
    );
}

#[test]
fn cases_are_equal_on_the_fake_device() {
    for seed in [1, 9] {
        let settings = fake::Settings {
            seed,
            memory: 1 << 30,
            ..fake::Settings::default()
        };
        let runtime = fake::runtime(&settings);
        check(
            &runtime,
            &[("rows", cases::rows::run), ("hc", cases::hc::run)],
        );
        assert_eq!(runtime.driver().inner().violations(), [""; 0]);
    }
}

#[test]
fn sources_are_compiled_side_by_side_and_once() {
    let device = cpu::runtime(1 << 20).open(0).unwrap();
    let mut kernels = Kernels::new(&device, None);
    kernels.compile(&["norm.cu", "a8.cu", "rows.cu"]).unwrap();
    assert_eq!(kernels.counts().images, 3);
    kernels.compile(&["a8.cu", "hc.cu", "norm.cu"]).unwrap();
    assert_eq!(kernels.counts().images, 4, "only the new one");
    kernels.compile(&[]).unwrap();
    assert_eq!(kernels.counts().images, 4);
}

#[test]
fn wrong_launches_are_refused_before_a_device_sees_them() {
    let device = cpu::runtime(1 << 20).open(0).unwrap();
    let stream = device.stream().unwrap();
    let mut kernels = Kernels::new(&device, None);
    let buffer = device.alloc(Place::Device, 128).unwrap();
    let (view, part) = (buffer.view(), buffer.part(0, 64).unwrap());
    let call = norm::rms(1, 32, false, false, 1e-6).unwrap();
    let mut put = |call: &Call, buffers: &[_]| {
        let error = kernels.put(&stream, call, buffers).unwrap_err();
        error.to_string()
    };
    assert_eq!(
        put(&call, &[&view, &part]),
        "rms_norm: buffer 1: expected 128 bytes, got 64"
    );
    assert_eq!(put(&call, &[&view]), "rms_norm: expected 2 buffers, got 1");
    let unknown = Call::new("norm.cu", "no_such_kernel", [1, 1, 1], 32).arg(Arg::Null);
    let text = put(&unknown, &[]);
    assert!(text.contains("no_such_kernel"), "{text}");
    assert_eq!(kernels.counts().launches, 0);
    assert_eq!(
        kernels.counts().images,
        1,
        "the image is there, the kernel is not"
    );
}

#[test]
fn a_kernel_that_fails_loses_the_device() {
    let device = cpu::runtime(1 << 20).open(0).unwrap();
    let stream = device.stream().unwrap();
    let mut kernels = Kernels::new(&device, None);
    let buffer = device.alloc(Place::Device, 256).unwrap();
    let call =
        Call::new("faults.cpp", "fault_divergent_barrier", [1, 1, 1], 64).arg(Arg::Write(256));
    kernels.put(&stream, &call, &[&buffer.view()]).unwrap();
    let text = stream.sync().unwrap_err().to_string();
    assert!(
        text.contains("is lost") && text.contains("divergent barrier"),
        "{text}"
    );
}
