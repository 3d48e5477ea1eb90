//! Encoding. Every instruction is a word; distances of jumps are filled in at the end.

use super::regs::{Gpr, LINK, SP, T2, ZR};
use crate::lower::{Rule, Rules};

/// Condition codes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Cc {
    Eq = 0,
    Ne = 1,
    Hs = 2,
    Lo = 3,
    Mi = 4,
    Hi = 8,
    Ls = 9,
    Ge = 10,
    Lt = 11,
    Gt = 12,
    Le = 13,
}

impl Cc {
    pub(super) fn inverted(self) -> Cc {
        match self {
            Cc::Eq => Cc::Ne,
            Cc::Ne => Cc::Eq,
            Cc::Hs => Cc::Lo,
            Cc::Lo => Cc::Hs,
            Cc::Mi => unreachable!("only emitted as it is"),
            Cc::Hi => Cc::Ls,
            Cc::Ls => Cc::Hi,
            Cc::Ge => Cc::Lt,
            Cc::Lt => Cc::Ge,
            Cc::Gt => Cc::Le,
            Cc::Le => Cc::Gt,
        }
    }
}

/// What a conditional selection makes of its second register.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Pick {
    Same = 0x1a80_0000,
    Incremented = 0x1a80_0400,
    Inverted = 0x5a80_0000,
    Negated = 0x5a80_0400,
}

/// Two-source operations of one opcode family: register form, with their bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Alu {
    Add,
    Sub,
    Subs,
    And,
    Ands,
    Orr,
    Eor,
}

impl Alu {
    /// The shifted-register form.
    fn register(self) -> u32 {
        match self {
            Alu::Add => 0x0b00_0000,
            Alu::Sub => 0x4b00_0000,
            Alu::Subs => 0x6b00_0000,
            Alu::And => 0x0a00_0000,
            Alu::Ands => 0x6a00_0000,
            Alu::Orr => 0x2a00_0000,
            Alu::Eor => 0x4a00_0000,
        }
    }

    /// The form with a bit pattern as immediate, for the logical ones.
    fn pattern(self) -> Option<u32> {
        Some(match self {
            Alu::And => 0x1200_0000,
            Alu::Ands => 0x7200_0000,
            Alu::Orr => 0x3200_0000,
            Alu::Eor => 0x5200_0000,
            Alu::Add | Alu::Sub | Alu::Subs => return None,
        })
    }
}

/// Operations of two registers without a shift.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Two {
    Udiv = 2 << 10,
    Sdiv = 3 << 10,
    Lsl = 8 << 10,
    Lsr = 9 << 10,
    Asr = 10 << 10,
}

/// Atomic operations that return the old value (LSE, with acquire and release).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(super) enum Lse {
    Add = 0x0000,
    Clear = 0x1000,
    Xor = 0x2000,
    Set = 0x3000,
    Swap = 0x8000,
}

/// A place in the code. Numbers below the program's slots are those of instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Label(pub(super) u32);

const UNBOUND: u32 = u32::MAX;

/// Code under construction.
pub(super) struct Asm {
    words: Vec<u32>,
    /// Jumps: position and target.
    jumps: Vec<(u32, Label)>,
    labels: Vec<u32>,
    rules: Rules,
    /// Whether conditional jumps may not reach, so that they jump over ones that do.
    far: bool,
}

/// Finished code, and where its labels lie.
pub(super) struct Finished {
    pub(super) code: Vec<u8>,
    labels: Vec<u32>,
}

impl Finished {
    /// Offset of a label that was bound.
    pub(super) fn offset(&self, label: Label) -> Option<u32> {
        let at = *self.labels.get(label.0 as usize)?;
        (at != UNBOUND).then(|| at * 4)
    }
}

fn sf(wide: bool) -> u32 {
    u32::from(wide) << 31
}

fn rd(reg: Gpr) -> u32 {
    u32::from(reg.0)
}

fn rn(reg: Gpr) -> u32 {
    u32::from(reg.0) << 5
}

fn rm(reg: Gpr) -> u32 {
    u32::from(reg.0) << 16
}

