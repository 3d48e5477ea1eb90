//! (empty)
#![forbid(unsafe_code)]
