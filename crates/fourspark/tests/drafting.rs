//! The shipped pair through the public interface: a drafter changes speed, never text.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;

use fourspark::{
    ChatRequest, Draft, DraftOptions, DraftSource, Drafting, Engine, EngineOptions, Error,
    Generate, Message, Pairing, Policy, SamplePlan, Usage, WorkerCommand, WorkerMode,
    WorkerOptions,
};
use testkit::prompts::prompts;

const PROMPTS: [&str; 5] = [
    "What is the capital of France?",
    "What is the opposite of hot?",
    "Who are you?",
    "What is 7 times 8?",
    "Tell me about the sea.",
];

fn options(draft: Draft, draft_options: DraftOptions) -> EngineOptions {
    EngineOptions {
        ctx: Some(512),
        threads: Some(2),
        draft,
        draft_options,
        ..EngineOptions::default()
    }
}

fn engine(draft: Draft, how: DraftOptions) -> Engine {
    Engine::load_shipped(&options(draft, how)).unwrap()
}

fn how(policy: &str, depth: Option<usize>, source: Option<DraftSource>) -> DraftOptions {
    DraftOptions {
        policy: (!policy.is_empty()).then(|| policy.parse().unwrap()),
        depth,
        source,
        ..DraftOptions::default()
    }
}

fn ask(engine: &Engine, prompt: &str, temperature: f32) -> (Vec<u32>, Usage) {
    let plan = SamplePlan {
        temperature,
        seed: 7,
        ..SamplePlan::greedy()
    };
    let generate = Generate {
        plan: Arc::new(plan),
        max_tokens: Some(60),
        ..Generate::default()
    };
    let messages = vec![Message::user(prompt)];
    let request = ChatRequest {
        messages,
        generate,
        ..ChatRequest::default()
    };
    let answer = engine.chat(&request).unwrap().collect_answer().unwrap();
    (answer.outcome.ids, answer.outcome.usage)
}

/// The shipped files are part of the repository: nothing here is skipped.
#[test]
fn no_drafter_policy_or_source_changes_a_token() {
    use DraftSource::{Auto, Backbone, Suffix};
    let plain = engine(Draft::Off, DraftOptions::default());
    let cases = || PROMPTS.iter().flat_map(|p| [(*p, 0.0), (*p, 1.0)]);
    let want: Vec<_> = cases().map(|(p, t)| ask(&plain, p, t)).collect();
    for (_, usage) in &want {
        assert_eq!((usage.proposed_tokens, usage.drafting), (0, Drafting::Off));
    }
    let ways = [
        (Draft::Shipped, how("", None, None), Auto, "reward", 7),
        (
            Draft::Shipped,
            how("fixed:6", None, Some(Backbone)),
            Backbone,
            "fixed:6",
            5,
        ),
        (
            Draft::Shipped,
            how("fixed:8", None, Some(Auto)),
            Auto,
            "fixed:8",
            7,
        ),
        (
            Draft::Shipped,
            how("thresholds", Some(3), Some(Backbone)),
            Backbone,
            "thresholds",
            3,
        ),
        (
            Draft::Off,
            how("ewma", Some(4), Some(Suffix)),
            Suffix,
            "ewma",
            4,
        ),
    ];
    for (draft, options, source, policy, depth) in ways {
        let drafting = engine(draft, options);
        let info = drafting.info().draft.clone().unwrap();
        let shown = (info.source, info.policy.to_string(), info.depth);
        assert_eq!(shown, (source, policy.to_owned(), depth));
        let model = source != Suffix;
        assert_eq!(info.pairing, model.then_some(Pairing::Same));
        let (mut proposed, mut accepted) = (0, 0);
        for ((prompt, t), (tokens, _)) in cases().zip(&want) {
            let (got, usage) = ask(&drafting, prompt, t);
            assert_eq!(&got, tokens, "{info}: {prompt} at temperature {t}");
            assert_eq!(usage.drafting, Drafting::On);
            proposed += u64::from(usage.proposed_tokens);
            accepted += u64::from(usage.accepted_tokens);
        }
        // What reward proposes depends on measured times: on a busy machine it may be right each
        // time, or propose nothing at all.
        let timed = policy == "reward";
        let some_right = accepted > 0;
        assert!(some_right || !model || timed, "{info}: nothing accepted");
        let some_wrong = accepted < proposed;
        assert!(some_wrong || !model || timed, "{accepted} of {proposed}");
        let loops = drafting.stats().speculation;
        assert_eq!(
            (loops.offered, loops.matched),
            (proposed, accepted),
            "{info}"
        );
        assert_eq!(loops.passes, loops.turns, "one pass a step");
    }
}

