//! The tables against the spec's.

use std::collections::HashSet;

use crate::helpers::{HELPERS, KFUNCS, UNAVAILABLE};

/// Run by the engines themselves.
const ENGINE: [&str; 1] = ["tail_call"];

#[test]
fn every_helper_has_one_place() {
    let mut rows = HashSet::new();
    let there = HELPERS.iter().flat_map(|f| f.iter().map(|r| r.0));
    for name in there.chain(UNAVAILABLE.iter().map(|r| r.0)) {
        assert!(
            bpfkit_spec::helper::by_name(name).is_some(),
            "{name} is no helper"
        );
        assert!(rows.insert(name), "{name} twice");
    }
    let missing: Vec<_> = bpfkit_spec::helper::HELPERS
        .iter()
        .map(|helper| helper.name)
        .filter(|name| !rows.contains(name) && !ENGINE.contains(name))
        .collect();
    assert!(
        missing.is_empty(),
        "neither there nor listed with a reason: {missing:?}"
    );
}

#[test]
fn kfuncs_are_named_once() {
    let mut rows = HashSet::new();
    for name in KFUNCS.iter().flat_map(|f| f.iter().map(|r| r.0)) {
        assert!(rows.insert(name), "{name} twice");
    }
}
