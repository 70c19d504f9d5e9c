//! Every kernel waits for the one ahead of it before it touches memory (docs/adr/0012-early-launch.md): read from the
//! sources, and from what clang makes of them for an architecture that has the wait.

use std::process::Command;

use ds4_kernels::image;

/// The kernels of a source by the text behind `FS_KERNEL(`, each with what is wrong about its beginning.
fn kernels(source: &str) -> Vec<(String, Option<String>)> {
    let text = plain(source);
    let mut found = Vec::new();
    for (at, mark) in text.match_indices("FS_KERNEL(") {
        if text[..at].ends_with("#define ") {
            continue;
        }
        let rest = &text[at + mark.len()..];
        let name = rest.split(',').next().unwrap_or_default().trim();
        let body = rest.split_once('{').map_or("", |(_, body)| body);
        found.push((name.to_owned(), fault(body)));
    }
    found
}

/// Without comments, continued lines in one.
fn plain(source: &str) -> String {
    let lines = source.lines().map(|line| {
        let code = line.split("//").next().unwrap_or_default();
        code.trim_end().trim_end_matches('\\')
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What is wrong with how a body begins: `fs_begin();` must be its first statement.
fn fault(body: &str) -> Option<String> {
    let first = body.split(';').next().unwrap_or_default().trim();
    (first != "fs_begin()").then(|| format!("begins with {first}"))
}

#[test]
fn every_kernel_begins_with_the_wait() {
    let mut count = 0;
    for source in image::KERNELS
        .iter()
        .chain(image::BENCH)
        .chain(image::HEADERS)
    {
        for (name, fault) in kernels(source.text) {
            assert_eq!(fault, None, "{}: {name}", source.name);
            count += 1;
        }
    }
    // As written, macros once: a search that finds none would pass as well.
    assert!(count >= 48, "{count} kernels");
}

#[test]
fn a_kernel_that_does_not_wait_is_found() {
    let faults = |text: &str| {
        kernels(text)
            .into_iter()
            .map(|(name, f)| (name, f.is_some()))
    };
    let planted = "\
#define FS_KERNEL(name, threads, blocks) extern void name
FS_KERNEL(good, 64, 1)(float* x) {
  fs_begin();
  x[0] = 1.0f;
}
FS_KERNEL(other, 64, 1)(const float* w) {  // a comment; with a semicolon
  other_call<4>(w, 3);
  fs_begin();
}
FS_KERNEL(reads, 64, 1)(float* x) {
  const float v = x[0];
  fs_begin();
}
FS_KERNEL(never, 64, 1)(float* x) { x[0] = 1.0f; }
FS_KERNEL(late, 64, 1)(float* x) {
  x[0] = 1.0f;
  fs_begin();
}
FS_KERNEL(sometimes, 64, 1)(float* x) {
  if (fs_tid() == 0) fs_begin();
}
FS_KERNEL(stores, 64, 1)(float* x) {
  x[0] = stores(x);
  fs_begin();
}
#define MANY(T) \\
  FS_KERNEL(many_##T, 64, 1)(T* x) { \\
    // not fs_begin();
    x[0] = 1; \\
  }
";
    let want = [
        ("good", false),
        ("other", true),
        ("reads", true),
        ("never", true),
        ("late", true),
        ("sometimes", true),
        ("stores", true),
        ("many_##T", true),
    ];
    let want = want.map(|(name, wrong)| (name.to_owned(), wrong));
    assert_eq!(faults(planted).collect::<Vec<_>>(), want);
}

/// Kernels of a PTX text with the memory operations in front of their wait; one without a wait has one too many.
fn early_accesses(ptx: &str) -> Vec<(String, Vec<String>)> {
    let mut found = Vec::new();
    for kernel in ptx.split(".entry ").skip(1) {
        let name = kernel.split('(').next().unwrap_or_default().to_owned();
        let (before, waits) = match kernel.split_once("griddepcontrol.wait") {
            Some((before, _)) => (before, true),
            None => (kernel, false),
        };
        let mut wrong: Vec<String> = before
            .lines()
            .map(str::trim)
            .filter(|l| touches(l))
            .map(str::to_owned)
            .collect();
        if !waits {
            wrong.push("no wait".into());
        }
        found.push((name, wrong));
    }
    found
}

/// Whether a line is an operation on memory other than the kernel's arguments. Loads through the cache that is not
/// kept coherent are of weights (FS_WEIGHTS): nobody writes those.
fn touches(line: &str) -> bool {
    // A predicate may stand before it.
    let op = line
        .split_whitespace()
        .find(|w| !w.starts_with('@'))
        .unwrap_or_default();
    if op.starts_with("ld.global.nc") {
        return false;
    }
    let mut parts = op.split('.');
    match parts.next() {
        Some("ld" | "ldu") => parts.next() != Some("param"),
        Some("st" | "atom" | "red" | "cp" | "mbarrier" | "bar" | "barrier") => true,
        _ => false,
    }
}

#[test]
fn the_compiler_moves_nothing_in_front_of_the_wait() {
    let clang = Command::new("clang-19").arg("--version").output();
    testkit::require!(clang.is_ok(), "no clang-19");
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("gpu");
    for source in image::KERNELS {
        let out = Command::new("clang-19")
            .args(["-x", "cuda", "--cuda-device-only", "--cuda-gpu-arch=sm_90"])
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
        let ptx = String::from_utf8_lossy(&out.stdout);
        let kernels = early_accesses(&ptx);
        assert!(!kernels.is_empty(), "{}: no kernels", source.name);
        for (name, wrong) in kernels {
            assert_eq!(wrong, Vec::<String>::new(), "{}: {name}", source.name);
        }
    }
}

#[test]
fn the_compiler_is_not_told_that_nobody_writes() {
    // With `restrict` loads may move across the wait: the vocabulary has words for where that is right.
    for source in image::KERNELS
        .iter()
        .chain(image::BENCH)
        .chain(image::HEADERS)
    {
        let known = source.name == "fourspark.h";
        assert_eq!(source.text.contains("__restrict"), known, "{}", source.name);
        assert_eq!(source.text.contains(".nc"), known, "{}", source.name);
    }
}

#[test]
fn an_access_in_front_of_the_wait_is_found() {
    let ptx = "\
.visible .entry good(
\tld.param.u64 %rd1, [good_param_0];
\tprefetch.global.L2 [%rd1];
\tld.global.nc.f32 %f2, [%rd2];
\tgriddepcontrol.launch_dependents;
\tgriddepcontrol.wait;
\tld.global.f32 %f1, [%rd1];
.visible .entry reads(
\tld.global.f32 %f1, [%rd1];
\tgriddepcontrol.wait;
.visible .entry adds(
\t@%p1 red.global.add.u32 [%rd1], 1;
\tgriddepcontrol.wait;
.visible .entry never(
\tret;
";
    let found: Vec<_> = early_accesses(ptx)
        .into_iter()
        .map(|(name, wrong)| (name, wrong.len()))
        .collect();
    let want = [("good", 0), ("reads", 1), ("adds", 1), ("never", 1)];
    assert_eq!(found, want.map(|(name, n)| (name.to_owned(), n)));
}
