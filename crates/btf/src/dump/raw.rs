//! One type a line, with a line for each item, as `bpftool btf dump … format raw`.

use std::fmt::{self, Write};

use crate::btf::Btf;
use crate::kind::Kind;
use crate::types::Type;

/// The lines of one type, without a newline at the end.
pub fn raw_type(t: Type<'_>) -> String {
    let mut out = String::new();
    write_type(&mut out, t);
    out
}

/// The lines of all types of a BTF, without those of its base.
pub fn raw(btf: &Btf) -> String {
    let mut out = String::new();
    for t in btf.own_types() {
        write_type(&mut out, t);
        out.push('\n');
    }
    out
}

fn write_type(out: &mut String, t: Type<'_>) {
    // Writing to a string does not fail.
    let _ = try_write(out, t);
}

/// The name at a string offset; bpftool goes by the offset, not by the text.
fn name_or_anon(name_off: u32, name: &str) -> &str {
    if name_off == 0 { "(anon)" } else { name }
}

fn try_write(out: &mut String, t: Type<'_>) -> fmt::Result {
    let name = name_or_anon(t.name_off(), t.name());
    write!(out, "[{}] {} '{name}'", t.id(), t.kind().upper_name())?;
    let size = t.size().unwrap_or(0);
    match t.kind() {
        Kind::Void => Ok(()),
        Kind::Int => match t.int() {
            Some(int) => write!(
                out,
                " size={size} bits_offset={} nr_bits={} encoding={}",
                int.bit_offset,
                int.bits,
                int.encoding.name()
            ),
            None => Ok(()),
        },
        Kind::Ptr
        | Kind::Const
        | Kind::Volatile
        | Kind::Restrict
        | Kind::Typedef
        | Kind::TypeTag => write!(out, " type_id={}", t.type_id()),
        Kind::Array => match t.array() {
            Some(a) => write!(
                out,
                " type_id={} index_type_id={} nr_elems={}",
                a.element, a.index, a.count
            ),
            None => Ok(()),
        },
        Kind::Struct | Kind::Union => {
            write!(out, " size={size} vlen={}", t.vlen())?;
            for m in t.members() {
                let name = name_or_anon(m.name_off, m.name());
                write!(
                    out,
                    "\n\t'{name}' type_id={} bits_offset={}",
                    m.type_id, m.bit_offset
                )?;
                if m.bitfield_size != 0 {
                    write!(out, " bitfield_size={}", m.bitfield_size)?;
                }
            }
            Ok(())
        }
        Kind::Enum | Kind::Enum64 => {
            let (sign, suffix) = match (t.kind_flag(), t.is(Kind::Enum64)) {
                (true, true) => ("SIGNED", "LL"),
                (false, true) => ("UNSIGNED", "ULL"),
                (true, false) => ("SIGNED", ""),
                (false, false) => ("UNSIGNED", ""),
            };
            write!(out, " encoding={sign} size={size} vlen={}", t.vlen())?;
            for v in t.enum_values() {
                let name = name_or_anon(v.name_off, v.name());
                write!(out, "\n\t'{name}' val={}{suffix}", v.value())?;
            }
            Ok(())
        }
        Kind::Fwd => write!(
            out,
            " fwd_kind={}",
            if t.kind_flag() { "union" } else { "struct" }
        ),
        Kind::Func => {
            let linkage = t.linkage().map_or("", |l| l.name());
            write!(out, " type_id={} linkage={linkage}", t.type_id())
        }
        Kind::FuncProto => {
            write!(out, " ret_type_id={} vlen={}", t.type_id(), t.vlen())?;
            for p in t.params() {
                let name = name_or_anon(p.name_off, p.name());
                write!(out, "\n\t'{name}' type_id={}", p.type_id)?;
            }
            Ok(())
        }
        Kind::Var => {
            let linkage = t.linkage().map_or("", |l| l.name());
            write!(out, " type_id={}, linkage={linkage}", t.type_id())
        }
        Kind::Datasec => {
            write!(out, " size={size} vlen={}", t.vlen())?;
            for v in t.variables() {
                write!(
                    out,
                    "\n\ttype_id={} offset={} size={}",
                    v.type_id, v.offset, v.size
                )?;
                if let Some(var) = t.btf().type_by_id(v.type_id) {
                    let name = name_or_anon(var.name_off(), var.name());
                    write!(out, " ({} '{name}')", var.kind().upper_name())?;
                }
            }
            Ok(())
        }
        Kind::Float => write!(out, " size={size}"),
        Kind::DeclTag => {
            let component = t.component().map_or(-1, i64::from) as i32;
            write!(out, " type_id={} component_idx={component}", t.type_id())
        }
    }
}
