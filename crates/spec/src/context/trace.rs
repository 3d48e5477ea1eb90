//! Contexts of tracing programs.

use super::{ANY, Field, Kind, Layout, Rule};

/// Registers of x86-64 as `struct pt_regs` orders them.
const REGISTERS: [&str; 21] = [
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di",
    "orig_ax", "ip", "cs", "flags", "sp", "ss",
];

const fn registers<const N: usize>(rule: Rule, rest: &[Field]) -> [Field; N] {
    let mut fields = [Field::new("", 0, 8); N];
    let mut i = 0;
    while i < REGISTERS.len() {
        fields[i] = Field::new(REGISTERS[i], 8 * i as u32, 8).read(rule);
        i += 1;
    }
    while i < N {
        fields[i] = rest[i - REGISTERS.len()];
        i += 1;
    }
    fields
}

/// Context of kprobes and uprobes: the registers.
pub static PT_REGS: Layout = Layout::new(
    "bpf_user_pt_regs_t",
    "pt_regs",
    168,
    &registers::<21>(Rule::inside(ANY), &[]),
);

/// Context of perf events: the registers and two numbers.
pub static PERF_EVENT_DATA: Layout = Layout::new(
    "bpf_perf_event_data",
    "bpf_perf_event_data_kern",
    184,
    &registers::<23>(
        Rule::at_start(8),
        &[
            Field::new("sample_period", 168, 8).read(Rule::inside(ANY)),
            Field::new("addr", 176, 8).read(Rule::inside(ANY)),
        ],
    ),
);

/// Context of tracepoints: the record, behind a pointer that programs may not read.
pub static TRACEPOINT: Layout = Layout::new(
    "",
    "",
    8192,
    &[Field::new("record", 8, 8184).read(Rule::inside(ANY))],
);

/// Arguments of a traced function or tracepoint: 12 of 8 bytes.
const ARGS: Field = Field::new("args", 0, 96).read(Rule::inside(ANY));

/// Context of raw tracepoints.
pub static RAW_TRACEPOINT: Layout = Layout::new("bpf_raw_tracepoint_args", "", 96, &[ARGS]);

/// Context of writable raw tracepoints: the first argument is the buffer.
pub static RAW_TRACEPOINT_WRITABLE: Layout = Layout::new(
    "bpf_raw_tracepoint_args",
    "",
    96,
    &[
        Field::new("buffer", 0, 8)
            .kind(Kind::TpBuffer)
            .read(Rule::at_start(8)),
        // Only the buffer's own offset asks for 8 bytes.
        Field::new("args", 1, 95).read(Rule::inside(ANY)),
    ],
);

/// Context of syscall programs: memory of the caller's size.
pub static SYSCALL: Layout = Layout::new(
    "",
    "",
    65535,
    &[Field::new("memory", 0, 65535)
        .read(Rule::inside(ANY))
        .write(Rule::inside(ANY))],
);

/// Context of programs with typed arguments.
pub static BTF_ARGS: Layout = Layout {
    by_btf: true,
    ..Layout::new("", "", 96, &[ARGS])
};
