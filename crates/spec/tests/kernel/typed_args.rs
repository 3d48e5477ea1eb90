//! Arguments of programs that the kernel's BTF types: tracepoints and iterators; fields that
//! are safe to load; members of struct_ops.

use bpfkit_btf::{Btf, Kind, Type};
use bpfkit_spec::iter::{ArgKind, TARGETS};
use bpfkit_spec::raw_tp::{self, ArgFact};
use bpfkit_spec::{AttachType, ProgType, TypeFlags, btf_rules};

use crate::bpf::Kernel;
use crate::programs::{self, Program, insn};
use crate::{kernel, report, vmlinux};

/// What R2 is after loading the argument at that offset; the message if it is refused.
fn load_argument(kernel: &mut Kernel, program: &Program, offset: u32) -> Result<String, String> {
    let load = insn(0x79, 2, 1, offset as i16, 0);
    let answer = kernel.load(&program.ending(&[load]));
    let found = answer
        .log
        .split_whitespace()
        .find_map(|word| word.strip_prefix("R2=").or(word.strip_prefix("R2_w=")));
    found
        .map(str::to_owned)
        .ok_or_else(|| answer.message().to_owned())
}

fn is_struct_pointer(parameter: Option<Type<'_>>) -> bool {
    let target = parameter
        .and_then(Type::resolve)
        .filter(|t| t.is(Kind::Ptr))
        .and_then(|pointer| pointer.target()?.resolve());
    target.is_some_and(|t| t.is(Kind::Struct) || t.is(Kind::Union))
}

/// Every raw tracepoint with its parameters behind the first, hidden one.
fn tracepoints(btf: &Btf) -> impl Iterator<Item = (Type<'_>, Vec<Option<Type<'_>>>)> {
    btf.own_types()
        .filter(|t| t.is(Kind::Typedef) && t.name().starts_with("btf_trace_"))
        .filter_map(|typedef| {
            let proto = typedef.resolve()?.target()?.resolve()?;
            let parameters = proto.params().skip(1).map(|param| param.type_in());
            Some((typedef, parameters.collect()))
        })
}

#[test]
fn arguments_of_tracepoints() {
    let Some(mut kernel) = kernel() else { return };
    let Some(btf) = vmlinux() else { return };
    let mut asked = 0;
    let mut differences = Vec::new();
    for (typedef, parameters) in tracepoints(btf) {
        let program = Program::typed(AttachType::TraceRawTp, typedef);
        let name = typedef.name().trim_start_matches("btf_trace_");
        for (index, parameter) in parameters.into_iter().enumerate() {
            if !is_struct_pointer(parameter) {
                continue;
            }
            let Ok(loaded) = load_argument(&mut kernel, &program, 8 * index as u32) else {
                continue;
            };
            asked += 1;
            let facts: Vec<ArgFact> = raw_tp::facts(name, index as u8).collect();
            let agrees = if facts.contains(&ArgFact::MaybeError) {
                loaded.starts_with("scalar(")
            } else {
                loaded.contains("or_null_") == facts.contains(&ArgFact::MaybeNull)
            };
            // The kernel's own sources mark some by the name of the parameter.
            let by_name = loaded.contains("or_null_") && nullable(typedef, index);
            if !agrees && !by_name {
                differences.push(format!("{name} argument {index}: {loaded}"));
            }
        }
    }
    report("arguments of tracepoints", asked, &differences);
}

fn nullable(typedef: Type<'_>, index: usize) -> bool {
    let proto = typedef.resolve().and_then(|pointer| pointer.target());
    let parameter = proto.and_then(|proto| proto.resolve()?.params().nth(index + 1));
    parameter.is_some_and(|parameter| parameter.name().ends_with("__nullable"))
}

