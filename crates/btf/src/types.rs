//! Views of types. A view is a few words; nothing is decoded before it is asked for.

use std::fmt;

use crate::btf::Btf;
use crate::kind::Kind;

/// A type of a [`Btf`].
#[derive(Clone, Copy)]
pub struct Type<'a> {
    btf: &'a Btf,
    id: u32,
    /// The record: name, info, size or type, then what the kind adds.
    words: &'a [u32],
}

/// The number that a FUNC or VAR carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Linkage {
    /// Not visible outside its object.
    Static,
    /// Visible, defined here.
    Global,
    /// Defined elsewhere.
    Extern,
    /// A number without meaning.
    Unknown(u32),
}

impl Linkage {
    /// bpftool's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::Global => "global",
            Self::Extern => "extern",
            Self::Unknown(_) => "(unknown)",
        }
    }

    /// `BTF_FUNC_*` and `BTF_VAR_*`, which have the same numbers.
    pub const fn number(self) -> u32 {
        match self {
            Self::Static => 0,
            Self::Global => 1,
            Self::Extern => 2,
            Self::Unknown(n) => n,
        }
    }

    const fn of(number: u32) -> Self {
        match number {
            0 => Self::Static,
            1 => Self::Global,
            2 => Self::Extern,
            n => Self::Unknown(n),
        }
    }
}

/// `BTF_INT_*` bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntEncoding(pub u8);

impl IntEncoding {
    /// No bit set: unsigned.
    pub const NONE: Self = Self(0);
    /// Signed.
    pub const SIGNED: Self = Self(1);
    /// Character; compilers do not set it.
    pub const CHAR: Self = Self(2);
    /// Boolean.
    pub const BOOL: Self = Self(4);

    /// bpftool's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NONE => "(none)",
            Self::SIGNED => "SIGNED",
            Self::CHAR => "CHAR",
            Self::BOOL => "BOOL",
            _ => "UNKN",
        }
    }
}

/// What an INT adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Int {
    /// Signedness and the like.
    pub encoding: IntEncoding,
    /// First bit of the value in its bytes: 0 except in the bit-fields of old compilers.
    pub bit_offset: u32,
    /// Bits of the value.
    pub bits: u32,
}

impl Int {
    /// Whether the value has a sign.
    pub const fn is_signed(self) -> bool {
        self.encoding.0 & IntEncoding::SIGNED.0 != 0
    }
}

/// What an ARRAY adds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Array {
    /// Type of the elements.
    pub element: u32,
    /// Type of the index, an integer without further meaning.
    pub index: u32,
    /// Number of elements; 0 for a flexible array.
    pub count: u32,
}

/// A member of a structure or union.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    btf: &'a Btf,
    /// Name as offset in the string section.
    pub name_off: u32,
    /// Type of the member.
    pub type_id: u32,
    /// Offset in the structure, in bits.
    pub bit_offset: u32,
    /// Bits of a bit-field, 0 for any other member.
    pub bitfield_size: u32,
}

/// A parameter of a function prototype.
#[derive(Clone, Copy, Debug)]
pub struct Param<'a> {
    btf: &'a Btf,
    /// Name as offset in the string section.
    pub name_off: u32,
    /// Type; 0 as the last stands for `...`.
    pub type_id: u32,
}

/// A name and a value of an enumeration.
#[derive(Clone, Copy, Debug)]
pub struct EnumValue<'a> {
    btf: &'a Btf,
    /// Name as offset in the string section.
    pub name_off: u32,
    /// The value in 64 bits. Of a 32-bit enumeration the sign bit is extended even
    /// where the enumeration is unsigned, as libbpf does for CO-RE; [`value`](Self::value)
    /// goes by the sign.
    pub bits: u64,
    signed: bool,
    wide: bool,
}

/// A variable in a DATASEC.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VarSecinfo {
    /// The VAR (or, for `.ksyms`, the FUNC).
    pub type_id: u32,
    /// Byte offset in the section; filled in by the loader where the compiler leaves 0.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
}

/// Gives a view its `name`.
macro_rules! named {
    ($($view:ident)*) => {$(
        impl<'a> $view<'a> {
            /// Name, empty if there is none.
            pub fn name(&self) -> &'a str {
                self.btf.string(self.name_off).unwrap_or("")
            }
        }
    )*};
}

