//! What is drawn: the distribution is that of the plan, and the token is a function of the row, the
//! plan, the position and the history alone.

#![allow(clippy::unwrap_used, reason = "test helpers")]

use std::cmp::Ordering;
use std::sync::Arc;

use engine_core::math::exp;
use engine_core::{Penalties, SamplePlan, TokenId};
use proptest::prelude::*;
use sampling::{NoiseKey, SampleError, Sampler};

fn plan(temperature: f32) -> SamplePlan {
    SamplePlan {
        temperature,
        ..SamplePlan::greedy()
    }
}

/// Probabilities of exp(row / temperature) over the tokens of `kept`, in f64.
fn softmax(row: &[f32], temperature: f64, kept: &[TokenId]) -> Vec<f64> {
    let mut p = vec![0.0; row.len()];
    for id in kept {
        p[*id as usize] = (f64::from(row[*id as usize]) / temperature).exp();
    }
    let total: f64 = p.iter().sum();
    p.iter().map(|w| w / total).collect()
}

/// Chi-square of `n` draws against `want`, over positions, choices or seeds.
fn chi_square(plan: &SamplePlan, row: &[f32], want: &[f64], n: u32, vary: usize) -> f64 {
    let mut sampler = Sampler::new(row.len());
    let mut counts = vec![0u32; row.len()];
    for i in 0..n {
        let mut plan = plan.clone();
        match vary {
            0 => plan.seed = u64::from(i),
            1 => plan.choice = i,
            _ => {}
        }
        let pos = if vary == 2 { i } else { 17 };
        counts[sampler.draw(&plan, row, pos, &[]).unwrap() as usize] += 1;
    }
    let mut sum = 0.0;
    for (count, p) in counts.iter().zip(want) {
        let expected = p * f64::from(n);
        if *p == 0.0 {
            assert_eq!(*count, 0, "a token that was filtered out was drawn");
        } else {
            sum += (f64::from(*count) - expected).powi(2) / expected;
        }
    }
    sum
}

/// Exceeded once in 1,000 by a right sampler; the seeds are fixed, so the test is not random.
const CHI2_7: f64 = 24.3;

#[test]
fn draws_have_the_distribution_of_the_plan() {
    let row = [1.0, 0.0, -1.0, 2.0, 0.5, 0.5, -3.0, 1.5];
    let all: Vec<TokenId> = (0..8).collect();
    for vary in 0..3 {
        for temperature in [0.5f32, 1.0, 2.0] {
            let want = softmax(&row, f64::from(temperature), &all);
            let got = chi_square(&plan(temperature), &row, &want, 100_000, vary);
            assert!(got < CHI2_7, "T = {temperature}, vary {vary}: {got}");
        }
    }
}

#[test]
fn a_wrong_distribution_is_noticed() {
    let row = [1.0, 0.0, -1.0, 2.0, 0.5, 0.5, -3.0, 1.5];
    let all: Vec<TokenId> = (0..8).collect();
    let want = softmax(&row, 1.1, &all);
    assert!(chi_square(&plan(1.0), &row, &want, 100_000, 2) > CHI2_7);
}

#[test]
fn filtered_draws_have_the_distribution_of_what_is_kept() {
    let row = [1.0, 0.0, -1.0, 2.0, 0.5, 0.5, -3.0, 1.5];
    let base = plan(1.0);
    let cases = [
        (
            SamplePlan {
                top_k: 3,
                ..base.clone()
            },
            vec![0, 3, 7],
        ),
        // 4 and 5 are equal: the lower id is kept.
        (
            SamplePlan {
                top_k: 4,
                ..base.clone()
            },
            vec![0, 3, 4, 7],
        ),
        (
            SamplePlan {
                min_p: 0.3,
                ..base.clone()
            },
            vec![0, 3, 7],
        ),
        // Shares: 3 has 0.383, 7 has 0.232, 0 has 0.141.
        (
            SamplePlan {
                top_p: 0.37,
                ..base.clone()
            },
            vec![3],
        ),
        (
            SamplePlan {
                top_p: 0.6,
                ..base.clone()
            },
            vec![3, 7],
        ),
        (
            SamplePlan {
                top_p: 0.62,
                ..base.clone()
            },
            vec![0, 3, 7],
        ),
        // Of the best three, 3 has a share of 0.506.
        (
            SamplePlan {
                top_k: 3,
                top_p: 0.5,
                ..base.clone()
            },
            vec![3],
        ),
        (
            SamplePlan {
                top_k: 7,
                min_p: 0.2,
                top_p: 0.8,
                ..base
            },
            vec![0, 3, 7],
        ),
    ];
    for (plan, kept) in cases {
        let want = softmax(&row, 1.0, &kept);
        let got = chi_square(&plan, &row, &want, 50_000, 2);
        assert!(got < CHI2_7, "{kept:?}: {got}");
    }
}

