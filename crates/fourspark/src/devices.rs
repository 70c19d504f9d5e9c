//! Which devices share a model's layers: what can be said on a command line, and what is said of what came of it.
//!
//! Must not know: models, runtimes. Whether layers are left out is the target's to say.

use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::str::FromStr;

use ds4_target::on_device::Crossing;

use crate::placement::DeviceChoice;

/// Where the model runs: the processor, a device, or several of one runtime that share its layers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    /// At least one; in the order of the layers.
    choices: Vec<DeviceChoice>,
    /// Numbers of each device's layers; `None`: equal shares by bytes.
    layers: Option<Vec<RangeInclusive<usize>>>,
}

impl Default for Devices {
    fn default() -> Self {
        DeviceChoice::Cpu.into()
    }
}

impl From<DeviceChoice> for Devices {
    fn from(choice: DeviceChoice) -> Self {
        Self {
            choices: vec![choice],
            layers: None,
        }
    }
}

impl Devices {
    /// All of them, in the order of the layers.
    #[must_use]
    pub fn all(&self) -> &[DeviceChoice] {
        &self.choices
    }

    /// The one that runs the first layers.
    #[must_use]
    pub fn first(&self) -> DeviceChoice {
        self.choices.first().copied().unwrap_or_default()
    }

    /// The one that runs the last layers and the output matrix: a drafter that runs where the model does runs there.
    #[must_use]
    pub fn last(&self) -> DeviceChoice {
        self.choices.last().copied().unwrap_or_default()
    }

    /// The layers of each device, if they were named.
    #[must_use]
    pub fn layers(&self) -> Option<Vec<Range<usize>>> {
        let half_open = |r: &RangeInclusive<usize>| *r.start()..r.end().saturating_add(1);
        let layers = self.layers.as_ref()?;
        Some(layers.iter().map(half_open).collect())
    }

    /// Refuses devices that cannot share layers.
    fn together(&self) -> Result<(), String> {
        if self.choices.len() < 2 {
            return Ok(());
        }
        let first = self.first();
        for (at, choice) in self.choices.iter().enumerate() {
            if let DeviceChoice::Cpu | DeviceChoice::Host = choice {
                return Err(format!(
                    "layers are shared by devices cuda:N or hip:N of one kind, got {choice}"
                ));
            }
            if std::mem::discriminant(choice) != std::mem::discriminant(&first) {
                return Err(format!(
                    "{first} and {choice} are of two runtimes: layers are shared by devices of one"
                ));
            }
            if let Some(before) = self.choices[..at].iter().position(|other| other == choice) {
                return Err(format!(
                    "{choice} is named twice, as device {} and as device {}",
                    before + 1,
                    at + 1
                ));
            }
        }
        Ok(())
    }
}

/// `A-B`, or `A` for one layer.
fn range(text: &str) -> Result<RangeInclusive<usize>, String> {
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        text.parse::<usize>().ok().filter(|_| digits)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Ok(first..=last),
        _ => Err(format!("expected layers as FIRST-LAST, got {text:?}")),
    }
}

impl FromStr for Devices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut choices = Vec::new();
        let mut layers = Vec::new();
        for part in text.split(',') {
            let (name, named) = match part.split_once('=') {
                Some((name, named)) => (name, Some(range(named)?)),
                None => (part, None),
            };
            choices.push(name.parse::<DeviceChoice>()?);
            layers.push(named);
        }
        let named = layers.iter().position(Option::is_some);
        let unnamed = layers.iter().position(Option::is_none);
        if let (Some(named), Some(unnamed)) = (named, unnamed) {
            return Err(format!(
                "{} has layers and {} has none: name those of all devices or of none",
                choices[named], choices[unnamed]
            ));
        }
        let this = Self {
            choices,
            layers: layers.into_iter().collect(),
        };
        this.together()?;
        Ok(this)
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, choice) in self.choices.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            write!(f, "{comma}{choice}")?;
            if let Some(layers) = self.layers.as_ref().and_then(|l| l.get(at)) {
                write!(f, "={}-{}", layers.start(), layers.end())?;
            }
        }
        Ok(())
    }
}

