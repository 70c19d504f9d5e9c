//! A drafter that copies from the text itself.
