//! Rewritten programs beside what the running kernel makes of the same programs
//! (`BPF_OBJ_GET_INFO_BY_FD`).

use std::time::Duration;

use bpfkit_btf::Btf;
use bpfkit_isa::{Insn, Syntax, disasm};
use bpfkit_object::{MapDef, Program};
use bpfkit_oracle::{Kernel, LoadError, LoadOptions, MapHandle};
use bpfkit_spec::{MapType, ProgType};
use bpfkit_verifier::{Environment, Rewritten, verify};

#[path = "xlated/beside.rs"]
mod beside;
mod common;
#[path = "xlated/fields.rs"]
mod fields;

/// Between two loads: the kernel frees programs slowly.
const PAUSE: Duration = Duration::from_millis(10);

/// Programs: name, type, text.
const PROGRAMS: &[(&str, ProgType, &str)] = &[
    (
        "dead code and decided branches",
        ProgType::SocketFilter,
        "r6 = 1; if r6 == 1 goto two; r0 = 7; r0 += 1; exit;
         two: if r6 != 1 goto three; r0 = 2; exit; three: r0 = 3; exit",
    ),
    (
        "jumps across what is removed",
        ProgType::SocketFilter,
        "r6 = *(u32 *)(r1 + 0); r7 = 3; again: if r6 == 9 goto out; if r7 == 4 goto dead;
         r6 >>= 1; if r6 != 0 goto next; goto out; dead: r0 = 1; exit;
         next: if r6 == 77 goto again2; goto out; again2: r6 += 1; out: r0 = r6; exit",
    ),
    (
        "a jump to the next instruction",
        ProgType::SocketFilter,
        "r0 = 1; goto +0; r0 += 1; goto +0; goto +0; exit",
    ),
    (
        "unsigned division by a register",
        ProgType::SocketFilter,
        "r6 = *(u32 *)(r1 + 0); r7 = 100; r7 /= r6; r8 = 100; r8 %= r6; w9 = 100; w9 /= w6;
         w0 = 100; w0 %= w6; r0 += r7; r0 += r8; r0 += r9; exit",
    ),
    (
        "signed division by a register",
        ProgType::SocketFilter,
        "r6 = *(u32 *)(r1 + 0); r7 = 100; r7 s/= r6; r8 = 100; r8 s%= r6; w9 = 100; w9 s/= w6;
         w0 = 100; w0 s%= w6; r0 += r7; r0 += r8; r0 += r9; exit",
    ),
    (
        "signed division by a constant",
        ProgType::SocketFilter,
        "r6 = *(u32 *)(r1 + 0); r7 = r6; r7 s/= -1; r8 = r6; r8 s%= -1; w9 = w6; w9 s/= -1;
         w0 = w6; w0 s%= -1; r0 += r7; r0 += r8; r0 += r9; r6 s/= 2; r0 += r6; exit",
    ),
    (
        "a loop over a division",
        ProgType::SocketFilter,
        "r6 = *(u32 *)(r1 + 0); r7 = 0; again: r0 = 1000; r0 /= r6; r7 += r0; r6 >>= 1;
         if r6 > 100 goto out; if r6 != 0 goto again; out: r0 = r7; exit",
    ),
    (
        "the CPU's number and spared registers",
        ProgType::RawTracepoint,
        "r1 = 1; *(u64 *)(r10 - 16) = r1; call bpf_get_smp_processor_id;
         r1 = *(u64 *)(r10 - 16); r0 += r1; exit",
    ),
    (
        "the current task",
        ProgType::RawTracepoint,
        "call bpf_get_current_task; r6 = r0; r0 = 0; exit",
    ),
    (
        "jiffies",
        ProgType::SchedCls,
        "call bpf_jiffies64; r0 = 0; exit",
    ),
    (
        "lookup in an array",
        ProgType::SocketFilter,
        "*(u32 *)(r10 - 4) = 0; r2 = r10; r2 += -4; r1 = map[idx:2] ll;
         call bpf_map_lookup_elem; if r0 == 0 goto out; r0 = *(u64 *)(r0 + 0); r0 = 0; out: exit",
    ),
    (
        "other calls on maps",
        ProgType::SocketFilter,
        "*(u64 *)(r10 - 8) = 0; *(u64 *)(r10 - 16) = 1; r2 = r10; r2 += -8; r3 = r10; r3 += -16;
         r4 = 0; r1 = map[values] ll; call bpf_map_update_elem; r2 = r10; r2 += -8;
         r1 = map[values] ll; call bpf_map_delete_elem; call bpf_ktime_get_ns; exit",
    ),
    (
        "lookup in a hash map",
        ProgType::SocketFilter,
        "*(u32 *)(r10 - 4) = 0; r2 = r10; r2 += -4; r1 = map[values] ll;
         call bpf_map_lookup_elem; if r0 == 0 goto out; r0 = *(u64 *)(r0 + 0); r0 = 0; out: exit",
    ),
    (
        "lookup in a hash map that forgets",
        ProgType::SocketFilter,
        "*(u32 *)(r10 - 4) = 0; r2 = r10; r2 += -4; r1 = map[idx:4] ll;
         call bpf_map_lookup_elem; if r0 == 0 goto out; r0 = *(u64 *)(r0 + 0); r0 = 0; out: exit",
    ),
    (
        "lookup in a hash map of every CPU",
        ProgType::SocketFilter,
        "*(u32 *)(r10 - 4) = 0; r2 = r10; r2 += -4; r1 = map[idx:5] ll;
         call bpf_map_lookup_elem; if r0 == 0 goto out; r0 = *(u64 *)(r0 + 0); r0 = 0; out: exit",
    ),
    (
        "lookup in an array of every CPU",
        ProgType::SocketFilter,
        "*(u32 *)(r10 - 4) = 0; r2 = r10; r2 += -4; r1 = map[idx:6] ll;
         call bpf_map_lookup_elem; if r0 == 0 goto out; r0 = *(u64 *)(r0 + 0); r0 = 0; out: exit",
    ),
    (
        "lookup of a socket",
        ProgType::Xdp,
        "*(u32 *)(r10 - 4) = 0; r2 = r10; r2 += -4; r1 = map[idx:3] ll;
         call bpf_map_lookup_elem; if r0 == 0 goto out; r0 = *(u32 *)(r0 + 0); r0 = 2; out: exit",
    ),
    (
        "bytes of the packet",
        ProgType::SocketFilter,
        "r6 = r1; r7 = 3; r0 = *(u8 *)skb[4]; r0 = *(u16 *)skb[r7 + 2]; r0 = *(u32 *)skb[r7 + 0]; exit",
    ),
    (
        "a packet that is written",
        ProgType::SchedCls,
        "again: r2 = *(u32 *)(r1 + 76); r3 = *(u32 *)(r1 + 80); r4 = r2; r4 += 14;
         if r4 > r3 goto out; *(u8 *)(r2 + 3) = 7; r0 = *(u32 *)(r1 + 0); may_goto out; goto again;
         out: r0 = 0; exit",
    ),
    (
        "the time of a packet and how it is meant",
        ProgType::SchedCls,
        "r6 = r1; r2 = *(u64 *)(r6 + 152); *(u64 *)(r6 + 152) = r2; r0 = *(u8 *)(r6 + 180); exit",
    ),
    (
        "a packet's fields",
        ProgType::SchedCls,
        "r6 = r1; r7 = *(u32 *)(r6 + 0); r0 = *(u32 *)(r6 + 8); r0 += r7;
         r7 = *(u32 *)(r6 + 16); r0 += r7; r7 = *(u32 *)(r6 + 28); r0 += r7;
         r7 = *(u32 *)(r6 + 32); r0 += r7; r7 = *(u32 *)(r6 + 36); r0 += r7;
         r7 = *(u32 *)(r6 + 40); r0 += r7; r7 = *(u32 *)(r6 + 44); r0 += r7;
         r7 = *(u32 *)(r6 + 68); r0 += r7; *(u32 *)(r6 + 8) = r7; *(u32 *)(r6 + 32) = r7;
         r7 = *(u32 *)(r6 + 24); r0 += r7; r7 = *(u32 *)(r6 + 20); r0 += r7; exit",
    ),
    (
        "a packet's device, which may be missing",
        ProgType::CgroupSkb,
        "r0 = *(u32 *)(r1 + 40); r0 &= 1; exit",
    ),
    (
        "a packet's room and type",
        ProgType::SchedCls,
        "r6 = r1; r7 = *(u32 *)(r6 + 48); *(u32 *)(r6 + 52) = r7; r7 = *(u32 *)(r6 + 64);
         r0 = r7; r7 = *(u32 *)(r6 + 4); r0 += r7; r7 = *(u8 *)(r6 + 9); r0 += r7;
         r7 = *(u16 *)(r6 + 32); r0 += r7; exit",
    ),
    (
        "a packet's data",
        ProgType::SchedCls,
        "r2 = *(u32 *)(r1 + 76); r3 = *(u32 *)(r1 + 80); r4 = *(u32 *)(r1 + 140); r5 = r2;
         r5 += 14; if r5 > r3 goto out; r0 = *(u8 *)(r2 + 3); out: r0 = 0; exit",
    ),
    (
        "a frame's data",
        ProgType::Xdp,
        "r6 = r1; r2 = *(u32 *)(r6 + 0); r3 = *(u32 *)(r6 + 4); r4 = *(u32 *)(r6 + 8); r5 = r2;
         r5 += 14; if r5 > r3 goto out; r0 = *(u8 *)(r2 + 3); out: r0 = *(u32 *)(r6 + 12);
         r7 = *(u32 *)(r6 + 16); r0 = 2; exit",
    ),
    (
        "a budget of rounds",
        ProgType::SocketFilter,
        "r6 = 0; again: may_goto out; r6 += 1; goto again; out: r0 = r6; exit",
    ),
    (
        "a budget from the first instruction on",
        ProgType::SocketFilter,
        "again: may_goto out; goto again; out: r0 = 0; exit",
    ),
];

