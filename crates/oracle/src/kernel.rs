//! What callers ask of the kernel: maps, programs, test runs.

use std::time::Duration;

use bpfkit_isa::Insn;
use bpfkit_object::{MapDef, MapOrigin, Program};
use bpfkit_spec::MapType;

use crate::attr::{
    Attr, Command, Errno, batch, btf_load, elem, info, map_create, prog_load, test_run,
};
use crate::child::{Child, Repeat};

/// Why the oracle has no answer.
#[derive(Debug, thiserror::Error)]
pub enum OracleError {
    /// bpf(2) is not allowed here (no `CAP_BPF`, a seccomp filter, no such call).
    #[error("no bpf(2): {0}")]
    NotAllowed(Errno),
    /// The helper process could not be made.
    #[error("cannot start the bpf(2) process: {0}")]
    Child(std::io::Error),
    /// The helper process died inside a call: the kernel killed it.
    #[error("the bpf(2) process died: the kernel ended it inside the call")]
    Died,
    /// A call did not come back in time. Some kernels deadlock over the memory of compiled
    /// programs when thousands are unloaded at once (seen on 6.18.44: `bpf_prog_pack_alloc`
    /// holds `pack_mutex` and waits for a work queue full of unloads that wait for it).
    #[error("the running kernel does not answer bpf(2)")]
    Stuck,
    /// A call failed.
    #[error("bpf(2): {0}")]
    Call(Errno),
    /// A buffer is larger than the oracle exchanges in one call.
    #[error("a buffer of {bytes} bytes is too large for one bpf(2) request")]
    TooLarge {
        /// Bytes asked for.
        bytes: usize,
    },
}

/// A program that the kernel did not load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The kernel said no: its error number and log (empty at level 0).
    #[error("the kernel refused the program: {errno}")]
    Refused {
        /// Error number of the load.
        errno: Errno,
        /// The verifier's log.
        log: String,
    },
    /// There was no answer.
    #[error(transparent)]
    Oracle(#[from] OracleError),
}

/// A map in the kernel, by the child's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapHandle {
    fd: i32,
    key_size: u32,
    /// Bytes that a lookup writes: for per-CPU maps a value for each possible CPU.
    lookup_bytes: usize,
}

/// A program in the kernel, by the child's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProgHandle {
    fd: i32,
}

/// BTF of an object in the kernel, by the child's descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BtfHandle {
    fd: i32,
}

/// How to load a program.
#[derive(Clone, Debug, Default)]
pub struct LoadOptions {
    /// 0 none, 1 and 2 as the kernel's `log_level`, 4 statistics only.
    pub log_level: u32,
    /// Room for the log in bytes; 0 means 1 MiB when a log is asked for.
    pub log_bytes: usize,
    /// Further `BPF_F_*` load flags, besides the program's own.
    pub flags: u32,
}

/// Input of a test run.
#[derive(Clone, Debug, Default)]
pub struct TestRun<'a> {
    /// Packet, for types that take one.
    pub data: &'a [u8],
    /// Context, for types that take one.
    pub ctx: &'a [u8],
    /// Repetitions, 0 is once; the duration is their mean.
    pub repeat: u32,
    /// `BPF_F_TEST_*`.
    pub flags: u32,
}

/// How to run a program again and again.
#[derive(Clone, Copy, Debug)]
pub struct Repeated<'a> {
    /// Packet, for types that take one.
    pub packet: &'a [u8],
    /// Processes at the same time.
    pub producers: u32,
    /// How long.
    pub span: Duration,
    /// Most runs of a process.
    pub room: u32,
    /// Ring buffer that is emptied after every run.
    pub ring: Option<MapHandle>,
}

/// Result of a test run.
#[derive(Clone, Debug)]
pub struct TestRunResult {
    /// What the program returned (32 bits is all the kernel tells).
    pub retval: u32,
    /// The packet afterwards.
    pub data: Vec<u8>,
    /// The context afterwards.
    pub ctx: Vec<u8>,
    /// Mean duration of a repetition in ns.
    pub nanoseconds: u32,
}

/// What the kernel made of a program.
#[derive(Clone, Debug)]
pub struct ProgInfo {
    /// Rewritten instructions.
    pub xlated: Vec<Insn>,
    /// Machine code, if the kernel compiled it and tells.
    pub jited: Vec<u8>,
    /// First slot of each subprogram with the id of its `FUNC`; empty without BTF.
    pub functions: Vec<(u32, u32)>,
    /// Slots that source lines begin at.
    pub lines: Vec<u32>,
}

