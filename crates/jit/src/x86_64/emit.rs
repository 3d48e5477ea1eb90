//! Encoding, and jumps that take two bytes where that reaches.

use super::regs::{Gpr, RBP, RSP};

/// A place in memory: base, index times a power of two, displacement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mem {
    pub(super) base: Option<Gpr>,
    /// Register and the exponent of its factor (0–3).
    pub(super) index: Option<(Gpr, u8)>,
    pub(super) disp: i32,
}

impl Mem {
    pub(super) fn at(base: Gpr, disp: i32) -> Self {
        Self {
            base: Some(base),
            index: None,
            disp,
        }
    }

    pub(super) fn uses(&self, reg: Gpr) -> bool {
        self.base == Some(reg) || self.index.is_some_and(|(index, _)| index == reg)
    }
}

/// The operand of an instruction that may lie in memory.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rm {
    Reg(Gpr),
    Mem(Mem),
}

impl From<Gpr> for Rm {
    fn from(reg: Gpr) -> Self {
        Rm::Reg(reg)
    }
}

impl From<Mem> for Rm {
    fn from(mem: Mem) -> Self {
        Rm::Mem(mem)
    }
}

/// Condition codes of `jcc`, `cmovcc`, `setcc`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Cc {
    B = 2,
    Ae = 3,
    E = 4,
    Ne = 5,
    Be = 6,
    A = 7,
    S = 8,
    L = 12,
    Ge = 13,
    Le = 14,
    G = 15,
}

impl Cc {
    pub(super) fn inverted(self) -> Cc {
        match self {
            Cc::B => Cc::Ae,
            Cc::Ae => Cc::B,
            Cc::E => Cc::Ne,
            Cc::Ne => Cc::E,
            Cc::Be => Cc::A,
            Cc::A => Cc::Be,
            Cc::S => unreachable!("only emitted as it is"),
            Cc::L => Cc::Ge,
            Cc::Ge => Cc::L,
            Cc::Le => Cc::G,
            Cc::G => Cc::Le,
        }
    }
}

/// The eight operations of opcodes 00–3F and 80–83.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Arith {
    Add = 0,
    Or = 1,
    And = 4,
    Sub = 5,
    Xor = 6,
    Cmp = 7,
}

/// The shifts of opcodes C1 and D3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Shift {
    Rol = 0,
    Shl = 4,
    Shr = 5,
    Sar = 7,
}

/// A place in the code. Numbers below the program's slots are those of instructions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Label(pub(super) u32);

#[derive(Clone, Copy, PartialEq, Eq)]
enum JumpKind {
    Always,
    If(Cc),
    Call,
}

/// A jump to be put in before the byte at `at`.
struct Jump {
    at: u32,
    to: Label,
    kind: JumpKind,
    long: bool,
}

#[derive(Clone, Copy)]
struct Bound {
    at: u32,
    /// Jumps before it.
    jumps: u32,
}

const UNBOUND: Bound = Bound {
    at: u32::MAX,
    jumps: 0,
};

/// An instruction but for its immediate.
#[derive(Clone, Copy, Default)]
struct Piece {
    bytes: u128,
    len: u32,
}

impl Piece {
    #[inline]
    fn push(&mut self, byte: u8) {
        self.bytes |= u128::from(byte) << (8 * self.len);
        self.len += 1;
    }

    #[inline]
    fn imm32(&mut self, imm: i32) {
        self.bytes |= u128::from(imm as u32) << (8 * self.len);
        self.len += 4;
    }

