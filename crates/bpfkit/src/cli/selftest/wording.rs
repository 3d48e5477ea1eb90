//! Lines of the verifier's log that Linux words otherwise since 6.12: tests written for the
//! older words pass with the later ones too.

/// Words of Linux 6.12, and what Linux 6.18 says in the same case (patterns, both).
const SINCE_6_12: [(&str, &str); 12] = [
    (
        "invalid indirect read from stack",
        "invalid read from stack",
    ),
    (
        "invalid indirect access to stack",
        "invalid {{(read from|write to)}} stack",
    ),
    (
        "invalid variable-offset indirect access to stack",
        "invalid variable-offset {{(read from|write to)}} stack",
    ),
    (
        "invalid unbounded variable-offset indirect access to stack",
        "invalid unbounded variable-offset {{(read from|write to)}} stack",
    ),
    (
        "unlock is missing",
        "BPF_EXIT instruction in main prog cannot be used inside bpf_spin_lock-ed region",
    ),
    ("1 bpf_preempt_enable is missing", IN_PREEMPT),
    ("2 bpf_preempt_enable(s) are missing", IN_PREEMPT),
    ("3 bpf_preempt_enable(s) are missing", IN_PREEMPT),
    (
        "BPF_LD_[ABS|IND] cannot be mixed with socket references",
        "BPF_LD_[ABS|IND] would lead to reference leak",
    ),
    (
        "rbtree_remove node input must be non-owning ref",
        "bpf_rbtree_remove can only take non-owning or refcounted bpf_rb_node pointer",
    ),
    (
        "expected an RCU CS when using bpf_iter_task_next",
        "kernel func bpf_iter_task_new requires RCU critical section protection",
    ),
    (
        "expected an RCU CS when using bpf_iter_css_next",
        "kernel func bpf_iter_css_new requires RCU critical section protection",
    ),
];

const IN_PREEMPT: &str =
    "BPF_EXIT instruction in main prog cannot be used inside bpf_preempt_disable-ed region";

/// Marks of registers and slots that were read or written since the last state, which logs
/// do not show any more: `R1_w=`, `fp-8_rw=`.
const MARKS: [&str; 3] = ["_rw=", "_w=", "_r="];

/// The pattern in later words; `None` where they are the same.
pub fn later(pattern: &str) -> Option<String> {
    let mut text = without_marks(pattern);
    for (old, new) in SINCE_6_12 {
        text = text.replace(old, new);
    }
    (text != pattern).then_some(text)
}

fn without_marks(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len());
    let mut rest = pattern;
    while let Some(at) = rest.find('_') {
        let (before, tail) = rest.split_at(at);
        text += before;
        let mark = MARKS.iter().find(|mark| tail.starts_with(**mark));
        match mark.filter(|_| is_named(before)) {
            Some(mark) => {
                text.push('=');
                rest = &tail[mark.len()..];
            }
            None => {
                text.push('_');
                rest = &tail[1..];
            }
        }
    }
    text + rest
}

/// Whether a register's or a slot's name ends the text.
fn is_named(text: &str) -> bool {
    let bare = text.trim_end_matches(|c: char| c.is_ascii_digit());
    bare.len() < text.len() && (bare.ends_with('R') || bare.ends_with("fp-"))
}

#[cfg(test)]
mod tests {
    use super::later;

    #[test]
    fn marks_of_liveness_are_left_out() {
        let text = "2: R0_w=1 R6_rw=map_value(x_w=2) fp-8_r=mmmm";
        let wanted = "2: R0=1 R6=map_value(x_w=2) fp-8=mmmm";
        assert_eq!(later(text).as_deref(), Some(wanted));
        assert_eq!(later("R0=1"), None);
        assert_eq!(later("rw_w= _"), None);
    }

    #[test]
    fn messages_have_later_words() {
        let text = "invalid indirect read from stack R2 off -8+0";
        let wanted = "invalid read from stack R2 off -8+0";
        assert_eq!(later(text).as_deref(), Some(wanted));
    }
}
