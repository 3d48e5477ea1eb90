//! What kernels older than the one whose rules are followed lack: it is refused, with the
//! release that brought it. Nothing here applies to the newest kernel.
//!
//! The tables of `spec` and `isa` say when each thing came. Instructions whose opcode an old
//! kernel does not know are refused wherever they stand, all else where a path meets it.

use std::fmt::Display;

use bpfkit_isa::table::{Accepted, Form};
use bpfkit_isa::{code, row_of, rows_of};
use bpfkit_spec::helper::Helper;
use bpfkit_spec::kfunc::Kfunc;
use bpfkit_spec::{AttachType, Caller, Feature, KernelVersion, ProgType, iter, struct_ops};

use crate::checker::Checker;
use crate::fail::{Res, fail};

/// `BPF_F_XDP_HAS_FRAGS`
const XDP_HAS_FRAGS: u32 = 1 << 5;

/// The release since which some program of a type may sleep.
const SLEEPABLE: &[(ProgType, AttachType, KernelVersion)] = &[
    (
        ProgType::Tracing,
        AttachType::TraceIter,
        KernelVersion(5, 18),
    ),
    (
        ProgType::Kprobe,
        AttachType::CgroupInetIngress,
        KernelVersion(6, 0),
    ),
    (
        ProgType::StructOps,
        AttachType::CgroupInetIngress,
        KernelVersion(6, 0),
    ),
];

/// Program types whose attach type the kernel looks at when it loads them.
const CHECKED_ATTACH: [ProgType; 8] = [
    ProgType::CgroupSock,
    ProgType::CgroupSockAddr,
    ProgType::CgroupSkb,
    ProgType::CgroupSockopt,
    ProgType::SkLookup,
    ProgType::Tracing,
    ProgType::Lsm,
    ProgType::Netfilter,
];

impl Checker<'_> {
    /// Whether the kernel to judge by is an older one.
    pub fn is_old_kernel(&self) -> bool {
        self.env.kernel_version < KernelVersion::TARGET
    }

    /// Whether the kernel to judge by has a feature.
    pub fn has(&self, feature: Feature) -> bool {
        self.env.kernel_version >= feature.since()
    }

    fn needs(&mut self, what: impl Display, since: KernelVersion) -> Res {
        if self.env.kernel_version < since {
            fail!(self, Inval, "{what} needs Linux {since}\n");
        }
        Ok(())
    }

    /// Checks that the kernel has such programs, maps and opcodes at all.
    pub fn check_version(&mut self) -> Res {
        if !self.is_old_kernel() {
            return Ok(());
        }
        let decl = &self.program.decl;
        let (prog_type, attach_type, flags) = (decl.prog_type, decl.attach_type, decl.flags);
        self.needs(format_args!("program type {prog_type}"), prog_type.since())?;
        if CHECKED_ATTACH.contains(&prog_type) {
            self.needs(
                format_args!("attach type {attach_type}"),
                attach_type.since(),
            )?;
        }
        if self.attach.caller.sleepable {
            let special = SLEEPABLE
                .iter()
                .find(|(p, a, _)| (*p, *a) == (prog_type, attach_type));
            let since = special.map_or(Feature::SleepablePrograms.since(), |s| s.2);
            self.needs("a sleepable program of this type", since)?;
        }
        if prog_type == ProgType::Xdp && flags & XDP_HAS_FRAGS != 0 {
            self.needs(
                "an XDP program that takes fragments",
                Feature::XdpFragments.since(),
            )?;
        }
        let target = self.attach.caller.target;
        if let (ProgType::StructOps, Some(ops)) = (prog_type, struct_ops::by_name(target)) {
            self.needs(format_args!("struct_ops {target}"), ops.since)?;
        }
        let over = target.strip_prefix("bpf_iter_").and_then(iter::by_name);
        if let (AttachType::TraceIter, Some(over)) = (attach_type, over) {
            self.needs(format_args!("iterator {target}"), over.since)?;
        }
        self.check_opcodes()
    }

    fn check_opcodes(&mut self) -> Res {
        let mut at = 0;
        while let Some(insn) = self.insns.get(at).copied() {
            let known = |accepted: Accepted| match accepted {
                Accepted::Since(major, minor) => Some(KernelVersion(major, minor)),
                _ => None,
            };
            let rows = rows_of(insn.code);
            let oldest = rows.iter().filter_map(|row| known(row.accepted)).min();
            if let (Some(since), Some(row)) = (oldest, rows.first()) {
                self.insn = at as u32;
                let name = row.mnemonic;
                self.needs(format_args!("instruction {name}"), since)?;
            }
            if insn.is_ld_imm64() && insn.src == code::PSEUDO_FUNC {
                self.insn = at as u32;
                self.needs("a function as an argument", Feature::Callbacks.since())?;
            }
            at += if insn.is_ld_imm64() { 2 } else { 1 };
        }
        self.insn = 0;
        Ok(())
    }

    /// Checks that the kernel knows the form of the current instruction.
    pub fn check_insn_version(&mut self) -> Res {
        let slots = &self.insns[self.insn as usize..];
        let Ok(row) = row_of(slots) else {
            return Ok(());
        };
        // Loaders give old kernels descriptors in place of indices.
        let by_index = matches!(row.form, Form::LoadMapIdx | Form::LoadMapIdxValue);
        match row.accepted {
            Accepted::Since(major, minor) if !by_index => {
                let name = row.mnemonic;
                self.needs(
                    format_args!("instruction {name}"),
                    KernelVersion(major, minor),
                )
            }
            _ => Ok(()),
        }
    }

    /// Checks that a map type is there.
    pub fn check_map_version(&mut self, map: usize) -> Res {
        let map_type = self.maps[map].map_type;
        self.needs(format_args!("map type {map_type}"), map_type.since())
    }

    /// Checks that the kernel has a helper; of one that the program may not call, whether a
    /// newer kernel would let it.
    pub fn check_helper_version(&mut self, helper: &Helper, refused: bool) -> Res {
        let (name, id) = (helper.name, helper.id);
        self.needs(format_args!("bpf_{name}#{id}"), helper.since)?;
        if !refused {
            return Ok(());
        }
        let newest = Caller {
            kernel: KernelVersion::TARGET,
            ..self.attach.caller
        };
        let offer = helper.offers.iter().find(|offer| offer.is_for(&newest));
        match offer.and_then(|offer| offer.since) {
            Some(since) => self.needs(
                format_args!("bpf_{name}#{id} in programs of this type"),
                since,
            ),
            None => Ok(()),
        }
    }
    /// Checks that the kernel has a kernel function.
    pub fn check_kfunc_version(&mut self, kfunc: &Kfunc) -> Res {
        self.needs(format_args!("{}", kfunc.name), kfunc.since)
    }
}
