//! What a program attaches to in the kernel's BTF.

use std::sync::Arc;

use bpfkit_btf::{Btf, Kind};
use bpfkit_spec::{AttachType, ProgType};

use crate::error::{ErrorKind, ObjectError};
use crate::model::{BtfAttach, ProgramDecl};
use crate::sections::SectionDef;
use crate::target::Target;

/// Longest name, with its prefix and a NUL, that libbpf looks up.
const NAME_SIZE: usize = 128;

/// Finds the attach target that the section name gives. struct_ops programs have theirs
/// from the maps that name them.
pub(crate) fn find(
    program: &ProgramDecl,
    target: &Target<'_>,
) -> Result<Option<BtfAttach>, ObjectError> {
    let wanted = SectionDef::find(&program.section).is_some_and(|def| def.attach_btf);
    // A replacement attaches to a program, which is chosen when it is loaded.
    if !wanted || program.prog_type == ProgType::Ext {
        return Ok(None);
    }
    let Some(kernel) = target.kernel_btf.get() else {
        return Ok(None);
    };
    let fail = |message| Err(ObjectError::new(ErrorKind::Attach, message));
    let name = &program.name;
    let Some(attach) = &program.attach_target else {
        return fail(format!(
            "prog '{name}': no BTF-based attach target is specified, use \
             bpf_program__set_attach_target()"
        ));
    };
    let (module, function) = match attach.split_once(':') {
        Some((module, function)) => (Some(module), function),
        None => (None, attach.as_str()),
    };
    let (prefix, kind) = prefix(program.attach_type);
    let full = format!("{prefix}{function}");
    let not_found = |errno: &str| {
        fail(format!(
            "prog '{name}': failed to find kernel BTF type ID of '{attach}': {errno}"
        ))
    };
    if full.len() >= NAME_SIZE {
        return not_found("-ENAMETOOLONG");
    }
    // libbpf compares module names up to the length given.
    let here = module.is_none_or(|module| "vmlinux".starts_with(module));
    if here && let Some(t) = kernel.by_name(&full, kind) {
        return Ok(Some(BtfAttach {
            type_id: t.id(),
            module: None,
            member: None,
        }));
    }
    for (i, other) in target.modules.iter().enumerate() {
        if module.is_some_and(|module| !other.name.starts_with(module)) {
            continue;
        }
        let btf: &Btf = Arc::as_ref(&other.btf);
        if let Some(t) = btf.by_name(&full, kind) {
            let module = u32::try_from(i).ok();
            return Ok(Some(BtfAttach {
                type_id: t.id(),
                module,
                member: None,
            }));
        }
    }
    not_found("-ESRCH")
}

/// What the kernel puts before the name in its BTF, and the kind that it has there.
const fn prefix(attach_type: AttachType) -> (&'static str, Kind) {
    match attach_type {
        AttachType::TraceRawTp => ("btf_trace_", Kind::Typedef),
        AttachType::LsmMac | AttachType::LsmCgroup => ("bpf_lsm_", Kind::Func),
        AttachType::TraceIter => ("bpf_iter_", Kind::Func),
        _ => ("", Kind::Func),
    }
}
