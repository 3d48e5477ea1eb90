//! Values for the variables of `.kconfig`: the kernel's configuration and the virtual
//! `LINUX_*` variables, by libbpf's rules.

use crate::error::{ErrorKind, ObjectError};
use crate::target::Target;

/// Type of a `.kconfig` variable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum KconfigType {
    Char,
    Bool,
    Int,
    /// `enum libbpf_tristate`: 0 no, 1 yes, 2 module.
    Tristate,
    CharArray,
}

/// A variable of `.kconfig`.
#[derive(Clone, Debug)]
pub(crate) struct KconfigVar {
    pub name: String,
    pub ty: KconfigType,
    pub signed: bool,
    pub size: u32,
    pub align: u32,
    /// Byte offset in the map's value.
    pub offset: u32,
    pub weak: bool,
}

/// The contents of the `.kconfig` map, and what went wrong with single variables.
#[derive(Debug)]
pub(crate) struct KconfigValues {
    pub bytes: Vec<u8>,
    /// For each variable, why a program that uses it cannot be linked.
    pub errors: Vec<Option<ObjectError>>,
}

impl KconfigValues {
    /// Fills in the variables; those without value stay 0.
    pub fn resolve(
        vars: &[&KconfigVar],
        len: usize,
        target: &Target<'_>,
        big_endian: bool,
    ) -> Self {
        let mut values = Setter {
            bytes: vec![0; len],
            big_endian,
        };
        let mut state: Vec<Option<Result<(), ObjectError>>> = vars
            .iter()
            .map(|var| {
                if var.name.starts_with("CONFIG_") {
                    return None;
                }
                match virtual_value(var, target) {
                    Ok(value) => Some(values.number(var, value)),
                    Err(e) => Some(Err(e)),
                }
            })
            .collect();
        for line in target.kconfig.unwrap_or("").lines() {
            let Some((name, value)) = line.split_once('=') else {
                continue;
            };
            if !name.starts_with("CONFIG_") {
                continue;
            }
            for (var, state) in vars.iter().zip(&mut state) {
                if var.name == name && state.is_none() {
                    *state = Some(values.line(var, line, value));
                }
            }
        }
        let errors = vars.iter().zip(state).map(|(var, state)| match state {
            Some(result) => result.err(),
            None if var.weak => None,
            None => Some(error(format!(
                "extern '{}' (strong): not resolved",
                var.name
            ))),
        });
        Self {
            errors: errors.collect(),
            bytes: values.bytes,
        }
    }
}

fn error(message: String) -> ObjectError {
    ObjectError::new(ErrorKind::Extern, message)
}

fn virtual_value(var: &KconfigVar, target: &Target<'_>) -> Result<u64, ObjectError> {
    match var.name.as_str() {
        "LINUX_KERNEL_VERSION" => Ok(u64::from(target.kernel_version)),
        "LINUX_HAS_BPF_COOKIE" => Ok(u64::from(target.bpf_cookie)),
        "LINUX_HAS_SYSCALL_WRAPPER" => Ok(u64::from(target.syscall_wrapper)),
        name if name.starts_with("LINUX_") && var.weak => Ok(0),
        name => Err(error(format!(
            "extern (kcfg) '{name}': unrecognized virtual extern"
        ))),
    }
}

struct Setter {
    bytes: Vec<u8>,
    big_endian: bool,
}

impl Setter {
    /// Sets a variable from the text after the `=` of a configuration line.
    fn line(&mut self, var: &KconfigVar, line: &str, value: &str) -> Result<(), ObjectError> {
        match value.as_bytes() {
            [] => Err(error(format!("failed to parse '{line}': no value"))),
            [letter @ (b'y' | b'n' | b'm'), ..] => self.tristate(var, char::from(*letter)),
            [b'"', ..] => self.string(var, value),
            _ => {
                let name = &var.name;
                let Some(number) = parse_number(value) else {
                    return Err(error(format!(
                        "extern (kcfg) '{name}': value '{value}' isn't a valid integer"
                    )));
                };
                if !matches!(var.ty, KconfigType::Int | KconfigType::Char) {
                    return Err(error(format!(
                        "extern (kcfg) '{name}': value '{value}' implies integer type"
                    )));
                }
                self.number(var, number)
            }
        }
    }

    fn tristate(&mut self, var: &KconfigVar, letter: char) -> Result<(), ObjectError> {
        let name = &var.name;
        let value = match var.ty {
            KconfigType::Bool if letter == 'm' => {
                return Err(error(format!(
                    "extern (kcfg) '{name}': value '{letter}' implies tristate or char type"
                )));
            }
            KconfigType::Bool => u64::from(letter == 'y'),
            KconfigType::Tristate => match letter {
                'y' => 1,
                'm' => 2,
                _ => 0,
            },
            KconfigType::Char => u64::from(letter),
            KconfigType::Int | KconfigType::CharArray => {
                return Err(error(format!(
                    "extern (kcfg) '{name}': value '{letter}' implies bool, tristate, or char type"
                )));
            }
        };
        self.store(var, value);
        Ok(())
    }

    fn string(&mut self, var: &KconfigVar, value: &str) -> Result<(), ObjectError> {
        let name = &var.name;
        if var.ty != KconfigType::CharArray {
            return Err(error(format!(
                "extern (kcfg) '{name}': value '{value}' implies char array type"
            )));
        }
        let Some(text) = value.strip_prefix('"').and_then(|v| v.strip_suffix('"')) else {
            return Err(error(format!(
                "extern (kcfg) '{name}': invalid string config '{value}'"
            )));
        };
        // Cut where it does not fit, and NUL-terminated always.
        let room = (var.size as usize).saturating_sub(1);
        let start = var.offset as usize;
        let target = self.bytes.get_mut(start..).unwrap_or_default();
        for (to, from) in target.iter_mut().zip(text.bytes().take(room)) {
            *to = from;
        }
        Ok(())
    }

