//! What the declaration tags of a program say about its test: `comment:test_…`, as
//! `progs/bpf_misc.h` of the kernel's selftests writes them, of any release:
//!
//! - `comment:test_expect_msg=TEXT` (before 6.11),
//! - `comment:test_expect_msg=N=TEXT`, N telling equal tags apart (until 6.18),
//! - `comment:N:test_expect_msg=TEXT`, N being the order as well.

use bpfkit_btf::{Btf, Kind};

use super::pattern::Pattern;

/// Bytes of the packet that programs are run on; `TEST_DATA_LEN`.
pub const TEST_DATA_LEN: i32 = 64;

/// Everything that the tags of a program say.
#[derive(Clone, Debug, Default)]
pub struct Spec {
    /// Text that stands for the program's name.
    pub description: Option<String>,
    /// Expectation for a privileged process, if there is one.
    pub privileged: Option<Expectation>,
    /// Expectation for an unprivileged process, if there is one.
    pub unprivileged: Option<Expectation>,
    /// Log level asked for.
    pub log_level: u32,
    /// `BPF_F_*` to set, and to clear, for the load.
    pub set_flags: u32,
    /// See [`Spec::set_flags`].
    pub clear_flags: u32,
    /// Architectures that the test is for; all where none is named.
    pub arches: Vec<String>,
    /// Only there for other programs' sake.
    pub auxiliary: bool,
    /// Object whose BTF stands for the kernel's.
    pub btf_path: Option<String>,
    /// Whether it is for kernels that compile programs, or for those that do not.
    pub jited: Option<bool>,
    /// Bytes of a packet's linear part.
    pub linear_size: Option<u32>,
    /// Capabilities, by number, that the unprivileged process has.
    pub caps_unprivileged: Vec<u32>,
}

/// What is expected of a program in one mode.
#[derive(Clone, Debug, Default)]
pub struct Expectation {
    /// It is to be refused.
    pub failure: bool,
    /// Of the verifier's log.
    pub messages: Vec<Pattern>,
    /// Of the rewritten program.
    pub xlated: Vec<Pattern>,
    /// Of the compiled program.
    pub jited: Vec<Pattern>,
    /// What it writes to its standard output and error streams.
    pub stdout: Vec<Pattern>,
    /// See [`Expectation::stdout`].
    pub stderr: Vec<Pattern>,
    /// What it returns.
    pub retval: Option<Retval>,
}

/// An expected return value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retval {
    /// These 32 bits.
    Value(i32),
    /// Any: an address.
    Any,
}

/// Named return values.
const RETVALS: [(&str, Retval); 6] = [
    ("INT_MIN", Retval::Value(i32::MIN)),
    ("_INT_MIN", Retval::Value(i32::MIN)),
    ("TEST_DATA_LEN", Retval::Value(TEST_DATA_LEN)),
    ("POINTER_VALUE", Retval::Any),
    // What the macro of that name expands to, before and since 6.13.
    ("0xcafe4all", Retval::Any),
    ("0xbadcafe", Retval::Any),
];

/// Load flags, `BPF_F_*` of `linux/bpf.h`.
pub mod flag {
    pub const STRICT_ALIGNMENT: u32 = 1 << 0;
    pub const ANY_ALIGNMENT: u32 = 1 << 1;
    pub const TEST_RND_HI32: u32 = 1 << 2;
    pub const TEST_STATE_FREQ: u32 = 1 << 3;
    pub const SLEEPABLE: u32 = 1 << 4;
    pub const XDP_HAS_FRAGS: u32 = 1 << 5;
    pub const TEST_REG_INVARIANTS: u32 = 1 << 7;
}

