//! What each rule makes of programs: the code without it and with it, as the files of
//! `tests/filetests/jit` show. `BPFKIT_BLESS=1` writes the code anew.
//!
//! A case is `;; TITLE`, `; rule: NAME`, perhaps `; checked` or `; verified`, a program, and lines that begin
//! with `;|`: the code for each architecture on which the rule makes a difference.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::{env, fs};

use bpfkit_isa::asm;
use bpfkit_jit::{Arch, CodeMemory, Features, Jit, Rule, Rules, shared_places};
use bpfkit_runtime::{Code, LoadOptions, MapSet, Trusted, raw_program};
use bpfkit_spec::ProgType;
use bpfkit_verifier::Environment;
use iced_x86::{Decoder, DecoderOptions, Formatter, NasmFormatter};
use yaxpeax_arch::{Decoder as _, U8Reader};
use yaxpeax_arm::armv8::a64::{InstDecoder, Instruction};

fn x86_64(code: &[u8]) -> String {
    let mut formatter = NasmFormatter::new();
    formatter.options_mut().set_branch_leading_zeros(false);
    let mut out = String::new();
    for instruction in &mut Decoder::with_ip(64, code, 0, DecoderOptions::NONE) {
        let mut text = String::new();
        formatter.format(&instruction, &mut text);
        let to = instruction.near_branch_target() as i64;
        if let Some((_, name)) = shared_places(Arch::X86_64).find(|(at, _)| i64::from(*at) == to)
            && to != 0
        {
            text = format!("call [{name}]");
        }
        // Where the state's fields lie is the runtime's affair.
        if let Some((before, rest)) = text.split_once("[r12+")
            && let Some((_, after)) = rest.split_once(']')
        {
            text = format!("{before}[r12+state]{after}");
        }
        let _ = writeln!(out, ";|   {:4x}  {text}", instruction.ip());
    }
    out
}

fn aarch64(code: &[u8]) -> String {
    let decoder = InstDecoder::default();
    let mut out = String::new();
    for (i, word) in code.chunks_exact(4).enumerate() {
        let mut instruction = Instruction::default();
        let text = match decoder.decode_into(&mut instruction, &mut U8Reader::new(word)) {
            Ok(()) => instruction.to_string(),
            Err(error) => format!("{error}"),
        };
        let _ = writeln!(out, ";|   {:4x}  {text}", i * 4);
    }
    out
}

/// How a program is given to the compiler.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Trusted,
    Checked,
    /// Verified, so that facts are known.
    Verified,
}

/// The code of a program by the given rules.
fn code(text: &str, arch: Arch, mode: Mode, rules: Rules) -> String {
    let insns = asm::assemble(text).unwrap().insns;
    let mut program = raw_program("case", insns);
    let code = match mode {
        Mode::Checked => Code::Unverified(Arc::new(program)),
        // SAFETY: the code is not run here.
        Mode::Trusted => Code::Trusted(unsafe { Trusted::assume(Arc::new(program)) }),
        Mode::Verified => {
            program.decl.prog_type = ProgType::SocketFilter;
            let environment = Environment::new(None);
            Code::verify(&program, &MapSet::empty(), &environment).unwrap()
        }
    };
    let jit = Jit::new(CodeMemory::new(), rules, Features::ALL);
    let bytes = jit
        .compile(arch, &code, &MapSet::empty(), &LoadOptions::default())
        .unwrap();
    match arch {
        Arch::X86_64 => x86_64(&bytes),
        Arch::Aarch64 => aarch64(&bytes),
    }
}

/// The lines of code that belong to a case, and the rule's name.
fn shown(case: &[&str]) -> (String, Rule) {
    let option = |name: &str| {
        let mut lines = case.iter().filter_map(|line| line.strip_prefix("; "));
        lines.find_map(|line| line.strip_prefix(name))
    };
    let name = option("rule: ").expect("a case without a rule");
    let rule = Rule::by_name(name).unwrap_or_else(|| panic!("no rule {name}"));
    let mode = match (option("checked"), option("verified")) {
        (Some(_), _) => Mode::Checked,
        (_, Some(_)) => Mode::Verified,
        _ => Mode::Trusted,
    };
    let program: Vec<&str> = case
        .iter()
        .copied()
        .filter(|line| !line.starts_with(';'))
        .collect();
    let program = program.join("\n");
    let mut out = String::new();
    for (arch, name) in [(Arch::X86_64, "x86-64"), (Arch::Aarch64, "AArch64")] {
        let all = Rules::default();
        let [without, with] =
            [all.without(rule), all].map(|rules| code(&program, arch, mode, rules));
        // Checked code calls out where it stops, at addresses that change.
        let brief = |code: String| match mode {
            Mode::Checked => code
                .lines()
                .take_while(|line| !line.ends_with(" ret"))
                .map(|line| format!("{line}\n"))
                .collect(),
            _ => code,
        };
        let [without, with] = [brief(without), brief(with)];
        if without != with {
            let _ = write!(
                out,
                ";| {name}, without:\n{without};| {name}, with:\n{with}"
            );
        }
    }
    (out, rule)
}

#[test]
fn rules_make_the_code_that_the_files_show() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/jit");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let bless = env::var_os("BPFKIT_BLESS").is_some();
    let (mut failures, mut rules) = (Vec::new(), Vec::new());
    for path in files {
        let text = fs::read_to_string(&path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.first(), Some(&"; test: jit"), "{}", path.display());
        let starts: Vec<usize> = (0..lines.len())
            .filter(|&i| lines[i].starts_with(";; "))
            .collect();
        let mut out = lines[..starts[0]].join("\n") + "\n";
        for (i, &start) in starts.iter().enumerate() {
            let end = starts.get(i + 1).map_or(lines.len(), |&end| end);
            let case = &lines[start..end];
            let (code, rule) = shown(case);
            rules.push(rule);
            if code.is_empty() {
                failures.push(format!("{}: no difference: {}", path.display(), case[0]));
            }
            let mut written: Vec<&str> = case
                .iter()
                .copied()
                .filter(|line| !line.starts_with(";|") && !line.is_empty())
                .collect();
            let last = written.pop().unwrap_or_default();
            for line in written {
                let _ = writeln!(out, "{line}");
            }
            let _ = writeln!(out, "{last}\n{code}");
        }
        let out = out.trim_end().to_owned() + "\n";
        if out != text {
            if bless {
                fs::write(&path, out).unwrap();
            } else {
                failures.push(format!("{}: the code is another one", path.display()));
            }
        }
    }
    // Calls that become code need maps and helpers: `inline.rs` and `tail_calls.rs` show them.
    rules.extend([Rule::InlineLookup, Rule::DirectLookup, Rule::InlineHelper]);
    rules.push(Rule::DirectTailCall);
    for rule in Rule::all().filter(|rule| !rules.contains(rule)) {
        failures.push(format!("no case shows the rule {}", rule.name()));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