/// How layers are shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SplitInfo {
    /// Names of the devices with their layers.
    pub shares: Vec<(String, Range<usize>)>,
    /// How a pass gets from each device to the next.
    pub crossings: Vec<Crossing>,
}

impl fmt::Display for SplitInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |(id, layers): &(String, Range<usize>)| {
            format!(
                "{} to {} on {id}",
                layers.start,
                layers.end.saturating_sub(1)
            )
        };
        let shares: Vec<String> = self.shares.iter().map(share).collect();
        write!(f, "layers {}", shares.join(", "))?;
        let crossings = &mut self.crossings.iter();
        crossings.try_for_each(|crossing| write!(f, "; {crossing}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Devices, String> {
        text.parse()
    }

    #[test]
    fn devices_are_listed_with_their_layers_or_without() {
        let one = parse("hip:1").unwrap();
        assert_eq!(one, DeviceChoice::Hip(1).into());
        assert_eq!((one.first(), one.layers()), (DeviceChoice::Hip(1), None));
        let two = parse("cuda:1,cuda:0").unwrap();
        let ends = [two.first(), two.last()];
        assert_eq!(ends, [DeviceChoice::Cuda(1), DeviceChoice::Cuda(0)]);
        let named = parse("hip:0=0-20,hip:1=21-42").unwrap();
        assert_eq!(named.layers(), Some(vec![0..21, 21..43]));
        assert_eq!(
            parse("hip:0=0,hip:1=1-2").unwrap().layers(),
            Some(vec![0..1, 1..3])
        );
        for text in ["cpu", "cuda:0,cuda:1,cuda:2", "hip:0=0-20,hip:1=21-42"] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_cannot_share_is_refused_with_both_values() {
        for (text, want) in [
            ("", "expected cpu, cuda:N or hip:N, got \"\""),
            ("hip:0,", "expected cpu, cuda:N or hip:N, got \"\""),
            (
                "hip:0 ,hip:1",
                "expected cpu, cuda:N or hip:N, got \"hip:0 \"",
            ),
            (
                "hip:0,cuda:1",
                "hip:0 and cuda:1 are of two runtimes: layers are shared by devices of one",
            ),
            (
                "hip:0,hip:1,hip:0",
                "hip:0 is named twice, as device 1 and as device 3",
            ),
            (
                "cuda:0,cpu",
                "layers are shared by devices cuda:N or hip:N of one kind, got cpu",
            ),
            (
                "hip:0=0-3,hip:1",
                "hip:0 has layers and hip:1 has none: name those of all devices or of none",
            ),
            (
                "hip:0=3-1,hip:1=4-6",
                "expected layers as FIRST-LAST, got \"3-1\"",
            ),
            ("hip:0=", "expected layers as FIRST-LAST, got \"\""),
            ("hip:0=+1-2", "expected layers as FIRST-LAST, got \"+1-2\""),
            (
                "hip:0=0-1-2",
                "expected layers as FIRST-LAST, got \"0-1-2\"",
            ),
        ] {
            assert_eq!(parse(text).unwrap_err(), want);
        }
    }

    #[test]
    fn a_split_says_who_runs_what_and_how_it_crosses() {
        let crossing = |staged: Option<&str>| Crossing {
            from: "hip:0".into(),
            to: "hip:1".into(),
            staged: staged.map(Into::into),
        };
        let mut split = SplitInfo {
            shares: vec![("hip:0".into(), 0..3), ("hip:1".into(), 3..7)],
            crossings: vec![crossing(None)],
        };
        let layers = "layers 0 to 2 on hip:0, 3 to 6 on hip:1";
        let straight = "hip:0 to hip:1 straight: bytes were seen to arrive";
        assert_eq!(split.to_string(), format!("{layers}; {straight}"));
        split.crossings = vec![crossing(Some("no way"))];
        let staged = "hip:0 to hip:1 through the host: no way";
        assert_eq!(split.to_string(), format!("{layers}; {staged}"));
    }
}
