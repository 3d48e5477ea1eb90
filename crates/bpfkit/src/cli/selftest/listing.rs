//! Rewritten programs as the selftests list them: `3: r0 = &(void __percpu *)(r0)`.

use std::fmt::Write as _;

use bpfkit_isa::{Insn, Syntax, disasm};

/// A line an instruction: its slot, and its text in the kernel's syntax without the opcode;
/// of calls the name alone.
pub fn listing(insns: &[Insn]) -> String {
    let mut text = String::new();
    let mut at = 0;
    while let Some(insn) = insns.get(at) {
        let line = disasm::line(insns, at, Syntax::Kernel, &disasm::NoSymbols).to_string();
        let bare = line
            .split_once(") ")
            .map_or(line.as_str(), |(_, bare)| bare);
        let shown = match bare.starts_with("call ") {
            true => bare.split('#').next().unwrap_or(bare),
            false => bare,
        };
        let _ = writeln!(text, "{at}: {shown}");
        at += 1 + usize::from(insn.is_ld_imm64());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::listing;
    use bpfkit_isa::asm;

    #[test]
    fn opcodes_and_numbers_of_calls_are_left_out() {
        // The number of a helper is an address by then, so that the kernel shows no name.
        let text = "r1 = 5 ll\ncall 8\nexit";
        let insns = asm::assemble(text).expect("it assembles").insns;
        assert_eq!(listing(&insns), "0: r1 = 0x5\n2: call unknown\n3: exit\n");
    }
}
