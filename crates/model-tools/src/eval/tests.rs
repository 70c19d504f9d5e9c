use std::io::{Read, Write};
use std::time::Instant;

use engine_core::seams::TargetInfo;
use engine_core::{NumericClass, Out, Pos, Rows, SeqId, Span, Ticket, Want};

use super::*;

/// A target whose logits are a function of position and token.
struct Toy {
    info: TargetInfo,
    logits: fn(Pos, TokenId, usize) -> f32,
    pos: Option<Pos>,
    end: Pos,
    rows: Rows,
    passes: Vec<(Pos, usize, bool)>,
}

impl Toy {
    fn new(n_vocab: usize, logits: fn(Pos, TokenId, usize) -> f32) -> Self {
        Self {
            info: TargetInfo {
                n_vocab,
                n_embd: 1,
                n_layer: 1,
                n_ctx: 1000,
                n_seq_max: 1,
                verify_max: 1,
                span_max: 5,
                class: NumericClass::Equal,
                fingerprint: [0; 32],
            },
            logits,
            pos: None,
            end: 0,
            rows: Rows::default(),
            passes: Vec::new(),
        }
    }
}

impl Target for Toy {
    fn info(&self) -> &TargetInfo {
        &self.info
    }
    fn open(&mut self) -> Result<SeqId, Fault> {
        assert!(self.pos.is_none(), "one sequence at a time");
        self.pos = Some(0);
        Ok(SeqId(0))
    }
    fn fork(&mut self, _: SeqId) -> Result<SeqId, Fault> {
        Err(Fault::Unsupported("fork"))
    }
    fn close(&mut self, _: SeqId) {
        self.pos = None;
    }
    fn pos(&self, _: SeqId) -> Option<Pos> {
        self.pos
    }
    fn submit(&mut self, tokens: &[TokenId], spans: &[Span]) -> Result<Ticket, Fault> {
        let [span] = spans else { panic!("one span") };
        assert_eq!(Some(span.pos), self.pos);
        assert!(span.range.len() <= self.info.span_max && !span.range.is_empty());
        assert!(matches!(span.want, Want::Logits));
        self.passes
            .push((span.pos, span.range.len(), span.out == Out::All));
        let n = self.info.n_vocab;
        self.rows.clear(n);
        self.end = span.pos + span.range.len() as Pos;
        if span.out == Out::All {
            for (pos, token) in (span.pos..).zip(&tokens[span.range.clone()]) {
                let row = (0..n).map(|i| (self.logits)(pos, *token, i));
                self.rows.logits.extend(row);
            }
        }
        Ok(Ticket(0))
    }
    fn wait(&mut self, _: Ticket, _: Option<Instant>) -> Result<&Rows, Fault> {
        Ok(&self.rows)
    }
    fn commit(&mut self, _: SeqId, pos: Pos) {
        assert_eq!(pos, self.end);
        self.pos = Some(pos);
    }
    fn head(&mut self, _: &[f32], _: &mut [f32]) -> Result<(), Fault> {
        Err(Fault::Unsupported("head"))
    }
    fn embed(&mut self, _: &[TokenId], _: &mut [f32]) -> Result<(), Fault> {
        Err(Fault::Unsupported("embed"))
    }
    fn save(&self, _: SeqId, _: &mut dyn Write) -> Result<(), Fault> {
        Err(Fault::Unsupported("save"))
    }
    fn load(&mut self, _: &mut dyn Read) -> Result<SeqId, Fault> {
        Err(Fault::Unsupported("load"))
    }
}

fn text(n: usize) -> Vec<TokenId> {
    (0..n as TokenId).map(|i| (i * 7 + i / 3) % 10).collect()
}

#[test]
fn a_uniform_model_has_the_vocabulary_as_perplexity() {
    let mut toy = Toy::new(10, |_, _, _| 3.25);
    let tokens = text(35);
    let windows = windows(&tokens, 16).unwrap();
    assert_eq!(windows.len(), 2, "the rest of 3 tokens is left out");
    let p = perplexity(&mut toy, &windows, &mut ()).unwrap();
    // Positions 8 to 14 of each window predict tokens 9 to 15.
    assert_eq!(p.scored, 14);
    assert!((p.value() - 10.0).abs() < 1e-12, "{p:?}");
    assert!(p.nll_error.abs() < 1e-7);
    let of_a_window = [(0, 5, false), (5, 3, false), (8, 5, true), (13, 2, true)];
    assert_eq!(toy.passes[..4], of_a_window);
    assert_eq!(toy.passes[4..], of_a_window);
}

