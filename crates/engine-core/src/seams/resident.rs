//! What takes memory as long as a model is loaded: one list for whoever shows it and for whoever frees it.
//!
//! Must not know: who asks, how memory is made or freed.

/// Something that takes memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resident {
    /// What it is: fixed words, as `target weights`.
    pub what: &'static str,
    /// Where it is: `host`, a device as `cuda:0`, a file that is mapped, a process.
    pub place: String,
    /// Its bytes; `None`: nobody here counts them, which is not 0.
    pub bytes: Option<u64>,
    /// What else is to be said: how it is counted, or why it is still there.
    pub note: Option<String>,
}

impl Resident {
    /// Something of so many bytes.
    #[must_use]
    pub fn new(what: &'static str, place: impl Into<String>, bytes: u64) -> Self {
        Self {
            bytes: Some(bytes),
            ..Self::uncounted(what, place)
        }
    }

    /// Something whose bytes nobody here counts.
    #[must_use]
    pub fn uncounted(what: &'static str, place: impl Into<String>) -> Self {
        Self {
            what,
            place: place.into(),
            bytes: None,
            note: None,
        }
    }

    /// With more to be said.
    #[must_use]
    pub fn noted(self, note: impl Into<String>) -> Self {
        Self {
            note: Some(note.into()),
            ..self
        }
    }
}

impl std::fmt::Display for Resident {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} on {}", self.what, self.place)?;
        match self.bytes {
            Some(bytes) => write!(f, ", {bytes} bytes")?,
            None => f.write_str(", bytes not counted")?,
        }
        match &self.note {
            Some(note) => write!(f, ": {note}"),
            None => Ok(()),
        }
    }
}
