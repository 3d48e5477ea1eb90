//! What a program attaches to, and what follows for its arguments.

use bpfkit_btf::{Btf, Kind, Type};
use bpfkit_object::Program;
use bpfkit_spec::{AttachType, Caller, Capability, ProgType, TypeFlags, attach, iter, struct_ops};

use crate::checker::Checker;
use crate::env::Environment;
use crate::fail::{Res, fail};
use crate::reg::RegType;
use crate::walk::peel;

/// `BPF_F_SLEEPABLE`
const SLEEPABLE: u32 = 1 << 4;
/// Prefix of the typedefs that name raw tracepoints.
const TRACE_PREFIX: &str = "btf_trace_";

/// An argument with rules of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CtxArg {
    pub offset: u32,
    pub ty: RegType,
    /// Kernel type id.
    pub btf_id: u32,
    /// The program is given a reference, and must release it.
    pub refcounted: bool,
    /// That reference.
    pub ref_obj_id: u32,
}

/// What a program attaches to.
#[derive(Clone, Debug)]
pub(crate) struct AttachInfo<'a> {
    /// Asks the tables.
    pub caller: Caller<'a>,
    /// Program type; of an extension, that of what it extends.
    pub resolved_type: ProgType,
    /// Name in messages.
    pub name: &'a str,
    /// Prototype of the function.
    pub proto: Option<Type<'a>>,
    /// The first parameter of the prototype is not one of the program's.
    pub skips_first: bool,
    pub args: Vec<CtxArg>,
    /// Pointers among the arguments may be passed on.
    pub trusted: bool,
    pub returns_void: bool,
    /// Type id of the function or typedef.
    pub type_id: u32,
}

