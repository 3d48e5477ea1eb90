//! The text programs of `tests/filetests/run`, run by the kernel: its return values are the
//! expectations that stand in the files.

#[path = "../../../tests/filetests/parser.rs"]
#[allow(
    dead_code,
    reason = "other tests rewrite expectations; the kernel's are not ours"
)]
mod parser;

use std::thread;
use std::time::Duration;

use bpfkit_isa::Insn;
use bpfkit_isa::asm::{self, Resolver};
use bpfkit_object::{Program, raw_program};
use bpfkit_oracle::{Kernel, LoadError, LoadOptions, OracleError, TestRun};
use bpfkit_spec::{ProgType, helper};

/// The kernel tells 32 bits of a return value; a syscall program writes all 64 into its
/// context, so each program becomes a function of one that does.
const WHOLE_RESULT: &str = "r6 = r1
call filetest
*(u64 *)(r6 + 0) = r0
r0 = 0
exit
filetest:
";

const SLEEPABLE: u32 = 1 << 4;

struct Helpers;

impl Resolver for Helpers {
    fn helper(&self, name: &str) -> Option<i32> {
        let name = name.strip_prefix("bpf_").unwrap_or(name);
        i32::try_from(helper::by_name(name)?.id).ok()
    }
}

fn program(insns: Vec<Insn>) -> Program {
    let mut program = raw_program("filetest", insns);
    program.decl.prog_type = ProgType::Syscall;
    program.decl.flags = SLEEPABLE;
    program
}

/// R0 of a program, and how many of its bits the kernel told.
fn ask(kernel: &mut Kernel, text: &str) -> Result<(u64, u64), LoadError> {
    let whole = format!("{WHOLE_RESULT}{text}");
    let assemble = |text: &str| {
        let assembled = asm::assemble_with(text, &Helpers);
        program(
            assembled
                .unwrap_or_else(|error| panic!("{error} in\n{text}"))
                .insns,
        )
    };
    let options = LoadOptions {
        log_level: 1,
        ..LoadOptions::default()
    };
    let (handle, mask) = match kernel.load(&assemble(&whole), &[], None, &options) {
        Ok((handle, _)) => (handle, u64::MAX),
        // The frames of a program share 512 bytes of stack, and there are eight at most.
        Err(LoadError::Refused { log, .. })
            if log.contains("combined stack size") || log.contains("frames is too deep") =>
        {
            (
                kernel.load(&assemble(text), &[], None, &options)?.0,
                u64::from(u32::MAX),
            )
        }
        Err(error) => return Err(error),
    };
    let result = kernel.test_run(
        handle,
        &TestRun {
            ctx: &[0; 8],
            ..TestRun::default()
        },
    )?;
    kernel.unload(handle);
    let whole = result
        .ctx
        .first_chunk()
        .map_or(0, |bytes| u64::from_le_bytes(*bytes));
    Ok((
        if mask == u64::MAX {
            whole
        } else {
            result.retval.into()
        },
        mask,
    ))
}

#[test]
fn the_kernel_returns_what_the_files_say() {
    let mut kernel = match Kernel::start() {
        Ok(kernel) => kernel,
        Err(error) if error.is_absence() => return println!("skipped: {error}"),
        Err(error) => panic!("{error}"),
    };
    let (mut agreed, mut unknown, mut kept_back) = (0, 0, 0);
    let mut wrong = Vec::new();
    for file in parser::files("run").expect("the files") {
        for case in &file.cases {
            for row in &case.rows {
                let expected = u64::from_str_radix(row.expected.trim_start_matches("0x"), 16);
                let (Ok(expected), None) = (expected, &case.not_in_kernel) else {
                    kept_back += 1;
                    continue;
                };
                let text = case.text(row);
                match ask(&mut kernel, &text) {
                    Ok((got, mask)) if got == expected & mask => agreed += 1,
                    Ok((got, _)) => wrong.push(format!(
                        "{}: {}: {got:#x} for {expected:#x}\n{text}",
                        file.path.display(),
                        case.title
                    )),
                    // An older kernel lacks the newest instructions.
                    Err(LoadError::Refused { log, .. }) if is_unknown(&log) => unknown += 1,
                    Err(LoadError::Oracle(OracleError::Stuck)) => {
                        return println!("skipped: the kernel stopped answering after {agreed}");
                    }
                    Err(error) => {
                        let log = match &error {
                            LoadError::Refused { log, .. } => log.as_str(),
                            LoadError::Oracle(_) => "",
                        };
                        wrong.push(format!("{}: {error}\n{log}\n{text}", case.title));
                    }
                }
                // Unloads pile up in a work queue that a kernel can deadlock over.
                thread::sleep(Duration::from_millis(2));
            }
        }
    }
    println!(
        "{agreed} return values agree; {unknown} programs with instructions that this kernel lacks; {kept_back} not for a kernel"
    );
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(agreed > 0);
}

/// Whether the kernel refused an instruction, not what the program does.
fn is_unknown(log: &str) -> bool {
    [
        "unknown opcode",
        "uses reserved fields",
        "invalid atomic op",
    ]
    .iter()
    .any(|message| log.contains(message))
}
