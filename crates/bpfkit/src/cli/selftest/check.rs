//! One subtest: verify, look for the messages, run.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bpfkit::context::Input;
use bpfkit::jit::Jit;
use bpfkit::runtime::{FixedHost, LoadErrorKind};
use bpfkit::{Engine, Interpreter, MapSet, Session, SessionError, SessionOptions, Vm};
use bpfkit_btf::{Btf, KernelBtf};
use bpfkit_maps::Map;
use bpfkit_object::{ErrorKind, Linker, MapDef, Object, Program, Target};
use bpfkit_spec::{AttachType, KernelVersion, MapType, ProgType};
use bpfkit_verifier::{Environment, Verdict};

use super::listing::listing;
use super::pattern;
use super::suite::{Case, Mode, Suite, Test};
use super::tags::{Expectation, Retval, Spec, flag};
use crate::cli::judge;
use crate::cli::objects::Kernel;
use crate::cli::oracle_rows::OracleRow;

/// Bytes of the log that the selftests keep: its end.
const LOG_BYTES: usize = 2 << 20;
/// What the selftests' clock shows, in ns; some programs want it not to be 0.
const TIME: u64 = 1_000_000_000;
/// Instructions that a program may execute.
const STEPS: u64 = 100_000_000;
/// Flags that `test_progs` loads every program with.
const TEST_FLAGS: u32 = flag::TEST_RND_HI32 | flag::TEST_REG_INVARIANTS;
/// Flags that belong to the program; the others are the verifier's.
const PROGRAM_FLAGS: u32 = flag::SLEEPABLE | flag::XDP_HAS_FRAGS;

/// What came of a subtest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Status {
    /// As expected.
    Ok,
    /// It cannot be tested here, for that reason.
    Skip(String),
    /// Not as expected.
    Fail,
}

/// What came of a subtest, and what there is to read about it.
pub struct Outcome {
    pub status: Status,
    pub text: String,
}

impl Outcome {
    fn ok(text: String) -> Outcome {
        let status = Status::Ok;
        Outcome { status, text }
    }

    fn skip(why: impl Into<String>) -> Outcome {
        Outcome {
            status: Status::Skip(why.into()),
            text: String::new(),
        }
    }

    /// A failure, with the reason.
    pub fn fail(text: impl Into<String>) -> Outcome {
        Outcome {
            status: Status::Fail,
            text: text.into(),
        }
    }
}

/// What all subtests share.
pub struct Shared {
    /// The tests.
    pub suite: Suite,
    /// What programs are linked against.
    pub kernel: Kernel,
    /// Kernel to judge by.
    pub version: Option<KernelVersion>,
    /// Least log level.
    pub verbosity: u32,
    /// This machine, as the tags name architectures.
    pub arch: &'static str,
    /// BTF by the path that tags name.
    pub btf: HashMap<std::path::PathBuf, Arc<Btf>>,
}

/// Checks one subtest.
pub fn check(shared: &Shared, case: &Case) -> Outcome {
    let test = &shared.suite.tests[case.test];
    if let Some(why) = &case.broken {
        return Outcome::fail(format!("the tags cannot be understood: {why}\n"));
    }
    let object = match &test.object {
        Ok(object) => object,
        Err(why) => return Outcome::fail(format!("{why}\n")),
    };
    let spec = test.specs.get(case.prog).and_then(Option::as_ref);
    match (&case.mode, spec) {
        (Mode::Oracle(row), _) => by_oracle(shared, object, case, row),
        (Mode::Privileged, Some(spec)) => by_tags(shared, test, object, case, spec, true),
        (Mode::Unprivileged, Some(spec)) => by_tags(shared, test, object, case, spec, false),
        (_, None) => Outcome::fail("the program has no tags\n"),
    }
}

/// What a kernel said is expected.
fn by_oracle(shared: &Shared, object: &Object, case: &Case, row: &OracleRow) -> Outcome {
    let target = shared.kernel.target();
    let mut linker = Linker::new(object, &target);
    let mut program = match linker.link(case.prog) {
        Ok(program) => program,
        Err(error) => return Outcome::fail(format!("{error}\n")),
    };
    judge::guess(&mut program, true);
    if let Some(known) = ProgType::ALL.iter().find(|t| t.name() == row.prog_type) {
        program.decl.prog_type = *known;
    }
    if let Some(known) = AttachType::ALL.iter().find(|t| t.name() == row.attach_type) {
        program.decl.attach_type = *known;
    }
    let maps = judge::sized(linker.maps());
    let mut environment = shared.environment(shared.kernel.btf());
    environment.log_level = shared.verbosity;
    let verdict = bpfkit_verifier::verify(&program, &maps, &environment);
    let said = match &verdict.result {
        Ok(_) => String::new(),
        Err(rejection) => rejection.message.clone(),
    };
    let (ours, theirs) = (verdict.result.is_ok(), row.verdict == "accept");
    let wanted = row.message.as_str().unwrap_or_default();
    if ours == theirs && (ours || said == wanted) {
        return Outcome::ok(log_text(&verdict.log));
    }
    let word = |accepted: bool, message: &str| match accepted {
        true => "accepted".to_owned(),
        false => format!("refused: {message}"),
    };
    Outcome::fail(format!(
        "{}expected: {}\n     got: {}\n",
        log_text(&verdict.log),
        word(theirs, wanted),
        word(ours, &said)
    ))
}

