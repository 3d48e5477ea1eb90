//! Accesses to contexts and sockets: the structure that programs see stands for others of the
//! kernel (the `convert_ctx_access` functions of 6.18, most of them in `net/core/filter.c`).
//!
//! A row of [`tables`] says on which way from the kernel's structure a field is found. Offsets
//! and sizes come from the kernel's BTF. Fields without a row, and contexts without a table,
//! stay as the program has them and are listed in
//! [`Rewritten::unconverted`](super::Rewritten::unconverted).

mod packet;
mod socket;
mod tables;

use bpfkit_btf::{Btf, Kind, Type};
use bpfkit_isa::{Insn, code};
use bpfkit_spec::ProgType;

use super::Rewriter;
use super::code::{alu_imm, goto, jump_imm, load, mov_imm, mov32_imm, sign_extend, store};
use crate::mem::access_size;
use crate::reg::RegType;
use crate::walk::peel;
use tables::{Row, Store, Way};

/// A step of the way from a structure of the kernel to a field: structure and member.
#[derive(Clone, Copy)]
enum Step {
    /// To what the pointer there points to.
    Follow(&'static str, &'static str),
    /// Into another structure that lies there.
    Inside(&'static str, &'static str),
    /// To the field.
    Field(&'static str, &'static str),
    /// To a number of so many bytes that the last pointer points to.
    Value(u32),
    /// To the same offset as in the program's structure, 8 bytes.
    Same,
}

/// Most that a queue's number may be; it stands for none.
const NO_QUEUE: i32 = 0xffff;

/// The size part of an opcode.
const fn size_code(bytes: u32) -> u8 {
    match bytes {
        1 => code::B,
        2 => code::H,
        4 => code::W,
        _ => code::DW,
    }
}

/// The opcode with another size, and plain memory for the mode.
const fn sized(opcode: u8, bytes: u32) -> u8 {
    opcode & 0x07 | code::MEM | size_code(bytes)
}

/// A register that the access does not name.
fn spare(insn: &Insn) -> u8 {
    let free = [9, 8, 7].into_iter();
    free.into_iter()
        .find(|&n| n != insn.src && n != insn.dst)
        .unwrap_or(7)
}

/// Offset and size of a member by its path, as C finds it: through unnamed members only.
fn c_member(btf: &Btf, object: Type<'_>, path: &str) -> Option<(u32, u32)> {
    let (head, rest) = match path.split_once('.') {
        Some((head, rest)) => (head, Some(rest)),
        None => (path, None),
    };
    object.members().find_map(|member| {
        let start = member.byte_offset()?;
        let (inner, path) = match member.name() {
            "" => (peel(btf, member.type_id)?, path),
            name if name != head => return None,
            _ => match rest {
                None => return Some((start, btf.size_of(member.type_id)?)),
                Some(rest) => (peel(btf, member.type_id)?, rest),
            },
        };
        let (off, bytes) = c_member(btf, inner, path)?;
        Some((start + off, bytes))
    })
}

/// New code of an access, and the bytes that its last load reads.
struct Loaded {
    insns: Vec<Insn>,
    bytes: u32,
}

/// A field at the end of its steps.
struct Place {
    /// Offsets of the pointers to follow.
    pointers: Vec<i16>,
    off: i16,
    bytes: u32,
}

impl Rewriter<'_, '_> {
    /// Offset and size of a member of a structure of the kernel.
    fn kernel_member(&self, of: &'static str, path: &'static str) -> Option<(u32, u32)> {
        let mut members = self.members.borrow_mut();
        *members.entry((of, path)).or_insert_with(|| {
            let kernel = self.checker.kernel()?;
            c_member(kernel, kernel.by_name(of, Kind::Struct)?, path)
        })
    }

    /// Offset of a member of a structure of the kernel.
    pub fn kernel_offset(&self, of: &'static str, path: &'static str) -> Option<u32> {
        Some(self.kernel_member(of, path)?.0)
    }

    /// The same, as it stands in an instruction.
    fn kernel_off(&self, of: &'static str, path: &'static str) -> Option<i16> {
        i16::try_from(self.kernel_offset(of, path)?).ok()
    }

