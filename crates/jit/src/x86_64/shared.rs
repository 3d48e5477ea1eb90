//! Code that all programs share: how they are entered and left, and how they call Rust.

use std::borrow::Cow;
use std::mem::offset_of;
use std::sync::LazyLock;

use bpfkit_runtime::LoadOptions;
use bpfkit_runtime::native::State;

use super::emit::{Arith, Asm, Cc, Label, Mem};
use super::regs::{ARGS, FRAME, FUEL, Gpr, R10, R11, RAX, RCX, RDI, RDX, RSI, RSP, SAVED, STATE};
use super::tail_call;
use crate::backend;
use crate::callout;
use crate::lower;

const FUEL_AT: i32 = offset_of!(State, fuel) as i32;
const UNWIND_AT: i32 = offset_of!(State, unwind) as i32;
const SCRATCH_AT: i32 = offset_of!(State, scratch) as i32;
pub(super) const CPU: Mem = Mem {
    base: Some(STATE),
    index: None,
    disp: offset_of!(State, cpu) as i32,
};

/// A stretch of shared code, for trusted and for checked programs each. Those that call Rust
/// for an instruction are called with an aligned stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Stub {
    /// Called from outside with `(state, arguments, frame, function)`: runs a main function,
    /// which finds the stack aligned and may use every register.
    Main,
    /// The same for a function that others call.
    Function,
    /// Helpers: function in R10 and, in checked code, slot in EAX. R0 is the result.
    Helper,
    /// Tail calls that may be a jump, of verified code: what the array's slot holds in R10, what
    /// a program must be in R11. Else as the next one.
    Jump,
    /// Tail calls: slot in R10. Whether it happened in the flags, as "not equal".
    TailCall,
    /// An access whose span is not known: address in R11, detail in R10; gives R11.
    Access,
    /// Legacy packet loads: offset in R11, detail in R10; gives value and failure there.
    Packet,
    /// A round of `may_goto` is over: budget's address in R11, detail in R10; gives R11, 0 to jump.
    MayGoto,
    /// Opens the frame above; detail in R10.
    Open,
    /// Closes the frame above.
    Close,
    /// Ends the run: detail in R10, address in R11. Does not return.
    Stop,
}

const STUBS: [Stub; 11] = [
    Stub::Main,
    Stub::Function,
    Stub::Helper,
    Stub::Jump,
    Stub::TailCall,
    Stub::Access,
    Stub::Packet,
    Stub::MayGoto,
    Stub::Open,
    Stub::Close,
    Stub::Stop,
];

impl Stub {
    /// What it does, for listings.
    fn name(self) -> &'static str {
        match self {
            Stub::Main => "run of a program",
            Stub::Function => "run of a function",
            Stub::Helper => "call of a helper",
            Stub::Jump => "direct tail call",
            Stub::TailCall => "tail call",
            Stub::Access => "unknown place",
            Stub::Packet => "legacy packet load",
            Stub::MayGoto => "clock of may_goto",
            Stub::Open => "open a frame",
            Stub::Close => "close a frame",
            Stub::Stop => "stop",
        }
    }
}

/// What a call of a certain function in Rust is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Thunk {
    /// Of a helper or kfunc, in trusted code.
    Helper,
    /// Of a look-up: map in RDI, key in RSI.
    Lookup,
    /// Of a helper without arguments that cannot fail.
    Ask,
}

/// The shared code, and where it is called. Places count from its end.
pub(super) struct Shared {
    code: backend::Shared,
    stubs: [[i32; STUBS.len()]; 2],
    /// Calls of certain functions, of each kind for trusted and for checked code: the function's
    /// address, and the place; sorted.
    thunks: [[Vec<(u64, i32)>; 2]; 3],
}

/// That of this process.
pub(super) fn shared() -> &'static Shared {
    static SHARED: LazyLock<Shared> = LazyLock::new(Shared::new);
    &SHARED
}

/// The shared code, to be put in front of programs.
pub(crate) fn shared_code() -> &'static backend::Shared {
    &shared().code
}