/// What the tags say is expected.
fn by_tags(
    shared: &Shared,
    test: &Test,
    object: &Object,
    case: &Case,
    spec: &Spec,
    privileged: bool,
) -> Outcome {
    let expected = match privileged {
        true => &spec.privileged,
        false => &spec.unprivileged,
    };
    let Some(expected) = expected else {
        return Outcome::fail("the tags expect nothing of this mode\n");
    };
    if let Some(why) = shared.obstacle(spec, expected, privileged) {
        return Outcome::skip(why);
    }
    let own = match &spec.btf_path {
        Some(path) => match shared.btf.get(&test.folder.join(path)) {
            Some(btf) => Some(Arc::clone(btf)),
            None => return Outcome::fail(format!("no BTF in {path}\n")),
        },
        None => None,
    };
    let target = Target {
        kernel_btf: own.as_deref().map_or(shared.kernel.btf(), KernelBtf::Read),
        ..shared.kernel.target()
    };
    let limited;
    let object = match privileged {
        true => object,
        false => {
            limited = without_privileged_maps(object);
            &limited
        }
    };
    let mut linker = Linker::new(object, &target);
    let maps = linker.maps();
    let linked = linker.check().and_then(|()| linker.link(case.prog));
    let mut program = match linked {
        Ok(program) => program,
        // Nothing can be said of a program whose functions or attach point are not there.
        Err(error) if matches!(error.kind(), ErrorKind::Extern | ErrorKind::Attach) => {
            return Outcome::skip(error.to_string());
        }
        Err(_) if expected.failure && expected.messages.is_empty() => {
            return Outcome::ok(String::new());
        }
        Err(error) => return Outcome::fail(format!("{error}\n")),
    };
    if let Err(error) = &program.attach {
        return Outcome::skip(error.to_string());
    }
    let flags = (TEST_FLAGS & !spec.clear_flags) | spec.set_flags;
    program.decl.flags |= flags & PROGRAM_FLAGS;
    let mut environment = shared.environment(target.kernel_btf);
    environment.privileged = privileged;
    environment.strict_alignment = flags & flag::STRICT_ALIGNMENT != 0;
    environment.test_state_freq = flags & flag::TEST_STATE_FREQ != 0;
    environment.test_reg_invariants = flags & flag::TEST_REG_INVARIANTS != 0;
    environment.rewrite = !expected.xlated.is_empty();
    let verdict = judge_program(
        &program,
        &maps,
        environment,
        spec,
        expected,
        shared.verbosity,
    );
    let log = log_text(&verdict.log);
    if expected.failure == verdict.result.is_ok() {
        let what = match expected.failure {
            true => "unexpected_load_success",
            false => "unexpected_load_failure",
        };
        return Outcome::fail(format!("{log}{what}\n"));
    }
    if let Err(why) = pattern::find_all(&expected.messages, kept(&verdict.log)) {
        return Outcome::fail(format!("{log}{why}"));
    }
    if let (Ok(verified), false) = (&verdict.result, expected.xlated.is_empty()) {
        let text = match verified.rewritten() {
            Some(Ok(rewritten)) => listing(&rewritten.insns),
            Some(Err(error)) => return Outcome::fail(format!("{log}xlated: {error}\n")),
            None => return Outcome::fail(format!("{log}xlated: no rewritten program\n")),
        };
        if let Err(why) = pattern::find_all(&expected.xlated, &text) {
            let block = "=============";
            return Outcome::fail(format!("{log}XLATED:\n{block}\n{text}{block}\n{why}"));
        }
    }
    match expected.retval {
        Some(retval) if !expected.failure => run(object, &target, case.prog, retval, log),
        _ => Outcome::ok(log),
    }
}

/// Verifies at the level that shows the messages: as libbpf does, a program that is loaded
/// without a log is loaded again with one where it is refused.
fn judge_program(
    program: &Program,
    maps: &[MapDef],
    mut environment: Environment<'_>,
    spec: &Spec,
    expected: &Expectation,
    verbosity: u32,
) -> Verdict {
    let level = spec.log_level & 3;
    let level = level.max(verbosity) | (spec.log_level & 4);
    environment.log_level = match level {
        0 if expected.failure => 1,
        level => level,
    };
    let verdict = bpfkit_verifier::verify(program, maps, &environment);
    match (&verdict.result, level) {
        (Err(_), 0) if !expected.failure => {
            environment.log_level = 1;
            bpfkit_verifier::verify(program, maps, &environment)
        }
        _ => verdict,
    }
}

