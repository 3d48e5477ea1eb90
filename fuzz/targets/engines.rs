//! Accepted programs leave the same behind on every engine: interpreter and compiler, with
//! checks and verified without.
#![no_main]

use bpfkit_isa::{Syntax, disasm};
use bpfkit_jit::{CodeMemory, Features, Jit, Rules};
use bpfkit_runtime::Interpreter;
use libfuzzer_sys::fuzz_target;

mod made;

use made::accepted::{Contents, accepted};
use made::engines::{Make, compare};

const ENGINES: [(&str, Make); 4] = [
    ("interpreter", || Box::<Interpreter>::default()),
    ("plain interpreter", || Box::new(Interpreter::looping())),
    ("compiler", || Box::<Jit>::default()),
    ("compiler without rules", || {
        Box::new(Jit::new(CodeMemory::new(), Rules::NONE, Features::ALL))
    }),
];

fuzz_target!(|data: &[u8]| {
    let mut bytes = made::Bytes(data);
    let program = accepted(&mut bytes);
    let contents = Contents::of(&mut bytes);
    if let Err(wrong) = compare(&ENGINES, &program, &contents) {
        let listing = disasm::listing(&program.insns, Syntax::Kernel, &disasm::NoSymbols);
        panic!("{wrong}\n{listing}");
    }
});
