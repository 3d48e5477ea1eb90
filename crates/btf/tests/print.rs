//! Types as C.

mod common;

use bpfkit_btf::{Btf, BtfBuilder, IntEncoding, Kind, MemberDef, dump};

const OBJECT: &[u8] = include_bytes!("../testdata/types.bpf.o");

/// A file that is removed in the end.
struct Temporary(std::path::PathBuf);

impl Temporary {
    fn new(name: &str, contents: &[u8]) -> Self {
        let file = std::env::temp_dir().join(format!("bpfkit-btf-{}-{name}", std::process::id()));
        std::fs::write(&file, contents).expect("there is a directory for temporary files");
        Self(file)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn m(name: &str, type_id: u32, bit_offset: u32) -> MemberDef<'_> {
    MemberDef::new(name, type_id, bit_offset)
}

#[test]
fn declarations_read_inside_out() {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::SIGNED);
    let constant = b.modifier(Kind::Const, int);
    let volatile = b.modifier(Kind::Volatile, constant);
    let pointer = b.ptr(volatile);
    let const_pointer = b.modifier(Kind::Const, pointer);
    let twice = b.ptr(const_pointer);
    let array = b.array(twice, int, 3);
    let grid = b.array(array, int, 2);
    let to_array = b.ptr(array);
    let none = b.func_proto(0, &[]);
    let call = b.ptr(none);
    let takes = b.func_proto(call, &[("x", int), ("", twice), ("", 0)]);
    let takes = b.ptr(takes);
    let calls = b.array(call, int, 4);
    let fwd = b.fwd("later", true);
    let tagged = b.type_tag("rcu", fwd);
    let tagged = b.ptr(tagged);
    let btf = b.build().expect("sound");
    let c = |id, name| dump::c_declaration(&btf, id, name).expect("has a C form");
    assert_eq!(c(0, ""), "void");
    assert_eq!(c(int, "x"), "int x");
    assert_eq!(c(int, ""), "int");
    assert_eq!(c(volatile, "x"), "const volatile int x");
    assert_eq!(c(pointer, "x"), "const volatile int *x");
    assert_eq!(c(const_pointer, "x"), "const volatile int * const x");
    assert_eq!(c(twice, "x"), "const volatile int * const *x");
    assert_eq!(c(array, "x"), "const volatile int * const *x[3]");
    assert_eq!(c(grid, "x"), "const volatile int * const *x[2][3]");
    assert_eq!(c(to_array, "x"), "const volatile int * const *(*x)[3]");
    assert_eq!(c(call, "x"), "void (*x)(void)");
    assert_eq!(c(call, ""), "void (*)(void)");
    assert_eq!(c(calls, "x"), "void (*x[4])(void)");
    assert_eq!(
        c(takes, "x"),
        "void (* (*x)(int x, const volatile int * const *, ...))(void)"
    );
    assert_eq!(
        c(tagged, "x"),
        "union later __attribute__((btf_type_tag(\"rcu\"))) *x"
    );
    assert_eq!(
        dump::c_declaration(&btf, 99, "x"),
        Err(dump::DumpError::NoType(99))
    );
}

#[test]
fn gaps_are_filled_so_that_the_layout_stays() {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::SIGNED);
    let long = b.int("long", 8, IntEncoding::SIGNED);
    let char_ = b.int("char", 1, IntEncoding::SIGNED);
    b.structure("natural", 16, &[m("i", int, 0), m("l", long, 64)]);
    b.structure("moved", 24, &[m("i", int, 0), m("l", long, 128)]);
    b.structure("late", 8, &[m("c", char_, 32)]);
    b.structure("packed", 5, &[m("c", char_, 0), m("i", int, 8)]);
    b.structure("opaque", 12, &[]);
    b.structure("empty", 0, &[]);
    b.structure(
        "bits",
        8,
        &[
            MemberDef::bitfield("a", int, 0, 3),
            MemberDef::bitfield("b", int, 8, 4),
            m("c", char_, 32),
        ],
    );
    let btf = b.build().expect("sound");
    let c = dump::c_types(&btf, 1..btf.type_count()).expect("has a C form");
    let expected = "\
struct natural {
	int i;
	long l;
};

struct moved {
	int i;
	long: 64;
	long l;
};

struct late {
	int: 32;
	char c;
	long: 0;
};

struct packed {
	char c;
	int i;
} __attribute__((packed));

struct opaque {
	long: 64;
	int: 32;
};

struct empty {};

struct bits {
	int a: 3;
	char: 5;
	int b: 4;
	int: 0;
	char c;
};

";
    assert_eq!(c, expected);
    // And bpftool prints the same.
    let file = Temporary::new("gaps", &btf.to_bytes());
    if let Some(theirs) = common::bpftool_dump(&file.0, "c") {
        assert!(theirs.contains(expected), "{theirs}");
    }
}

#[test]
fn equal_names_are_numbered() {
    let mut b = BtfBuilder::new();
    let int = b.int("int", 4, IntEncoding::SIGNED);
    b.structure("s", 4, &[m("a", int, 0)]);
    let second = b.structure("s", 4, &[m("b", int, 0)]);
    b.typedef("t", second);
    b.enumeration("e", 4, &[("A", 0), ("t", 1)]);
    b.enumeration("s", 4, &[("A", 0)]);
    let btf = b.build().expect("sound");
    let c = dump::c_types(&btf, 1..btf.type_count()).expect("has a C form");
    for line in [
        "struct s {",
        "struct s___2 {",
        "typedef struct s___2 t;",
        "enum s___3 {",
    ] {
        assert!(c.contains(line), "{line} in\n{c}");
    }
    assert!(c.contains("enum e {\n\tA = 0,\n\tt___2 = 1,\n};"), "{c}");
    assert!(c.contains("\tA___2 = 0,\n"), "{c}");
}

#[test]
fn circles_through_pointers_are_declared_before() {
    let mut b = BtfBuilder::new();
    let a = b.next_id();
    let pointer_b = b.next_id() + 1;
    b.structure("a", 8, &[m("b", pointer_b, 0)]);
    b.ptr(a + 2);
    b.structure("b", 8, &[m("a", a, 0)]);
    let btf = b.build().expect("sound");
    let c = dump::c_types(&btf, [a + 2]).expect("has a C form");
    assert_eq!(
        c,
        "struct b;\n\nstruct a {\n\tstruct b *b;\n};\n\nstruct b {\n\tstruct a a;\n};\n\n"
    );

    let mut b = BtfBuilder::new();
    b.structure("a", 8, &[m("a", 1, 0)]);
    let btf = b.build().expect("each id exists");
    assert_eq!(dump::c_types(&btf, [1]), Err(dump::DumpError::Cycle(1)));
}

#[test]
fn a_compiler_takes_the_file() {
    let elf = common::Elf::parse(OBJECT).expect("an object");
    let btf = Btf::parse(elf.section(".BTF").expect("types")).expect("sound");
    let c = dump::c_file(&btf).expect("has a C form");
    let file = Temporary::new("types.h", c.as_bytes());
    let clang = ["clang", "clang-19"].into_iter().find_map(|program| {
        std::process::Command::new(program)
            .args(["-target", "bpf", "-fsyntax-only", "-x", "c"])
            .arg(&file.0)
            .output()
            .ok()
    });
    match clang {
        Some(run) => {
            assert!(
                run.status.success(),
                "{c}\n{}",
                String::from_utf8_lossy(&run.stderr)
            );
        }
        None => println!("skipped: no clang"),
    }
}
