//! Basic behaviour of the interpreter.

use std::sync::Arc;

use bpfkit_isa::{Insn, code};
use bpfkit_runtime::*;

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> Insn {
    Insn { code, dst, src, off, imm }
}

/// 10⁸ instructions of a loop, on a thread whose stack could hold a few hundred frames only:
/// handlers that call instead of jumping would overflow it.
#[test]
fn small_stack() {
    let program = vec![
        insn(code::ALU64 | code::MOV | code::K, 0, 0, 0, 0),
        insn(code::ALU64 | code::MOV | code::K, 1, 0, 0, 20_000_000),
        insn(code::STX | code::MEM | code::DW, 10, 1, -8, 0),
        insn(code::ALU64 | code::ADD | code::K, 0, 0, 0, 3),
        insn(code::LDX | code::MEM | code::DW, 2, 10, -8, 0),
        insn(code::ALU64 | code::SUB | code::K, 1, 0, 0, 1),
        insn(code::JMP | code::JNE | code::K, 1, 0, -5, 0),
        insn(code::JMP | code::EXIT, 0, 0, 0, 0),
    ];
    let thread = std::thread::Builder::new().stack_size(64 << 10);
    let run = move || {
        let program = Arc::new(raw_program("loop", program));
        let maps = MapSet::empty();
        for trusted in [false, true] {
            // SAFETY: the loop touches its stack frame only and ends.
            let code = match trusted {
                true => Code::Trusted(unsafe { Trusted::assume(Arc::clone(&program)) }),
                false => Code::Unverified(Arc::clone(&program)),
            };
            let exec = Interpreter::default().load(code, &maps, &LoadOptions::default()).unwrap();
            let outcome = exec.run(&mut Vm::default(), &mut RawMemory::default());
            assert_eq!(outcome.fault, None);
            assert_eq!(outcome.ret, 60_000_000);
            assert_eq!(outcome.steps, 100_000_003);
        }
    };
    thread.spawn(run).unwrap().join().unwrap();
}
