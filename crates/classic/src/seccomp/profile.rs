//! Profiles as container runtimes read them: the `linux.seccomp` object of the OCI
//! runtime specification, with what Moby's profiles add to it, compiled to a filter.
//!
//! The filter looks at the architecture, then tries the rules in the order of the
//! profile; the first that fits decides. System calls of other architectures, and those
//! of the x32 mode, get the strictest action.

use serde::Deserialize;

use super::dead::Dead;
use super::syscalls::{Arch, Syscall};
use crate::insn::Insn;
use crate::op::{Cond, Op, Operand, Size};

/// A profile.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Profile {
    /// Action for system calls that no rule names.
    pub default_action: String,
    /// Error number of a default action that has one.
    #[serde(default)]
    pub default_errno_ret: Option<u32>,
    /// Architectures, `SCMP_ARCH_*`; those that [`Arch`] does not know are passed over.
    #[serde(default, deserialize_with = "or_null")]
    pub architectures: Vec<String>,
    /// In Moby's profiles, the same.
    #[serde(default, deserialize_with = "or_null")]
    pub arch_map: Vec<ArchEntry>,
    /// The rules.
    #[serde(default, deserialize_with = "or_null")]
    pub syscalls: Vec<Rule>,
}

/// An entry of a Moby profile's map of architectures. What they run besides their own
/// programs is passed over.
#[derive(Clone, Debug, Deserialize)]
pub struct ArchEntry {
    /// `SCMP_ARCH_*`.
    pub architecture: String,
}

/// A rule for some system calls.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rule {
    /// Their names; those that no known architecture has are passed over.
    pub names: Vec<String>,
    /// What happens, `SCMP_ACT_*`.
    pub action: String,
    /// Error number or message of an action that has one.
    #[serde(default)]
    pub errno_ret: Option<u32>,
    /// Conditions that must all hold.
    #[serde(default, deserialize_with = "or_null")]
    pub args: Vec<Arg>,
    /// In Moby's profiles, where the rule is there only.
    #[serde(default, deserialize_with = "or_null")]
    pub includes: Container,
    /// In Moby's profiles, where it is not there.
    #[serde(default, deserialize_with = "or_null")]
    pub excludes: Container,
}

/// What a rule of a Moby profile asks of a container. Kernels are taken to be new enough.
#[derive(Clone, Default, Debug, Deserialize)]
pub struct Container {
    /// Its architecture is one of these, by Go's names.
    #[serde(default, deserialize_with = "or_null")]
    pub arches: Vec<String>,
    /// Of these capabilities it has, in `includes`, all; in `excludes`, any.
    #[serde(default, deserialize_with = "or_null")]
    pub caps: Vec<String>,
}

/// What Go writes for an empty list: `null`.
fn or_null<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// A condition on an argument, compared as an unsigned 64-bit number.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Arg {
    /// Which argument, 0–5.
    pub index: u32,
    /// What it is compared with; with `SCMP_CMP_MASKED_EQ` the mask.
    pub value: u64,
    /// With `SCMP_CMP_MASKED_EQ` what the masked argument must equal.
    #[serde(default, deserialize_with = "or_null")]
    pub value_two: u64,
    /// `SCMP_CMP_*`.
    pub op: String,
}

/// Why a profile is no filter.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// Not JSON, or not of this shape.
    #[error("the profile is not what the OCI runtime specification describes: {0}")]
    Json(#[from] serde_json::Error),
    /// Unknown action.
    #[error("unknown action `{0}`")]
    Action(String),
    /// Unknown comparison.
    #[error("rule {rule}: unknown comparison `{op}`")]
    Comparison {
        /// Index of the rule.
        rule: usize,
        /// Its name in the profile.
        op: String,
    },
    /// No such argument.
    #[error("rule {rule}: there is no argument {index}: they are 0–5")]
    Argument {
        /// Index of the rule.
        rule: usize,
        /// The number in the profile.
        index: u32,
    },
    /// None of the architectures is known.
    #[error(
        "the profile names no architecture that is known (SCMP_ARCH_X86_64, SCMP_ARCH_AARCH64)"
    )]
    Architecture,
}