    /// Whether an instruction accesses what is another structure in the kernel.
    pub fn is_context(&self, at: u32) -> bool {
        let insn = &self.checker.insns[at as usize];
        let plain = matches!(insn.code & 0xe0, code::MEM | code::MEMSX);
        plain
            && match self.checker.aux[at as usize].ptr_type {
                RegType::CTX => self.checker.attach.converts_ctx(),
                RegType::SOCKET | RegType::SOCK_COMMON | RegType::TCP_SOCK | RegType::XDP_SOCK => {
                    true
                }
                _ => false,
            }
    }

    /// Plans an access to the context or a socket.
    pub fn plan_context(&mut self, at: u32) {
        let insn = self.checker.insns[at as usize];
        match self.converted(at, &insn) {
            Some(new) => self.replace(at, new),
            None => self.unconverted.push(at),
        }
    }

    fn converted(&self, at: u32, insn: &Insn) -> Option<Vec<Insn>> {
        let pointer = self.checker.aux[at as usize].ptr_type;
        let off = u32::try_from(insn.off).ok()?;
        let tables = tables::of(pointer, self.checker.prog_type());
        let mut rows = tables.iter().flat_map(|rows| rows.iter());
        let row = rows.find(|row| (row.at..row.at + row.size).contains(&off))?;
        match insn.class() {
            code::LDX => self.load(row, insn),
            _ => self.store(row, insn),
        }
    }

    /// Where the steps lead, for an access of that width at that offset of the field.
    fn place(&self, steps: &[Step], insn: &Insn, within: u32) -> Option<Place> {
        let mut pointers = Vec::new();
        let mut start = 0;
        for &step in steps {
            let (off, bytes) = match step {
                Step::Follow(of, member) => {
                    let off = start + self.kernel_offset(of, member)?;
                    pointers.push(i16::try_from(off).ok()?);
                    start = 0;
                    continue;
                }
                Step::Inside(of, member) => {
                    start += self.kernel_offset(of, member)?;
                    continue;
                }
                Step::Field(of, member) => self.kernel_member(of, member)?,
                Step::Value(bytes) => (0, bytes),
                Step::Same => (insn.off as u32, 8),
            };
            return Some(Place {
                pointers,
                off: i16::try_from(start + off + within).ok()?,
                bytes,
            });
        }
        None
    }

    /// Loads along the steps; where `guarded`, a null pointer at the beginning reads as 0.
    fn follow(&self, place: &Place, insn: &Insn, guarded: bool) -> Vec<Insn> {
        let mut new = Vec::with_capacity(place.pointers.len() + 2);
        let mut base = insn.src;
        for (at, &pointer) in place.pointers.iter().enumerate() {
            new.push(load(code::DW, insn.dst, base, pointer));
            if guarded && at == 0 {
                let rest = place.pointers.len() as i16;
                new.push(jump_imm(code::JMP, code::JEQ, insn.dst, 0, rest));
            }
            base = insn.dst;
        }
        new.push(load(size_code(place.bytes), insn.dst, base, place.off));
        new
    }

    fn load(&self, row: &Row, insn: &Insn) -> Option<Vec<Insn>> {
        let bytes = access_size(insn.code) as u32;
        // A load of part of a field becomes one of the whole first.
        let narrow = bytes < row.unit;
        let off = insn.off as u32;
        let whole = Insn {
            off: match narrow {
                true => (off - off % row.unit) as i16,
                false => insn.off,
            },
            code: sized(insn.code, if narrow { row.unit } else { bytes }),
            ..*insn
        };
        let Loaded {
            insns: mut new,
            bytes: target,
        } = self.whole(row, &whole)?;
        if narrow && bytes < target {
            let shift = off % row.unit * 8;
            if shift != 0 {
                let class = if row.unit > 4 { code::ALU64 } else { code::ALU };
                new.push(alu_imm(class, code::RSH, insn.dst, shift as i32));
            }
            let mask = u32::MAX >> (32 - 8 * bytes);
            new.push(alu_imm(code::ALU, code::AND, insn.dst, mask as i32));
        }
        if insn.code & 0xe0 == code::MEMSX {
            new.push(sign_extend(insn.dst, 8 * bytes as i16));
        }
        Some(new)
    }