impl<'a> AttachInfo<'a> {
    pub fn new(program: &'a Program, env: &Environment<'a>) -> AttachInfo<'a> {
        let decl = &program.decl;
        let target = env.target.map(|t| t.program);
        let (resolved_type, attach_type) = match (decl.prog_type, target) {
            (ProgType::Ext, Some(t)) => (t.decl.prog_type, t.decl.attach_type),
            _ => (decl.prog_type, decl.attach_type),
        };
        let attach_type = match attach_type as u32 {
            0 => resolved_type.default_attach_type().unwrap_or(attach_type),
            _ => attach_type,
        };
        let mut caller = Caller::new(resolved_type, attach_type);
        caller.sleepable = decl.flags & SLEEPABLE != 0;
        caller.kernel = env.kernel_version;
        if !env.privileged {
            caller.capability = Capability::None;
        }
        let mut info = AttachInfo {
            caller,
            resolved_type,
            name: "",
            proto: None,
            skips_first: false,
            args: Vec::new(),
            trusted: false,
            returns_void: false,
            type_id: 0,
        };
        if let Some(at) = program.attach.as_ref().ok().copied().flatten()
            && at.module.is_none()
            && let Some(btf) = env.kernel_btf.get()
        {
            info.type_id = at.type_id;
            info.resolve(btf, at.member);
        }
        info
    }

    fn resolve(&mut self, btf: &'a Btf, member: Option<u32>) {
        let Some(t) = btf.type_by_id(self.type_id) else {
            return;
        };
        self.name = t.name();
        self.caller.target = t.name();
        match (self.resolved_type, self.caller.attach_type) {
            (ProgType::StructOps, _) => {
                let Some(m) = member.and_then(|m| t.member(m)) else {
                    return;
                };
                self.caller.member = m.name();
                self.name = m.name();
                let pointer = peel(btf, m.type_id).filter(|t| t.is(Kind::Ptr));
                self.proto = pointer.and_then(|p| peel(btf, p.type_id()));
                self.trusted = true;
                self.stub_args(btf, t.name(), m.name());
            }
            (ProgType::Tracing, AttachType::TraceRawTp) => {
                self.name = t.name().strip_prefix(TRACE_PREFIX).unwrap_or(t.name());
                let pointer = peel(btf, t.id()).filter(|t| t.is(Kind::Ptr));
                self.proto = pointer.and_then(|p| peel(btf, p.type_id()));
                self.skips_first = true;
                self.trusted = true;
            }
            (ProgType::Tracing, AttachType::TraceIter) => {
                self.proto = t.proto();
                self.trusted = true;
                self.iter_args(btf);
            }
            (ProgType::Lsm, _) => {
                self.proto = t.proto();
                let hook = t.name().strip_prefix("bpf_lsm_").unwrap_or("");
                self.trusted = !attach::LSM_UNTRUSTED.contains(&hook);
            }
            _ => self.proto = t.proto(),
        }
        self.returns_void = self.proto.is_some_and(|p| p.type_id() == 0);
    }

    fn iter_args(&mut self, btf: &'a Btf) {
        let Some(target) = self.name.strip_prefix("bpf_iter_").and_then(iter::by_name) else {
            return;
        };
        for arg in target.args {
            let (ty, btf_id) = match arg.kind {
                iter::ArgKind::Buffer => (RegType::BUF, 0),
                iter::ArgKind::BtfId(name) => (
                    RegType::BTF_ID,
                    btf.by_name(name, Kind::Struct).map_or(0, |t| t.id()),
                ),
            };
            self.args.push(CtxArg {
                offset: arg.offset,
                ty: ty.with(arg.flags),
                btf_id,
                refcounted: false,
                ref_obj_id: 0,
            });
        }
    }

    /// Parameters of the function that stands in for a struct_ops member say in their names
    /// which may be null or carry a reference.
    fn stub_args(&mut self, btf: &'a Btf, ops: &str, member: &str) {
        let stub = btf
            .by_name(&format!("{ops}__{member}"), Kind::Func)
            .and_then(|f| f.proto());
        let Some(stub) = stub else { return };
        for (at, param) in stub.params().enumerate() {
            let nullable = param.name().ends_with("__nullable");
            let counted = param.name().ends_with("__ref");
            if !nullable && !counted {
                continue;
            }
            let target = peel(btf, param.type_id)
                .filter(|t| t.is(Kind::Ptr))
                .and_then(|p| peel(btf, p.type_id()));
            let mut ty = RegType::BTF_ID.with(TypeFlags::PTR_TRUSTED);
            if nullable {
                ty = ty.with(TypeFlags::PTR_MAYBE_NULL);
            }
            self.args.push(CtxArg {
                offset: at as u32 * 8,
                ty,
                btf_id: target.map_or(0, |t| t.id()),
                refcounted: counted,
                ref_obj_id: 0,
            });
        }
    }

    /// Whether the kernel rewrites accesses to the context.
    pub fn converts_ctx(&self) -> bool {
        use ProgType as P;
        !matches!(
            self.resolved_type,
            P::Syscall
                | P::Kprobe
                | P::Tracepoint
                | P::RawTracepoint
                | P::RawTracepointWritable
                | P::Tracing
                | P::Lsm
                | P::StructOps
                | P::CgroupDevice
                | P::LircMode2
                | P::Netfilter
        )
    }
}