/// The running kernel.
pub struct Kernel {
    child: Child,
    cpus: usize,
}

const LOG_BYTES: usize = 1 << 20;
/// Least size of a ring buffer in bytes.
const PAGE: u32 = 4096;
/// Where an arena lies that says nothing of it.
const ARENA_ADDRESS: u64 = 1 << 44;
/// How long the first, smallest program may take.
const PROBE_PATIENCE: Duration = Duration::from_secs(5);
/// Room behind a packet, for programs that grow it.
const DATA_OUT_SLACK: usize = 4096;

/// `BPF_F_RDONLY_PROG`
const RDONLY_PROG: u32 = 1 << 7;
/// Size of a `bpf_line_info`.
const LINE_RECORD: usize = 16;
/// Size of a `bpf_func_info`.
const FUNCTION_RECORD: usize = 8;

/// A program's source lines as the kernel takes them; none if the BTF lacks their texts.
fn line_records(program: &Program) -> Vec<u8> {
    let lines = &program.lines;
    if lines.iter().any(|line| line.offsets == [0, 0]) {
        return Vec::new();
    }
    let records = lines.iter().flat_map(|line| {
        let column = line.line << 10 | line.column & 0x3ff;
        [line.insn, line.offsets[0], line.offsets[1], column]
    });
    records.flat_map(u32::to_ne_bytes).collect()
}

impl OracleError {
    /// Whether it means that there is no kernel to ask here: tests print it and skip.
    pub fn is_absence(&self) -> bool {
        matches!(self, OracleError::NotAllowed(_) | OracleError::Stuck)
    }
}

impl Kernel {
    /// Starts the child and has it load the smallest program there is.
    ///
    /// # Errors
    /// [`OracleError::NotAllowed`] where bpf(2) is not to be had, [`OracleError::Stuck`]
    /// where it does not come back within seconds.
    pub fn start() -> Result<Self, OracleError> {
        const SOCKET_FILTER: u32 = 1;
        let mut kernel = Kernel {
            child: Child::spawn()?,
            cpus: possible_cpus(),
        };
        let patience = std::mem::replace(&mut kernel.child.patience, PROBE_PATIENCE);
        let exit_zero: [u8; 16] = [0xb7, 0, 0, 0, 0, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0];
        let mut probe = Attr::new()
            .u32(prog_load::TYPE, SOCKET_FILTER)
            .u32(prog_load::INSN_CNT, 2)
            .u64(prog_load::INSNS, kernel.child.put(&exit_zero)?)
            .u64(prog_load::LICENSE, kernel.child.put(b"GPL\0")?);
        match kernel.child.call(Command::ProgLoad, &mut probe) {
            Ok(fd) => kernel.child.close(fd as i32),
            Err(OracleError::Call(errno)) => return Err(OracleError::NotAllowed(errno)),
            Err(error) => return Err(error),
        }
        kernel.child.patience = patience;
        Ok(kernel)
    }

    /// How long a call may take before the kernel counts as [`OracleError::Stuck`]; a minute
    /// unless it is said, which the longest verification on real processors stays far below.
    pub fn set_patience(&mut self, patience: Duration) {
        self.child.patience = patience;
    }

    /// Loads an object's BTF, which global functions, callbacks and special fields of map
    /// values need.
    ///
    /// # Errors
    /// Those of `BPF_BTF_LOAD`.
    pub fn load_btf(&mut self, bytes: &[u8]) -> Result<BtfHandle, OracleError> {
        self.child.begin();
        let len =
            u32::try_from(bytes.len()).map_err(|_| OracleError::TooLarge { bytes: bytes.len() })?;
        let mut attr = Attr::new()
            .u64(btf_load::BTF, self.child.put(bytes)?)
            .u32(btf_load::SIZE, len);
        let fd = self.child.call(Command::BtfLoad, &mut attr)? as i32;
        Ok(BtfHandle { fd })
    }

