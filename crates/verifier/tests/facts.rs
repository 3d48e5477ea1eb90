//! What is said of instructions of small programs.

use bpfkit_object::Subprogram;
use bpfkit_spec::{MapType, ProgType};
use bpfkit_verifier::{Base, Branch, Environment, Facts, Home, Value, verify};

mod common;

fn facts(text: &str, subprograms: &[u32]) -> Facts {
    let mut program = common::program(ProgType::SchedCls, common::assemble(text));
    program
        .subprograms
        .extend(subprograms.iter().map(|&start| Subprogram {
            name: format!("sub{start}"),
            start,
            type_id: 0,
            global: false,
        }));
    let mut maps = common::maps();
    maps.push(maps[0].clone());
    maps[2].map_type = MapType::Array;
    let environment = Environment {
        facts: true,
        ..Environment::new(None)
    };
    let verdict = verify(&program, &maps, &environment);
    match verdict.result {
        Ok(verified) => verified.into_parts().1,
        Err(rejection) => panic!("{rejection}\n{text}\n{}", verdict.log),
    }
}

fn range(facts: &Facts, insn: u32, reg: u8) -> (u64, u64) {
    match facts.value(insn, reg) {
        Value::Number(range) => (range.umin, range.umax),
        other => panic!("insn {insn} R{reg}: {other:?}"),
    }
}

#[test]
fn nothing_is_gathered_unless_asked_for() {
    let program = common::program(ProgType::SchedCls, common::assemble("r0 = 0; exit"));
    let verdict = verify(&program, &[], &Environment::new(None));
    let facts = verdict.result.unwrap().into_parts().1;
    assert!(!facts.has_values());
    assert_eq!(facts.value(1, 0), Value::Unknown);
    assert!(facts.reachable(1) && !facts.reachable(2));
    assert_eq!(facts.live_registers(1), 1);
}

#[test]
fn numbers_are_joined_over_ways_and_narrowed_by_comparisons() {
    let facts = facts(
        "r2 = *(u32 *)(r1 + 0)
         if r2 > 100 goto +2
         r2 += 1
         goto +1
         r2 = 7
         r0 = r2
         exit",
        &[],
    );
    assert_eq!(range(&facts, 1, 2), (0, u32::MAX.into()));
    assert_eq!(range(&facts, 2, 2), (0, 100));
    assert_eq!(range(&facts, 5, 2), (1, 101));
    assert!(facts.upper_half_zero(5, 2));
    assert_eq!(facts.branch(1), Branch::Unknown);
}

#[test]
fn a_number_that_did_not_matter_is_not_taken_from_a_pruned_path() {
    // Both ways to insn 5 are one state for the verifier, which walks on with one of them.
    let facts = facts(
        "r6 = *(u32 *)(r1 + 0)
         r7 = 1
         if r6 == 0 goto +1
         r7 = 2
         r0 = 0
         r8 = r7
         r0 = r8
         exit",
        &[],
    );
    assert_eq!(range(&facts, 5, 7), (1, 2));
    assert_eq!(range(&facts, 7, 0), (1, 2));
    assert_eq!(facts.constant(5, 7), None);
}

#[test]
fn loops_end_with_bounds() {
    let facts = facts(
        "r6 = 0
         r7 = *(u32 *)(r1 + 0)
         r6 += 1
         if r6 < 50 goto -2
         r0 = r6
         exit",
        &[],
    );
    let (min, max) = range(&facts, 3, 6);
    assert!(min <= 1 && (50..=0xff).contains(&max));
    assert_eq!(range(&facts, 4, 6).0, 50);
}

#[test]
fn pointers_carry_their_kind_and_offset() {
    let facts = facts(
        "r6 = r1
         r2 = *(u32 *)(r6 + 76)
         r3 = *(u32 *)(r6 + 80)
         r4 = r2
         r4 += 14
         if r4 > r3 goto +4
         r0 = *(u8 *)(r2 + 12)
         r4 += -2
         r0 = *(u8 *)(r4 + 0)
         *(u64 *)(r10 - 8) = r0
         r0 = 0
         exit",
        &[],
    );
    let pointer = |insn, reg| match facts.value(insn, reg) {
        Value::Pointer(pointer) => pointer,
        other => panic!("insn {insn} R{reg}: {other:?}"),
    };
    assert_eq!(pointer(1, 6).ty.base(), Base::Ctx);
    assert_eq!(pointer(6, 2).ty.base(), Base::Packet);
    assert_eq!(pointer(5, 3).ty.base(), Base::PacketEnd);
    assert_eq!(pointer(8, 4).offset(), Some((12, 12)));
    assert_eq!(pointer(9, 10).home(), Home::Own);
    assert_eq!(range(&facts, 9, 0), (0, 0xff));
}

