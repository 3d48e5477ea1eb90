//! Judging many programs of many objects, in parallel.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use bpfkit_object::{Linker, MapDef, Object, Program};
use bpfkit_spec::{AttachType, KernelVersion, ProgType};
use bpfkit_verifier::{Environment, Explanation, Symbols, Verdict};

use crate::cli::objects::Kernel;
use crate::cli::progress;

/// Stack of a worker: deep types and long call chains recurse.
pub const WORKER_STACK: usize = 64 << 20;

/// An opened file.
pub struct Opened {
    /// Its name without directory.
    pub name: String,
    /// What it holds.
    pub object: Object,
}

/// A program to judge.
#[derive(Clone, Copy)]
pub struct Job {
    /// Index in the list of opened files.
    pub file: usize,
    /// Index among the object's programs.
    pub prog: usize,
}

/// How to judge.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// 1 the last path, 2 all paths, 4 statistics, or their sum.
    pub log_level: u32,
    /// Most bytes of a log; without it what veristat gives the kernel.
    pub log_size: Option<usize>,
    /// As the kernel judges a process without capabilities.
    pub unprivileged: bool,
    /// Kernel to judge by; the newest known without it.
    pub kernel: Option<KernelVersion>,
    /// `BPF_F_TEST_STATE_FREQ`.
    pub test_states: bool,
    /// `BPF_F_TEST_REG_INVARIANTS`.
    pub test_reg_invariants: bool,
    /// Judge `freplace` programs as programs of the type that their argument suggests.
    pub guess_extensions: bool,
    /// Explain rejections.
    pub explain: bool,
    /// Trace every number back all the way.
    pub full_traces: bool,
    /// Rewrite accepted programs as Linux does.
    pub rewrite: bool,
    /// Gather facts about accepted programs.
    pub facts: bool,
    /// Threads; the machine's without it.
    pub jobs: Option<NonZeroUsize>,
}

/// A judgement.
pub struct Judged {
    /// The linked program; `None` if it does not link.
    pub program: Option<Program>,
    /// What the verifier says, or why it could not be asked.
    pub verdict: Result<Verdict, String>,
    /// Why the program is refused, if it is and was to be explained.
    pub explanation: Option<Explanation>,
    /// Microseconds that it took.
    pub us: u64,
    /// Where the program's type was guessed.
    pub guess: Option<ProgType>,
}

/// Every program of the files that `wanted` picks by file and program name, in order.
pub fn list(files: &[Opened], wanted: impl Fn(&str, &str) -> bool) -> Vec<Job> {
    let mut jobs = Vec::new();
    for (file, opened) in files.iter().enumerate() {
        for (prog, decl) in opened.object.programs.iter().enumerate() {
            if wanted(&opened.name, &decl.name) {
                jobs.push(Job { file, prog });
            }
        }
    }
    jobs
}

/// Judges every job, on as many threads as asked for. `done` makes a result of each judgement,
/// on the thread that judged; results come in the order of the jobs, `None` for those not
/// begun before an interrupt.
pub fn judge_all<T: Send>(
    options: &Options,
    kernel: &Kernel,
    files: &[Opened],
    jobs: &[Job],
    done: impl Fn(Job, Judged) -> T + Sync,
) -> Vec<Option<T>> {
    let threads = options.jobs.or(thread::available_parallelism().ok());
    let threads = threads.map_or(1, NonZeroUsize::get).min(jobs.len());
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<Option<T>>> = Mutex::new(jobs.iter().map(|_| None).collect());
    let bar = progress::items(jobs.len() as u64);
    let work = || {
        let target = kernel.target();
        let mut linker: Option<(usize, Linker<'_>, Vec<MapDef>)> = None;
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(&job) = jobs.get(at) else { return };
            if progress::interrupted() {
                return;
            }
            if linker.as_ref().is_none_or(|(of, ..)| *of != job.file) {
                let new = Linker::new(&files[job.file].object, &target);
                let maps = sized(new.maps());
                linker = Some((job.file, new, maps));
            }
            let Some((_, linker, maps)) = &mut linker else {
                return;
            };
            let result = done(job, judge(options, kernel, job, linker, maps));
            results.lock().unwrap_or_else(PoisonError::into_inner)[at] = Some(result);
            bar.inc(1);
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            let spawned = thread::Builder::new()
                .stack_size(WORKER_STACK)
                .spawn_scoped(scope, work);
            if spawned.is_err() {
                // No further thread to be had: this one does the work.
                work();
            }
        }
    });
    bar.finish_and_clear();
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn judge(
    options: &Options,
    kernel: &Kernel,
    job: Job,
    linker: &mut Linker<'_>,
    maps: &[MapDef],
) -> Judged {
    let mut judged = Judged {
        program: None,
        verdict: Err(String::new()),
        explanation: None,
        us: 0,
        guess: None,
    };
    let mut program = match linker.link(job.prog) {
        Ok(program) => program,
        Err(error) => {
            judged.verdict = Err(error.to_string());
            return judged;
        }
    };
    judged.guess = guess(&mut program, options.guess_extensions);
    if program.decl.prog_type == ProgType::Unspec {
        let section = &program.decl.section;
        judged.verdict = Err(format!("section '{section}' names no program type"));
        return judged;
    }
    let mut environment = Environment::new(kernel.btf());
    environment.privileged = !options.unprivileged;
    environment.log_level = options.log_level;
    if let Some(size) = options.log_size {
        environment.log_size = size;
    }
    environment.test_state_freq = options.test_states;
    environment.test_reg_invariants = options.test_reg_invariants;
    environment.facts = options.facts;
    environment.rewrite = options.rewrite;
    environment.precision_early_stop = !options.full_traces;
    if let Some(version) = options.kernel {
        environment.kernel_version = version;
    }
    let has_symbol = |name: &str| kernel.has_symbol(name);
    environment.symbols = Some(Symbols(&has_symbol));
    environment.absent_helpers = kernel.absent_helpers();
    let start = Instant::now();
    let mut verdict = bpfkit_verifier::verify(&program, maps, &environment);
    judged.us = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
    // The verifier knows no clock.
    if options.log_level & 4 != 0
        && let Some(at) = verdict.log.rfind("stack depth ")
    {
        let line = format!("verification time {} usec\n", judged.us);
        verdict.log.insert_str(at, &line);
    }
    if let (Err(rejection), true) = (&verdict.result, options.explain) {
        // What grew too large has no short way to show.
        let log = match rejection.crowd.insns.is_empty() {
            true => {
                environment.log_level = 1;
                bpfkit_verifier::verify(&program, maps, &environment).log
            }
            false => String::new(),
        };
        judged.explanation = Some(bpfkit_verifier::explain(&program, rejection, &log));
    }
    judged.verdict = Ok(verdict);
    judged.program = Some(program);
    judged
}

