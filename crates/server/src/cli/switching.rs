//! Switches at the start of the program: read once, refused loudly, shown, and put to work.

use std::fmt::Write;
use std::process::ExitCode;
use std::sync::OnceLock;

use serde_json::{Value, json};
use switches::{Effective, Refusal, Source, State};

use super::args::SwitchesArgs;
use super::out;

static EFFECTIVE: OnceLock<Effective> = OnceLock::new();

/// The set in force. Before [`start`], the defaults.
pub(crate) fn effective() -> &'static Effective {
    EFFECTIVE.get_or_init(Effective::default)
}

fn read() -> Result<Effective, Vec<Refusal>> {
    switches::start(cfg!(feature = "mutants"))
}

/// Reads the environment, shows what differs from the defaults and applies it.
pub(crate) fn start() -> Result<(), ExitCode> {
    let refused = |lines: &[String]| {
        for line in lines {
            out::note(&format!("error: switch refused: {line}"));
        }
        ExitCode::from(2)
    };
    let found = read().map_err(|all| {
        let lines: Vec<String> = all.iter().map(ToString::to_string).collect();
        refused(&lines)
    })?;
    let found = EFFECTIVE.get_or_init(|| found);
    fourspark::cpu::limit(found.value("cpu.isa")).map_err(|e| refused(&[e.to_string()]))?;
    if let Some(line) = found.line() {
        out::note(&format!("{line}; all: fourspark switches"));
    }
    Ok(())
}

/// `fourspark switches`.
pub(crate) fn list(args: &SwitchesArgs) -> ExitCode {
    let (effective, refusals) = match read() {
        Ok(effective) => (effective, Vec::new()),
        Err(refusals) => (Effective::default(), refusals),
    };
    let text = if args.json {
        let shown: Vec<String> = refusals.iter().map(ToString::to_string).collect();
        format!(
            "{}\n",
            json!({"switches": every(&effective), "refused": shown})
        )
    } else {
        table(&effective)
    };
    for refusal in &refusals {
        out::note(&format!("error: switch refused: {refusal}"));
    }
    match out::write(&text) {
        Ok(()) if refusals.is_empty() => ExitCode::SUCCESS,
        Ok(()) => ExitCode::from(2),
        Err(_) => ExitCode::FAILURE,
    }
}

fn table(effective: &Effective) -> String {
    let mut text = String::new();
    for setting in effective.settings() {
        let s = setting.switch;
        let state = match s.state {
            State::Live => "",
            State::Planned => " [no build has it yet]",
        };
        let _ = writeln!(
            text,
            "{} = {}  ({}: {}; class {}){state}\n    {}",
            s.name, setting.value, s.variable, s.kind, s.class, s.meaning
        );
    }
    text
}

/// What differs from the defaults, as records carry it.
pub(crate) fn changed(effective: &Effective) -> Value {
    effective.changed().map(entry).collect()
}

fn every(effective: &Effective) -> Value {
    effective.settings().iter().map(entry).collect()
}

fn entry(setting: &switches::Setting) -> Value {
    let source = match &setting.source {
        Source::Default => Value::Null,
        Source::Variable(name) => json!(name),
    };
    let s = setting.switch;
    json!({
        "name": s.name,
        "value": setting.value,
        "default": s.default,
        "class": s.class.to_string(),
        "set_by": source,
        "planned": s.state == State::Planned,
    })
}
