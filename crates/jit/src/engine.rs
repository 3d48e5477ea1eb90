//! The compiler as an [`Engine`].

use std::any::Any;
use std::sync::{Arc, LazyLock, Weak};

use bpfkit_object::Program;
use bpfkit_runtime::native::{self, State};
use bpfkit_runtime::{
    Args, Code as Source, Context, Engine, Env, Executable, FaultKind, LoadError, LoadErrorKind,
    LoadOptions, Local, MapSet, Outcome, PacketCode, PacketProgram, Trap, Vm,
};

use crate::backend::{self, Arch, Compiled, Features, Part};
use crate::callout::Pair;
use crate::code_memory::{Code, CodeMemory};
use crate::lower::{Plan, Rules};
use crate::packet::{self, Filter};
use crate::perf::MachineCode;

/// Compiles programs for the processor that it runs on.
#[derive(Clone)]
pub struct Jit {
    memory: Arc<CodeMemory>,
    rules: Rules,
    features: Features,
    parts: bool,
}

impl Default for Jit {
    /// With every rule, and code memory shared by all that are made this way.
    fn default() -> Self {
        static SHARED: LazyLock<Arc<CodeMemory>> = LazyLock::new(CodeMemory::new);
        Self::new(Arc::clone(&SHARED), Rules::default(), Features::host())
    }
}

impl Jit {
    /// A compiler with a code memory, rules to follow and processor features to use; what the
    /// processor does not have is not used.
    pub fn new(memory: Arc<CodeMemory>, rules: Rules, features: Features) -> Self {
        let features = features.and(Features::host());
        Self {
            memory,
            rules,
            features,
            parts: false,
        }
    }

    /// The same, keeping with each program what the stretches of its code belong to: for
    /// profilers ([`machine_code`]).
    #[must_use]
    pub fn with_parts(self) -> Self {
        Self {
            parts: true,
            ..self
        }
    }

    fn install(&self, compiled: &Compiled) -> Result<Code, LoadError> {
        let installed = self.memory.install_linked(&compiled.code, &compiled.links);
        installed.map_err(|error| LoadError {
            insn: 0,
            kind: LoadErrorKind::Engine(format!("no memory for code: {error}")),
        })
    }

    /// The machine code of a program for any architecture, for reading, with every feature
    /// that its processors may have.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn compile(
        &self,
        arch: Arch,
        code: &Source,
        maps: &MapSet,
        options: &LoadOptions<'_>,
    ) -> Result<Vec<u8>, LoadError> {
        let mut plan = Plan::of(code, maps, options, self.rules)?;
        Ok(backend::compile(arch, &mut plan, Features::ALL, 0, false)?.code)
    }

    /// The machine code of a program for any architecture with what its stretches belong to,
    /// as it is `checked` or not. It is for reading: nobody looked whether it may run.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn listing(
        &self,
        arch: Arch,
        program: &Program,
        checked: bool,
        maps: &MapSet,
        options: &LoadOptions<'_>,
    ) -> Result<Listing, LoadError> {
        let mut plan = Plan::new(
            program,
            maps,
            options,
            checked || maps.arena().is_some(),
            self.rules,
        )?;
        let compiled = backend::compile(arch, &mut plan, Features::ALL, 0, true)?;
        Ok(Listing {
            code: compiled.code,
            parts: compiled.parts,
        })
    }

    /// The same for a program over a packet.
    ///
    /// # Errors
    /// As [`Engine::load_packet`].
    pub fn compile_packet(
        &self,
        arch: Arch,
        program: &PacketProgram,
    ) -> Result<Vec<u8>, LoadError> {
        let (maps, options) = (MapSet::empty(), LoadOptions::default());
        let plan = Plan::new(program.program(), &maps, &options, false, self.rules)?;
        let mut plan = packet::as_function(plan)?;
        Ok(backend::compile(arch, &mut plan, Features::ALL, 0, false)?.code)
    }
}

/// This machine's architecture.
fn host() -> Result<Arch, LoadError> {
    Arch::HOST.ok_or_else(|| LoadError {
        insn: 0,
        kind: LoadErrorKind::Engine("no compiler for this architecture".to_owned()),
    })
}

/// Machine code, and what its stretches belong to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// The code.
    pub code: Vec<u8>,
    /// Where its stretches begin, sorted by offset. Where several begin at once, all but the
    /// last are empty.
    pub parts: Vec<Part>,
}

