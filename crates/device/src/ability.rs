//! What not every device can, and why one cannot. Asked for before anything is tried; a refusal is a value.

use std::fmt;

use serde::{Serialize, Serializer};

/// Whether a device can something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ability {
    /// It can.
    Yes,
    /// It cannot, and why.
    No(Lack),
}

/// Why a device cannot something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lack {
    /// The runtime's library has not this function.
    Call(&'static str),
    /// The device says no when it is asked for this.
    Device(&'static str),
    /// It makes no sense on this kind of device.
    Kind(&'static str),
}

impl Ability {
    /// `Yes` if it holds.
    pub(crate) fn when(holds: bool, lack: Lack) -> Self {
        if holds { Self::Yes } else { Self::No(lack) }
    }

    /// Nothing if it can.
    ///
    /// # Errors
    /// Why it cannot.
    pub fn check(&self) -> Result<(), Lack> {
        match self {
            Self::Yes => Ok(()),
            Self::No(lack) => Err(lack.clone()),
        }
    }
}

impl fmt::Display for Ability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => f.write_str("yes"),
            Self::No(lack) => write!(f, "no: {lack}"),
        }
    }
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(name) => write!(f, "the runtime's library has no {name}"),
            Self::Device(asked) => write!(f, "the device says no to {asked}"),
            Self::Kind(why) => f.write_str(why),
        }
    }
}

impl Serialize for Ability {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_says_what_is_missing() {
        let said = |lack| Ability::when(false, lack).to_string();
        assert_eq!(
            said(Lack::Call("cuMemHostRegister_v2")),
            "no: the runtime's library has no cuMemHostRegister_v2"
        );
        assert_eq!(
            said(Lack::Device("HOST_REGISTER_SUPPORTED")),
            "no: the device says no to HOST_REGISTER_SUPPORTED"
        );
        assert_eq!(said(Lack::Kind("it is the host")), "no: it is the host");
        let yes = Ability::when(true, Lack::Kind("x"));
        assert_eq!((yes.to_string(), yes.check()), ("yes".into(), Ok(())));
        assert_eq!(serde_json::to_value(&yes).unwrap(), "yes");
    }
}