impl Shared {
    pub(super) fn stub(&self, stub: Stub, checked: bool) -> i32 {
        self.stubs[usize::from(checked)][stub as usize]
    }

    pub(super) fn thunk(&self, thunk: Thunk, checked: bool, function: u64) -> Option<i32> {
        let thunks = &self.thunks[thunk as usize][usize::from(checked)];
        let at = thunks.binary_search_by_key(&function, |(at, _)| *at);
        Some(thunks[at.ok()?].1)
    }

    fn new() -> Self {
        let mut places: Vec<(Label, Cow<'static, str>)> = Vec::new();
        let mut thunks: Vec<((Thunk, bool, u64), Label)> = Vec::new();
        let mut asm = Asm::new(0, 0);
        let stubs = [false, true].map(|checked| {
            let mut writer = Writer::new(asm_of(&mut asm), checked);
            let labels = STUBS.map(|stub| {
                let label = writer.asm.label();
                writer.asm.bind(label);
                writer.stub(stub);
                places.push((label, stub.name().into()));
                label
            });
            writer.unwinding();
            places.push((writer.unwind, "unwind".into()));
            let helper = labels[Stub::Helper as usize];
            for (thunk, function, name) in functions() {
                if checked && thunk == Thunk::Helper {
                    continue;
                }
                let label = writer.asm.label();
                writer.asm.bind(label);
                writer.thunk(thunk, function, helper);
                places.push((label, name));
                thunks.push(((thunk, checked, function), label));
            }
            asm = writer.asm;
            labels
        });
        // Programs begin aligned.
        let finished = asm.finish();
        let mut code = finished.code.clone();
        code.resize(code.len().next_multiple_of(64), 0xcc);
        let place = |label| finished.offset(label).unwrap_or(0) as i32 - code.len() as i32;
        let mut sorted: [[Vec<(u64, i32)>; 2]; 3] = Default::default();
        for ((thunk, checked, function), label) in thunks {
            sorted[thunk as usize][usize::from(checked)].push((function, place(label)));
        }
        for thunks in sorted.iter_mut().flatten() {
            thunks.sort_unstable();
        }
        let places = places.into_iter();
        Self {
            stubs: stubs.map(|labels| labels.map(place)),
            thunks: sorted,
            code: backend::Shared {
                places: places.map(|(label, name)| (place(label), name)).collect(),
                code,
            },
        }
    }
}

fn asm_of(asm: &mut Asm) -> Asm {
    std::mem::replace(asm, Asm::new(0, 0))
}

/// Functions in Rust that get a call of their own, with their names.
fn functions() -> impl Iterator<Item = (Thunk, u64, Cow<'static, str>)> {
    let table = LoadOptions::default().functions;
    let helpers = table.helpers().map(|(id, function)| {
        let helper = bpfkit_spec::helper::by_id(id);
        let name = helper.map_or_else(|| "a helper".into(), |helper| helper.full_name().into());
        (Thunk::Helper, function as usize as u64, name)
    });
    let kfuncs = table
        .kfuncs()
        .map(|(name, function)| (Thunk::Helper, function as usize as u64, name.into()));
    let lookups = bpfkit_maps::lookup_fns()
        .map(|(function, name)| (Thunk::Lookup, function as usize as u64, name.into()));
    let asked = lower::ASKED.iter().filter_map(move |&id| {
        let name = format!("ask {}", bpfkit_spec::helper::by_id(id)?.full_name());
        Some((Thunk::Ask, table.helper(id)? as usize as u64, name.into()))
    });
    helpers.chain(kfuncs).chain(lookups).chain(asked)
}

/// Writes the shared code of trusted or of checked programs.
struct Writer {
    asm: Asm,
    checked: bool,
    /// Ends a run: gives the caller's caller 1 as status.
    unwind: Label,
    /// Returns to outside with RAX and RDX.
    leave: Label,
}

impl Writer {
    fn new(mut asm: Asm, checked: bool) -> Self {
        let (unwind, leave) = (asm.label(), asm.label());
        Self {
            asm,
            checked,
            unwind,
            leave,
        }
    }

