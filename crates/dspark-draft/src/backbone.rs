//! Context rows of many sequences and the draft layers over them.
