//! Short passes as graphs: the launches of a pass are captured once a shape and replayed with other inputs.
//!
//! A shape is run launch by launch when it is first seen, so that every kernel is loaded before anything is
//! captured; the second time it is captured; then replayed. The bytes are the same: it is the same chain.
//!
//! Must not know: what is launched.

use std::collections::HashMap;
use std::ops::Range;

use device::driver::Driver;
use device::{Fault, Graph, Stream};
use ds4_kernels::KernelError;
use engine_core::mutant::mutant;

use super::draws::Way;
use super::layers::Tapped;

/// Most shapes that are remembered. A drafter's widths, a few numbers of sequences, rows or none.
const SHAPES: usize = 64;

/// What the launches of a pass depend on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    /// Tokens, and rows of logits.
    pub(crate) tokens: usize,
    pub(crate) rows: usize,
    /// How the rows are drawn.
    pub(crate) way: Way,
    /// Tokens and layers of spans with features.
    pub(crate) taps: Vec<(Range<usize>, Vec<usize>)>,
}

impl Shape {
    pub(crate) fn new(tokens: usize, rows: usize, way: Way, tapped: &[Tapped]) -> Self {
        let taps = tapped.iter().map(|t| (t.tokens.clone(), t.layers.clone()));
        Self {
            tokens,
            rows,
            way,
            taps: taps.collect(),
        }
    }
}

#[derive(Debug)]
enum Known<R: Driver> {
    /// Run once.
    Seen,
    /// With the bytes of weights that it reads.
    Built(Graph<R>, u64),
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GraphCounts {
    /// Graphs captured.
    pub built: u64,
    /// Graphs launched.
    pub launched: u64,
    /// Operations in them.
    pub operations: u64,
    /// Graphs given up for want of room.
    pub dropped: u64,
}

impl GraphCounts {
    /// Those of two sets together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            built: self.built + other.built,
            launched: self.launched + other.launched,
            operations: self.operations + other.operations,
            dropped: self.dropped + other.dropped,
        }
    }
}

/// The graphs of a target.
#[derive(Debug)]
pub(crate) struct Graphs<R: Driver> {
    /// Passes of more tokens are not captured.
    most_tokens: usize,
    known: HashMap<Shape, Known<R>>,
    pub(crate) counts: GraphCounts,
}

impl<R: Driver> Graphs<R> {
    pub(crate) fn new(most_tokens: usize) -> Self {
        Self {
            most_tokens,
            known: HashMap::new(),
            counts: GraphCounts::default(),
        }
    }

    /// Whether passes of this many tokens are run as graphs.
    pub(crate) fn take(&self, tokens: usize) -> bool {
        tokens <= self.most_tokens && !mutant(370)
    }

    /// Runs `work`, which submits the launches of a shape to `stream` and answers with the bytes of weights that they
    /// read, or what was captured of it. The answer: bytes read by launches that `work` did not submit now, 0 if it ran.
    pub(crate) fn run(
        &mut self,
        shape: Shape,
        stream: &Stream<R>,
        work: impl FnOnce() -> Result<u64, KernelError>,
    ) -> Result<u64, KernelError> {
        let replayed = match self.known.get(&shape) {
            None => {
                work()?;
                self.remember(shape, Known::Seen);
                return Ok(0);
            }
            Some(Known::Built(graph, read)) => {
                stream.launch_graph(graph)?;
                self.counts.operations += graph.operations() as u64;
                *read
            }
            Some(Known::Seen) => {
                let (graph, read) = capture(stream, work)?;
                // Its operations were counted as launches when they were captured.
                stream.launch_graph(&graph)?;
                self.counts.built += 1;
                self.remember(shape, Known::Built(graph, read));
                0
            }
        };
        self.counts.launched += 1;
        Ok(replayed)
    }

    /// How many there are.
    pub(crate) fn built(&self) -> usize {
        let built = self.known.values();
        built.filter(|k| matches!(k, Known::Built(..))).count()
    }

    /// All of them, to be retired.
    pub(crate) fn into_graphs(self) -> impl Iterator<Item = Graph<R>> {
        self.known.into_values().filter_map(|known| match known {
            Known::Built(graph, _) => Some(graph),
            Known::Seen => None,
        })
    }

    fn remember(&mut self, shape: Shape, known: Known<R>) {
        if self.known.len() >= SHAPES && !self.known.contains_key(&shape) {
            let built = self
                .known
                .values()
                .filter(|k| matches!(k, Known::Built(..)));
            self.counts.dropped += built.count() as u64;
            // All of them: which one comes back is not known, and this is rare.
            self.known.clear();
        }
        self.known.insert(shape, known);
    }
}

/// Captures what `work` submits; its own errors pass through.
fn capture<R: Driver>(
    stream: &Stream<R>,
    work: impl FnOnce() -> Result<u64, KernelError>,
) -> Result<(Graph<R>, u64), KernelError> {
    let (mut other, mut read) = (None, 0);
    let captured = stream.capture(|_| {
        work().map(|bytes| read = bytes).map_err(|e| match e {
            KernelError::Device(fault) => fault,
            e => {
                let words = e.to_string();
                other = Some(e);
                // Ends the capture; `other` is what is answered.
                Fault::Argument {
                    kernel: "a capture".into(),
                    index: 0,
                    expected: "launches".into(),
                    got: words,
                }
            }
        })
    });
    match other {
        Some(e) => Err(e),
        None => Ok((captured?, read)),
    }
}
