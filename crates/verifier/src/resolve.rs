//! References in instructions: maps, kernel variables; and which opcodes there are.

use bpfkit_btf::Kind;
use bpfkit_isa::code;
use bpfkit_spec::{MapType, ProgType, TypeFlags};

use crate::checker::{Checker, MAX_OFF};
use crate::fail::{Res, fail};
use crate::record::FieldKind;
use crate::reg::{BtfOf, RegType};
use crate::walk::peel;

/// Most maps of a program.
const MAX_MAPS: usize = 64;

/// Whether there is an instruction of that opcode.
const fn known_opcode(opcode: u8) -> bool {
    let (class, op, mode, size) = (opcode & 7, opcode & 0xf0, opcode & 0xe0, opcode & 0x18);
    let from_reg = opcode & code::X != 0;
    match class {
        code::ALU | code::ALU64 => match op {
            code::NEG => !from_reg,
            code::END => class == code::ALU || !from_reg,
            _ => op < code::END,
        },
        code::JMP => match op {
            code::JA | code::CALL | code::EXIT | code::JCOND => !from_reg,
            _ => op <= code::JSLE,
        },
        code::JMP32 => match op {
            code::JA => !from_reg,
            code::CALL | code::EXIT => false,
            _ => op <= code::JSLE,
        },
        code::LD => match mode {
            code::IMM => size == code::DW,
            code::ABS | code::IND => size != code::DW,
            _ => false,
        },
        code::LDX => match mode {
            code::MEM => true,
            code::MEMSX => size != code::DW,
            _ => false,
        },
        code::ST => mode == code::MEM,
        _ => mode == code::MEM || mode == code::ATOMIC,
    }
}