    /// Creates a map as declared and fills in a data section's bytes. Where the kernel
    /// refuses the types of key and value, it is created without, as libbpf does.
    ///
    /// Sizes that the declaration leaves open are chosen as libbpf and veristat choose them,
    /// and constants are frozen.
    ///
    /// # Errors
    /// Those of `BPF_MAP_CREATE`.
    pub fn create_map(
        &mut self,
        def: &MapDef,
        btf: Option<BtfHandle>,
    ) -> Result<MapHandle, OracleError> {
        let inner = match &def.inner {
            Some(inner) => Some(self.create_map(inner, btf)?),
            None => None,
        };
        let attr = Attr::new()
            .u32(map_create::TYPE, def.map_type as u32)
            .u32(map_create::KEY_SIZE, def.key_size)
            .u32(map_create::VALUE_SIZE, def.value_size)
            .u32(map_create::MAX_ENTRIES, max_entries(def))
            .u32(map_create::FLAGS, def.flags)
            .u32(map_create::INNER_FD, inner.map_or(0, |map| map.fd as u32))
            .u32(map_create::NUMA_NODE, def.numa_node)
            .name(map_create::NAME, &def.name)
            .u64(map_create::EXTRA, map_extra(def));
        let mut typed = attr;
        if let Some(btf) = btf {
            typed = typed
                .u32(map_create::BTF_FD, btf.fd as u32)
                .u32(map_create::BTF_KEY, def.key_type_id)
                .u32(map_create::BTF_VALUE, def.value_type_id);
        }
        let created = match self.child.call(Command::MapCreate, &mut typed) {
            Err(OracleError::Call(_)) if btf.is_some() => {
                self.child.call(Command::MapCreate, &mut attr.clone())
            }
            other => other,
        };
        let fd = created? as i32;
        if let Some(inner) = inner {
            self.child.close(inner.fd);
        }
        let map = MapHandle {
            fd,
            key_size: def.key_size,
            lookup_bytes: self.lookup_bytes(def),
        };
        if let MapOrigin::Data { bytes, .. } = &def.origin {
            self.update(map, &0u32.to_ne_bytes(), bytes, 0)?;
            // Constants: the verifier reads those of frozen maps.
            if def.flags & RDONLY_PROG != 0 {
                let mut attr = Attr::new().u32(elem::FD, map.fd as u32);
                self.child.call(Command::MapFreeze, &mut attr)?;
            }
        }
        Ok(map)
    }

    /// Creates a map of maps' slot: stores `inner` under `key`.
    ///
    /// # Errors
    /// Those of `BPF_MAP_UPDATE_ELEM`.
    pub fn update_inner(
        &mut self,
        map: MapHandle,
        key: &[u8],
        inner: MapHandle,
    ) -> Result<(), OracleError> {
        self.update(map, key, &inner.fd.to_ne_bytes(), 0)
    }

    /// Stores a program in a slot of a program array.
    ///
    /// # Errors
    /// Those of `BPF_MAP_UPDATE_ELEM`.
    pub fn update_program(
        &mut self,
        map: MapHandle,
        key: &[u8],
        program: ProgHandle,
    ) -> Result<(), OracleError> {
        self.update(map, key, &program.fd.to_ne_bytes(), 0)
    }

