//! Values of the log in plain words.

/// Types as the log begins them, longest first where one begins another.
const TYPES: [(&str, &str); 32] = [
    ("map_value_or_null", "a pointer to a map value, or NULL"),
    ("map_value", "a pointer to a map value"),
    ("map_ptr", "a map"),
    ("map_key", "a pointer to a map key"),
    ("pkt_end", "the end of the packet"),
    ("pkt_meta", "a pointer to packet metadata"),
    ("pkt", "a pointer into the packet"),
    ("flow_keys", "the flow keys"),
    ("ctx", "the context"),
    ("fp", "the stack at fp"),
    ("sock_common_or_null", "a socket, or NULL"),
    ("sock_common", "a socket"),
    ("sock_or_null", "a socket, or NULL"),
    ("sock", "a socket"),
    ("tcp_sock_or_null", "a TCP socket, or NULL"),
    ("tcp_sock", "a TCP socket"),
    ("ringbuf_mem_or_null", "a ring buffer record, or NULL"),
    ("ringbuf_mem", "a ring buffer record"),
    ("rdonly_mem_or_null", "read-only memory, or NULL"),
    ("rdonly_mem", "read-only memory"),
    ("mem_or_null", "a pointer to memory, or NULL"),
    ("mem", "a pointer to memory"),
    ("ptr_or_null_", "a kernel pointer, or NULL, to "),
    ("trusted_ptr_or_null_", "a kernel pointer, or NULL, to "),
    (
        "rcu_ptr_or_null_",
        "a kernel pointer under RCU, or NULL, to ",
    ),
    ("untrusted_ptr_", "a kernel pointer that may be stale, to "),
    ("trusted_ptr_", "a kernel pointer to "),
    ("rcu_ptr_", "a kernel pointer under RCU to "),
    ("ptr_", "a kernel pointer to "),
    ("scalar", "a number"),
    ("func", "a function"),
    ("arena", "a pointer into the arena"),
];

/// A value in words, with what the verifier says of it behind them.
pub fn describe(value: &str) -> String {
    let digits = value.strip_prefix('-').unwrap_or(value);
    if digits.starts_with(|c: char| c.is_ascii_digit()) {
        return value.to_owned();
    }
    let precise = value.strip_prefix('P').filter(|rest| {
        rest.starts_with("scalar") || rest.starts_with(|c: char| c.is_ascii_digit() || c == '-')
    });
    let value = precise.unwrap_or(value);
    if value == "scalar()" {
        return "any number".to_owned();
    }
    let found = TYPES
        .iter()
        .find_map(|(name, words)| Some((*words, value.strip_prefix(name)?)));
    let Some((words, rest)) = found else {
        return value.to_owned();
    };
    let rest = rest.strip_suffix("()").unwrap_or(rest);
    match rest.starts_with('(') {
        true => format!("{words} {rest}"),
        false => format!("{words}{rest}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{TYPES, describe};

    #[test]
    fn values() {
        assert_eq!(describe("-4"), "-4");
        assert_eq!(describe("P7"), "7");
        assert_eq!(describe("scalar()"), "any number");
        assert_eq!(
            describe("map_value_or_null(id=1,map=m)"),
            "a pointer to a map value, or NULL (id=1,map=m)"
        );
        assert_eq!(describe("fp-8"), "the stack at fp-8");
        assert_eq!(describe("ctx()"), "the context");
        assert_eq!(
            describe("trusted_ptr_task_struct()"),
            "a kernel pointer to task_struct"
        );
        assert_eq!(describe("mmmm????"), "mmmm????");
    }

    #[test]
    fn longer_names_come_first() {
        for (at, (name, _)) in TYPES.iter().enumerate() {
            let hidden = TYPES[..at]
                .iter()
                .any(|(before, _)| name.starts_with(before));
            assert!(!hidden, "{name}");
        }
    }
}
