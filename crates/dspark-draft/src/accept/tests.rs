//! The distribution that comes out, enumerated: over every draft, and over the intervals of the uniform
//! numbers between the points where a verdict can change.

use engine_core::SamplePlan;
use sampling::Sampler;

use super::*;
use crate::width::{best, left_to_right};

const V: usize = 3;

/// Numbers in 0..1 that depend on all of `of`.
fn hashed(of: &[u32]) -> f64 {
    let step = |h: u64, x: &u32| {
        (h ^ u64::from(*x))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23)
    };
    (of.iter().fold(77, step) >> 11) as f64 * 2f64.powi(-53)
}

/// A distribution after the text `text`; `which` tells target and drafter apart.
fn distribution(which: u32, text: &[TokenId]) -> Vec<f64> {
    let weight = |v: usize| {
        let mut key = vec![which, v as u32, 17];
        key.extend_from_slice(text);
        hashed(&key).powi(2) + 0.02
    };
    let weights: Vec<f64> = (0..V).map(weight).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

fn target(text: &[TokenId]) -> Vec<f64> {
    distribution(1, text)
}

/// The points of 0..1 where picking from `weights` can change.
fn picks(weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    let steps = weights.iter().map(|w| {
        sum += w;
        sum / total
    });
    steps.filter(|s| s.is_finite()).collect()
}

/// Intervals between points, as (middle, length).
fn intervals(points: &[f64]) -> Vec<(f64, f64)> {
    let mut points: Vec<f64> = points
        .iter()
        .map(|p| p.clamp(0.0, 1.0))
        .chain([0.0, 1.0])
        .collect();
    points.sort_by(f64::total_cmp);
    points
        .windows(2)
        .map(|w| ((w[0] + w[1]) / 2.0, w[1] - w[0]))
        .collect()
}

/// The probabilities of each verdict: accepted, and each token instead.
fn verdicts(
    rule: impl Fn(Uniforms) -> Verdict,
    accept_at: f64,
    rest: &[f64],
    p: &[f64],
) -> (f64, Vec<f64>) {
    let mut pick_at = picks(rest);
    pick_at.extend(picks(p));
    let (mut accepted, mut instead) = (0.0, vec![0.0; p.len()]);
    for (accept, long) in intervals(&[accept_at]) {
        for (pick, wide) in intervals(&pick_at) {
            match rule(Uniforms { accept, pick }) {
                Verdict::Accept => accepted += long * wide,
                Verdict::Instead(token) => instead[token as usize] += long * wide,
            }
        }
    }
    (accepted, instead)
}

fn point_mass_verdicts(p: &[f64], d: TokenId) -> (f64, Vec<f64>) {
    let mut rest = p.to_vec();
    rest[d as usize] = 0.0;
    verdicts(|u| point_mass(p, d, u), p[d as usize], &rest, p)
}

fn rejection_verdicts(p: &[f64], q: &[f64], d: TokenId) -> (f64, Vec<f64>) {
    let rest: Vec<f64> = p.iter().zip(q).map(|(p, q)| (p - q).max(0.0)).collect();
    let at = p[d as usize] / q[d as usize];
    verdicts(|u| rejection(p, q, d, u), at, &rest, p)
}

fn assert_near(got: &[f64], want: &[f64], what: &str) {
    for (g, w) in got.iter().zip(want) {
        assert!((g - w).abs() < 1e-12, "{what}: {got:?} want {want:?}");
    }
}

#[test]
fn one_candidate_of_a_point_mass_keeps_the_distribution() {
    for case in 0..50 {
        let p = distribution(case, &[]);
        for d in 0..V as TokenId {
            let (accepted, mut out) = point_mass_verdicts(&p, d);
            assert!((accepted - p[d as usize]).abs() < 1e-12);
            out[d as usize] += accepted;
            assert_near(&out, &p, "point mass");
        }
    }
    // Certain and impossible candidates.
    for d in 0..3 {
        let p = [1.0, 0.0, 0.0];
        let (accepted, mut out) = point_mass_verdicts(&p, d);
        out[d as usize] += accepted;
        assert_near(&out, &p, "a certain token");
    }
}

#[test]
fn one_drawn_candidate_under_rejection_keeps_the_distribution() {
    for case in 0..50 {
        let (p, q) = (distribution(case, &[]), distribution(case + 100, &[]));
        let mut out = vec![0.0; V];
        let mut kept = 0.0;
        for d in 0..V as TokenId {
            let (accepted, instead) = rejection_verdicts(&p, &q, d);
            let drawn = q[d as usize];
            out[d as usize] += drawn * accepted;
            kept += drawn * accepted;
            out.iter_mut()
                .zip(instead)
                .for_each(|(o, i)| *o += drawn * i);
        }
        assert_near(&out, &p, "rejection");
        let overlap: f64 = p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum();
        assert!(
            (kept - overlap).abs() < 1e-12,
            "accepted as often as can be"
        );
    }
    // Equal distributions: nothing is rejected.
    let p = distribution(3, &[]);
    for d in 0..V as TokenId {
        assert!((rejection_verdicts(&p, &p, d).0 - 1.0).abs() < 1e-12);
    }
}

#[test]
fn an_argmax_candidate_under_rejection_is_biased() {
    // The fault of calling a greedy draft a draw from its softmax: seen by this enumeration.
    let (p, q) = (distribution(1, &[]), distribution(101, &[]));
    let d = (0..V as TokenId)
        .max_by(|a, b| q[*a as usize].total_cmp(&q[*b as usize]))
        .unwrap();
    let (accepted, mut out) = rejection_verdicts(&p, &q, d);
    out[d as usize] += accepted;
    let off: f64 = out.iter().zip(&p).map(|(o, p)| (o - p).abs()).sum();
    assert!(off > 0.01, "{out:?} {p:?}");
}

/// Depth of the drafts below, and length of the texts compared.
const DEPTH: usize = 2;
const LENGTH: usize = 3;

/// How candidates come about and are judged.
#[derive(Clone, Copy)]
enum Draft {
    /// Drawn from the drafter's distribution, judged by rejection.
    Drawn,
    /// The drafter's likeliest, judged as a point mass.
    Greedy,
}

impl Draft {
    /// Probabilities of candidates after `text`.
    fn chances(self, text: &[TokenId]) -> Vec<f64> {
        let q = drafter(text);
        match self {
            Self::Drawn => q,
            Self::Greedy => {
                let best = (0..V).max_by(|a, b| q[*a].total_cmp(&q[*b])).unwrap();
                (0..V).map(|v| f64::from(u8::from(v == best))).collect()
            }
        }
    }

    fn verdicts(self, text: &[TokenId], d: TokenId) -> (f64, Vec<f64>) {
        match self {
            Self::Drawn => rejection_verdicts(&target(text), &drafter(text), d),
            Self::Greedy => point_mass_verdicts(&target(text), d),
        }
    }

    /// The probability that the candidate after `text` is accepted: the confidence of a drafter that
    /// knows. Depends on the candidates in `text`.
    fn confidence(self, text: &[TokenId]) -> f64 {
        let chances = self.chances(text);
        (0..V)
            .map(|d| chances[d] * self.verdicts(text, d as TokenId).0)
            .sum()
    }
}

fn drafter(text: &[TokenId]) -> Vec<f64> {
    distribution(2, text)
}

/// A width from the confidences of all candidates.
type Choose<'a> = &'a dyn Fn(&[f64]) -> usize;

/// Adds the probabilities of all texts of `LENGTH` that begin with `text`, the rest drawn plainly.
fn plainly(text: &[TokenId], chance: f64, out: &mut [f64]) {
    if text.len() == LENGTH {
        let index = text.iter().fold(0, |i, t| i * V + *t as usize);
        out[index] += chance;
        return;
    }
    for (v, p) in target(text).iter().enumerate() {
        let longer: Vec<_> = text.iter().copied().chain([v as TokenId]).collect();
        plainly(&longer, chance * p, out);
    }
}

/// Adds what one speculative step and plain decoding after it give, for one draft.
fn verify(draft: Draft, candidates: &[TokenId], chance: f64, out: &mut [f64]) {
    let (mut text, mut chance) = (Vec::new(), chance);
    for d in candidates {
        let (accepted, instead) = draft.verdicts(&text, *d);
        for (v, p) in instead.iter().enumerate() {
            let other: Vec<_> = text.iter().copied().chain([v as TokenId]).collect();
            plainly(&other, chance * p, out);
        }
        text.push(*d);
        chance *= accepted;
    }
    plainly(&text, chance, out);
}

/// The distribution of texts with widths chosen by `choose`.
fn speculated(draft: Draft, choose: Choose<'_>) -> Vec<f64> {
    let mut out = vec![0.0; V.pow(LENGTH as u32)];
    for first in 0..V as TokenId {
        for second in 0..V as TokenId {
            let chance =
                draft.chances(&[])[first as usize] * draft.chances(&[first])[second as usize];
            let survival = [
                draft.confidence(&[]),
                draft.confidence(&[]) * draft.confidence(&[first]),
            ];
            let width = choose(&survival);
            verify(draft, &[first, second][..width], chance, &mut out);
        }
    }
    out
}

fn distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f64::max)
}

