//! A loaded model with its engine thread: prompts in, answers out.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use engine_core::TokenId;
use scheduler::{Event as Step, Flow, Handle, Limits, Loaded, Parking, Request, Scheduler, Stats};
use text::{Conversation, PromptFormat, Tokenizer};

use crate::answer::{AnswerStream, Event};
use crate::error::Error;
use crate::feature::Feature;
use crate::model::{EngineOptions, EngineParts, ModelInfo};
use crate::origin::ModelName;
use crate::parking::{self, Known, Parked, Residency, Unparked};
use crate::prompt::{ChatRequest, Generate, Prepared, Reading};
use crate::reader::Reader;
use crate::shipped;

/// A model ready to answer. Cheap to clone; the last clone to go stops the engine.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    scheduler: Scheduler,
    tokenizer: Arc<Tokenizer>,
    format: PromptFormat,
    stop_tokens: Arc<[TokenId]>,
    bos: Option<TokenId>,
    known: Arc<Known>,
}

impl Engine {
    /// Loads a model. A file stays mapped: it must not be changed while the engine lives.
    ///
    /// # Errors
    /// `File`, `Model`, `Text`, `Thread`, naming the file and what was expected; `NoTokenizer`.
    pub fn load(name: impl Into<ModelName>, options: &EngineOptions) -> Result<Self, Error> {
        let (name, options) = (name.into(), options.clone());
        let (limits, idle) = (options.limits, options.park_idle);
        let make = move || EngineParts::load(name.clone(), &options);
        Self::with_loader(make, limits, idle)
    }

    /// Starts an engine over what `make` gives. Its model can be given up ([`Self::park`]): `make` is then called again,
    /// on the engine's thread, and must give the same model. `idle`: without a request for so long it is given up by
    /// itself.
    ///
    /// # Errors
    /// Those of `make`, `Thread`.
    pub fn with_loader(
        mut make: impl FnMut() -> Result<EngineParts, Error> + Send + 'static,
        limits: Limits,
        idle: Option<Duration>,
    ) -> Result<Self, Error> {
        let parts = make()?;
        let known = Arc::new(Known::new(&parts.info, parking::feature(idle)));
        let load = parking::again(make, &parts, Arc::clone(&known));
        let parking = Some(Parking { load, idle });
        Self::start(parts, parking, known, limits)
    }

    /// Loads the model that ships with the program.
    ///
    /// # Errors
    /// `NoShippedModel`, and as [`Self::load`].
    pub fn load_shipped(options: &EngineOptions) -> Result<Self, Error> {
        let path = shipped::shipped_model().ok_or_else(|| Error::NoShippedModel {
            looked: shipped::candidates(),
        })?;
        Self::load(path, options)
    }

    /// Starts an engine whose model is never given up.
    ///
    /// # Errors
    /// `Thread`.
    pub fn from_parts(parts: EngineParts, limits: Limits) -> Result<Self, Error> {
        let known = Arc::new(Known::new(&parts.info, parking::never()));
        Self::start(parts, None, known, limits)
    }

    fn start(
        parts: EngineParts,
        parking: Option<Parking>,
        known: Arc<Known>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let loaded = Loaded {
            target: parts.target,
            speculation: parts.speculation,
        };
        let scheduler = Scheduler::start_with(loaded, parking, limits).map_err(Error::Thread)?;
        Ok(Self {
            inner: Arc::new(Inner {
                scheduler,
                tokenizer: parts.tokenizer,
                format: parts.format,
                stop_tokens: parts.stop_tokens,
                bos: parts.bos,
                known,
            }),
        })
    }

    /// What is loaded; while it is given up, what was.
    #[must_use]
    pub fn info(&self) -> Arc<ModelInfo> {
        self.inner.known.info()
    }

    /// What is on, what is off, and why, as of the last time the model was loaded.
    #[must_use]
    pub fn features(&self) -> Arc<[Feature]> {
        self.inner.known.features()
    }

    /// Gives the model up and everything that was loaded for it, also in a draft worker. Requests accepted so far are
    /// answered first; later ones wait, and load it again. Without `wait` it is given up only if none is in progress.
    /// Waits until it is done: not to be called by a sink, which the engine's own thread runs.
    ///
    /// # Errors
    /// `Park`.
    pub fn park(&self, wait: bool) -> Result<Parked, Error> {
        // Of the worker, which is gone afterwards.
        let before = self.residency();
        let parked = self.inner.scheduler.park(wait)?;
        Ok(parking::parked(&self.info(), &before, parked))
    }