    fn stub(&mut self, stub: Stub) {
        match stub {
            Stub::Main => self.enter(8),
            Stub::Function => self.enter(0),
            Stub::Helper => self.helper(),
            Stub::Jump => tail_call::jump(&mut self.asm),
            Stub::TailCall => self.tail_call(),
            Stub::Access => self.preserving(callout::access as *const () as usize, true),
            Stub::Packet => self.preserving(callout::packet as *const () as usize, false),
            Stub::MayGoto => self.preserving(callout::may_goto as *const () as usize, false),
            Stub::Open => self.preserving(callout::open as *const () as usize, true),
            Stub::Close => self.preserving(callout::close as *const () as usize, true),
            Stub::Stop => self.stop(),
        }
    }

    /// Keeps all that the caller wants to find again, and the outer unwinding point below;
    /// then the stack is aligned.
    fn enter(&mut self, pad: i32) {
        for reg in kept() {
            self.asm.push(reg);
        }
        self.asm.push_mem(Mem::at(RDI, UNWIND_AT));
        self.asm.store(8, Mem::at(RDI, UNWIND_AT), RSP);
        self.asm.mov(true, STATE, RDI);
        self.asm.mov(true, FRAME, RDX);
        self.asm.mov(true, RAX, RCX);
        self.take_fuel();
        // RSI points to the arguments: R2 last.
        for number in [1, 3, 4, 5, 2] {
            let place = Mem::at(RSI, (number as i32 - 1) * 8);
            self.asm.load(8, false, ARGS[number - 1], place);
        }
        self.move_stack(Arith::Sub, pad);
        self.asm.call_reg(RAX);
        self.move_stack(Arith::Add, pad);
        self.asm.zero(RDX);
        self.asm.jmp(self.leave);
    }

    fn unwinding(&mut self) {
        self.asm.bind(self.unwind);
        self.asm.load(8, false, RSP, Mem::at(STATE, UNWIND_AT));
        self.take_fuel();
        self.asm.mov_imm(RDX, 1);
        self.asm.bind(self.leave);
        self.put_fuel();
        self.asm.pop_mem(Mem::at(STATE, UNWIND_AT));
        for reg in kept().rev() {
            self.asm.pop(reg);
        }
        self.asm.ret();
    }

    fn move_stack(&mut self, op: Arith, bytes: i32) {
        if bytes != 0 {
            self.asm.arith_imm(op, true, RSP, bytes);
        }
    }

    fn put_fuel(&mut self) {
        if self.checked {
            self.asm.store(8, Mem::at(STATE, FUEL_AT), FUEL);
        }
    }

    fn take_fuel(&mut self) {
        if self.checked {
            self.asm.load(8, false, FUEL, Mem::at(STATE, FUEL_AT));
        }
    }

    fn call_rust(&mut self, function: usize) {
        self.asm.mov_imm(RAX, function as u64);
        self.asm.call_reg(RAX);
    }

    fn helper(&mut self) {
        self.put_fuel();
        // Where this returns to tells the slot, where it is not given.
        if !self.checked {
            self.asm.load(8, false, RAX, Mem::at(RSP, 0));
        }
        self.asm.store(8, Mem::at(STATE, SCRATCH_AT), RAX);
        // With the return address, this aligns the stack.
        for arg in ARGS.into_iter().rev() {
            self.asm.push(arg);
        }
        self.asm.mov(true, RSI, RSP);
        self.asm.mov(true, RDI, STATE);
        self.asm.mov(true, RDX, R10);
        self.asm.mov(true, RCX, FRAME);
        self.call_rust(callout::helper as *const () as usize);
        self.asm.arith_imm(Arith::Add, true, RSP, 40);
        self.asm.test(false, RDX, RDX);
        self.asm.jcc(Cc::Ne, self.unwind);
        self.take_fuel();
        self.asm.ret();
    }