/// A compiled profile.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Compiled {
    /// The filter; still to be checked.
    pub insns: Vec<Insn>,
    /// For each instruction, what it comes from, if that is a rule.
    pub origins: Vec<Option<Origin>>,
}

/// What part of a filter comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// Index of the rule in the profile.
    pub rule: usize,
    /// The architecture.
    pub arch: Arch,
    /// The system call.
    pub call: &'static Syscall,
}

/// Number from which x86-64 system calls are those of the x32 mode.
const X32: u32 = 0x4000_0000;
/// `SECCOMP_RET_KILL_PROCESS`.
const KILL_PROCESS: u32 = 0x8000_0000;
/// Error number where a profile says none.
const EPERM: u32 = 1;

/// Actions by their names in profiles, with `SECCOMP_RET_*`.
const ACTIONS: &[(&str, u32)] = &[
    ("SCMP_ACT_KILL", 0),
    ("SCMP_ACT_KILL_THREAD", 0),
    ("SCMP_ACT_KILL_PROCESS", KILL_PROCESS),
    ("SCMP_ACT_TRAP", 0x0003_0000),
    ("SCMP_ACT_ERRNO", 0x0005_0000),
    ("SCMP_ACT_NOTIFY", 0x7fc0_0000),
    ("SCMP_ACT_TRACE", 0x7ff0_0000),
    ("SCMP_ACT_LOG", 0x7ffc_0000),
    ("SCMP_ACT_ALLOW", 0x7fff_0000),
];

/// A filter's result for an action.
fn result(action: &str, data: Option<u32>) -> Result<u32, ProfileError> {
    let found = ACTIONS.iter().find(|(name, _)| *name == action);
    let &(name, value) = found.ok_or_else(|| ProfileError::Action(action.to_owned()))?;
    let takes_data = matches!(name, "SCMP_ACT_ERRNO" | "SCMP_ACT_TRACE");
    Ok(if takes_data {
        value | (data.unwrap_or(EPERM) & 0xffff)
    } else {
        value
    })
}

impl Profile {
    /// Reads a profile, or the one in a container's configuration (`config.json`).
    ///
    /// # Errors
    /// Where it is neither.
    pub fn parse(json: &str) -> Result<Profile, ProfileError> {
        #[derive(Deserialize)]
        struct Config {
            linux: Linux,
        }
        #[derive(Deserialize)]
        struct Linux {
            seccomp: serde_json::Value,
        }
        match serde_json::from_str::<Config>(json) {
            Ok(config) => Ok(serde_json::from_value(config.linux.seccomp)?),
            Err(_) => Ok(serde_json::from_str(json)?),
        }
    }

    /// The architectures that are known, without doubles; x86-64 if the profile names none.
    fn known_architectures(&self) -> Result<Vec<Arch>, ProfileError> {
        let mut known = Vec::new();
        let mapped = self.arch_map.iter().map(|entry| &entry.architecture);
        for name in self.architectures.iter().chain(mapped) {
            let arch = match name.as_str() {
                "SCMP_ARCH_X86_64" => Arch::X86_64,
                "SCMP_ARCH_AARCH64" => Arch::Aarch64,
                _ => continue,
            };
            if !known.contains(&arch) {
                known.push(arch);
            }
        }
        let unnamed = self.architectures.is_empty() && self.arch_map.is_empty();
        match (known.is_empty(), unnamed) {
            (true, false) => Err(ProfileError::Architecture),
            (true, true) => Ok(vec![Arch::X86_64]),
            _ => Ok(known),
        }
    }

    /// Compiles the profile to a filter, for a container with these capabilities (`CAP_*`),
    /// which only Moby's profiles ask for.
    ///
    /// # Errors
    /// The first action, comparison or argument that is none.
    pub fn compile(&self, caps: &[String]) -> Result<Compiled, ProfileError> {
        let default = result(&self.default_action, self.default_errno_ret)?;
        let mut out = Compiled {
            insns: Vec::new(),
            origins: Vec::new(),
        };
        for arch in self.known_architectures()? {
            let block = self.block(arch, caps, default)?;
            out.push(None, load(4));
            // The block is longer than a comparison can jump over.
            out.push(None, jump_if(Cond::Eq, arch.audit(), 1, 0));
            out.push(None, Op::Jump(block.insns.len() as u32));
            out.insns.extend(block.insns);
            out.origins.extend(block.origins);
        }
        out.push(None, Op::ReturnK(KILL_PROCESS));
        Ok(out)
    }

