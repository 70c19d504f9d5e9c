//! The call being read: writes its arguments as JSON while they come.

use std::collections::HashSet;

use super::event::Event;
use super::tag::Parameter;
use crate::json::{parse, write_string, write_string_body};

/// A call whose opening tag was read. Nothing is given out before the first parameter or the end
/// shows that it is one.
#[derive(Clone, Debug)]
pub(super) struct OpenCall {
    index: usize,
    name: String,
    started: bool,
    names: HashSet<String>,
    /// The parameter being read: for text whether it is given out already, for JSON its text.
    value: Option<Value>,
}

#[derive(Clone, Debug)]
enum Value {
    Text,
    /// JSON is given out when it is known to be JSON.
    Json {
        name: String,
        text: String,
    },
}

impl OpenCall {
    pub(super) fn new(index: usize, name: String) -> Self {
        Self {
            index,
            name,
            started: false,
            names: HashSet::new(),
            value: None,
        }
    }

    pub(super) const fn is_started(&self) -> bool {
        self.started
    }

    /// Begins a parameter; `false` if its name was used before.
    pub(super) fn open_value(&mut self, parameter: Parameter, out: &mut Vec<Event>) -> bool {
        if !self.names.insert(parameter.name.clone()) {
            return false;
        }
        self.start(out);
        if parameter.is_text {
            let mut fragment = self.key(&parameter.name);
            fragment.push('"');
            self.give(fragment, out);
            self.value = Some(Value::Text);
        } else {
            self.value = Some(Value::Json {
                name: parameter.name,
                text: String::new(),
            });
        }
        true
    }

    /// More of the open parameter's value.
    pub(super) fn value(&mut self, more: &str, out: &mut Vec<Event>) {
        match &mut self.value {
            Some(Value::Json { text, .. }) => text.push_str(more),
            Some(Value::Text) if !more.is_empty() => {
                let mut fragment = String::new();
                write_string_body(more, &mut fragment);
                self.give(fragment, out);
            }
            _ => {}
        }
    }

    /// Ends the open parameter. A value that should be JSON and is not becomes a string.
    pub(super) fn close_value(&mut self, out: &mut Vec<Event>) {
        match self.value.take() {
            Some(Value::Text) => self.give("\"".to_owned(), out),
            Some(Value::Json { name, text }) => {
                let mut fragment = self.key(&name);
                match parse(&text) {
                    Ok(_) => fragment.push_str(text.trim()),
                    Err(_) => write_string(&text, &mut fragment),
                }
                self.give(fragment, out);
            }
            None => {}
        }
    }

    /// Ends the call. Of an incomplete one an open JSON value is left out and an open text ends.
    pub(super) fn end(mut self, complete: bool, out: &mut Vec<Event>) {
        if !complete && let Some(Value::Json { name, .. }) = &self.value {
            self.names.remove(name);
            self.value = None;
        }
        self.close_value(out);
        self.start(out);
        let close = if self.names.is_empty() { "{}" } else { "}" };
        self.give(close.to_owned(), out);
        let index = self.index;
        out.push(Event::CallEnd { index, complete });
    }

    fn start(&mut self, out: &mut Vec<Event>) {
        if !self.started {
            self.started = true;
            let name = std::mem::take(&mut self.name);
            let index = self.index;
            out.push(Event::CallStart { index, name });
        }
    }

    /// The key of the newest parameter with what goes before it.
    fn key(&self, name: &str) -> String {
        let mut fragment = if self.names.len() == 1 { "{" } else { ", " }.to_owned();
        write_string(name, &mut fragment);
        fragment.push_str(": ");
        fragment
    }

    fn give(&self, fragment: String, out: &mut Vec<Event>) {
        let index = self.index;
        out.push(Event::CallArguments { index, fragment });
    }
}
