//! A `.BTF` section and, after it, a `.BTF.ext` section: read both, ask everything, and
//! relocate the object against its own types.
#![no_main]

use bpfkit_btf::core::{RawInsn, Relocator};
use bpfkit_btf::ext::BtfExt;
use bpfkit_btf::{Btf, BtfBuilder, dump};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(btf) = Btf::parse(data) else { return };
    ask(&btf);
    let own = btf.to_bytes();
    assert_eq!(Btf::parse(&own).map(|b| b.to_bytes()).as_ref(), Ok(&own));
    assert!(BtfBuilder::from_btf(&btf).build().is_ok());
    // As the header says: 24 bytes or more, then types and strings.
    let end = |header: usize, start: usize| word(data, header).wrapping_add(word(data, start));
    let rest = (word(data, 4) as usize).saturating_add(end(16, 20) as usize);
    let Some(Ok(ext)) = data.get(rest..).map(BtfExt::parse) else {
        return;
    };
    // A section without records is refused, so there is nothing to read back then.
    if !ext.core_relo.is_empty() {
        let again = BtfExt::parse(&ext.to_bytes()).map(|e| e.core_relo);
        assert_eq!(again.as_ref(), Ok(&ext.core_relo));
    }
    relocate(&btf, &ext);
});

fn word(data: &[u8], at: usize) -> u32 {
    data.get(at..)
        .and_then(|d| d.first_chunk())
        .map_or(0, |b| u32::from_le_bytes(*b))
}

fn ask(btf: &Btf) {
    for t in btf.own_types().take(100) {
        let id = t.id();
        btf.size_of(id);
        btf.align_of(id);
        btf.pointer_tags(id);
        btf.decl_tags(id).for_each(drop);
        btf.walk(id, id % 64).take(100).for_each(drop);
        btf.by_name(t.name(), t.kind());
        t.members().for_each(|m| drop(m.name().to_owned()));
        t.params().for_each(|p| drop(p.name().to_owned()));
        t.enum_values().for_each(|v| drop(v.value().to_string()));
        if id.is_multiple_of(16) {
            let _ = dump::c_declaration(btf, id, "x");
        }
    }
    dump::raw(btf);
    let _ = dump::c_file(btf);
}

fn relocate(btf: &Btf, ext: &BtfExt) {
    let mut relocator = Relocator::new(btf, Some(btf), Vec::new());
    for relo in ext.core_relo.sections.iter().flat_map(|s| &s.records) {
        let Ok(found) = relocator.resolve(relo) else {
            continue;
        };
        let _ = relocator.describe(relo);
        for code in [0x18, 0x61, 0xb7] {
            let imm = found.original as i32;
            let insn = RawInsn {
                code,
                off: imm as i16,
                imm,
                ..RawInsn::default()
            };
            let _ = found.patch(0, insn, Some(RawInsn::default()));
        }
    }
}