impl Engine for Jit {
    fn name(&self) -> &'static str {
        "jit"
    }

    fn load(
        &self,
        code: Source,
        maps: &Arc<MapSet>,
        options: &LoadOptions<'_>,
    ) -> Result<Arc<dyn Executable>, LoadError> {
        code.check_maps(maps)?;
        let mut plan = Plan::of(&code, maps, options, self.rules)?;
        let (program, checked) = (code.program(), plan.checked);
        let pointer_ids = vec![0; plan.pointers.len()].into_boxed_slice();
        let base = pointer_ids.as_ptr().addr() as u64;
        let arch = host()?;
        let compiled = backend::compile(arch, &mut plan, self.features, base, self.parts)?;
        let installed = self.install(&compiled)?;
        let starts = plan.functions.iter().map(|f| f.start);
        let functions = starts.zip(compiled.functions).collect();
        let steps_after = if checked {
            plan.steps_after()
        } else {
            Box::default()
        };
        let bare = !checked && plan.is_bare();
        let direct = !(checked || plan.main_is_called);
        let pointers = plan.pointers;
        let (program, maps) = (Arc::clone(program), Arc::clone(maps));
        Ok(Arc::new_cyclic(|this| Loaded {
            this: this.clone(),
            code: installed,
            parts: compiled.parts,
            enter_main: compiled.enter_main,
            enter_function: compiled.enter_function,
            functions,
            pointers,
            pointer_ids,
            returns: compiled.returns,
            steps_after,
            program,
            maps,
            checked,
            bare,
            direct,
        }))
    }

    fn load_packet(&self, program: &PacketProgram) -> Result<Arc<dyn PacketCode>, LoadError> {
        let (maps, options) = (MapSet::empty(), LoadOptions::default());
        let plan = Plan::new(program.program(), &maps, &options, false, self.rules)?;
        let mut plan = packet::as_function(plan)?;
        let compiled = backend::compile(host()?, &mut plan, self.features, 0, false)?;
        let code = self.install(&compiled)?;
        // SAFETY: the plan is of this program over a packet, and this its code.
        Ok(Arc::new(unsafe { Filter::new(&plan, code) }))
    }
}

/// A compiled program.
struct Loaded {
    this: Weak<Loaded>,
    code: Code,
    /// What its stretches belong to, if that was asked for.
    parts: Vec<Part>,
    /// Offsets to enter main and other functions through, as the compiler gives them.
    enter_main: Option<i32>,
    enter_function: i32,
    /// First slots of functions with the offsets of their code, sorted.
    functions: Box<[(u32, u32)]>,
    /// Slots that function pointers may lead to, sorted.
    pointers: Vec<u32>,
    /// The addresses of these bytes stand for them.
    pointer_ids: Box<[u8]>,
    /// Offsets that helpers return to, sorted, with the slots of their calls.
    returns: Vec<(u32, u32)>,
    /// In checked code, what was counted at the start of a segment and follows each slot.
    steps_after: Box<[u32]>,
    program: Arc<Program>,
    maps: Arc<MapSet>,
    checked: bool,
    /// Whether other programs may jump to the code.
    direct: bool,
    /// Whether the code needs nothing of a run but R1–R5 and its frame.
    bare: bool,
}

/// The machine code of a program that a [`Jit`] has loaded; `None` for another engine's.
pub fn machine_code(program: &dyn Local) -> Option<MachineCode<'_>> {
    let loaded = program.as_any().downcast_ref::<Loaded>()?;
    Some(MachineCode {
        address: loaded.code.start() as u64,
        code: loaded.code.bytes(),
        parts: &loaded.parts,
        program: &loaded.program,
    })
}

/// Addresses of a function: where it is entered from outside, and its own code.
#[derive(Clone, Copy)]
struct Place {
    entry: usize,
    function: usize,
}

type Entry = unsafe extern "C" fn(*mut State, *const Args, u64, usize) -> Pair;

/// Code at an address as something to call.
///
/// # Safety
/// A backend has put code of this signature there.
unsafe fn entry_at(address: usize) -> Entry {
    let code: *const () = std::ptr::with_exposed_provenance(address);
    // SAFETY: by this function's contract.
    unsafe { std::mem::transmute::<*const (), Entry>(code) }
}

impl Loaded {
    /// The slot of a function pointer.
    fn function(&self, pointer: u64) -> Option<u32> {
        let index = pointer.checked_sub(self.pointer_ids.as_ptr().addr() as u64)?;
        self.pointers.get(usize::try_from(index).ok()?).copied()
    }

    /// Where the code of the function at a slot is entered, and where it is.
    fn place(&self, slot: u32) -> Result<Place, Trap> {
        let start = self.code.start();
        if slot == 0 {
            let through = self.enter_main;
            return Ok(Place {
                entry: through.map_or(start, |offset| self.code.place(offset)),
                function: start,
            });
        }
        let at = self.functions.binary_search_by_key(&slot, |f| f.0);
        let at = at.map_err(|_| Trap::from(FaultKind::BadFunction(slot.into())))?;
        Ok(Place {
            entry: self.code.place(self.enter_function),
            function: start + self.functions[at].1 as usize,
        })
    }

    /// Runs the function at a slot in the open frame with that R10.
    fn call(&self, env: &mut Env<'_>, slot: u32, frame: u64, args: Args) -> Result<u64, Trap> {
        self.call_at(env, self.place(slot)?, frame, args)
    }