#[test]
fn calls_tell_map_and_key() {
    let facts = facts(
        "*(u32 *)(r10 - 8) = 3
         r2 = r10
         r2 += -8
         r1 = map[idx:2] ll
         call bpf_map_lookup_elem
         r1 = 5
         *(u64 *)(r0 + 0) = r1
         r0 = 0
         exit",
        &[],
    );
    let call = facts.call(5).unwrap();
    assert_eq!(
        (call.map, call.key, call.exact_map),
        (Some(2), Some(3), true)
    );
    let Value::Pointer(value) = facts.value(7, 0) else {
        panic!("no pointer");
    };
    assert_eq!(value.map(), Some(2));
    assert!(!value.may_be_null());
    // Four bytes of the slot are read by the call only.
    assert_eq!(facts.live_slots(5) & 1, 1);
    assert_eq!(facts.live_slots(6) & 1, 0);
    assert_eq!(facts.constant(7, 1), Some(5));
}

#[test]
fn decided_branches_are_known() {
    let facts = facts(
        "r6 = 1
         if r6 != 0 goto +1
         r6 = 2
         if r6 == 2 goto +1
         r0 = 0
         r0 = r6
         exit",
        &[],
    );
    assert_eq!(facts.branch(1), Branch::Always);
    assert_eq!(facts.branch(3), Branch::Never);
    assert!(!facts.reachable(2));
    assert_eq!(facts.constant(6, 0), Some(1));
}

#[test]
fn spilled_numbers_come_back_unless_someone_may_have_written_there() {
    let facts = facts(
        "r6 = *(u16 *)(r1 + 0)
         *(u64 *)(r10 - 8) = r6
         r2 = *(u64 *)(r10 - 8)
         r0 = r2
         r1 = r10
         r1 += -8
         r2 = 8
         r3 = r10
         call bpf_get_current_comm
         r2 = *(u64 *)(r10 - 8)
         r0 = r2
         exit",
        &[],
    );
    assert_eq!(range(&facts, 3, 2), (0, 0xffff));
    assert_ne!(facts.value(10, 2), Value::Number(bounded(0xffff)));
    fn bounded(max: u64) -> bpfkit_verifier::Range {
        bpfkit_verifier::Range {
            umax: max,
            ..bpfkit_verifier::Range::UNKNOWN
        }
    }
    assert!(!facts.upper_half_zero(10, 2));
}

#[test]
fn functions_get_the_join_of_their_callers_arguments() {
    let facts = facts(
        "r1 = 3
         call add
         r6 = r0
         r1 = 4
         call add
         r0 += r6
         exit
         add:
         r0 = r1
         r0 += 10
         exit",
        &[7],
    );
    assert_eq!(range(&facts, 7, 1), (3, 4));
    let (min, max) = range(&facts, 5, 0);
    assert!(min <= 13 && (14..=0xff).contains(&max));
}

#[test]
fn registers_that_do_not_exist_are_refused_with_facts_too() {
    let insn = bpfkit_isa::Insn::from_le_bytes([0x0f, 0xc1, 0, 0, 0, 0, 0, 0]);
    let exit = bpfkit_isa::Insn::from_le_bytes([0x95, 0, 0, 0, 0, 0, 0, 0]);
    let program = common::program(ProgType::SchedCls, vec![insn, exit]);
    let environment = Environment {
        facts: true,
        ..Environment::new(None)
    };
    let verdict = verify(&program, &[], &environment);
    assert_eq!(verdict.result.unwrap_err().message, "R12 is invalid");
}

#[test]
fn a_decided_jump_to_the_next_instruction_goes_on() {
    let text = "r0 = 9; r5 = *(u32 *)(r1 + 0); if r5 == 1 goto out; r2 = 1; if r2 s> 0 goto +0
         r0 += r0; out: r3 = r0; exit";
    assert_eq!(range(&facts(text, &[]), 6, 0), (9, 18));
}