impl Checker<'_> {
    /// Checks what the program wants to attach to.
    pub fn check_attach(&mut self) -> Res {
        let decl = &self.program.decl;
        let sleepable = self.attach.caller.sleepable;
        let prog_type = decl.prog_type;
        if prog_type == ProgType::Syscall {
            if !sleepable {
                fail!(self, Inval, "Syscall programs can only be sleepable\n");
            }
            return Ok(());
        }
        if sleepable && !prog_type.can_sleep(decl.attach_type) {
            fail!(
                self,
                Inval,
                "Only fentry/fexit/fmod_ret, lsm, iter, uprobe, and struct_ops programs can be sleepable\n"
            );
        }
        match prog_type {
            ProgType::StructOps => self.check_struct_ops(),
            ProgType::Tracing | ProgType::Lsm => self.check_traced(),
            ProgType::Ext => Ok(()),
            _ => Ok(()),
        }
    }

    fn check_struct_ops(&mut self) -> Res {
        let (ops, member, id) = (
            self.attach.caller.target,
            self.attach.caller.member,
            self.attach.type_id,
        );
        if !self.gpl {
            fail!(
                self,
                Inval,
                "struct ops programs must have a GPL compatible license\n"
            );
        }
        if id == 0 {
            fail!(
                self,
                NotSupp,
                "attach_btf_id {id} is not a supported struct\n"
            );
        }
        let Some(rules) = struct_ops::by_name(ops) else {
            fail!(
                self,
                NotSupp,
                "attach_btf_id {id} is not a supported struct\n"
            );
        };
        let index = self
            .program
            .attach
            .as_ref()
            .ok()
            .copied()
            .flatten()
            .and_then(|a| a.member)
            .unwrap_or(0);
        if self.attach.proto.is_none() {
            fail!(
                self,
                Inval,
                "attach to invalid member {member}(@idx {index}) of struct {ops}\n"
            );
        }
        if rules.unsupported.contains(&member) {
            fail!(
                self,
                NotSupp,
                "attach to unsupported member {member} of struct {ops}\n"
            );
        }
        if self.attach.caller.sleepable && !rules.sleepable.has(member) {
            fail!(
                self,
                Inval,
                "attach to unsupported member {member} of struct {ops}\n"
            );
        }
        Ok(())
    }

    fn check_traced(&mut self) -> Res {
        let decl = &self.program.decl;
        let id = self.attach.type_id;
        let name = self.attach.name;
        if id == 0 || self.kernel().is_none() {
            fail!(self, Inval, "Tracing programs must provide btf_id\n");
        }
        let raw = decl.attach_type == AttachType::TraceRawTp;
        if !raw && self.attach.proto.is_none() {
            fail!(self, Inval, "attach_btf_id {id} is not a function\n");
        }
        let traced = decl.prog_type == ProgType::Tracing;
        let hook = name.strip_prefix("bpf_lsm_").unwrap_or("");
        let injectable = name.starts_with("__x64_sys_")
            || name.starts_with("bpf_fentry_test")
            || name.starts_with("bpf_modify_return_test")
            || matches!(
                name,
                "should_failslab"
                    | "should_fail_alloc_page"
                    | "__filemap_add_folio"
                    | "should_fail_bio"
                    | "should_fail_usercopy"
            );
        let trampoline =
            !raw && decl.attach_type != AttachType::TraceIter || decl.prog_type == ProgType::Lsm;
        if self.attach.caller.sleepable && trampoline {
            let ok = if traced {
                injectable && !attach::NON_SLEEPABLE_ERROR_INJECTION.contains(&name)
            } else {
                attach::LSM_SLEEPABLE.contains(&hook)
            };
            if !ok {
                fail!(self, Inval, "{name} is not sleepable\n");
            }
        } else if decl.attach_type == AttachType::ModifyReturn
            && !injectable
            && !name.starts_with("security_")
        {
            fail!(self, Inval, "{name}() is not modifiable\n");
        }
        if !traced {
            if !self.gpl {
                fail!(
                    self,
                    Inval,
                    "LSM programs must have a GPL compatible license\n"
                );
            }
            if attach::LSM_DISABLED.contains(&hook) {
                fail!(
                    self,
                    Inval,
                    "attach_btf_id {id} points to disabled hook {name}\n"
                );
            }
            return Ok(());
        }
        if trampoline && attach::DENIED_FUNCTIONS.contains(&name) {
            fail!(
                self,
                Inval,
                "Attaching tracing programs to function '{name}' is rejected.\n"
            );
        }
        let after = matches!(
            decl.attach_type,
            AttachType::TraceFexit | AttachType::ModifyReturn
        );
        if after && attach::NORETURN_FUNCTIONS.contains(&name) {
            fail!(
                self,
                Inval,
                "Attaching fexit/fmod_ret to __noreturn function '{name}' is rejected.\n"
            );
        }
        Ok(())
    }
}
