//! What objects declare.

mod common;

use bpfkit_object::sections::{F_SLEEPABLE, F_XDP_HAS_FRAGS, SECTIONS, SectionDef};
use bpfkit_object::{ErrorKind, MapOrigin, Object, SlotValue};
use bpfkit_spec::{AttachType, MapType, ProgType};
use common::{bytes, open};

#[test]
fn programs_stand_in_order_of_section_and_place() {
    for name in ["functions", "functions.eb"] {
        let object = open(name);
        let programs: Vec<_> = object
            .programs
            .iter()
            .map(|p| {
                (
                    p.name.as_str(),
                    p.section.as_str(),
                    p.prog_type,
                    p.own_insns,
                    p.autoload,
                )
            })
            .collect();
        assert_eq!(
            programs,
            [
                ("first", "tc", ProgType::SchedCls, 8, true),
                ("second", "tc", ProgType::SchedCls, 13, true),
                ("loops", "xdp.frags", ProgType::Xdp, 18, false),
                ("throws", "syscall", ProgType::Syscall, 3, true),
                ("unknown", "unknown/name", ProgType::Unspec, 2, true),
                ("probe", "kprobe.multi/vfs_*", ProgType::Kprobe, 2, true),
            ]
        );
        assert_eq!(object.programs[2].flags, F_XDP_HAS_FRAGS);
        assert_eq!(object.programs[3].flags, F_SLEEPABLE);
        assert_eq!(object.programs[4].attach_target, None);
        assert_eq!(object.programs[5].attach_target.as_deref(), Some("vfs_*"));
        assert_eq!(object.programs[5].attach_type, AttachType::TraceKprobeMulti);
        assert_eq!(object.license, "Dual MIT/GPL");
        assert_eq!(object.kernel_version, 0x06_01_02);
        assert_eq!(object.big_endian, name.ends_with("eb"));
    }
}

#[test]
fn static_functions_beside_programs_are_subprograms() {
    let object = open("beside");
    let names: Vec<_> = object.programs.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["entry"]);
}

#[test]
fn section_names_match_as_libbpf_matches_them() {
    let find = |name| SectionDef::find(name).map(|d| (d.prog_type, d.attach_type, d.flags));
    let none = AttachType::CgroupInetIngress;
    assert_eq!(find("kprobe"), Some((ProgType::Kprobe, none, 0)));
    assert_eq!(find("kprobe/x"), Some((ProgType::Kprobe, none, 0)));
    assert_eq!(find("kprobes"), None);
    assert_eq!(
        find("tc/ingress"),
        Some((ProgType::SchedCls, AttachType::TcxIngress, 0))
    );
    assert_eq!(find("tc/other"), None);
    assert_eq!(find("xdp"), Some((ProgType::Xdp, AttachType::Xdp, 0)));
    assert_eq!(find("xdp/x"), None);
    assert_eq!(
        find("xdp.frags/cpumap"),
        Some((ProgType::Xdp, AttachType::XdpCpumap, F_XDP_HAS_FRAGS))
    );
    assert_eq!(
        find("uprobe.session.s//bin/sh:main"),
        Some((
            ProgType::Kprobe,
            AttachType::TraceUprobeSession,
            F_SLEEPABLE
        ))
    );
    assert_eq!(
        find("lsm_cgroup/x"),
        Some((ProgType::Lsm, AttachType::LsmCgroup, 0))
    );
    assert_eq!(
        find("iter.s/task"),
        Some((ProgType::Tracing, AttachType::TraceIter, F_SLEEPABLE))
    );
    assert_eq!(find(""), None);
    // No row hides behind an earlier one.
    for def in SECTIONS {
        assert_eq!(SectionDef::find(def.name), Some(def));
    }
    assert_eq!(SECTIONS.len(), 105);
}

#[test]
fn maps_of_btf() {
    for name in ["maps", "maps.eb"] {
        let object = open(name);
        let map = |name: &str| &object.maps[object.map_index(name).expect("map")];
        let names: Vec<_> = object.maps.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "jumps", "inner_b", "inner_a", "outer", "typed", "sized", "ring", "bloom", "arena"
            ]
        );
        let typed = map("typed");
        assert_eq!(
            (typed.map_type, typed.key_size, typed.value_size),
            (MapType::Hash, 8, 8)
        );
        assert_eq!(
            (typed.max_entries, typed.flags, typed.numa_node),
            (77, 1, 3)
        );
        assert!(typed.pin_by_name && typed.origin == MapOrigin::Btf);
        let btf = object.btf.as_ref().expect("BTF");
        assert_eq!(
            btf.type_by_id(typed.key_type_id).map(|t| t.name()),
            Some("key")
        );
        assert_eq!((map("sized").key_size, map("sized").value_size), (4, 24));
        assert_eq!(map("ring").max_entries, 8192);
        assert_eq!(map("bloom").extra, 4);
        assert_eq!(map("arena").extra, 1 << 44);
        assert_eq!(
            map("jumps").slots,
            [
                (1, SlotValue::Program("entry".into())),
                (3, SlotValue::Program("other_entry".into()))
            ]
        );
        let outer = map("outer");
        let inner = outer.inner.as_ref().expect("inner map");
        assert_eq!(
            (inner.map_type, inner.max_entries, inner.value_size),
            (MapType::Array, 2, 8)
        );
        assert_eq!(inner.name, "outer.inner");
        let index = |name| object.map_index(name).expect("map") as u32;
        assert_eq!(
            outer.slots,
            [
                (0, SlotValue::Map(index("inner_b"))),
                (5, SlotValue::Map(index("inner_a")))
            ]
        );
    }
}

