//! Prototypes of helpers: right calls are accepted and wrong arguments refused.

use std::collections::BTreeMap;

use bpfkit_spec::helper::{Arg, ArgKind, HELPERS, Helper, Proto};
use bpfkit_spec::prog_rules::{PACKET_POINTERS_TO_ANY_HELPER, PACKET_READERS};
use bpfkit_spec::{MapType, ProgType, TypeFlags, map_rules};

use crate::bpf::Kernel;
use crate::calls::{Call, Instead, Maps, log_name};
use crate::programs::Program;
use crate::{kernel, report};

/// Every call that some program may make, with a map that the helper takes.
fn each_call(
    kernel: &mut Kernel,
    mut visit: impl FnMut(&mut Kernel, &Program, &Helper, &Proto, &Maps, Option<i32>),
) {
    let maps = Maps::create(kernel);
    for program in crate::helpers::every_program(kernel) {
        for helper in &HELPERS {
            let Some(proto) = helper.proto_for(&program.caller()) else {
                continue;
            };
            if crate::helpers::OPTIONAL.contains(&helper.name) {
                continue;
            }
            let map = MapType::ALL.iter().find_map(|&map_type| {
                let sleepable = map_rules::of(map_type).is_some_and(|rules| rules.sleepable);
                let fits = map_rules::may_call(map_type, helper.id, &program.caller())
                    && (sleepable || !program.sleepable);
                fits.then(|| maps.of(map_type))?
            });
            visit(kernel, &program, helper, proto, &maps, map);
        }
    }
}

#[test]
fn right_calls() {
    let Some(mut kernel) = kernel() else { return };
    let mut asked = 0;
    let mut not_built = 0;
    let mut differences = Vec::new();
    each_call(&mut kernel, |kernel, program, helper, proto, maps, map| {
        let call = Call {
            program,
            helper,
            proto,
            maps,
            map,
            instead: None,
        };
        // The verifier asks for more than the prototype: kprobes or a trampoline.
        let elsewhere = helper.name == "get_func_ip" && program.prog_type != ProgType::Kprobe;
        // A program array is bound to the type of the first program that uses it.
        let own_map = helper.name == "tail_call";
        let call = Call {
            map: match map {
                Some(_) if own_map => Maps::prog_array(kernel),
                _ => map,
            },
            ..call
        };
        let Some(insns) = call.build().filter(|_| !elsewhere) else {
            not_built += 1;
            return;
        };
        asked += 1;
        let answer = kernel.load(&program.ending(&insns));
        if proto.might_sleep && !program.sleepable {
            if !answer.message().contains("might sleep") {
                differences.push(format!("{program} {}: {}", helper.name, answer.message()));
            }
            return;
        }
        if !answer.reached_end() {
            differences.push(format!("{program} {}: {}", helper.name, answer.message()));
            return;
        }
        let call = format!("call bpf_{}#", helper.name);
        let after = answer.log.rsplit_once(&call).map_or("", |(_, after)| after);
        let r0 = after
            .split_whitespace()
            .find_map(|word| word.strip_prefix("R0=").or(word.strip_prefix("R0_w=")))
            .unwrap_or("");
        if !r0.starts_with(&log_name(proto)) {
            differences.push(format!("{program} {} gives {r0:?}", helper.name));
        }
    });
    println!("calls not built: {not_built}");
    report("right calls", asked, &differences);
}

/// Types that the kernel's message names as expected for an argument, by its base type.
fn expected(arg: &Arg) -> Option<&'static str> {
    Some(match arg.kind {
        ArgKind::PtrToCtx => "ctx",
        ArgKind::ConstMapPtr => "map_ptr",
        ArgKind::PtrToMapKey | ArgKind::PtrToMapValue | ArgKind::PtrToMem => {
            "fp, pkt, pkt_meta, map_key, map_value, mem, ringbuf_mem, buf, trusted_ptr_"
        }
        ArgKind::PtrToSpinLock | ArgKind::KptrXchgDest => "map_value, ptr_",
        ArgKind::PtrToSockCommon => "sock_common, sock, tcp_sock, xdp_sock",
        ArgKind::PtrToBtfIdSockCommon => {
            "sock_common, sock, tcp_sock, xdp_sock, ptr_, trusted_ptr_"
        }
        ArgKind::PtrToSocket => "sock",
        ArgKind::PtrToBtfId => "ptr_, trusted_ptr_, rcu_ptr_",
        ArgKind::PtrToRingbufMem => "ringbuf_mem",
        ArgKind::PtrToPercpuBtfId => "percpu_ptr_, percpu_rcu_ptr_, percpu_trusted_ptr_",
        ArgKind::PtrToFunc => "func",
        ArgKind::PtrToStack => "fp",
        ArgKind::PtrToConstStr | ArgKind::PtrToTimer => "map_value",
        ArgKind::PtrToDynptr => "fp, dynptr_ptr",
        _ => return None,
    })
}

#[test]
fn wrong_arguments() {
    let Some(mut kernel) = kernel() else { return };
    let mut asked = 0;
    let mut differences = BTreeMap::new();
    each_call(&mut kernel, |kernel, program, helper, proto, maps, map| {
        if proto.only_in.is_some() || proto.might_sleep && !program.sleepable {
            return;
        }
        for (index, arg) in proto.args[..proto.arity()].iter().enumerate() {
            let call = |instead| Call {
                program,
                helper,
                proto,
                maps,
                map,
                instead: Some((index, instead)),
            };
            let mut differ = |what: String| {
                differences
                    .entry(format!("{} argument {}: {what}", helper.name, index + 1))
                    .or_insert_with(|| program.to_string());
            };
            let answer = |kernel: &mut Kernel, instead| {
                Some(kernel.load(&program.ending(&call(instead).build()?)))
            };
            let Some(scalar) = answer(kernel, Instead::Scalar) else {
                // Arguments before this one cannot be made.
                break;
            };
            asked += 1;
            let text = format!("R{} type=scalar expected=", index + 1);
            let named = scalar.log.split_once(&text).map(|(_, rest)| rest);
            let named = named.and_then(|rest| rest.lines().next());
            if named != expected(arg) {
                differ(format!("expects {named:?}: {}", scalar.message()));
            }
            if arg.kind != ArgKind::PtrToMem && arg.kind != ArgKind::PtrToMapValue {
                continue;
            }
            if let Some(read_only) = answer(kernel, Instead::ReadOnlyMemory) {
                asked += 1;
                let refused = read_only.log.contains("write into map forbidden");
                if refused != arg.flags.has(TypeFlags::MEM_WRITE) {
                    differ(format!("writes: {refused}: {}", read_only.message()));
                }
            }
            if let Some(packet) = answer(kernel, Instead::Packet) {
                asked += 1;
                let refused = packet
                    .log
                    .contains("helper access to the packet is not allowed");
                let any = PACKET_POINTERS_TO_ANY_HELPER;
                let allowed = any.has(program.prog_type)
                    || proto.pkt_access && PACKET_READERS.has(program.prog_type);
                if refused == allowed {
                    differ(format!("packet refused: {refused}: {}", packet.message()));
                }
            }
        }
    });
    let differences: Vec<String> = differences
        .into_iter()
        .map(|(what, first)| format!("{what} ({first})"))
        .collect();
    report("wrong arguments", asked, &differences);
}