    /// Loads a model that was given up, and waits for that.
    ///
    /// # Errors
    /// `Unpark`: the model stays given up, and the next try may succeed.
    pub fn unpark(&self) -> Result<Unparked, Error> {
        let unparked = self.inner.scheduler.unpark()?;
        Ok(Unparked {
            already: unparked.already,
            now: self.residency().residents,
            took: unparked.took,
        })
    }

    /// Where the model is, and what takes memory.
    #[must_use]
    pub fn residency(&self) -> Residency {
        parking::residency(&self.info(), &self.stats())
    }

    /// The bounds of the scheduler.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        self.inner.scheduler.limits()
    }

    /// Counters as of now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.scheduler.stats()
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.inner.tokenizer
    }

    /// The prompt of a conversation.
    ///
    /// # Errors
    /// `Prompt`.
    pub fn prepare(&self, request: &ChatRequest) -> Result<Prepared, Error> {
        let prompt = self.inner.format.render(&Conversation {
            messages: &request.messages,
            tools: &request.tools,
            thinking: request.thinking,
            ..Conversation::default()
        })?;
        Ok(Prepared {
            tokens: prompt.encode(&self.inner.tokenizer),
            reading: Reading::Turn {
                in_reasoning: prompt.ends_in_reasoning(),
                tools: !request.tools.is_empty(),
            },
        })
    }

    /// A prompt of plain text to be continued as text: the opening token, then the text.
    #[must_use]
    pub fn prepare_text(&self, text: &str) -> Prepared {
        let mut tokens: Vec<TokenId> = self.inner.bos.into_iter().collect();
        tokens.extend(self.inner.tokenizer.encode_text(text));
        Prepared {
            tokens,
            reading: Reading::Plain,
        }
    }

    /// Starts an answer whose events go to `sink`, on the engine's thread: it must not block. Its
    /// reply to the last event of a token is followed.
    ///
    /// # Errors
    /// `Refused`.
    pub fn start_answer(
        &self,
        prompt: Prepared,
        generate: &Generate,
        mut sink: impl FnMut(Event) -> Flow + Send + 'static,
    ) -> Result<Handle, Error> {
        let inner = &self.inner;
        let mut reader = Reader::new(
            Arc::clone(&inner.tokenizer),
            &inner.format,
            prompt.reading,
            &generate.stop,
            generate.one_call,
        );
        let request = Request {
            prompt: prompt.tokens,
            plan: Arc::clone(&generate.plan),
            max_tokens: generate.max_tokens.unwrap_or(u32::MAX),
            stop_tokens: Arc::clone(&inner.stop_tokens),
        };
        let steps = move |step| match step {
            Step::Token(token) => {
                let mut events = Vec::new();
                let flow = reader.push(token, &mut events);
                for event in events {
                    if sink(event) == Flow::Cancel {
                        return Flow::Cancel;
                    }
                }
                flow
            }
            Step::Finished(finish) => {
                let (events, outcome) = reader.finish(&finish.reason, finish.usage);
                for event in events {
                    sink(event);
                }
                sink(Event::Finished(Box::new(outcome)))
            }
        };
        Ok(self.inner.scheduler.submit(request, Box::new(steps))?)
    }

    /// Starts an answer as a stream.
    ///
    /// # Errors
    /// `Refused`.
    pub fn answer(&self, prompt: Prepared, generate: &Generate) -> Result<AnswerStream, Error> {
        let (sender, events) = mpsc::channel();
        let handle =
            self.start_answer(prompt, generate, move |event| match sender.send(event) {
                Ok(()) => Flow::Continue,
                Err(_) => Flow::Cancel,
            })?;
        Ok(AnswerStream { events, handle })
    }

    /// Continues a conversation.
    ///
    /// # Errors
    /// `Prompt`, `Refused`.
    pub fn chat(&self, request: &ChatRequest) -> Result<AnswerStream, Error> {
        self.answer(self.prepare(request)?, &request.generate)
    }

    /// Continues plain text.
    ///
    /// # Errors
    /// `Refused`.
    pub fn complete(&self, text: &str, generate: &Generate) -> Result<AnswerStream, Error> {
        self.answer(self.prepare_text(text), generate)
    }

    /// Cancels all requests and refuses new ones.
    pub fn stop(&self) {
        self.inner.scheduler.stop();
    }
}