#[test]
fn ties_and_ends_of_temperature() {
    let mut sampler = Sampler::new(4);
    let row = [1.0, 3.0, 3.0, f32::NAN];
    for pos in 0..100 {
        assert_eq!(
            sampler.draw(&plan(0.0), &row, pos, &[]),
            Ok(1),
            "greedy: the lowest of equals"
        );
        assert_eq!(
            sampler.draw(&plan(1e-6), &[1.0, 3.0, 2.9, 0.0], pos, &[]),
            Ok(1)
        );
        let one = SamplePlan {
            top_k: 1,
            ..plan(5.0)
        };
        assert_eq!(sampler.draw(&one, &row, pos, &[]), Ok(1));
    }
    let infinite = [0.0, f32::INFINITY, f32::INFINITY, f32::NEG_INFINITY];
    let filters = SamplePlan {
        top_p: 0.9,
        min_p: 0.1,
        ..plan(1.0)
    };
    for pos in 0..20 {
        assert_eq!(sampler.draw(&plan(1.0), &infinite, pos, &[]), Ok(1));
        assert_eq!(sampler.draw(&filters, &infinite, pos, &[]), Ok(1));
    }
}

#[test]
fn what_cannot_be_drawn_is_refused() {
    let mut sampler = Sampler::new(3);
    let nothing = [f32::NAN, f32::NEG_INFINITY, f32::NAN];
    for plan in [
        plan(0.0),
        plan(1.0),
        SamplePlan {
            top_p: 0.5,
            ..plan(1.0)
        },
    ] {
        assert_eq!(
            sampler.draw(&plan, &nothing, 0, &[]),
            Err(SampleError::Nothing)
        );
        assert_eq!(
            sampler.draw(&plan, &[0.0; 2], 0, &[]),
            Err(SampleError::Width {
                expected: 3,
                got: 2
            })
        );
    }
    let banned = SamplePlan {
        bias: Arc::from([(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)]),
        ..plan(1.0)
    };
    for pos in 0..50 {
        assert_eq!(sampler.draw(&banned, &[9.0, 9.0, 0.0], pos, &[]), Ok(2));
    }
}

#[test]
fn penalties_reach_the_draw() {
    let mut sampler = Sampler::new(3);
    let penalties = Penalties {
        presence: 5.0,
        window: 8,
        ..Penalties::default()
    };
    let greedy = SamplePlan {
        penalties,
        ..plan(0.0)
    };
    let row = [3.0, 2.0, 1.0];
    assert_eq!(sampler.draw(&greedy, &row, 0, &[]), Ok(0));
    assert_eq!(sampler.draw(&greedy, &row, 0, &[0]), Ok(1));
    assert_eq!(sampler.draw(&greedy, &row, 0, &[0, 1]), Ok(2));
    assert_eq!(sampler.draw(&greedy, &row, 0, &[0, 1, 2]), Ok(0));
}

/// The chain written down plainly: sorts everything, sums integers in the order given by `shuffle`,
/// looks at every token. An independent statement of what a device must compute.
fn plainly(plan: &SamplePlan, row: &[f32], pos: u32, shuffle: u64) -> Option<TokenId> {
    let mut ids: Vec<TokenId> = (0..row.len() as u32)
        .filter(|i| row[*i as usize] > f32::NEG_INFINITY)
        .collect();
    let y: Vec<f32> = row.iter().map(|v| v / plan.temperature).collect();
    let rank = |a: &TokenId, b: &TokenId| {
        let (x, z) = (y[*a as usize], y[*b as usize]);
        z.partial_cmp(&x).unwrap_or(Ordering::Equal).then(a.cmp(b))
    };
    ids.sort_by(rank);
    let largest = y[*ids.first()? as usize];
    let weight = |id: TokenId| {
        if y[id as usize] == largest {
            1.0
        } else {
            exp(y[id as usize] - largest)
        }
    };
    if plan.top_k > 0 {
        ids.truncate(plan.top_k as usize);
    }
    if plan.min_p > 0.0 {
        ids.retain(|id| weight(*id) >= plan.min_p);
    }
    if plan.top_p < 1.0 {
        let units = |id: TokenId| (weight(id) * 2f32.powi(40)) as u128;
        let total: u128 = mixed(&ids, shuffle).iter().map(|id| units(*id)).sum();
        let p = u128::from((f64::from(plan.top_p) * 2f64.powi(32)) as u64);
        let target = (total * p).div_ceil(1 << 32);
        let reached = |n: usize| {
            mixed(&ids[..n], shuffle)
                .iter()
                .map(|id| units(*id))
                .sum::<u128>()
                >= target
        };
        let n = (1..=ids.len()).find(|n| reached(*n))?;
        ids.truncate(n);
    }
    let key = NoiseKey::of(plan, pos);
    let scores = mixed(&ids, shuffle)
        .into_iter()
        .map(|id| (y[id as usize] + key.gumbel(id), id));
    let better = |a: (f32, TokenId), b: (f32, TokenId)| {
        if b.0 > a.0 || (b.0 == a.0 && b.1 < a.1) {
            b
        } else {
            a
        }
    };
    scores.reduce(better).map(|(_, id)| id)
}

