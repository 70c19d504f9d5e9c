//! HTTP/1.1 by hand over a plain socket: what is sent and received is what the test says.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// A response that was read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{e}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    let found = headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name));
    found.map(|(_, value)| value.as_str())
}

/// A connection with a request sent and the answer not read yet.
pub(crate) struct Pending {
    reader: BufReader<TcpStream>,
}

/// Sends a request.
pub(crate) fn send(to: SocketAddr, head: &str, body: &[u8]) -> Pending {
    let mut stream = TcpStream::connect(to).unwrap();
    // Far beyond any wait: a test that would hang fails instead.
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).unwrap();
    let length = body.len();
    let head = format!("{head}\r\nhost: test\r\ncontent-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    Pending {
        reader: BufReader::new(stream),
    }
}

pub(crate) fn get(to: SocketAddr, path: &str) -> Response {
    send(to, &format!("GET {path} HTTP/1.1"), b"").read()
}

pub(crate) fn post_chat(to: SocketAddr, body: &str) -> Pending {
    let head = "POST /v1/chat/completions HTTP/1.1\r\ncontent-type: application/json";
    send(to, head, body.as_bytes())
}

pub(crate) fn chat(to: SocketAddr, body: &str) -> Response {
    post_chat(to, body).read()
}

impl Pending {
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        line.trim_end_matches(['\r', '\n']).to_owned()
    }

    /// Reads the head only.
    pub(crate) fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let status = self.line();
        let status = status
            .split(' ')
            .nth(1)
            .unwrap_or_else(|| panic!("{status:?}"));
        let status = status.parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line();
            let Some((name, value)) = line.split_once(':') else {
                return (status, headers);
            };
            headers.push((name.to_owned(), value.trim().to_owned()));
        }
    }

    /// Reads the whole answer.
    pub(crate) fn read(mut self) -> Response {
        let (status, headers) = self.head();
        let mut body = Vec::new();
        if find(&headers, "transfer-encoding") == Some("chunked") {
            while let Some(chunk) = self.chunk() {
                body.extend(chunk);
            }
        } else {
            let length = find(&headers, "content-length").map_or(0, |l| l.parse().unwrap());
            body.resize(length, 0);
            self.reader.read_exact(&mut body).unwrap();
        }
        Response {
            status,
            headers,
            body: String::from_utf8(body).unwrap(),
        }
    }

    fn chunk(&mut self) -> Option<Vec<u8>> {
        let size = usize::from_str_radix(&self.line(), 16).unwrap();
        let mut chunk = vec![0; size];
        self.reader.read_exact(&mut chunk).unwrap();
        assert_eq!(self.line(), "");
        (size > 0).then_some(chunk)
    }

    /// Reads the head of a stream.
    pub(crate) fn stream(mut self) -> Stream {
        let (status, headers) = self.head();
        assert_eq!(status, 200);
        assert_eq!(find(&headers, "content-type"), Some("text/event-stream"));
        Stream {
            pending: self,
            text: String::new(),
        }
    }
}

/// A message of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Message {
    Data(Value),
    Comment(String),
    Done,
}

/// A stream of events.
pub(crate) struct Stream {
    pending: Pending,
    text: String,
}

impl Iterator for Stream {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        loop {
            if let Some((event, rest)) = self.text.split_once("\n\n") {
                let message = parse(event);
                self.text = rest.to_owned();
                return Some(message);
            }
            // Every chunk must be whole UTF-8 by itself.
            self.text += &String::from_utf8(self.pending.chunk()?).unwrap();
        }
    }
}

fn parse(event: &str) -> Message {
    if let Some(comment) = event.strip_prefix(':') {
        return Message::Comment(comment.trim().to_owned());
    }
    match event.strip_prefix("data: ") {
        Some("[DONE]") => Message::Done,
        Some(data) => Message::Data(serde_json::from_str(data).unwrap()),
        None => panic!("{event:?}"),
    }
}

impl Stream {
    /// The next object.
    pub(crate) fn data(&mut self) -> Value {
        loop {
            match self.next() {
                Some(Message::Data(value)) => return value,
                Some(Message::Comment(_)) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    /// All objects up to `[DONE]`, which must be last.
    pub(crate) fn objects(self) -> Vec<Value> {
        let messages: Vec<Message> = self.collect();
        assert_eq!(messages.last(), Some(&Message::Done));
        let data = |m| match m {
            Message::Data(value) => Some(value),
            _ => None,
        };
        messages.into_iter().filter_map(data).collect()
    }
}
