//! The layer table: which workspace crates a crate may use. Nothing points up.
//!
//! `ARCHITECTURE.md` shows the same table between two markers; a difference is a finding, so that
//! the picture cannot drift from what is enforced.

use super::{Finding, Tree};
use crate::manifest::{Dep, Kind};

/// A crate's place. The order of the table is the order of the layers, lowest first.
struct Layer {
    name: &'static str,
    /// Workspace crates it may use in code.
    uses: &'static [&'static str],
    /// What it must not know, for the reader of `ARCHITECTURE.md`.
    ignorant_of: &'static str,
}

const LAYERS: &[Layer] = &[
    Layer {
        name: "engine-core",
        uses: &[],
        ignorant_of: "files, devices, tensors, sockets",
    },
    Layer {
        name: "switches",
        uses: &[],
        ignorant_of: "what a switch does",
    },
    Layer {
        name: "ggml-sys",
        uses: &[],
        ignorant_of: "our crates",
    },
    Layer {
        name: "fpx-quant",
        uses: &["engine-core"],
        ignorant_of: "GGUF, devices, models, files",
    },
    Layer {
        name: "gguf",
        uses: &["engine-core", "ggml-sys", "fpx-quant"],
        ignorant_of: "models, devices",
    },
    Layer {
        name: "device",
        uses: &["engine-core", "switches"],
        ignorant_of: "quant formats, model shapes",
    },
    Layer {
        name: "ds4-kernels",
        uses: &["engine-core", "fpx-quant", "device"],
        ignorant_of: "layers, requests, switches",
    },
    Layer {
        name: "sampling",
        uses: &["engine-core"],
        ignorant_of: "tensors, text, drafters",
    },
    Layer {
        name: "ds4-target",
        uses: &[
            "engine-core",
            "ggml-sys",
            "fpx-quant",
            "gguf",
            "device",
            "ds4-kernels",
            "sampling",
        ],
        ignorant_of: "DSpark, processes, HTTP, vendors",
    },
    Layer {
        name: "dspark-draft",
        uses: &[
            "engine-core",
            "fpx-quant",
            "gguf",
            "device",
            "ds4-kernels",
            "ds4-target",
            "sampling",
        ],
        ignorant_of: "processes, shared memory, HTTP, queues",
    },
    Layer {
        name: "ipc-transport",
        uses: &[
            "engine-core",
            "switches",
            "gguf",
            "device",
            "ds4-kernels",
            "ds4-target",
            "dspark-draft",
        ],
        ignorant_of: "sampling, tokenizer, the target's weights",
    },
    Layer {
        name: "scheduler",
        uses: &[
            "engine-core",
            "switches",
            "sampling",
            "dspark-draft",
            "ipc-transport",
        ],
        ignorant_of: "tensors, vendors, JSON",
    },
    Layer {
        name: "text",
        uses: &["engine-core", "gguf"],
        ignorant_of: "tensors, sockets",
    },
    Layer {
        name: "model-tools",
        uses: &[
            "engine-core",
            "switches",
            "ggml-sys",
            "fpx-quant",
            "gguf",
            "device",
            "ds4-kernels",
            "ds4-target",
            "sampling",
            "dspark-draft",
            "text",
        ],
        ignorant_of: "HTTP, scheduling",
    },
    Layer {
        name: "fourspark",
        uses: &[
            "engine-core",
            "switches",
            "fpx-quant",
            "gguf",
            "device",
            "ds4-kernels",
            "ds4-target",
            "sampling",
            "dspark-draft",
            "ipc-transport",
            "scheduler",
            "text",
        ],
        ignorant_of: "HTTP, the command line",
    },
    Layer {
        name: "server",
        uses: &[
            "engine-core",
            "switches",
            "gguf",
            "device",
            "sampling",
            "scheduler",
            "text",
            "model-tools",
            "fourspark",
        ],
        ignorant_of: "layers, kernels, drafters",
    },
    Layer {
        name: "qualify",
        uses: &[
            "engine-core",
            "switches",
            "fpx-quant",
            "gguf",
            "device",
            "ds4-target",
            "dspark-draft",
            "ipc-transport",
        ],
        ignorant_of: "how the product composes itself: it runs the binary",
    },
    Layer {
        name: "fake-hip",
        uses: &["device", "ds4-kernels"],
        ignorant_of: "who loads it: it stands in for a vendor's library in tests",
    },
    Layer {
        name: "testkit",
        uses: &["engine-core", "fpx-quant", "gguf", "sampling", "text"],
        ignorant_of: "the code under test: ds4-target, ds4-kernels",
    },
    Layer {
        name: "xtask",
        uses: &[],
        ignorant_of: "every other crate",
    },
];

