//! A rejection explained, as compilers show their errors.

use std::fmt::Write;

use bpfkit_verifier::{Explanation, Place, Step};

/// Renders it with terminal colours.
pub fn render(file: &str, prog: &str, explanation: &Explanation) -> String {
    let last = explanation.steps.last();
    let mut text = format!(
        "\u{1b}[1;31merror\u{1b}[0m: \u{1b}[1m{}\u{1b}[0m\n",
        explanation.rule
    );
    let numbers = explanation.steps.iter().map(|step| label(step).len());
    let width = numbers.max().unwrap_or(0);
    let blank = " ".repeat(width);
    // Writing to a `String` cannot fail.
    let _ = match last.and_then(|step| step.place.as_ref().zip(Some(step))) {
        Some((place, step)) => writeln!(
            text,
            "{blank}--> {}:{} in {} ({file}/{prog}, instruction {})",
            place.file, place.line, step.function, step.insn
        ),
        None => writeln!(text, "{blank}--> {file}/{prog}"),
    };
    if last.is_some() {
        let _ = writeln!(text, "{blank} |");
    }
    let mut shown: Option<&Step> = None;
    for step in &explanation.steps {
        if shown.is_none_or(|before| before.place.is_none() || before.place != step.place) {
            let source = match &step.place {
                Some(place) => place.text.trim(),
                None => &step.listing,
            };
            let _ = writeln!(text, "{:>width$} | {source}", label(step));
        }
        // A line of assembly is many instructions.
        let assembly = |place: &Place| place.text.trim_start().starts_with("asm");
        if step.place.as_ref().is_some_and(assembly) && !step.listing.is_empty() {
            let _ = writeln!(text, "{blank} |   {}: {}", step.insn, step.listing);
        }
        for note in &step.notes {
            let _ = writeln!(text, "{blank} |   {note}");
        }
        shown = Some(step);
    }
    if last.is_some() {
        let _ = writeln!(text, "{blank} |");
    }
    let named = last.is_some_and(|step| step.notes.contains(&explanation.message));
    let message = (!named).then_some(("message", explanation.message.as_str()));
    let details = explanation
        .details
        .iter()
        .map(|detail| ("verifier", detail.as_str()));
    let advice = [("why", explanation.why), ("help", explanation.fix)];
    for (name, line) in message.into_iter().chain(details).chain(advice) {
        let _ = writeln!(text, "{blank} = \u{1b}[1m{name}\u{1b}[0m: {line}");
    }
    text
}

/// What stands before a line: its number, or the instruction's where there are no lines.
fn label(step: &Step) -> String {
    match &step.place {
        Some(place) => place.line.to_string(),
        None => format!("insn {}", step.insn),
    }
}
