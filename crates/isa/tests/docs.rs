//! The generated reference.

use bpfkit_isa::{docs, table};

#[test]
fn the_reference_has_a_line_for_each_row() {
    let text = docs::markdown();
    for row in table::rows() {
        let start = format!("| `{}` | `{:#04x}` |", row.mnemonic, row.code);
        assert!(
            text.lines()
                .any(|l| l.starts_with(&start) && l.contains(row.meaning)),
            "{start}"
        );
    }
    let cells = |line: &str| line.replace("\\|", "").matches('|').count();
    for line in text.lines().filter(|l| l.starts_with('|')) {
        assert_eq!(cells(line), 13, "{line}");
    }
    assert!(
        !text.contains('{'),
        "an operand has no name in the reference"
    );
    assert!(text.contains(
        "| `ldxw` | `0x61` | reg | reg | s16 | – |  | `dst = *(u32 *)(src + off)` | `wdst = *(u32 *)(src + off)` | v1 | 3.18 | Load, zero-extended to 64 bits. |"
    ));
}