/// N, immr and imms of a bit pattern: a run of ones, rotated, repeated in elements of a power
/// of two bits.
pub(super) fn pattern(value: u64, wide: bool) -> Option<u32> {
    let value = if wide {
        value
    } else {
        value << 32 | value & 0xffff_ffff
    };
    if value == 0 || value == u64::MAX {
        return None;
    }
    let size = [2_u32, 4, 8, 16, 32]
        .into_iter()
        .find(|&size| value.rotate_right(size) == value)
        .unwrap_or(64);
    let mask = u64::MAX >> (64 - size);
    let element = value & mask;
    let ones = element.count_ones();
    let run = u64::MAX >> (64 - ones);
    let rotated = |by: u32| (run >> by | if by == 0 { 0 } else { run << (size - by) }) & mask;
    let by = (0..size).find(|&by| rotated(by) == element)?;
    let n = u32::from(size == 64);
    let imms = (!(size * 2 - 1) & 0x3f | (ones - 1)) & 0x3f;
    Some(n << 22 | by << 16 | imms << 10)
}

impl Asm {
    pub(super) fn new(slots: usize, rules: Rules, far: bool) -> Self {
        Self {
            rules,
            far,
            words: Vec::with_capacity(slots * 2 + 64),
            jumps: Vec::with_capacity(slots / 4 + 8),
            labels: vec![UNBOUND; slots],
        }
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels.push(UNBOUND);
        Label(self.labels.len() as u32 - 1)
    }

    pub(super) fn bind(&mut self, label: Label) {
        self.labels[label.0 as usize] = self.words.len() as u32;
    }

    pub(super) fn word(&mut self, word: u32) {
        self.words.push(word);
    }

    fn jump(&mut self, word: u32, to: Label) {
        self.jumps.push((self.words.len() as u32, to));
        self.word(word);
    }

    pub(super) fn b(&mut self, to: Label) {
        self.jump(0x1400_0000, to);
    }

    pub(super) fn bl(&mut self, to: Label) {
        self.jump(0x9400_0000, to);
    }

    pub(super) fn is_far(&self) -> bool {
        self.far
    }

    pub(super) fn b_if(&mut self, cc: Cc, to: Label) {
        // Conditions come in pairs that differ in the lowest bit.
        self.conditional(0x5400_0000 | cc as u32, 1, to);
    }

    /// A conditional jump; `flip` is the bit that inverts it.
    fn conditional(&mut self, word: u32, flip: u32, to: Label) {
        if self.far {
            self.word(word ^ flip | 2 << 5);
            return self.b(to);
        }
        self.jump(word, to);
    }

    /// Jumps where the register is zero, or is not.
    pub(super) fn cb(&mut self, wide: bool, nonzero: bool, reg: Gpr, to: Label) {
        let word = sf(wide) | 0x3400_0000 | u32::from(nonzero) << 24 | rd(reg);
        self.conditional(word, 1 << 24, to);
    }

    /// Jumps where a bit of the register is set, or is not.
    pub(super) fn tb(&mut self, set: bool, reg: Gpr, bit: u32, to: Label) {
        let bit = bit >> 5 << 31 | (bit & 31) << 19;
        self.jump(0x3600_0000 | u32::from(set) << 24 | bit | rd(reg), to);
    }

    /// Fills the distances in. `None` where a conditional jump does not reach.
    pub(super) fn finish(mut self) -> Option<Finished> {
        for (at, to) in self.jumps {
            let target = self.labels[to.0 as usize];
            assert!(target != UNBOUND, "jump to a label that is not bound");
            let distance = target as i32 - at as i32;
            let word = &mut self.words[at as usize];
            // `b` and `bl` have 26 bits; behind a bit's number there are 14, behind a condition
            // or a register 19.
            let (bits, shift) = match *word >> 25 & 0x3f {
                0x0a | 0x0b => (26, 0),
                0x1b => (14, 5),
                _ => (19, 5),
            };
            if distance >= 1 << (bits - 1) || distance < -(1 << (bits - 1)) {
                return None;
            }
            *word |= (distance as u32 & ((1 << bits) - 1)) << shift;
        }
        let code = self.words.iter().flat_map(|w| w.to_le_bytes()).collect();
        Some(Finished {
            code,
            labels: self.labels,
        })
    }

