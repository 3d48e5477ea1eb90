/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * What a BPF program says about its own test, for `bpfkit selftest` (docs/testing-guide.md).
 * Names and tags are those of the kernel's selftests, so that the kernel's test_progs
 * understands them too: each macro is a declaration tag in the object's BTF, numbered so
 * that order is kept and that equal tags stay apart.
 */
#ifndef BPFKIT_TEST_H
#define BPFKIT_TEST_H

#define __test_string_(x) #x
#define __test_string(x) __test_string_(x)
#define __test_tag(text) \
	__attribute__((btf_decl_tag("comment:" __test_string(__COUNTER__) ":test_" text)))

/* What the test is called; the program's name without it. */
#define __description(text) __test_tag("description=" text)

/* The verifier accepts, or refuses. _unpriv: for a process without capabilities. */
#define __success __test_tag("expect_success")
#define __failure __test_tag("expect_failure")
#define __success_unpriv __test_tag("expect_success_unpriv")
#define __failure_unpriv __test_tag("expect_failure_unpriv")

/* Its log holds this text, behind that of the __msg before: verbatim, with regular
 * expressions in {{ }}. __not_msg: it does not, up to the next __msg. */
#define __msg(text) __test_tag("expect_msg=" text)
#define __not_msg(text) __test_tag("expect_not_msg=" text)
#define __msg_unpriv(text) __test_tag("expect_msg_unpriv=" text)
#define __not_msg_unpriv(text) __test_tag("expect_not_msg_unpriv=" text)

/* The rewritten program has this line, behind that of the __xlated before; "..." between
 * them leaves lines out. */
#define __xlated(text) __test_tag("expect_xlated=" text)
#define __xlated_unpriv(text) __test_tag("expect_xlated_unpriv=" text)

/* Run on 64 zero bytes of packet (or an empty context), it returns this. */
#define __retval(value) __test_tag("retval=" __test_string(value))
#define __retval_unpriv(value) __test_tag("retval_unpriv=" __test_string(value))

/* How it is loaded: 1 the last path, 2 all paths, 4 statistics; BPF_F_… by name. */
#define __log_level(level) __test_tag("log_level=" __test_string(level))
#define __flag(flag) __test_tag("prog_flags=" #flag)

/* Not a test: there for others' tail calls. */
#define __auxiliary __test_tag("auxiliary")

/* For this architecture only; several may be named. */
#define __arch_x86_64 __test_tag("arch=X86_64")
#define __arch_arm64 __test_tag("arch=ARM64")

/* A function of assembly alone. */
#define __naked __attribute__((naked))
#define __clobber_all "r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "memory"

#endif
