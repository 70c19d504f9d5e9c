//! Which format each role gets: a small text, parsed once into a checked table.
//!
//! `ROLE[@FIRST-LAST]=FORMAT[|FALLBACK]`, separated by commas or line ends, `#` starts a comment.
//! ROLE is a role (`attn.q_b`), a group (`attn`) or `*`; the narrowest rule wins, whatever the
//! order, and a rule with layers wins over one without. `*` and groups cover the matrices; `router`, `hc` and
//! `draft.confidence` are F32 unless named; norms, sinks, biases and constants are always F32. A
//! FALLBACK is used for rows that do not fit FORMAT's blocks, and reported; without one such rows
//! are an error. Must not know: tensors' data, files.

mod builtin;
mod parse;

use fpx_quant::Format;

use crate::error::ToolError;
use crate::role::{Kind, Place, Role};

pub use builtin::{BUILTIN, builtin};

/// What a rule applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    All,
    Group(&'static str),
    One(Role),
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    scope: Scope,
    /// First and last layer.
    layers: Option<(u32, u32)>,
    format: Format,
    fallback: Option<Format>,
}

/// A checked recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recipe {
    text: String,
    rules: Vec<Rule>,
}

/// What a recipe says about one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The format to write.
    pub format: Format,
    /// The format the recipe wanted, where the rows did not fit it and the fallback was taken.
    pub instead_of: Option<Format>,
}

impl Recipe {
    /// One format for every matrix: the plain outputs F32, F16 and BF16.
    ///
    /// # Errors
    /// `RoleFormat` if the format cannot be written.
    pub fn plain(format: Format) -> Result<Self, ToolError> {
        Self::parse(&format!("*={}", format.name()))
    }

    /// Parses a recipe.
    ///
    /// # Errors
    /// `Recipe` for what cannot be read, `RoleFormat` for a format a role must not have.
    pub fn parse(text: &str) -> Result<Self, ToolError> {
        let rules = parse::rules(text)?;
        let items: Vec<String> = rules.iter().map(ToString::to_string).collect();
        let text = items.join(",");
        Ok(Self { text, rules })
    }

    /// The recipe in one line, without comments: what files record.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The format of a tensor. `row_elems`: elements of its rows.
    ///
    /// # Errors
    /// `Recipe` if no rule covers the role, `NoFallback` if the rows fit neither format.
    pub fn choose(
        &self,
        place: Place,
        tensor: &str,
        row_elems: usize,
    ) -> Result<Choice, ToolError> {
        let exactly = |format| Choice {
            format,
            instead_of: None,
        };
        match place.role.kind() {
            Kind::Fixed => return Ok(exactly(Format::F32)),
            Kind::Table => return Ok(exactly(Format::I32)),
            Kind::Careful | Kind::Matrix => {}
        }
        let Some(rule) = self.rule(place) else {
            if place.role.kind() == Kind::Careful {
                return Ok(exactly(Format::F32));
            }
            return Err(ToolError::Recipe {
                item: self.text.clone(),
                expected: format!("a rule for {} (or *)", place.role),
                got: format!("none, needed by {tensor}"),
            });
        };
        let misfit = match rule.format.row_bytes(row_elems) {
            Ok(_) => return Ok(exactly(rule.format)),
            Err(e) => e,
        };
        match rule.fallback.filter(|f| f.row_bytes(row_elems).is_ok()) {
            Some(format) => Ok(Choice {
                format,
                instead_of: Some(rule.format),
            }),
            None => Err(ToolError::NoFallback {
                tensor: tensor.to_owned(),
                role: place.role.to_string(),
                format: rule.format,
                source: Box::new(misfit),
            }),
        }
    }

    /// The narrowest rule for a place.
    fn rule(&self, place: Place) -> Option<&Rule> {
        let narrowness = |rule: &&Rule| {
            let scope = match rule.scope {
                Scope::All => 0,
                Scope::Group(_) => 1,
                Scope::One(_) => 2,
            };
            (
                scope,
                rule.layers.map(|(first, last)| u32::MAX - (last - first)),
            )
        };
        let covers = |rule: &&Rule| rule.covers(place);
        self.rules.iter().filter(covers).max_by_key(narrowness)
    }
}

impl Rule {
    fn covers(&self, place: Place) -> bool {
        let role = match self.scope {
            Scope::All => place.role.kind() == Kind::Matrix,
            Scope::Group(g) => place.role.kind() == Kind::Matrix && place.role.group() == g,
            Scope::One(r) => place.role == r,
        };
        let layer = match self.layers {
            None => true,
            Some((first, last)) => place.block.is_some_and(|b| (first..=last).contains(&b)),
        };
        role && layer
    }
}

#[cfg(test)]
mod tests;
