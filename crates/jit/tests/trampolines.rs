//! Programs at functions of the host.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use bpfkit_jit::trampoline::{
    AtomicCounter, Attach, ByteCounter, Link, Trampoline, TrampolineError, in_signal_handler,
};
use bpfkit_jit::{CodeMemory, Rules};
use bpfkit_object::{InsnRef, RefTarget};
use bpfkit_runtime::{Executable, FixedHost, MapOptions, MapSet, Vm};
use bpfkit_spec::MapType;

use common::{assemble, jit, load, map};

const CPUS: u32 = 8;

type Twelve = extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> u64;

#[rustfmt::skip]
#[allow(clippy::too_many_arguments, reason = "as many as there may be")]
extern "C" fn twelve(
    a: u64, b: u64, c: u64, d: u64, e: u64, f: u64,
    g: u64, h: u64, i: u64, j: u64, k: u64, l: u64,
) -> u64 {
    [a, b, c, d, e, f, g, h, i, j, k, l].iter().fold(0, |sum, x| sum * 3 + x)
}

fn call_twelve(entry: Twelve) -> u64 {
    entry(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12)
}

fn twelve_of(trampoline: &Trampoline) -> Twelve {
    // SAFETY: the entry has the type of the function it was made for.
    unsafe { std::mem::transmute::<*const (), Twelve>(trampoline.entry()) }
}

fn worker() -> Vm {
    Vm::new(0, Arc::new(FixedHost::default()))
}

fn trampoline(function: *const (), args: usize) -> Trampoline {
    // SAFETY: the functions of these tests have that many 64-bit arguments and live for ever.
    unsafe { Trampoline::new(&CodeMemory::new(), function, args, CPUS, Box::new(worker)) }.unwrap()
}

fn twelve_trampoline() -> Trampoline {
    trampoline(twelve as *const (), 12)
}

/// An array of eight words that programs write to.
fn notes() -> Arc<MapSet> {
    MapSet::new(&[map(MapType::Array, 8)], &MapOptions::default()).unwrap()
}

fn note(maps: &MapSet, key: u32) -> u64 {
    let value = maps.get(0).unwrap().read(&key.to_ne_bytes()).unwrap();
    u64::from_ne_bytes(value.try_into().unwrap())
}

/// A program that has R0's value in a note: `text` computes it, `key` is the note's number.
/// Kernel functions that it calls are those of `kfuncs`, in this order.
fn program(maps: &Arc<MapSet>, key: u32, text: &str, kfuncs: &[&str]) -> Arc<dyn Executable> {
    let text = format!(
        "r6 = r1
        {text}
        r7 = r0
        *(u32 *)(r10 - 4) = {key}
        r2 = r10
        r2 += -4
        r1 = map[m0] ll
        call bpf_map_lookup_elem
        if r0 == 0 goto out
        *(u64 *)(r0 + 0) = r7
    out:
        r0 = r7
        exit"
    );
    let mut program = assemble("traced", &text);
    let calls: Vec<u32> = (0..)
        .zip(&program.insns)
        .filter(|(_, insn)| insn.code == 0x85 && insn.src == 2)
        .map(|(at, _)| at)
        .collect();
    assert_eq!(calls.len(), kfuncs.len());
    for (insn, name) in calls.into_iter().zip(kfuncs) {
        let name = (*name).to_owned();
        let target = RefTarget::Kfunc {
            name,
            type_id: 0,
            weak: false,
        };
        program.refs.push(InsnRef { insn, target });
    }
    load(&jit(Rules::default()), &Arc::new(program), false, maps)
}

/// Twice the last argument plus the first.
const OF_ARGUMENTS: &str = "r0 = *(u64 *)(r6 + 88)
    r0 <<= 1
    r1 = *(u64 *)(r6 + 0)
    r0 += r1";

const RESULT: &str = "r0 = *(u64 *)(r6 + 96)";

#[test]
fn without_programs_the_function_is_called() {
    let trampoline = twelve_trampoline();
    assert_eq!(call_twelve(twelve_of(&trampoline)), call_twelve(twelve));
}

