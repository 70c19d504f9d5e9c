//! One run of an arm, as a report keeps it: what ran, what came out, what engine and machine counted.

use serde::{Deserialize, Serialize};

use crate::card::Around;
use crate::order::Side;

/// What a run was for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// The first: kept, never counted.
    Cold,
    /// Before measuring.
    Warmup,
    /// The control: both sides run arm A.
    Control,
    /// Counted.
    Measured,
}

/// One run of the binary in a process of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Which arm's command ran.
    pub arm: Side,
    /// Which side of its pair it is; in the control both sides run arm A.
    pub side: Side,
    /// What it was for.
    pub kind: Kind,
    /// Its place in the campaign.
    pub seq: u32,
    /// Whether it ended well.
    pub ok: bool,
    /// Why not.
    pub error: String,
    /// The options, without the program.
    pub argv: Vec<String>,
    /// The whole environment it got.
    pub env: Vec<(String, String)>,
    /// Switches in force that are not at their default, as it reported them.
    pub switches: Vec<(String, String)>,
    /// Digest of the executable.
    pub exe_blake3: String,
    /// The campaign it belongs to.
    pub campaign: String,
    /// Fingerprint of the model it loaded.
    pub model_fingerprint: String,
    /// Formats of the tensors it loaded: name and count.
    pub tensors: Vec<(String, u64)>,
    /// The promise about output bits that it reported.
    pub class: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Digest of the prompt's ids.
    pub prompt_blake3: String,
    /// Tokens of the answer.
    pub completion_tokens: u64,
    /// Digest of the answer's ids; empty if there is none.
    pub ids_blake3: String,
    /// Digest of the answer's text.
    pub text_blake3: String,
    /// To the first token, microseconds.
    pub prefill_us: u64,
    /// From the first token to the last, microseconds.
    pub decode_us: u64,
    /// The process from start to end, microseconds.
    pub wall_us: u64,
    /// Passes of the target.
    pub passes: u64,
    /// Tokens of all passes, candidates included.
    pub pass_tokens: u64,
    /// Bytes of weights that the target's products read; `None` if it does not count.
    pub weight_bytes: Option<u64>,
    /// Groups of work that the target ran; `None` if it does not count.
    pub launches: Option<u64>,
    /// Times the target went on without a part of the machine that did not answer; `None` if it does
    /// not count. A sign of company on the machine, not of another path.
    pub stalls: Option<u64>,
    /// Candidates proposed.
    pub proposed: u64,
    /// Candidates accepted.
    pub accepted: u64,
    /// Whether any candidate was proposed.
    pub spec_engaged: bool,
    /// Prompt tokens that came from a cache.
    pub cached_tokens: u64,
    /// What fell back: the reasons the engine gave.
    pub fallbacks: Vec<String>,
    /// Clock at the start and at the end, MHz, if the machine says.
    pub clocks_mhz: Option<(u64, u64)>,
    /// Load of the machine before it, hundredths.
    pub load_centi: u64,
    /// Throttling events of the machine's processors while it ran; `None` if the machine does not count
    /// them.
    pub throttled: Option<u64>,
    /// Temperatures before and after it, if there are sensors.
    pub heat: Option<Heat>,
    /// The GPU of the comparison before and after it, if its tools say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Around>,
}

/// Temperatures around a run, thousandths of a degree Celsius.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heat {
    /// The hottest sensor before.
    pub before_mc: i64,
    /// The hottest sensor after.
    pub after_mc: i64,
    /// The least distance of any sensor to its own critical temperature, if one has such a limit.
    pub margin_mc: Option<i64>,
}

/// A run that has not happened.
#[must_use]
pub fn blank(argv: Vec<String>, env: Vec<(String, String)>) -> Run {
    Run {
        arm: Side::A,
        side: Side::A,
        kind: Kind::Cold,
        seq: 0,
        ok: false,
        error: String::new(),
        argv,
        env,
        switches: Vec::new(),
        exe_blake3: String::new(),
        campaign: String::new(),
        model_fingerprint: String::new(),
        tensors: Vec::new(),
        class: String::new(),
        prompt_tokens: 0,
        prompt_blake3: String::new(),
        completion_tokens: 0,
        ids_blake3: String::new(),
        text_blake3: String::new(),
        prefill_us: 0,
        decode_us: 0,
        wall_us: 0,
        passes: 0,
        pass_tokens: 0,
        weight_bytes: None,
        launches: None,
        stalls: None,
        proposed: 0,
        accepted: 0,
        spec_engaged: false,
        cached_tokens: 0,
        fallbacks: Vec::new(),
        clocks_mhz: None,
        load_centi: 0,
        throttled: None,
        heat: None,
        gpu: None,
    }
}