/// Load flags by name. `BPF_F_TEST_RND_HI32` asks for random upper halves of 32-bit results,
/// to find programs that are wrong about them; here those halves are zero always.
const FLAGS: [(&str, u32); 7] = [
    ("BPF_F_STRICT_ALIGNMENT", flag::STRICT_ALIGNMENT),
    ("BPF_F_ANY_ALIGNMENT", flag::ANY_ALIGNMENT),
    ("BPF_F_TEST_RND_HI32", flag::TEST_RND_HI32),
    ("BPF_F_TEST_STATE_FREQ", flag::TEST_STATE_FREQ),
    ("BPF_F_SLEEPABLE", flag::SLEEPABLE),
    ("BPF_F_XDP_HAS_FRAGS", flag::XDP_HAS_FRAGS),
    ("BPF_F_TEST_REG_INVARIANTS", flag::TEST_REG_INVARIANTS),
];

/// The tags while they are read.
#[derive(Default)]
struct Reader {
    spec: Spec,
    privileged: Side,
    unprivileged: Side,
}

/// What was said of one mode.
#[derive(Default)]
struct Side {
    /// Anything at all.
    named: bool,
    failure: Option<bool>,
    rest: Expectation,
    /// The next pattern of a listing is for the line after the one before: kinds apart.
    continued: [bool; 4],
}

/// Kinds of listings, whose patterns follow each other line by line unless `...` stands
/// between them.
#[derive(Clone, Copy)]
enum Listing {
    Xlated,
    Jited,
    Stdout,
    Stderr,
}

impl Side {
    fn listing(&mut self, listing: Listing, text: &str) -> Result<(), String> {
        self.named = true;
        let continued = &mut self.continued[listing as usize];
        if text == "..." {
            *continued = false;
            return Ok(());
        }
        let pattern = Pattern::new(text)?.following(*continued);
        *continued = true;
        let list = match listing {
            Listing::Xlated => &mut self.rest.xlated,
            Listing::Jited => &mut self.rest.jited,
            Listing::Stdout => &mut self.rest.stdout,
            Listing::Stderr => &mut self.rest.stderr,
        };
        list.push(pattern);
        Ok(())
    }
}

impl Spec {
    /// What the tags of the function of that name say; `None` where none says anything.
    ///
    /// # Errors
    /// A tag cannot be understood; `host` is this machine's name among the architectures.
    pub fn read(btf: &Btf, program: &str, host: &str) -> Result<Option<Spec>, String> {
        let Some(func) = btf.by_name(program, Kind::Func) else {
            return Ok(None);
        };
        let mut tags: Vec<(u32, &str)> = Vec::new();
        for tag in btf
            .decl_tags(func.id())
            .filter(|tag| tag.component().is_none())
        {
            if let Some(text) = tag.name().strip_prefix("comment:") {
                tags.push(numbered(text));
            }
        }
        // A stable sort: tags without number stay in the order of the object.
        tags.sort_by_key(|(number, _)| *number);
        let mut reader = Reader::default();
        let mut any = false;
        for (_, tag) in tags {
            any |= reader.tag(tag, host)?;
        }
        Ok(any.then(|| reader.finish()))
    }
}

/// Takes `N:` off the front of a tag.
fn numbered(text: &str) -> (u32, &str) {
    let split = text.split_once(':');
    let split = split.and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
    split.unwrap_or((0, text))
}

/// Takes `N=` off the front of a value.
fn without_index(value: &str) -> &str {
    match value.split_once('=') {
        Some((index, rest)) if index.bytes().all(|b| b.is_ascii_digit()) && !index.is_empty() => {
            rest
        }
        _ => value,
    }
}

