//! What text and tags mean where they stand: the state between them, and the events they give.

use super::call::OpenCall;
use super::event::{End, Event, Finish, Summary};
use super::tag::{self, Tag};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Reasoning,
    /// Outside of any call.
    Outside,
    /// In a call, between parameters.
    Invoke,
    /// In a parameter; `special`: a special token opened it.
    Value {
        special: bool,
    },
    /// In a malformed call, or (`parameter`) in a parameter outside of any call.
    Skip {
        parameter: bool,
    },
}

/// Reads text and tags in order.
#[derive(Clone, Debug)]
pub(super) struct Structure {
    pub(super) state: State,
    /// Whether a block of calls is open.
    pub(super) in_block: bool,
    call: Option<OpenCall>,
    /// Whether markup was seen: from then on white space counts only between words.
    after_markup: bool,
    any_content: bool,
    /// Whether something was left out since the last content: what comes next stands apart from it.
    /// Otherwise parts of a marker spelled around a tag would join to a marker in the shown text.
    seam: bool,
    gap: String,
    calls: usize,
    summary: Summary,
}

impl Structure {
    pub(super) fn new(in_reasoning: bool) -> Self {
        Self {
            state: if in_reasoning {
                State::Reasoning
            } else {
                State::Outside
            },
            in_block: false,
            call: None,
            after_markup: false,
            any_content: false,
            seam: false,
            gap: String::new(),
            calls: 0,
            summary: Summary {
                finish: Finish::Stop,
                complete: 0,
                repaired: 0,
                incomplete: 0,
                malformed: 0,
                in_reasoning: false,
            },
        }
    }

    /// Counts markup that makes nothing.
    pub(super) const fn count_malformed(&mut self) {
        self.summary.malformed += 1;
        self.seam = true;
    }

    /// Something in the answer is not shown.
    pub(super) const fn leave_out(&mut self) {
        self.seam = true;
    }

    /// Ends the answer.
    pub(super) fn finish(mut self, end: End, out: &mut Vec<Event>) -> Summary {
        self.summary.in_reasoning = self.state == State::Reasoning;
        match self.state {
            State::Value { .. } => self.end_incomplete(out),
            State::Invoke if end == End::Cut => self.end_incomplete(out),
            State::Invoke => self.end_unclosed(out),
            _ => {}
        }
        self.summary.finish = match end {
            End::Cut => Finish::Length,
            End::Stop if self.summary.complete > 0 => Finish::ToolCalls,
            End::Stop => Finish::Stop,
        };
        self.summary
    }

    /// Reasoning, perhaps in the middle of markup, which it ends.
    pub(super) fn begin_reasoning(&mut self, out: &mut Vec<Event>) {
        self.end_incomplete(out);
        self.in_block = false;
        self.state = State::Reasoning;
    }

    /// Text that is no tag.
    pub(super) fn plain(&mut self, text: &str, out: &mut Vec<Event>) {
        match self.state {
            _ if text.is_empty() => {}
            State::Reasoning => out.push(Event::Reasoning(text.to_owned())),
            State::Outside if self.after_markup => self.words(text, out),
            State::Outside => {
                let content = format!("{}{text}", self.apart(text));
                self.any_content = true;
                out.push(Event::Content(content));
            }
            State::Value { .. } => {
                if let Some(call) = &mut self.call {
                    call.value(text, out);
                }
            }
            State::Invoke if text.trim().is_empty() => {}
            State::Invoke => self.spoil(out),
            State::Skip { .. } => {}
        }
    }

    /// Text beside markup, without the white space around it.
    fn words(&mut self, text: &str, out: &mut Vec<Event>) {
        let text = if self.any_content {
            text
        } else {
            text.trim_start()
        };
        let words = text.trim_end();
        if !words.is_empty() {
            let mut content = std::mem::take(&mut self.gap);
            content.push_str(words);
            content.insert_str(0, self.apart(&content));
            out.push(Event::Content(content));
            self.any_content = true;
        }
        self.gap.push_str(&text[words.len()..]);
    }