#[test]
fn arguments_of_iterators() {
    let Some(mut kernel) = kernel() else { return };
    let Some(btf) = vmlinux() else { return };
    let mut asked = 0;
    let mut differences = Vec::new();
    for target in TARGETS {
        let function = format!("bpf_iter_{}", target.name);
        let Some(function) = btf.by_name(&function, Kind::Func) else {
            println!("skipped {}: not in this kernel", target.name);
            continue;
        };
        let program = Program::typed(AttachType::TraceIter, function);
        for arg in target.args {
            asked += 1;
            let flag = |flag, text| if arg.flags.has(flag) { text } else { "" };
            let or_null = flag(TypeFlags::PTR_MAYBE_NULL, "or_null_");
            let expected = match arg.kind {
                ArgKind::BtfId(object) => {
                    let trusted = flag(TypeFlags::PTR_TRUSTED, "trusted_");
                    format!("{trusted}ptr_{or_null}{object}(")
                }
                ArgKind::Buffer => {
                    format!("{}buf_or_null(", flag(TypeFlags::MEM_RDONLY, "rdonly_"))
                }
            };
            let loaded = load_argument(&mut kernel, &program, arg.offset);
            if !loaded.as_ref().is_ok_and(|got| got.starts_with(&expected)) {
                differences.push(format!(
                    "{} {}: {loaded:?}, not {expected}",
                    target.name, arg.name
                ));
            }
            let field = btf
                .by_name(&format!("bpf_iter__{}", target.name), Kind::Struct)
                .and_then(|context| {
                    let mut members = context.members();
                    members.find(|member| member.byte_offset() == Some(arg.offset))
                });
            if let Some(field) = field {
                // Pointers stand in unions that pad them to 64 bits.
                let within = field.type_in().and_then(|t| t.member(0));
                let name = match field.name() {
                    "" => within.map_or("", |member| member.name()),
                    name => name,
                };
                assert_eq!(name, arg.name, "{}", target.name);
            }
        }
    }
    report("arguments of iterators", asked, &differences);
}

#[test]
fn iterators_of_this_kernel() {
    let Some(btf) = vmlinux() else {
        println!("skipped: no BTF of a running kernel");
        return;
    };
    if kernel().is_none() {
        return;
    }
    let contexts = btf
        .own_types()
        .filter(|t| t.is(Kind::Struct))
        .filter_map(|t| t.name().strip_prefix("bpf_iter__"))
        .filter(|name| !name.contains("__"));
    for name in contexts {
        assert!(bpfkit_spec::iter::by_name(name).is_some(), "{name}");
    }
}

#[test]
fn safe_fields_are_those_in_btf() {
    if kernel().is_none() {
        return;
    }
    let Some(btf) = vmlinux() else { return };
    let mut found = 0;
    for structure in btf.own_types().filter(|t| t.is(Kind::Struct)) {
        let name = structure.name();
        let Some(&safety) = btf_rules::Safety::ALL
            .iter()
            .rev()
            .find(|safety| name.ends_with(safety.suffix()))
        else {
            continue;
        };
        let object = name.trim_end_matches(safety.suffix());
        let row = btf_rules::SAFE_FIELDS
            .iter()
            .find(|row| row.0 == object && row.1 == safety);
        let (_, _, fields) = row.unwrap_or_else(|| panic!("{name} has no row"));
        let members: Vec<&str> = structure.members().map(|member| member.name()).collect();
        assert_eq!(members, *fields, "{name}");
        found += 1;
    }
    assert_eq!(found, btf_rules::SAFE_FIELDS.len());
}

#[test]
fn sleepable_programs() {
    let Some(mut kernel) = kernel() else { return };
    let mut all = programs::plain();
    if let Some(btf) = vmlinux() {
        all.extend(programs::by_btf(btf));
    }
    let mut asked = 0;
    let mut differences = Vec::new();
    for mut program in all {
        if !kernel.load(&program.ending(&[])).reached_end() {
            continue;
        }
        program.sleepable = true;
        let answer = kernel.load(&program.ending(&[]));
        asked += 1;
        let member = bpfkit_spec::struct_ops::by_name(&program.target)
            .is_none_or(|ops| ops.sleepable.has(&program.member));
        let expected = program.prog_type.can_sleep(program.attach_type) && member;
        if expected != answer.reached_end() {
            differences.push(format!("{program}: {}", answer.message()));
        }
    }
    report("sleepable programs", asked, &differences);
}

#[test]
fn members_of_struct_ops() {
    let Some(mut kernel) = kernel() else { return };
    let Some(btf) = vmlinux() else { return };
    let mut asked = 0;
    let mut differences = Vec::new();
    for program in programs::by_btf(btf) {
        if program.prog_type != ProgType::StructOps {
            continue;
        }
        let answer = kernel.load(&program.ending(&[]));
        if answer.log.contains("is not a supported struct") {
            continue;
        }
        let ops = bpfkit_spec::struct_ops::by_name(&program.target).expect("listed");
        let unsupported = answer.log.contains("attach to unsupported member");
        asked += 1;
        if unsupported != ops.unsupported.contains(&program.member.as_str()) {
            differences.push(format!("{program}: {}", answer.message()));
        }
    }
    report("members of struct_ops", asked, &differences);
}
