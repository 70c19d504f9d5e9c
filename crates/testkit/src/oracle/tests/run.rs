use super::super::{OracleModel, Rows, RunOptions, argmax, canonical_name};
use super::{max_diff, small};
use crate::Error;

fn options(kv_sim: bool) -> RunOptions {
    RunOptions {
        kv_sim,
        logits: Rows::All,
    }
}

fn tokens(n: usize) -> Vec<u32> {
    (0..n as u32).map(|i| (i * 37 + i * i) % 300).collect()
}

/// A token cannot see what follows it: a longer run has the same values, bit for bit.
#[test]
fn runs_are_causal() {
    let model = small();
    let all = tokens(140);
    for kv_sim in [false, true] {
        let long = model.forward(&all, &options(kv_sim)).unwrap();
        for n in [1, 4, 17, 127, 128] {
            let short = model.forward(&all[..n], &options(kv_sim)).unwrap();
            assert_eq!(
                short.logits.data,
                long.logits.data[..n * 300],
                "{n} {kv_sim}"
            );
        }
    }
}

/// Trap 28: all streams start as the embedding, so the first input is a multiple of it.
#[test]
fn streams_start_as_the_embedding() {
    let model = small();
    let dump = model.forward(&[9], &options(false)).unwrap();
    let layer = &dump.layers[0];
    let sum: f64 = layer.attn_mix[0].pre.iter().sum();
    let row = model.tensor("token_embd.weight").unwrap().row(9);
    let want: Vec<f64> = row.iter().map(|e| f64::from(*e) * sum).collect();
    assert!(max_diff(layer.attn_in.row(0), &want) < 1e-12);
}

#[test]
fn the_roundings_change_the_result_a_little() {
    let model = small();
    let all = tokens(60);
    let plain = model.forward(&all, &options(false)).unwrap();
    let rounded = model.forward(&all, &options(true)).unwrap();
    let diff = max_diff(&plain.logits.data, &rounded.logits.data);
    assert!((1e-3..5.0).contains(&diff), "{diff}");
}

#[test]
fn rows_of_logits_are_chosen() {
    let model = small();
    let all = tokens(9);
    let full = model.forward(&all, &options(false)).unwrap();
    let run = |logits| {
        model.forward(
            &all,
            &RunOptions {
                kv_sim: false,
                logits,
            },
        )
    };
    let some = run(Rows::List(vec![7, 2])).unwrap();
    assert_eq!(
        (some.logits.row(0), some.logits.row(1)),
        (full.logits.row(7), full.logits.row(2))
    );
    assert_eq!(run(Rows::Last).unwrap().logits.data, full.logits.row(8));
    assert!(matches!(
        run(Rows::List(vec![9])),
        Err(Error::Row { row: 9, rows: 9 })
    ));
    assert_eq!(argmax(&[1.0, 4.0, 4.0]), Some(1));
    let none = model.forward(&[], &options(true)).unwrap();
    assert_eq!((none.logits.rows, none.layers.len()), (0, 6));
}

#[test]
fn features_are_stream_means() {
    let model = small();
    let dump = model.forward(&tokens(2), &options(false)).unwrap();
    let row = dump.layers[4].streams.row(1);
    let mean = |d: usize| (0..4).map(|k| row[k * 64 + d]).sum::<f64>() / 4.0;
    let want: Vec<f64> = (0..64).map(mean).collect();
    assert!(max_diff(&dump.layers[4].feature(1), &want) < 1e-12);
}

/// Trap 31.
#[test]
fn a_bad_token_is_an_error() {
    let got = small().forward(&[1, 300], &options(false));
    assert!(matches!(
        got,
        Err(Error::Token {
            pos: 1,
            token: 300,
            n_vocab: 300
        })
    ));
}

#[test]
fn a_model_is_exactly_its_tensors() {
    let model = small();
    let rebuilt = |edit: &dyn Fn(&mut OracleModel)| {
        let mut m = model.clone();
        edit(&mut m);
        OracleModel::new(m.config, m.tensors)
    };
    assert!(rebuilt(&|_| {}).is_ok());
    let missing = rebuilt(&|m| drop(m.tensors.remove("blk.3.exp_probs_b.bias")));
    assert!(
        matches!(missing, Err(Error::MissingTensor { name }) if name.ends_with("exp_probs_b.bias"))
    );
    let extra = rebuilt(&|m| {
        let t = m.tensors["output_norm.weight"].clone();
        m.tensors.insert("blk.0.exp_probs_b.bias".to_owned(), t);
    });
    assert!(matches!(extra, Err(Error::UnknownTensor { .. })));
    let shape = rebuilt(&|m| {
        let t = m.tensors.get_mut("blk.0.attn_kv.weight");
        t.unwrap().shape.reverse();
    });
    assert!(matches!(shape, Err(Error::Shape { expected, .. }) if expected == [128, 64]));
    let short = rebuilt(&|m| m.tensors.get_mut("output.weight").unwrap().data.truncate(5));
    assert!(matches!(short, Err(Error::Shape { .. })));
}

#[test]
fn shapes_that_cannot_be_rounded_are_refused() {
    let mut c = small().config;
    c.n_rot = 32;
    assert!(c.check(false).is_ok());
    assert!(matches!(
        c.check(true),
        Err(Error::Config {
            key: "attention.key_length",
            ..
        })
    ));
    let broken = |edit: &dyn Fn(&mut super::super::OracleConfig)| {
        let mut c = small().config;
        edit(&mut c);
        c.check(false).is_err()
    };
    assert!(broken(&|c| c.n_rot = 3));
    assert!(broken(&|c| c.o_groups = 3));
    assert!(broken(&|c| c.n_expert_used = 9));
    assert!(broken(&|c| c.clamp_exp.truncate(1)));
    assert!(broken(&|c| c.clamp_shexp[5] = f32::NAN));
    assert!(broken(&|c| c.ratios.clear()));
    assert!(broken(&|c| c.n_swa = 0));
}

#[test]
fn original_names_become_canonical() {
    let plain = |s: &str| Some((s.to_owned(), None));
    assert_eq!(canonical_name("head.weight"), plain("output.weight"));
    assert_eq!(
        canonical_name("layers.12.ffn.gate.bias"),
        plain("blk.12.exp_probs_b.bias")
    );
    assert_eq!(
        canonical_name("layers.3.ffn.experts.17.w3.weight"),
        Some(("blk.3.ffn_up_exps.weight".to_owned(), Some(17)))
    );
    for bad in [
        "mtp.0.norm.weight",
        "layers.x.attn_norm.weight",
        "layers.1.attn.wq_a.scale",
    ] {
        assert_eq!(canonical_name(bad), None);
    }
}
