use bpfkit_isa::asm::assemble;

use super::super::PacketProgram;

fn check(text: &str) -> Result<(), String> {
    let insns = assemble(text)
        .unwrap_or_else(|e| panic!("{e}: {text}"))
        .insns;
    match PacketProgram::new(insns) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn accepted(text: &str) {
    assert_eq!(check(text), Ok(()), "{text}");
}

fn refused(text: &str, why: &str) {
    let result = check(text);
    assert!(
        matches!(&result, Err(e) if e.contains(why)),
        "{result:?}: {text}"
    );
}

const OUTSIDE: &str = "a load from outside";

#[test]
fn loads_at_constants_need_the_length_compared() {
    accepted("if r2 < 14 goto +2\nr0 = *(u16 *)(r1 + 12)\nexit\nr0 = 0\nexit");
    accepted("if r2 >= 14 goto +2\nr0 = 0\nexit\nr0 = *(u16 *)(r1 + 12)\nexit");
    accepted("if r2 > 13 goto +2\nr0 = 0\nexit\nr0 = *(u16 *)(r1 + 12)\nexit");
    refused(
        "if r2 > 12 goto +2\nr0 = 0\nexit\nr0 = *(u16 *)(r1 + 12)\nexit",
        OUTSIDE,
    );
    refused(
        "if r2 < 13 goto +2\nr0 = *(u16 *)(r1 + 12)\nexit\nr0 = 0\nexit",
        OUTSIDE,
    );
    refused(
        "if w2 < 14 goto +2\nr0 = *(u16 *)(r1 + 12)\nexit\nr0 = 0\nexit",
        OUTSIDE,
    );
    refused("r0 = *(u8 *)(r1 + 0)\nexit", OUTSIDE);
    refused(
        "if r2 < 14 goto +2\nr0 = *(u16 *)(r1 - 1)\nexit\nr0 = 0\nexit",
        OUTSIDE,
    );
    // One of two ways to the load has compared nothing.
    refused(
        "if r3 == 0 goto +1\nif r2 < 14 goto +2\nr0 = *(u16 *)(r1 + 12)\nexit\nr0 = 0\nexit",
        OUTSIDE,
    );
    let far = "r5 = r1\nr5 += 40000\nr0 = *(u8 *)(r5 + 0)\nexit";
    refused(far, OUTSIDE);
    accepted(&format!("if r2 >= 40001 goto +2\nr0 = 0\nexit\n{far}"));
    refused(
        &format!("if r2 >= 40000 goto +2\nr0 = 0\nexit\n{far}"),
        OUTSIDE,
    );
}

#[test]
fn loads_at_variables_need_their_end_compared() {
    let load = |end: &str, back: i32| {
        format!("w5 = w3\nr5 += 6\n{end}\nr5 += r1\nr0 = *(u16 *)(r5 {back:+})\nexit\nr0 = 0\nexit")
    };
    accepted(&load("if r5 > r2 goto +3", -2));
    accepted(&load("if r5 > r2 goto +3", -6));
    refused(&load("if r5 > r2 goto +3", -1), OUTSIDE);
    refused(&load("if r5 > r2 goto +3", -7), OUTSIDE);
    refused(&load("if r5 < r2 goto +3", -2), OUTSIDE);
    refused(&load("if w5 > w2 goto +3", -2), OUTSIDE);
    // The packet is at least as long as a number that is not above its length.
    accepted("w5 = w3\nr5 += 6\nif r5 > r2 goto +2\nr0 = *(u16 *)(r1 + 4)\nexit\nr0 = 0\nexit");
    refused(
        "w5 = w3\nr5 += 6\nif r5 > r2 goto +2\nr0 = *(u16 *)(r1 + 5)\nexit\nr0 = 0\nexit",
        OUTSIDE,
    );
    // What wraps around at 64 bits says nothing.
    refused(
        "r5 = r3\nr5 += 6\nif r5 > r2 goto +3\nr5 += r1\nr0 = *(u16 *)(r5 - 2)\nexit\nr0 = 0\nexit",
        OUTSIDE,
    );
    // Changed after it was compared.
    refused(&load("if r5 > r2 goto +4\nr5 += 1", -2), OUTSIDE);
}

#[test]
fn the_stack_and_the_ancillary_words_are_small() {
    accepted("*(u32 *)(r10 - 64) = r3\nr0 = *(u32 *)(r10 - 64)\nexit");
    refused("*(u32 *)(r10 - 68) = r3\nr0 = 0\nexit", "a store outside");
    refused("*(u32 *)(r10 - 3) = r3\nr0 = 0\nexit", "a store outside");
    refused("*(u32 *)(r1 + 0) = r3\nr0 = 0\nexit", "a store outside");
    refused("*(u32 *)(r4 + 0) = r3\nr0 = 0\nexit", "a store outside");
    refused("r0 = *(u32 *)(r10 + 0)\nexit", OUTSIDE);
    accepted("r0 = *(u32 *)(r4 + 60)\nexit");
    refused("r0 = *(u32 *)(r4 + 61)\nexit", OUTSIDE);
    refused("r0 = *(u32 *)(r4 - 1)\nexit", OUTSIDE);
    refused("r4 += 1\nr0 = *(u32 *)(r4 + 60)\nexit", OUTSIDE);
    refused("r10 += 8\nr0 = 0\nexit", "R10 is changed");
}

#[test]
fn only_what_filters_need() {
    refused("call 7\nexit", "an instruction that no filter needs");
    refused(
        "r0 = *(u8 *)skb[0]\nexit",
        "an instruction that no filter needs",
    );
    refused(
        "lock *(u32 *)(r10 - 4) += r3\nr0 = 0\nexit",
        "an instruction that no filter needs",
    );
    refused("r0 = 0", "does not end");
    refused("goto +1\nexit", "a way out");
    refused("if r2 == 3 goto -2\nexit", "a conditional jump back");
}

#[test]
fn loops_are_counted() {
    let rounds =
        |start: &str, body: &str, count: &str| format!("{start}\n{body}\n{count}\nr0 = 0\nexit");
    let count = "if r9 == 0 goto +2\nr9 -= 1\ngoto -4";
    accepted(&rounds("r9 = r2", "r0 += 1", count));
    refused(
        &rounds("r9 = r3", "r0 += 1", count),
        "the counter of jumps back is changed",
    );
    refused(
        &rounds("r8 = r2", "r0 += 1", count),
        "not counted from the packet's length",
    );
    refused(
        &rounds("r9 = r2", "r9 = r2", count),
        "the counter of jumps back is changed",
    );
    refused(
        &rounds("r9 = r2", "r9 += 1", count),
        "the counter of jumps back is changed",
    );
    refused(&rounds("r9 = r2", "r0 += 1", "goto -2"), "not counted");
    refused(
        &rounds("r9 = r2", "r0 += 1", "if r9 == 0 goto +2\nr9 -= 2\ngoto -4"),
        "not counted",
    );
    refused(
        &rounds("r9 = r2", "goto +1", "if r9 == 0 goto +2\nr9 -= 1\ngoto -4"),
        "a jump past the count",
    );
    refused(
        &rounds("r9 = r2", "r0 += 1", "if r9 == 0 goto +2\nr9 -= 1\ngoto -1"),
        "a jump past the count",
    );
    // What a round takes for granted, the next one has to find again.
    let body = "r8 = r1\nif r2 < 4 goto +6\nr0 = *(u8 *)(r8 + 3)";
    let count = "r8 += 1\nif r9 == 0 goto +3\nr9 -= 1\ngoto -5";
    refused(&format!("r9 = r2\n{body}\n{count}\nr0 = 0\nexit"), "");
}
