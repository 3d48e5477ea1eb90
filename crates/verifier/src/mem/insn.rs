//! The instructions that access memory: loads, stores, atomic operations.

use crate::checker::Checker;
use crate::fail::{Res, fail};
use crate::reg::{Base, RegType};
use crate::stack::Access;
use bpfkit_isa::code;
use bpfkit_spec::TypeFlags;

use super::{MemOp, access_size};

impl<'a> Checker<'a> {
    /// A load instruction.
    pub fn load(&mut self, strict: bool, sign_extend: bool, allow_mix: bool) -> Res {
        let insn = self.insn();
        self.read_reg(insn.src)?;
        self.may_write_reg(insn.dst)?;
        let ty = self.reg(insn.src).ty;
        self.mem_access(MemOp {
            base: insn.src,
            off: insn.off as i32,
            size: access_size(insn.code),
            access: Access::Read,
            value: Some(insn.dst),
            strict,
            sign_extend,
        })?;
        self.save_ptr_type(ty, allow_mix)?;
        self.sanity_check_bounds(insn.dst, "ldx")
    }

    /// A store of a register.
    pub fn store(&mut self, strict: bool) -> Res {
        let insn = self.insn();
        self.read_reg(insn.src)?;
        self.read_reg(insn.dst)?;
        let ty = self.reg(insn.dst).ty;
        self.mem_access(MemOp {
            base: insn.dst,
            off: insn.off as i32,
            size: access_size(insn.code),
            access: Access::Write,
            value: Some(insn.src),
            strict,
            sign_extend: false,
        })?;
        self.save_ptr_type(ty, false)
    }

    /// A store of a constant.
    pub fn store_imm(&mut self) -> Res {
        let insn = self.insn();
        if insn.code & 0xe0 != code::MEM || insn.src != 0 {
            fail!(self, Inval, "BPF_ST uses reserved fields\n");
        }
        self.read_reg(insn.dst)?;
        let ty = self.reg(insn.dst).ty;
        self.mem_access(MemOp {
            base: insn.dst,
            off: insn.off as i32,
            size: access_size(insn.code),
            access: Access::Write,
            value: None,
            strict: false,
            sign_extend: false,
        })?;
        self.save_ptr_type(ty, false)
    }

    /// Remembers through what an instruction accesses memory: two kinds that the kernel
    /// would have to translate differently do not go together.
    pub(super) fn save_ptr_type(&mut self, ty: RegType, allow_mix: bool) -> Res {
        self.kernel_objects |= ty.base() == Base::BtfId || ty.has(TypeFlags::PTR_UNTRUSTED);
        let known = self.aux[self.insn as usize].ptr_type;
        if known == RegType::NOT_INIT {
            self.aux[self.insn as usize].ptr_type = ty;
            return Ok(());
        }
        let fixed = |t: RegType| {
            matches!(
                t.base(),
                Base::Ctx
                    | Base::Socket
                    | Base::SockCommon
                    | Base::TcpSock
                    | Base::XdpSock
                    | Base::BtfId
                    | Base::Arena
            )
        };
        if ty == known || !(fixed(ty) || fixed(known)) {
            return Ok(());
        }
        let probed = |t: RegType| matches!(t.base(), Base::Mem | Base::BtfId);
        if !allow_mix || !probed(ty) || !probed(known) {
            fail!(
                self,
                Inval,
                "same insn cannot be used with different pointers\n"
            );
        }
        let either = |f| ty.has(f) || known.has(f);
        let is_mem = ty.base() == Base::Mem || known.base() == Base::Mem;
        let mut merged = if is_mem {
            RegType::MEM
        } else {
            RegType::BTF_ID
        };
        for flag in [TypeFlags::PTR_UNTRUSTED, TypeFlags::MEM_RDONLY] {
            if either(flag) {
                merged = merged.with(flag);
            }
        }
        self.aux[self.insn as usize].ptr_type = merged;
        Ok(())
    }

    /// An atomic operation.
    pub fn atomic(&mut self) -> Res {
        let insn = self.insn();
        match insn.imm {
            code::LOAD_ACQ => {
                self.load(true, false, false)?;
                if !self.atomic_allowed(insn.src) {
                    let ty = self.reg(insn.src).ty;
                    let n = insn.src;
                    fail!(
                        self,
                        Acces,
                        "BPF_ATOMIC loads from R{n} {ty} is not allowed\n"
                    );
                }
                Ok(())
            }
            code::STORE_REL => {
                self.store(true)?;
                self.check_atomic_target(insn.dst)
            }
            imm => {
                const ADD: i32 = code::ADD as i32;
                const AND: i32 = code::AND as i32;
                const OR: i32 = code::OR as i32;
                const XOR: i32 = code::XOR as i32;
                let plain = matches!(imm & !code::FETCH, ADD | AND | OR | XOR);
                if !plain && imm != code::XCHG && imm != code::CMPXCHG {
                    fail!(
                        self,
                        Inval,
                        "BPF_ATOMIC uses invalid atomic opcode {imm:02x}\n"
                    );
                }
                self.atomic_update()
            }
        }
    }

    pub(super) fn atomic_allowed(&self, n: u8) -> bool {
        let ty = self.reg(n).ty;
        !(ty == RegType::CTX || ty.is_packet() || ty == RegType::FLOW_KEYS || ty.is_socket())
    }

    pub(super) fn check_atomic_target(&mut self, n: u8) -> Res {
        if !self.atomic_allowed(n) {
            let ty = self.reg(n).ty;
            fail!(
                self,
                Acces,
                "BPF_ATOMIC stores into R{n} {ty} is not allowed\n"
            );
        }
        Ok(())
    }

    pub(super) fn atomic_update(&mut self) -> Res {
        let insn = self.insn();
        let size = access_size(insn.code);
        if size < 4 {
            fail!(self, Inval, "invalid atomic operand size\n");
        }
        self.read_reg(insn.src)?;
        self.read_reg(insn.dst)?;
        if insn.imm == code::CMPXCHG {
            self.read_reg(0)?;
            if self.is_pointer_value(0) {
                fail!(self, Acces, "R0 leaks addr into mem\n");
            }
        }
        if self.is_pointer_value(insn.src) {
            fail!(self, Acces, "R{} leaks addr into mem\n", insn.src);
        }
        self.check_atomic_target(insn.dst)?;
        let mut fetched = None;
        if insn.imm & code::FETCH != 0 {
            let to = if insn.imm == code::CMPXCHG {
                0
            } else {
                insn.src
            };
            self.write_reg(to)?;
            fetched = Some(to);
        }
        let op = MemOp {
            base: insn.dst,
            off: insn.off as i32,
            size,
            access: Access::Read,
            value: None,
            strict: true,
            sign_extend: false,
        };
        self.mem_access(op)?;
        if fetched.is_some() {
            self.mem_access(MemOp {
                value: fetched,
                ..op
            })?;
        }
        if self.reg(insn.dst).ty == RegType::ARENA {
            self.save_ptr_type(RegType::ARENA, false)?;
        }
        self.mem_access(MemOp {
            access: Access::Write,
            ..op
        })
    }
}