impl Shared {
    fn environment<'a>(&self, btf: KernelBtf<'a>) -> Environment<'a> {
        let mut environment = Environment::new(btf);
        if let Some(version) = self.version {
            environment.kernel_version = version;
        }
        environment
    }

    /// Why a subtest cannot be made here.
    fn obstacle(&self, spec: &Spec, expected: &Expectation, privileged: bool) -> Option<String> {
        if !spec.arches.is_empty() && !spec.arches.iter().any(|arch| arch == self.arch) {
            return Some(format!("it is for {}", spec.arches.join(", ")));
        }
        if spec.jited == Some(false) {
            return Some("it is for kernels that do not compile programs".to_owned());
        }
        if !expected.jited.is_empty() {
            return Some("machine code is ours, not the kernel's".to_owned());
        }
        if !expected.stdout.is_empty() || !expected.stderr.is_empty() {
            return Some("programs have no output streams".to_owned());
        }
        if !privileged && !spec.caps_unprivileged.is_empty() {
            return Some("capabilities come all together or not at all".to_owned());
        }
        None
    }
}

/// The end of a log that the selftests look at.
fn kept(log: &str) -> &str {
    let start = log.len().saturating_sub(LOG_BYTES);
    &log[log.ceil_char_boundary(start)..]
}

fn log_text(log: &str) -> String {
    match log.is_empty() {
        true => String::new(),
        false => format!(
            "VERIFIER LOG:\n=============\n{}\n=============\n",
            log.trim_end()
        ),
    }
}

/// The object as an unprivileged process loads it: without the maps that it may not create.
fn without_privileged_maps(object: &Object) -> Object {
    use MapType::*;
    const ZERO_SEED: u32 = 1 << 6;
    let mut object = object.clone();
    for map in &mut object.maps {
        map.autocreate &= match map.map_type {
            Hash | PercpuHash | HashOfMaps => map.flags & ZERO_SEED == 0,
            PercpuCgroupStorage | Array | Ringbuf | ProgArray | CgroupArray | PercpuArray
            | UserRingbuf | ArrayOfMaps | CgroupStorage | PerfEventArray => true,
            _ => false,
        };
    }
    object
}

/// Runs the program on every engine with the selftests' input.
fn run(object: &Object, target: &Target<'_>, prog: usize, wanted: Retval, log: String) -> Outcome {
    let name = &object.programs[prog].name;
    let engines: [Box<dyn Engine>; 2] =
        [Box::new(Interpreter::default()), Box::new(Jit::default())];
    for engine in engines {
        let which = engine.name();
        match run_on(object, target, name, engine) {
            Ok(value) if wanted == Retval::Any || wanted == Retval::Value(value) => {}
            Ok(value) => {
                let Retval::Value(wanted) = wanted else {
                    continue;
                };
                return Outcome::fail(format!(
                    "{log}Unexpected retval: {value} != {wanted} ({which})\n"
                ));
            }
            Err(RunError::Absent(why)) => return Outcome::skip(why),
            Err(RunError::Failed(why)) => return Outcome::fail(format!("{log}{which}: {why}\n")),
        }
    }
    Outcome::ok(log)
}

enum RunError {
    /// It calls what exists in a kernel only.
    Absent(String),
    Failed(String),
}

fn run_on(
    object: &Object,
    target: &Target<'_>,
    name: &str,
    engine: Box<dyn Engine>,
) -> Result<i32, RunError> {
    let failed = |error: &dyn std::fmt::Display| RunError::Failed(error.to_string());
    let options = SessionOptions {
        target: target.clone(),
        engine,
        ..SessionOptions::default()
    };
    let session = Session::with(object.clone(), options).map_err(|error| failed(&error))?;
    let executable = session.load(name).map_err(|error| match &error {
        SessionError::Load { error: load, .. } => match load.kind {
            LoadErrorKind::HelperUnavailable(_)
            | LoadErrorKind::Kfunc(_)
            | LoadErrorKind::Ksym(_) => RunError::Absent(error.to_string()),
            _ => failed(&error),
        },
        _ => failed(&error),
    })?;
    fill(session.maps()).map_err(|error| failed(&error))?;
    let host = FixedHost::default();
    host.time.store(TIME, Ordering::Relaxed);
    let mut vm = Vm::new(0, Arc::new(host));
    vm.step_limit = STEPS;
    let prog_type = executable.program().decl.prog_type;
    let mut input = Input::default_for(prog_type).map_err(|error| failed(&error))?;
    let outcome = executable.run(&mut vm, &mut input);
    match outcome.fault {
        Some(fault) => Err(failed(&fault)),
        None => Ok(outcome.ret as i32),
    }
}

/// Maps that `prog_tests/verifier.c` fills before it runs programs: the value is an index and
/// eleven numbers, of which the seventh is read back.
const FILLED: [&str; 2] = ["map_array_ro", "map_array_48b"];

fn fill(maps: &MapSet) -> Result<(), String> {
    let mut value = [0; 48];
    value[..4].copy_from_slice(&28u32.to_ne_bytes());
    value[28..32].copy_from_slice(&0xabcd_ef12u32.to_ne_bytes());
    for map in FILLED.iter().filter_map(|name| maps.by_name(name)) {
        let map: &Map = map;
        if map.value_size() == value.len() {
            let written = map.write(&0u32.to_ne_bytes(), &value, 0);
            written.map_err(|error| format!("{error:?}"))?;
        }
    }
    Ok(())
}