    /// ModRM, SIB and displacement.
    #[inline]
    fn operand(&mut self, reg: u8, rm: Rm) {
        let reg = (reg & 7) << 3;
        let mem = match rm {
            Rm::Reg(rm) => return self.push(0xc0 | reg | (rm.0 & 7)),
            Rm::Mem(mem) => mem,
        };
        let Some(base) = mem.base else {
            // Absolute or index alone: a 32-bit displacement without a base.
            self.push(reg | 4);
            self.push(match mem.index {
                Some((index, scale)) => scale << 6 | (index.0 & 7) << 3 | 5,
                None => 0x25,
            });
            return self.imm32(mem.disp);
        };
        let low = base.0 & 7;
        let mode = match mem.disp {
            0 if low != RBP.0 => 0x00,
            -128..=127 => 0x40,
            _ => 0x80,
        };
        match mem.index {
            Some((index, scale)) => {
                self.push(mode | reg | 4);
                self.push(scale << 6 | (index.0 & 7) << 3 | low);
            }
            None if low == RSP.0 => {
                self.push(mode | reg | 4);
                self.push(0x24);
            }
            None => self.push(mode | reg | low),
        }
        match mode {
            0x00 => {}
            0x40 => self.push(mem.disp as u8),
            _ => self.imm32(mem.disp),
        }
    }
}

/// What the flags say.
#[derive(Clone, Copy)]
struct Flags {
    /// Length of the code behind the instruction that set them.
    at: usize,
    reg: Gpr,
    wide: bool,
    /// Whether they order the register and zero, and not only tell them apart.
    signed: bool,
}

/// Code under construction.
pub(super) struct Asm {
    buf: Vec<u8>,
    flags: Option<Flags>,
    jumps: Vec<Jump>,
    labels: Vec<Bound>,
    /// Distances to shared code.
    links: Vec<Bound>,
}

/// Finished code, and where its labels lie.
pub(super) struct Finished {
    pub(super) code: Vec<u8>,
    /// Offsets of the distances to shared code, 32 bits each.
    pub(super) links: Vec<u32>,
    starts: Vec<u32>,
    labels: Vec<Bound>,
}

impl Finished {
    /// Offset of a label that was bound.
    pub(super) fn offset(&self, label: Label) -> Option<u32> {
        let bound = *self.labels.get(label.0 as usize)?;
        (bound.at != UNBOUND.at).then(|| bound.at + self.starts[bound.jumps as usize])
    }
}

impl Asm {
    /// With labels for so many slots, and room for those of so many functions.
    pub(super) fn new(slots: usize, functions: usize) -> Self {
        let mut labels = Vec::with_capacity(slots + 2 * functions + 8);
        labels.resize(slots, UNBOUND);
        Self {
            buf: Vec::with_capacity(slots * 6 + 128),
            flags: None,
            jumps: Vec::with_capacity(slots / 4 + 8),
            labels,
            links: Vec::new(),
        }
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels.push(UNBOUND);
        Label(self.labels.len() as u32 - 1)
    }

    pub(super) fn bind(&mut self, label: Label) {
        self.flags = None;
        self.labels[label.0 as usize] = Bound {
            at: self.buf.len() as u32,
            jumps: self.jumps.len() as u32,
        };
    }

    fn jump_of(&mut self, kind: JumpKind, to: Label) {
        self.flags = None;
        let long = kind == JumpKind::Call;
        self.jumps.push(Jump {
            at: self.buf.len() as u32,
            to,
            kind,
            long,
        });
    }

    pub(super) fn jmp(&mut self, to: Label) {
        self.jump_of(JumpKind::Always, to);
    }

    pub(super) fn jcc(&mut self, cc: Cc, to: Label) {
        self.jump_of(JumpKind::If(cc), to);
    }

    pub(super) fn call(&mut self, to: Label) {
        self.jump_of(JumpKind::Call, to);
    }

    /// Calls code that lies so far behind the program's beginning, or before it.
    pub(super) fn call_shared(&mut self, place: i32) {
        self.flags = None;
        self.buf.push(0xe8);
        self.links.push(Bound {
            at: self.buf.len() as u32,
            jumps: self.jumps.len() as u32,
        });
        self.imm32(place);
    }

    /// Number of such calls so far.
    pub(super) fn links(&self) -> u32 {
        self.links.len() as u32
    }

