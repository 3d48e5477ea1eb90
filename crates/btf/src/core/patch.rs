//! Putting a result into its instruction.

use super::{CoreError, Resolution};

/// Helper number of the call that replaces an instruction without a target: an id
/// that no helper has, `0xbad2310`, "bad relo".
pub const POISON: i32 = 195_896_080;

const LD_IMM64: u8 = 0x18;
const CALL: u8 = 0x85;
/// `BPF_SRC`: register or immediate operand.
const SRC: u8 = 0x08;
/// `BPF_SIZE` and its values, with their bytes.
const SIZE: u8 = 0x18;
const SIZES: [(u8, u32); 4] = [(0x00, 4), (0x08, 2), (0x10, 1), (0x18, 8)];

/// The fields of one instruction slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RawInsn {
    /// Opcode.
    pub code: u8,
    /// Destination register.
    pub dst: u8,
    /// Source register.
    pub src: u8,
    /// Offset.
    pub off: i16,
    /// Immediate.
    pub imm: i32,
}

impl RawInsn {
    const POISONED: Self = Self {
        code: CALL,
        dst: 0,
        src: 0,
        off: 0,
        imm: POISON,
    };
}

/// The instruction after relocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patch {
    /// First slot.
    pub first: RawInsn,
    /// Second slot of an `ld_imm64`.
    pub second: Option<RawInsn>,
    /// Set where the instruction became an invalid call, which is only an error if
    /// the program can reach it.
    pub poison: Option<Poison>,
}

/// Why an instruction was replaced by an invalid call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Poison {
    /// The target has no such field, type or enumerator.
    NoTarget,
    /// The field has another size there, and loading it that way would change its value.
    Resize,
}

impl Resolution {
    /// Changes an instruction: `first`, and for an `ld_imm64` the slot after it.
    /// `insn` is its index in the program, for the messages.
    ///
    /// # Errors
    /// The instruction cannot carry the value, or does not hold what the local type
    /// says it should.
    pub fn patch(
        &self,
        insn: u32,
        first: RawInsn,
        second: Option<RawInsn>,
    ) -> Result<Patch, CoreError> {
        match first.code & 7 {
            4 | 7 if first.code & SRC == 0 => self.patch_alu(insn, first),
            1..=3 => self.patch_memory(insn, first),
            0 => self.patch_imm64(insn, first, second),
            _ => Err(CoreError::Insn {
                insn,
                code: first.code,
                src: first.src,
                dst: first.dst,
                off: first.off.into(),
                imm: first.imm,
            }),
        }
    }

    fn patch_alu(&self, insn: u32, first: RawInsn) -> Result<Patch, CoreError> {
        if self.poison {
            return Ok(poisoned(Poison::NoTarget, false));
        }
        if self.validate && i64::from(first.imm) as u64 != self.original {
            let got = u64::from(first.imm as u32);
            return Err(self.unexpected(insn, "ALU/ALU64", got));
        }
        Ok(single(RawInsn {
            imm: self.value as i32,
            ..first
        }))
    }

    fn patch_memory(&self, insn: u32, first: RawInsn) -> Result<Patch, CoreError> {
        if self.poison {
            return Ok(poisoned(Poison::NoTarget, false));
        }
        if self.validate && i64::from(first.off) as u64 != self.original {
            let got = u64::from(i32::from(first.off) as u32);
            return Err(self.unexpected(insn, "LDX/ST/STX", got));
        }
        let off = i16::try_from(self.value).map_err(|_| CoreError::Offset {
            insn,
            value: self.value,
        })?;
        if self.unsafe_resize {
            return Ok(poisoned(Poison::Resize, false));
        }
        let mut code = first.code;
        if self.size != self.original_size {
            let got = SIZES.iter().find(|s| s.0 == code & SIZE).map_or(0, |s| s.1);
            if got != self.original_size {
                return Err(CoreError::Size {
                    insn,
                    got,
                    expected: self.original_size,
                });
            }
            let size = SIZES.iter().find(|s| s.1 == self.size);
            let size = size.ok_or(CoreError::NewSize {
                insn,
                size: self.size,
            })?;
            code = code & !SIZE | size.0;
        }
        Ok(single(RawInsn { code, off, ..first }))
    }

    fn patch_imm64(
        &self,
        insn: u32,
        first: RawInsn,
        second: Option<RawInsn>,
    ) -> Result<Patch, CoreError> {
        let plain = RawInsn {
            code: LD_IMM64,
            src: 0,
            off: 0,
            ..first
        } == first;
        let second = second.filter(|s| {
            RawInsn {
                imm: s.imm,
                ..RawInsn::default()
            } == *s
        });
        let (true, Some(second)) = (plain, second) else {
            return Err(CoreError::Ldimm64 { insn });
        };
        if self.poison {
            return Ok(poisoned(Poison::NoTarget, true));
        }
        let got = u64::from(first.imm as u32) | u64::from(second.imm as u32) << 32;
        if self.validate && got != self.original {
            return Err(self.unexpected(insn, "LDIMM64", got));
        }
        Ok(Patch {
            first: RawInsn {
                imm: self.value as i32,
                ..first
            },
            second: Some(RawInsn {
                imm: (self.value >> 32) as i32,
                ..second
            }),
            poison: None,
        })
    }

    const fn unexpected(&self, insn: u32, class: &'static str, got: u64) -> CoreError {
        CoreError::Value {
            insn,
            class,
            got,
            expected: self.original,
            new: self.value,
        }
    }
}

const fn single(first: RawInsn) -> Patch {
    Patch {
        first,
        second: None,
        poison: None,
    }
}

fn poisoned(why: Poison, wide: bool) -> Patch {
    Patch {
        first: RawInsn::POISONED,
        second: wide.then_some(RawInsn::POISONED),
        poison: Some(why),
    }
}
