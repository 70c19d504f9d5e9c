//! Reads the little of `Cargo.toml` that the checks need: name, dependencies with their kind,
//! features.
//!
//! A line reader instead of a TOML crate, so that this tool has no dependencies. It knows tables,
//! `key = value`, dotted keys and arrays over several lines, which is all a manifest here may use;
//! cargo itself refuses what is not TOML.

/// How a dependency is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Dev,
    Build,
}

/// One dependency line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Dep {
    pub(crate) name: String,
    pub(crate) kind: Kind,
    /// Whether it takes version or path from the workspace table.
    pub(crate) inherits: bool,
    /// Line number from 1.
    pub(crate) line: usize,
}

/// What the checks know of a crate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) deps: Vec<Dep>,
    pub(crate) features: Vec<String>,
    /// Whether `[lints] workspace = true` stands.
    pub(crate) lints: bool,
}

impl Manifest {
    /// Whether the crate has a feature of this name.
    pub(crate) fn has_feature(&self, name: &str) -> bool {
        self.features.iter().any(|f| f == name)
    }
}

/// Reads a manifest's text.
pub(crate) fn parse(text: &str) -> Manifest {
    let mut manifest = Manifest::default();
    let mut table = String::new();
    let mut open = 0i32;
    for (number, raw) in text.lines().enumerate() {
        let line = without_comment(raw).trim();
        if open > 0 {
            open += depth(line);
            continue;
        }
        if line.starts_with('[') {
            table = line.trim_matches(['[', ']']).trim().to_owned();
            open_dependency_table(&mut manifest, &table, number + 1);
        } else if let Some((key, value)) = line.split_once('=') {
            open = depth(value).max(0);
            entry(&mut manifest, &table, key.trim(), value.trim(), number + 1);
        }
    }
    manifest
}

fn entry(manifest: &mut Manifest, table: &str, key: &str, value: &str, line: usize) {
    match table {
        "package" if key == "name" => manifest.name = unquote(value).to_owned(),
        "features" => manifest.features.push(unquote(key).to_owned()),
        "lints" => manifest.lints |= key == "workspace" && value == "true",
        _ => {}
    }
    let Some((kind, of)) = dependency_table(table) else {
        return;
    };
    let inherited = "workspace = true";
    if of.is_some() {
        // `[dependencies.name]`: the entry was pushed with the header.
        if let Some(last) = manifest.deps.last_mut() {
            last.inherits |= key == "workspace" && value == "true";
        }
        return;
    }
    let (name, rest) = key.split_once('.').unwrap_or((key, ""));
    let inherits = (rest == "workspace" && value == "true") || value.contains(inherited);
    let name = unquote(name).to_owned();
    match manifest
        .deps
        .iter_mut()
        .find(|d| d.name == name && d.kind == kind)
    {
        Some(known) if !rest.is_empty() => known.inherits |= inherits,
        _ => manifest.deps.push(Dep {
            name,
            kind,
            inherits,
            line,
        }),
    }
}

fn open_dependency_table(manifest: &mut Manifest, table: &str, line: usize) {
    if let Some((kind, Some(name))) = dependency_table(table) {
        manifest.deps.push(Dep {
            name,
            kind,
            inherits: false,
            line,
        });
    }
}

/// The kind of a dependency table, and the name when the table is of one dependency.
fn dependency_table(table: &str) -> Option<(Kind, Option<String>)> {
    // `target.'cfg(unix)'.dependencies.name`: what stands after the quoted condition counts.
    let table = match table.strip_prefix("target.") {
        Some(rest) => rest.rsplit_once("'.").map_or(rest, |(_, after)| after),
        None => table,
    };
    let kinds = [
        ("dependencies", Kind::Normal),
        ("dev-dependencies", Kind::Dev),
        ("build-dependencies", Kind::Build),
    ];
    kinds.into_iter().find_map(|(word, kind)| {
        let rest = table.strip_prefix(word)?;
        match rest.strip_prefix('.') {
            Some(name) => Some((kind, Some(unquote(name).to_owned()))),
            None if rest.is_empty() => Some((kind, None)),
            None => None,
        }
    })
}

fn without_comment(line: &str) -> &str {
    let mut quote = None;
    for (at, c) in line.char_indices() {
        match (quote, c) {
            (None, '#') => return &line[..at],
            (None, '"' | '\'') => quote = Some(c),
            (Some(q), _) if q == c => quote = None,
            _ => {}
        }
    }
    line
}

fn depth(text: &str) -> i32 {
    text.chars()
        .map(|c| i32::from(c == '[' || c == '{') - i32::from(c == ']' || c == '}'))
        .sum()
}

fn unquote(text: &str) -> &str {
    text.trim().trim_matches(['"', '\''])
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"
[package]
name = "gguf" # the crate
[features]
default = []
mutants = ["engine-core/mutants",
  "fpx-quant/mutants"]
"ggml" = ["dep:ggml-sys"]
[dependencies]
engine-core.workspace = true
ggml-sys = { workspace = true, optional = true }
half = "2.7"
[dependencies.memmap2]
workspace = true
[target.'cfg(any())'.dependencies]
carrier = "=0.1.161"
[dev-dependencies]
testkit.workspace = true
[build-dependencies]
cc = { version = "1",
  features = ["parallel"] }
[lints]
workspace = true
"#;

    fn dep(manifest: &Manifest, name: &str) -> (Kind, bool) {
        let found = manifest.deps.iter().find(|d| d.name == name).expect(name);
        (found.kind, found.inherits)
    }

    #[test]
    fn reads_names_kinds_and_inheritance() {
        let m = parse(SAMPLE);
        assert_eq!(m.name, "gguf");
        assert!(m.lints);
        assert_eq!(m.features, ["default", "mutants", "ggml"]);
        assert_eq!(dep(&m, "engine-core"), (Kind::Normal, true));
        assert_eq!(dep(&m, "ggml-sys"), (Kind::Normal, true));
        assert_eq!(dep(&m, "half"), (Kind::Normal, false));
        assert_eq!(dep(&m, "memmap2"), (Kind::Normal, true));
        assert_eq!(dep(&m, "carrier"), (Kind::Normal, false));
        assert_eq!(dep(&m, "testkit"), (Kind::Dev, true));
        assert_eq!(dep(&m, "cc"), (Kind::Build, false));
        assert_eq!(m.deps.len(), 7);
    }

    #[test]
    fn a_comment_sign_inside_quotes_stays() {
        assert_eq!(without_comment(r##"a = "x#y" # z"##), r##"a = "x#y" "##);
    }

    #[test]
    fn dotted_keys_of_one_dependency_are_one_entry() {
        let m = parse("[dependencies]\nserde.workspace = true\nserde.features = [\"derive\"]\n");
        assert_eq!(m.deps.len(), 1);
        assert!(m.deps[0].inherits);
    }

    #[test]
    fn missing_lints_is_seen() {
        assert!(!parse("[package]\nname = \"a\"\n").lints);
    }
}
