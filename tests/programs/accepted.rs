//! Programs made up at random that the verifier mostly accepts and that leave it much to know:
//! numbers from maps, packets, contexts and helpers go through arithmetic of every kind, are
//! bounded by comparisons, spilled and filled again, and decide which bytes are accessed.
//!
//! A program keeps to a plan, so that most are accepted: R6 holds the context, R7 a map value,
//! R8 a packet whose first [`PACKET`] bytes may be accessed; the others hold numbers, as do the
//! eight stack slots below the frame pointer; below these lie slots for pointers. Whatever
//! happens, a program ends by writing all its numbers into the map value, so that none is dead
//! and engines can be compared by what they leave behind.

use bpfkit_isa::{AluOp, Call, Cond, Imm64, Insn, Op, Operand, Reg, Size, Width};
use bpfkit_object::{MapDef, Program, Subprogram, raw_program};
use bpfkit_runtime::MapSet;
use bpfkit_spec::{MapType, ProgType};

use super::random::{Choose, constant};

#[path = "pieces.rs"]
mod pieces;

/// Bytes of a value of the first map.
const VALUE: i32 = 64;
/// Bytes of the packet that are known to be there.
const PACKET: i32 = 32;
/// Slots of numbers.
const SLOTS: i16 = 8;
/// Most ways through a program, as a power of two: the verifier walks them all.
const FORKS: u32 = 7;

/// An array, a hash map and a ring buffer.
pub fn maps() -> Vec<MapDef> {
    vec![
        MapDef::new("array", MapType::Array, 4, VALUE as u32, 4),
        MapDef::new("hash", MapType::Hash, 8, 16, 4),
        MapDef::new("ring", MapType::Ringbuf, 0, 0, 4096),
    ]
}

/// What a program is run on.
pub struct Contents {
    values: Vec<Vec<u8>>,
    pub packet: Vec<u8>,
}

impl Contents {
    /// Any values of the array, and any packet.
    pub fn of(random: &mut impl Choose) -> Contents {
        let mut bytes = |len: i32| -> Vec<u8> {
            let words = (0..len / 8).flat_map(|_| number(random).to_le_bytes());
            words.collect()
        };
        Contents {
            values: (0..4).map(|_| bytes(VALUE)).collect(),
            packet: bytes(2 * PACKET),
        }
    }

    /// Fills the maps.
    pub fn put(&self, maps: &MapSet) {
        let array = maps.get(0).expect("the maps of these programs");
        for (key, value) in (0u32..).zip(&self.values) {
            let put = array.write(&key.to_ne_bytes(), value, 0);
            put.expect("an array has its elements");
        }
    }
}

/// A number, often one where something changes.
fn number(random: &mut impl Choose) -> u64 {
    let corner = [0, 1, 7, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff];
    let wide = [
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 32,
        i64::MAX as u64,
        1 << 63,
    ];
    let value = match random.below(6) {
        0 => random.of(&corner),
        1 => random.of(&wide),
        2 => random.below(64) as u64,
        _ => random.next(),
    };
    match random.below(5) {
        0 => value.wrapping_neg(),
        // A small lower half says nothing of the upper one.
        1 => value & 0x3f | random.next() << 32,
        _ => value,
    }
}

/// A program for [`maps`], of a type that runs on packets.
pub fn accepted(random: &mut impl Choose) -> Program {
    let mut build = Build {
        insns: Vec::new(),
        random,
        free: Vec::new(),
        has_context: true,
        calls: Vec::new(),
        outs: Vec::new(),
        forks: FORKS,
        times: 1,
    };
    build.main();
    let mut starts = Vec::new();
    for _ in 0..build.calls.len().min(2) {
        starts.push(build.insns.len());
        build.subprogram();
    }
    for (n, &call) in build.calls.iter().enumerate() {
        build.insns[call].imm = (starts[n % 2 % starts.len()] - call - 1) as i32;
    }
    let mut program = raw_program("main", build.insns);
    program.decl.prog_type = ProgType::SchedCls;
    program
        .subprograms
        .extend(starts.iter().map(|&start| Subprogram {
            name: format!("sub{start}"),
            start: start as u32,
            type_id: 0,
            global: false,
        }));
    program
}

const CTX: Reg = Reg::R6;
const MAP_VALUE: Reg = Reg::R7;
const DATA: Reg = Reg::R8;
const FP: Reg = Reg::R10;

use Operand::{Imm, Reg as Of};
use Width::{W32, W64};

