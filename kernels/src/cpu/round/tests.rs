use super::*;

/// e4m3fn rounding by search over all codes: the definition, slowly.
fn e4m3_by_search(x: f32) -> f32 {
    let mut best = (f32::INFINITY, 0u8);
    for code in (0..=0x7eu8).chain(0x80..=0xfe) {
        let error = (e4m3_decode(code) - x).abs();
        if error < best.0 || (error == best.0 && code & 1 == 0 && best.1 & 1 == 1) {
            best = (error, code);
        }
    }
    e4m3_decode(best.1)
}

#[test]
fn e4m3_rounds_to_nearest_even_everywhere() {
    for i in 0..200_000u32 {
        let x = f32::from_bits(0x3a00_0000 + i * 511) * if i % 2 == 0 { 1.0 } else { -1.0 };
        let clamped = x.clamp(-448.0, 448.0);
        assert_eq!(
            e4m3_decode(e4m3_encode(x)),
            e4m3_by_search(clamped),
            "x = {x:e}"
        );
    }
    for code in 0..=255u8 {
        if code & 0x7f != 0x7f {
            assert_eq!(e4m3_encode(e4m3_decode(code)), code, "code {code:#x}");
        }
    }
    assert_eq!(e4m3_encode(1e9), 0x7e);
    assert_eq!(e4m3_encode(f32::NAN), 0x7f);
}

#[test]
fn fp8_scale_is_exact_at_powers_of_two_and_their_neighbours() {
    for k in -12..20 {
        let edge = 448.0 * 2f32.powi(k);
        assert_eq!(fp8_scale_exponent(&[edge]), k, "448 * 2^{k}");
        assert_eq!(
            fp8_scale_exponent(&[f32::from_bits(edge.to_bits() + 1)]),
            k + 1
        );
        assert_eq!(
            fp8_scale_exponent(&[-f32::from_bits(edge.to_bits() - 1)]),
            k
        );
    }
    assert_eq!(fp8_scale_exponent(&[0.0]), ceil_log2(1e-4 / 448.0));
}

#[test]
fn fp8_blocks_start_at_channel_zero_and_are_64_wide() {
    let mut row = vec![1.0f32; 128];
    row[64] = 448.0 * 1024.0; // coarse scale in the second block only
    row[63] = 0.3;
    fp8_sim(&mut row);
    assert_eq!(row[0], 1.0);
    assert_eq!(row[63], e4m3_by_search(0.3 * 256.0) / 256.0);
    assert_eq!(row[65], 0.0, "1.0 is below half a step of the coarse block");
}

#[test]
fn e2m1_ties_go_to_the_even_code() {
    let ties = [
        (0.25, 0.0),
        (0.75, 1.0),
        (1.25, 1.0),
        (1.75, 2.0),
        (2.5, 2.0),
        (3.5, 4.0),
        (5.0, 4.0),
    ];
    for (x, want) in ties {
        let mut row = [0f32; 32];
        row[0] = 6.0; // scale 1
        row[1] = x;
        row[2] = -x;
        fp4_sim(&mut row);
        assert_eq!(row[1], want, "{x}");
        assert_eq!(row[2], -want, "-{x}");
    }
}

#[test]
fn hadamard_is_its_own_inverse() {
    let x: Vec<f32> = (0..128)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 7.0)
        .collect();
    let mut y = x.clone();
    hadamard(&mut y);
    let norm = |v: &[f32]| v.iter().map(|a| f64::from(*a) * f64::from(*a)).sum::<f64>();
    assert!((norm(&x) - norm(&y)).abs() < 1e-3);
    assert!((y[0] - x.iter().sum::<f32>() / 128f32.sqrt()).abs() < 1e-4);
    hadamard(&mut y);
    for (a, b) in x.iter().zip(&y) {
        assert!((a - b).abs() < 1e-5);
    }
}

#[test]
fn packed_rows_are_lossless() {
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    assert_eq!(kv_row_bytes(512, 64), 584);
    assert_eq!(index_row_bytes(128), 68);
    for round in 0..200 {
        let magnitude = 2f32.powi(round % 30 - 15);
        let mut row: Vec<f32> = (0..192).map(|_| next() * magnitude).collect();
        if round % 7 == 0 {
            row[..64].fill(0.0);
        }
        fp8_sim(&mut row[..128]);
        for v in &mut row[128..] {
            *v = round_bf16(*v);
        }
        let mut packed = vec![0xaa; kv_row_bytes(192, 64)];
        pack_kv_row(&row, 64, &mut packed);
        let mut back = vec![f32::NAN; 192];
        unpack_kv_row(&packed, 64, &mut back);
        let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&row), bits(&back), "round {round}");

        let mut index: Vec<f32> = (0..128).map(|_| next() * magnitude).collect();
        // As in a tile: bytes 3 apart, neighbours untouched.
        let mut packed = vec![0xaa; 3 * index_row_bytes(128)];
        pack_index_row(&index, 3, &mut packed[1..]);
        assert!(packed.chunks(3).all(|b| b[0] == 0xaa && b[2] == 0xaa));
        fp4_sim(&mut index);
        let mut back = vec![f32::NAN; 128];
        unpack_index_row(&packed[1..], 3, &mut back);
        assert_eq!(index, back);
    }
}

#[test]
fn codes_by_arithmetic_are_the_codes_of_the_tables() {
    for code in 0..=255u8 {
        let (want, got) = (e4m3_decode(code), e4m3_value(code));
        assert_eq!(want.to_bits(), got.to_bits(), "e4m3 {code:#x}");
    }
    let twice = [0, 1, 2, 3, 4, 6, 8, 12];
    for code in 0..8u8 {
        assert_eq!(e2m1_twice(code), twice[code as usize], "e2m1 {code}");
        assert_eq!(e2m1_twice(code | 8), -twice[code as usize], "e2m1 -{code}");
    }
    assert_eq!(
        e2m1_encode(f32::NAN) & 7,
        7,
        "NaN is not hidden as a small value"
    );
    assert_eq!(e2m1_encode(-f32::INFINITY), 15);
    assert_eq!(e2m1_encode(-0.0), 8);
}