    /// The code with its jumps. Every label that is jumped to is bound.
    pub(super) fn finish(mut self) -> Finished {
        let mut starts = vec![0_u32; self.jumps.len() + 1];
        let mut code = match self.jumps.is_empty() {
            true => std::mem::take(&mut self.buf),
            false => {
                self.lay_out(&mut starts);
                self.with_jumps(&starts)
            }
        };
        let links = self.links.iter();
        let links: Vec<u32> = links.map(|l| l.at + starts[l.jumps as usize]).collect();
        for &at in &links {
            // From a place to the distance of it from where the call returns to.
            relink(&mut code, at, -(i64::from(at) + 4));
        }
        Finished {
            code,
            links,
            starts,
            labels: self.labels,
        }
    }

    /// Lays the jumps out, as few bytes as reach: the bytes of jumps before each of them.
    fn lay_out(&mut self, starts: &mut [u32]) {
        let bytes = |jump: &Jump| match (jump.kind, jump.long) {
            (_, false) => 2,
            (JumpKind::If(_), true) => 6,
            (_, true) => 5,
        };
        for pass in 0.. {
            let mut sum = 0;
            for (jump, start) in self.jumps.iter().zip(&mut *starts) {
                *start = sum;
                sum += bytes(jump);
            }
            starts[self.jumps.len()] = sum;
            let mut grew = false;
            for (i, jump) in self.jumps.iter_mut().enumerate().filter(|(_, j)| !j.long) {
                let to = self.labels[jump.to.0 as usize];
                let end = i64::from(jump.at + starts[i + 1]);
                let distance = i64::from(to.at + starts[to.jumps as usize]) - end;
                // Few passes settle it; a program made to need more gets long jumps.
                if i8::try_from(distance).is_err() || pass == 16 {
                    jump.long = true;
                    grew = true;
                }
            }
            if !grew {
                break;
            }
        }
    }

    fn with_jumps(&self, starts: &[u32]) -> Vec<u8> {
        let mut code = Vec::with_capacity(self.buf.len() + starts[self.jumps.len()] as usize);
        let mut from = 0;
        for (i, jump) in self.jumps.iter().enumerate() {
            code.extend_from_slice(&self.buf[from..jump.at as usize]);
            from = jump.at as usize;
            let to = self.labels[jump.to.0 as usize];
            assert!(to.at != UNBOUND.at, "jump to a label that is not bound");
            let end = i64::from(jump.at + starts[i + 1]);
            let distance = (i64::from(to.at + starts[to.jumps as usize]) - end) as i32;
            match (jump.kind, jump.long) {
                (JumpKind::Always, false) => code.extend([0xeb, distance as u8]),
                (JumpKind::If(cc), false) => code.extend([0x70 | cc as u8, distance as u8]),
                (JumpKind::If(cc), true) => code.extend([0x0f, 0x80 | cc as u8]),
                (JumpKind::Always, true) => code.push(0xe9),
                (JumpKind::Call, _) => code.push(0xe8),
            }
            if jump.long {
                code.extend(distance.to_le_bytes());
            }
        }
        code.extend_from_slice(&self.buf[from..]);
        code
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.buf.extend_from_slice(bytes);
    }

    fn imm32(&mut self, imm: i32) {
        self.buf.extend_from_slice(&imm.to_le_bytes());
    }

    /// Appends an instruction. Sixteen bytes at once are copied faster than a few.
    #[inline]
    fn put(&mut self, piece: Piece) {
        let end = self.buf.len() + piece.len as usize;
        self.buf.extend_from_slice(&piece.bytes.to_le_bytes());
        self.buf.truncate(end);
    }

    /// The bits of REX (or, inverted, of VEX) beyond W: R, X, B.
    fn extension(reg: u8, rm: Rm) -> u8 {
        let (index, base) = match rm {
            Rm::Reg(rm) => (0, rm.0),
            Rm::Mem(mem) => (
                mem.index.map_or(0, |(i, _)| i.0),
                mem.base.map_or(0, |b| b.0),
            ),
        };
        (reg >> 3) << 2 | (index >> 3) << 1 | base >> 3
    }

