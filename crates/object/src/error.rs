//! Why an object could not be opened or a program not linked.

use std::fmt;

/// What kind of thing went wrong; who has to act follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The bytes are no ELF file.
    NotElf,
    /// ELF, but not a 64-bit relocatable BPF object.
    NotBpf,
    /// The file is truncated or contradicts itself.
    Malformed,
    /// The BTF or BTF.ext section cannot be used.
    Btf,
    /// A map definition is wrong.
    Map,
    /// There is no such program or global variable.
    NotFound,
    /// A relocation cannot be applied.
    Relocation,
    /// An external symbol has no definition in the target, or one of another type.
    Extern,
    /// A CO-RE relocation failed (being without match is no failure: it poisons).
    CoreRelocation,
    /// What the program attaches to is not in the target's BTF.
    Attach,
}

/// Why an object could not be opened or a program not linked: libbpf's message where it
/// has one, with the section and the offset in it where the trouble was seen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ObjectError {
    kind: ErrorKind,
    message: String,
    section: Option<String>,
    offset: Option<u64>,
}

impl ObjectError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            section: None,
            offset: None,
        }
    }

    /// Says where, unless that is known more closely already.
    pub(crate) fn at(mut self, section: &str, offset: u64) -> Self {
        if self.section.is_none() {
            self.section = Some(section.to_owned());
            self.offset = Some(offset);
        }
        self
    }

    /// Says in which section, unless that is known already.
    pub(crate) fn in_section(mut self, section: &str) -> Self {
        if self.section.is_none() {
            self.section = Some(section.to_owned());
        }
        self
    }

    /// Says at which offset of the file.
    pub(crate) fn at_file_offset(mut self, offset: u64) -> Self {
        if self.section.is_none() {
            self.offset = Some(offset);
        }
        self
    }

    /// Kind of trouble.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The message alone, libbpf's where it has one.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Name of the section.
    pub fn section(&self) -> Option<&str> {
        self.section.as_deref()
    }

    /// Byte offset in the section, or in the file where no section is known.
    pub fn offset(&self) -> Option<u64> {
        self.offset
    }
}

impl fmt::Display for ObjectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match (&self.section, self.offset) {
            (Some(section), Some(offset)) => {
                write!(f, " (section '{section}', offset {offset:#x})")
            }
            (Some(section), None) => write!(f, " (section '{section}')"),
            (None, Some(offset)) => write!(f, " (file offset {offset:#x})"),
            (None, None) => Ok(()),
        }
    }
}

impl std::error::Error for ObjectError {}