#[test]
fn likelihood_is_of_the_token_that_follows() {
    // Certain that the successor of a token is the next number.
    let sure = |_, token: TokenId, i: usize| {
        if i == (token as usize + 1) % 10 {
            20.0
        } else {
            0.0
        }
    };
    let mut toy = Toy::new(10, sure);
    let counting: Vec<TokenId> = (0..16).map(|i| i % 10).collect();
    let p = perplexity(&mut toy, &windows(&counting, 16).unwrap(), &mut ()).unwrap();
    let nll = (1.0 + 9.0 * (-20f64).exp()).ln();
    assert!((p.nll - nll).abs() < 1e-12 && p.nll > 0.0, "{p:?}");
    // Shifted by one, every prediction is wrong.
    let late: Vec<TokenId> = (0..16).map(|i| (2 * i) % 10).collect();
    let p = perplexity(&mut toy, &windows(&late, 16).unwrap(), &mut ()).unwrap();
    assert!((p.nll - 20.0 - nll).abs() < 1e-9, "{p:?}");
}

#[test]
fn divergence_has_its_definition_and_is_zero_of_a_model_with_itself() {
    let half = |_, _, i: usize| if i < 2 { 0.0 } else { -1000.0 };
    let skewed = |_, _, i: usize| match i {
        0 => 3f32.ln(),
        1 => 0.0,
        _ => -1000.0,
    };
    let tokens: Vec<TokenId> = (0..20).map(|i| i % 2).collect();
    let windows = windows(&tokens, 20).unwrap();
    let (mut p, mut q) = (Toy::new(4, half), Toy::new(4, skewed));
    let d = compare(&mut p, &mut q, &windows, &mut ()).unwrap();
    let kl = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
    for got in [d.kl, d.kl_median, d.kl_p99, d.kl_max] {
        assert!((got - kl).abs() < 1e-7, "{got} {kl}");
    }
    assert_eq!(d.top1, 1.0, "ties go to the lowest id");
    assert!((d.reference.value() - 2.0).abs() < 1e-9);
    let mut same = Toy::new(4, skewed);
    let d = compare(&mut q, &mut same, &windows, &mut ()).unwrap();
    assert_eq!((d.kl, d.kl_max, d.top1), (0.0, 0.0, 1.0));
    let mut other = Toy::new(4, |pos, _, i| if i == pos as usize % 2 { 1.0 } else { 0.0 });
    let d = compare(&mut q, &mut other, &windows, &mut ()).unwrap();
    // Positions 10 to 18: five even, four odd.
    assert!((d.top1 - 5.0 / 9.0).abs() < 1e-12, "{d:?}");
}

#[test]
fn percentiles_are_of_the_positions() {
    let mut pair = stats::Pair::default();
    for i in 1..=100 {
        // KL grows with i.
        pair.add(&[0.0, 0.0], &[0.0, i as f32 / 100.0], 0);
    }
    let d = pair.divergence();
    let at = |i: usize| stats::kl(&[0.0, 0.0], &[0.0, i as f32 / 100.0]);
    assert_eq!((d.kl_median, d.kl_p99, d.kl_max), (at(50), at(99), at(100)));
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let mut toy = Toy::new(10, |_, _, _| 0.0);
    assert!(windows(&text(5), 1).is_err() && windows(&text(5), 6).is_err());
    let bad = [1, 2, 3, 10];
    let w = windows(&bad, 4).unwrap();
    let error = perplexity(&mut toy, &w, &mut ()).unwrap_err();
    assert!(matches!(
        error,
        ToolError::Fault(Fault::BadToken {
            token: 10,
            index: 3,
            ..
        })
    ));
    let error = perplexity(&mut toy, &[], &mut ()).unwrap_err();
    assert!(matches!(error, ToolError::Tokens { .. }));
    let mut small = Toy::new(9, |_, _, _| 0.0);
    let w = windows(&[1, 2, 3, 4], 4).unwrap();
    let error = compare(&mut toy, &mut small, &w, &mut ())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("10 as the reference's") && error.contains("got 9"),
        "{error}"
    );
}

#[test]
fn logarithms_do_not_overflow() {
    let big = [1e30f32, 1e30, -1e30];
    assert!((log_softmax(&big, 0) + 2f64.ln()).abs() < 1e-12);
    assert!(log_softmax(&[f32::NAN, 0.0], 0).is_nan());
}