/// Gives a view its type.
macro_rules! typed {
    ($($view:ident)*) => {$(
        impl<'a> $view<'a> {
            /// The type that `type_id` names.
            pub fn type_in(&self) -> Option<Type<'a>> {
                self.btf.type_by_id(self.type_id)
            }
        }
    )*};
}

named!(Member Param EnumValue);
typed!(Member Param);

impl Member<'_> {
    /// Offset in bytes of a member that begins at a byte.
    pub const fn byte_offset(&self) -> Option<u32> {
        if self.bit_offset.is_multiple_of(8) {
            Some(self.bit_offset / 8)
        } else {
            None
        }
    }
}

impl EnumValue<'_> {
    /// The value by the enumeration's width and sign.
    pub const fn value(&self) -> i128 {
        match (self.signed, self.wide) {
            (true, _) => self.bits as i64 as i128,
            (false, true) => self.bits as i128,
            (false, false) => self.bits as u32 as i128,
        }
    }
}

impl<'a> Type<'a> {
    pub(crate) const fn new(btf: &'a Btf, id: u32, words: &'a [u32]) -> Self {
        Self { btf, id, words }
    }

    /// The BTF that the type was looked up in.
    pub const fn btf(self) -> &'a Btf {
        self.btf
    }

    /// Type id.
    pub const fn id(self) -> u32 {
        self.id
    }

    fn word(self, at: usize) -> u32 {
        self.words.get(at).copied().unwrap_or(0)
    }

    fn info(self) -> u32 {
        self.word(1)
    }

    pub(crate) const fn words(self) -> &'a [u32] {
        self.words
    }

    /// Kind.
    pub fn kind(self) -> Kind {
        // Parsing admitted no other number.
        Kind::of_info(self.info()).unwrap_or(Kind::Void)
    }

    /// Whether the type is of that kind.
    pub fn is(self, kind: Kind) -> bool {
        self.kind() == kind
    }

    /// Name as offset in the string section.
    pub fn name_off(self) -> u32 {
        self.word(0)
    }

    /// Name; empty if there is none. A tag's name is its text.
    pub fn name(self) -> &'a str {
        self.btf.string(self.name_off()).unwrap_or("")
    }

    /// Number of members, parameters, enumerators or variables (of a FUNC: its linkage).
    pub fn vlen(self) -> u32 {
        self.info() & 0xffff
    }

    /// Bit 31 of the info word: bit-fields in a structure, signed values in an
    /// enumeration, a union in a FWD, an attribute in a tag.
    pub fn kind_flag(self) -> bool {
        self.info() >> 31 != 0
    }

    /// Bytes of an INT, STRUCT, UNION, ENUM, ENUM64, DATASEC or FLOAT; for any type see
    /// [`Btf::size_of`].
    pub fn size(self) -> Option<u32> {
        use Kind::{Datasec, Enum, Enum64, Float, Int, Struct, Union};
        matches!(
            self.kind(),
            Int | Struct | Union | Enum | Enum64 | Datasec | Float
        )
        .then(|| self.word(2))
    }

    /// The type that a PTR, TYPEDEF, modifier, FUNC, VAR or tag refers to, and what a
    /// FUNC_PROTO returns; 0 (void) for other kinds.
    pub fn type_id(self) -> u32 {
        if self.kind().shape().refers {
            self.word(2)
        } else {
            0
        }
    }

    /// The type that [`type_id`](Self::type_id) names.
    pub fn target(self) -> Option<Self> {
        if self.kind().shape().refers {
            self.btf.type_by_id(self.word(2))
        } else {
            None
        }
    }

    /// The type behind modifiers and typedefs; see [`Btf::resolve`].
    pub fn resolve(self) -> Option<Self> {
        self.btf.resolve(self.id)
    }

    /// The items after the common words, if the kind is one of `kinds`.
    fn items<const N: usize>(self, kinds: &[Kind]) -> &'a [[u32; N]] {
        if kinds.contains(&self.kind()) {
            self.words.get(3..).unwrap_or(&[]).as_chunks().0
        } else {
            &[]
        }
    }

    /// What an INT adds.
    pub fn int(self) -> Option<Int> {
        let v = self.word(3);
        self.is(Kind::Int).then_some(Int {
            encoding: IntEncoding((v >> 24 & 0xf) as u8),
            bit_offset: v >> 16 & 0xff,
            bits: v & 0xff,
        })
    }

    /// What an ARRAY adds.
    pub fn array(self) -> Option<Array> {
        self.is(Kind::Array).then(|| Array {
            element: self.word(3),
            index: self.word(4),
            count: self.word(5),
        })
    }

    /// Members of a STRUCT or UNION; none for other kinds.
    pub fn members(
        self,
    ) -> impl ExactSizeIterator<Item = Member<'a>> + DoubleEndedIterator + Clone {
        self.member_items()
            .iter()
            .map(move |&item| self.read_member(item))
    }

    /// One member of a STRUCT or UNION.
    pub fn member(self, index: u32) -> Option<Member<'a>> {
        self.member_items()
            .get(index as usize)
            .map(|&item| self.read_member(item))
    }

    fn member_items(self) -> &'a [[u32; 3]] {
        self.items(&[Kind::Struct, Kind::Union])
    }

    fn read_member(self, [name_off, type_id, at]: [u32; 3]) -> Member<'a> {
        let flag = self.kind_flag();
        Member {
            btf: self.btf,
            name_off,
            type_id,
            bit_offset: if flag { at & 0xff_ffff } else { at },
            bitfield_size: if flag { at >> 24 } else { 0 },
        }
    }

    /// The member with that name.
    pub fn member_by_name(self, name: &str) -> Option<Member<'a>> {
        self.members().find(|m| m.name() == name)
    }

    /// Parameters of a FUNC_PROTO; none for other kinds.
    pub fn params(self) -> impl ExactSizeIterator<Item = Param<'a>> + DoubleEndedIterator + Clone {
        let btf = self.btf;
        self.items(&[Kind::FuncProto])
            .iter()
            .map(move |&[name_off, type_id]| Param {
                btf,
                name_off,
                type_id,
            })
    }

    /// Names and values of an ENUM or ENUM64; none for other kinds.
    pub fn enum_values(
        self,
    ) -> impl ExactSizeIterator<Item = EnumValue<'a>> + DoubleEndedIterator + Clone {
        let (btf, signed, wide) = (self.btf, self.kind_flag(), self.is(Kind::Enum64));
        let narrow_items = self.items(&[Kind::Enum]);
        let wide_items = self.items(&[Kind::Enum64]);
        (0..narrow_items.len() + wide_items.len()).map(move |i| {
            let (name_off, bits) = match (narrow_items.get(i), wide_items.get(i)) {
                (Some(&[name, value]), _) => (name, value as i32 as u64),
                (_, Some(&[name, low, high])) => (name, u64::from(high) << 32 | u64::from(low)),
                _ => (0, 0),
            };
            EnumValue {
                btf,
                name_off,
                bits,
                signed,
                wide,
            }
        })
    }

    /// Variables of a DATASEC; none for other kinds.
    pub fn variables(
        self,
    ) -> impl ExactSizeIterator<Item = VarSecinfo> + DoubleEndedIterator + Clone + use<'a> {
        let items = self.items(&[Kind::Datasec]).iter();
        items.map(|&[type_id, offset, size]| VarSecinfo {
            type_id,
            offset,
            size,
        })
    }

    /// Linkage of a FUNC or VAR.
    pub fn linkage(self) -> Option<Linkage> {
        match self.kind() {
            Kind::Func => Some(Linkage::of(self.vlen())),
            Kind::Var => Some(Linkage::of(self.word(3))),
            _ => None,
        }
    }

    /// Prototype of a FUNC.
    pub fn proto(self) -> Option<Self> {
        if self.is(Kind::Func) {
            self.target()
        } else {
            None
        }
    }

    /// Index of the member or parameter that a DECL_TAG is on; `None` where it is on the
    /// whole, and for other kinds.
    pub fn component(self) -> Option<u32> {
        let index = self.word(3);
        (self.is(Kind::DeclTag) && index != u32::MAX).then_some(index)
    }
}

impl fmt::Debug for Type<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "[{}] {} '{}'",
            self.id,
            self.kind().upper_name(),
            self.name()
        )
    }
}