    /// A load of a whole field.
    fn whole(&self, row: &Row, insn: &Insn) -> Option<Loaded> {
        let bytes = access_size(insn.code) as u32;
        let within = row.within(insn)?;
        let path = |steps: &[Step], guarded: bool| {
            let place = self.place(steps, insn, 0)?;
            Some(Loaded {
                insns: self.follow(&place, insn, guarded),
                bytes: place.bytes,
            })
        };
        let words = |steps: &[Step], guarded: bool| {
            let mut place = self.place(steps, insn, within)?;
            place.bytes = bytes;
            Some(Loaded {
                insns: self.follow(&place, insn, guarded),
                bytes: bytes.min(row.unit),
            })
        };
        let dst = insn.dst;
        let unless = |steps: &[Step], op: u8, number: i32, otherwise: Insn| {
            let mut loaded = path(steps, false)?;
            loaded.insns.push(jump_imm(code::JMP, op, dst, number, 1));
            loaded.insns.push(otherwise);
            Some(loaded)
        };
        let has_device = matches!(
            self.checker.prog_type(),
            ProgType::SchedCls | ProgType::SchedAct
        );
        match row.way {
            Way::Path(steps) => path(steps, false),
            Way::Guarded(steps) => path(steps, true),
            Way::Device(steps) => path(steps, !has_device),
            Way::Words(steps) => words(steps, false),
            Way::GuardedWords(steps) => words(steps, true),
            Way::High(steps) => {
                let mut loaded = path(steps, false)?;
                loaded.insns.push(alu_imm(code::ALU, code::LSH, dst, 16));
                Some(loaded)
            }
            Way::NotZero(steps) => unless(steps, code::JEQ, 0, mov32_imm(dst, 1)),
            Way::Napi(steps) => {
                // Numbers up to that of the last CPU are senders'.
                let first = 8 * self.kernel_member("cpumask", "bits")?.1 + 1;
                unless(steps, code::JGE, first as i32, mov_imm(dst, 0))
            }
            Way::Queue(steps) => unless(steps, code::JNE, NO_QUEUE, mov_imm(dst, -1)),
            Way::Bits(marker, field) => self.load_bits(insn, marker, field),
            Way::Timestamp => self.load_timestamp(insn),
            Way::Shared(field) => self.load_shared(insn, None, field),
            Way::SharedOf(step, field) => self.load_shared(insn, Some(step), field),
            Way::DataEnd => self.load_data_end(insn),
            Way::Full(steps) => self.load_full(insn, Some(&self.place(steps, insn, 0)?)),
            Way::FullSocket => self.load_full(insn, None),
            Way::Zero => Some(Loaded {
                insns: vec![mov32_imm(dst, 0)],
                bytes: row.size,
            }),
        }
    }

    fn store(&self, row: &Row, insn: &Insn) -> Option<Vec<Insn>> {
        let bytes = access_size(insn.code) as u32;
        let within = row.within(insn)?;
        let place = |steps: &[Step], words: bool| {
            let mut place = self.place(steps, insn, if words { within } else { 0 })?;
            place.bytes = if words { bytes } else { place.bytes.min(bytes) };
            Some(place)
        };
        let there = |place: &Place, base: u8| Insn {
            code: sized(insn.code, place.bytes),
            dst: base,
            off: place.off,
            ..*insn
        };
        match (row.store, row.way) {
            (Store::No, _) => None,
            (_, Way::Timestamp) => self.store_timestamp(insn),
            (Store::There, Way::Path(steps)) => Some(vec![there(&place(steps, false)?, insn.dst)]),
            (Store::There, Way::Words(steps)) => Some(vec![there(&place(steps, true)?, insn.dst)]),
            (Store::Queue, Way::Path(steps)) => {
                let write = there(&place(steps, false)?, insn.dst);
                Some(match insn.class() {
                    code::ST if insn.imm >= NO_QUEUE => vec![goto(0)],
                    code::ST => vec![write],
                    _ => vec![jump_imm(code::JMP, code::JGE, insn.src, NO_QUEUE, 1), write],
                })
            }
            (Store::Behind(of, kept), Way::Path(steps) | Way::Words(steps)) => {
                let words = matches!(row.way, Way::Words(_));
                let place = place(steps, words)?;
                let (kept, other) = (self.kernel_off(of, kept)?, spare(insn));
                let mut new = vec![store(code::DW, insn.dst, other, kept)];
                let mut base = insn.dst;
                for &pointer in &place.pointers {
                    new.push(load(code::DW, other, base, pointer));
                    base = other;
                }
                new.push(there(&place, other));
                new.push(load(code::DW, other, insn.dst, kept));
                Some(new)
            }
            (Store::Full, Way::Full(steps)) => self.store_full(insn, &self.place(steps, insn, 0)?),
            _ => None,
        }
    }
}