/// A program under construction.
struct Build<'a, R> {
    insns: Vec<Insn>,
    random: &'a mut R,
    /// Registers that hold numbers and may be written.
    free: Vec<Reg>,
    /// Whether R6 and R8 are the context and the packet.
    has_context: bool,
    /// Calls of subprograms.
    calls: Vec<usize>,
    /// Jumps to the end of the function.
    outs: Vec<usize>,
    /// How often ways may still part.
    forks: u32,
    /// How often the loops around are passed.
    times: u32,
}

impl<R: Choose> Build<'_, R> {
    fn push(&mut self, op: Op) -> usize {
        let at = self.insns.len();
        let (first, second) = op.encode();
        self.insns.push(first);
        self.insns.extend(second);
        at
    }

    fn alu(&mut self, op: AluOp, width: Width, dst: Reg, src: Operand) {
        self.push(Op::Alu {
            op,
            width,
            dst,
            src,
        });
    }

    fn mov(&mut self, dst: Reg, src: Operand) {
        self.alu(AluOp::Mov, W64, dst, src);
    }

    fn load(&mut self, size: Size, dst: Reg, base: Reg, off: i16) {
        let signed = size != Size::DW && base != CTX && self.random.below(4) == 0;
        self.push(Op::Load {
            size,
            signed,
            dst,
            base,
            off,
        });
    }

    fn store(&mut self, size: Size, base: Reg, off: i16, src: Operand) {
        self.push(Op::Store {
            size,
            base,
            off,
            src,
        });
    }

    /// A jump whose target is set by [`land`](Self::land).
    fn jump_if(&mut self, cond: Cond, width: Width, dst: Reg, src: Operand) -> usize {
        self.push(Op::JumpIf {
            cond,
            width,
            dst,
            src,
            off: 0,
        })
    }

    fn jump(&mut self) -> usize {
        self.push(Op::Jump {
            off: 0,
            wide: false,
        })
    }

    /// Lets a jump lead to what comes next.
    fn land(&mut self, jump: usize) {
        self.insns[jump].off = (self.insns.len() - jump - 1) as i16;
    }

    /// Lets a jump lead back.
    fn back(&mut self, jump: usize, to: usize) {
        self.insns[jump].off = (to as i64 - jump as i64 - 1) as i16;
    }

    /// Leaves the function if a comparison holds, in one of two ways to write it.
    fn out_if(&mut self, cond: Cond, width: Width, dst: Reg, src: Operand) {
        let over = inverted(cond).filter(|_| self.random.below(3) == 0);
        let out = match over {
            Some(over) => {
                let stay = self.jump_if(over, width, dst, src);
                let out = self.jump();
                self.land(stay);
                out
            }
            None => self.jump_if(cond, width, dst, src),
        };
        self.outs.push(out);
    }

    fn number_reg(&mut self) -> Reg {
        self.random.of(&self.free.clone())
    }

    /// Two different registers.
    fn two(&mut self) -> (Reg, Reg) {
        let first = self.random.below(self.free.len());
        let step = 1 + self.random.below(self.free.len() - 1);
        (
            self.free[first],
            self.free[(first + step) % self.free.len()],
        )
    }

    fn width(&mut self) -> Width {
        self.random.of(&[W64, W64, W32])
    }

    fn size(&mut self) -> Size {
        self.random.of(&[Size::B, Size::H, Size::W, Size::DW])
    }

    fn operand(&mut self) -> Operand {
        match self.random.below(2) {
            0 => Of(self.number_reg()),
            _ => Imm(constant(self.random)),
        }
    }

    fn map_argument(&mut self, index: i32) {
        let value = Imm64::MapIdx(index);
        self.push(Op::LoadImm64 {
            dst: Reg::R1,
            value,
        });
    }

    fn main(&mut self) {
        self.mov(CTX, Of(Reg::R1));
        let key = self.random.below(5) as i32;
        self.store(Size::W, FP, -4, Imm(key));
        self.map_argument(0);
        self.mov(Reg::R2, Of(FP));
        self.alu(AluOp::Add, W64, Reg::R2, Imm(-4));
        self.push(Op::Call(Call::Helper(1)));
        let none = self.jump_if(Cond::Eq, W64, Reg::R0, Imm(0));
        self.mov(MAP_VALUE, Of(Reg::R0));
        self.push(ctx_load(DATA, 76));
        self.push(ctx_load(Reg::R9, 80));
        self.mov(Reg::R1, Of(DATA));
        self.alu(AluOp::Add, W64, Reg::R1, Imm(PACKET));
        let short = match self.random.below(2) {
            0 => self.jump_if(Cond::Gt, W64, Reg::R1, Of(Reg::R9)),
            _ => self.jump_if(Cond::Lt, W64, Reg::R9, Of(Reg::R1)),
        };
        self.free = vec![
            Reg::R0,
            Reg::R1,
            Reg::R2,
            Reg::R3,
            Reg::R4,
            Reg::R5,
            Reg::R9,
        ];
        self.leave_out(&[Reg::R9]);
        self.function(3 + 17);
        for jump in [none, short] {
            self.land(jump);
        }
        self.mov(Reg::R0, Imm(0));
        self.push(Op::Exit);
    }

    /// A function of R1, a map value, R2, a place in the caller's frame, R3 to R5, numbers.
    fn subprogram(&mut self) {
        self.has_context = false;
        self.outs.clear();
        self.forks = 2;
        self.mov(MAP_VALUE, Of(Reg::R1));
        self.free = vec![
            Reg::R0,
            Reg::R1,
            Reg::R3,
            Reg::R4,
            Reg::R5,
            Reg::R8,
            Reg::R9,
        ];
        let size = self.size();
        self.store(size, Reg::R2, 0, Of(Reg::R3));
        self.free.push(Reg::R2);
        self.leave_out(&[Reg::R8, Reg::R9]);
        for reg in self.free.clone() {
            if !matches!(reg, Reg::R3 | Reg::R4 | Reg::R5) {
                self.fresh(reg);
            }
        }
        self.slots();
        self.pieces(6);
        self.end();
    }

    /// Leaves registers alone in some functions: compilers have a use for them.
    fn leave_out(&mut self, some: &[Reg]) {
        if self.random.below(2) == 0 {
            self.free.retain(|reg| !some.contains(reg));
        }
    }

    /// All of a function but what comes before it has its pointers.
    fn function(&mut self, most: usize) {
        for reg in self.free.clone() {
            self.fresh(reg);
        }
        self.slots();
        self.pieces(most);
        self.end();
    }

    /// Sets every slot of numbers.
    fn slots(&mut self) {
        for slot in 1..=SLOTS {
            let src = self.operand();
            self.store(Size::DW, FP, -8 * slot, src);
        }
    }

    /// What every way comes to: all numbers go into the map value.
    fn end(&mut self) {
        for jump in std::mem::take(&mut self.outs) {
            self.land(jump);
        }
        for (n, reg) in (0..).zip(self.free.clone()) {
            self.store(Size::DW, MAP_VALUE, 8 * n, Of(reg));
        }
        for slot in 1..=SLOTS {
            let size = self.random.of(&[Size::DW, Size::DW, Size::W, Size::H]);
            self.load(size, Reg::R1, FP, -8 * slot);
            self.alu(AluOp::Xor, W64, Reg::R0, Of(Reg::R1));
        }
        self.push(Op::Exit);
    }

    /// Sets a register to a number that is mostly not known.
    fn fresh(&mut self, reg: Reg) {
        let size = self.size();
        let bytes = size.bytes() as i32;
        match self.random.below(8) {
            0 => {
                let value = constant(self.random);
                self.mov(reg, Imm(value));
            }
            1 if self.has_context => {
                let field = self.random.of(&[0, 4, 8, 16, 40]);
                self.push(ctx_load(reg, field));
            }
            2 | 3 if self.has_context => {
                let off = self.random.below((PACKET - bytes + 1) as usize);
                self.load(size, reg, DATA, off as i16);
            }
            4 => {
                let value = self.random.next();
                let value = Imm64::Value(value);
                self.push(Op::LoadImm64 { dst: reg, value });
            }
            _ => {
                let off = self.random.below((VALUE - bytes + 1) as usize);
                self.load(size, reg, MAP_VALUE, off as i16);
            }
        }
    }
}

fn ctx_load(dst: Reg, off: i16) -> Op {
    Op::Load {
        size: Size::W,
        signed: false,
        dst,
        base: CTX,
        off,
    }
}

/// What holds where a comparison does not, if instructions can say it.
fn inverted(cond: Cond) -> Option<Cond> {
    use Cond::*;
    Some(match cond {
        Eq => Ne,
        Ne => Eq,
        Gt => Le,
        Ge => Lt,
        Lt => Ge,
        Le => Gt,
        Set => return None,
        Sgt => Sle,
        Sge => Slt,
        Slt => Sge,
        Sle => Sgt,
    })
}
