//! Tokens of assembly text.

/// A token.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Token<'a> {
    /// Register, keyword, label or symbol.
    Word(&'a str),
    /// A number without its sign.
    Number(u64),
    /// A numeric label as it is referred to: `1f`, `2b`.
    LocalLabel {
        /// The number.
        number: u64,
        /// The next one after, not the last one before.
        forward: bool,
    },
    /// An operator or bracket.
    Sign(&'static str),
    /// What a disassembler adds in angle brackets after a number, without them.
    Note(&'a str),
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Token::Word(text) => f.write_str(text),
            Token::Number(value) => write!(f, "{value}"),
            Token::LocalLabel { number, forward } => {
                write!(f, "{number}{}", if forward { 'f' } else { 'b' })
            }
            Token::Sign(text) => f.write_str(text),
            Token::Note(text) => write!(f, "<{text}>"),
        }
    }
}

/// A token with the byte it starts at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Located<'a> {
    pub at: usize,
    pub token: Token<'a>,
}

/// Why text is not tokens, and the byte where.
pub(crate) struct LexError {
    pub at: usize,
    pub message: String,
}

/// Operators and brackets; of two that fit, the one that stands first is taken.
const SIGNS: &[&str] = &[
    "<<=", ">>=", "+=", "-=", "*=", "/=", "%=", "|=", "&=", "^=", "==", "!=", ">=", "<=", "<", ">",
    "=", "&", "(", ")", "[", "]", "*", "+", "-", ",", ":", "#", "@",
];

/// Whether a word may start with this character.
pub(crate) fn starts_word(c: char) -> bool {
    c.is_alphabetic() || matches!(c, '_' | '.' | '$')
}

/// Whether a word may go on with this character.
pub(crate) fn continues_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '$')
}

/// Cuts `text` (one statement, without comments) into tokens.
pub(crate) fn lex(text: &str) -> Result<Vec<Located<'_>>, LexError> {
    let mut tokens: Vec<Located<'_>> = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|r| !r.is_empty()) {
        let Some(c) = rest.chars().next() else { break };
        if c.is_whitespace() {
            at += c.len_utf8();
            continue;
        }
        let word = rest.find(|c| !continues_word(c)).unwrap_or(rest.len());
        let after_number = matches!(
            tokens.last(),
            Some(Located {
                token: Token::Number(_),
                ..
            })
        );
        let (token, len) = if starts_word(c) {
            (Token::Word(&rest[..word]), word)
        } else if c.is_ascii_digit() {
            let token = number(&rest[..word]).ok_or_else(|| LexError {
                at,
                message: format!("`{}` is not a number", &rest[..word]),
            })?;
            (token, word)
        } else if let Some(end) = note(rest).filter(|_| after_number) {
            (Token::Note(&rest[1..end]), end + 1)
        } else if let Some(sign) = SIGNS.iter().find(|s| rest.starts_with(**s)) {
            (Token::Sign(sign), sign.len())
        } else {
            return Err(LexError {
                at,
                message: format!("unexpected character `{c}`"),
            });
        };
        tokens.push(Located { at, token });
        at += len;
    }
    Ok(tokens)
}

/// Where the note in angle brackets ends that `text` starts with, if it does.
fn note(text: &str) -> Option<usize> {
    let inner = text.strip_prefix('<')?;
    if !inner.starts_with(starts_word) {
        return None;
    }
    // Names of C++ functions may have brackets of their own.
    text.rfind('>')
}

/// A number, or a reference to a numeric label.
fn number(text: &str) -> Option<Token<'_>> {
    if let Some(hex) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(hex, 16).ok().map(Token::Number);
    }
    for (letter, forward) in [('f', true), ('b', false)] {
        if let Some(digits) = text.strip_suffix(letter) {
            return digits
                .parse()
                .ok()
                .map(|number| Token::LocalLabel { number, forward });
        }
    }
    text.parse().ok().map(Token::Number)
}
