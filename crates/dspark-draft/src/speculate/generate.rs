//! One request by itself.

use engine_core::{Drafter, Target};

use super::{AdmitError, Finished, Grants, Request, Sink, Speculator, Turn};

/// Runs one request to its end on a sequence of its own, which is closed again.
///
/// # Errors
/// Those of [`Speculator::admit`], and the target's when it has no room.
pub fn generate(
    speculator: &mut Speculator,
    target: &mut dyn Target,
    mut drafter: Option<&mut dyn Drafter>,
    request: Request,
    sink: &mut dyn Sink,
) -> Result<Finished, AdmitError> {
    let seq = target.open()?;
    if let Err(error) = speculator.admit(target, seq, request) {
        target.close(seq);
        return Err(error);
    }
    let finished = loop {
        let turn = Turn {
            target: &mut *target,
            drafter: match drafter.as_mut() {
                Some(drafter) => Some(&mut **drafter),
                None => None,
            },
            sink: &mut *sink,
            grants: Grants::Each(usize::MAX),
            riders: &[],
        };
        if let Some(finished) = speculator.step(turn).finished.pop() {
            break finished;
        }
    };
    target.close(seq);
    if let Some(drafter) = drafter {
        drafter.close(seq);
    }
    Ok(finished)
}
