//! The shipped pair through the public interface: a drafter changes speed, never text.
#![allow(clippy::unwrap_used, reason = "test code")]

use std::sync::Arc;

use fourspark::{
    ChatRequest, Draft, Engine, EngineOptions, Generate, Message, SamplePlan, shipped,
    shipped_model,
};
use testkit::require;

const PROMPTS: [&str; 5] = [
    "What is the capital of France?",
    "What is the opposite of hot?",
    "Who are you?",
    "What is 7 times 8?",
    "Tell me about the sea.",
];

fn engine(draft: Draft) -> Engine {
    let options = EngineOptions {
        ctx: Some(512),
        draft,
        ..EngineOptions::default()
    };
    Engine::load_shipped(&options).unwrap()
}

fn ask(engine: &Engine, prompt: &str, temperature: f32) -> (Vec<u32>, u32, u32) {
    let plan = SamplePlan {
        temperature,
        seed: 7,
        ..SamplePlan::greedy()
    };
    let generate = Generate {
        plan: Arc::new(plan),
        max_tokens: Some(80),
        ..Generate::default()
    };
    let messages = vec![Message::user(prompt)];
    let request = ChatRequest {
        messages,
        generate,
        ..ChatRequest::default()
    };
    let answer = engine.chat(&request).unwrap().collect_answer().unwrap();
    let usage = answer.outcome.usage;
    (
        answer.outcome.ids,
        usage.proposed_tokens,
        usage.accepted_tokens,
    )
}

#[test]
fn the_shipped_drafter_changes_no_token() {
    require!(shipped_model().is_some(), "no shipped model");
    require!(shipped::shipped_drafter().is_some(), "no shipped drafter");
    let (plain, drafting) = (engine(Draft::Off), engine(Draft::Shipped));
    let (mut proposed, mut accepted) = (0, 0);
    for prompt in PROMPTS {
        for temperature in [0.0, 1.0] {
            let (want, none, _) = ask(&plain, prompt, temperature);
            assert_eq!(none, 0, "nothing drafts here");
            let (got, offered, kept) = ask(&drafting, prompt, temperature);
            assert_eq!(got, want, "{prompt} at temperature {temperature}");
            proposed += offered;
            accepted += kept;
        }
    }
    assert!(
        accepted > 0 && accepted < proposed,
        "{accepted} of {proposed} accepted"
    );
}
