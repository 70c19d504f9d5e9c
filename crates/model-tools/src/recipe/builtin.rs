//! Named recipes.

use super::Recipe;
use crate::error::ToolError;

/// Names and texts. Bits a weight of the routed experts, which are most of a large model, decide a
/// recipe's size; the rest is kept finer because every token reads it.
pub const BUILTIN: &[(&str, &str)] = &[
    ("f32", "*=F32"),
    ("f16", "*=F16"),
    ("bf16", "*=BF16"),
    ("q8", "*=Q8_0|F16,router=F32"),
    ("fp8", "*=ROCMFP8|F16"),
    ("fp6", "*=ROCMFP6|F16,embed=ROCMFP8|F16,head=ROCMFP8|F16"),
    (
        "fp4",
        "*=ROCMFP6|F16,experts=ROCMFP4|F16,embed=ROCMFP8|F16,head=ROCMFP8|F16,indexer=ROCMFP8|F16",
    ),
    (
        "fp4-fast",
        "*=ROCMFP4_FAST|F16,embed=ROCMFP6|F16,indexer=ROCMFP6|F16,compressor=ROCMFP6|F16",
    ),
    (
        "fp2",
        "*=ROCMFP4_FAST|F16,experts=ROCMFP2|F16,experts.down=ROCMFP3|F16,embed=ROCMFP6|F16,\
         indexer=ROCMFP6|F16,compressor=ROCMFP6|F16",
    ),
    // The shipped small model and its drafter: measured in models/README.md.
    (
        "tiny",
        "*=ROCMFP6,attn.kv=ROCMFP8,attn.o_a=ROCMFP8,shared=ROCMFP8,head=ROCMFP8,indexer=ROCMFP4,\
         indexer.proj=F16,router=F16,hc=F16",
    ),
    ("tiny-draft", "*=ROCMFP6,experts=ROCMFP4,router=F16,hc=F16"),
];

/// A built-in recipe, or the recipe `text` spells.
///
/// # Errors
/// As [`Recipe::parse`].
pub fn builtin(text: &str) -> Result<Recipe, ToolError> {
    let text = text.trim();
    let found = BUILTIN.iter().find(|(name, _)| *name == text);
    Recipe::parse(found.map_or(text, |(_, recipe)| recipe))
}
