use clap::{CommandFactory, Parser};

use super::{Args, Command, DRAFT_MODE};

#[test]
fn the_definition_is_consistent() {
    Args::command().debug_assert();
}

#[test]
fn values_that_cannot_be_meant_are_refused() {
    let parse = |tail: &str| {
        let words = ["fourspark", "run", "x"].into_iter().chain(tail.split(' '));
        Args::try_parse_from(words)
    };
    assert!(parse("--temperature 0.7 --top-p 0.9 --min-p 0.05 --effort high").is_ok());
    assert!(parse("--draft --draft-policy fixed:5 --draft-depth 4 --stats").is_ok());
    assert!(parse("--draft-source suffix --draft-policy ewma").is_ok());
    assert!(parse("--draft --draft-worker required --draft-transport shared").is_ok());
    assert!(parse("--draft --draft-worker required --draft-overlap on").is_ok());
    assert!(parse("--draft --draft-device hip:1").is_ok());
    assert!(parse("--draft --draft-device same").is_ok());
    assert!(parse("--draft --draft-worker auto --draft-worker-program x").is_ok());
    for bad in [
        "--temperature -1",
        "--temperature NaN",
        "--temperature 1e9",
        "--top-p 1.5",
        "--min-p nan",
        "--max-tokens 0",
        "--ctx 0",
        "--threads 0",
        "--effort extreme",
        "--raw --system y",
        "--draft --draft-model x.gguf",
        "--draft-policy fixed:0",
        "--draft-policy best",
        "--draft-depth 0",
        "--draft-source both",
        "--draft-worker on",
        "--draft-overlap 1",
        "--draft --draft-device auto",
        "--draft --draft-device cuda",
        "--draft-transport pipe",
        "--draft --draft-worker-program x",
        "--unknown",
    ] {
        let error = parse(bad).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{bad}");
    }
}

/// the worker serves one mode; others are refused with its name.
#[test]
fn a_01_the_worker_has_one_mode() {
    let parse = |tail: &str| {
        let words = ["fourspark", "draft-worker"].into_iter();
        Args::try_parse_from(words.chain(tail.split(' ')))
    };
    for tail in ["7", "--mode deepseek4-dspark-draft 7"] {
        let Command::DraftWorker(args) = parse(tail).unwrap().command else {
            panic!("{tail}");
        };
        assert_eq!((args.parent, args.mode.as_str()), (7, DRAFT_MODE));
    }
    for mode in ["dflash-draft", "pflash-compress", "moe-expert-compute", "x"] {
        let error = parse(&format!("--mode {mode} 7")).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{mode}");
        assert!(error.to_string().contains(DRAFT_MODE), "{error}");
    }
    assert_eq!(parse("x").unwrap_err().exit_code(), 2);
    let help = <Args as clap::CommandFactory>::command().render_help();
    assert!(!help.to_string().contains("draft-worker"));
}
