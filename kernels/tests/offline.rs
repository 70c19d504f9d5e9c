//! What clang makes of the kernel sources for NVIDIA: every float operation states its rounding, so
//! that no later compiler may contract it (docs/adr/0001-arithmetic.md).

use std::process::Command;

use ds4_kernels::image;

/// PTX of one source.
fn ptx(source: &image::Source) -> String {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu");
    let out = Command::new("clang-19")
        .args(["-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_86"])
        .args([
            "--cuda-feature=+ptx80",
            "-nocudainc",
            "-nocudalib",
            "-S",
            "-O3",
        ])
        .args(["-std=c++17", "-ffp-contract=off", "-o", "-"])
        .arg(dir.join(source.name))
        .output()
        .expect("clang-19 starts");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// f32 operations that leave their rounding or contraction open.
fn open_operations(ptx: &str) -> Vec<&str> {
    let float = |line: &&str| {
        let op = line.split_whitespace().next().unwrap_or_default();
        let named = [
            "add", "sub", "mul", "fma", "mad", "div", "sqrt", "rcp", "ex2", "lg2",
        ];
        let head = op.split('.').next().unwrap_or_default();
        let stated = op.contains(".rn.") && !op.contains(".ftz");
        op.ends_with(".f32") && named.contains(&head) && !stated
    };
    ptx.lines().map(str::trim).filter(float).collect()
}

/// Sources that only compare and count, or make bytes.
const INTEGERS: &[&str] = &["select.cu", "synth.cu"];

#[test]
fn every_float_operation_states_its_rounding() {
    let clang = Command::new("clang-19").arg("--version").output();
    testkit::require!(clang.is_ok(), "no clang-19");
    for source in image::KERNELS {
        let text = ptx(source);
        // A source that computes nothing in floats is named: else the search below may look for the wrong thing.
        assert_eq!(
            text.contains(".rn.f32"),
            !INTEGERS.contains(&source.name),
            "{}: float operations",
            source.name
        );
        assert_eq!(
            open_operations(&text),
            Vec::<&str>::new(),
            "{}",
            source.name
        );
    }
}

#[test]
fn an_open_operation_is_found() {
    let text = "\tmul.f32 \t%f1, %f2, %f3;\n\tfma.rn.f32 %f1, %f2;\n\tadd.rn.ftz.f32 %f1;\n";
    assert_eq!(
        open_operations(text),
        ["mul.f32 \t%f1, %f2, %f3;", "add.rn.ftz.f32 %f1;"]
    );
}
