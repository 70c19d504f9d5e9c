//! Made-up weights on the processor: whether they find room, and the making of them, before the first pass.
//!
//! Must not know: which bytes, layers.

use std::fs;

use crate::error::LoadError;
use crate::tensor::Tensor;
use crate::weights::Weights;

/// Makes all made-up weights, after what they need was compared with what the machine has.
///
/// # Errors
/// `HostMemory`, before anything is made.
pub(crate) fn make(weights: &Weights) -> Result<(), LoadError> {
    let all = weights.tensors();
    let made: Vec<&Tensor> = all
        .into_iter()
        .filter(|t| t.stored().made().is_some())
        .collect();
    let Some(first) = made.first() else {
        return Ok(());
    };
    let needed = made.iter().map(|t| t.stored().len() as u64).sum();
    check(&first.file, needed, available())?;
    for tensor in made {
        // Kept by the tensor; made on as many threads as there are.
        let _ = tensor.bytes();
    }
    Ok(())
}

fn check(model: &str, needed: u64, available: Option<u64>) -> Result<(), LoadError> {
    match available {
        Some(available) if needed > available => Err(LoadError::HostMemory {
            model: model.to_owned(),
            needed,
            available,
        }),
        // Where nobody says what there is, the system answers when it is asked for.
        _ => Ok(()),
    }
}

/// Bytes that this process may still take: what the system calls available, or less where its control group is bounded;
/// `None` where neither can be read.
fn available() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let system = read("/proc/meminfo").and_then(|text| meminfo(&text));
    let number = |path: &str| read(path)?.trim().parse::<u64>().ok();
    let most = number("/sys/fs/cgroup/memory.max");
    let used = number("/sys/fs/cgroup/memory.current");
    let cached = read("/sys/fs/cgroup/memory.stat").map_or(0, |text| cached(&text));
    let left = |(most, used): (u64, u64)| most.saturating_sub(used.saturating_sub(cached));
    let group = most.zip(used).map(left);
    [system, group].into_iter().flatten().min()
}

/// The bytes that `/proc/meminfo` calls available.
fn meminfo(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kib.checked_mul(1024)
}

/// The bytes of files that a control group counts and gives back when they are needed, by its `memory.stat`.
fn cached(text: &str) -> u64 {
    let of = |line: &str| {
        let (name, bytes) = line.split_once(' ')?;
        let file = matches!(name, "active_file" | "inactive_file");
        bytes.trim().parse::<u64>().ok().filter(|_| file)
    };
    text.lines().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_finds_no_room_is_refused_with_both_numbers() {
        let text = "MemTotal:       24689764 kB\nMemAvailable:   23000000 kB\n";
        let available = meminfo(text);
        assert_eq!(available, Some(23_552_000_000));
        assert_eq!(meminfo("MemAvailable: many"), None);
        assert_eq!(meminfo(""), None);
        assert_eq!(
            cached("anon 5\nactive_file 7\ninactive_file 11\nfile 99\n"),
            18
        );
        let error = check("synth:flash", 103_567_837_596, available).unwrap_err();
        assert_eq!(
            error.to_string(),
            "synth:flash: its made-up weights need 103567837596 bytes of the host's memory, 23552000000 are available"
        );
        assert!(check("m", 23_552_000_000, available).is_ok());
        assert!(check("m", u64::MAX, None).is_ok());
    }
}
