//! Accepted programs leave the same behind on every engine: interpreter and compiler, with
//! checks and verified without.
#![no_main]

use std::sync::LazyLock;

use bpfkit_isa::{Syntax, disasm};
use bpfkit_jit::{CodeMemory, Features, Jit, Rules};
use bpfkit_runtime::{Engine, Interpreter};
use libfuzzer_sys::fuzz_target;

mod made;

use made::accepted::{Contents, accepted};
use made::engines::compare;

static ENGINES: LazyLock<[(&str, Box<dyn Engine>); 4]> = LazyLock::new(|| {
    let plain = Jit::new(CodeMemory::new(), Rules::NONE, Features::ALL);
    [
        ("interpreter", Box::<Interpreter>::default()),
        ("plain interpreter", Box::new(Interpreter::looping())),
        ("compiler", Box::<Jit>::default()),
        ("compiler without rules", Box::new(plain)),
    ]
});

fuzz_target!(|data: &[u8]| {
    let mut bytes = made::Bytes(data);
    let program = accepted(&mut bytes);
    let contents = Contents::of(&mut bytes);
    if let Err(wrong) = compare(&*ENGINES, &program, &contents) {
        let listing = disasm::listing(&program.insns, Syntax::Kernel, &disasm::NoSymbols);
        panic!("{wrong}\n{listing}");
    }
});