/// Some order of the ids.
fn mixed(ids: &[TokenId], shuffle: u64) -> Vec<TokenId> {
    let key = NoiseKey::new(shuffle, 0, 0);
    let mut ids = ids.to_vec();
    ids.sort_by_key(|id| key.bits(*id));
    ids
}

fn rows() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        8 => -8.0f32..8.0,
        4 => (-4i8..4).prop_map(|v| f32::from(v) / 2.0), // many ties
        1 => prop::sample::select(vec![f32::NAN, f32::NEG_INFINITY, -0.0, 1e30, -1e30]),
    ];
    prop::collection::vec(value, 1..80)
}

fn plans() -> impl Strategy<Value = SamplePlan> {
    let temperature = prop::sample::select(vec![0.1f32, 0.7, 1.0, 3.0]);
    let top_p = prop_oneof![Just(1.0f32), 0.01f32..1.0];
    let min_p = prop_oneof![Just(0.0f32), 0.0f32..1.0];
    (temperature, 0u32..90, top_p, min_p, any::<u64>(), 0u32..4).prop_map(
        |(temperature, top_k, top_p, min_p, seed, choice)| SamplePlan {
            temperature,
            top_k: top_k.saturating_sub(10),
            top_p,
            min_p,
            seed,
            choice,
            ..SamplePlan::greedy()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_order_of_evaluation_draws_the_same(row in rows(), plan in plans(), pos in any::<u32>(), shuffle in any::<u64>()) {
        let got = Sampler::new(row.len()).draw(&plan, &row, pos, &[]).ok();
        prop_assert_eq!(got, plainly(&plan, &row, pos, shuffle));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300_000))]

    #[test]
    #[ignore = "soak: minutes of random rows"]
    fn soak_every_order_of_evaluation_draws_the_same(row in rows(), plan in plans(), pos in any::<u32>(), shuffle in any::<u64>()) {
        let got = Sampler::new(row.len()).draw(&plan, &row, pos, &[]).ok();
        prop_assert_eq!(got, plainly(&plan, &row, pos, shuffle));
    }
}

#[test]
fn wide_rows_agree_with_the_plain_chain() {
    let n = 129_280u32;
    let row: Vec<f32> = (0..n)
        .map(|i| ((i.wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0) * 6.0)
        .collect();
    let mut sampler = Sampler::new(row.len());
    let base = SamplePlan {
        seed: 3,
        ..plan(0.8)
    };
    let plans = [
        base.clone(),
        SamplePlan {
            top_k: 40,
            ..base.clone()
        },
        SamplePlan {
            min_p: 0.05,
            ..base
        },
    ];
    for plan in plans {
        for pos in 0..3 {
            assert_eq!(
                sampler.draw(&plan, &row, pos, &[]).ok(),
                plainly(&plan, &row, pos, 1)
            );
        }
    }
}

/// Design bet 6: a draft that is verified gives the text that plain decoding gives, whatever was
/// proposed and however many rows a pass verified.
#[test]
fn drafting_does_not_change_the_text() {
    let n = 64;
    // A model: the logits after a token.
    let row = |after: TokenId| -> Vec<f32> {
        let key = NoiseKey::new(99, after, 0);
        (0..n).map(|t| key.gumbel(t) * 1.5).collect()
    };
    let penalties = Penalties {
        presence: 0.5,
        frequency: 0.2,
        repeat: 1.1,
        window: 16,
    };
    let plan = SamplePlan {
        penalties,
        top_p: 0.9,
        seed: 11,
        ..plan(1.0)
    };
    let mut sampler = Sampler::new(n as usize);
    let mut plain = vec![0];
    while plain.len() < 200 {
        let last = *plain.last().unwrap();
        let next = sampler
            .draw(&plan, &row(last), plain.len() as u32, &plain)
            .unwrap();
        plain.push(next);
    }
    for width in 1..6usize {
        let mut text = vec![0];
        while text.len() < 200 {
            // Proposals: sometimes right, sometimes not.
            let proposals: Vec<TokenId> = (0..width)
                .map(|i| {
                    plain
                        .get(text.len() + i)
                        .map_or(0, |t| (t + u32::from((text.len() + i) % 3 == 0)) % n)
                })
                .collect();
            for proposed in &proposals {
                let last = *text.last().unwrap();
                let drawn = sampler
                    .draw(&plan, &row(last), text.len() as u32, &text)
                    .unwrap();
                text.push(drawn);
                if drawn != *proposed {
                    break;
                }
            }
        }
        text.truncate(200);
        assert_eq!(text, plain, "width {width}");
    }
}

#[test]
fn noise_differs_between_choices_and_positions() {
    let row = vec![0.0f32; 1000];
    let mut sampler = Sampler::new(1000);
    let mut drawn = std::collections::HashSet::new();
    for choice in 0..10 {
        for pos in 0..10 {
            let plan = SamplePlan {
                choice,
                ..plan(1.0)
            };
            drawn.insert(sampler.draw(&plan, &row, pos, &[]).unwrap());
        }
    }
    assert!(drawn.len() > 85, "{} of 100 draws differ", drawn.len());
}