/// Outside crates that one layer owns: everyone else meets them through it.
const OWNED: &[(&str, &[&str])] = &[
    // ds4-kernels still opens it itself, to run its case lists; they move to `device`.
    ("cudarc", &["device", "ds4-kernels"]),
    ("hip-runtime-sys", &["device"]),
    ("axum", &["server"]),
    ("tower-http", &["server"]),
    ("shared_memory", &["ipc-transport"]),
    ("bindgen", &["ggml-sys"]),
];

const DOC: &str = "ARCHITECTURE.md";
const BEGIN: &str = "<!-- layers: checked by `cargo xtask tidy` -->";
const END: &str = "<!-- end of layers -->";

/// Applies the rule.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, manifest) in tree.manifests() {
        let Some(layer) = LAYERS.iter().position(|l| l.name == manifest.name) else {
            let what = format!("crate `{}` has no row in the layer table", manifest.name);
            findings.push(Finding::new(path, 0, what));
            continue;
        };
        for dep in &manifest.deps {
            if let Some(what) = objection(layer, dep) {
                findings.push(Finding::new(path, dep.line, what));
            }
        }
    }
    findings.extend(documented(tree));
    findings
}

fn objection(layer: usize, dep: &Dep) -> Option<String> {
    let from = &LAYERS[layer];
    let name = dep.name.as_str();
    if let Some((_, owners)) = OWNED.iter().find(|(owned, _)| *owned == name) {
        let fine = owners.contains(&from.name);
        return (!fine).then(|| format!("only {} may use `{name}`", owners.join(" and ")));
    }
    let to = LAYERS.iter().position(|l| l.name == name)?;
    let dev = dep.kind == Kind::Dev;
    let tests_only = dev && from.name != "testkit" && from.name != "xtask";
    let fine = match name {
        // A crate may name itself in tests, to switch on a feature of its own.
        _ if dev && to == layer => true,
        "testkit" => tests_only,
        _ => from.uses.contains(&name) || (tests_only && to < layer),
    };
    (!fine).then(|| {
        format!(
            "`{}` may not depend on `{name}`{}",
            from.name,
            kind_note(dep.kind)
        )
    })
}

fn kind_note(kind: Kind) -> &'static str {
    match kind {
        Kind::Normal => "",
        Kind::Dev => " (even in tests)",
        Kind::Build => " (even to build)",
    }
}

/// The document with the table as it should be; `None` if it has no place for it.
pub(crate) fn redrawn(tree: &Tree) -> Option<(&'static str, String)> {
    let (before, rest) = tree.text(DOC)?.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some((DOC, format!("{before}{BEGIN}\n{}{END}{after}", rendered())))
}

fn documented(tree: &Tree) -> Option<Finding> {
    let text = tree.text(DOC)?;
    let shown = text
        .split_once(BEGIN)
        .and_then(|(_, rest)| rest.split_once(END));
    match shown {
        Some((table, _)) if table.trim() == rendered().trim() => None,
        Some(_) => Some(Finding::new(
            DOC,
            0,
            "the layer table is stale: `cargo xtask tidy --fix`",
        )),
        None => Some(Finding::new(
            DOC,
            0,
            format!("no layer table between {BEGIN} and {END}"),
        )),
    }
}