    /// The line break between content and this one, where something was left out between them.
    fn apart(&mut self, next: &str) -> &'static str {
        let joins = std::mem::take(&mut self.seam) && self.any_content;
        if joins && !next.starts_with(char::is_whitespace) {
            "\n"
        } else {
            ""
        }
    }

    /// A call's opening tag that makes none.
    pub(super) fn malformed_call(&mut self, out: &mut Vec<Event>) {
        self.apply(Tag::OpenInvoke(Err(tag::Malformed)), false, out);
    }

    /// A whole tag; `special`: a special token made it.
    pub(super) fn apply(&mut self, tag: Tag, special: bool, out: &mut Vec<Event>) {
        self.seam = true;
        if tag != Tag::Unknown {
            self.gap.clear();
            self.after_markup = true;
        }
        match tag {
            Tag::Unknown => self.summary.malformed += 1,
            Tag::OpenBlock | Tag::CloseBlock => {
                self.end_unclosed(out);
                self.in_block = tag == Tag::OpenBlock;
            }
            Tag::OpenInvoke(Ok(name)) => {
                self.end_unclosed(out);
                self.call = Some(OpenCall::new(self.calls, name));
                self.state = State::Invoke;
            }
            Tag::OpenInvoke(Err(_)) => {
                self.end_unclosed(out);
                self.summary.malformed += 1;
                self.state = State::Skip { parameter: false };
            }
            Tag::CloseInvoke if self.state == State::Invoke => self.end_complete(out),
            Tag::CloseInvoke => self.end_unclosed(out),
            Tag::OpenParameter(Ok(parameter)) => self.open_parameter(parameter, special, out),
            Tag::OpenParameter(Err(_)) => self.spoil(out),
            Tag::CloseParameter => self.close_parameter(out),
        }
    }

    fn open_parameter(&mut self, parameter: tag::Parameter, special: bool, out: &mut Vec<Event>) {
        let Some(call) = &mut self.call else {
            if self.state == State::Outside {
                self.summary.malformed += 1;
                self.state = State::Skip { parameter: true };
            }
            return;
        };
        call.close_value(out);
        let is_empty = parameter.is_empty;
        if !call.open_value(parameter, out) {
            return self.spoil(out);
        }
        self.state = State::Value { special };
        if is_empty {
            self.close_parameter(out);
        }
    }

    fn close_parameter(&mut self, out: &mut Vec<Event>) {
        match (self.state, &mut self.call) {
            (State::Value { .. }, Some(call)) => {
                call.close_value(out);
                self.state = State::Invoke;
            }
            (State::Skip { parameter: true }, _) => self.state = State::Outside,
            _ => {}
        }
    }

    /// The call's own closing tag came.
    fn end_complete(&mut self, out: &mut Vec<Event>) {
        if let Some(call) = self.call.take() {
            call.end(true, out);
            self.calls += 1;
            self.summary.complete += 1;
        }
        self.state = State::Outside;
    }

    /// Something else than its own closing tag ended the call: complete if it has a parameter.
    fn end_unclosed(&mut self, out: &mut Vec<Event>) {
        match &self.call {
            Some(call) if call.is_started() => {
                self.summary.repaired += 1;
                self.end_complete(out);
            }
            Some(_) => self.summary.malformed += 1,
            None => {}
        }
        self.call = None;
        self.state = State::Outside;
    }

    /// The call stays unfinished.
    fn end_incomplete(&mut self, out: &mut Vec<Event>) {
        match self.call.take() {
            Some(call) if call.is_started() => {
                call.end(false, out);
                self.calls += 1;
                self.summary.incomplete += 1;
            }
            Some(_) => self.summary.malformed += 1,
            None => {}
        }
        self.state = State::Outside;
    }

    /// The call is wrong: leave out what remains of it.
    pub(super) fn spoil(&mut self, out: &mut Vec<Event>) {
        let in_call = self.call.is_some() || self.state == State::Skip { parameter: false };
        match &self.call {
            Some(call) if call.is_started() => self.end_incomplete(out),
            _ => self.summary.malformed += 1,
        }
        self.call = None;
        self.state = State::Skip {
            parameter: !in_call,
        };
    }
}
