//! The command of a run: a pure function of profile, context and arm, so that a report can be checked
//! for having run what it says.

use crate::profile::{ArmSpec, Context, Profile};

/// Stands for the frozen prompt's text in recorded commands.
pub const PROMPT: &str = "PROMPT";

/// The options of a run, with [`PROMPT`] for the prompt.
#[must_use]
pub fn argv(profile: &Profile, context: &Context, arm: &ArmSpec) -> Vec<String> {
    let words = |s: &str| s.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let mut argv = vec!["run".to_owned(), PROMPT.to_owned()];
    argv.extend(words("--raw --json --temperature 0"));
    let target = profile.artefacts.iter().find(|a| a.role == "target");
    if let Some(target) = target {
        argv.extend(["--model".to_owned(), target.path.clone()]);
    }
    argv.extend(["--ctx".to_owned(), context.ctx.to_string()]);
    argv.extend(["--max-tokens".to_owned(), context.max_tokens.to_string()]);
    argv.extend(arm.args.iter().cloned());
    argv
}
