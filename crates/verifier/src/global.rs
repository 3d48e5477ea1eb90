//! Arguments of functions by their BTF, and global functions, which are verified by it.

use bpfkit_btf::{Btf, Kind, Type};
use bpfkit_spec::context::{self, Layout};
use bpfkit_spec::{Feature, ProgType, TypeFlags};

use crate::checker::Checker;
use crate::fail::{Errno, Res, fail, say};
use crate::reg::{BtfOf, DynptrKind, RegType};
use crate::walk::peel;

/// What an argument is to be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ArgRule {
    Number,
    Ctx,
    /// Memory of that size.
    Memory(u32),
    Dynptr,
    Arena,
    /// A kernel structure.
    Object(u32),
}

/// An argument of a function.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubArg {
    pub rule: ArgRule,
    pub flags: TypeFlags,
}

/// Whether a pointer's target is the context of a program type.
pub(crate) fn names_context(
    prog_type: ProgType,
    layout: &Layout,
    pointee: Option<Type<'_>>,
    pointer: Type<'_>,
) -> bool {
    let btf = pointer.btf();
    if prog_type == ProgType::Kprobe || prog_type == ProgType::PerfEvent {
        // Either by the typedef or by the structure behind it.
        let mut t = btf.type_by_id(pointer.type_id());
        while let Some(target) = t {
            if target.is(Kind::Typedef) && target.name() == "bpf_user_pt_regs_t" {
                return prog_type == ProgType::Kprobe;
            }
            if !target.kind().is_modifier() && !target.is(Kind::Typedef) {
                break;
            }
            t = btf.type_by_id(target.type_id());
        }
    }
    let Some(t) = pointee.filter(|t| matches!(t.kind(), Kind::Struct | Kind::Union)) else {
        return false;
    };
    let name = t.name();
    !name.is_empty()
        && (name == layout.name
            || matches!(
                (layout.name, name),
                ("__sk_buff", "sk_buff") | ("xdp_md", "xdp_buff")
            )
            // What the typedef stands for on x86-64.
            || prog_type == ProgType::Kprobe && name == "pt_regs")
}

impl<'a> Checker<'a> {
    /// Whether a subprogram's BTF says that it returns a number.
    pub fn returns_number(&self, sub: usize) -> bool {
        let Some(btf) = self.local else { return false };
        let ret = btf
            .type_by_id(self.subs[sub].type_id)
            .and_then(|f| f.proto())
            .and_then(|p| peel(btf, p.type_id()));
        ret.is_some_and(|t| crate::ctx::is_small_int(&t) || t.kind().is_enum())
    }

    /// The arguments of a subprogram by its BTF.
    pub fn sub_args(&mut self, sub: usize) -> Res<Vec<SubArg>> {
        if let Some(Ok(known)) = &self.subs[sub].args {
            return Ok(known.clone());
        }
        let result = self.read_sub_args(sub);
        if result.is_ok() {
            self.subs[sub].args = Some(result.clone());
        }
        result
    }

    fn read_sub_args(&mut self, sub: usize) -> Res<Vec<SubArg>> {
        let Some(btf) = self.local else {
            return Err(Errno::Inval);
        };
        let is_global = self.subs[sub].global;
        let name = self.subs[sub].name.clone();
        let func = btf
            .type_by_id(self.subs[sub].type_id)
            .filter(|t| t.is(Kind::Func));
        let Some((func, proto)) = func.and_then(|f| Some((f, f.proto()?))) else {
            if !is_global {
                return Err(Errno::Inval);
            }
            fail!(self, Fault, "Global functions need valid BTF\n");
        };
        let count = proto.vlen();
        if count > 5 {
            if is_global {
                say!(
                    self,
                    "Global function {name}() with {count} > 5 args. Buggy compiler.\n"
                );
            }
            return Err(Errno::Inval);
        }
        let ret = peel(btf, proto.type_id());
        if !ret.is_some_and(|t| t.is(Kind::Int) || t.kind().is_enum()) {
            if is_global {
                say!(
                    self,
                    "Global function {name}() doesn't return scalar. Only those are supported.\n"
                );
            }
            return Err(Errno::Inval);
        }
        let mut args = Vec::new();
        for (at, param) in proto.params().enumerate() {
            args.push(self.read_sub_arg(btf, func, at, param.type_id, is_global, &name)?);
        }
        Ok(args)
    }

