//! The Markov chain and the confidences, beside the target.