/// Times under which the second row is dear and the third cheap: one looks ahead or loses.
const JAGGED: [f64; 3] = [0.0, 1.0, 1.05];

#[test]
fn widths_chosen_from_left_to_right_keep_the_distribution_of_texts() {
    let mut want = vec![0.0; V.pow(LENGTH as u32)];
    plainly(&[], 1.0, &mut want);
    let rates = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 2.0];
    let mut widths = [0; DEPTH + 1];
    for draft in [Draft::Drawn, Draft::Greedy] {
        for fixed in 0..=DEPTH {
            assert!(
                distance(&speculated(draft, &|_| fixed), &want) < 1e-12,
                "fixed {fixed}"
            );
        }
        for rate in rates {
            let got = speculated(draft, &|a| left_to_right(a, &JAGGED, rate));
            assert!(distance(&got, &want) < 1e-12, "rate {rate}");
        }
    }
    // Not vacuous: the rule does choose, and by what was drawn.
    for first in 0..V as TokenId {
        for rate in rates {
            let c = [
                Draft::Drawn.confidence(&[]),
                Draft::Drawn.confidence(&[first]),
            ];
            widths[left_to_right(&[c[0], c[0] * c[1]], &JAGGED, rate)] += 1;
        }
    }
    assert!(widths.iter().all(|n| *n > 0), "{widths:?}");
}

