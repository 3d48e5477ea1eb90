//! How programs are put together.

mod common;

use bpfkit_isa::{Insn, code};
use bpfkit_object::{
    BtfAttach, ErrorKind, InsnRef, Linker, MapOrigin, Object, PoisonReason, Program, RefTarget,
    Target,
};
use bpfkit_spec::AttachType;
use common::{bytes, kernel, open, target};

fn link(object: &Object, program: &str) -> Program {
    object
        .link(program, &Target::default())
        .unwrap_or_else(|e| panic!("{program}: {e}"))
}

fn names(program: &Program) -> Vec<(&str, u32)> {
    program
        .subprograms
        .iter()
        .map(|s| (s.name.as_str(), s.start))
        .collect()
}

fn reference(program: &Program, insn: u32) -> &RefTarget {
    let mut found = program.refs.iter().filter(|r| r.insn == insn);
    let InsnRef { target, .. } = found.next().expect("a reference");
    assert!(found.next().is_none());
    target
}

#[test]
fn subprograms_follow_in_order_of_their_first_call() {
    for name in ["functions", "functions.eb"] {
        let object = open(name);
        let first = link(&object, "first");
        assert_eq!(
            names(&first),
            [
                ("first", 0),
                ("middle", 8),
                ("leaf", 15),
                ("global_leaf", 18),
                ("hidden_leaf", 21)
            ]
        );
        let second = link(&object, "second");
        assert_eq!(
            names(&second),
            [
                ("second", 0),
                ("leaf", 13),
                ("weak_leaf", 16),
                ("middle", 19),
                ("global_leaf", 26)
            ]
        );
        assert_eq!(first.insns.len(), 24);
        // Each call reaches the function that it names.
        for program in [&first, &second] {
            for r in &program.refs {
                let RefTarget::Subprogram(index) = r.target else {
                    panic!("{r:?}")
                };
                let call = program.insns[r.insn as usize];
                assert_eq!(
                    (call.code, call.src),
                    (code::JMP | code::CALL, code::PSEUDO_CALL)
                );
                let start = program.subprograms[index as usize].start;
                assert_eq!(
                    i64::from(call.imm),
                    i64::from(start) - i64::from(r.insn) - 1
                );
            }
        }
        let global: Vec<_> = first.subprograms.iter().map(|s| s.global).collect();
        assert_eq!(global, [true, false, false, true, false]);
        assert!(first.subprograms.iter().all(|s| s.type_id != 0));
    }
}

#[test]
fn both_byte_orders_give_the_same_program() {
    let (little, big) = (open("functions"), open("functions.eb"));
    for program in &little.programs {
        let (l, b) = (link(&little, &program.name), link(&big, &program.name));
        assert_eq!(l.insns, b.insns);
        assert_eq!(l.refs, b.refs);
    }
}

#[test]
fn lines_move_with_their_functions() {
    let program = link(&open("functions"), "first");
    assert!(program.lines.is_sorted_by_key(|l| l.insn));
    let at = |insn: u32| {
        program
            .lines
            .iter()
            .rfind(|l| l.insn <= insn)
            .expect("a line")
    };
    assert_eq!(
        at(2).text.trim(),
        "return middle(ctx[0]) + hidden_leaf(ctx[1]);"
    );
    assert_eq!(at(9).text.trim(), "return leaf(x) + global_leaf(x);");
    assert_eq!(at(21).text.trim(), "return OPAQUE(x) ^ 5;");
    assert_eq!(&*at(0).file, "./functions.c");
    let source = include_str!("../testdata/functions.c");
    for line in &program.lines {
        let text = source.lines().nth(line.line as usize - 1);
        assert_eq!(text, Some(&*line.text));
    }
}

#[test]
fn callbacks_are_function_pointers() {
    let program = link(&open("functions"), "loops");
    assert_eq!(
        names(&program),
        [
            ("loops", 0),
            ("callback", 18),
            ("leaf", 24),
            ("global_callback", 27)
        ]
    );
    for (insn, index, start) in [(5u32, 1, 18), (11, 3, 27)] {
        assert_eq!(reference(&program, insn), &RefTarget::Subprogram(index));
        let load = program.insns[insn as usize];
        assert_eq!(load.src, code::PSEUDO_FUNC);
        assert_eq!(load.imm, start - insn as i32 - 1);
    }
}

