//! Keys and tensor names of the two public forms of a draft file.