#[test]
fn widths_chosen_by_looking_ahead_bias_drawn_drafts_and_only_those() {
    let mut want = vec![0.0; V.pow(LENGTH as u32)];
    plainly(&[], 1.0, &mut want);
    let rates = (1..40).map(|r| f64::from(r) * 0.025);
    let worst = |draft| {
        let off = |rate| distance(&speculated(draft, &|a| best(a, &JAGGED, rate)), &want);
        rates.clone().map(off).fold(0.0, f64::max)
    };
    assert!(worst(Draft::Drawn) > 0.01, "{}", worst(Draft::Drawn));
    // A greedy candidate is a function of the text: so is everything chosen by it.
    assert!(worst(Draft::Greedy) < 1e-12, "{}", worst(Draft::Greedy));
}

/// The counter-example of the paper's appendix: P = (0.7, 0.3), Q = (0.5, 0.5), and after the first
/// token a second candidate is certain to be accepted, after the other certain to fail.
#[test]
fn the_papers_counter_example() {
    let (p, q): ([f64; 2], [f64; 2]) = ([0.7, 0.3], [0.5, 0.5]);
    let first: f64 = p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum();
    let time = [0.0, 1.0, 1.05];
    let run = |rule: fn(&[f64], &[f64], f64) -> usize| {
        let mut out = [0.0; 2];
        for d in 0..2u32 {
            let second = f64::from(1 - d);
            let survival = [first, first * second];
            if rule(&survival, &time, 0.9) == 0 {
                // Not verified: the target draws.
                out.iter_mut().zip(p).for_each(|(o, p)| *o += 0.5 * p);
                continue;
            }
            let (accepted, instead) = rejection_verdicts(&p, &q, d);
            out[d as usize] += 0.5 * accepted;
            out.iter_mut().zip(instead).for_each(|(o, i)| *o += 0.5 * i);
        }
        out
    };
    assert_near(
        &run(best),
        &[0.85, 0.15],
        "the unlawful rule is biased, as published",
    );
    assert_near(&run(left_to_right), &p, "the lawful one is not");
}

