//! One macro for the numbered enums of `linux/bpf.h`.

/// Declares an enum whose rows are `Variant = number, "libbpf name", (major, minor);`
/// with the release that brought the value.
macro_rules! uapi_enum {
    (
        $(#[$meta:meta])*
        pub enum $Enum:ident, prefix $prefix:literal {
            $($Variant:ident = $value:literal, $name:literal, ($major:literal, $minor:literal);)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u32)]
        pub enum $Enum {
            $(#[doc = concat!("`", $prefix, "` number ", $value, ", `", $name, "`; Linux ", $major, ".", $minor, ".")]
            $Variant = $value,)*
        }

        impl $Enum {
            /// Every value, in the order of its numbers.
            pub const ALL: &'static [$Enum] = &[$($Enum::$Variant,)*];

            /// The value of that number.
            pub const fn from_u32(number: u32) -> Option<$Enum> {
                match number {
                    $($value => Some($Enum::$Variant),)*
                    _ => None,
                }
            }

            /// The name that libbpf prints, in lower case.
            pub const fn name(self) -> &'static str {
                match self {
                    $($Enum::$Variant => $name,)*
                }
            }

            /// The value of that libbpf name.
            pub fn from_name(name: &str) -> Option<$Enum> {
                $Enum::ALL.iter().copied().find(|value| value.name() == name)
            }

            /// The name of the constant in `linux/bpf.h`.
            pub fn uapi_name(self) -> String {
                format!(concat!($prefix, "{}"), self.name().to_uppercase())
            }

            /// The release that brought it.
            pub const fn since(self) -> $crate::KernelVersion {
                match self {
                    $($Enum::$Variant => $crate::KernelVersion($major, $minor),)*
                }
            }
        }

        impl std::fmt::Display for $Enum {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

pub(crate) use uapi_enum;