#[test]
fn exception_callbacks_are_appended() {
    let program = link(&open("functions"), "throws");
    assert_eq!(
        names(&program),
        [
            ("throws", 0),
            ("global_leaf", 3),
            ("on_throw", 6),
            ("leaf", 11)
        ]
    );
    assert_eq!(program.exception_callback, Some(2));
}

#[test]
fn static_functions_beside_programs_are_linked() {
    let program = link(&open("beside"), "entry");
    assert_eq!(names(&program), [("entry", 0), ("beside", 7), ("leaf", 10)]);
    let call = program.refs.first().expect("a call").insn;
    assert_eq!(program.insns[call as usize].imm, 7 - call as i32 - 1);
}

#[test]
fn objects_of_gcc_are_linked() {
    let object = open("gcc");
    let program = link(&object, "entry");
    let called: Vec<_> = program
        .subprograms
        .iter()
        .map(|s| s.name.as_str())
        .collect();
    assert_eq!(
        called,
        ["entry", "second_static", "first_static", "first_global"]
    );
    let maps: Vec<_> = object.maps.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(maps, ["counters", "gcc.data"]);
}

#[test]
fn relocation_types_of_older_compilers_are_taken_and_others_not() {
    let good = bytes("functions");
    let expected = link(&open("functions"), "second");
    // LLVM before version 13 has types 1 and 10 only; 10 and 1 go by the instruction.
    for (from, to, works) in [(10u64, 1u64, true), (10, 4, true), (10, 77, false)] {
        let mut object = good.clone();
        let mut changed = 0;
        for at in (0..object.len() - 8).step_by(8) {
            let word = u64::from_le_bytes(object[at..at + 8].try_into().expect("8 bytes"));
            // r_info: symbol above, type below; preceded by an offset of an instruction.
            if word & 0xffff_ffff == from && word >> 32 != 0 && word >> 32 < 32 {
                let info = word >> 32 << 32 | to;
                object[at..at + 8].copy_from_slice(&info.to_le_bytes());
                changed += 1;
            }
        }
        assert!(changed > 4);
        let object = Object::open("functions.bpf.o", &object).expect("opens");
        match object.link("second", &Target::default()) {
            Ok(program) => assert!(works && program.insns == expected.insns),
            Err(e) => {
                assert!(!works, "{e}");
                assert_eq!(e.kind(), ErrorKind::Relocation);
                assert_eq!(
                    e.message(),
                    "ELF relo #2 in section #5 has unexpected type 77"
                );
                assert_eq!((e.section(), e.offset()), (Some("tc"), Some(0x50)));
            }
        }
    }
}

#[test]
fn variables_are_offsets_into_their_maps() {
    for name in ["globals", "globals.eb"] {
        let object = open(name);
        let program = link(&object, "uses_data");
        let mut used: Vec<(&str, i32)> = program
            .refs
            .iter()
            .map(|r| {
                let RefTarget::Map(map) = r.target else {
                    panic!("{r:?}")
                };
                let load = &program.insns[r.insn as usize..][..2];
                assert_eq!(load[0].src, code::PSEUDO_MAP_IDX_VALUE);
                assert_eq!(load[0].imm, map as i32);
                (object.maps[map as usize].name.as_str(), load[1].imm)
            })
            .collect();
        used.sort_unstable();
        used.dedup();
        assert_eq!(
            used,
            [
                (".bss.own", 0),
                (".data.own", 0),
                (".data.quiet", 0),
                (".rodata.own", 0),
                ("globals.bss", 0),
                ("globals.data", 0),
                ("globals.data", 8),
                ("globals.data", 12),
                ("globals.rodata", 0),
                ("globals.rodata", 4),
            ]
        );
    }
}