    /// The part of the filter for one architecture.
    fn block(&self, arch: Arch, caps: &[String], default: u32) -> Result<Compiled, ProfileError> {
        let mut out = Compiled {
            insns: Vec::new(),
            origins: Vec::new(),
        };
        out.push(None, load(0));
        if arch == Arch::X86_64 {
            out.push(None, jump_if(Cond::Ge, X32, 0, 1));
            out.push(None, Op::ReturnK(KILL_PROCESS));
        }
        for (index, rule) in self.syscalls.iter().enumerate() {
            let verdict = result(&rule.action, rule.errno_ret)?;
            if !rule.is_for(arch, caps) {
                continue;
            }
            for arguments in rule.alternatives() {
                let mut conditions = Vec::new();
                for arg in arguments {
                    conditions.push(condition(index, arg)?);
                }
                for name in &rule.names {
                    if let Some(call) = Syscall::by_name(name)
                        && let Some(number) = call.number(arch)
                    {
                        let origin = Origin {
                            rule: index,
                            arch,
                            call,
                        };
                        out.rule(origin, number.into(), &conditions, verdict);
                    }
                }
            }
        }
        out.push(None, Op::ReturnK(default));
        Ok(out)
    }
}

impl Rule {
    /// Whether it is there for containers of an architecture with these capabilities.
    fn is_for(&self, arch: Arch, caps: &[String]) -> bool {
        let name = match arch {
            Arch::X86_64 => "amd64",
            Arch::Aarch64 => "arm64",
        };
        let here = |arches: &[String]| arches.iter().any(|other| other == name);
        let (includes, excludes) = (&self.includes, &self.excludes);
        (includes.arches.is_empty() || here(&includes.arches))
            && includes.caps.iter().all(|cap| caps.contains(cap))
            && !here(&excludes.arches)
            && !excludes.caps.iter().any(|cap| caps.contains(cap))
    }

    /// Conditions that must hold together. Where an argument has several, each stands for
    /// itself, as runc does it.
    fn alternatives(&self) -> Vec<Vec<&Arg>> {
        let twice = |arg: &Arg| {
            self.args
                .iter()
                .filter(|other| other.index == arg.index)
                .count()
                > 1
        };
        if self.args.iter().any(twice) {
            self.args.iter().map(|arg| vec![arg]).collect()
        } else {
            vec![self.args.iter().collect()]
        }
    }
}

impl Compiled {
    /// The parts of rules that decide nothing, given what [`super::find_dead`] found in
    /// the filter: rules before them, or their own conditions, leave them no system call.
    pub fn idle(&self, dead: &[Dead]) -> Vec<Origin> {
        let returns = |at: usize| {
            matches!(
                self.insns.get(at).map(|i| Op::decode(*i)),
                Some(Ok(Op::ReturnK(_)))
            )
        };
        let idle = dead.iter().filter_map(|d| match *d {
            Dead::Unreachable(at) if returns(at) => self.origins.get(at).copied().flatten(),
            _ => None,
        });
        idle.collect()
    }

    /// What a rule does for one system call; A holds the number before and after.
    fn rule(&mut self, origin: Origin, number: u32, conditions: &[Vec<Step>], verdict: u32) {
        let body: usize = conditions.iter().map(Vec::len).sum();
        // Where a condition fails, the next rule wants the number again.
        let again = usize::from(!conditions.is_empty());
        let skip = (body + 1 + again) as u8;
        self.push(Some(origin), jump_if(Cond::Eq, number, 0, skip));
        for (i, step) in conditions.iter().flatten().enumerate() {
            self.push(Some(origin), step.place(body - 1 - i));
        }
        self.push(Some(origin), Op::ReturnK(verdict));
        if again == 1 {
            self.push(Some(origin), load(0));
        }
    }