    fn tail_call(&mut self) {
        self.put_fuel();
        self.asm.store(8, Mem::at(STATE, SCRATCH_AT), R10);
        self.asm.arith_imm(Arith::Sub, true, RSP, 56);
        for (i, arg) in ARGS.into_iter().enumerate() {
            self.asm.store(8, Mem::at(RSP, i as i32 * 8), arg);
        }
        self.asm.store(8, Mem::at(RSP, 40), RAX);
        self.asm.mov(true, RSI, RSP);
        self.asm.mov(true, RDI, STATE);
        self.asm.mov(true, RCX, FRAME);
        self.call_rust(callout::tail_call as *const () as usize);
        self.take_fuel();
        self.asm.arith_imm(Arith::Cmp, false, RDX, 1);
        self.asm.jcc(Cc::E, self.unwind);
        let happened = self.asm.label();
        self.asm.test(false, RDX, RDX);
        self.asm.jcc(Cc::Ne, happened);
        for (i, arg) in ARGS.into_iter().enumerate() {
            self.asm.load(8, false, arg, Mem::at(RSP, i as i32 * 8));
        }
        self.asm.load(8, false, RAX, Mem::at(RSP, 40));
        self.asm.bind(happened);
        // Leaves the flags alone.
        self.asm.lea(RSP, Mem::at(RSP, 56));
        self.asm.ret();
    }

    /// Calls `function(state, R11, R10, frame)`, which gives R11 and R10, and keeps what
    /// programs see.
    fn preserving(&mut self, function: usize, may_trap: bool) {
        self.put_fuel();
        self.asm.push(RAX);
        for arg in ARGS {
            self.asm.push(arg);
        }
        self.asm.arith_imm(Arith::Sub, true, RSP, 8);
        self.callout(function);
        if may_trap {
            self.asm.test(false, RDX, RDX);
            self.asm.jcc(Cc::Ne, self.unwind);
        }
        self.asm.mov(true, R11, RAX);
        self.asm.mov(true, R10, RDX);
        self.take_fuel();
        self.asm.arith_imm(Arith::Add, true, RSP, 8);
        for arg in ARGS.into_iter().rev() {
            self.asm.pop(arg);
        }
        self.asm.pop(RAX);
        self.asm.ret();
    }

    fn callout(&mut self, function: usize) {
        self.asm.mov(true, RDI, STATE);
        self.asm.mov(true, RSI, R11);
        self.asm.mov(true, RDX, R10);
        self.asm.mov(true, RCX, FRAME);
        self.call_rust(function);
    }

    fn stop(&mut self) {
        self.put_fuel();
        self.asm.arith_imm(Arith::Sub, true, RSP, 8);
        self.callout(callout::stop as *const () as usize);
        self.asm.jmp(self.unwind);
    }

    fn thunk(&mut self, thunk: Thunk, function: u64, helper: Label) {
        match thunk {
            Thunk::Helper => {
                self.asm.mov_imm(R10, function);
                return self.asm.jmp(helper);
            }
            Thunk::Lookup => self.asm.load(4, false, RDX, CPU),
            Thunk::Ask => {
                self.asm.mov(true, RDI, STATE);
                self.asm.mov_imm(RSI, function);
            }
        }
        let function = match thunk {
            Thunk::Ask => callout::ask as *const () as u64,
            _ => function,
        };
        self.asm.mov_imm(RAX, function);
        if !self.checked {
            return self.asm.jmp_to(RAX);
        }
        self.put_fuel();
        self.move_stack(Arith::Sub, 8);
        self.asm.call_reg(RAX);
        self.move_stack(Arith::Add, 8);
        self.take_fuel();
        self.asm.ret();
    }
}

/// What the C calling convention wants to be kept.
fn kept() -> impl DoubleEndedIterator<Item = Gpr> {
    SAVED.into_iter().map(|(reg, _)| reg).chain([FRAME, STATE])
}