    pub(super) fn alu(&mut self, op: Alu, wide: bool, d: Gpr, n: Gpr, m: Gpr) {
        self.word(sf(wide) | op.register() | rm(m) | rn(n) | rd(d));
    }

    /// Adds or subtracts 12 bits, shifted by 12 or not.
    fn imm12(&mut self, op: Alu, wide: bool, d: Gpr, n: Gpr, imm: u32) -> bool {
        let base = match op {
            Alu::Add => 0x1100_0000,
            Alu::Sub => 0x5100_0000,
            Alu::Subs => 0x7100_0000,
            _ => return false,
        };
        let field = match imm {
            0..0x1000 => imm << 10,
            _ if imm & 0xfff == 0 && imm < 1 << 24 => 1 << 22 | imm >> 12 << 10,
            _ => return false,
        };
        self.word(sf(wide) | base | field | rn(n) | rd(d));
        true
    }

    /// `d = n op imm`, by way of T2 where the immediate has no form of its own.
    pub(super) fn alu_imm(&mut self, op: Alu, wide: bool, d: Gpr, n: Gpr, imm: i32) {
        let value = if wide {
            i64::from(imm) as u64
        } else {
            u64::from(imm as u32)
        };
        if op == Alu::Subs && !self.rules.has(Rule::CompareImmediate) {
            // Falls through to the two instructions.
        } else if let Some(base) = op.pattern() {
            if let Some(pattern) = pattern(value, wide) {
                return self.word(sf(wide) | base | pattern | rn(n) | rd(d));
            }
        } else {
            let opposite = match op {
                Alu::Add => Some(Alu::Sub),
                Alu::Sub => Some(Alu::Add),
                // Comparing with a negative number is adding: `cmn`.
                _ => None,
            };
            if imm >= 0 && self.imm12(op, wide, d, n, imm as u32) {
                return;
            }
            if let Some(op) = opposite.filter(|_| imm < 0)
                && self.imm12(op, wide, d, n, imm.unsigned_abs())
            {
                return;
            }
            let small = (0..0x1000).contains(&imm.unsigned_abs());
            if op == Alu::Subs && imm < 0 && small {
                let field = imm.unsigned_abs() << 10;
                return self.word(sf(wide) | 0x3100_0000 | field | rn(n) | rd(d));
            }
        }
        self.mov_imm(T2, value);
        self.alu(op, wide, d, n, T2);
    }

    /// Adds to or subtracts from the stack pointer, or reads it.
    pub(super) fn sp(&mut self, op: Alu, d: Gpr, n: Gpr, bytes: u32) {
        let done = self.imm12(op, true, d, n, bytes);
        debug_assert!(done, "stack frames are small");
    }

    pub(super) fn mov(&mut self, wide: bool, d: Gpr, m: Gpr) {
        if !self.rules.has(Rule::MoveByOr) && m != ZR {
            self.imm12(Alu::Add, wide, d, m, 0);
            return;
        }
        self.alu(Alu::Orr, wide, d, ZR, m);
    }

    pub(super) fn mvn(&mut self, wide: bool, d: Gpr, m: Gpr) {
        self.word(sf(wide) | 0x2a20_0000 | rm(m) | rn(ZR) | rd(d));
    }

    pub(super) fn neg(&mut self, wide: bool, d: Gpr, m: Gpr) {
        self.alu(Alu::Sub, wide, d, ZR, m);
    }

    /// The shortest of a move wide, an inverted one and a bit pattern, and further pieces.
    pub(super) fn mov_imm(&mut self, d: Gpr, value: u64) {
        let piece = |i: u32| (value >> (16 * i)) as u32 & 0xffff;
        let zeros = (0..4).filter(|&i| piece(i) == 0).count();
        let ones = (0..4).filter(|&i| piece(i) == 0xffff).count();
        if value >> 32 == 0 && value as u32 >> 16 == 0xffff && value as u32 != u32::MAX {
            // The 32-bit inverted move.
            return self.word(0x1280_0000 | (!value as u32 & 0xffff) << 5 | rd(d));
        }
        if zeros < 3 && ones < 3 {
            if let Some(pattern) = pattern(value, true) {
                return self.word(sf(true) | 0x3200_0000 | pattern | rn(ZR) | rd(d));
            }
            if let (0, Some(pattern)) = (value >> 32, pattern(value, false)) {
                return self.word(0x3200_0000 | pattern | rn(ZR) | rd(d));
            }
        }
        let (skip, first, flip) = if ones > zeros {
            (0xffff, 0x9280_0000, 0xffff)
        } else {
            (0, 0xd280_0000, 0)
        };
        let mut pieces = (0..4).filter(|&i| piece(i) != skip);
        let i = pieces.next().unwrap_or(0);
        self.word(first | i << 21 | (piece(i) ^ flip) << 5 | rd(d));
        for i in pieces {
            self.word(0xf280_0000 | i << 21 | piece(i) << 5 | rd(d));
        }
    }