#[test]
fn programs_see_arguments_and_result() {
    let (trampoline, maps) = (twelve_trampoline(), notes());
    let entry = twelve_of(&trampoline);
    let expected = call_twelve(twelve);
    let before = trampoline
        .attach(Attach::Entry, program(&maps, 0, OF_ARGUMENTS, &[]), 0)
        .unwrap();
    // Before the function alone, then around it.
    assert_eq!(call_twelve(entry), expected);
    assert_eq!(note(&maps, 0), 25);
    let after = trampoline
        .attach(Attach::Exit, program(&maps, 1, RESULT, &[]), 0)
        .unwrap();
    assert_eq!(call_twelve(entry), expected);
    assert_eq!(note(&maps, 1), expected);
    // Helpers that ask about the call.
    let asks = "r1 = r6
        r2 = 11
        r3 = r10
        r3 += -16
        call bpf_get_func_arg
        r8 = *(u64 *)(r10 - 16)
        r1 = r6
        call bpf_get_func_arg_cnt
        r8 *= r0
        r1 = r6
        call bpf_get_attach_cookie
        r0 += r8";
    let asks = trampoline
        .attach(Attach::Exit, program(&maps, 2, asks, &[]), 1000)
        .unwrap();
    assert_eq!(call_twelve(entry), expected);
    assert_eq!(note(&maps, 2), 12 * 12 + 1000);
    for link in [&before, &after, &asks] {
        assert_eq!((link.missed(), link.faults()), (0, 0));
    }
    // Gone again, nothing is noted.
    drop((before, after, asks));
    let notes = [0, 1, 2].map(|key| note(&maps, key));
    assert_eq!(entry(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 3_u64.pow(11));
    assert_eq!([0, 1, 2].map(|key| note(&maps, key)), notes);
}

static CALLS: AtomicU64 = AtomicU64::new(0);

extern "C" fn counted(x: u64) -> u64 {
    CALLS.fetch_add(1, Relaxed);
    x + 1
}

#[test]
fn a_program_may_take_the_functions_place() {
    let (trampoline, maps) = (trampoline(counted as *const (), 1), notes());
    // SAFETY: the entry has the type of the function it was made for.
    let entry: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(trampoline.entry()) };
    // Its argument, if that is even; the second one would give 77.
    let even = "r0 = *(u64 *)(r6 + 0)\nr1 = r0\nr1 &= 1\nif r1 == 0 goto +1\nr0 = 0";
    let links = [
        trampoline.attach(Attach::ModifyReturn, program(&maps, 0, even, &[]), 0),
        trampoline.attach(
            Attach::ModifyReturn,
            program(&maps, 1, "r0 = *(u64 *)(r6 + 0)\nr0 -= 5", &[]),
            0,
        ),
        trampoline.attach(
            Attach::Exit,
            program(&maps, 2, "r0 = *(u64 *)(r6 + 8)", &[]),
            0,
        ),
    ];
    assert_eq!(entry(4), 4);
    assert_eq!(
        (CALLS.load(Relaxed), note(&maps, 1), note(&maps, 2)),
        (0, 0, 4)
    );
    // The first gives 0, the second does not.
    assert_eq!(entry(7), 2);
    assert_eq!((CALLS.load(Relaxed), note(&maps, 2)), (0, 2));
    // Neither does.
    assert_eq!(entry(5), 6);
    assert_eq!((CALLS.load(Relaxed), note(&maps, 2)), (1, 6));
    drop(links);
    assert_eq!(entry(4), 5);
}

#[test]
fn a_session_keeps_a_cookie_from_entry_to_return() {
    let (trampoline, maps) = (twelve_trampoline(), notes());
    // At entry it keeps the note's number times 1000 plus the first argument, at return it
    // notes what it kept, plus the result where there is one.
    let session = |key: u32| {
        let text = format!(
            "r1 = r6
            call bpf_session_is_return
            r8 = r0
            r1 = r6
            call bpf_session_cookie
            if r8 == 1 goto +5
            r1 = *(u64 *)(r6 + 0)
            r1 += {}
            *(u64 *)(r0 + 0) = r1
            r0 = 0
            goto +3
            r0 = *(u64 *)(r0 + 0)
            r1 = *(u64 *)(r6 + 96)
            r0 += r1",
            1000 * (key + 1)
        );
        let text = text
            .replace("call bpf_session_is_return", "call kfunc")
            .replace("call bpf_session_cookie", "call kfunc");
        program(
            &maps,
            key,
            &text,
            &["bpf_session_is_return", "bpf_session_cookie"],
        )
    };
    let links: Vec<Link> = (0..3)
        .map(|key| trampoline.attach(Attach::Session, session(key), 0).unwrap())
        .collect();
    let result = call_twelve(twelve_of(&trampoline));
    assert_eq!(result, call_twelve(twelve));
    for key in 0..3 {
        assert_eq!(links[key as usize].faults(), 0);
        assert_eq!(note(&maps, key), u64::from(1000 * (key + 1)) + 1 + result);
    }
}

#[test]
fn faults_count_as_zero() {
    let (trampoline, maps) = (twelve_trampoline(), notes());
    // Beyond the arguments: there is no result yet.
    let link = trampoline
        .attach(Attach::Entry, program(&maps, 0, RESULT, &[]), 0)
        .unwrap();
    assert_eq!(call_twelve(twelve_of(&trampoline)), call_twelve(twelve));
    assert_eq!(link.faults(), 1);
}

