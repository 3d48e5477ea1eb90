//! What both of the kernel's compilers can do, beside what the other tests here show
//! (trampolines, sessions, exceptions, tail calls, packed code memory): timed `may_goto`, the
//! per-CPU address instruction, the private stack, arenas with faults that are reported.

mod common;

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use bpfkit_isa::{Op, Reg};
use bpfkit_jit::Rules;
use bpfkit_object::{InsnRef, MapDef, RefTarget};
use bpfkit_runtime::{
    Clock, Engine, FixedHost, Host, Interpreter, MapOptions, MapSet, RawMemory, Vm, raw_program,
};
use bpfkit_spec::MapType;

use common::{assemble, jit, load, map};

/// Made anew for every program; see [`jit`].
fn engines() -> [Box<dyn Engine>; 3] {
    [
        Box::<Interpreter>::default(),
        Box::new(jit(Rules::default())),
        Box::new(jit(Rules::NONE)),
    ]
}

/// A host whose clock moves, and which keeps what programs say.
#[derive(Default)]
struct Moving {
    time: AtomicU64,
    step: u64,
    said: Mutex<Vec<String>>,
}

impl Host for Moving {
    fn now(&self, _: Clock) -> u64 {
        self.time.fetch_add(self.step, Relaxed)
    }

    fn trace(&self, text: &[u8]) {
        let text = String::from_utf8_lossy(text).into_owned();
        self.said.lock().unwrap().push(text);
    }
}

#[test]
fn may_goto_ends_after_a_quarter_of_a_second() {
    // Main and a function loop, each with a budget of its own; R0–R9 live through the look at
    // the clock.
    let text = "r1 = 1
        r2 = 2
        r3 = 3
        r4 = 4
        r5 = 5
        r6 = 0
    again:
        may_goto out
        r6 += 1
        goto again
    out:
        r0 = r1
        r0 += r2
        r0 += r3
        r0 += r4
        r0 += r5
        r6 += r0
        call inner
        r0 += r6
        exit
    inner:
        r0 = 0
    more:
        may_goto done
        r0 += 1000
        goto more
    done:
        exit";
    let program = Arc::new(assemble("loops", text));
    for (step, times) in [
        (100_000_000, 4 * 0xffff),
        (1 << 40, 2 * 0xffff),
        (0, 8 << 20),
    ] {
        for trusted in [false, true] {
            for engine in engines() {
                let host = Arc::new(Moving {
                    step,
                    ..Moving::default()
                });
                let exec = load(&*engine, &program, trusted, &MapSet::empty());
                let outcome = exec.run(&mut Vm::new(0, host), &mut RawMemory::default());
                assert_eq!(outcome.fault, None);
                assert_eq!(
                    outcome.ret,
                    times + 15 + times * 1000,
                    "{} {step}",
                    engine.name()
                );
            }
        }
    }
}

#[test]
fn per_cpu_addresses_lie_so_far_apart() {
    let r = |n| Reg::new(n).unwrap();
    let mut insns = assemble("p", "r3 = 100\nr6 = 200").insns;
    for (dst, src) in [(0, 3), (6, 6)] {
        let op = Op::MovPercpu {
            dst: r(dst),
            src: r(src),
        };
        insns.push(op.encode().0);
    }
    insns.extend(assemble("p", "r0 += r6\nr0 += r3\nexit").insns);
    let program = Arc::new(raw_program("p", insns));
    for trusted in [false, true] {
        for engine in engines() {
            let exec = load(&*engine, &program, trusted, &MapSet::empty());
            let mut vm = Vm::new(0, Arc::new(FixedHost::default()));
            vm.percpu_offset = 1 << 40;
            let outcome = exec.run(&mut vm, &mut RawMemory::default());
            assert_eq!((outcome.ret, outcome.fault), (400 + (2 << 40), None));
        }
    }
}

/// The mapping of this process that an address lies in.
fn mapping(address: u64) -> String {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let holds = |line: &&str| {
        let range = line.split(' ').next().unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let at = |text| u64::from_str_radix(text, 16).unwrap();
        (at(from)..at(to)).contains(&address)
    };
    maps.lines().find(holds).unwrap().to_owned()
}

#[test]
fn frames_lie_on_a_stack_of_their_own() {
    let program = Arc::new(assemble(
        "frames",
        "call inner\nr1 = r10\nr0 -= r1\nr0 <<= 1\nexit\ninner:\nr0 = r10\nexit",
    ));
    let top = Arc::new(assemble("top", "r0 = r10\nexit"));
    for trusted in [false, true] {
        for engine in engines() {
            let run = |program| {
                let exec = load(&*engine, program, trusted, &MapSet::empty());
                exec.run(&mut Vm::default(), &mut RawMemory::default()).ret
            };
            assert_eq!(run(&program), 1024);
            // QEMU shows its own mappings.
            if cfg!(target_arch = "x86_64") {
                let local = 0_u8;
                let native = (&raw const local).expose_provenance() as u64;
                let exec = load(&*engine, &top, trusted, &MapSet::empty());
                let mut vm = Vm::default();
                let r10 = exec.run(&mut vm, &mut RawMemory::default()).ret;
                assert_ne!(mapping(r10 - 8), mapping(native));
            }
        }
    }
}

#[test]
fn faults_in_an_arena_are_reported_and_the_program_goes_on() {
    let text = "r1 = map[m0] ll
        r2 = 0
        r3 = 1
        r4 = -1
        r5 = 0
        call kfunc
        if r0 == 0 goto none
        r6 = r0
        r7 = addr_space_cast(r6, 0, 1)
        *(u64 *)(r7 + 8) = 40
        w8 = w6
        r0 = *(u64 *)(r8 + 8)
        r1 = *(u64 *)(r7 + 4096)
        *(u32 *)(r7 + 8200) = 77
        r2 = *(u32 *)(r7 + 8200)
        r0 += r1
        r0 += r2
        r0 += 2
        exit
    none:
        r0 = 99
        exit";
    let mut program = assemble("arena", text);
    let call = program.insns.iter().position(|i| i.code == 0x85).unwrap() as u32;
    program.refs.push(InsnRef {
        insn: call,
        target: RefTarget::Kfunc {
            name: "bpf_arena_alloc_pages".to_owned(),
            type_id: 0,
            weak: false,
        },
    });
    let program = Arc::new(program);
    let arena = MapDef {
        key_size: 0,
        max_entries: 10,
        // BPF_F_MMAPABLE
        flags: 1 << 10,
        extra: 1 << 44,
        ..map(MapType::Arena, 0)
    };
    for trusted in [false, true] {
        for engine in engines() {
            let maps = MapSet::new(std::slice::from_ref(&arena), &MapOptions::default()).unwrap();
            let exec = load(&*engine, &program, trusted, &maps);
            let host = Arc::new(Moving::default());
            let outcome = exec.run(&mut Vm::new(0, host.clone()), &mut RawMemory::default());
            assert_eq!(
                (outcome.ret, outcome.fault),
                (42, None),
                "{}",
                engine.name()
            );
            let said = host.said.lock().unwrap().concat();
            assert_eq!(
                said,
                "ERROR: Arena READ access at unmapped address 0x100000001000\n\
                 ERROR: Arena WRITE access at unmapped address 0x100000002008\n\
                 ERROR: Arena READ access at unmapped address 0x100000002008\n",
                "{}",
                engine.name()
            );
        }
    }
}
