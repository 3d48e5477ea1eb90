//! The command line, as a person sees it: each file under `cmd/` holds commands and what
//! they print. `TRYCMD=overwrite cargo test -p bpfkit --test cmd` rewrites them.

#[test]
fn commands_print_what_they_say() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd");
}