/// Maps of the programs: after the common ones an array (2), sockets (3), and hash maps of other
/// kinds (4 to 6).
fn maps() -> Vec<MapDef> {
    let mut maps = common::maps();
    let others = [
        (MapType::Array, 8),
        (MapType::Xskmap, 4),
        (MapType::LruHash, 8),
        (MapType::PercpuHash, 8),
        (MapType::PercpuArray, 8),
    ];
    for (map_type, value_size) in others {
        let mut map = maps[0].clone();
        (map.map_type, map.value_size) = (map_type, value_size);
        maps.push(map);
    }
    maps
}

fn rewritten(name: &str, program: &Program, kernel: Option<&Btf>) -> Rewritten {
    let environment = Environment {
        rewrite: true,
        ..Environment::new(kernel)
    };
    let verdict = verify(program, &maps(), &environment);
    let verified = verdict
        .result
        .unwrap_or_else(|rejection| panic!("{name}: {rejection}"));
    match verified.rewritten() {
        Some(Ok(rewritten)) => rewritten.clone(),
        other => panic!("{name}: {other:?}"),
    }
}

/// The running kernel with the maps, and its BTF.
struct Beside {
    kernel: Kernel,
    handles: Vec<MapHandle>,
    btf: Btf,
}

impl Beside {
    /// Says why where there is nothing to compare with.
    fn start() -> Option<Beside> {
        let Ok(bytes) = std::fs::read("/sys/kernel/btf/vmlinux") else {
            println!("skipped: no /sys/kernel/btf/vmlinux");
            return None;
        };
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        if !release.starts_with("6.18") || !cfg!(target_arch = "x86_64") {
            println!("skipped: the rules are those of Linux 6.18 on x86-64, this is {release}");
            return None;
        }
        let mut kernel = match Kernel::start() {
            Ok(kernel) => kernel,
            Err(error) => {
                println!("skipped: {error}");
                return None;
            }
        };
        let handles = maps()
            .iter()
            .map(|def| kernel.create_map(def, None).unwrap())
            .collect();
        Some(Beside {
            kernel,
            handles,
            btf: Btf::parse(&bytes).unwrap(),
        })
    }

