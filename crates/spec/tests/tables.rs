//! The tables against themselves.

use std::collections::BTreeSet;
use std::fmt::Debug;

use bpfkit_spec::context::{self, Kind};
use bpfkit_spec::helper::{self, ArgKind, Effects, HELPERS, RetKind};
use bpfkit_spec::kfunc::{self, Flags, KFUNCS};
use bpfkit_spec::raw_tp::RAW_TRACEPOINTS;
use bpfkit_spec::{
    AttachType, Caller, Capability, Feature, KernelVersion, MapType, ProgType, ProgTypes,
    TypeFlags, attach, map_rules,
};

fn assert_ascending<T: Ord + Debug>(items: impl IntoIterator<Item = T>) {
    let items: Vec<T> = items.into_iter().collect();
    for pair in items.windows(2) {
        assert!(
            pair[0] < pair[1],
            "{:?} stands before {:?}",
            pair[0],
            pair[1]
        );
    }
}

#[test]
fn numbers_and_names_round_trip() {
    macro_rules! check {
        ($($Enum:ident)*) => {$(
            for (index, &value) in $Enum::ALL.iter().enumerate() {
                assert_eq!(value as usize, index, "{value}");
                assert_eq!($Enum::from_u32(index as u32), Some(value));
                assert_eq!($Enum::from_name(value.name()), Some(value));
            }
            assert_eq!($Enum::from_u32($Enum::ALL.len() as u32), None);
        )*};
    }
    check!(ProgType AttachType MapType);
}

#[test]
fn helpers_stand_at_their_numbers() {
    for (index, helper) in HELPERS.iter().enumerate() {
        assert_eq!(helper.id as usize, index + 1, "{}", helper.name);
        assert_eq!(
            helper::by_id(helper.id as i32).map(|h| h.id),
            Some(helper.id)
        );
        assert_eq!(
            helper::by_name(&helper.full_name()).map(|h| h.id),
            Some(helper.id)
        );
        assert!(!helper.offers.is_empty(), "{}", helper.name);
    }
    assert!(helper::by_id(0).is_none() && helper::by_id(-1).is_none());
    let names: BTreeSet<&str> = HELPERS.iter().map(|helper| helper.name).collect();
    assert_eq!(names.len(), HELPERS.len());
}

#[test]
fn helpers_come_in_the_order_of_releases() {
    for pair in HELPERS.windows(2) {
        assert!(
            pair[0].since <= pair[1].since,
            "{} {}",
            pair[0].name,
            pair[1].name
        );
    }
}

#[test]
fn prototypes_make_sense() {
    for helper in &HELPERS {
        for offer in helper.offers {
            let name = helper.name;
            let args = &offer.proto.args[..offer.proto.arity()];
            assert!(
                offer.proto.args[args.len()..]
                    .iter()
                    .all(|a| a.kind == ArgKind::DontCare)
            );
            for (index, arg) in args.iter().enumerate() {
                let next = args.get(index + 1).map(|arg| arg.kind);
                let sized = matches!(next, Some(ArgKind::ConstSize | ArgKind::ConstSizeOrZero));
                let fixed = arg.flags.has(TypeFlags::MEM_FIXED_SIZE);
                assert_eq!(fixed, arg.size != 0, "{name}");
                if arg.kind == ArgKind::PtrToMem {
                    assert!(sized != fixed, "{name} argument {index}");
                } else {
                    assert!(!sized, "{name} argument {index}");
                }
                let uninit = arg.flags.has(TypeFlags::MEM_UNINIT);
                assert!(!uninit || arg.flags.has(TypeFlags::MEM_WRITE), "{name}");
                let both = TypeFlags::MEM_WRITE.or(TypeFlags::MEM_RDONLY);
                assert!(!arg.flags.has(both), "{name}");
            }
            let has_arg = |kind| args.iter().any(|arg| arg.kind == kind);
            let ret = offer.proto.ret;
            if ret.kind == RetKind::PtrToMapValue {
                assert!(has_arg(ArgKind::ConstMapPtr), "{name}");
            }
            let callback = Effects::SYNC_CALLBACK.or(Effects::ASYNC_CALLBACK);
            let calls_back = helper.effects.has(Effects::SYNC_CALLBACK)
                || helper.effects.has(Effects::ASYNC_CALLBACK);
            assert_eq!(calls_back, has_arg(ArgKind::PtrToFunc), "{name}");
            assert!(!helper.effects.has(callback), "{name}");
        }
    }
}

#[test]
fn no_offer_hides_behind_another() {
    for helper in &HELPERS {
        for (index, offer) in helper.offers.iter().enumerate() {
            let hidden = helper.offers[..index].iter().any(|earlier| {
                earlier.when == bpfkit_spec::When::Always
                    && earlier.since.is_none()
                    && earlier.capability <= offer.capability
                    && offer.types.less(earlier.types) == ProgTypes::NONE
            });
            assert!(!hidden, "{} offer {index}", helper.name);
        }
    }
}

#[test]
fn older_kernels_offer_less() {
    let socket_filter = Caller::new(ProgType::SocketFilter, AttachType::CgroupInetIngress);
    let old = Caller {
        kernel: KernelVersion(6, 12),
        ..socket_filter
    };
    let find_vma = helper::by_name("bpf_find_vma").expect("is a helper");
    assert!(find_vma.proto_for(&socket_filter).is_some());
    assert!(find_vma.proto_for(&old).is_none());
    let kprobe = Caller {
        kernel: KernelVersion(6, 12),
        ..Caller::new(ProgType::Kprobe, AttachType::CgroupInetIngress)
    };
    assert!(find_vma.proto_for(&kprobe).is_some());
}