/// Texts of `n` tokens drawn plainly and speculatively with one noise, for a row per text.
fn keyed(
    n: usize,
    plan: &SamplePlan,
    candidates: &dyn Fn(&[TokenId]) -> Vec<TokenId>,
) -> (Vec<TokenId>, usize) {
    let mut sampler = Sampler::new(V);
    let mut draw = |text: &[TokenId]| {
        let row: Vec<f32> = target(text).iter().map(|p| p.ln() as f32).collect();
        sampler.draw(plan, &row, text.len() as u32, text).unwrap()
    };
    let (mut text, mut matched) = (Vec::new(), 0);
    while text.len() < n {
        let proposed = candidates(&text);
        let before = text.len();
        let walk = exact(&proposed, |row| {
            assert_eq!(row + before, text.len(), "rows in order, one token each");
            // A row knows the candidates before it, not what was drawn.
            let seen: Vec<TokenId> = text[..before]
                .iter()
                .chain(&proposed[..row])
                .copied()
                .collect();
            let token = draw(&seen);
            text.push(token);
            if text.len() == n {
                Next::Last(token, ())
            } else {
                Next::Go(token)
            }
        });
        assert_eq!(walk.emitted, text.len() - before);
        matched += walk.matched;
    }
    (text, matched)
}

#[test]
fn keyed_noise_gives_one_text_whatever_is_proposed() {
    let mut seen = std::collections::BTreeMap::new();
    let mut accepted = 0;
    for seed in 0..400 {
        let plan = SamplePlan {
            temperature: 1.0,
            seed,
            ..SamplePlan::greedy()
        };
        let (want, none) = keyed(6, &plan, &|_| Vec::new());
        assert_eq!(none, 0);
        *seen.entry(want.clone()).or_insert(0) += 1;
        // Every draft of up to three tokens at every step.
        for width in 1..=3usize {
            for code in 0..V.pow(width as u32) {
                let digits: Vec<TokenId> = (0..width)
                    .map(|k| (code / V.pow(k as u32) % V) as TokenId)
                    .collect();
                let (text, matched) = keyed(6, &plan, &|_| digits.clone());
                assert_eq!(text, want, "seed {seed}, draft {digits:?}");
                accepted += matched;
            }
        }
    }
    assert!(seen.len() > 100, "the texts differ: {}", seen.len());
    assert!(accepted > 1000, "{accepted}");
}

