//! Programs made up at random, for tests of every crate.

use bpfkit_isa::{Insn, code};

/// Where choices come from.
pub trait Choose {
    /// A number.
    fn next(&mut self) -> u64;

    /// One below `n`.
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// One of a list.
    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }
}

/// Xorshift, so that every run makes the same programs.
pub struct Random(pub u64);

impl Random {
    /// Begins at a small number; those next to each other have nothing in common.
    pub fn of(seed: u64) -> Random {
        let mixed = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Random((mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93) | 1)
    }
}

impl Choose for Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Any eight bytes a slot.
pub fn noise(random: &mut impl Choose) -> Vec<Insn> {
    let len = 1 + random.below(40);
    (0..len)
        .map(|_| Insn::from_le_bytes(random.next().to_le_bytes()))
        .collect()
}

/// An immediate, often one where something changes.
pub fn constant(random: &mut impl Choose) -> i32 {
    match random.below(4) {
        0 => random.next() as i32,
        1 => random.of(&[0, 1, -1, i32::MIN, i32::MAX, 8, -8, 63, 64, 255]),
        _ => random.below(32) as i32 - 8,
    }
}

/// Instructions that are well formed, on registers that are mostly written before.
pub fn likely(random: &mut impl Choose) -> Vec<Insn> {
    let mut insns = vec![Insn {
        code: code::ALU64 | code::MOV | code::X,
        dst: 6,
        src: 1,
        ..Insn::default()
    }];
    for n in [0u8, 2, 3, 4, 5, 7, 8, 9] {
        let random_source = random.below(8) == 0;
        insns.push(Insn {
            code: code::ALU64 | code::MOV | if random_source { code::X } else { 0 },
            dst: n,
            src: if random_source { 10 } else { 0 },
            imm: if random_source { 0 } else { constant(random) },
            ..Insn::default()
        });
    }
    for slot in 1..=8 {
        insns.push(Insn {
            code: code::ST | code::MEM | code::DW,
            dst: 10,
            off: -8 * slot,
            imm: constant(random),
            ..Insn::default()
        });
    }
    let len = 2 + random.below(30);
    for _ in 0..len {
        let insn = one(random);
        let two = insn.is_ld_imm64();
        insns.push(insn);
        if two {
            insns.push(Insn::default());
        }
    }
    insns.push(Insn {
        code: code::ALU64 | code::MOV,
        ..Insn::default()
    });
    insns.push(Insn {
        code: code::JMP | code::EXIT,
        ..Insn::default()
    });
    insns
}

fn one(random: &mut impl Choose) -> Insn {
    const ALU: [u8; 14] = [
        code::ADD,
        code::SUB,
        code::MUL,
        code::DIV,
        code::OR,
        code::AND,
        code::LSH,
        code::RSH,
        code::NEG,
        code::MOD,
        code::XOR,
        code::MOV,
        code::ARSH,
        code::END,
    ];
    const JUMPS: [u8; 11] = [
        code::JEQ,
        code::JGT,
        code::JGE,
        code::JSET,
        code::JNE,
        code::JSGT,
        code::JSGE,
        code::JLT,
        code::JLE,
        code::JSLT,
        code::JSLE,
    ];
    const SIZES: [u8; 4] = [code::B, code::H, code::W, code::DW];
    let (dst, src) = (random.below(10) as u8, random.below(11) as u8);
    let stack = -(1 + random.below(8) as i16) * random.of(&[8, 8, 8, 8, 4, 1]);
    let from_reg = random.below(2) == 0;
    let (x, reg, imm) = if from_reg {
        (code::X, src, 0)
    } else {
        (0, 0, constant(random))
    };
    let insn = |code, dst, src, off, imm| Insn {
        code,
        dst,
        src,
        off,
        imm,
    };
    match random.below(14) {
        0..=4 => {
            let class = random.of(&[code::ALU, code::ALU64]);
            let op = random.of(&ALU);
            let (x, reg, imm) = match op {
                code::NEG => (0, 0, 0),
                code::END => (0, 0, random.of(&[16, 32, 64, 64, 8])),
                code::LSH | code::RSH | code::ARSH if !from_reg => (0, 0, imm & 31),
                code::DIV | code::MOD if !from_reg => (0, 0, imm | 1),
                _ => (x, reg, imm),
            };
            insn(class | op | x, dst, reg, 0, imm)
        }
        5..=7 => {
            let class = random.of(&[code::JMP, code::JMP, code::JMP32]);
            let off = random.below(12) as i16 - random.of(&[0, 0, 8]);
            insn(class | random.of(&JUMPS) | x, dst, reg, off, imm)
        }
        8 => insn(code::LDX | code::MEM | random.of(&SIZES), dst, 10, stack, 0),
        9 => insn(code::STX | code::MEM | random.of(&SIZES), 10, src, stack, 0),
        10 => {
            let src = random.of(&[6, 6, 6, src]);
            let off = random.of(&[0, 4, 16, 76, 80]);
            let mode = random.of(&[code::MEM, code::MEM, code::MEMSX]);
            insn(code::LDX | mode | random.of(&SIZES), dst, src, off, 0)
        }
        11 => {
            let op = random.of(&[0, 1, 0x40, 0x41, 0x51, 0xa0, 0xe1, 0xf1, 0x100, 0x110]);
            let size = random.of(&[code::W, code::DW]);
            insn(code::STX | code::ATOMIC | size, 10, src, stack, op)
        }
        12 => {
            let any = 1 + random.below(212) as i32;
            let id = random.of(&[7, 5, 8, any]);
            let pseudo = random.of(&[0, 0, 0, code::PSEUDO_CALL]);
            let imm = if pseudo == 0 { id } else { constant(random) };
            insn(code::JMP | code::CALL, 0, pseudo, 0, imm)
        }
        _ => insn(
            code::LD | code::IMM | code::DW,
            dst,
            random.of(&[0, code::PSEUDO_MAP_IDX, code::PSEUDO_FUNC]),
            0,
            random.below(3) as i32,
        ),
    }
}