    /// What differs in a program, if anything does.
    fn difference(&mut self, name: &str, program: &Program) -> Option<String> {
        let ours = rewritten(name, program, Some(&self.btf));
        let options = LoadOptions::default();
        let loaded = self.kernel.load(program, &self.handles, None, &options);
        let handle = match loaded {
            Ok((handle, _)) => handle,
            Err(LoadError::Refused { errno, log }) => {
                return Some(format!("{name}: refused with {errno}\n{log}"));
            }
            Err(error) => return Some(format!("{name}: {error}")),
        };
        let info = self.kernel.info(handle).unwrap();
        self.kernel.unload(handle);
        std::thread::sleep(PAUSE);
        let pairs = beside::pairs(&ours, &info.xlated);
        let at = beside::first_difference(&pairs)?;
        let text = beside::around(&pairs, at, 12);
        Some(format!("{name}: ours | the kernel's\n{text}"))
    }
}

#[test]
fn programs_become_what_the_kernel_makes_of_them() {
    let Some(mut beside) = Beside::start() else {
        return;
    };
    let wrong: Vec<String> = PROGRAMS
        .iter()
        .filter_map(|&(name, prog_type, text)| {
            let program = common::program(prog_type, common::assemble(text));
            beside.difference(name, &program)
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn every_field_of_every_context_becomes_what_the_kernel_makes_of_it() {
    let Some(mut beside) = Beside::start() else {
        return;
    };
    let (mut wrong, mut accesses) = (Vec::new(), 0);
    for context in fields::CONTEXTS {
        let programs = fields::programs(context, &beside.btf, &maps());
        assert!(
            !programs.is_empty(),
            "{}: no field can be accessed",
            context.name
        );
        for (program, count) in programs {
            accesses += count;
            wrong.extend(beside.difference(context.name, &program));
        }
    }
    println!("{accesses} accesses");
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn slots_tell_where_they_come_from() {
    let text = "r6 = *(u32 *)(r1 + 0); r0 = 8; if r6 == 0 goto out; r0 /= r6; out: exit";
    let program = common::program(ProgType::SocketFilter, common::assemble(text));
    let rewritten = rewritten("origins", &program, None);
    assert_eq!(rewritten.origins, [0, 1, 2, 3, 3, 3, 3, 4]);
    assert_eq!(rewritten.unconverted, [0], "no kernel's BTF, no offsets");
    assert_eq!(rewritten.insns[2].off, 4, "over the division");
}

/// The program of the 6.12 selftests whose expectation 6.18 does not meet: `may_goto` has a clock.
const OLDER: &str = "may_goto_interaction";

/// What 6.12 expects, as 6.18 does it: the address of the CPU's number is moved in 64 bits, as
/// the comparison with the running kernel shows.
fn newer(text: &str) -> String {
    match text.split_once(": w0 =") {
        Some((slot, rest)) if rest.trim().is_empty() => format!("{slot}: r0 ="),
        _ => text.to_owned(),
    }
}

/// Whether lines hold the expected texts in order; `...` stands for any number of lines, and what
/// follows directly must be on the next line.
fn holds(lines: &[String], expected: &[String]) -> Result<(), String> {
    let (mut at, mut anywhere) = (0, true);
    for text in expected {
        if text == "..." {
            anywhere = true;
            continue;
        }
        let rest = &lines[at..];
        let found = match anywhere {
            true => rest.iter().position(|line| line.contains(text.as_str())),
            false => rest
                .first()
                .filter(|line| line.contains(text.as_str()))
                .map(|_| 0),
        };
        let Some(found) = found else {
            return Err(format!("no '{text}' from line {at} on"));
        };
        at += found + 1;
        anywhere = false;
    }
    Ok(())
}

/// A listing as the selftests compare it: slot and text, without the opcode.
fn listing(insns: &[Insn]) -> Vec<String> {
    let mut at = 0;
    let mut lines = Vec::new();
    while let Some(insn) = insns.get(at) {
        let line = disasm::line(insns, at, Syntax::Kernel, &disasm::NoSymbols).to_string();
        let text = line
            .split_once(") ")
            .map_or(line.as_str(), |(_, text)| text);
        lines.push(format!("{at}: {text}"));
        at += 1 + usize::from(insn.is_ld_imm64());
    }
    lines
}

#[test]
fn selftests_find_the_listings_that_they_expect() {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/kernel-selftests");
    let kernel = std::fs::read("/sys/kernel/btf/vmlinux").ok();
    let kernel = kernel.and_then(|bytes| Btf::parse(&bytes).ok());
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for name in [
        "verifier_sdiv",
        "verifier_bpf_fastcall",
        "verifier_scalar_ids",
    ] {
        let Ok(bytes) = std::fs::read(folder.join(format!("{name}.bpf.o"))) else {
            println!("skipped: no target/kernel-selftests/{name}.bpf.o");
            continue;
        };
        let object = bpfkit_object::Object::open(name, &bytes).unwrap();
        let target = bpfkit_object::Target {
            kernel_btf: kernel.as_ref().into(),
            ..Default::default()
        };
        let mut linker = bpfkit_object::Linker::new(&object, &target);
        for index in 0..object.programs.len() {
            let Ok(program) = linker.link(index) else {
                continue;
            };
            let Some(btf) = program.btf.as_deref() else {
                continue;
            };
            let tags: Vec<&str> = btf
                .decl_tags(program.subprograms[0].type_id)
                .filter_map(|tag| tag.name().strip_prefix("comment:test_"))
                .collect();
            let arch = |tag: &&&str| tag.starts_with("arch=");
            let elsewhere = tags.iter().any(|t| arch(&t)) && !tags.contains(&"arch=X86_64");
            let mut expected: Vec<(u32, &str)> = tags
                .iter()
                .filter_map(|tag| tag.strip_prefix("expect_xlated=")?.split_once('='))
                .filter_map(|(number, text)| Some((number.parse().ok()?, text)))
                .collect();
            let name = &program.decl.name;
            if expected.is_empty() || elsewhere || name == OLDER {
                continue;
            }
            expected.sort_unstable();
            let expected: Vec<String> = expected.iter().map(|(_, text)| newer(text)).collect();
            let environment = Environment {
                rewrite: true,
                ..Environment::new(kernel.as_ref())
            };
            let verdict = verify(&program, &linker.maps(), &environment);
            checked += 1;
            let result = match &verdict.result {
                Ok(verified) => match verified.rewritten() {
                    Some(Ok(rewritten)) => {
                        let lines = listing(&rewritten.insns);
                        holds(&lines, &expected).map_err(|e| format!("{e}\n{}", lines.join("\n")))
                    }
                    other => Err(format!("{other:?}")),
                },
                Err(rejection) => Err(rejection.to_string()),
            };
            if let Err(what) = result {
                wrong.push(format!("{name}: {what}"));
            }
        }
    }
    println!("{checked} programs");
    assert!(
        wrong.is_empty(),
        "{} of {checked}\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
}
