//! `.BTF.ext` by ELF section: functions, source lines and CO-RE records of each, in order
//! of the instruction.

use bpfkit_btf::Btf;
use bpfkit_btf::ext::{BtfExt, CoreRelo, FuncInfo, LineInfo, Record, Table};
use rustc_hash::FxHashMap;

use crate::elf::Elf;
use crate::functions::Function;

/// The records of `.BTF.ext`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExtInfo {
    functions: FxHashMap<usize, Vec<FuncInfo>>,
    lines: FxHashMap<usize, Vec<LineInfo>>,
    /// With the number that each has in its section, for messages.
    core: FxHashMap<usize, Vec<(usize, CoreRelo)>>,
}

impl ExtInfo {
    /// Sorts the records by ELF section.
    pub fn new(elf: &Elf, btf: &Btf, ext: &BtfExt) -> Self {
        let mut by_name: FxHashMap<&str, usize> = FxHashMap::default();
        for (index, section) in elf.sections.iter().enumerate().skip(1) {
            by_name.entry(&section.name).or_insert(index);
        }
        let mut info = Self {
            functions: first_listing(&by_name, btf, &ext.func_info),
            lines: first_listing(&by_name, btf, &ext.line_info),
            core: FxHashMap::default(),
        };
        for section in &ext.core_relo.sections {
            let name = btf.string(section.name_off).unwrap_or("");
            let Some(&index) = by_name.get(name) else {
                continue;
            };
            let records = section.records.iter().copied().enumerate();
            info.core.entry(index).or_default().extend(records);
        }
        for records in info.core.values_mut() {
            records.sort_by_key(|(_, r)| r.insn_off);
        }
        info
    }

    /// The function records of a function.
    pub fn functions(&self, function: &Function) -> &[FuncInfo] {
        within(&self.functions, function, |r| r.insn_off)
    }

    /// The source lines of a function.
    pub fn lines(&self, function: &Function) -> &[LineInfo] {
        within(&self.lines, function, |r| r.insn_off)
    }

    /// Whether any function has CO-RE records.
    pub fn has_core(&self) -> bool {
        !self.core.is_empty()
    }

    /// The CO-RE records of a function, with their numbers.
    pub fn core(&self, function: &Function) -> &[(usize, CoreRelo)] {
        within(&self.core, function, |(_, r)| r.insn_off)
    }
}

/// Records by ELF section; where a section is listed twice, the first counts.
fn first_listing<R: Record>(
    by_name: &FxHashMap<&str, usize>,
    btf: &Btf,
    table: &Table<R>,
) -> FxHashMap<usize, Vec<R>> {
    let mut sorted: FxHashMap<usize, Vec<R>> = FxHashMap::default();
    for section in &table.sections {
        let name = btf.string(section.name_off).unwrap_or("");
        let Some(&index) = by_name.get(name) else {
            continue;
        };
        sorted.entry(index).or_insert_with(|| {
            let mut records = section.records.clone();
            records.sort_by_key(Record::insn_off);
            records
        });
    }
    sorted
}

/// The records inside a function.
fn within<'a, R>(
    records: &'a FxHashMap<usize, Vec<R>>,
    function: &Function,
    offset: impl Fn(&R) -> u32,
) -> &'a [R] {
    let Some(records) = records.get(&function.section) else {
        return &[];
    };
    let bytes = function.bytes();
    let start = records.partition_point(|r| (offset(r) as usize) < bytes.start);
    let end = records.partition_point(|r| (offset(r) as usize) < bytes.end);
    records.get(start..end).unwrap_or(&[])
}