    fn push(&mut self, origin: Option<Origin>, op: Op) {
        self.insns.push(op.encode());
        self.origins.push(origin);
    }
}

fn load(k: u32) -> Op {
    Op::LoadAbs { size: Size::W, k }
}

fn jump_if(cond: Cond, k: u32, jt: u8, jf: u8) -> Op {
    Op::JumpIf {
        cond,
        src: Operand::K(k),
        jt,
        jf,
    }
}

/// An instruction of a condition, whose jumps depend on where it will stand.
#[derive(Clone, Copy)]
enum Step {
    Plain(Op),
    Test {
        cond: Cond,
        k: u32,
        holds: Go,
        fails: Go,
    },
}

/// Where a test goes.
#[derive(Clone, Copy)]
enum Go {
    /// The next step.
    On,
    /// Past the steps left of this condition: it holds.
    Past(u8),
    /// Past the rule: it does not fit.
    Out,
}

impl Step {
    /// The instruction, with `left` steps of all conditions after it.
    fn place(self, left: usize) -> Op {
        match self {
            Step::Plain(op) => op,
            Step::Test {
                cond,
                k,
                holds,
                fails,
            } => {
                let skip = |go| match go {
                    Go::On => 0,
                    Go::Past(steps) => steps,
                    // Past the return too, to where the number is loaded again.
                    Go::Out => left as u8 + 1,
                };
                jump_if(cond, k, skip(holds), skip(fails))
            }
        }
    }
}

/// The steps of one condition, at most six; so those of all six arguments can be jumped
/// over.
fn condition(rule: usize, arg: &Arg) -> Result<Vec<Step>, ProfileError> {
    if arg.index > 5 {
        return Err(ProfileError::Argument {
            rule,
            index: arg.index,
        });
    }
    let low = 16 + 8 * arg.index;
    let (load_high, load_low) = (Step::Plain(load(low + 4)), Step::Plain(load(low)));
    let (high, lower) = ((arg.value >> 32) as u32, arg.value as u32);
    let test = |cond, k, holds, fails| Step::Test {
        cond,
        k,
        holds,
        fails,
    };
    // An ordering is decided by the upper halves unless they are equal; `greater` and
    // `less` say where that leads.
    let order = |last: Cond, greater: Go, less: Go, holds: Go, fails: Go| {
        vec![
            load_high,
            test(Cond::Gt, high, greater, Go::On),
            test(Cond::Eq, high, Go::On, less),
            load_low,
            test(last, lower, holds, fails),
        ]
    };
    Ok(match arg.op.as_str() {
        "SCMP_CMP_EQ" => vec![
            load_high,
            test(Cond::Eq, high, Go::On, Go::Out),
            load_low,
            test(Cond::Eq, lower, Go::On, Go::Out),
        ],
        "SCMP_CMP_NE" => vec![
            load_high,
            test(Cond::Eq, high, Go::On, Go::Past(2)),
            load_low,
            test(Cond::Eq, lower, Go::Out, Go::On),
        ],
        "SCMP_CMP_GT" => order(Cond::Gt, Go::Past(3), Go::Out, Go::On, Go::Out),
        "SCMP_CMP_GE" => order(Cond::Ge, Go::Past(3), Go::Out, Go::On, Go::Out),
        "SCMP_CMP_LE" => order(Cond::Gt, Go::Out, Go::Past(2), Go::Out, Go::On),
        "SCMP_CMP_LT" => order(Cond::Ge, Go::Out, Go::Past(2), Go::Out, Go::On),
        "SCMP_CMP_MASKED_EQ" => {
            let mask = |k| {
                Step::Plain(Op::Alu {
                    op: crate::op::AluOp::And,
                    src: Operand::K(k),
                })
            };
            vec![
                load_high,
                mask(high),
                test(Cond::Eq, (arg.value_two >> 32) as u32, Go::On, Go::Out),
                load_low,
                mask(lower),
                test(Cond::Eq, arg.value_two as u32, Go::On, Go::Out),
            ]
        }
        op => {
            return Err(ProfileError::Comparison {
                rule,
                op: op.to_owned(),
            });
        }
    })
}