#[test]
fn configuration_is_resolved_by_program() {
    let object = open("globals");
    let bare = Target::default();
    let program = object
        .link("uses_version", &bare)
        .expect("needs no configuration");
    let RefTarget::Map(map) = program.refs[0].target else {
        panic!("no map")
    };
    assert_eq!(object.maps[map as usize].name, "globals.kconfig");
    let e = object.link("uses_config", &bare).expect_err("strong");
    assert_eq!(e.kind(), ErrorKind::Extern);
    assert_eq!(e.message(), "extern 'CONFIG_NUMBER' (strong): not resolved");
    assert_eq!(e.section(), Some("socket"));
    let text = "CONFIG_NUMBER=0x55\nCONFIG_NAME=\"six\"\nCONFIG_MODULE_THING=m\n";
    let target = Target {
        kconfig: Some(text),
        ..Target::default()
    };
    object.link("uses_config", &target).expect("links");
    for (name, number) in [
        ("globals", 0x55u64.to_le_bytes()),
        ("globals.eb", 0x55u64.to_be_bytes()),
    ] {
        let object = open(name);
        let maps = Linker::new(&object, &target).maps();
        let MapOrigin::Data { bytes, .. } = &maps[map as usize].origin else {
            panic!("no data")
        };
        let value = |name: &str| {
            let g = object
                .globals
                .iter()
                .find(|g| g.name == name)
                .expect("variable");
            bytes[g.range.start as usize..g.range.end as usize].to_vec()
        };
        assert_eq!(value("CONFIG_NUMBER"), number);
        assert_eq!(value("CONFIG_NAME"), b"six\0\0\0\0\0");
        assert_eq!(value("CONFIG_MODULE_THING").iter().sum::<u8>(), 2);
        assert_eq!(value("LINUX_HAS_BPF_COOKIE"), [1]);
    }
}

#[test]
fn maps_are_indices_and_poisoned_if_not_created() {
    let mut object = open("maps");
    let typed = object.map_index("typed").expect("map");
    let program = link(&object, "entry");
    let at = program
        .refs
        .iter()
        .find(|r| r.target == RefTarget::Map(typed as u32));
    let at = at.expect("a reference").insn as usize;
    assert_eq!(program.insns[at].src, code::PSEUDO_MAP_IDX);
    assert_eq!(program.insns[at].imm, typed as i32);
    object.maps[typed].autocreate = false;
    let program = link(&object, "entry");
    let call = Insn {
        code: code::JMP | code::CALL,
        imm: 2_001_000_000 + typed as i32,
        ..Insn::default()
    };
    assert_eq!(program.insns[at..at + 2], [call; 2]);
    assert_eq!(
        reference(&program, at as u32),
        &RefTarget::Poison {
            reason: PoisonReason::Map,
            message: "BPF map 'typed' is referenced but wasn't created".into()
        }
    );
}

#[test]
fn arena_variables_are_offsets_into_the_arena() {
    let object = open("maps");
    let arena = object.map_index("arena").expect("map") as u32;
    let program = link(&object, "other_entry");
    let offsets: Vec<_> = program
        .refs
        .iter()
        .filter(|r| r.target == RefTarget::Map(arena))
        .map(|r| program.insns[r.insn as usize + 1].imm)
        .collect();
    assert_eq!(offsets, [8, 0]);
}

#[test]
fn legacy_maps_are_linked() {
    let program = link(&open("legacy"), "count");
    let maps: Vec<_> = program.refs.iter().map(|r| r.target.clone()).collect();
    assert_eq!(maps, [RefTarget::Map(0), RefTarget::Map(1)]);
}

#[test]
fn kernel_functions_are_ids_of_the_kernels_btf() {
    let kernel = kernel();
    let object = open("externs");
    let id = kernel
        .by_name("do_something", bpfkit_btf::Kind::Func)
        .expect("kernel")
        .id();
    let program = object.link("calls", &target(&kernel)).expect("links");
    let calls: Vec<_> = program
        .refs
        .iter()
        .map(|r| {
            let RefTarget::Kfunc { name, weak, .. } = &r.target else {
                panic!("{r:?}")
            };
            let call = program.insns[r.insn as usize];
            assert_eq!((call.src, call.off), (code::PSEUDO_KFUNC_CALL, 0));
            (name.as_str(), *weak, call.imm as u32)
        })
        .collect();
    assert_eq!(
        calls,
        [("do_something", false, id), ("do_something", true, id)]
    );
    assert_eq!(
        program.attach,
        Ok(Some(BtfAttach {
            type_id: id,
            module: None,
            member: None
        }))
    );
    // Without a target, the name is all there is.
    let program = link(&object, "calls");
    assert!(
        program
            .refs
            .iter()
            .all(|r| program.insns[r.insn as usize].imm == 0)
    );
    assert_eq!(program.attach, Ok(None));
}

