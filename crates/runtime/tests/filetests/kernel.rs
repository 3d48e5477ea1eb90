//! The programs in the running kernel, as socket filters: the
//! corpus says what the kernel says. Skipped where bpf(2) may not be used.

use bpfkit_oracle::{Kernel, LoadOptions, TestRun};
use bpfkit_runtime::raw_program;
use bpfkit_spec::ProgType;

use crate::{assemble, parser};

/// What the kernel returns: 32 bits.
fn ask(kernel: &mut Kernel, text: &str) -> Result<u32, String> {
    let insns = assemble(text).map_err(|e| e.to_string())?;
    let mut program = raw_program("corpus", insns);
    program.decl.prog_type = ProgType::SocketFilter;
    let options = LoadOptions {
        log_level: 1,
        ..LoadOptions::default()
    };
    let (handle, _) = kernel
        .load(&program, &[], None, &options)
        .map_err(|e| e.to_string())?;
    let run = TestRun {
        data: &[0; 64],
        ..TestRun::default()
    };
    let result = kernel.test_run(handle, &run);
    kernel.unload(handle);
    Ok(result.map_err(|e| e.to_string())?.retval)
}

#[test]
fn the_kernel_agrees_with_the_corpus() {
    let mut kernel = match Kernel::start() {
        Ok(kernel) => kernel,
        Err(error) => return println!("skipped: {error}"),
    };
    let (mut asked, mut halves, mut left_out, mut failures) = (0, 0, 0, Vec::new());
    for file in parser::files("run").unwrap() {
        let name = file
            .path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        for case in &file.cases {
            if case.not_in_kernel.is_some() {
                left_out += case.rows.len();
                continue;
            }
            for row in &case.rows {
                let hex = row.expected.trim_start_matches("0x");
                let expected = u64::from_str_radix(hex, 16)
                    .unwrap_or_else(|_| panic!("{name}: {}: {}", case.title, row.expected));
                let text = case.text(row);
                let mut compare = |text: &str, expected: u32| match ask(&mut kernel, text) {
                    Ok(said) if said == expected => {}
                    Ok(said) => failures.push(format!(
                        "{name}: {}: the kernel says {said:#x}, expected {expected:#x}\n{text}",
                        case.title
                    )),
                    Err(error) => failures.push(format!("{name}: {}: {error}\n{text}", case.title)),
                };
                asked += 1;
                compare(&text, expected as u32);
                // The upper half, where no other function's `exit` is in the way.
                if !text.contains("call ") {
                    halves += 1;
                    let upper = text.replace("exit\n", "r0 >>= 32\nexit\n");
                    compare(&upper, (expected >> 32) as u32);
                }
            }
        }
    }
    println!("{asked} programs, {halves} also for the upper half; {left_out} left out");
    assert!(
        failures.is_empty(),
        "{} failures\n{}",
        failures.len(),
        failures.join("\n")
    );
}
