//! Bytes as hex digits on the command line.

use crate::cli::failure::{Failure, Result};

/// Reads hex digits, blanks, `:` and a leading `0x` ignored.
pub fn parse(text: &str) -> Result<Vec<u8>> {
    let text = text.trim();
    let text = text.strip_prefix("0x").unwrap_or(text);
    let mut digits = Vec::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        match character.to_digit(16) {
            Some(digit) => digits.push(digit as u8),
            None if character.is_whitespace() || character == ':' => {}
            None => {
                return Err(Failure::input(format!(
                    "{character:?} at character {} is not a hex digit",
                    at + 1
                )));
            }
        }
    }
    let (pairs, rest) = digits.as_chunks::<2>();
    if !rest.is_empty() {
        return Err(Failure::input(format!(
            "an odd number of hex digits ({})",
            digits.len()
        )));
    }
    Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

/// Writes bytes as hex digits.
pub fn format(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Hex digits with a blank after each byte.
pub fn spaced(digits: &str) -> String {
    let mut text = String::with_capacity(digits.len() * 3 / 2);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && at % 2 == 0 {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{format, parse};

    #[test]
    fn digits_with_blanks_and_prefix() {
        assert_eq!(parse("0xDE ad\nbe:ef").unwrap(), [0xde, 0xad, 0xbe, 0xef]);
        assert_eq!(parse("").unwrap(), Vec::<u8>::new());
        assert_eq!(format(&[0, 0x1f]), "001f");
    }

    #[test]
    fn what_is_wrong_and_where() {
        assert_eq!(
            parse("12g4").unwrap_err().message,
            "'g' at character 3 is not a hex digit"
        );
        assert_eq!(
            parse("123").unwrap_err().message,
            "an odd number of hex digits (3)"
        );
    }
}