#[test]
fn what_the_kernel_lacks_is_said_as_libbpf_says_it() {
    let kernel = kernel();
    let object = open("externs");
    let target = target(&kernel);
    let message = |program| {
        object
            .link(program, &target)
            .expect_err(program)
            .message()
            .to_owned()
    };
    assert_eq!(
        message("calls_strong"),
        "extern (func ksym) 'missing_strong': not found in kernel or module BTFs"
    );
    assert!(
        message("calls_changed").starts_with("extern (func ksym) 'changed': func_proto ["),
        "{}",
        message("calls_changed")
    );
    let weak = object.link("calls_weak", &target).expect("links");
    let poison = weak
        .refs
        .iter()
        .find(|r| matches!(r.target, RefTarget::Poison { .. }));
    let poison = poison.expect("a poisoned call");
    assert_eq!(
        poison.target,
        RefTarget::Poison {
            reason: PoisonReason::Kfunc,
            message: "kfunc 'missing_weak' is referenced but wasn't resolved".into()
        }
    );
    let call = weak.insns[poison.insn as usize];
    assert_eq!((call.src, call.imm / 1_000_000), (0, 2002));
    let id = kernel
        .by_name("btf_trace_sched", bpfkit_btf::Kind::Typedef)
        .expect("kernel")
        .id();
    assert_eq!(
        weak.attach,
        Ok(Some(BtfAttach {
            type_id: id,
            module: None,
            member: None
        }))
    );
    let attach = |program| {
        let e = object
            .link(program, &target)
            .expect("links")
            .attach
            .expect_err(program);
        assert_eq!(e.kind(), ErrorKind::Attach);
        e.message().to_owned()
    };
    assert_eq!(
        attach("no_target"),
        "prog 'no_target': no BTF-based attach target is specified, use \
         bpf_program__set_attach_target()"
    );
    // `calls_strong` attaches to what is not there either; a kernel that has the function
    // it calls tells.
    let e = Linker::new(&object, &target)
        .check()
        .expect_err("libbpf refuses the object");
    assert!(e.message().starts_with("extern (func ksym)"), "{e}");
}

#[test]
fn kernel_variables_are_ids_or_addresses() {
    let kernel = kernel();
    let object = open("externs");
    let symbols = "ffffffff81000010 T other\nffffffff81234567 d untyped_address\n";
    let target = Target {
        kallsyms: Some(symbols),
        ..target(&kernel)
    };
    let program = object.link("variables", &target).expect("links");
    let id = kernel
        .by_name("typed_variable", bpfkit_btf::Kind::Var)
        .expect("kernel")
        .id();
    let load = |program: &Program, name: &str| {
        let r = program
            .refs
            .iter()
            .find(|r| matches!(&r.target, RefTarget::Ksym { name: n, .. } if n == name));
        let at = r.expect(name).insn as usize;
        (
            program.insns[at].src,
            program.insns[at].imm as u32,
            program.insns[at + 1].imm as u32,
        )
    };
    assert_eq!(
        load(&program, "typed_variable"),
        (code::PSEUDO_BTF_ID, id, 0)
    );
    assert_eq!(load(&program, "missing_variable"), (0, 0, 0));
    let program = object.link("addresses", &target).expect("links");
    assert_eq!(
        load(&program, "untyped_address"),
        (0, 0x8123_4567, 0xffff_ffff)
    );
    assert_eq!(load(&program, "untyped_weak"), (0, 0, 0));
    let target = Target {
        kallsyms: Some(""),
        ..target
    };
    let e = object.link("addresses", &target).expect_err("strong");
    assert_eq!(
        e.message(),
        "extern 'untyped_address' (strong): not resolved"
    );
}

