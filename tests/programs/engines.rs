//! Runs a program on several engines and compares what it leaves behind.

use std::sync::Arc;

use bpfkit_object::Program;
use bpfkit_runtime::context::Input;
use bpfkit_runtime::{Code, Engine, LoadOptions, MapOptions, MapSet, Vm};
use bpfkit_verifier::Environment;

use super::accepted::{Contents, maps};

/// Makes an engine, anew for every program that it loads.
pub type Make = fn() -> Box<dyn Engine>;

/// What a run left behind: the result, the fault, the maps and the packet.
#[derive(PartialEq, Debug)]
pub struct Left {
    ret: u64,
    fault: Option<String>,
    maps: Vec<(Vec<u8>, Vec<u8>)>,
    packet: Vec<u8>,
}

/// Runs a program with checks, or verified and without them; `None` if it is refused.
fn run(
    engine: &dyn Engine,
    program: &Program,
    verified: bool,
    contents: &Contents,
) -> Option<Left> {
    let set = MapSet::new(&maps(), &MapOptions::default()).expect("the maps");
    contents.put(&set);
    let code = match verified {
        true => {
            let environment = Environment {
                facts: true,
                ..Environment::new(None)
            };
            Code::verify(program, &set, &environment).ok()?
        }
        false => Code::Unverified(Arc::new(program.clone())),
    };
    let exec = engine
        .load(code, &set, &LoadOptions::default())
        .expect("it loads");
    let mut input = Input::packet(program.decl.prog_type, &contents.packet).expect("a packet");
    let outcome = exec.run(&mut Vm::default(), &mut input);
    let mut packet = Vec::new();
    input.copy_packet(&mut packet);
    let mut entries = Vec::new();
    // The ring buffer has none.
    for map in set.iter().take(2) {
        let mut key = None;
        while let Ok(next) = map.next_key(key.as_deref()) {
            entries.push((next.clone(), map.read(&next).expect("what has a key")));
            key = Some(next);
        }
    }
    entries.sort();
    Some(Left {
        ret: outcome.ret,
        fault: outcome.fault.map(|fault| fault.to_string()),
        maps: entries,
        packet,
    })
}

/// Runs a program on every engine with checks and, verified, without; the first engine with
/// checks is what the others must agree with. Whether the program was accepted; the error says
/// who disagreed.
pub fn compare(
    engines: &[(&str, Make)],
    program: &Program,
    contents: &Contents,
) -> Result<bool, String> {
    let mut expected: Option<Left> = None;
    for verified in [true, false] {
        for (name, make) in engines {
            let Some(left) = run(&*make(), program, verified, contents) else {
                return Ok(false);
            };
            let way = if verified { "verified" } else { "checked" };
            if let Some(fault) = &left.fault {
                return Err(format!("{name}, {way}: {fault}"));
            }
            match &expected {
                None => expected = Some(left),
                Some(expected) if left == *expected => {}
                Some(expected) => {
                    return Err(format!("{name}, {way}: {left:x?}, not {expected:x?}"));
                }
            }
        }
    }
    Ok(true)
}
