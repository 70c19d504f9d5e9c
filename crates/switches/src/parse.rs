//! From variables to the effective set, or to every reason why there is none.

use std::fmt;

use crate::row::{State, Switch};
use crate::table::{REFUSED, TABLE};

/// Variables with these beginnings are meant for this engine or the one it replaces: an unknown one
/// is a mistake. `GGML_` is not among them, since other programs of the same machine read those; the
/// known ones are in the table.
const OURS: &[&str] = &["FOURSPARK_", "DFLASH_", "LUCE_", "PFLASH_"];

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// This variable.
    Variable(String),
}

/// One switch as it is in force.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Its row.
    pub switch: &'static Switch,
    /// The value, one that the row's kind admits.
    pub value: String,
    /// Where it comes from.
    pub source: Source,
}

/// Why a variable is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The variable.
    pub variable: String,
    /// Its value.
    pub value: String,
    /// What would be right.
    pub why: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={:?}: {}", self.variable, self.value, self.why)
    }
}

/// Every switch with the value in force, in the order of the table.
#[derive(Clone, Debug)]
pub struct Effective {
    settings: Vec<Setting>,
}

impl Default for Effective {
    fn default() -> Self {
        let default = |switch| Setting {
            switch,
            value: switch.default.to_owned(),
            source: Source::Default,
        };
        Self {
            settings: TABLE.iter().map(default).collect(),
        }
    }
}

impl Effective {
    /// The set that `variables` (name, value) stand for. Names that are not this engine's are left
    /// alone.
    ///
    /// # Errors
    /// Every variable that is unknown, cannot be read, has nothing to act on in this build, or is set
    /// twice with different meanings.
    pub fn of<N, V>(variables: impl IntoIterator<Item = (N, V)>) -> Result<Self, Vec<Refusal>>
    where
        N: AsRef<str>,
        V: AsRef<str>,
    {
        let mut effective = Self::default();
        let mut refusals = Vec::new();
        for (name, value) in variables {
            let (name, value) = (name.as_ref(), value.as_ref());
            if let Err(why) = effective.take(name, value) {
                refusals.push(Refusal {
                    variable: name.to_owned(),
                    value: value.to_owned(),
                    why,
                });
            }
        }
        if refusals.is_empty() {
            Ok(effective)
        } else {
            refusals.sort_by(|a, b| a.variable.cmp(&b.variable));
            Err(refusals)
        }
    }

    fn take(&mut self, name: &str, given: &str) -> Result<(), String> {
        if let Some(refused) = REFUSED.iter().find(|r| r.variable == name) {
            return Err(refused.instead.to_owned());
        }
        let Some((at, value)) = find(name, given) else {
            return if OURS.iter().any(|p| name.starts_with(p)) {
                Err(unknown(name))
            } else {
                Ok(())
            };
        };
        let setting = &mut self.settings[at];
        let switch = setting.switch;
        if !switch.kind.admits(&value) {
            return Err(format!("{} takes {}", switch.name, switch.kind));
        }
        let idle = value == switch.default || value == switch.kill;
        if switch.state == State::Planned && !idle {
            return Err(format!(
                "no build has {} yet; leave it unset or {}",
                switch.name, switch.kill
            ));
        }
        if let Source::Variable(other) = &setting.source
            && setting.value != value
        {
            return Err(format!(
                "{other} already sets {} to {}; keep one of them",
                switch.name, setting.value
            ));
        }
        setting.value = value;
        setting.source = Source::Variable(name.to_owned());
        Ok(())
    }

    /// All of them.
    #[must_use]
    pub fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Those whose value is not the default.
    pub fn changed(&self) -> impl Iterator<Item = &Setting> {
        self.settings.iter().filter(|s| s.value != s.switch.default)
    }

    /// The value of a switch.
    ///
    /// # Panics
    /// If the table has no such name: a name in code is a constant.
    #[must_use]
    pub fn value(&self, name: &str) -> &str {
        let found = self.settings.iter().find(|s| s.switch.name == name);
        &found.expect("a switch of the table").value
    }

    /// Whether a flag is on.
    #[must_use]
    pub fn is_on(&self, name: &str) -> bool {
        self.value(name) == "1"
    }

    /// What differs from the defaults, in one line; `None` if nothing does.
    #[must_use]
    pub fn line(&self) -> Option<String> {
        let shown: Vec<String> = self
            .changed()
            .map(|s| match &s.source {
                Source::Variable(name) => format!("{} = {} ({name})", s.switch.name, s.value),
                Source::Default => format!("{} = {}", s.switch.name, s.value),
            })
            .collect();
        (!shown.is_empty()).then(|| format!("switches: {}", shown.join(", ")))
    }
}

/// The row a variable means, and its value in that row's words.
fn find(name: &str, given: &str) -> Option<(usize, String)> {
    TABLE.iter().enumerate().find_map(|(at, switch)| {
        if switch.variable == name {
            return Some((at, given.to_owned()));
        }
        let alias = switch.aliases.iter().find(|a| a.variable() == name)?;
        Some((at, alias.translate(given)))
    })
}

fn unknown(name: &str) -> String {
    let tail = |v: &str| v.split_once('_').map(|(_, t)| t.to_owned());
    let near = TABLE
        .iter()
        .find(|s| tail(s.variable) == tail(name))
        .map(|s| format!("; did you mean {}?", s.variable));
    format!(
        "there is no such switch{}; `fourspark switches` lists them",
        near.unwrap_or_default()
    )
}

/// Beginnings of variables that change a measurement though they are no switches.
pub(crate) const AMBIENT: &[&str] = &[
    "LD_",
    "MALLOC_",
    "GLIBC_TUNABLES",
    "CUDA_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "GPU_",
    "AMD_",
    "NVIDIA_VISIBLE",
    "GGML_",
    "FPX_",
    "RAYON_",
    "OMP_",
    "RUST_MIN_STACK",
];