    /// An instruction with ModRM: a prefix that goes before REX, and up to three bytes of opcode.
    #[inline]
    fn ins(&mut self, wide: bool, force_rex: bool, prefix: &[u8], opcode: &[u8], reg: u8, rm: Rm) {
        let mut piece = Piece::default();
        for &byte in prefix {
            piece.push(byte);
        }
        let rex = u8::from(wide) << 3 | Self::extension(reg, rm);
        if rex != 0 || force_rex {
            piece.push(0x40 | rex);
        }
        for &byte in opcode {
            piece.push(byte);
        }
        piece.operand(reg, rm);
        self.put(piece);
    }

    /// An instruction with VEX, where `kind` says opcode map, prefix and opcode.
    fn vex(&mut self, kind: (u8, u8, u8), wide: bool, reg: Gpr, v: Gpr, rm: Rm) {
        let (map, prefix, opcode) = kind;
        let extension = !Self::extension(reg.0, rm) & 7;
        let last = u8::from(wide) << 7 | (!v.0 & 15) << 3 | prefix;
        let mut piece = Piece::default();
        for byte in [0xc4, extension << 5 | map, last, opcode] {
            piece.push(byte);
        }
        piece.operand(reg.0, rm);
        self.put(piece);
    }

    /// Whether the flags compare the register with zero; `equality` asks for no more than
    /// whether it is zero.
    pub(super) fn has_flags_of(&self, wide: bool, reg: Gpr, equality: bool) -> bool {
        self.flags.is_some_and(|flags| {
            let narrower = wide && !flags.wide;
            flags.at == self.buf.len()
                && flags.reg == reg
                && wide >= flags.wide
                && (equality || (flags.signed && !narrower))
        })
    }

    /// After an operation of 32 or 64 bits whose result is in the register.
    fn sets_flags(&mut self, op: Arith, wide: bool, reg: Gpr) {
        self.flags = (op != Arith::Cmp).then_some(Flags {
            at: self.buf.len(),
            reg,
            wide,
            signed: matches!(op, Arith::And | Arith::Or | Arith::Xor),
        });
    }

    pub(super) fn arith(&mut self, op: Arith, wide: bool, dst: Gpr, src: impl Into<Rm>) {
        match src.into() {
            // The same length; this direction is what assemblers choose.
            Rm::Reg(src) => self.ins(wide, false, &[], &[(op as u8) << 3 | 1], src.0, dst.into()),
            src => self.ins(wide, false, &[], &[(op as u8) << 3 | 3], dst.0, src),
        }
        self.sets_flags(op, wide, dst);
    }

    /// An operation on 1, 2, 4 or 8 bytes in memory, with a register.
    pub(super) fn arith_at(&mut self, op: Arith, bytes: u32, mem: Mem, src: Gpr) {
        let opcode = (op as u8) << 3 | u8::from(bytes > 1);
        let low_byte = bytes == 1 && src.0 >= 4;
        let prefix = prefix16(bytes);
        self.ins(bytes == 8, low_byte, prefix, &[opcode], src.0, mem.into());
    }

    /// The same with an immediate, of which the lowest bytes matter.
    pub(super) fn arith_imm_at(&mut self, op: Arith, bytes: u32, mem: Mem, imm: i32) {
        let prefix = prefix16(bytes);
        let short = i8::try_from(imm).is_ok() || bytes == 1;
        let opcode = match (bytes, short) {
            (1, _) => 0x80,
            (_, true) => 0x83,
            (_, false) => 0x81,
        };
        self.ins(bytes == 8, false, prefix, &[opcode], op as u8, mem.into());
        match (short, bytes) {
            (true, _) => self.buf.push(imm as u8),
            (false, 2) => self.buf.extend_from_slice(&(imm as i16).to_le_bytes()),
            (false, _) => self.imm32(imm),
        }
    }

    pub(super) fn test_at(&mut self, bytes: u32, mem: Mem, reg: Gpr) {
        self.ins(bytes == 8, false, &[], &[0x85], reg.0, mem.into());
    }