#[test]
fn what_cannot_work_together_stops_the_start() {
    use DraftSource::{Auto, Backbone, Suffix};
    let cases = [
        (
            Draft::Off,
            how("fixed:3", None, None),
            "draft policy: expected a drafter beside it",
        ),
        (
            Draft::Off,
            how("", Some(3), None),
            "draft depth: expected a drafter beside it",
        ),
        (
            Draft::Off,
            how("", None, Some(Backbone)),
            "draft source: expected a drafter beside it",
        ),
        (
            Draft::Off,
            how("", None, Some(Auto)),
            "draft source: expected a drafter beside it",
        ),
        (
            Draft::Shipped,
            how("", None, Some(Suffix)),
            "draft source: expected backbone or auto",
        ),
        (
            Draft::Shipped,
            how("", Some(6), Some(Backbone)),
            "draft depth: expected 1 to 5",
        ),
        (
            Draft::Shipped,
            how("", Some(8), None),
            "draft depth: expected 1 to 7",
        ),
        (
            Draft::Shipped,
            how("fixed:7", None, Some(Backbone)),
            "expected fixed:N with N up to 6",
        ),
        (
            Draft::Off,
            how("fixed:4", Some(2), Some(Suffix)),
            "expected fixed:N with N up to 3",
        ),
    ];
    for (draft, how, message) in cases {
        let error = Engine::load_shipped(&options(draft.clone(), how.clone())).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(message), "{draft:?} {how:?}: {error}");
    }
    assert_eq!(Policy::Fixed(4).to_string(), "fixed:4");
}

/// The file of prompts that tests below the tokenizer use says what this tokenizer says.
#[test]
fn the_test_prompts_are_encoded_as_here() {
    let engine = engine(Draft::Off, DraftOptions::default());
    for prompt in prompts().unwrap() {
        let tokens = if prompt.chat {
            let request = ChatRequest {
                messages: vec![Message::user(prompt.text.as_str())],
                ..ChatRequest::default()
            };
            engine.prepare(&request).unwrap().tokens
        } else {
            engine.prepare_text(&prompt.text).tokens
        };
        assert_eq!(
            tokens, prompt.ids,
            "{:?}: run the example encode_prompts",
            prompt.text
        );
    }
}

/// a worker that cannot be started is an error where it is required, with its step; otherwise the
/// drafter runs here, which is counted and told, and the text is the same.
#[test]
fn a_13_a_worker_that_cannot_start_is_replaced_in_process() {
    let command = |program: &str| {
        Some(WorkerCommand {
            program: program.into(),
            args: Vec::new(),
            env: Vec::new(),
        })
    };
    let with = |mode, command| DraftOptions {
        worker: WorkerOptions {
            mode,
            command,
            ..WorkerOptions::default()
        },
        ..DraftOptions::default()
    };
    let plain = engine(Draft::Off, DraftOptions::default());
    let want = ask(&plain, PROMPTS[0], 0.0).0;
    // No program, one that is not there, one that says nothing, one that says something else.
    let cases = [
        (None, "step spawn: no program was named"),
        (command("/nowhere/fourspark"), "step spawn: "),
        (command("/bin/true"), "step hello: "),
        (command("/bin/echo"), "step hello: "),
    ];
    for (command, why) in cases {
        let required = with(WorkerMode::Required, command.clone());
        let error = Engine::load_shipped(&options(Draft::Shipped, required)).unwrap_err();
        assert!(matches!(error, Error::Worker(_)), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        let auto = engine(Draft::Shipped, with(WorkerMode::Auto, command));
        assert_eq!(ask(&auto, PROMPTS[0], 0.0).0, want);
        let worker = auto.info().draft.as_ref().unwrap().worker.clone().unwrap();
        let report = worker.watch.report();
        assert_eq!((report.state.name(), report.fallbacks), ("in process", 1));
        assert!(report.reason.unwrap().contains(why));
        assert_eq!(worker.missing(), None);
        let features = auto.features();
        let feature = features.iter().find(|f| f.name == "draft_worker").unwrap();
        assert!(!feature.on && feature.reason.contains(why), "{feature}");
    }
    let none = with(WorkerMode::Auto, None);
    let error = Engine::load_shipped(&options(Draft::Off, none)).unwrap_err();
    assert!(
        error.to_string().contains("draft worker: expected off"),
        "{error}"
    );
}