impl Checker<'_> {
    /// Resolves all references, and checks that all opcodes are known.
    pub fn resolve(&mut self) -> Res {
        let mut used: Vec<usize> = Vec::new();
        let mut at = 0;
        while at < self.insns.len() {
            let insn = self.insns[at];
            let mode = insn.code & 0xe0;
            if insn.class() == code::LDX
                && ((mode != code::MEM && mode != code::MEMSX) || insn.imm != 0)
            {
                fail!(self, Inval, "BPF_LDX uses reserved fields\n");
            }
            if !insn.is_ld_imm64() {
                if !known_opcode(insn.code) {
                    fail!(self, Inval, "unknown opcode {:02x}\n", insn.code);
                }
                at += 1;
                continue;
            }
            let second = self.insns.get(at + 1).copied();
            let Some(second) =
                second.filter(|s| s.code == 0 && s.dst == 0 && s.src == 0 && s.off == 0)
            else {
                fail!(self, Inval, "invalid bpf_ld_imm64 insn\n");
            };
            match insn.src {
                0 => {}
                code::PSEUDO_BTF_ID => self.resolve_kernel_symbol(at, insn.imm as u32)?,
                code::PSEUDO_FUNC => self.aux[at].ptr_type = RegType::FUNC,
                code::PSEUDO_MAP_VALUE | code::PSEUDO_MAP_IDX_VALUE => {
                    self.resolve_map(at, insn.imm as usize, &mut used)?;
                    self.resolve_map_value(at, insn.imm as usize, second.imm as u32)?;
                }
                // Maps are handed over as a list: no descriptor names one.
                code::PSEUDO_MAP_FD if second.imm == 0 => {
                    let fd = insn.imm;
                    fail!(self, Inval, "fd {fd} is not pointing to valid bpf_map\n");
                }
                code::PSEUDO_MAP_IDX if second.imm == 0 => {
                    self.resolve_map(at, insn.imm as usize, &mut used)?;
                }
                _ => fail!(self, Inval, "unrecognized bpf_ld_imm64 insn\n"),
            }
            at += 2;
        }
        Ok(())
    }

    fn resolve_map(&mut self, at: usize, map: usize, used: &mut Vec<usize>) -> Res {
        if map >= self.maps.len() {
            fail!(self, Inval, "fd {map} is not pointing to valid bpf_map\n");
        }
        self.aux[at].map = map as u32 + 1;
        if used.contains(&map) {
            return Ok(());
        }
        if used.len() >= MAX_MAPS {
            fail!(
                self,
                TooBig,
                "The total number of maps per program has reached the limit of {MAX_MAPS}\n"
            );
        }
        self.check_map(map, used)?;
        used.push(map);
        Ok(())
    }

    fn resolve_map_value(&mut self, at: usize, map: usize, off: u32) -> Res {
        if off as i64 >= MAX_OFF {
            fail!(self, Inval, "direct value offset of {off} is not allowed\n");
        }
        let info = &self.maps[map];
        if !info.has_direct_values() {
            fail!(
                self,
                Inval,
                "no direct value access support for this map type\n"
            );
        }
        let size = info.value_size;
        let beyond = info.map_type == MapType::Array && (info.max_entries != 1 || off >= size);
        if beyond {
            fail!(
                self,
                Inval,
                "invalid access to map value pointer, value_size={size} off={off}\n"
            );
        }
        self.aux[at].extra = off;
        Ok(())
    }

    /// Checks that the program may use a map.
    fn check_map(&mut self, map: usize, used: &[usize]) -> Res {
        use MapType as M;
        let probe = matches!(
            self.prog_type(),
            ProgType::Kprobe
                | ProgType::Tracepoint
                | ProgType::PerfEvent
                | ProgType::RawTracepoint
                | ProgType::RawTracepointWritable
        );
        let record = self.maps[map].record.clone();
        let map_type = self.maps[map].map_type;
        self.check_map_version(map)?;
        let has = |kind| record.has(kind);
        if probe && (has(FieldKind::ListHead) || has(FieldKind::RbRoot)) {
            fail!(
                self,
                Inval,
                "tracing progs cannot use bpf_{{list_head,rb_root}} yet\n"
            );
        }
        if has(FieldKind::SpinLock) || has(FieldKind::ResSpinLock) {
            if self.prog_type() == ProgType::SocketFilter {
                fail!(
                    self,
                    Inval,
                    "socket filter progs cannot use bpf_spin_lock yet\n"
                );
            }
            if probe {
                fail!(self, Inval, "tracing progs cannot use bpf_spin_lock yet\n");
            }
        }
        if probe && has(FieldKind::Timer) {
            fail!(self, Inval, "tracing progs cannot use bpf_timer yet\n");
        }
        if probe && has(FieldKind::Workqueue) {
            fail!(self, Inval, "tracing progs cannot use bpf_wq yet\n");
        }
        if map_type == M::StructOps {
            fail!(self, Inval, "bpf_struct_ops map cannot be used in prog\n");
        }
        let sleeps = bpfkit_spec::map_rules::of(map_type).is_some_and(|r| r.sleepable);
        if self.attach.caller.sleepable && !sleeps {
            fail!(
                self,
                Inval,
                "Sleepable programs can only use array, hash, ringbuf and local storage maps\n"
            );
        }
        let storage = matches!(map_type, M::CgroupStorage | M::PercpuCgroupStorage);
        if storage && used.iter().any(|m| self.maps[*m].map_type == map_type) {
            fail!(
                self,
                Busy,
                "only one cgroup storage of each type is allowed\n"
            );
        }
        if map_type == M::Arena {
            if self.arena.is_some() {
                fail!(self, Busy, "Only one arena per program\n");
            }
            if !self.privileged() {
                fail!(
                    self,
                    Perm,
                    "CAP_BPF and CAP_PERFMON are required to use arena\n"
                );
            }
            self.arena = Some(map);
        }
        Ok(())
    }

    /// A kernel variable or function by its BTF id.
    fn resolve_kernel_symbol(&mut self, at: usize, id: u32) -> Res {
        let Some(btf) = self.kernel() else {
            fail!(
                self,
                Inval,
                "kernel is missing BTF, make sure CONFIG_DEBUG_INFO_BTF=y is specified in Kconfig.\n"
            );
        };
        let Some(t) = btf.type_by_id(id) else {
            fail!(self, NoEnt, "ldimm64 insn specifies invalid btf_id {id}.\n");
        };
        let absent = |name: &str| self.env.symbols.is_some_and(|known| !(known.0)(name));
        if matches!(t.kind(), Kind::Func | Kind::Var) && absent(t.name()) {
            let name = t.name();
            fail!(
                self,
                NoEnt,
                "ldimm64 failed to find the address for kernel symbol '{name}'.\n"
            );
        }
        let rdonly = RegType::MEM.with(TypeFlags::MEM_RDONLY);
        match t.kind() {
            Kind::Func => self.aux[at].ptr_type = rdonly,
            Kind::Var => {
                let percpu = btf
                    .by_name(".data..percpu", Kind::Datasec)
                    .is_some_and(|s| s.variables().any(|v| v.type_id == id));
                let target = peel(btf, t.type_id());
                let is_struct =
                    target.is_some_and(|t| matches!(t.kind(), Kind::Struct | Kind::Union));
                if percpu || is_struct {
                    let flags = if percpu {
                        TypeFlags::MEM_PERCPU
                    } else {
                        TypeFlags::NONE
                    };
                    self.aux[at].ptr_type = RegType::BTF_ID.with(flags);
                    self.aux[at].extra = t.type_id();
                } else {
                    let Some(size) = btf.size_of(t.type_id()) else {
                        let name = target.map_or("", |t| t.name());
                        fail!(
                            self,
                            Inval,
                            "ldimm64 unable to resolve the size of type '{name}': -22\n"
                        );
                    };
                    self.aux[at].ptr_type = rdonly;
                    self.aux[at].extra = size;
                }
            }
            _ => fail!(
                self,
                Inval,
                "pseudo btf_id {id} in ldimm64 isn't KIND_VAR or KIND_FUNC\n"
            ),
        }
        Ok(())
    }

    /// An `ld_imm64`.
    pub fn load_imm64(&mut self) -> Res {
        let insn = self.insn();
        if insn.code & 0x18 != code::DW {
            fail!(self, Inval, "invalid BPF_LD_IMM insn\n");
        }
        if insn.off != 0 {
            fail!(self, Inval, "BPF_LD_IMM64 uses reserved fields\n");
        }
        self.write_reg(insn.dst)?;
        let at = self.insn as usize;
        let aux = self.aux[at];
        let n = insn.dst;
        match insn.src {
            0 => {
                let high = self.insns[at + 1].imm as u32 as u64;
                self.reg_mut(n)
                    .set_known(high << 32 | insn.imm as u32 as u64);
            }
            code::PSEUDO_BTF_ID => {
                let reg = self.reg_mut(n);
                reg.set_pointer(aux.ptr_type);
                if aux.ptr_type.base() == crate::reg::Base::Mem {
                    reg.set_mem_size(aux.extra);
                } else {
                    reg.set_btf(BtfOf::Kernel, aux.extra);
                }
            }
            code::PSEUDO_FUNC => {
                let sub = self.sub_at(at as i64 + insn.imm as i64 + 1);
                let Some(sub) = sub.filter(|_| self.local.is_some()) else {
                    fail!(self, Inval, "missing btf func_info\n");
                };
                if self.subs[sub].global {
                    fail!(self, Inval, "callback function not static\n");
                }
                let reg = self.reg_mut(n);
                reg.set_pointer(RegType::FUNC);
                reg.set_subprog(sub);
            }
            _ => {
                let map = aux.map as usize - 1;
                let by_value = matches!(
                    insn.src,
                    code::PSEUDO_MAP_VALUE | code::PSEUDO_MAP_IDX_VALUE
                );
                if by_value && self.maps[map].map_type == MapType::Arena {
                    self.set_unknown(n);
                } else {
                    let reg = self.reg_mut(n);
                    reg.set_pointer(if by_value {
                        RegType::MAP_VALUE
                    } else {
                        RegType::MAP_PTR
                    });
                    reg.set_map(map, 0);
                    if by_value {
                        reg.off = aux.extra as i32;
                    }
                }
            }
        }
        self.insn += 2;
        Ok(())
    }

    /// A load from the packet of a socket buffer.
    pub fn load_packet(&mut self) -> Res {
        let insn = self.insn();
        let indirect = insn.code & 0xe0 == code::IND;
        let allowed = matches!(
            self.prog_type(),
            ProgType::SocketFilter | ProgType::SchedCls | ProgType::SchedAct
        );
        if !allowed {
            fail!(
                self,
                Inval,
                "BPF_LD_[ABS|IND] instructions not allowed for this program type\n"
            );
        }
        if insn.dst != 0
            || insn.off != 0
            || insn.code & 0x18 == code::DW
            || (!indirect && insn.src != 0)
        {
            fail!(self, Inval, "BPF_LD_[ABS|IND] uses reserved fields\n");
        }
        self.read_reg(6)?;
        self.check_leaks(false, true, "BPF_LD_[ABS|IND]")?;
        let ctx = *self.reg(6);
        if ctx.ty != RegType::CTX {
            fail!(
                self,
                Inval,
                "at the time of BPF_LD_ABS|IND R6 != pointer to skb\n"
            );
        }
        if indirect {
            self.read_reg(insn.src)?;
        }
        self.check_unmoved(&ctx, 6, false)?;
        self.clobber_caller_saved();
        self.set_unknown(0);
        let at = self.insn;
        if self.cur.curframe() > 0 {
            // Beyond the packet's end the function returns 0.
            self.push_branch(at + 1, at)?;
            self.set_zero(0);
            return self.return_early();
        }
        self.insn += 1;
        Ok(())
    }
}