    fn number(&mut self, var: &KconfigVar, value: u64) -> Result<(), ObjectError> {
        let name = &var.name;
        if !matches!(
            var.ty,
            KconfigType::Int | KconfigType::Char | KconfigType::Bool
        ) {
            return Err(error(format!(
                "extern (kcfg) '{name}': value '{value}' implies integer, char, or boolean type"
            )));
        }
        if var.ty == KconfigType::Bool && value > 1 {
            return Err(error(format!(
                "extern (kcfg) '{name}': value '{value}' isn't boolean compatible"
            )));
        }
        if !fits(var, value) {
            return Err(error(format!(
                "extern (kcfg) '{name}': value '{value}' doesn't fit in {} bytes",
                var.size
            )));
        }
        self.store(var, value);
        Ok(())
    }

    /// Writes the low bytes of a number in the object's byte order.
    fn store(&mut self, var: &KconfigVar, value: u64) {
        let (start, len) = (var.offset as usize, (var.size as usize).min(8));
        let Some(to) = self.bytes.get_mut(start..start + len) else {
            return;
        };
        if self.big_endian {
            to.copy_from_slice(&value.to_be_bytes()[8 - len..]);
        } else {
            to.copy_from_slice(&value.to_le_bytes()[..len]);
        }
    }
}

/// Whether a number, or a negative one that wrapped, is one of the variable's type.
fn fits(var: &KconfigVar, value: u64) -> bool {
    let bits = match var.size {
        size @ (1 | 2 | 4) => size * 8,
        _ => return true,
    };
    if var.signed {
        value.wrapping_add(1 << (bits - 1)) < 1 << bits
    } else {
        value >> bits == 0
    }
}

/// C's `strtoull(value, …, 0)` of the whole text: decimal, `0x…`, octal, and a sign that
/// wraps.
fn parse_number(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, text.get(1..)?),
        b'+' => (false, text.get(1..)?),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, digits.get(2..)?),
        [b'0', _, ..] => (8, digits.get(1..)?),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let value = u64::from_str_radix(digits, radix).ok()?;
    Some(if negative {
        value.wrapping_neg()
    } else {
        value
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn var(name: &str, ty: KconfigType, size: u32, signed: bool) -> KconfigVar {
        KconfigVar {
            name: name.into(),
            ty,
            signed,
            size,
            align: size,
            offset: 0,
            weak: false,
        }
    }

    fn resolve(var: &KconfigVar, text: &str) -> Result<Vec<u8>, String> {
        let target = Target {
            kconfig: Some(text),
            ..Target::default()
        };
        let values = KconfigValues::resolve(&[var], var.size as usize, &target, false);
        match values.errors.into_iter().flatten().next() {
            Some(e) => Err(e.message().to_owned()),
            None => Ok(values.bytes),
        }
    }

    #[test]
    fn values_are_read_as_libbpf_reads_them() {
        use KconfigType as T;
        let int = var("CONFIG_X", T::Int, 4, true);
        assert_eq!(resolve(&int, "CONFIG_X=-1\n"), Ok(vec![255; 4]));
        assert_eq!(
            resolve(&int, "CONFIG_X=0x10\nCONFIG_X=9\n"),
            Ok(vec![16, 0, 0, 0])
        );
        assert_eq!(resolve(&int, "CONFIG_X=010\n"), Ok(vec![8, 0, 0, 0]));
        assert_eq!(
            resolve(&int, "CONFIG_X=0x80000000"),
            Err("extern (kcfg) 'CONFIG_X': value '2147483648' doesn't fit in 4 bytes".into())
        );
        assert_eq!(
            resolve(&int, "CONFIG_X=y"),
            Err("extern (kcfg) 'CONFIG_X': value 'y' implies bool, tristate, or char type".into())
        );
        assert_eq!(
            resolve(&int, "# CONFIG_X is not set"),
            Err("extern 'CONFIG_X' (strong): not resolved".into())
        );
        let tri = var("CONFIG_X", T::Tristate, 4, false);
        assert_eq!(resolve(&tri, "CONFIG_X=m"), Ok(vec![2, 0, 0, 0]));
        let text = var("CONFIG_X", T::CharArray, 4, false);
        assert_eq!(resolve(&text, "CONFIG_X=\"abcdef\""), Ok(b"abc\0".to_vec()));
        let byte = var("CONFIG_X", T::Char, 1, false);
        assert_eq!(resolve(&byte, "CONFIG_X=m"), Ok(vec![b'm']));
        let flag = var("CONFIG_X", T::Bool, 1, false);
        assert_eq!(
            resolve(&flag, "CONFIG_X=m"),
            Err("extern (kcfg) 'CONFIG_X': value 'm' implies tristate or char type".into())
        );
    }

    #[test]
    fn virtual_variables() {
        let version = var("LINUX_KERNEL_VERSION", KconfigType::Int, 4, false);
        assert_eq!(resolve(&version, ""), Ok(vec![0, 18, 6, 0]));
        let mut other = var("LINUX_OTHER", KconfigType::Int, 4, false);
        assert_eq!(
            resolve(&other, ""),
            Err("extern (kcfg) 'LINUX_OTHER': unrecognized virtual extern".into())
        );
        other.weak = true;
        assert_eq!(resolve(&other, ""), Ok(vec![0; 4]));
    }
}