#[test]
fn core_relocations_follow_the_kernels_layout() {
    let kernel = kernel();
    let object = open("externs");
    let own = link(&object, "relocated");
    let there = object.link("relocated", &target(&kernel)).expect("links");
    let is_load = |i: &&Insn| i.class() == code::LDX;
    let offset = |p: &Program| p.insns.iter().find(is_load).expect("a load").off;
    assert_eq!((offset(&own), offset(&there)), (0, 12));
    let poisoned = object.link("poisoned", &target(&kernel)).expect("links");
    let messages: Vec<_> = poisoned
        .refs
        .iter()
        .map(|r| {
            let RefTarget::Poison { reason, message } = &r.target else {
                panic!("{r:?}")
            };
            assert_eq!(reason.listing(), "<invalid CO-RE relocation>");
            assert_eq!(poisoned.insns[r.insn as usize].imm, 195_896_080);
            message.as_str()
        })
        .collect();
    let [ancient, gone] = messages.as_slice() else {
        panic!("{messages:?}")
    };
    assert!(
        ancient.starts_with("failed to resolve CO-RE relocation <byte_off> ["),
        "{ancient}"
    );
    assert!(
        ancient.ends_with("struct task___old.ancient (0:0 @ offset 0)"),
        "{ancient}"
    );
    assert!(
        gone.ends_with("struct task.gone (0:1 @ offset 8)"),
        "{gone}"
    );
}

#[test]
fn struct_ops_take_the_kernels_layout() {
    let kernel = kernel();
    let object = open("struct_ops");
    let target = target(&kernel);
    let mut linker = Linker::new(&object, &target);
    linker.check().expect("libbpf loads the object");
    let maps = linker.maps();
    let value = kernel
        .by_name("bpf_struct_ops_ops", bpfkit_btf::Kind::Struct)
        .expect("kernel");
    assert_eq!(Some(maps[1].value_size), value.size());
    let MapOrigin::StructOps {
        bytes, programs, ..
    } = &maps[1].origin
    else {
        panic!("struct_ops")
    };
    // The structure begins at 64; it starts with a pointer and a number that ours lacks
    // or has elsewhere.
    assert_eq!(
        programs,
        &[
            (64 + 16, "ops_start".to_owned()),
            (64 + 24, "ops_stop".to_owned())
        ]
    );
    assert_eq!(&bytes[64 + 32..64 + 38], b"linked");
    let ops = kernel
        .by_name("ops", bpfkit_btf::Kind::Struct)
        .expect("kernel")
        .id();
    let member = |program: &str| {
        let index = object.program_index(program).expect("program");
        object
            .link(program, &target)
            .map(|p| (index, p.attach))
            .expect("links")
            .1
    };
    let attach = |member| {
        Ok(Some(BtfAttach {
            type_id: ops,
            module: None,
            member: Some(member),
        }))
    };
    assert_eq!(member("ops_start"), attach(2));
    assert_eq!(member("ops_stop"), attach(3));
    // Only a map that is not created names it.
    assert_eq!(member("ops_unused"), Ok(None));
}

#[test]
fn absent_programs_are_an_error() {
    let e = open("functions")
        .link("absent", &Target::default())
        .expect_err("absent");
    assert_eq!(
        (e.kind(), e.message()),
        (ErrorKind::NotFound, "no program 'absent'")
    );
    // Subprograms are none.
    assert!(open("functions").link("leaf", &Target::default()).is_err());
}

#[test]
fn attach_types_that_the_kernel_decides() {
    let mut object = open("functions");
    object.programs[5].section = "usdt/x".into();
    object.programs[5].attach_type = AttachType::CgroupInetIngress;
    let attach_type = |version| {
        let target = Target {
            kernel_version: version,
            ..Target::default()
        };
        object
            .link("probe", &target)
            .expect("links")
            .decl
            .attach_type
    };
    assert_eq!(attach_type(6 << 16 | 6 << 8), AttachType::TraceUprobeMulti);
    assert_eq!(attach_type(6 << 16 | 5 << 8), AttachType::CgroupInetIngress);
}
