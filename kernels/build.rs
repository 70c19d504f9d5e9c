//! Compiles the kernel sources as host C++ with UBSan for the SIMT executor (feature `host-exec`).
//! Without the feature there is nothing to build: the sources are embedded as text.

fn main() {
    println!("cargo:rerun-if-changed=gpu");
    println!("cargo:rerun-if-changed=host");
    #[cfg(feature = "host-exec")]
    host::build_unless_linted();
}

#[cfg(feature = "host-exec")]
mod host {
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Sources with a matrix step are built once more for each AMD fragment shape.
    const MATRIX: &[&str] = &[
        "fp4f_mma",
        "grouped",
        "grouped_k",
        "grouped_more",
        "index_many",
    ];

    /// A directory that cargo names.
    #[allow(clippy::disallowed_methods)] // how cargo talks to build scripts; no run-time switch
    fn dir(name: &str) -> PathBuf {
        PathBuf::from(std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set")))
    }

    fn base() -> cc::Build {
        let mut build = cc::Build::new();
        build
            .cpp(true)
            .std("c++17")
            .opt_level(2)
            // Its messages name file and line by themselves.
            .debug(false)
            .warnings(true)
            .extra_warnings(true)
            // Contraction would change bits; the rest keeps the build free of surprises.
            .flag("-ffp-contract=off")
            .flag("-fno-fast-math")
            .flag("-fno-exceptions");
        build
    }

    /// A C++ file that includes one kernel source, since compilers do not take `.cu` for C++.
    fn unit(out: &Path, source: &Path, shape: Option<u32>) -> PathBuf {
        let stem = source
            .file_stem()
            .expect("a source has a name")
            .to_string_lossy();
        let mut text = String::new();
        let mut name = stem.to_string();
        if let Some(gfx) = shape {
            text += &format!(
                "#define FS_HOST_TILE_GFX {gfx}\n#define FS_HOST_SUFFIX _gfx{gfx}\n\
                 #define FS_HOST_SUFFIX_TEXT \"@gfx{gfx}\"\n"
            );
            name += &format!("_gfx{gfx}");
        }
        text += &format!("#include \"{}\"\n", source.display());
        let file = out.join(format!("{name}.cpp"));
        fs::write(&file, text).expect("OUT_DIR is writable");
        file
    }

    /// Clippy wants no code, and cargo keeps what is made for it apart from what a build gets: its
    /// wrapper is part of the hash that names `OUT_DIR`.
    pub(super) fn build_unless_linted() {
        println!("cargo:rerun-if-env-changed=RUSTC_WORKSPACE_WRAPPER");
        #[allow(clippy::disallowed_methods)] // as in `dir`
        let wrapper = std::env::var_os("RUSTC_WORKSPACE_WRAPPER").unwrap_or_default();
        if Path::new(&wrapper)
            .file_stem()
            .is_none_or(|s| s != "clippy-driver")
        {
            build();
        }
    }

    fn build() {
        let (root, out) = (dir("CARGO_MANIFEST_DIR"), dir("OUT_DIR"));
        let mut kernels = base();
        kernels
            .flag("-fsanitize=undefined")
            .flag("-fsanitize=float-cast-overflow")
            .flag("-fno-sanitize=vptr")
            .flag("-fno-sanitize-recover=all")
            .flag_if_supported("-fno-sanitize=function")
            // The last array of a struct is an array, not the start of something longer.
            .flag_if_supported("-fsanitize=bounds-strict")
            .flag_if_supported("-fstrict-flex-arrays=3")
            .flag_if_supported("-Wno-unknown-pragmas")
            .flag_if_supported("-Wno-unused-function")
            // Each kernel registers itself in a static constructor that nothing else refers to.
            .link_lib_modifier("+whole-archive");
        let mut sources: Vec<PathBuf> = fs::read_dir(root.join("gpu"))
            .expect("kernels/gpu exists")
            .map(|entry| entry.expect("readable directory").path())
            .filter(|path| path.extension().is_some_and(|e| e == "cu"))
            .collect();
        sources.sort();
        for source in &sources {
            kernels.file(unit(&out, source, None));
            if MATRIX
                .iter()
                .any(|m| source.file_stem().is_some_and(|s| s == *m))
            {
                kernels.file(unit(&out, source, Some(11)));
                kernels.file(unit(&out, source, Some(12)));
            }
        }
        kernels.file(root.join("host/faults.cpp"));
        for file in ["exec.cpp", "switch.cpp", "ubsan.cpp"] {
            let objects = base()
                .file(root.join("host").join(file))
                .compile_intermediates();
            kernels.objects(objects);
        }
        kernels.compile("fs_host");
    }
}
