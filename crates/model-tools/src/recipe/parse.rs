//! The text of recipes. Must not know: tensors.

use std::fmt;

use fpx_quant::{Format, Fp2Dialect, Fp6Endpoint};

use super::{Rule, Scope};
use crate::error::ToolError;
use crate::role::{Kind, Role};

/// Formats an encoder exists for.
pub(crate) const WRITABLE: &[Format] = &[
    Format::F32,
    Format::F16,
    Format::BF16,
    Format::Q8_0,
    Format::Mxfp4,
    Format::Fp2(Fp2Dialect::Signed),
    Format::Fp2(Fp2Dialect::Affine),
    Format::Fp2(Fp2Dialect::S40),
    Format::Fp3,
    Format::Fp4,
    Format::Fp4Fast,
    Format::Fp6(Fp6Endpoint::Zero),
    Format::Fp6(Fp6Endpoint::Neg32),
    Format::Fp8,
];

/// Formats that are read but not written.
const DECODE_ONLY: &[Format] = &[
    Format::Q4K,
    Format::Q2K,
    Format::Iq2Xxs,
    Format::Fp2(Fp2Dialect::SignedNeg),
    Format::Mix3,
    Format::Mix2,
    Format::I32,
];

fn bad(item: &str, expected: impl Into<String>, got: impl Into<String>) -> ToolError {
    ToolError::Recipe {
        item: item.to_owned(),
        expected: expected.into(),
        got: got.into(),
    }
}

/// All rules of a text.
pub(super) fn rules(text: &str) -> Result<Vec<Rule>, ToolError> {
    let mut rules: Vec<Rule> = Vec::new();
    let lines = text.lines().map(|l| l.split('#').next().unwrap_or(""));
    for item in lines.flat_map(|l| l.split(',')).map(str::trim) {
        if item.is_empty() {
            continue;
        }
        let rule = rule(item)?;
        let twin = |r: &&Rule| r.scope == rule.scope && r.layers == rule.layers;
        if let Some(first) = rules.iter().find(twin) {
            return Err(bad(item, "one rule for each role", format!("also {first}")));
        }
        rules.push(rule);
    }
    if rules.is_empty() {
        return Err(bad(text, "at least one ROLE=FORMAT", "none"));
    }
    check_layers(&rules)?;
    Ok(rules)
}

/// Two rules of one role may nest, not cross: there would be no narrower one.
fn check_layers(rules: &[Rule]) -> Result<(), ToolError> {
    for (i, a) in rules.iter().enumerate() {
        for b in rules[..i].iter().filter(|b| b.scope == a.scope) {
            let (Some((a0, a1)), Some((b0, b1))) = (a.layers, b.layers) else {
                continue;
            };
            let apart = a1 < b0 || b1 < a0;
            let nested = (a0 <= b0 && b1 <= a1) || (b0 <= a0 && a1 <= b1);
            if !apart && (!nested || a1 - a0 == b1 - b0) {
                return Err(bad(
                    &a.to_string(),
                    "layers apart from or within another rule's",
                    b.to_string(),
                ));
            }
        }
    }
    Ok(())
}

fn rule(item: &str) -> Result<Rule, ToolError> {
    let (target, formats) = item
        .split_once('=')
        .ok_or_else(|| bad(item, "ROLE=FORMAT", "no ="))?;
    let (role, layers) = match target.split_once('@') {
        Some((role, layers)) => (role.trim(), Some(parse_layers(item, layers)?)),
        None => (target.trim(), None),
    };
    let (first, second) = match formats.split_once('|') {
        Some((f, s)) => (f, Some(s)),
        None => (formats, None),
    };
    let rule = Rule {
        scope: scope(item, role)?,
        layers,
        format: format(item, first)?,
        fallback: second.map(|s| format(item, s)).transpose()?,
    };
    for f in [Some(rule.format), rule.fallback].into_iter().flatten() {
        check(&rule, f)?;
    }
    Ok(rule)
}

fn parse_layers(item: &str, text: &str) -> Result<(u32, u32), ToolError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.trim().parse(), last.trim().parse()) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        _ => Err(bad(item, "layers as N or FIRST-LAST", text)),
    }
}

fn scope(item: &str, name: &str) -> Result<Scope, ToolError> {
    if name == "*" {
        return Ok(Scope::All);
    }
    let named = |r: &&Role| r.name() == name;
    let group = |r: &&Role| r.group() == name;
    if let Some(role) = Role::ALL.iter().find(named) {
        return match role.kind() {
            Kind::Matrix | Kind::Careful => Ok(Scope::One(*role)),
            Kind::Fixed => Err(bad(
                item,
                "a role whose format is free",
                format!("{name}, always F32"),
            )),
            Kind::Table => Err(bad(
                item,
                "a role whose format is free",
                format!("{name}, always I32"),
            )),
        };
    }
    if let Some(role) = Role::ALL.iter().find(group) {
        return Ok(Scope::Group(role.group()));
    }
    let mut known = vec!["*"];
    for role in Role::ALL {
        if matches!(role.kind(), Kind::Matrix | Kind::Careful) {
            known.extend([role.group(), role.name()]);
        }
    }
    known.dedup();
    Err(bad(item, format!("a role of {}", known.join(" ")), name))
}

/// The format of a name, any case.
fn format(item: &str, name: &str) -> Result<Format, ToolError> {
    let name = name.trim();
    let named = |f: &&Format| f.name().eq_ignore_ascii_case(name);
    if let Some(format) = WRITABLE.iter().find(named) {
        return Ok(*format);
    }
    let names: Vec<&str> = WRITABLE.iter().map(|f| f.name()).collect();
    let got = match DECODE_ONLY.iter().find(named) {
        Some(format) => format!("{format}, which is read but not written"),
        None => name.to_owned(),
    };
    Err(bad(item, format!("a format of {}", names.join(" ")), got))
}

/// Refuses formats that would make a model wrong rather than coarse.
fn check(rule: &Rule, format: Format) -> Result<(), ToolError> {
    let bits = 8 * format.block_bytes() / format.block_elems();
    if rule.scope == Scope::One(Role::Router) && bits < 8 {
        return Err(ToolError::RoleFormat {
            role: Role::Router.to_string(),
            format,
            why: "a router needs at least 8 bits a weight (selection margins are small)",
        });
    }
    Ok(())
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.scope {
            Scope::All => f.write_str("*")?,
            Scope::Group(g) => f.write_str(g)?,
            Scope::One(r) => f.write_str(r.name())?,
        }
        match self.layers {
            None => {}
            Some((a, b)) if a == b => write!(f, "@{a}")?,
            Some((a, b)) => write!(f, "@{a}-{b}")?,
        }
        write!(f, "={}", self.format)?;
        self.fallback.map_or(Ok(()), |x| write!(f, "|{x}"))
    }
}