/// Maps that the application is to size get one entry, as veristat gives them.
pub fn sized(mut maps: Vec<MapDef>) -> Vec<MapDef> {
    for map in &mut maps {
        map.max_entries = map.max_entries.max(1);
    }
    maps
}

/// Gives a program whose section names no type, and where asked for an extension, the type
/// that its argument suggests, as veristat does; says which.
pub fn guess(program: &mut Program, extensions: bool) -> Option<ProgType> {
    let known = program.decl.prog_type;
    if known != ProgType::Unspec && !(extensions && known == ProgType::Ext) {
        return None;
    }
    let row = guess_type(program)?;
    program.decl.prog_type = row.prog_type;
    if let (ProgType::Ext, Some(attach)) = (known, row.attach_type) {
        program.decl.attach_type = attach;
    }
    Some(row.prog_type)
}

/// A row of [`BY_CONTEXT`].
struct Guess {
    /// Structures that the program's argument may point to: the program's, the kernel's.
    contexts: [&'static str; 2],
    prog_type: ProgType,
    attach_type: Option<AttachType>,
}

const fn by_context(
    contexts: [&'static str; 2],
    prog_type: ProgType,
    attach_type: Option<AttachType>,
) -> Guess {
    Guess {
        contexts,
        prog_type,
        attach_type,
    }
}

/// Program types by their context, as veristat guesses them, with an attach type that suits.
#[rustfmt::skip]
const BY_CONTEXT: &[Guess] = &[
    by_context(["__sk_buff", "sk_buff"], ProgType::SchedCls, None),
    by_context(["xdp_md", "xdp_buff"], ProgType::Xdp, Some(AttachType::Xdp)),
    by_context(["bpf_sock", "sock"], ProgType::CgroupSock, Some(AttachType::CgroupInet4PostBind)),
    by_context(["bpf_sock_addr", "bpf_sock_addr_kern"], ProgType::CgroupSockAddr, Some(AttachType::CgroupInet4Bind)),
    by_context(["bpf_sock_ops", "bpf_sock_ops_kern"], ProgType::SockOps, Some(AttachType::CgroupSockOps)),
    by_context(["sk_msg_md", "sk_msg"], ProgType::SkMsg, Some(AttachType::SkMsgVerdict)),
    by_context(["bpf_cgroup_dev_ctx", "bpf_cgroup_dev_ctx"], ProgType::CgroupDevice, Some(AttachType::CgroupDevice)),
    by_context(["bpf_sysctl", "bpf_sysctl_kern"], ProgType::CgroupSysctl, Some(AttachType::CgroupSysctl)),
    by_context(["bpf_sockopt", "bpf_sockopt_kern"], ProgType::CgroupSockopt, Some(AttachType::CgroupSetsockopt)),
    by_context(["sk_reuseport_md", "sk_reuseport_kern"], ProgType::SkReuseport, Some(AttachType::SkReuseportSelectOrMigrate)),
    by_context(["bpf_sk_lookup", "bpf_sk_lookup_kern"], ProgType::SkLookup, Some(AttachType::SkLookup)),
    by_context(["bpf_user_pt_regs_t", "pt_regs"], ProgType::Kprobe, None),
    by_context(["bpf_perf_event_data", "bpf_perf_event_data_kern"], ProgType::PerfEvent, None),
    by_context(["bpf_raw_tracepoint_args", "bpf_raw_tracepoint_args"], ProgType::RawTracepoint, None),
];

fn guess_type(program: &Program) -> Option<&'static Guess> {
    let btf = program.btf.as_deref()?;
    let function = btf.type_by_id(program.subprograms.first()?.type_id)?;
    let context = function.proto()?.params().next()?;
    let name = context.type_in()?.resolve()?.target()?.resolve()?.name();
    BY_CONTEXT.iter().find(|row| row.contexts.contains(&name))
}