#[test]
fn variables_of_the_arena() {
    let mut object = open("maps");
    let arena = object.map_index("arena").expect("arena");
    let globals: Vec<_> = object
        .globals
        .iter()
        .map(|g| (g.name.as_str(), g.map as usize, g.range.clone()))
        .collect();
    assert_eq!(
        globals,
        [("also_in_arena", arena, 8..16), ("in_arena", arena, 0..8)]
    );
    object.set_global_int("also_in_arena", 7).expect("set");
    let MapOrigin::Arena { bytes } = &object.maps[arena].origin else {
        panic!("no arena")
    };
    assert_eq!(bytes[..8], 0x1122_3344_5566_7788_u64.to_le_bytes());
    assert_eq!(bytes[8..], 7u64.to_le_bytes());
}

#[test]
fn data_sections_are_maps_of_their_variables() {
    const RDONLY_PROG: u32 = 1 << 7;
    const MMAPABLE: u32 = 1 << 10;
    for name in ["globals", "globals.eb"] {
        let object = open(name);
        let maps: Vec<_> = object
            .maps
            .iter()
            .map(|m| (m.name.as_str(), m.value_size, m.flags))
            .collect();
        assert_eq!(
            maps,
            [
                ("globals.rodata", 7, RDONLY_PROG | MMAPABLE),
                ("globals.data", 16, MMAPABLE),
                (".data.own", 4, MMAPABLE),
                (".data.quiet", 4, 0),
                (".rodata.own", 4, RDONLY_PROG | MMAPABLE),
                ("globals.bss", 2, MMAPABLE),
                (".bss.own", 8, MMAPABLE),
                ("globals.kconfig", 25, RDONLY_PROG | MMAPABLE),
            ],
            "{name}"
        );
        let btf = object.btf.as_ref().expect("BTF");
        let global = |name: &str| {
            let g = object
                .globals
                .iter()
                .find(|g| g.name == name)
                .expect("variable");
            let t = btf.resolve(g.type_id).and_then(|t| btf.size_of(t.id()));
            (
                object.maps[g.map as usize].name.as_str(),
                g.range.clone(),
                t,
            )
        };
        assert_eq!(global("limit"), ("globals.rodata", 0..4, Some(4)));
        assert_eq!(global("table"), ("globals.rodata", 4..7, Some(3)));
        assert_eq!(global("counter"), ("globals.data", 0..8, Some(8)));
        assert_eq!(global("hidden_global"), ("globals.data", 8..12, Some(4)));
        assert_eq!(global("own_constant"), (".rodata.own", 0..4, Some(4)));
        assert_eq!(global("CONFIG_NUMBER"), ("globals.kconfig", 0..8, Some(8)));
        // What the compiler leaves open is filled in.
        let data = btf
            .by_name(".data", bpfkit_btf::Kind::Datasec)
            .expect("DATASEC");
        assert_eq!(data.size(), Some(16));
        let offsets: Vec<_> = data.variables().map(|v| v.offset).collect();
        assert_eq!(offsets, [0, 8, 12]);
    }
}

#[test]
fn variables_are_set_in_the_objects_byte_order() {
    for (name, bytes) in [
        ("globals", 77u32.to_le_bytes()),
        ("globals.eb", 77u32.to_be_bytes()),
    ] {
        let mut object = open(name);
        object.set_global_int("limit", 77).expect("set");
        let MapOrigin::Data { bytes: data, .. } = &object.maps[0].origin else {
            panic!("no data")
        };
        assert_eq!(data[..4], bytes);
        for (variable, value) in [
            ("limit", 1 << 32),
            ("table", 1),
            ("absent", 0),
            ("CONFIG_NUMBER", 1),
        ] {
            let e = object.set_global_int(variable, value).expect_err(variable);
            assert_eq!(e.kind(), ErrorKind::NotFound);
        }
        assert!(object.set_global("table", &[1, 2, 3, 4]).is_err());
        assert!(object.set_global("table", &[1, 2]).is_ok());
    }
}