    pub(super) fn test_imm_at(&mut self, bytes: u32, mem: Mem, imm: i32) {
        let opcode = if bytes == 1 { 0xf6 } else { 0xf7 };
        self.ins(bytes == 8, false, prefix16(bytes), &[opcode], 0, mem.into());
        match bytes {
            1 => self.buf.push(imm as u8),
            2 => self.buf.extend_from_slice(&(imm as i16).to_le_bytes()),
            _ => self.imm32(imm),
        }
    }

    /// `dst = src` where the condition holds.
    pub(super) fn cmov(&mut self, cc: Cc, wide: bool, dst: Gpr, src: Gpr) {
        self.ins(
            wide,
            false,
            &[],
            &[0x0f, 0x40 | cc as u8],
            dst.0,
            src.into(),
        );
    }

    pub(super) fn arith_imm(&mut self, op: Arith, wide: bool, dst: impl Into<Rm>, imm: i32) {
        let dst = dst.into();
        if let (1 | -1, Rm::Reg(_), Arith::Add) = (imm, dst, op) {
            self.ins(wide, false, &[], &[0xff], u8::from(imm < 0), dst);
        } else if let Ok(imm) = i8::try_from(imm) {
            self.ins(wide, false, &[], &[0x83], op as u8, dst);
            self.buf.push(imm as u8);
        } else if matches!(dst, Rm::Reg(Gpr(0))) {
            self.bytes(if wide { &[0x48] } else { &[] });
            self.buf.push((op as u8) << 3 | 5);
            self.imm32(imm);
        } else {
            self.ins(wide, false, &[], &[0x81], op as u8, dst);
            self.imm32(imm);
        }
        if let Rm::Reg(dst) = dst {
            self.sets_flags(op, wide, dst);
        }
    }

    pub(super) fn test(&mut self, wide: bool, a: Gpr, b: Gpr) {
        self.ins(wide, false, &[], &[0x85], b.0, a.into());
    }

    pub(super) fn test_imm(&mut self, wide: bool, a: Gpr, imm: i32) {
        // Without the upper half where it does not matter.
        let wide = wide && imm < 0;
        if (0..128).contains(&imm) {
            if a.0 == 0 {
                self.bytes(&[0xa8, imm as u8]);
            } else {
                self.ins(false, a.0 >= 4, &[], &[0xf6], 0, a.into());
                self.buf.push(imm as u8);
            }
        } else {
            self.ins(wide, false, &[], &[0xf7], 0, a.into());
            self.imm32(imm);
        }
    }

    pub(super) fn mov(&mut self, wide: bool, dst: Gpr, src: Gpr) {
        self.ins(wide, false, &[], &[0x89], src.0, dst.into());
    }

    pub(super) fn zero(&mut self, dst: Gpr) {
        self.arith(Arith::Xor, false, dst, dst);
    }

    /// The shortest form that leaves the flags alone.
    pub(super) fn mov_imm(&mut self, dst: Gpr, value: u64) {
        if let Ok(value) = u32::try_from(value) {
            if dst.0 >= 8 {
                self.buf.push(0x41);
            }
            self.buf.push(0xb8 | (dst.0 & 7));
            self.imm32(value as i32);
        } else if let Ok(value) = i32::try_from(value as i64) {
            self.ins(true, false, &[], &[0xc7], 0, dst.into());
            self.imm32(value);
        } else {
            self.bytes(&[0x48 | dst.0 >> 3, 0xb8 | (dst.0 & 7)]);
            self.buf.extend_from_slice(&value.to_le_bytes());
        }
    }

    pub(super) fn lea(&mut self, dst: Gpr, mem: Mem) {
        self.ins(true, false, &[], &[0x8d], dst.0, mem.into());
    }

    /// A load of 1, 2, 4 or 8 bytes, extended to 64 bits.
    pub(super) fn load(&mut self, bytes: u32, signed: bool, dst: Gpr, mem: Mem) {
        let (wide, opcode): (bool, &[u8]) = match (bytes, signed) {
            (1, false) => (false, &[0x0f, 0xb6]),
            (2, false) => (false, &[0x0f, 0xb7]),
            (1, true) => (true, &[0x0f, 0xbe]),
            (2, true) => (true, &[0x0f, 0xbf]),
            (4, true) => (true, &[0x63]),
            (4, false) => (false, &[0x8b]),
            _ => (true, &[0x8b]),
        };
        self.ins(wide, false, &[], opcode, dst.0, mem.into());
    }

