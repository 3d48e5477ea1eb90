//! What map types may be used for.

use bpfkit_spec::helper::{ArgKind, HELPERS};
use bpfkit_spec::{MapType, ProgType, map_rules};

use crate::calls::{Call, Maps};
use crate::programs::{self, insn};
use crate::{kernel, report};

/// What the kernel says for a map that a helper does not take.
const REFUSED: [&str; 3] = [
    "cannot pass map_type",
    "cannot update sockmap in this context",
    "expected prog array map for tail call",
];

#[test]
fn maps_of_helpers() {
    let Some(mut kernel) = kernel() else { return };
    let maps = Maps::create(&mut kernel);
    let mut asked = 0;
    let mut differences = Vec::new();
    for program in programs::plain() {
        for helper in &HELPERS {
            let Some(proto) = helper.proto_for(&program.caller()) else {
                continue;
            };
            let takes_map = proto
                .args
                .iter()
                .any(|arg| arg.kind == ArgKind::ConstMapPtr);
            if !takes_map || proto.might_sleep && !program.sleepable {
                continue;
            }
            for (map_type, map) in maps.all() {
                if program.sleepable && map_rules::of(map_type).is_none_or(|map| !map.sleepable) {
                    continue;
                }
                let call = Call {
                    program: &program,
                    helper,
                    proto,
                    maps: &maps,
                    map: Some(map),
                    instead: None,
                };
                let Some(insns) = call.build() else { continue };
                let answer = kernel.load(&program.ending(&insns));
                let refused = REFUSED.iter().any(|text| answer.log.contains(text));
                if !refused && !answer.reached_end() {
                    // Refused for the key or value that this map type wants.
                    continue;
                }
                asked += 1;
                if map_rules::may_call(map_type, helper.id, &program.caller()) == refused {
                    differences.push(format!(
                        "{program}: {} on {map_type}: {}",
                        helper.name,
                        answer.message()
                    ));
                }
            }
        }
    }
    report("maps of helpers", asked, &differences);
}

#[test]
fn maps_of_sleepable_programs() {
    let Some(mut kernel) = kernel() else { return };
    let maps = Maps::create(&mut kernel);
    let syscall = programs::plain()
        .into_iter()
        .find(|program| program.prog_type == ProgType::Syscall)
        .expect("listed");
    let mut asked = 0;
    let mut differences = Vec::new();
    for (map_type, map) in maps.all() {
        let load = |source| [insn(0x18, 1, source, 0, map), [0; 8]];
        let rules = map_rules::of(map_type).expect("created");
        let answer = kernel.load(&syscall.ending(&load(1)));
        asked += 2;
        if answer.reached_end() != rules.sleepable {
            differences.push(format!("{map_type}: sleepable {}", answer.message()));
        }
        let direct = kernel.load(&programs::plain()[0].ending(&load(2)));
        let refused = direct.log.contains("no direct value access support");
        if refused == rules.direct_value {
            differences.push(format!("{map_type}: direct value {}", direct.message()));
        }
    }
    report(
        "maps of sleepable programs, direct values",
        asked,
        &differences,
    );
}

#[test]
fn maps_that_programs_do_not_write() {
    let Some(mut kernel) = kernel() else { return };
    let maps = Maps::create(&mut kernel);
    let program = &programs::plain()[0];
    let update = bpfkit_spec::helper::by_name("map_update_elem").expect("is a helper");
    let proto = update.proto_for(&program.caller()).expect("is for all");
    for (map_type, map) in maps.all() {
        let call = Call {
            program,
            helper: update,
            proto,
            maps: &maps,
            map: Some(map),
            instead: None,
        };
        let insns = call.build().expect("all arguments can be made");
        let answer = kernel.load(&program.ending(&insns));
        let refused = answer.log.contains("write into map forbidden");
        let rules = map_rules::of(map_type).expect("created");
        let implied = rules.implied & map_rules::flags::RDONLY_PROG != 0;
        assert_eq!(refused, implied, "{map_type}: {}", answer.message());
    }
}

#[test]
fn flags_of_maps() {
    let Some(mut kernel) = kernel() else { return };
    // Flags that ask for something beside themselves cannot be tried alone.
    let alone = !(map_rules::flags::STACK_BUILD_ID | map_rules::flags::TOKEN_FD);
    let mut asked = 0;
    let mut differences = Vec::new();
    for &map_type in MapType::ALL {
        let Some(attributes) = Maps::attributes(map_type) else {
            continue;
        };
        if kernel.create_map(attributes).is_err() {
            continue;
        }
        let rules = map_rules::of(map_type).expect("created");
        for flag in (0..20).map(|bit| 1u32 << bit) {
            let [of, key, value, entries, flags] = attributes;
            if flag & alone == 0 || flags & flag != 0 {
                continue;
            }
            asked += 1;
            let taken = kernel
                .create_map([of, key, value, entries, flags | flag])
                .is_ok();
            if taken != (rules.flags & flag != 0) {
                differences.push(format!("{map_type}: flag {flag:#x} taken: {taken}"));
            }
        }
    }
    report("flags of maps", asked, &differences);
}
