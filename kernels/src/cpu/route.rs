//! Routing: which experts a token visits, and with what weight (ADR 0001 rule 11,
//! spec/ds4-architecture.md 2.10).

use engine_core::math::sqrt_softplus;
use engine_core::mutant::mutant;

use super::select::before;

/// One route: an expert and its weight. Slot order is the order of the routed sum.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Route {
    /// The expert.
    pub expert: u32,
    /// Applied to the hidden activation, before the down projection.
    pub weight: f32,
}

#[inline(always)]
fn score(logit: f32) -> f32 {
    if mutant(34) {
        engine_core::math::log1p(engine_core::math::exp(logit)).sqrt()
    } else {
        sqrt_softplus(logit)
    }
}

#[inline(always)]
fn route_top_k_impl(
    logits: &[f32],
    bias: &[f32],
    scale: f32,
    scores: &mut [f32],
    routes: &mut [Route],
) {
    for (s, l) in scores.iter_mut().zip(logits) {
        *s = score(*l);
    }
    let mut filled = 0;
    for e in 0..scores.len() {
        let key = scores[e] + bias[e];
        // Insertion into the short sorted list of slots.
        let mut at = filled;
        while at > 0 {
            let other = routes[at - 1];
            if !before(key, e as u32, other.weight, other.expert) {
                break;
            }
            at -= 1;
        }
        if at < routes.len() {
            let end = filled.min(routes.len() - 1);
            routes.copy_within(at..end, at + 1);
            routes[at] = Route {
                expert: e as u32,
                weight: key,
            };
            filled = (filled + 1).min(routes.len());
        }
    }
    weigh(scores, scale, mutant(29).then_some(bias), routes);
}

dispatch! {
    /// Top-k routing: selection by score + bias, weights from the unbiased scores. `logits`, `bias`:
    /// `[n_expert]`; `routes`: `[n_used]`, filled in selection order. `scores`: scratch `[n_expert]`.
    pub fn route_top_k(
        logits: &[f32],
        bias: &[f32],
        scale: f32,
        scores: &mut [f32],
        routes: &mut [Route],
    ) = route_top_k_impl
}

#[inline(always)]
fn route_hash_impl(
    logits: &[f32],
    table: &[u32],
    scale: f32,
    scores: &mut [f32],
    routes: &mut [Route],
) {
    for (s, l) in scores.iter_mut().zip(logits) {
        *s = score(*l);
    }
    for (r, e) in routes.iter_mut().zip(table) {
        r.expert = *e;
    }
    weigh(scores, scale, None, routes);
}

dispatch! {
    /// Table routing: experts from the token's row of the hash table, weights from the learned gate.
    /// `table`: `[n_used]` experts, bounds checked at load; `logits`: `[n_expert]`.
    pub fn route_hash(
        logits: &[f32],
        table: &[u32],
        scale: f32,
        scores: &mut [f32],
        routes: &mut [Route],
    ) = route_hash_impl
}

/// w = (scale * p) / sum of p in slot order.
#[inline(always)]
fn weigh(scores: &[f32], scale: f32, bias: Option<&[f32]>, routes: &mut [Route]) {
    let p = |r: &Route| {
        let e = r.expert as usize;
        scores[e] + bias.map_or(0.0, |b| b[e])
    };
    let sum = routes.iter().fold(0.0f32, |sum, r| sum + p(r));
    for r in routes {
        r.weight = (scale * p(r)) / sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bias_selects_but_does_not_weigh() {
        let logits = [1.0, 2.0, 3.0, -50.0];
        let mut scores = [f32::NAN; 4];
        let mut routes = [Route::default(); 2];
        route_top_k(
            &logits,
            &[0.0, 0.0, 0.0, 100.0],
            1.5,
            &mut scores,
            &mut routes,
        );
        assert_eq!((routes[0].expert, routes[1].expert), (3, 2));
        let p = |x: f64| x.exp().ln_1p().sqrt();
        let sum = p(-50.0) + p(3.0);
        assert!((f64::from(routes[0].weight) - 1.5 * p(-50.0) / sum).abs() < 1e-12);
        assert!((f64::from(routes[1].weight) - 1.5 * p(3.0) / sum).abs() < 1e-6);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let mut scores = [f32::NAN; 2];
        let mut routes = [Route::default(); 2];
        route_top_k(&[100.0, -100.0], &[0.0; 2], 1.0, &mut scores, &mut routes);
        assert_eq!(scores[0], 10.0);
        assert!(scores[1] > 0.0 && routes.iter().all(|r| r.weight.is_finite()));
    }

    #[test]
    fn slots_are_in_selection_order_with_ties_to_the_lower_expert() {
        let logits = [0.5, 2.0, 0.5, 2.0, 7.0];
        let mut scores = [f32::NAN; 5];
        let mut routes = [Route::default(); 4];
        route_top_k(&logits, &[0.0; 5], 1.0, &mut scores, &mut routes);
        assert_eq!(routes.map(|r| r.expert), [4, 1, 3, 0]);
        route_hash(&logits, &[2, 0], 1.0, &mut scores, &mut routes[..2]);
        assert_eq!((routes[0].expert, routes[1].expert), (2, 0));
        assert_eq!((routes[0].weight, routes[1].weight), (0.5, 0.5));
    }
}