    pub(super) fn store(&mut self, bytes: u32, mem: Mem, src: Gpr) {
        let opcode = if bytes == 1 { 0x88 } else { 0x89 };
        self.ins(
            bytes == 8,
            bytes == 1 && src.0 >= 4,
            prefix16(bytes),
            &[opcode],
            src.0,
            mem.into(),
        );
    }

    pub(super) fn store_imm(&mut self, bytes: u32, mem: Mem, imm: i32) {
        let opcode = if bytes == 1 { 0xc6 } else { 0xc7 };
        self.ins(bytes == 8, false, prefix16(bytes), &[opcode], 0, mem.into());
        match bytes {
            1 => self.buf.push(imm as u8),
            2 => self.buf.extend_from_slice(&(imm as i16).to_le_bytes()),
            _ => self.imm32(imm),
        }
    }

    /// Zero extension of the low 8 or 16 bits.
    pub(super) fn movzx(&mut self, bits: u8, dst: Gpr, src: Gpr) {
        let opcode = if bits == 8 { 0xb6 } else { 0xb7 };
        self.ins(
            false,
            bits == 8 && src.0 >= 4,
            &[],
            &[0x0f, opcode],
            dst.0,
            src.into(),
        );
    }

    /// Sign extension of the low 8, 16 or 32 bits.
    pub(super) fn movsx(&mut self, wide: bool, bits: u8, dst: Gpr, src: Gpr) {
        match bits {
            8 => self.ins(wide, src.0 >= 4, &[], &[0x0f, 0xbe], dst.0, src.into()),
            16 => self.ins(wide, false, &[], &[0x0f, 0xbf], dst.0, src.into()),
            _ => self.ins(true, false, &[], &[0x63], dst.0, src.into()),
        }
    }

    pub(super) fn neg(&mut self, wide: bool, dst: Gpr) {
        self.ins(wide, false, &[], &[0xf7], 3, dst.into());
    }

    pub(super) fn not(&mut self, wide: bool, dst: Gpr) {
        self.ins(wide, false, &[], &[0xf7], 2, dst.into());
    }

    pub(super) fn imul(&mut self, wide: bool, dst: Gpr, src: impl Into<Rm>) {
        self.ins(wide, false, &[], &[0x0f, 0xaf], dst.0, src.into());
    }

    pub(super) fn imul_imm(&mut self, wide: bool, dst: Gpr, src: Gpr, imm: i32) {
        if let Ok(imm) = i8::try_from(imm) {
            self.ins(wide, false, &[], &[0x6b], dst.0, src.into());
            self.buf.push(imm as u8);
        } else {
            self.ins(wide, false, &[], &[0x69], dst.0, src.into());
            self.imm32(imm);
        }
    }

    /// `rdx:rax / divisor`, signed or not.
    pub(super) fn div(&mut self, wide: bool, signed: bool, divisor: Gpr) {
        self.ins(
            wide,
            false,
            &[],
            &[0xf7],
            if signed { 7 } else { 6 },
            divisor.into(),
        );
    }

    /// Sign of `rax` into `rdx`.
    pub(super) fn cqo(&mut self, wide: bool) {
        self.bytes(if wide { &[0x48, 0x99] } else { &[0x99] });
    }

    pub(super) fn shift_imm(&mut self, op: Shift, wide: bool, dst: Gpr, amount: u8) {
        if amount == 1 {
            self.ins(wide, false, &[], &[0xd1], op as u8, dst.into());
        } else {
            self.ins(wide, false, &[], &[0xc1], op as u8, dst.into());
            self.buf.push(amount);
        }
        if op != Shift::Rol {
            self.sets_flags(Arith::Add, wide, dst);
        }
    }