    /// Selects `n` where the condition holds, else what `pick` makes of `m`.
    pub(super) fn pick(&mut self, pick: Pick, d: Gpr, n: Gpr, m: Gpr, cc: Cc) {
        let cc = (cc as u32) << 12;
        self.word(sf(true) | pick as u32 | rm(m) | cc | rn(n) | rd(d));
    }

    pub(super) fn ror_imm(&mut self, wide: bool, d: Gpr, n: Gpr, by: u32) {
        let n_bit = u32::from(wide) << 22;
        self.word(sf(wide) | 0x1380_0000 | n_bit | rm(n) | by << 10 | rn(n) | rd(d));
    }

    pub(super) fn two(&mut self, op: Two, wide: bool, d: Gpr, n: Gpr, m: Gpr) {
        self.word(sf(wide) | 0x1ac0_0000 | op as u32 | rm(m) | rn(n) | rd(d));
    }

    pub(super) fn mul(&mut self, wide: bool, d: Gpr, n: Gpr, m: Gpr) {
        self.word(sf(wide) | 0x1b00_7c00 | rm(m) | rn(n) | rd(d));
    }

    /// `d = a - n * m`.
    pub(super) fn msub(&mut self, wide: bool, d: Gpr, n: Gpr, m: Gpr, a: Gpr) {
        self.word(sf(wide) | 0x1b00_8000 | rm(m) | u32::from(a.0) << 10 | rn(n) | rd(d));
    }

    /// `ubfm` or, signed, `sbfm`: shifts by constants and extensions.
    fn bitfield(&mut self, wide: bool, signed: bool, d: Gpr, n: Gpr, immr: u32, imms: u32) {
        let base = if signed { 0x1300_0000 } else { 0x5300_0000 };
        let n_bit = u32::from(wide) << 22;
        self.word(sf(wide) | base | n_bit | immr << 16 | imms << 10 | rn(n) | rd(d));
    }

    pub(super) fn lsl_imm(&mut self, wide: bool, d: Gpr, n: Gpr, by: u32) {
        let width = if wide { 64 } else { 32 };
        self.bitfield(wide, false, d, n, (width - by) % width, width - 1 - by);
    }

    pub(super) fn lsr_imm(&mut self, wide: bool, d: Gpr, n: Gpr, by: u32) {
        self.bitfield(wide, false, d, n, by, if wide { 63 } else { 31 });
    }

    pub(super) fn asr_imm(&mut self, wide: bool, d: Gpr, n: Gpr, by: u32) {
        self.bitfield(wide, true, d, n, by, if wide { 63 } else { 31 });
    }

    pub(super) fn sign_extend(&mut self, wide: bool, bits: u8, d: Gpr, n: Gpr) {
        self.bitfield(wide, true, d, n, 0, u32::from(bits) - 1);
    }

    pub(super) fn zero_extend16(&mut self, d: Gpr, n: Gpr) {
        self.bitfield(false, false, d, n, 0, 15);
    }

    /// Reverses the bytes of the whole register, or of each half-word.
    pub(super) fn rev(&mut self, wide: bool, d: Gpr, n: Gpr) {
        self.word(sf(wide) | 0x5ac0_0800 | u32::from(wide) << 10 | rn(n) | rd(d));
    }

    pub(super) fn rev16(&mut self, d: Gpr, n: Gpr) {
        self.word(0x5ac0_0400 | rn(n) | rd(d));
    }