fn rendered() -> String {
    let mut table = "| crate | may use | must not know |\n| --- | --- | --- |\n".to_owned();
    for layer in LAYERS {
        let uses = if layer.uses.is_empty() {
            "-".to_owned()
        } else {
            layer.uses.join(", ")
        };
        table += &format!("| {} | {uses} | {} |\n", layer.name, layer.ignorant_of);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, lines: &str) -> Vec<String> {
        let text = format!("[package]\nname = \"{name}\"\n{lines}\n");
        let tree = Tree::of(&[("crates/x/Cargo.toml", &text)]);
        check(&tree).into_iter().map(|f| f.what).collect()
    }

    #[test]
    fn the_table_itself_points_down() {
        for (at, layer) in LAYERS.iter().enumerate() {
            for used in layer.uses {
                let to = LAYERS.iter().position(|l| l.name == *used).expect(used);
                assert!(to < at, "{} -> {used}", layer.name);
                assert_ne!(*used, "testkit");
            }
        }
    }

    #[test]
    fn edges_down_are_fine() {
        assert!(found("gguf", "[dependencies]\nfpx-quant.workspace = true").is_empty());
        assert!(found("gguf", "[dev-dependencies]\ntestkit.workspace = true").is_empty());
        assert!(
            found(
                "scheduler",
                "[dev-dependencies]\nds4-target.workspace = true"
            )
            .is_empty()
        );
        for name in ["gguf", "testkit"] {
            let itself = format!("[dev-dependencies]\n{name}.workspace = true");
            assert!(found(name, &itself).is_empty());
        }
        assert!(found("device", "[dependencies]\ncudarc.workspace = true").is_empty());
    }

    #[test]
    fn edges_up_are_found() {
        for (name, lines) in [
            ("fpx-quant", "[dependencies]\ngguf.workspace = true"),
            ("fpx-quant", "[dev-dependencies]\ngguf.workspace = true"),
            (
                "ds4-target",
                "[dependencies]\ndspark-draft.workspace = true",
            ),
            ("ds4-target", "[dev-dependencies]\nserver.workspace = true"),
            ("ds4-target", "[dependencies]\ncudarc.workspace = true"),
            (
                "ds4-target",
                "[target.'cfg(unix)'.dependencies]\nipc-transport.workspace = true",
            ),
            ("gguf", "[dependencies]\ntestkit.workspace = true"),
            ("testkit", "[dependencies]\nds4-target.workspace = true"),
            (
                "testkit",
                "[dev-dependencies]\nds4-kernels.workspace = true",
            ),
            ("xtask", "[dependencies]\nengine-core.workspace = true"),
            ("xtask", "[dev-dependencies]\nengine-core.workspace = true"),
            (
                "scheduler",
                "[build-dependencies]\nds4-kernels.workspace = true",
            ),
        ] {
            assert_eq!(found(name, lines).len(), 1, "{name}: {lines}");
        }
    }

    /// shared memory with names is for the crate of the worker alone.
    #[test]
    fn a_43_named_shared_memory_stays_in_one_crate() {
        let named = "[dependencies]\nshared_memory.workspace = true";
        assert!(found("ipc-transport", named).is_empty());
        for other in ["server", "fourspark", "dspark-draft"] {
            assert_eq!(found(other, named).len(), 1, "{other}");
        }
    }

    #[test]
    fn a_crate_without_a_row_is_found() {
        assert!(found("newcomer", "")[0].contains("newcomer"));
    }

    #[test]
    fn the_document_must_show_the_table() {
        let good = format!("# A\n{BEGIN}\n{}{END}\n", rendered());
        assert!(check(&Tree::of(&[(DOC, &good)])).is_empty());
        let stale = good.replace("| sampling | engine-core |", "| sampling | gguf |");
        assert_ne!(good, stale);
        let tree = Tree::of(&[(DOC, &stale)]);
        assert_eq!(check(&tree).len(), 1);
        assert_eq!(redrawn(&tree), Some((DOC, good)));
        assert_eq!(check(&Tree::of(&[(DOC, "# A\n")])).len(), 1);
    }
}
