//! Tests of the cache of compiled images: hits, damage, size. Must not know: runtimes.

//! Tests of the image cache.

use std::time::Duration;

use super::*;

const RECIPE: Recipe<'_> = Recipe {
    name: "a",
    text: "source",
    options: &["-x", "-y"],
};

fn image(code: Option<Code>) -> Option<Vec<u8>> {
    match code? {
        Code::Ptx(bytes) | Code::Cubin(bytes) | Code::Hsaco(bytes) => Some(bytes),
        Code::Host(_) => None,
    }
}

#[test]
fn everything_that_decides_the_bytes_decides_the_name() {
    let base = key(Kind::Cuda, "NVRTC 13.0", "sm_90", &RECIPE);
    let other_name = Recipe {
        name: "b",
        ..RECIPE
    };
    assert_eq!(base, key(Kind::Cuda, "NVRTC 13.0", "sm_90", &other_name));
    let mut names = vec![
        base,
        key(Kind::Hip, "NVRTC 13.0", "sm_90", &RECIPE),
        key(Kind::Cuda, "NVRTC 13.1", "sm_90", &RECIPE),
        key(Kind::Cuda, "NVRTC 13.0", "sm_90a", &RECIPE),
    ];
    for (text, options) in [
        ("sourc", &["-x", "-y"][..]),
        ("source", &["-y", "-x"]),
        ("source", &["-x-y"]),
        ("source", &["-x", "-", "y"]),
        ("source", &[]),
    ] {
        let recipe = Recipe {
            name: "a",
            text,
            options,
        };
        names.push(key(Kind::Cuda, "NVRTC 13.0", "sm_90", &recipe));
    }
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn what_was_stored_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(&dir.path().join("deep/images"), 1 << 20).unwrap();
    for (key, code) in [
        ("p", Code::Ptx(vec![1, 2, 3])),
        ("c", Code::Cubin(vec![])),
        ("h", Code::Hsaco(vec![9; 1000])),
    ] {
        cache.write(key, &code).unwrap();
        let back = cache.read(key).unwrap();
        assert_eq!(back.form(), code.form());
        assert_eq!(image(Some(back)), image(Some(code)));
    }
    assert!(cache.read("other").is_none());
    assert_eq!(cache.counts().damaged, 0);
    let left: Vec<_> = fs::read_dir(dir.path().join("deep/images"))
        .unwrap()
        .collect();
    assert_eq!(left.len(), 3, "nothing is left aside");
}

#[test]
fn a_damaged_entry_is_refused_at_every_byte() {
    let dir = tempfile::tempdir().unwrap();
    let cache = Cache::open(dir.path(), 1 << 20).unwrap();
    let code = Code::Cubin(vec![7; 20]);
    let whole = render(&code).unwrap();
    let mut damaged = 0;
    let mut refused = |bytes: &[u8]| {
        fs::write(cache.path("k"), bytes).unwrap();
        assert!(cache.read("k").is_none());
        assert!(!cache.path("k").exists(), "a damaged entry stays");
        damaged += 1;
    };
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        refused(&bytes);
        refused(&whole[..at]);
    }
    refused(&[&whole[..], &[0]].concat());
    assert_eq!(cache.counts().damaged, damaged);
    // Made again, it is whole.
    cache.write("k", &code).unwrap();
    assert_eq!(image(cache.read("k")), Some(vec![7; 20]));
}

#[test]
fn what_was_used_longest_ago_goes_first() {
    let dir = tempfile::tempdir().unwrap();
    let size = HEADER as u64 + 100;
    let cache = Cache::open(dir.path(), 3 * size).unwrap();
    let put = |key: &str| cache.write(key, &Code::Ptx(vec![0; 100])).unwrap();
    let age = |key: &str, seconds: u64| {
        let file = fs::File::options()
            .append(true)
            .open(cache.path(key))
            .unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds))
            .unwrap();
    };
    for (key, seconds) in [("a", 30), ("b", 20), ("c", 10)] {
        put(key);
        age(key, seconds);
    }
    assert!(cache.read("a").is_some(), "used now: no longer the oldest");
    put("d");
    let there = |key: &str| cache.path(key).exists();
    assert_eq!(["a", "b", "c", "d"].map(there), [true, false, true, true]);
    assert_eq!(cache.counts().evicted, 1);
    let large = Code::Ptx(vec![0; 1000]);
    assert!(
        cache
            .write("e", &large)
            .unwrap_err()
            .to_string()
            .contains("larger")
    );
    assert!(
        !there("e") && there("a"),
        "an entry that cannot fit evicts nothing"
    );
}

#[test]
fn a_folder_that_cannot_be_made_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Cache::open(&file.join("images"), 1).unwrap_err();
    assert!(error.to_string().contains("file/images"), "{error}");
}

#[test]
fn images_are_compiled_once_a_compiler() {
    let dir = tempfile::tempdir().unwrap();
    let device = |compiler: &str| {
        let settings = crate::fake::Settings {
            compiler: Some(compiler.into()),
            ..crate::fake::Settings::default()
        };
        crate::fake::runtime(&settings).open(0).unwrap()
    };
    let want = Some(b"host [\"-x\", \"-y\"] source".to_vec());
    for (compiler, compiled) in [("c 1", 1), ("c 1", 0), ("c 2", 1)] {
        let cache = Cache::open(dir.path(), 1 << 20).unwrap();
        let got = cache.image(&device(compiler), &RECIPE).unwrap();
        assert_eq!(image(Some(got)), want);
        let counts = cache.counts();
        assert_eq!((counts.compiled, counts.hits), (compiled, 1 - compiled));
    }
    let cache = Cache::open(dir.path(), 1 << 20).unwrap();
    let broken = Recipe {
        text: "#error no",
        ..RECIPE
    };
    match cache.image(&device("c 1"), &broken) {
        Err(Fault::Compile { log, .. }) => assert_eq!(log, "a: #error no"),
        other => panic!("{other:?}"),
    }
    // A folder that is gone costs time only, and is counted.
    drop(dir);
    cache.image(&device("c 3"), &RECIPE).unwrap();
    assert_eq!(cache.counts().unstored, 1);
}