    /// Loads a linked program; `maps` are those of the object, in its order.
    ///
    /// # Errors
    /// [`LoadError::Refused`] with the verifier's log when the kernel says no.
    pub fn load(
        &mut self,
        program: &Program,
        maps: &[MapHandle],
        btf: Option<BtfHandle>,
        options: &LoadOptions,
    ) -> Result<(ProgHandle, String), LoadError> {
        let bytes: Vec<u8> = program
            .insns
            .iter()
            .flat_map(|insn| insn.to_le_bytes())
            .collect();
        let fds: Vec<u8> = maps.iter().flat_map(|map| map.fd.to_ne_bytes()).collect();
        let license = format!("{}\0", program.license);
        self.child.begin();
        let attach = program.attach.as_ref().ok().and_then(Option::as_ref);
        // For struct_ops the member's number stands in place of the attach type.
        let member = attach.and_then(|attach| attach.member);
        let attach_type = member.unwrap_or(program.decl.attach_type as u32);
        let mut attr = Attr::new()
            .u32(prog_load::TYPE, program.decl.prog_type as u32)
            .u32(prog_load::INSN_CNT, program.insns.len() as u32)
            .u64(prog_load::INSNS, self.child.put(&bytes)?)
            .u64(prog_load::LICENSE, self.child.put(license.as_bytes())?)
            .u32(prog_load::KERN_VERSION, program.kernel_version)
            .u32(prog_load::FLAGS, program.decl.flags | options.flags)
            .name(prog_load::NAME, &program.decl.name)
            .u32(prog_load::ATTACH_TYPE, attach_type)
            .u32(
                prog_load::ATTACH_BTF_ID,
                attach.map_or(0, |attach| attach.type_id),
            )
            .u64(prog_load::FD_ARRAY, self.child.put(&fds)?);
        if let Some(btf) = btf {
            let funcs: Vec<u8> = program
                .subprograms
                .iter()
                .flat_map(|f| [f.start.to_ne_bytes(), f.type_id.to_ne_bytes()].concat())
                .collect();
            attr = attr
                .u32(prog_load::BTF_FD, btf.fd as u32)
                .u32(prog_load::FUNC_INFO_SIZE, FUNCTION_RECORD as u32)
                .u64(prog_load::FUNC_INFO, self.child.put(&funcs)?)
                .u32(prog_load::FUNC_INFO_CNT, program.subprograms.len() as u32);
            let lines = line_records(program);
            if !lines.is_empty() {
                attr = attr
                    .u32(prog_load::LINE_INFO_SIZE, LINE_RECORD as u32)
                    .u64(prog_load::LINE_INFO, self.child.put(&lines)?)
                    .u32(prog_load::LINE_INFO_CNT, (lines.len() / LINE_RECORD) as u32);
            }
        }
        let log_bytes = match (options.log_level, options.log_bytes) {
            (0, _) => 0,
            (_, 0) => LOG_BYTES,
            (_, bytes) => bytes,
        };
        let mut log_address = 0;
        if log_bytes > 0 {
            log_address = self.child.put(&[0])?;
            self.child.reserve(log_bytes)?;
            attr = attr
                .u32(prog_load::LOG_LEVEL, options.log_level)
                .u32(prog_load::LOG_SIZE, log_bytes as u32)
                .u64(prog_load::LOG_BUF, log_address);
        }
        let result = self.child.call(Command::ProgLoad, &mut attr);
        let log = if log_bytes > 0 {
            self.text(log_address, log_bytes)
        } else {
            String::new()
        };
        match result {
            Ok(fd) => Ok((ProgHandle { fd: fd as i32 }, log)),
            Err(OracleError::Call(errno)) => Err(LoadError::Refused { errno, log }),
            Err(error) => Err(error.into()),
        }
    }

