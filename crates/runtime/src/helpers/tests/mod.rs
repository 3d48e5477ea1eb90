//! Helpers called through the table, in checked mode: what they answer, and that memory
//! that is not the program's faults.

mod data;
mod kfuncs;
mod maps;
mod network;
mod packets;
mod surroundings;
mod tables;

use std::sync::Arc;

use bpfkit_isa::asm;
use bpfkit_maps::Errno;
use bpfkit_object::{MapDef, Subprogram};
use bpfkit_spec::{MapType, ProgType};

use super::functions;
use crate::context::Input;
use crate::engine::{Code, Engine, LoadOptions, Local, Outcome};
use crate::env::Env;
use crate::fault::{FaultKind, Trap, TrapKind};
use crate::host::FixedHost;
use crate::interp::Interpreter;
use crate::mapset::{MapOptions, MapSet};
use crate::vm::{FRAME_BYTES, Vm};
use bpfkit_object::raw_program;

/// A machine with maps and a context, in which a test plays the program.
pub(super) struct Rig {
    pub vm: Vm,
    pub maps: Arc<MapSet>,
    pub input: Input,
    pub host: Arc<FixedHost>,
    program: Arc<dyn Local>,
}

/// A map of the rig.
pub(super) fn map(map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> MapDef {
    MapDef::new(
        format!("{map_type:?}"),
        map_type,
        key_size,
        value_size,
        max_entries,
    )
}

/// The rig's program: callbacks for helpers that take one.
const CALLBACKS: &str = "
    r0 = 0
    exit
f_go:
    r0 = 0
    exit
f_stop:
    r0 = 1
    exit
f_add_index:
    r3 = *(u64 *)(r2 + 0)
    r3 += r1
    *(u64 *)(r2 + 0) = r3
    r0 = 0
    if r1 != 6 goto add_done
    r0 = 1
add_done:
    exit
f_add_value:
    r5 = *(u64 *)(r3 + 0)
    r0 = *(u64 *)(r4 + 0)
    r0 += r5
    r5 = *(u32 *)(r2 + 0)
    r0 += r5
    *(u64 *)(r4 + 0) = r0
    r0 = 0
    exit
f_less:
    r3 = *(u64 *)(r1 - 8)
    r4 = *(u64 *)(r2 - 8)
    r0 = 1
    if r3 < r4 goto less_done
    r0 = 0
less_done:
    exit
f_mark_value:
    r4 = *(u32 *)(r2 + 0)
    r4 += 1000
    *(u64 *)(r3 + 0) = r4
    r0 = 0
    exit
";

impl Rig {
    pub fn new(prog_type: ProgType, defs: &[MapDef], input: Input) -> Self {
        let maps = MapSet::new(defs, &MapOptions { cpus: 2 }).unwrap();
        let text = asm::assemble(CALLBACKS).unwrap();
        let mut program = raw_program("rig", text.insns);
        program.decl.prog_type = prog_type;
        program
            .subprograms
            .extend(
                text.labels
                    .iter()
                    .filter(|l| l.name.starts_with("f_"))
                    .map(|l| Subprogram {
                        name: l.name.clone(),
                        start: l.slot as u32,
                        type_id: 0,
                        global: false,
                    }),
            );
        let code = Code::Unverified(Arc::new(program));
        let exec = Interpreter::default()
            .load(code, &maps, &LoadOptions::default())
            .unwrap();
        let host = Arc::new(FixedHost::default());
        Self {
            vm: Vm::new(0, host.clone()),
            maps,
            input,
            host,
            program: exec.local().unwrap(),
        }
    }

    /// A rig for programs without a packet.
    pub fn bare(defs: &[MapDef]) -> Self {
        Self::new(
            ProgType::Syscall,
            defs,
            Input::context(ProgType::Syscall, &[0; 64]).unwrap(),
        )
    }

    pub fn packet(prog_type: ProgType, bytes: &[u8]) -> Self {
        Self::new(prog_type, &[], Input::packet(prog_type, bytes).unwrap())
    }

    /// Plays a program: `body` calls helpers. Panics inside it fail the test.
    pub fn run(&mut self, body: impl FnOnce(&mut Play<'_, '_>)) -> Outcome {
        self.vm.start(&*self.program, &mut self.input, |env, args| {
            // SAFETY: the current window is the run's first, and nothing borrows it.
            let top = unsafe { (*env.window).r[10] };
            env.memory.set_stack_top(top);
            body(&mut Play {
                stack: top - FRAME_BYTES as u64,
                env,
                ctx: args[0],
            });
            Ok(0)
        })
    }
}

/// A running program.
pub(super) struct Play<'a, 'r> {
    pub env: &'a mut Env<'r>,
    /// R1 at entry.
    pub ctx: u64,
    /// Lowest byte of the stack frame; 512 bytes are the program's.
    pub stack: u64,
}

/// An error as a helper returns it.
pub(super) fn err(e: Errno) -> i64 {
    e.as_ret()
}

impl Play<'_, '_> {
    pub fn try_call(&mut self, name: &str, args: &[u64]) -> Result<i64, Trap> {
        let function = match bpfkit_spec::helper::by_name(name) {
            Some(helper) if !name.starts_with("bpf_") => functions().helper(helper.id as i32),
            _ => functions().kfunc(name),
        };
        let function = function.unwrap_or_else(|| panic!("no helper or kfunc {name}"));
        let mut all = [0; 5];
        all[..args.len()].copy_from_slice(args);
        function(self.env, &all).map(|r| r as i64)
    }

    pub fn call(&mut self, name: &str, args: &[u64]) -> i64 {
        match self.try_call(name, args) {
            Ok(r) => r,
            Err(trap) => panic!("{name}: {:?}", trap.into_kind()),
        }
    }

    /// The call must fault on an access.
    pub fn faults(&mut self, name: &str, args: &[u64]) {
        match self.try_call(name, args).map_err(Trap::into_kind) {
            Err(TrapKind::Fault(FaultKind::Access { .. })) => {}
            other => panic!("{name}{args:x?} should fault: {other:?}"),
        }
    }

    /// Puts bytes on the stack; returns their address.
    pub fn put(&mut self, at: u64, bytes: &[u8]) -> u64 {
        self.env
            .write(self.stack + at, bytes.len() as u64)
            .unwrap()
            .copy_from_slice(bytes);
        self.stack + at
    }

    pub fn bytes(&mut self, ptr: u64, len: u64) -> Vec<u8> {
        self.env.read(ptr, len).unwrap().to_vec()
    }

    pub fn u32_at(&mut self, ptr: u64) -> u32 {
        u32::from_ne_bytes(self.env.load(ptr).unwrap())
    }

    pub fn u64_at(&mut self, ptr: u64) -> u64 {
        u64::from_ne_bytes(self.env.load(ptr).unwrap())
    }

    /// The pointer to one of the rig's callbacks.
    pub fn function(&self, name: &str) -> u64 {
        let subprograms = &self.env.program().subprograms;
        let found = subprograms.iter().find(|s| s.name == name).unwrap();
        self.env.executable().function_at(found.start).unwrap()
    }

    /// The pointer to a map of the rig.
    pub fn map(&self, index: u32) -> u64 {
        Arc::as_ptr(self.env.maps().get(index).unwrap()) as usize as u64
    }

    /// `data` and `data_end` of a packet's context.
    pub fn window(&mut self, data: u64, end: u64) -> (u64, u64) {
        let ctx = self.ctx;
        (
            u64::from(self.u32_at(ctx + data)),
            u64::from(self.u32_at(ctx + end)),
        )
    }
}