/// With noise on a grid every draw of it can be enumerated: speculation gives each text exactly as often
/// as plain decoding does, and with the drafter using the noise itself accepts more.
#[test]
fn enumerated_noise_gives_equal_distributions() {
    const LEVELS: u32 = 4;
    let noises = LEVELS.pow((V * 2) as u32);
    let draw = |text: &[TokenId], code: u32| {
        let row = target(text);
        let score = |v: usize| {
            let level = code / LEVELS.pow((text.len() * V + v) as u32) % LEVELS;
            row[v].ln() + f64::from(level) * 0.8
        };
        (0..V)
            .max_by(|a, b| score(*a).total_cmp(&score(*b)).then(b.cmp(a)))
            .unwrap() as TokenId
    };
    let count = |candidates: &dyn Fn(u32) -> Vec<TokenId>| {
        let (mut counts, mut matched) = (vec![0u32; V * V], 0);
        for code in 0..noises {
            let mut text: Vec<TokenId> = Vec::new();
            while text.len() < 2 {
                let proposed = candidates(code)[text.len()..].to_vec();
                let walk = exact(&proposed, |_| {
                    let token = draw(&text, code);
                    text.push(token);
                    if text.len() == 2 {
                        Next::Last(token, ())
                    } else {
                        Next::Go(token)
                    }
                });
                matched += walk.matched;
            }
            counts[(text[0] * V as u32 + text[1]) as usize] += 1;
        }
        (counts, matched)
    };
    let (want, _) = count(&|_| vec![0, 0]);
    for a in 0..V as TokenId {
        for b in 0..V as TokenId {
            assert_eq!(count(&|_| vec![a, b]).0, want);
        }
    }
    assert!(want.iter().filter(|n| **n > 0).count() > 4, "{want:?}");
}

#[test]
fn a_walk_ends_where_the_text_ends() {
    let script = |end: usize, candidates: &[TokenId]| {
        let tokens = [5, 6, 7, 8];
        let mut asked = 0;
        let walk = exact(candidates, |row| {
            asked += 1;
            if row == end {
                Next::Last(tokens[row], "stop")
            } else {
                Next::Go(tokens[row])
            }
        });
        assert_eq!(asked, walk.emitted, "no row is looked at in vain");
        (walk.emitted, walk.matched, walk.end)
    };
    assert_eq!(script(9, &[5, 6, 7]), (4, 3, None));
    assert_eq!(script(9, &[5, 6, 9]), (3, 2, None));
    assert_eq!(script(9, &[9, 6, 7]), (1, 0, None));
    assert_eq!(script(9, &[]), (1, 0, None));
    assert_eq!(script(0, &[5, 6, 7]), (1, 1, Some("stop")));
    assert_eq!(script(1, &[5, 6, 7]), (2, 2, Some("stop")));
    assert_eq!(script(1, &[5, 9, 7]), (2, 1, Some("stop")));
    assert_eq!(script(3, &[5, 6, 7]), (4, 3, Some("stop")));
    let broken = exact::<&str>(&[5, 6], |row| {
        if row == 1 {
            Next::None("nan")
        } else {
            Next::Go(5)
        }
    });
    assert_eq!(
        (broken.emitted, broken.matched, broken.end),
        (1, 1, Some("nan"))
    );
}

#[test]
fn uniforms_are_uniform_independent_and_not_the_tokens_noise() {
    let n = 20_000;
    let (mut accept, mut pick, mut both) = (0.0, 0.0, 0.0);
    for pos in 0..n {
        let key = NoiseKey::new(3, 0, pos);
        let u = Uniforms::of(key);
        assert!(u.accept < 1.0 && u.pick < 1.0 && u.accept != u.pick);
        assert_eq!(u, Uniforms::of(key), "a counter has no state");
        accept += u.accept;
        pick += u.pick;
        both += (u.accept - 0.5) * (u.pick - 0.5);
    }
    let n = f64::from(n);
    assert!((accept / n - 0.5).abs() < 0.01 && (pick / n - 0.5).abs() < 0.01);
    assert!((both / n).abs() < 0.003, "{}", both / n);
}

#[test]
fn picking_never_leaves_the_support() {
    assert_eq!(pick([0.0, 0.0].into_iter(), 0.3), None);
    assert_eq!(pick([0.0, 0.2, 0.0].into_iter(), 0.0), Some(1));
    assert_eq!(pick([0.0, 0.2, 0.0].into_iter(), 1.0), Some(1));
    assert_eq!(pick([0.5, 0.0, 0.5].into_iter(), 0.5), Some(2));
    // Sums that round below their total end at the last token that can be drawn.
    assert_eq!(
        pick([0.1, 0.2, 0.3, 0.0].into_iter(), 1.0 - f64::EPSILON),
        Some(2)
    );
}
