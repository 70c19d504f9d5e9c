//! Compiles ggml's base library and its bindings, with the feature `build`; else does nothing.
//!
//! The sources are those inside the crates.io package `llama-cpp-sys-2`, which Cargo locks and
//! downloads but never compiles; `FPX_GGML_DIR` names another ggml folder (the one that holds
//! `include/` and `src/`), for example a fork's.

#[cfg(not(feature = "build"))]
fn main() {}

#[cfg(feature = "build")]
fn main() {
    native::build();
}

#[cfg(feature = "build")]
// Cargo talks to build scripts through the environment and standard output.
#[allow(clippy::disallowed_methods, clippy::print_stdout)]
mod native {
    use std::env;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::Command;

    const CARRIER: &str = "llama-cpp-sys-2";

    /// The part of ggml that its own build calls ggml-base: types, quantisation, GGUF. No
    /// backend, so no SIMD: the scalar reference of every type.
    const C: &[&str] = &["ggml.c", "ggml-alloc.c", "ggml-quants.c"];
    const CPP: &[&str] = &[
        "ggml.cpp",
        "ggml-backend.cpp",
        "ggml-backend-meta.cpp",
        "ggml-opt.cpp",
        "ggml-threading.cpp",
        "gguf.cpp",
    ];

    /// What the wrappers call.
    const FUNCTIONS: &str = "ggml_(version|type_name|blck_size|type_size|get_type_traits|\
        quantize_chunk|quantize_requires_imatrix)|gguf_(init_from_file|free|get_version|\
        get_data_offset|get_alignment|get_n_kv|get_key|find_key|get_val_str|get_kv_type|\
        get_n_tensors|get_tensor_name|get_tensor_type|get_tensor_offset|get_tensor_size|\
        get_tensor_ne)";

    pub(super) fn build() {
        println!("cargo:rerun-if-changed=build.rs");
        println!("cargo:rerun-if-env-changed=FPX_GGML_DIR");
        let ggml = ggml_dir();
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        let version = version(&ggml);
        fs::write(
            out.join("ggml-version.h"),
            format!("#define GGML_VERSION \"{version}\"\n#define GGML_COMMIT \"{version}\"\n"),
        )
        .expect("OUT_DIR is writable");
        compile(&ggml, &out, false, C, "fourspark_ggml_c");
        compile(&ggml, &out, true, CPP, "fourspark_ggml_cpp");
        for library in ["dl", "m"] {
            println!("cargo:rustc-link-lib={library}");
        }
        bindings(&ggml, &out);
    }

    /// The ggml folder: the override, or inside the carrier package.
    fn ggml_dir() -> PathBuf {
        if let Some(dir) = env::var_os("FPX_GGML_DIR") {
            return PathBuf::from(dir);
        }
        let cargo = env::var_os("CARGO").expect("cargo sets CARGO");
        let output = Command::new(cargo)
            .args(["metadata", "--format-version", "1", "--locked"])
            .output()
            .expect("cargo metadata runs");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo metadata: {text}");
        let metadata: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
        let manifest = metadata["packages"]
            .as_array()
            .and_then(|all| all.iter().find(|p| p["name"] == CARRIER))
            .and_then(|p| p["manifest_path"].as_str())
            .expect("the carrier is locked");
        Path::new(manifest).with_file_name("llama.cpp").join("ggml")
    }

    /// The version ggml's CMake file states: three `set(GGML_VERSION_... n)` lines.
    fn version(ggml: &Path) -> String {
        let cmake = fs::read_to_string(ggml.join("CMakeLists.txt")).unwrap_or_default();
        let part = |name: &str| {
            let start = format!("set(GGML_VERSION_{name} ");
            let line = cmake.lines().find_map(|l| l.trim().strip_prefix(&start));
            line.map_or("0", |l| l.trim_end_matches(')')).to_owned()
        };
        [part("MAJOR"), part("MINOR"), part("PATCH")].join(".")
    }

    fn compile(ggml: &Path, out: &Path, cpp: bool, files: &[&str], name: &str) {
        let src = ggml.join("src");
        let mut build = cc::Build::new();
        build
            .cpp(cpp)
            .std(if cpp { "c++17" } else { "c11" })
            .opt_level(2)
            .warnings(false)
            .flag("-ffp-contract=off")
            .include(out)
            .include(ggml.join("include"))
            .include(&src)
            .define("GGML_SCHED_MAX_COPIES", "4")
            .define("_GNU_SOURCE", None)
            .define("_XOPEN_SOURCE", "600")
            .define("NDEBUG", None)
            .files(files.iter().map(|f| src.join(f)));
        build.compile(name);
    }

    fn bindings(ggml: &Path, out: &Path) {
        let include = ggml.join("include");
        bindgen::Builder::default()
            .header(include.join("ggml.h").display().to_string())
            .header(include.join("gguf.h").display().to_string())
            .clang_arg(format!("-I{}", include.display()))
            .allowlist_function(FUNCTIONS)
            .allowlist_var("GGML_MAX_DIMS")
            .default_enum_style(bindgen::EnumVariation::Consts)
            .layout_tests(false)
            .generate_comments(false)
            .generate()
            .expect("bindgen reads ggml's headers (is libclang installed?)")
            .write_to_file(out.join("ggml.rs"))
            .expect("OUT_DIR is writable");
    }
}
