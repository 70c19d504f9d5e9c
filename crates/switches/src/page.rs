//! The table as a page, `docs/switches.md`.

use std::fmt::Write;

use crate::row::{Alias, State, Switch};
use crate::table::{REFUSED, TABLE};

const HEAD: &str = "\
# Switches

Made from the table in `crates/switches` (`cargo run -p switches --example page > docs/switches.md`); a
test compares.

A switch is an environment variable that changes how the engine works, never what it is asked to do: that is
what options are for. Values are strict: one of those listed, nothing else. A variable that is unknown, cannot
be read or has nothing to act on stops the start and says why. What differs from the defaults is printed at
the start and stands in `/props`, in the JSON of `run` and `eval`, and in every report of `qualify`;
`fourspark switches` shows all.

Classes: **equal** changes no bit of output; **near** other bits of the same model; **approx** another
model. Only class equal is ever on by default.

";

/// The page as Markdown.
#[must_use]
pub fn page() -> String {
    let mut page = HEAD.to_owned();
    section(&mut page, "In this build", State::Live);
    section(
        &mut page,
        "Kept for kernels that no build has yet",
        State::Planned,
    );
    page += "## Known and refused\n\n| variable | why |\n| --- | --- |\n";
    for refused in REFUSED {
        let _ = writeln!(page, "| `{}` | {} |", refused.variable, refused.instead);
    }
    page
}

fn section(page: &mut String, title: &str, state: State) {
    let _ = write!(
        page,
        "## {title}\n\n| switch | variable | values (default; kill) | class | meaning | when | owner | test | review |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n"
    );
    for switch in TABLE.iter().filter(|s| s.state == state) {
        page.push_str(&row(switch));
    }
    page.push('\n');
}

fn row(s: &Switch) -> String {
    let alias = |a: &Alias| match a {
        Alias::Same(name) => format!(", `{name}`"),
        Alias::Inverted(name) => format!(", `{name}` (inverted)"),
    };
    let aliases: String = s.aliases.iter().map(alias).collect();
    format!(
        "| `{}` | `{}`{aliases} | {} ({}; {}) | {} | {} | {} | {} | `{}` | {} |\n",
        s.name,
        s.variable,
        s.kind,
        s.default,
        s.kill,
        s.class,
        s.meaning,
        s.eligible,
        s.owner,
        s.test,
        s.review
    )
}
