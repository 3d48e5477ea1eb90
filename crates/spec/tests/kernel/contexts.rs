//! Which loads and stores a program may make at its context.

use bpfkit_spec::ProgType;
use bpfkit_spec::context::{self, Access, Kind};

use crate::programs::{self, Program, insn, mov_imm};
use crate::{kernel, report};

/// Bytes before and after the context that are tried too.
const BEYOND: i32 = 8;
/// Offsets tried at contexts that are mere memory.
const LONG: u32 = 256;

/// `r2 = *(size *)(r1 + offset)`, or the store of a zero in r2.
fn program_with(access: Access) -> Vec<[u8; 8]> {
    let width = match access.size {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        _ => 0x18,
    };
    let offset = access.offset as i16;
    let mut insns = Vec::new();
    if access.write {
        insns.push(mov_imm(2, 0));
        insns.push(insn(0x63 | width, 1, 2, offset, 0));
    } else if access.sign_extend {
        insns.push(insn(0x81 | width, 2, 1, offset, 0));
    } else {
        insns.push(insn(0x61 | width, 2, 1, offset, 0));
    }
    insns
}

/// What the log says R2 is after the load.
fn loaded(log: &str) -> &str {
    log.split_whitespace()
        .find_map(|word| word.strip_prefix("R2=").or(word.strip_prefix("R2_w=")))
        .unwrap_or("")
}

/// How the kernel's log names what a load of that kind gives.
fn log_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Scalar => "scalar",
        Kind::Packet => "pkt(",
        Kind::PacketEnd => "pkt_end",
        Kind::PacketMeta => "pkt_meta(",
        Kind::SockCommonOrNull => "sock_common_or_null(",
        Kind::Socket => "sock(",
        Kind::SocketOrNull => "sock_or_null(",
        Kind::FlowKeys => "flow_keys(",
        Kind::TpBuffer => "tp_buffer(",
        Kind::TrustedBtf(_) => "trusted_ptr_",
    }
}

/// The kernel compares a tracepoint's offset as an unsigned number first and lets programs
/// read in front of the record; the tables do not follow it there.
fn is_known_difference(program: &Program, access: Access) -> bool {
    program.prog_type == ProgType::Tracepoint && access.offset < 0 && !access.write
}

fn compare(program: &Program, access: Access, log: &str) -> Option<String> {
    let layout = context::of(program.prog_type)?;
    let field = layout.field_at(&program.caller(), access);
    let refused = log.contains("invalid bpf_context access");
    if field.is_some() == refused {
        let word = if refused { "refuses" } else { "allows" };
        return Some(format!("{program}: kernel {word} {access:?}"));
    }
    let kind = field?.kind;
    let got = loaded(log);
    if !access.write && !got.starts_with(log_name(kind)) {
        return Some(format!("{program}: {access:?} loads {got}, not {kind:?}"));
    }
    None
}

#[test]
fn context_accesses() {
    let Some(mut kernel) = kernel() else { return };
    let mut asked = 0;
    let mut differences = Vec::new();
    for program in programs::plain() {
        let layout = context::of(program.prog_type).expect("plain programs have one");
        for offset in -BEYOND..layout.size.min(LONG) as i32 + BEYOND {
            for size in [1, 2, 4, 8] {
                for (write, sign_extend) in [(false, false), (true, false), (false, true)] {
                    if sign_extend && size == 8 {
                        continue;
                    }
                    let access = Access {
                        offset,
                        size,
                        write,
                        sign_extend,
                    };
                    if is_known_difference(&program, access) {
                        continue;
                    }
                    asked += 1;
                    let answer = kernel.load(&program.ending(&program_with(access)));
                    differences.extend(compare(&program, access, &answer.log));
                }
            }
        }
    }
    report("context accesses", asked, &differences);
}

#[test]
fn contexts_end_where_the_kernel_says() {
    let Some(mut kernel) = kernel() else { return };
    for program in programs::plain() {
        if program.prog_type != ProgType::Tracepoint {
            continue;
        }
        let size = context::of(program.prog_type).expect("has one").size as i32;
        for (offset, inside) in [(size - 8, true), (size, false)] {
            let access = Access {
                offset,
                size: 8,
                write: false,
                sign_extend: false,
            };
            let answer = kernel.load(&program.ending(&program_with(access)));
            assert_eq!(answer.reached_end(), inside, "{program}: {}", answer.log);
        }
    }
}
