//! The kinds of types, and one row a kind that says how its record is laid out.

/// `BTF_KIND_*`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// `void`, which is type 0 and nothing else.
    Void,
    /// Integer, boolean or character.
    Int,
    /// Pointer.
    Ptr,
    /// Array.
    Array,
    /// Structure.
    Struct,
    /// Union.
    Union,
    /// Enumeration of 32-bit values.
    Enum,
    /// Structure or union that is only declared.
    Fwd,
    /// Typedef.
    Typedef,
    /// `volatile`.
    Volatile,
    /// `const`.
    Const,
    /// `restrict`.
    Restrict,
    /// Function.
    Func,
    /// Signature of a function.
    FuncProto,
    /// Global variable.
    Var,
    /// Section that holds variables.
    Datasec,
    /// Floating-point number.
    Float,
    /// `btf_decl_tag` on a type, member or parameter.
    DeclTag,
    /// `btf_type_tag` on what a pointer points to.
    TypeTag,
    /// Enumeration of 64-bit values.
    Enum64,
}

/// How a record of one kind is laid out, in 32-bit words.
///
/// Words 0–2 are common: name, info, size or type. `fixed` words follow, then the
/// info's `vlen` items of `item` words each.
pub(crate) struct Shape {
    pub kind: Kind,
    /// bpftool's name; libbpf's is the same in lower case, `void` apart.
    pub upper: &'static str,
    /// libbpf's name.
    pub lower: &'static str,
    /// Word 2 is a type id, not a size.
    pub refers: bool,
    pub fixed: usize,
    /// Words among the fixed ones that are type ids.
    pub fixed_refs: &'static [usize],
    pub item: usize,
    /// What the items' word 0 names, if it is a name.
    pub item_name: Option<&'static str>,
    /// Word of an item that is a type id.
    pub item_ref: Option<usize>,
}

const fn shape(kind: Kind, upper: &'static str, lower: &'static str) -> Shape {
    Shape {
        kind,
        upper,
        lower,
        refers: false,
        fixed: 0,
        fixed_refs: &[],
        item: 0,
        item_name: None,
        item_ref: None,
    }
}

impl Shape {
    const fn refers(self) -> Self {
        Self {
            refers: true,
            ..self
        }
    }

    const fn fixed(self, fixed: usize, fixed_refs: &'static [usize]) -> Self {
        Self {
            fixed,
            fixed_refs,
            ..self
        }
    }

    const fn items(
        self,
        item: usize,
        item_name: Option<&'static str>,
        item_ref: Option<usize>,
    ) -> Self {
        Self {
            item,
            item_name,
            item_ref,
            ..self
        }
    }
}

/// One row a kind, at the place of its number.
pub(crate) const SHAPES: [Shape; 20] = [
    shape(Kind::Void, "UNKNOWN", "void"),
    shape(Kind::Int, "INT", "int").fixed(1, &[]),
    shape(Kind::Ptr, "PTR", "ptr").refers(),
    shape(Kind::Array, "ARRAY", "array").fixed(3, &[0, 1]),
    shape(Kind::Struct, "STRUCT", "struct").items(3, Some("member"), Some(1)),
    shape(Kind::Union, "UNION", "union").items(3, Some("member"), Some(1)),
    shape(Kind::Enum, "ENUM", "enum").items(2, Some("enumerator"), None),
    shape(Kind::Fwd, "FWD", "fwd"),
    shape(Kind::Typedef, "TYPEDEF", "typedef").refers(),
    shape(Kind::Volatile, "VOLATILE", "volatile").refers(),
    shape(Kind::Const, "CONST", "const").refers(),
    shape(Kind::Restrict, "RESTRICT", "restrict").refers(),
    shape(Kind::Func, "FUNC", "func").refers(),
    shape(Kind::FuncProto, "FUNC_PROTO", "func_proto")
        .refers()
        .items(2, Some("parameter"), Some(1)),
    shape(Kind::Var, "VAR", "var").refers().fixed(1, &[]),
    shape(Kind::Datasec, "DATASEC", "datasec").items(3, None, Some(0)),
    shape(Kind::Float, "FLOAT", "float"),
    shape(Kind::DeclTag, "DECL_TAG", "decl_tag")
        .refers()
        .fixed(1, &[]),
    shape(Kind::TypeTag, "TYPE_TAG", "type_tag").refers(),
    shape(Kind::Enum64, "ENUM64", "enum64").items(3, Some("enumerator"), None),
];

impl Kind {
    /// Kind of an info word; `None` for numbers that Linux 6.18 does not have.
    pub(crate) fn of_info(info: u32) -> Option<Self> {
        SHAPES.get((info >> 24 & 0x1f) as usize).map(|s| s.kind)
    }

    pub(crate) fn shape(self) -> &'static Shape {
        &SHAPES[self as usize]
    }

    /// bpftool's name: `STRUCT`, `FUNC_PROTO`, and `UNKNOWN` for void.
    pub fn upper_name(self) -> &'static str {
        self.shape().upper
    }

    /// libbpf's name, as in its messages: `struct`, `func_proto`, `void`.
    pub fn name(self) -> &'static str {
        self.shape().lower
    }

    /// `const`, `volatile`, `restrict` or a type tag.
    pub const fn is_modifier(self) -> bool {
        matches!(
            self,
            Self::Volatile | Self::Const | Self::Restrict | Self::TypeTag
        )
    }

    /// A modifier or a typedef: what a use of the type sees through.
    pub const fn is_transparent(self) -> bool {
        self.is_modifier() || matches!(self, Self::Typedef)
    }

    /// Structure or union.
    pub const fn is_composite(self) -> bool {
        matches!(self, Self::Struct | Self::Union)
    }

    /// Enumeration of either width.
    pub const fn is_enum(self) -> bool {
        matches!(self, Self::Enum | Self::Enum64)
    }

    /// Whether libbpf takes one for the other in CO-RE: the same, or both enumerations.
    pub fn core_compatible(self, other: Self) -> bool {
        self == other || self.is_enum() && other.is_enum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_at_their_numbers() {
        for (number, row) in SHAPES.iter().enumerate() {
            assert_eq!(row.kind as usize, number);
            assert_eq!(Kind::of_info((number as u32) << 24), Some(row.kind));
        }
        assert_eq!(Kind::of_info(20 << 24), None);
        assert_eq!(Kind::of_info(31 << 24), None);
    }
}
