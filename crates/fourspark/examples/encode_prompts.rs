//! Writes the tokens of the test prompts anew: `cargo run -p fourspark --example encode_prompts`.
//! Needed after a change of `crates/testkit/data/prompts/prompts.json` or of the shipped model.

use fourspark::{ChatRequest, Engine, EngineOptions, Error, Message, TokenId};
use testkit::prompts::{Prompt, path, prompts};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let engine = Engine::load_shipped(&EngineOptions::default())?;
    let mut lines = Vec::new();
    for prompt in prompts()? {
        let ids = encode(&engine, &prompt)?;
        let Prompt {
            kind, chat, text, ..
        } = prompt;
        lines.push(format!(
            "{{\"kind\": \"{kind}\", \"chat\": {chat}, \"text\": {text:?}, \"ids\": {ids:?}}}"
        ));
    }
    std::fs::write(path(), format!("[\n{}\n]\n", lines.join(",\n")))?;
    Ok(())
}

fn encode(engine: &Engine, prompt: &Prompt) -> Result<Vec<TokenId>, Error> {
    if !prompt.chat {
        return Ok(engine.prepare_text(&prompt.text).tokens);
    }
    let request = ChatRequest {
        messages: vec![Message::user(prompt.text.as_str())],
        ..ChatRequest::default()
    };
    Ok(engine.prepare(&request)?.tokens)
}