#[test]
fn legacy_maps() {
    let object = open("legacy");
    let btf = object.btf.as_ref().expect("BTF");
    let [counters, outer] = object.maps.as_slice() else {
        panic!("two maps")
    };
    assert_eq!(
        (counters.name.as_str(), counters.map_type),
        ("counters", MapType::Hash)
    );
    assert_eq!(
        (counters.key_size, counters.value_size, counters.max_entries),
        (4, 8, 100)
    );
    assert!(counters.pin_by_name && counters.origin == MapOrigin::Legacy);
    assert_eq!(btf.size_of(counters.value_type_id), Some(8));
    let inner = outer.inner.as_ref().expect("inner map");
    assert_eq!((inner.name.as_str(), inner.max_entries), ("counters", 100));
}

#[test]
fn struct_ops_maps() {
    let object = open("struct_ops");
    let maps: Vec<_> = object
        .maps
        .iter()
        .map(|m| (m.name.as_str(), m.flags, m.autocreate))
        .collect();
    assert_eq!(
        maps,
        [
            ("plain", 0, true),
            ("linked", 1 << 13, true),
            ("optional", 0, false)
        ]
    );
    let MapOrigin::StructOps {
        kernel_type,
        bytes,
        programs,
    } = &object.maps[1].origin
    else {
        panic!("no struct_ops")
    };
    assert_eq!(kernel_type, "ops___mine");
    assert_eq!(
        programs,
        &[(0, "ops_start".to_owned()), (8, "ops_stop".to_owned())]
    );
    assert_eq!(&bytes[20..26], b"linked");
}

#[test]
fn files_that_are_no_bpf_objects_are_told_apart() {
    let good = bytes("functions");
    let with = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = good.clone();
        change(&mut bytes);
        let e = Object::open("dir/x.o", &bytes).expect_err("broken");
        (e.kind(), e.to_string())
    };
    let cases = [
        (
            with(&|b| b.clear()),
            ErrorKind::NotElf,
            "elf: 'dir/x.o' is not a proper ELF object (file offset 0x0)",
        ),
        (
            with(&|b| b.truncate(40)),
            ErrorKind::NotElf,
            "elf: 'dir/x.o' is cut: the header takes 64 bytes, 40 are there (file offset 0x0)",
        ),
        (
            with(&|b| b[0] = 0),
            ErrorKind::NotElf,
            "elf: 'dir/x.o' is not a proper ELF object (file offset 0x0)",
        ),
        (
            with(&|b| b[4] = 1),
            ErrorKind::NotBpf,
            "elf: 'dir/x.o' is not a 64-bit ELF object (file offset 0x4)",
        ),
        (
            with(&|b| b[5] = 3),
            ErrorKind::NotBpf,
            "elf: 'dir/x.o' has unknown byte order (file offset 0x5)",
        ),
        (
            with(&|b| b[16] = 2),
            ErrorKind::NotBpf,
            "elf: dir/x.o is not a valid eBPF object file: type 2 is not ET_REL (file offset 0x10)",
        ),
        (
            with(&|b| b[18] = 62),
            ErrorKind::NotBpf,
            "elf: dir/x.o is not a valid eBPF object file: machine 62 is not BPF (file offset 0x12)",
        ),
    ];
    for ((kind, message), expected_kind, expected) in cases {
        assert_eq!((kind, message.as_str()), (expected_kind, expected));
    }
}

#[test]
fn errors_name_section_and_offset() {
    let mut object = bytes("functions");
    // The size of the first function symbol, `middle` in .text, grows out of the section.
    let symtab = {
        let at = u64::from_le_bytes(object[40..48].try_into().expect("8 bytes")) as usize;
        let count = u16::from_le_bytes(object[60..62].try_into().expect("2 bytes")) as usize;
        let header = (0..count)
            .map(|i| at + 64 * i)
            .find(|&h| object[h + 4] == 2)
            .expect("symtab");
        u64::from_le_bytes(
            object[header + 24..header + 32]
                .try_into()
                .expect("8 bytes"),
        ) as usize
    };
    let symbol = (0..40)
        .map(|i| symtab + 24 * i)
        .find(|&s| object[s + 4] & 15 == 2)
        .expect("func");
    object[symbol + 16..symbol + 24].copy_from_slice(&0x10_0000_u64.to_le_bytes());
    let e = Object::open("x.o", &object).expect_err("broken");
    assert_eq!(e.kind(), ErrorKind::Malformed);
    assert_eq!(
        e.message(),
        format!(
            "sec '.text': program at offset {} crosses section boundary",
            e.offset().expect("offset")
        )
    );
    assert_eq!(e.section(), Some(".text"));
}
