//! How many candidates a step verifies (spec/dspark.md 8 and 14).
