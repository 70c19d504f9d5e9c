//! Index newtypes. Each counts one kind of thing, so that two kinds cannot be mixed by accident.

/// A token of the vocabulary.
pub type TokenId = u32;

/// An absolute position in a sequence, from 0. A `u32` covers the 2^20 positions of the model.
pub type Pos = u32;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The index as `usize`, for slices.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A live sequence of a target. Ids are reused after `close`; the [`Epoch`] tells uses apart.
    SeqId
);
id!(
    /// Counts the uses of a sequence slot and its truncations, so that a late answer is recognised.
    Epoch
);
id!(
    /// A layer of the target, from 0.
    LayerId
);
id!(
    /// A routed expert of one layer, from 0.
    ExpertId
);