    #[inline]
    fn call_at(
        &self,
        env: &mut Env<'_>,
        place: Place,
        frame: u64,
        args: Args,
    ) -> Result<u64, Trap> {
        let (state, running) = (env.native_state(), env.running());
        // SAFETY: at the entry the backend put code of this signature. The
        // state is the run's; the code reaches `env` through it while this borrow rests. The
        // code touches memory as `Trusted` or its checks allow.
        let result = unsafe {
            (*state).env = std::ptr::from_mut(env).expose_provenance();
            (*state).fuel = env.fuel();
            (*state).cpu = env.cpu();
            (*state).percpu_offset = env.percpu_offset();
            let entry = entry_at(place.entry);
            entry(state, &raw const args, frame, place.function)
        };
        // SAFETY: as above.
        let (fuel, slot) = unsafe { ((*state).fuel, (*state).scratch) };
        if result.status == 0 {
            env.set_fuel(fuel);
            // Another program may have taken over.
            // SAFETY: as above.
            unsafe { (*state).entered = 0 };
            env.go_on_as(running);
            return Ok(result.value);
        }
        // The rest of the segment was counted and has not happened.
        let rest = self.steps_after.get(slot).copied().unwrap_or(0);
        env.set_fuel(fuel.wrapping_add(rest.into()));
        Err(env
            .take_trap()
            .unwrap_or_else(|| Trap::helper("a trap without a reason")))
    }
}

impl Executable for Loaded {
    fn program(&self) -> &Arc<Program> {
        &self.program
    }

    fn maps(&self) -> &Arc<MapSet> {
        &self.maps
    }

    fn run(&self, vm: &mut Vm, context: &mut dyn Context) -> Outcome {
        if self.bare {
            return native::run_bare(vm, self, context, |args, frame| {
                // SAFETY: at its start the backend put code of this signature, which needs no
                // state; it touches memory as `Trusted` says.
                unsafe { entry_at(self.code.start())(std::ptr::null_mut(), args, frame, 0).value }
            });
        }
        let mut outcome = native::start(vm, self, context, |env, args| {
            let frame = env.frame();
            // SAFETY: the first frame is free when a run starts.
            unsafe { env.open_frame(frame)? };
            self.call(env, 0, frame, args)
        });
        if !self.checked {
            outcome.steps = 0;
        }
        outcome
    }

    fn local(self: Arc<Self>) -> Option<Arc<dyn Local>> {
        Some(self)
    }
}

impl Local for Loaded {
    fn shared(&self) -> Option<Arc<dyn Local>> {
        Some(self.this.upgrade()?)
    }

    fn trusted(&self) -> bool {
        !self.checked
    }

    fn enter(&self, env: &mut Env<'_>, args: Args) -> Result<u64, Trap> {
        let frame = env.frame();
        self.call(env, 0, frame, args)
    }

    fn invoke(&self, env: &mut Env<'_>, function: u64, args: Args) -> Result<u64, Trap> {
        let slot = self
            .function(function)
            .ok_or(FaultKind::BadFunction(function))?;
        env.in_new_frame(|env, frame| self.call(env, slot, frame, args))
    }

    fn repeat(
        &self,
        env: &mut Env<'_>,
        function: u64,
        turns: u32,
        context: u64,
    ) -> Result<u64, Trap> {
        let bad = FaultKind::BadFunction(function);
        let place = self.place(self.function(function).ok_or(bad)?)?;
        let turn = |env: &mut Env<'_>, frame, turn: u32| {
            let args = [turn.into(), context, 0, 0, 0];
            self.call_at(env, place, frame, args)
        };
        if turns == 0 {
            return Ok(0);
        }
        if self.checked {
            // Each turn begins with a frame of zeros.
            for i in 0..turns {
                if env.in_new_frame(|env, frame| turn(env, frame, i))? != 0 {
                    return Ok(u64::from(i) + 1);
                }
            }
            return Ok(turns.into());
        }
        env.in_new_frame(|env, frame| {
            for i in 0..turns {
                if turn(env, frame, i)? != 0 {
                    return Ok(u64::from(i) + 1);
                }
            }
            Ok(turns.into())
        })
    }

    fn function_at(&self, insn: u32) -> Option<u64> {
        let index = self.pointers.binary_search(&insn).ok()?;
        Some(self.pointer_ids.as_ptr().addr() as u64 + index as u64)
    }

    fn run_function(
        &self,
        vm: &mut Vm,
        context: &mut dyn Context,
        function: u64,
        args: Args,
    ) -> Outcome {
        native::start(vm, self, context, |env, _| {
            let slot = self
                .function(function)
                .ok_or(FaultKind::BadFunction(function))?;
            let frame = env.frame();
            // SAFETY: the first frame is free when a run starts.
            unsafe { env.open_frame(frame)? };
            self.call(env, slot, frame, args)
        })
    }

    fn direct(&self) -> u64 {
        match self.direct {
            true => self.code.start() as u64,
            false => 0,
        }
    }

    /// A position is a slot, or an address in the code that a helper returns to.
    fn slot_of(&self, position: usize) -> u32 {
        let offset = position.wrapping_sub(self.code.start());
        let at = u32::try_from(offset).ok().and_then(|offset| {
            let found = self.returns.binary_search_by_key(&offset, |r| r.0);
            Some(self.returns[found.ok()?].1)
        });
        at.unwrap_or_else(|| u32::try_from(position).unwrap_or(0))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
