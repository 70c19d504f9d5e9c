//! The executor on kernels that each make one mistake (kernels/host/faults.cpp).
#![cfg(feature = "host-exec")]

use ds4_kernels::KernelError;
use ds4_kernels::host::{BufferId, Host, Shape, kernels};
use ds4_kernels::launch::{Arg, Call};

const N: u64 = 64 * 4;

fn call(kernel: &'static str) -> Call {
    Call::new("faults.cpp", kernel, [1, 1, 1], 64)
}

fn run_seeded(call: &Call, seed: u64) -> (Result<(), KernelError>, Host, BufferId) {
    let mut host = Host::new(seed, Shape::Nvidia);
    let out = host.poisoned(N as usize, 0);
    let result = host.launch(call, &[out]);
    (result, host, out)
}

fn floats(host: &Host, id: BufferId) -> Vec<f32> {
    ds4_kernels::cases::to_f32(host.bytes(id))
}

/// The executor's words about a kernel that writes its one buffer.
fn report(kernel: &'static str) -> String {
    let (result, ..) = run_seeded(&call(kernel).arg(Arg::Write(N)), 0);
    result.expect_err("a mistake must be noticed").to_string()
}

#[test]
fn a_correct_kernel_runs_under_every_schedule() {
    let want: Vec<f32> = (0..64).rev().map(|i| i as f32).collect();
    for seed in 0..8 {
        let (result, host, out) = run_seeded(&call("fault_none").arg(Arg::Write(N)), seed);
        result.unwrap();
        assert_eq!(floats(&host, out), want, "seed {seed}");
    }
}

#[test]
fn divergence_is_reported_with_both_places() {
    let text = report("fault_divergent_barrier");
    assert!(
        text.contains("divergent barrier") && text.contains("faults.cpp:"),
        "{text}"
    );
    assert!(report("fault_two_barriers").contains("divergent barrier"));
    let text = report("fault_divergent_shuffle");
    assert!(
        text.contains("divergent warp") && text.contains("thread 31 at end"),
        "{text}"
    );
    assert!(report("fault_early_exit").contains("divergent warp"));
}

#[test]
fn memory_is_for_those_that_have_begun() {
    let text = report("fault_never_begins");
    assert!(
        text.contains("thread 0 comes to end of the kernel") && text.contains("before fs_begin"),
        "{text}"
    );
    let text = report("fault_begins_late");
    assert!(
        text.contains("barrier") && text.contains("faults.cpp:"),
        "{text}"
    );
    let text = report("fault_some_begin");
    assert!(text.contains("thread 7 comes to end"), "{text}");
    let text = report("fault_copies_before");
    assert!(text.contains("copies before fs_begin"), "{text}");
}

#[test]
fn a_sum_of_halves_that_depends_on_its_order_is_reported() {
    let run = |pair: u32, c: f32| {
        let call = Call::new("faults.cpp", "fault_half_step", [1, 1, 1], 32)
            .arg(Arg::Write(128))
            .arg(Arg::U32(pair))
            .arg(Arg::F32(c));
        let mut host = Host::new(0, Shape::Nvidia);
        let out = host.poisoned(128, 0);
        let result = host.launch(&call, &[out]);
        result.map(|()| floats(&host, out)[0])
    };
    // 16 products of 8 x 8.
    assert_eq!(run(0x4800_4800, 1.0).unwrap(), 1025.0);
    let most = (1 << 24) as f32 - 1024.0;
    assert_eq!(run(0x4800_4800, most - 1.0).unwrap(), 16_777_215.0);
    let text = run(0x4800_4800, most + 1.0).unwrap_err().to_string();
    assert!(text.contains("a sum depends on its order"), "{text}");
    let text = run(0x7c00_4800, 0.0).unwrap_err().to_string();
    assert!(text.contains("an operand is not finite"), "{text}");
}

#[test]
fn a_failed_launch_leaves_the_executor_usable() {
    let mut host = Host::new(0, Shape::Nvidia);
    let out = host.poisoned(N as usize, 0);
    let bad = call("fault_divergent_shuffle").arg(Arg::Write(N));
    assert!(host.launch(&bad, &[out]).is_err());
    host.launch(&call("fault_none").arg(Arg::Write(N)), &[out])
        .unwrap();
    assert_eq!(floats(&host, out)[0], 63.0);
}