#[test]
fn unprivileged_programs_get_little() {
    let unprivileged = Caller {
        capability: Capability::None,
        ..Caller::new(ProgType::SocketFilter, AttachType::CgroupInetIngress)
    };
    let may = |name| {
        let helper = helper::by_name(name).expect("is a helper");
        helper.proto_for(&unprivileged).is_some()
    };
    assert!(may("bpf_map_lookup_elem") && may("bpf_skb_load_bytes"));
    assert!(!may("bpf_trace_printk") && !may("bpf_spin_lock") && !may("bpf_probe_read_kernel"));
}

#[test]
fn contexts_hold_their_fields() {
    for &prog_type in ProgType::ALL {
        let layout = context::of(prog_type);
        let none = matches!(prog_type, ProgType::Unspec | ProgType::Ext);
        assert_eq!(layout.is_none(), none, "{prog_type}");
        let Some(layout) = layout else { continue };
        let mut offset = 0;
        for field in layout.fields {
            assert!(offset <= field.offset, "{prog_type} {}", field.name);
            offset = field.offset;
            assert!(field.offset + field.size <= layout.size, "{}", field.name);
            let pointer = field.kind != Kind::Scalar;
            assert!(!pointer || field.write.inside | field.write.at_start == 0);
        }
    }
}

#[test]
fn every_map_type_has_a_row() {
    for &map_type in MapType::ALL {
        let later = map_type.since() > KernelVersion::TARGET;
        let none = map_type == MapType::Unspec || later;
        assert_eq!(map_rules::of(map_type).is_none(), none, "{map_type}");
    }
    assert_ascending(map_rules::MAPS.iter().map(|rules| rules.map_type));
}

#[test]
fn map_rules_name_helpers_that_take_maps() {
    let of_maps = map_rules::MAPS.iter().filter_map(|rules| rules.helpers);
    let of_helpers = map_rules::HELPER_MAPS.iter().map(|(name, _)| name);
    for name in of_maps.flatten().chain(of_helpers) {
        let helper = helper::by_name(name).unwrap_or_else(|| panic!("{name}"));
        let by_record = matches!(
            *name,
            "ringbuf_submit_dynptr" | "ringbuf_discard_dynptr" | "kptr_xchg"
        );
        let takes_map = helper.offers.iter().any(|offer| {
            let args = offer.proto.args;
            args.iter().any(|arg| arg.kind == ArgKind::ConstMapPtr)
        });
        assert!(takes_map || by_record, "{name}");
    }
    assert!(
        map_rules::HELPER_MAPS
            .iter()
            .all(|(_, maps)| !maps.is_empty())
    );
}

#[test]
fn kfuncs_are_sorted_and_their_flags_agree() {
    assert_ascending(KFUNCS.iter().map(|kfunc| kfunc.name));
    for kfunc in KFUNCS {
        assert_eq!(kfunc::by_name(kfunc.name).map(|k| k.name), Some(kfunc.name));
        let iterator = Flags::ITER_NEW.or(Flags::ITER_NEXT).or(Flags::ITER_DESTROY);
        let part = kfunc.name.rsplit('_').next();
        if kfunc.flags.has(Flags::ITER_NEXT) {
            assert!(kfunc.flags.has(Flags::RET_NULL), "{}", kfunc.name);
        }
        let named =
            kfunc.name.starts_with("bpf_iter_") && matches!(part, Some("new" | "next" | "destroy"));
        assert_eq!(kfunc.flags.has_any(iterator), named, "{}", kfunc.name);
    }
}

#[test]
fn suffixes_are_told_apart() {
    for &(ending, suffix) in kfunc::SUFFIXES {
        assert_eq!(kfunc::suffix_of(&format!("x{ending}")), Some(suffix));
    }
    assert_eq!(kfunc::suffix_of("buffer"), None);
}

#[test]
fn lists_of_names_are_sorted() {
    for list in [
        attach::LSM_DISABLED,
        attach::LSM_SLEEPABLE,
        attach::LSM_UNTRUSTED,
        attach::LSM_BOOL,
        attach::LSM_SOCKOPT,
        attach::D_PATH_FUNCTIONS,
        attach::DENIED_FUNCTIONS,
        attach::NORETURN_FUNCTIONS,
        attach::NON_SLEEPABLE_ERROR_INJECTION,
        attach::ERROR_INJECTION,
        kfunc::FMOD_RET_FUNCTIONS,
    ] {
        assert_ascending(list);
    }
    assert_ascending(RAW_TRACEPOINTS.iter().map(|row| row.0));
    assert_ascending(bpfkit_spec::iter::TARGETS.iter().map(|target| target.name));
}

#[test]
fn functions_that_programs_may_replace() {
    assert!(attach::may_modify_return("__x64_sys_getpgid"));
    assert!(attach::may_modify_return("security_file_open"));
    assert!(!attach::may_modify_return("do_unlinkat"));
    assert!(attach::may_sleep_at("__x64_sys_getpgid"));
    for function in attach::NON_SLEEPABLE_ERROR_INJECTION {
        assert!(attach::is_error_injectable(function) && !attach::may_sleep_at(function));
    }
}

#[test]
fn features_come_in_the_order_of_releases() {
    for pair in Feature::ALL.windows(2) {
        assert!(pair[0].since() <= pair[1].since(), "{}", pair[1].name());
    }
    for &feature in Feature::ALL {
        assert_eq!(Feature::from_name(feature.name()), Some(feature));
    }
}