    fn text(&self, address: u64, len: usize) -> String {
        let mut bytes = self.child.get(address, len);
        bytes.truncate(bytes.iter().position(|&b| b == 0).unwrap_or(len));
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs a program once or repeatedly on the given input.
    ///
    /// # Errors
    /// Those of `BPF_PROG_TEST_RUN`, for instance `ENOTSUPP` (524) for types without it.
    pub fn test_run(
        &mut self,
        program: ProgHandle,
        input: &TestRun<'_>,
    ) -> Result<TestRunResult, OracleError> {
        self.child.begin();
        let data_room = if input.data.is_empty() {
            0
        } else {
            input.data.len() + DATA_OUT_SLACK
        };
        let data_out = self.child.reserve(data_room)?;
        let ctx_out = self.child.reserve(input.ctx.len())?;
        let mut attr = Attr::new()
            .u32(test_run::FD, program.fd as u32)
            .u32(test_run::REPEAT, input.repeat)
            .u32(test_run::FLAGS, input.flags);
        if !input.data.is_empty() {
            attr = attr
                .u32(test_run::DATA_SIZE_IN, input.data.len() as u32)
                .u32(test_run::DATA_SIZE_OUT, data_room as u32)
                .u64(test_run::DATA_IN, self.child.put(input.data)?)
                .u64(test_run::DATA_OUT, data_out);
        }
        if !input.ctx.is_empty() {
            attr = attr
                .u32(test_run::CTX_SIZE_IN, input.ctx.len() as u32)
                .u64(test_run::CTX_IN, self.child.put(input.ctx)?);
        }
        // A syscall program writes its result over its input and refuses a second buffer.
        let in_place = input.data.is_empty() && !input.ctx.is_empty();
        if !input.ctx.is_empty() && !in_place {
            attr = attr
                .u32(test_run::CTX_SIZE_OUT, input.ctx.len() as u32)
                .u64(test_run::CTX_OUT, ctx_out);
        }
        let ctx_in = u64::from_ne_bytes(
            attr.0[test_run::CTX_IN..test_run::CTX_IN + 8]
                .try_into()
                .expect("eight bytes"),
        );
        self.child.call(Command::TestRun, &mut attr)?;
        let ctx_len = match in_place {
            true => input.ctx.len(),
            false => (attr.get_u32(test_run::CTX_SIZE_OUT) as usize).min(input.ctx.len()),
        };
        Ok(TestRunResult {
            retval: attr.get_u32(test_run::RETVAL),
            data: self.child.get(
                data_out,
                (attr.get_u32(test_run::DATA_SIZE_OUT) as usize).min(data_room),
            ),
            ctx: self
                .child
                .get(if in_place { ctx_in } else { ctx_out }, ctx_len),
            nanoseconds: attr.get_u32(test_run::DURATION),
        })
    }

    /// Runs a program again and again, in several processes at the same time. Gives the return
    /// values, a list for each process.
    ///
    /// # Errors
    /// Those of `BPF_PROG_TEST_RUN` and of fork(2).
    pub fn repeat(
        &mut self,
        program: ProgHandle,
        runs: &Repeated<'_>,
    ) -> Result<Vec<Vec<u32>>, OracleError> {
        self.child.begin();
        let mut repeat = Repeat {
            producers: runs.producers.max(1),
            room: runs.room,
            span: u64::try_from(runs.span.as_nanos()).unwrap_or(u64::MAX / 2),
            ring: runs.ring.map_or(-1, |ring| ring.fd),
            results: 0,
        };
        let packet = runs.packet;
        let bytes = 4 * repeat.stride() * repeat.producers as usize;
        repeat.results = self.child.reserve(bytes)?;
        let mut attr = Attr::new().u32(test_run::FD, program.fd as u32);
        if !packet.is_empty() {
            attr = attr
                .u32(test_run::DATA_SIZE_IN, packet.len() as u32)
                .u64(test_run::DATA_IN, self.child.put(packet)?);
        }
        self.child.repeat(&attr, &repeat)?;
        let words = self.child.get(repeat.results, bytes);
        let words: Vec<u32> = words
            .as_chunks::<4>()
            .0
            .iter()
            .map(|word| u32::from_ne_bytes(*word))
            .collect();
        let mut all = Vec::new();
        for process in words.chunks(repeat.stride()) {
            let [runs, error, values @ ..] = process else {
                continue;
            };
            if *error != 0 {
                return Err(OracleError::Call(Errno(*error as i32)));
            }
            all.push(values[..values.len().min(*runs as usize)].to_vec());
        }
        Ok(all)
    }

    /// Has every program run on that CPU from now on, if the machine allows.
    pub fn pin(&mut self, cpu: usize) {
        self.child.pin(cpu);
    }

    /// CPUs that per-CPU maps hold a value for.
    pub fn cpus(&self) -> usize {
        self.cpus
    }

    fn lookup_bytes(&self, def: &MapDef) -> usize {
        let size = def.value_size as usize;
        match def.map_type {
            MapType::PercpuHash
            | MapType::PercpuArray
            | MapType::LruPercpuHash
            | MapType::PercpuCgroupStorage => size.next_multiple_of(8) * self.cpus,
            _ => size,
        }
    }

    /// The value under `key`; for per-CPU maps all CPUs' values, each padded to 8 bytes.
    ///
    /// # Errors
    /// Those of `BPF_MAP_LOOKUP_ELEM`, `ENOENT` among them.
    pub fn lookup(&mut self, map: MapHandle, key: &[u8]) -> Result<Vec<u8>, OracleError> {
        self.child.begin();
        let value = self.child.reserve(map.lookup_bytes)?;
        let mut attr = Attr::new()
            .u32(elem::FD, map.fd as u32)
            .u64(elem::KEY, self.child.put(key)?)
            .u64(elem::VALUE, value);
        self.child.call(Command::MapLookup, &mut attr)?;
        Ok(self.child.get(value, map.lookup_bytes))
    }

    /// Stores `value` under `key`.
    ///
    /// # Errors
    /// Those of `BPF_MAP_UPDATE_ELEM`.
    pub fn update(
        &mut self,
        map: MapHandle,
        key: &[u8],
        value: &[u8],
        flags: u64,
    ) -> Result<(), OracleError> {
        self.child.begin();
        let mut attr = Attr::new()
            .u32(elem::FD, map.fd as u32)
            .u64(elem::KEY, self.child.put(key)?)
            .u64(elem::VALUE, self.child.put(value)?)
            .u64(elem::FLAGS, flags);
        self.child.call(Command::MapUpdate, &mut attr)?;
        Ok(())
    }

    /// Stores many values: keys and values one after the other, in the sizes of the map.
    ///
    /// # Errors
    /// Those of `BPF_MAP_UPDATE_BATCH`.
    pub fn update_batch(
        &mut self,
        map: MapHandle,
        keys: &[u8],
        values: &[u8],
    ) -> Result<(), OracleError> {
        /// Elements of one call: their keys and values fit what is shared with the child.
        const AT_ONCE: usize = 1 << 16;
        let (key_size, value_size) = (map.key_size.max(1) as usize, map.lookup_bytes.max(1));
        let pairs = keys
            .chunks(AT_ONCE * key_size)
            .zip(values.chunks(AT_ONCE * value_size));
        for (keys, values) in pairs {
            self.child.begin();
            let mut attr = Attr::new()
                .u64(batch::KEYS, self.child.put(keys)?)
                .u64(batch::VALUES, self.child.put(values)?)
                .u32(batch::COUNT, (keys.len() / key_size) as u32)
                .u32(batch::FD, map.fd as u32);
            self.child.call(Command::MapUpdateBatch, &mut attr)?;
        }
        Ok(())
    }

    /// Deletes `key`.
    ///
    /// # Errors
    /// Those of `BPF_MAP_DELETE_ELEM`.
    pub fn delete(&mut self, map: MapHandle, key: &[u8]) -> Result<(), OracleError> {
        self.child.begin();
        let mut attr = Attr::new()
            .u32(elem::FD, map.fd as u32)
            .u64(elem::KEY, self.child.put(key)?);
        self.child.call(Command::MapDelete, &mut attr)?;
        Ok(())
    }

    /// Looks `key` up and deletes it in one step; queues and stacks pop with an empty key.
    ///
    /// # Errors
    /// Those of `BPF_MAP_LOOKUP_AND_DELETE_ELEM`.
    pub fn lookup_and_delete(
        &mut self,
        map: MapHandle,
        key: &[u8],
    ) -> Result<Vec<u8>, OracleError> {
        self.child.begin();
        let value = self.child.reserve(map.lookup_bytes)?;
        let key_address = if key.is_empty() {
            0
        } else {
            self.child.put(key)?
        };
        let mut attr = Attr::new()
            .u32(elem::FD, map.fd as u32)
            .u64(elem::KEY, key_address)
            .u64(elem::VALUE, value);
        self.child.call(Command::MapLookupDelete, &mut attr)?;
        Ok(self.child.get(value, map.lookup_bytes))
    }

    /// The key after `key` (the first for `None`), in the map's own order.
    ///
    /// # Errors
    /// `ENOENT` at the end.
    pub fn next_key(&mut self, map: MapHandle, key: Option<&[u8]>) -> Result<Vec<u8>, OracleError> {
        self.child.begin();
        let next = self.child.reserve(map.key_size as usize)?;
        let key_address = match key {
            Some(key) => self.child.put(key)?,
            None => 0,
        };
        let mut attr = Attr::new()
            .u32(elem::FD, map.fd as u32)
            .u64(elem::KEY, key_address)
            .u64(elem::VALUE, next);
        self.child.call(Command::MapNextKey, &mut attr)?;
        Ok(self.child.get(next, map.key_size as usize))
    }

    /// Rewritten instructions, machine code, functions and lines of a loaded program.
    ///
    /// # Errors
    /// Those of `BPF_OBJ_GET_INFO_BY_FD`.
    pub fn info(&mut self, program: ProgHandle) -> Result<ProgInfo, OracleError> {
        let sizes = self.info_with(program, [0; info::PROG_INFO_BYTES])?;
        let number =
            |at: usize| u32::from_ne_bytes(sizes[at..at + 4].try_into().expect("four bytes"));
        let (jited_len, xlated_len) = (number(info::JITED_LEN), number(info::XLATED_LEN));
        let (functions, lines) = (number(info::FUNC_INFO_CNT), number(info::LINE_INFO_CNT));
        let mut request = [0u8; info::PROG_INFO_BYTES];
        let mut ask = |pointer: usize, count: usize, many: u32, size: usize| {
            let buffer = self.child.reserve(many as usize * size)?;
            request[count..][..4].copy_from_slice(&many.to_ne_bytes());
            request[pointer..][..8].copy_from_slice(&buffer.to_ne_bytes());
            Ok::<_, OracleError>(buffer)
        };
        let xlated = ask(info::XLATED_INSNS, info::XLATED_LEN, xlated_len, 1)?;
        let jited = ask(info::JITED_INSNS, info::JITED_LEN, jited_len, 1)?;
        let functions_at = ask(
            info::FUNC_INFO,
            info::FUNC_INFO_CNT,
            functions,
            FUNCTION_RECORD,
        )?;
        let lines_at = ask(info::LINE_INFO, info::LINE_INFO_CNT, lines, LINE_RECORD)?;
        let sizes = [
            (info::FUNC_INFO_SIZE, FUNCTION_RECORD),
            (info::LINE_INFO_SIZE, LINE_RECORD),
        ];
        for (at, size) in sizes {
            request[at..][..4].copy_from_slice(&(size as u32).to_ne_bytes());
        }
        self.info_call(program, request)?;
        let words = |at: u64, count: u32, size: usize| {
            let bytes = self.child.get(at, count as usize * size);
            let word = |w: &[u8; 4]| u32::from_ne_bytes(*w);
            bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(word)
                .collect::<Vec<u32>>()
        };
        let slots = self.child.get(xlated, xlated_len as usize);
        let (slots, _) = slots.as_chunks::<8>();
        let functions = words(functions_at, functions, FUNCTION_RECORD);
        let lines = words(lines_at, lines, LINE_RECORD);
        Ok(ProgInfo {
            xlated: slots.iter().copied().map(Insn::from_le_bytes).collect(),
            jited: self.child.get(jited, jited_len as usize),
            functions: functions
                .as_chunks::<2>()
                .0
                .iter()
                .map(|&[insn, type_id]| (insn, type_id))
                .collect(),
            lines: lines.chunks(LINE_RECORD / 4).map(|line| line[0]).collect(),
        })
    }

    fn info_with(
        &mut self,
        program: ProgHandle,
        request: [u8; info::PROG_INFO_BYTES],
    ) -> Result<Vec<u8>, OracleError> {
        self.child.begin();
        self.info_call(program, request)
    }

    fn info_call(
        &mut self,
        program: ProgHandle,
        request: [u8; info::PROG_INFO_BYTES],
    ) -> Result<Vec<u8>, OracleError> {
        let address = self.child.put(&request)?;
        let mut attr = Attr::new()
            .u32(info::FD, program.fd as u32)
            .u32(info::LEN, info::PROG_INFO_BYTES as u32)
            .u64(info::INFO, address);
        self.child.call(Command::InfoByFd, &mut attr)?;
        Ok(self.child.get(address, info::PROG_INFO_BYTES))
    }

    /// Unloads a program.
    pub fn unload(&mut self, program: ProgHandle) {
        self.child.close(program.fd);
    }

    /// Lets go of BTF.
    pub fn drop_btf(&mut self, btf: BtfHandle) {
        self.child.close(btf.fd);
    }

    /// Lets go of a map.
    pub fn drop_map(&mut self, map: MapHandle) {
        self.child.close(map.fd);
    }
}

/// Entries of a map: at least one, save for storage, which belongs to its objects and has
/// no number; ring buffers are powers of two of at least a page.
fn max_entries(def: &MapDef) -> u32 {
    use MapType::*;
    match def.map_type {
        SkStorage | TaskStorage | InodeStorage | CgrpStorage | CgroupStorage
        | PercpuCgroupStorage => 0,
        Ringbuf | UserRingbuf => {
            let bytes = def.max_entries.max(PAGE);
            bytes.checked_next_power_of_two().unwrap_or(bytes)
        }
        _ => def.max_entries.max(1),
    }
}

/// `map_extra`: an arena whose address is left open gets the one that libbpf's users choose
/// on x86-64, as nothing maps it here.
fn map_extra(def: &MapDef) -> u64 {
    match (def.map_type, def.extra) {
        (MapType::Arena, 0) => ARENA_ADDRESS,
        (_, extra) => extra,
    }
}

/// Number of possible CPUs, which is what per-CPU values are sized by.
fn possible_cpus() -> usize {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text
        .trim()
        .rsplit([',', '-'])
        .next()
        .and_then(|cpu| cpu.parse::<usize>().ok());
    last.map_or(1, |last| last + 1)
}