#[test]
fn a_missing_barrier_gives_wrong_results_under_every_schedule() {
    let good: Vec<f32> = (0..64).rev().map(|i| i as f32).collect();
    for seed in 0..8 {
        let (result, host, out) =
            run_seeded(&call("fault_missing_barrier").arg(Arg::Write(N)), seed);
        result.unwrap();
        let got = floats(&host, out);
        assert_ne!(got, good, "seed {seed}");
        assert!(
            got.iter().any(|v| v.is_nan()),
            "unwritten shared memory is NaN"
        );
    }
}

#[test]
fn a_missing_wait_reads_the_old_contents() {
    let mut host = Host::new(0, Shape::Nvidia);
    let out = host.load(&5f32.to_le_bytes().repeat(64), 0);
    host.launch(&call("fault_missing_wait").arg(Arg::Write(N)), &[out])
        .unwrap();
    assert_eq!(
        floats(&host, out)[0],
        0.0,
        "the copy must not have happened"
    );
}

#[test]
fn undefined_behaviour_ends_the_launch_with_its_place() {
    let text = report("fault_shared_index");
    assert!(
        text.contains("index out of bounds") && text.contains("faults.cpp:"),
        "{text}"
    );
    let overflow = call("fault_overflow")
        .arg(Arg::Write(N))
        .arg(Arg::I32(i32::MAX - 5));
    let (result, ..) = run_seeded(&overflow, 0);
    let text = result.expect_err("a mistake must be noticed").to_string();
    assert!(text.contains("addition overflows"), "{text}");
}

#[test]
fn writes_outside_of_a_buffer_are_found() {
    let (result, ..) = run_seeded(&call("fault_write_outside").arg(Arg::Write(N)), 0);
    let want = KernelError::OutOfBounds {
        kernel: "fault_write_outside",
        index: 0,
    };
    assert_eq!(result, Err(want));
}

#[test]
fn shared_memory_has_a_device_s_limits_and_starts_poisoned() {
    assert!(report("fault_too_much_shared").contains("static shared memory"));
    let (result, host, out) = run_seeded(&call("fault_shared_unwritten").arg(Arg::Write(N)), 0);
    result.unwrap();
    assert!(floats(&host, out).iter().all(|v| v.is_nan()));
}

#[test]
fn dynamic_shared_memory_is_what_the_launch_gives() {
    let mut dynamic = call("fault_dynamic").arg(Arg::Write(N));
    let (result, ..) = run_seeded(&dynamic, 0);
    let text = result.expect_err("the launch gives none").to_string();
    assert!(
        text.contains("256 bytes of dynamic shared memory, the launch gives 0"),
        "{text}"
    );
    dynamic.shared = 256;
    let (result, host, out) = run_seeded(&dynamic, 0);
    result.unwrap();
    assert_eq!(floats(&host, out)[0], 63.0);
}

#[test]
fn wrong_launches_are_refused() {
    let refused = |call: &Call| run_seeded(call, 0).0.unwrap_err().to_string();
    assert!(refused(&call("nothing").arg(Arg::Write(N))).contains("no kernel named nothing"));
    let twice = call("fault_none").arg(Arg::Write(N)).arg(Arg::I32(0));
    assert!(refused(&twice).contains("takes 1 arguments, got 2"));
    let kinds = call("fault_overflow").arg(Arg::Write(N)).arg(Arg::Null);
    assert!(refused(&kinds).contains("argument 1 has 4 bytes, got 8"));
    let mut threads = call("fault_none").arg(Arg::Write(N));
    threads.threads = 32;
    assert!(refused(&threads).contains("blocks of 64 threads"));
    assert!(refused(&call("fault_none").arg(Arg::Write(N + 1))).contains("expected 257 bytes"));
}

#[test]
fn every_block_runs_once_in_any_order() {
    let mut blocks = Call::new("faults.cpp", "fault_blocks", [5, 3, 1], 64).arg(Arg::Write(N));
    blocks.grid = [5, 3, 1];
    for seed in 0..5 {
        let (result, host, out) = run_seeded(&blocks, seed);
        result.unwrap();
        let (words, _) = host.bytes(out).as_chunks::<4>();
        for (i, word) in words.iter().take(15).enumerate() {
            assert_eq!(
                u32::from_le_bytes(*word),
                (i / 5 * 256 + i % 5) as u32,
                "seed {seed}"
            );
        }
    }
}

#[test]
fn the_table_holds_every_kernel_and_shape() {
    let names = kernels();
    for name in [
        "a8_quantise",
        "fp4f_gemv_wide_2",
        "fp4f_gemm_a",
        "fp4f_gemm_d@gfx11",
        "fp4f_mma_n@gfx12",
    ] {
        assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
    }
}