    fn read_sub_arg(
        &mut self,
        btf: &'a Btf,
        func: Type<'a>,
        at: usize,
        type_id: u32,
        is_global: bool,
        fname: &str,
    ) -> Res<SubArg> {
        let mut tags: Vec<&str> = Vec::new();
        // Older kernels pass over them.
        let heeded = self.env.kernel_version >= Feature::ArgumentTags.since();
        for tag in btf
            .decl_tags(func.id())
            .filter(|t| heeded && t.component() == Some(at as u32))
        {
            let Some(tag) = tag.name().strip_prefix("arg:") else {
                continue;
            };
            if !is_global {
                fail!(
                    self,
                    OpNotSupp,
                    "arg#{at} type tag is not supported in static functions\n"
                );
            }
            if !matches!(
                tag,
                "ctx" | "trusted" | "untrusted" | "nonnull" | "nullable" | "arena"
            ) {
                fail!(self, OpNotSupp, "arg#{at} has unsupported set of tags\n");
            }
            tags.push(tag);
        }
        let has = |tag: &str| tags.contains(&tag);
        let only = |tag: &str| tags.iter().all(|t| *t == tag);
        let plain = |rule: ArgRule| {
            Ok(SubArg {
                rule,
                flags: TypeFlags::NONE,
            })
        };
        let Some(t) = peel(btf, type_id) else {
            return Err(Errno::Inval);
        };
        if t.is(Kind::Ptr) {
            let pointee = peel(btf, t.type_id());
            let layout = context::of(self.prog_type());
            let is_ctx = layout.is_some_and(|l| names_context(self.prog_type(), l, pointee, t));
            if has("ctx") || is_ctx {
                if !only("ctx") {
                    fail!(self, Inval, "arg#{at} has invalid combination of tags\n");
                }
                return plain(ArgRule::Ctx);
            }
            let dynptr = pointee.is_some_and(|p| {
                matches!(p.kind(), Kind::Struct | Kind::Union | Kind::Fwd)
                    && p.name() == "bpf_dynptr"
            });
            if dynptr {
                if !tags.is_empty() {
                    fail!(self, Inval, "arg#{at} has invalid combination of tags\n");
                }
                return Ok(SubArg {
                    rule: ArgRule::Dynptr,
                    flags: TypeFlags::MEM_RDONLY,
                });
            }
            if has("trusted") {
                if has("nonnull") {
                    fail!(self, Inval, "arg#{at} has invalid combination of tags\n");
                }
                let id = self.kernel_twin(at, pointee)?;
                let mut flags = TypeFlags::PTR_TRUSTED;
                if has("nullable") {
                    flags |= TypeFlags::PTR_MAYBE_NULL;
                }
                return Ok(SubArg {
                    rule: ArgRule::Object(id),
                    flags,
                });
            }
            if has("untrusted") {
                if !only("untrusted") {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} untrusted cannot be combined with any other tags\n"
                    );
                }
                let void = pointee.is_none_or(|p| p.id() == 0);
                if void || pointee.is_some_and(|p| p.is(Kind::Int) || p.kind().is_enum()) {
                    let flags = TypeFlags::MEM_RDONLY | TypeFlags::PTR_UNTRUSTED;
                    return Ok(SubArg {
                        rule: ArgRule::Memory(0),
                        flags,
                    });
                }
                let id = self.kernel_twin(at, pointee)?;
                return Ok(SubArg {
                    rule: ArgRule::Object(id),
                    flags: TypeFlags::PTR_UNTRUSTED,
                });
            }
            if has("arena") {
                if !only("arena") {
                    fail!(
                        self,
                        Inval,
                        "arg#{at} arena cannot be combined with any other tags\n"
                    );
                }
                return plain(ArgRule::Arena);
            }
            if is_global {
                if has("nullable") {
                    fail!(self, Inval, "arg#{at} has invalid combination of tags\n");
                }
                let size = pointee
                    .filter(|p| p.id() != 0)
                    .and_then(|p| btf.size_of(p.id()));
                let Some(size) = size else {
                    let (kind, name) = pointee
                        .filter(|p| p.id() != 0)
                        .map_or(("UNKNOWN", ""), |p| (p.kind().upper_name(), p.name()));
                    fail!(
                        self,
                        Inval,
                        "arg#{at} reference type('{kind} {name}') size cannot be determined: -22\n"
                    );
                };
                let flags = if has("nonnull") {
                    TypeFlags::NONE
                } else {
                    TypeFlags::PTR_MAYBE_NULL
                };
                return Ok(SubArg {
                    rule: ArgRule::Memory(size),
                    flags,
                });
            }
        }
        if !tags.is_empty() {
            fail!(
                self,
                Inval,
                "arg#{at} has pointer tag, but is not a pointer type\n"
            );
        }
        if t.is(Kind::Int) || t.kind().is_enum() {
            return plain(ArgRule::Number);
        }
        if is_global {
            let kind = t.kind().upper_name();
            say!(
                self,
                "Arg#{at} type {kind} in {fname}() is not supported yet.\n"
            );
        }
        Err(Errno::Inval)
    }

    /// The kernel's structure that a structure of the program stands for.
    fn kernel_twin(&mut self, at: usize, pointee: Option<Type<'a>>) -> Res<u32> {
        let (kind, full) = pointee.map_or(("UNKNOWN", ""), |p| (p.kind().upper_name(), p.name()));
        let name = full.split("___").next().unwrap_or(full);
        let twin = pointee.and_then(|p| self.kernel()?.by_name(name, p.kind()));
        let Some(twin) = twin else {
            fail!(
                self,
                NoEnt,
                "arg#{at} reference type('{kind} {full}') has no matches\n"
            );
        };
        Ok(twin.id())
    }

    /// Sets the registers that a function which is verified on its own begins with.
    pub fn set_entry_args(&mut self, sub: usize) -> Res {
        let args = self.sub_args(sub)?;
        if self.subs[sub].is_exception_callback {
            self.cur.top_mut().in_exception_callback = true;
            let fits = args.len() == 1 && args[0].rule == ArgRule::Number;
            if !fits {
                fail!(
                    self,
                    Inval,
                    "exception cb only supports single integer argument\n"
                );
            }
        }
        for (at, arg) in args.iter().enumerate() {
            let n = at as u8 + 1;
            let kept = arg.flags
                & (TypeFlags::PTR_MAYBE_NULL
                    | TypeFlags::PTR_UNTRUSTED
                    | TypeFlags::MEM_RDONLY
                    | TypeFlags::PTR_TRUSTED);
            match arg.rule {
                ArgRule::Ctx => self.reg_mut(n).set_pointer(RegType::CTX),
                ArgRule::Number | ArgRule::Arena => self.set_unknown(n),
                ArgRule::Dynptr => {
                    let id = self.new_id();
                    self.reg_mut(n).set_dynptr(DynptrKind::Local, true, id);
                }
                ArgRule::Memory(size) => {
                    let or_null = kept.has(TypeFlags::PTR_MAYBE_NULL);
                    let id = if or_null { self.new_id() } else { 0 };
                    let reg = self.reg_mut(n);
                    reg.set_pointer(RegType::MEM.with(kept));
                    reg.set_mem_size(size);
                    reg.id = id;
                }
                ArgRule::Object(type_id) => {
                    let id = self.new_id();
                    let reg = self.reg_mut(n);
                    reg.set_pointer(RegType::BTF_ID.with(kept));
                    reg.set_btf(BtfOf::Kernel, type_id);
                    reg.id = id;
                }
            }
        }
        Ok(())
    }
}