#[test]
fn there_is_room_for_38() {
    let (trampoline, maps) = (twelve_trampoline(), notes());
    let program = program(&maps, 0, "r0 = 1", &[]);
    let mut links: Vec<Link> = (0..38)
        .map(|_| {
            trampoline
                .attach(Attach::Session, program.clone(), 0)
                .unwrap()
        })
        .collect();
    let more = trampoline.attach(Attach::Exit, program.clone(), 0);
    assert!(matches!(more, Err(TrampolineError::Full)));
    assert_eq!(call_twelve(twelve_of(&trampoline)), call_twelve(twelve));
    links.pop();
    assert!(trampoline.attach(Attach::Exit, program, 0).is_ok());
    // SAFETY: never called.
    let large = unsafe {
        Trampoline::new(
            &CodeMemory::new(),
            twelve as *const (),
            13,
            1,
            Box::new(worker),
        )
    };
    assert!(matches!(large, Err(TrampolineError::Arguments(13))));
}

#[test]
fn programs_come_and_go_while_the_function_runs() {
    let (trampoline, maps) = (twelve_trampoline(), notes());
    let expected = call_twelve(twelve);
    let stop = AtomicBool::new(false);
    let threads = 3;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let numbered = || {
        Vm::new(
            NEXT.fetch_add(1, Relaxed) as u32,
            Arc::new(FixedHost::default()),
        )
    };
    // SAFETY: as in `trampoline`.
    let trampoline2 = unsafe {
        Trampoline::new(
            &CodeMemory::new(),
            twelve as *const (),
            12,
            CPUS,
            Box::new(numbered),
        )
    }
    .unwrap();
    drop(trampoline);
    let kinds = [
        Attach::Entry,
        Attach::Exit,
        Attach::ModifyReturn,
        Attach::Session,
    ];
    let program = program(&maps, 0, "r0 = 0", &[]);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let entry = twelve_of(&trampoline2);
                let mut calls = 0_u32;
                while !stop.load(Relaxed) || calls < 100 {
                    assert_eq!(call_twelve(entry), expected);
                    calls += 1;
                }
            });
        }
        let mut links: Vec<Link> = Vec::new();
        for i in 0..400 {
            links.push(
                trampoline2
                    .attach(kinds[i % 4], program.clone(), 0)
                    .unwrap(),
            );
            if i % 3 == 0 {
                links.remove(i % links.len());
            }
            if links.len() > 20 {
                links.clear();
            }
        }
        assert!(links.iter().all(|link| link.faults() == 0));
        stop.store(true, Relaxed);
    });
}

/// Calls itself through its trampoline as often as the argument says.
extern "C" fn nested(depth: u64) -> u64 {
    NESTED.with(|entry| match (depth, entry.get()) {
        (1.., Some(entry)) => entry(depth - 1) + 1,
        _ => 0,
    })
}

thread_local! {
    static NESTED: std::cell::Cell<Option<extern "C" fn(u64) -> u64>> =
        const { std::cell::Cell::new(None) };
}

/// A host whose clock calls a function that programs are attached to.
struct Recursive;

impl bpfkit_runtime::Host for Recursive {
    fn now(&self, _: bpfkit_runtime::Clock) -> u64 {
        NESTED.with(|entry| entry.get().map_or(0, |entry| entry(0)))
    }
}

#[test]
fn a_program_does_not_run_inside_of_itself() {
    let maps = notes();
    let worker = || Vm::new(0, Arc::new(Recursive));
    // SAFETY: as in `trampoline`.
    let trampoline = unsafe {
        Trampoline::new(
            &CodeMemory::new(),
            nested as *const (),
            1,
            CPUS,
            Box::new(worker),
        )
    }
    .unwrap();
    // SAFETY: the entry has the type of the function it was made for.
    let entry: extern "C" fn(u64) -> u64 = unsafe { std::mem::transmute(trampoline.entry()) };
    NESTED.set(Some(entry));
    // The clock calls the function, which would run the program again.
    let clock = trampoline
        .attach(
            Attach::Entry,
            program(&maps, 0, "call bpf_ktime_get_ns\nr0 = 5", &[]),
            0,
        )
        .unwrap();
    let other = trampoline
        .attach(Attach::Entry, program(&maps, 1, "r0 = 6", &[]), 0)
        .unwrap();
    assert_eq!(entry(0), 0);
    assert_eq!((clock.missed(), other.missed()), (1, 0));
    assert_eq!((note(&maps, 0), note(&maps, 1)), (5, 6));
    // The function's own recursion is no recursion of the program.
    assert_eq!(entry(3), 3);
    assert_eq!(clock.missed(), 1 + 4);
    NESTED.set(None);
}

#[test]
fn counters_tell_recursion_from_interruption() {
    let (bytes, atomic) = (ByteCounter::default(), AtomicCounter::default());
    assert!(bytes.enter() && atomic.enter());
    assert!(!bytes.enter() && !atomic.enter());
    // What interrupts a running program must not run it either.
    in_signal_handler(|| assert!(!bytes.enter()));
    bytes.leave();
    atomic.leave();
    in_signal_handler(|| {
        assert!(bytes.enter());
        assert!(!bytes.enter());
        bytes.leave();
    });
    assert!(bytes.enter() && atomic.enter());
}
