//! Fields of the socket of a socket operation, which may be a smaller structure (of a connection
//! that is not there yet, or one that the caller did not lock) and then reads as 0.

use bpfkit_isa::{Insn, code};

use super::{Loaded, Place, size_code, sized, spare};
use crate::rewrite::Rewriter;
use crate::rewrite::code::{goto, jump_imm, load, mov_imm, store};

const OPS: &str = "bpf_sock_ops_kern";

/// Offsets in the structure behind the context.
struct Offsets {
    /// Whether the socket may be looked at.
    full: i16,
    socket: i16,
    /// Where a register is kept meanwhile.
    kept: i16,
}

impl Rewriter<'_, '_> {
    /// Fields of TCP need a socket that is locked too, where the kernel tells.
    fn full_offsets(&self, field: bool) -> Option<Offsets> {
        let off = |member: &'static str| self.kernel_off(OPS, member);
        let locked = off("is_locked_tcp_sock").filter(|_| field);
        Some(Offsets {
            full: match locked {
                Some(locked) => locked,
                None => off("is_fullsock")?,
            },
            socket: off("sk")?,
            kept: off("temp")?,
        })
    }

    /// Loads a field of the socket, or the socket itself.
    pub(super) fn load_full(&self, insn: &Insn, field: Option<&Place>) -> Option<Loaded> {
        let offsets = self.full_offsets(field.is_some())?;
        let (dst, src) = (insn.dst, insn.src);
        let same = dst == src;
        let test = if same { spare(insn) } else { dst };
        let mut insns = Vec::with_capacity(9);
        if same {
            insns.push(store(code::DW, src, test, offsets.kept));
        }
        insns.push(load(code::B, test, src, offsets.full));
        let loads = 1 + i16::from(field.is_some());
        let past = loads + if same { 2 } else { 0 };
        insns.push(jump_imm(code::JMP, code::JEQ, test, 0, past));
        if same {
            insns.push(load(code::DW, test, src, offsets.kept));
        }
        insns.push(load(code::DW, dst, src, offsets.socket));
        if let Some(place) = field {
            insns.push(load(size_code(place.bytes), dst, dst, place.off));
        }
        if same {
            insns.extend([
                goto(2),
                load(code::DW, test, src, offsets.kept),
                mov_imm(dst, 0),
            ]);
        }
        Some(Loaded {
            insns,
            bytes: field.map_or(8, |place| place.bytes),
        })
    }

    pub(super) fn store_full(&self, insn: &Insn, field: &Place) -> Option<Vec<Insn>> {
        let offsets = self.full_offsets(true)?;
        let other = spare(insn);
        let write = Insn {
            code: sized(insn.code, field.bytes),
            dst: other,
            off: field.off,
            ..*insn
        };
        Some(vec![
            store(code::DW, insn.dst, other, offsets.kept),
            load(code::B, other, insn.dst, offsets.full),
            jump_imm(code::JMP, code::JEQ, other, 0, 2),
            load(code::DW, other, insn.dst, offsets.socket),
            write,
            load(code::DW, other, insn.dst, offsets.kept),
        ])
    }
}