impl Reader {
    /// Takes one tag; says whether it is about a test.
    fn tag(&mut self, tag: &str, host: &str) -> Result<bool, String> {
        let (name, value) = match tag.split_once('=') {
            Some((name, value)) => (name, value),
            None => (tag, ""),
        };
        let name = name.strip_prefix("test_").unwrap_or(name);
        let (name, unprivileged) = match name.strip_suffix("_unpriv") {
            Some(name) => (name, true),
            None => (name, false),
        };
        let side = match unprivileged {
            true => &mut self.unprivileged,
            false => &mut self.privileged,
        };
        match name {
            "expect_failure" | "expect_success" => {
                side.named = true;
                side.failure = Some(name == "expect_failure");
            }
            "expect_msg" | "expect_not_msg" => {
                side.named = true;
                let pattern = Pattern::new(without_index(value))?;
                side.rest.messages.push(match name {
                    "expect_not_msg" => pattern.forbidden(),
                    _ => pattern,
                });
            }
            "expect_xlated" => side.listing(Listing::Xlated, without_index(value))?,
            "expect_stdout" => side.listing(Listing::Stdout, without_index(value))?,
            "expect_stderr" => side.listing(Listing::Stderr, without_index(value))?,
            // It belongs to the architecture named last.
            "jited" => match self.spec.arches.last().map(String::as_str) {
                None => return Err("__jited used before __arch_*".to_owned()),
                Some(arch) if arch == host => side.listing(Listing::Jited, without_index(value))?,
                Some(_) => {}
            },
            "retval" => {
                side.named = true;
                side.rest.retval = Some(retval(value)?);
            }
            "auxiliary" => {
                side.named = true;
                self.spec.auxiliary = true;
            }
            "caps" => self.spec.caps_unprivileged = caps(value)?,
            "description" => self.spec.description = Some(value.to_owned()),
            "log_level" => self.spec.log_level = number(value)?.cast_unsigned(),
            "prog_flags" => {
                let (clear, word) = match value.strip_prefix('!') {
                    Some(word) => (true, word),
                    None => (false, value),
                };
                let bits = match FLAGS.iter().find(|(name, _)| *name == word) {
                    Some((_, bits)) => *bits,
                    None => number(word)?.cast_unsigned(),
                };
                let (to, from) = match clear {
                    true => (&mut self.spec.clear_flags, &mut self.spec.set_flags),
                    false => (&mut self.spec.set_flags, &mut self.spec.clear_flags),
                };
                *to |= bits;
                *from &= !bits;
            }
            "arch" => {
                self.spec.arches.push(value.to_owned());
                self.privileged.continued[Listing::Jited as usize] = false;
                self.unprivileged.continued[Listing::Jited as usize] = false;
            }
            "btf_path" => self.spec.btf_path = Some(value.to_owned()),
            "load_mode" => self.spec.jited = Some(value == "jited"),
            "linear_size" => self.spec.linear_size = Some(number(value)?.cast_unsigned()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(self) -> Spec {
        let Reader {
            mut spec,
            privileged,
            mut unprivileged,
        } = self;
        let privileged_named = privileged.named || !unprivileged.named;
        let whole = Expectation {
            failure: privileged.failure.unwrap_or(false),
            ..privileged.rest
        };
        if unprivileged.named {
            // What is not said of the unprivileged process is as for the privileged one.
            let rest = &mut unprivileged.rest;
            rest.failure = unprivileged.failure.unwrap_or(whole.failure);
            rest.retval = rest.retval.or(whole.retval);
            for (own, other) in [
                (&mut rest.messages, &whole.messages),
                (&mut rest.xlated, &whole.xlated),
                (&mut rest.jited, &whole.jited),
                (&mut rest.stdout, &whole.stdout),
                (&mut rest.stderr, &whole.stderr),
            ] {
                if own.is_empty() {
                    own.clone_from(other);
                }
            }
            spec.unprivileged = Some(unprivileged.rest);
        }
        spec.privileged = privileged_named.then_some(whole);
        spec
    }
}

/// A number as the selftests write it: decimal, or hexadecimal after `0x`; constants of
/// macros may keep their parentheses and suffixes.
fn number(text: &str) -> Result<i32, String> {
    let bare = text.trim_matches(|c| "() ".contains(c));
    let (negative, digits) = match bare.strip_prefix('-') {
        Some(rest) => (true, rest.trim_matches(|c| "() ".contains(c))),
        None => (false, bare),
    };
    let digits = digits.trim_end_matches(['u', 'U', 'l', 'L']);
    let value = match digits.strip_prefix("0x") {
        Some(hex) => i64::from_str_radix(hex, 16),
        None => digits.parse(),
    };
    let value = value.map_err(|_| format!("'{text}' is no number"))?;
    // The tags hold 32 bits, read as signed or not.
    Ok((if negative {
        value.wrapping_neg()
    } else {
        value
    }) as i32)
}

fn retval(text: &str) -> Result<Retval, String> {
    match RETVALS.iter().find(|(name, _)| *name == text) {
        Some((_, value)) => Ok(*value),
        None => number(text).map(Retval::Value),
    }
}

/// Numbers of capabilities, `12|39`.
fn caps(text: &str) -> Result<Vec<u32>, String> {
    let words = text.split('|').map(str::trim);
    let numbers = words.map(|word| number(word).map(i32::cast_unsigned));
    numbers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(tags: &[&str]) -> Spec {
        let mut reader = Reader::default();
        for tag in tags {
            assert!(reader.tag(tag, "X86_64").expect("a tag"), "{tag}");
        }
        reader.finish()
    }

    #[test]
    fn every_release_writes_messages_in_its_way() {
        assert_eq!(without_index("3=a=b"), "a=b");
        assert_eq!(without_index("a=b"), "a=b");
        assert_eq!(numbered("12:test_retval=1"), (12, "test_retval=1"));
        assert_eq!(numbered("test_x=1:2"), (0, "test_x=1:2"));
    }

    #[test]
    fn the_unprivileged_mode_inherits() {
        let spec = spec(&[
            "test_expect_failure",
            "test_expect_msg=0=no",
            "test_retval=7",
            "test_expect_success_unpriv",
        ]);
        let unprivileged = spec.unprivileged.expect("it is named");
        assert!(!unprivileged.failure);
        assert_eq!(unprivileged.messages.len(), 1);
        assert_eq!(unprivileged.retval, Some(Retval::Value(7)));
        assert!(spec.privileged.expect("it is named").failure);
    }

    #[test]
    fn only_the_unprivileged_mode_may_be_named() {
        let spec = spec(&["test_expect_failure_unpriv"]);
        assert!(spec.privileged.is_none());
        assert!(spec.unprivileged.expect("it is named").failure);
    }

    #[test]
    fn values_may_be_macros() {
        assert_eq!(number("(-22)"), Ok(-22));
        assert_eq!(number("0xffffffff"), Ok(-1));
        assert_eq!(number("0xffffFFFFULL"), Ok(-1));
        assert!(number("MANY").is_err());
        assert_eq!(retval("POINTER_VALUE"), Ok(Retval::Any));
        assert_eq!(caps("12|39"), Ok(vec![12, 39]));
    }

    #[test]
    fn flags_are_set_and_cleared() {
        let spec = spec(&[
            "test_prog_flags=!BPF_F_TEST_REG_INVARIANTS",
            "test_prog_flags=8",
        ]);
        assert_eq!(spec.set_flags, flag::TEST_STATE_FREQ);
        assert_eq!(spec.clear_flags, flag::TEST_REG_INVARIANTS);
    }

    #[test]
    fn listings_follow_line_by_line_unless_dots_part_them() {
        let spec = spec(&[
            "test_expect_xlated=0=a",
            "test_expect_xlated=1=b",
            "test_expect_xlated=2=...",
            "test_expect_xlated=3=c",
        ]);
        let xlated = spec.privileged.expect("it is named").xlated;
        let next: Vec<bool> = xlated.iter().map(|p| p.next_line).collect();
        assert_eq!(next, [false, true, false]);
    }

    #[test]
    fn machine_code_is_expected_of_the_architecture_named_before() {
        let spec = spec(&[
            "test_arch=ARM64",
            "test_jited=0=ret",
            "test_arch=X86_64",
            "test_jited=1=retq",
        ]);
        let jited = spec.privileged.expect("it is named").jited;
        assert_eq!(jited.len(), 1);
        assert_eq!(jited[0].text, "retq");
    }
}