    pub(super) fn shift_cl(&mut self, op: Shift, wide: bool, dst: Gpr) {
        self.ins(wide, false, &[], &[0xd3], op as u8, dst.into());
    }

    /// The BMI2 shift: `dst = src op amount`.
    pub(super) fn shift_x(&mut self, op: Shift, wide: bool, dst: Gpr, src: Gpr, amount: Gpr) {
        let pp = match op {
            Shift::Shl => 1,
            Shift::Sar => 2,
            _ => 3,
        };
        self.vex((2, pp, 0xf7), wide, dst, amount, src.into());
    }

    /// The BMI2 rotation to the right.
    pub(super) fn rorx(&mut self, wide: bool, dst: Gpr, src: Gpr, amount: u8) {
        self.vex((3, 3, 0xf0), wide, dst, Gpr(0), src.into());
        self.buf.push(amount);
    }

    pub(super) fn bswap(&mut self, wide: bool, dst: Gpr) {
        let rex = 0x40 | u8::from(wide) << 3 | dst.0 >> 3;
        if rex != 0x40 {
            self.buf.push(rex);
        }
        self.bytes(&[0x0f, 0xc8 | (dst.0 & 7)]);
    }

    /// Rotates the low 16 bits by 8.
    pub(super) fn swap16(&mut self, dst: Gpr) {
        self.ins(false, false, &[0x66], &[0xc1], 0, dst.into());
        self.buf.push(8);
    }

    pub(super) fn lock_arith(&mut self, op: Arith, wide: bool, mem: Mem, src: Gpr) {
        self.ins(
            wide,
            false,
            &[0xf0],
            &[(op as u8) << 3 | 1],
            src.0,
            mem.into(),
        );
    }

    pub(super) fn lock_xadd(&mut self, wide: bool, mem: Mem, src: Gpr) {
        self.ins(wide, false, &[0xf0], &[0x0f, 0xc1], src.0, mem.into());
    }

    pub(super) fn xchg(&mut self, wide: bool, mem: Mem, src: Gpr) {
        self.ins(wide, false, &[], &[0x87], src.0, mem.into());
    }

    pub(super) fn lock_cmpxchg(&mut self, wide: bool, mem: Mem, src: Gpr) {
        self.ins(wide, false, &[0xf0], &[0x0f, 0xb1], src.0, mem.into());
    }

    pub(super) fn push(&mut self, reg: Gpr) {
        if reg.0 >= 8 {
            self.buf.push(0x41);
        }
        self.buf.push(0x50 | (reg.0 & 7));
    }

    pub(super) fn pop(&mut self, reg: Gpr) {
        if reg.0 >= 8 {
            self.buf.push(0x41);
        }
        self.buf.push(0x58 | (reg.0 & 7));
    }

    pub(super) fn push_mem(&mut self, mem: Mem) {
        self.ins(false, false, &[], &[0xff], 6, mem.into());
    }

    pub(super) fn pop_mem(&mut self, mem: Mem) {
        self.ins(false, false, &[], &[0x8f], 0, mem.into());
    }

    pub(super) fn call_reg(&mut self, reg: Gpr) {
        self.ins(false, false, &[], &[0xff], 2, reg.into());
    }

    /// Jumps to where a register or a place in memory says.
    pub(super) fn jmp_to(&mut self, to: impl Into<Rm>) {
        self.ins(false, false, &[], &[0xff], 4, to.into());
    }

    pub(super) fn ret(&mut self) {
        self.buf.push(0xc3);
    }
}

/// Moves what the call whose distance lies at an offset leads to.
pub(crate) fn relink(code: &mut [u8], at: u32, by: i64) {
    let Some(field) = code[at as usize..].first_chunk_mut::<4>() else {
        return;
    };
    let distance = i64::from(i32::from_le_bytes(*field)) + by;
    *field = (distance as i32).to_le_bytes();
}

fn prefix16(bytes: u32) -> &'static [u8] {
    if bytes == 2 { &[0x66] } else { &[] }
}
