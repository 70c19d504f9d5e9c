use fpx_quant::Fp6Endpoint;

use super::*;

fn place(name: &str) -> Place {
    Role::of(name).unwrap()
}

fn format_of(recipe: &Recipe, name: &str) -> Format {
    recipe.choose(place(name), name, 256).unwrap().format
}

#[test]
fn the_narrowest_rule_wins_in_any_order() {
    let a = "experts.down=ROCMFP8, *=ROCMFP4 # most\nexperts=ROCMFP6\nexperts.down@2-3=F16,experts@2=BF16";
    let mut items: Vec<&str> = a
        .split([',', '\n'])
        .map(|s| s.split('#').next().unwrap())
        .collect();
    items.reverse();
    for text in [a.to_owned(), items.join(",")] {
        let r = Recipe::parse(&text).unwrap();
        assert_eq!(format_of(&r, "output.weight"), Format::Fp4);
        let fp6 = Format::Fp6(Fp6Endpoint::Zero);
        assert_eq!(format_of(&r, "blk.0.ffn_up_exps.weight"), fp6);
        assert_eq!(format_of(&r, "blk.2.ffn_up_exps.weight"), Format::BF16);
        assert_eq!(format_of(&r, "blk.0.ffn_down_exps.weight"), Format::Fp8);
        assert_eq!(format_of(&r, "blk.3.ffn_down_exps.weight"), Format::F16);
        assert_eq!(format_of(&r, "blk.3.ffn_gate_inp.weight"), Format::F32);
        assert_eq!(format_of(&r, "blk.3.hc_ffn_fn.weight"), Format::F32);
        assert_eq!(format_of(&r, "blk.3.ffn_norm.weight"), Format::F32);
        assert_eq!(format_of(&r, "blk.0.ffn_gate_tid2eid.weight"), Format::I32);
    }
}

#[test]
fn rows_that_do_not_fit_need_a_named_fallback() {
    let name = "dflash.dspark.markov.w1";
    let strict = Recipe::parse("*=ROCMFP4").unwrap();
    assert_eq!(
        strict.choose(place(name), name, 64).unwrap().instead_of,
        None
    );
    let error = strict.choose(place(name), name, 40).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, ToolError::NoFallback { .. }));
    assert!(
        text.contains(name) && text.contains("ROCMFP4") && text.contains("40"),
        "{text}"
    );
    let kind = Recipe::parse("*=ROCMFP4|F16").unwrap();
    let choice = kind.choose(place(name), name, 40).unwrap();
    assert_eq!(choice.format, Format::F16);
    assert_eq!(choice.instead_of, Some(Format::Fp4));
    let useless = Recipe::parse("*=ROCMFP4|Q8_0").unwrap();
    assert!(useless.choose(place(name), name, 40).is_err());
}

#[test]
fn errors_name_role_and_format() {
    for (text, parts) in [
        ("", &["ROLE=FORMAT"][..]),
        ("# nothing", &["ROLE=FORMAT"]),
        ("experts", &["experts", "no ="]),
        ("exprts=ROCMFP4", &["exprts", "experts.down"]),
        ("experts=ROCMFP5", &["experts=ROCMFP5", "ROCMFP6"]),
        ("experts=Q4_K", &["experts=Q4_K", "not written"]),
        ("*=ROCMFP2:neg", &["not written"]),
        ("norm=F16", &["norm", "always F32"]),
        ("table=F16", &["table", "always I32"]),
        ("attn=F16,attn=F32", &["attn=F32", "also attn=F16"]),
        ("attn@3-1=F16", &["FIRST-LAST"]),
        (
            "attn@0-3=F16,attn@2-5=F32",
            &["attn@2-5=F32", "attn@0-3=F16"],
        ),
        ("router=ROCMFP6", &["router", "ROCMFP6", "8 bits"]),
        ("router=F32|MXFP4", &["router", "MXFP4", "8 bits"]),
    ] {
        let error = Recipe::parse(text).unwrap_err().to_string();
        for part in parts {
            assert!(error.contains(part), "{text}: {error}");
        }
    }
    assert!(Recipe::parse("*=F16,router=ROCMFP8").is_ok());
    let partial = Recipe::parse("attn=F16").unwrap();
    let error = partial
        .choose(place("output.weight"), "output.weight", 256)
        .unwrap_err();
    assert!(error.to_string().contains("head"), "{error}");
}

#[test]
fn builtins_parse_and_their_text_parses_to_the_same() {
    for (name, _) in BUILTIN {
        let recipe = builtin(name).unwrap();
        assert_eq!(Recipe::parse(recipe.text()).unwrap(), recipe, "{name}");
    }
    assert_eq!(builtin("*=F16").unwrap(), builtin("f16").unwrap());
}