    /// A load or store at `base + off`, by way of T2 where the offset has no form of its own.
    fn access(&mut self, bytes: u32, kind: u32, t: Gpr, base: Gpr, off: i32) {
        let size = bytes.trailing_zeros() << 30;
        let scaled = off as u32 / bytes;
        if off != 0 && base != SP && !self.rules.has(Rule::LoadOffset) {
            self.mov_imm(T2, i64::from(off) as u64);
            self.word(0x3820_6800 | size | kind | rm(T2) | rn(base) | rd(t));
        } else if off >= 0 && (off as u32).is_multiple_of(bytes) && scaled < 0x1000 {
            self.word(0x3900_0000 | size | kind | scaled << 10 | rn(base) | rd(t));
        } else if (-256..256).contains(&off) {
            self.word(0x3800_0000 | size | kind | (off as u32 & 0x1ff) << 12 | rn(base) | rd(t));
        } else {
            self.mov_imm(T2, i64::from(off) as u64);
            self.word(0x3820_6800 | size | kind | rm(T2) | rn(base) | rd(t));
        }
    }

    pub(super) fn load(&mut self, bytes: u32, signed: bool, t: Gpr, base: Gpr, off: i32) {
        let kind = if signed && bytes < 8 {
            2 << 22
        } else {
            1 << 22
        };
        self.access(bytes, kind, t, base, off);
    }

    pub(super) fn store(&mut self, bytes: u32, t: Gpr, base: Gpr, off: i32) {
        self.access(bytes, 0, t, base, off);
    }

    /// A pair of 64-bit registers at the stack pointer plus an offset.
    pub(super) fn store_pair(&mut self, a: Gpr, b: Gpr, off: i32) {
        let field = ((off as u32 / 8) & 0x7f) << 15;
        self.word(0xa900_0000 | field | u32::from(b.0) << 10 | rn(SP) | rd(a));
    }

    pub(super) fn load_pair(&mut self, a: Gpr, b: Gpr, off: i32) {
        let field = ((off as u32 / 8) & 0x7f) << 15;
        self.word(0xa940_0000 | field | u32::from(b.0) << 10 | rn(SP) | rd(a));
    }

    /// A pair so many bytes below the stack pointer, which moves there.
    pub(super) fn push_pair(&mut self, a: Gpr, b: Gpr, bytes: u32) {
        let field = ((bytes / 8).wrapping_neg() & 0x7f) << 15;
        self.word(0xa980_0000 | field | u32::from(b.0) << 10 | rn(SP) | rd(a));
    }

    /// The pair at the stack pointer, which moves up by so many bytes.
    pub(super) fn pop_pair(&mut self, a: Gpr, b: Gpr, bytes: u32) {
        let field = ((bytes / 8) & 0x7f) << 15;
        self.word(0xa8c0_0000 | field | u32::from(b.0) << 10 | rn(SP) | rd(a));
    }

    pub(super) fn load_acquire(&mut self, bytes: u32, t: Gpr, base: Gpr) {
        self.word(0x08df_fc00 | bytes.trailing_zeros() << 30 | rn(base) | rd(t));
    }

    pub(super) fn store_release(&mut self, bytes: u32, t: Gpr, base: Gpr) {
        self.word(0x089f_fc00 | bytes.trailing_zeros() << 30 | rn(base) | rd(t));
    }

    /// `t = old; [base] = old op s`.
    pub(super) fn lse(&mut self, op: Lse, wide: bool, s: Gpr, t: Gpr, base: Gpr) {
        let size = 2 + u32::from(wide);
        self.word(0x38e0_0000 | size << 30 | op as u32 | rm(s) | rn(base) | rd(t));
    }

    /// Stores `t` where `[base]` equals `s`; `s` becomes the old value.
    pub(super) fn cas(&mut self, wide: bool, s: Gpr, t: Gpr, base: Gpr) {
        let size = 2 + u32::from(wide);
        self.word(0x08e0_fc00 | size << 30 | rm(s) | rn(base) | rd(t));
    }

    pub(super) fn blr(&mut self, reg: Gpr) {
        self.word(0xd63f_0000 | rn(reg));
    }

    pub(super) fn br(&mut self, reg: Gpr) {
        self.word(0xd61f_0000 | rn(reg));
    }

    pub(super) fn ret(&mut self) {
        self.word(0xd65f_0000 | rn(LINK));
    }
}
