//! The rules that programs break most: how the verifier's message tells one, why there is
//! such a rule, and what to change.

/// Whether the way to the failing instruction explains anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// One path does something wrong at its end.
    Path,
    /// The program as a whole is at fault.
    Program,
}

/// A rule.
pub struct Rule {
    /// Texts that the message has, in this order.
    fragments: &'static [&'static str],
    pub rule: &'static str,
    pub why: &'static str,
    pub fix: &'static str,
    pub scope: Scope,
}

const fn path(
    fragments: &'static [&'static str],
    rule: &'static str,
    why: &'static str,
    fix: &'static str,
) -> Rule {
    Rule {
        fragments,
        rule,
        why,
        fix,
        scope: Scope::Path,
    }
}

const fn whole(
    fragments: &'static [&'static str],
    rule: &'static str,
    why: &'static str,
    fix: &'static str,
) -> Rule {
    Rule {
        fragments,
        rule,
        why,
        fix,
        scope: Scope::Program,
    }
}

const NULL: &str = "a pointer that may be NULL is used without a test";
const NULL_WHY: &str = "what gave the pointer may give NULL: a map has no such key, a buffer no \
room, a search finds nothing";
const NULL_FIX: &str = "test it right after the call: `if (!p) return 0;`";
const BOUND_FIX: &str = "bound the number before it is added: `if (i >= MAX) return 0;` or \
`i &= MAX - 1;` on an unsigned variable; if the compiler moved or dropped the test, put \
`asm volatile(\"\" : \"+r\"(i));` before it so that the value used is the value tested";
const RELEASE_FIX: &str = "release it on every way out, also on those for errors, with the \
function that goes with it (bpf_ringbuf_submit or _discard, bpf_sk_release, bpf_obj_drop, \
bpf_put_file …)";
const LOCK_FIX: &str = "unlock before the call or the return, on every path";
const STACK_FIX: &str = "keep large variables in a per-CPU array map instead, or make the \
functions of the call chain use less";
const SPLIT_FIX: &str = "bound loops tightly, use bpf_loop, bpf_for or a bpf_iter_num loop, move \
the body to a global function (verified once, apart from its callers), or keep fewer different \
values alive across branches";
const HELPER_FIX: &str = "use another helper or kfunc that the type may call, or move the work \
to a program of a type that may; `bpfkit features helpers --prog-type TYPE` lists them";

/// The first row that fits counts.
#[rustfmt::skip]
const RULES: &[Rule] = &[
    // Pointers that may be NULL.
    path(&["invalid mem access '", "_or_null"], NULL, NULL_WHY, NULL_FIX),
    path(&["pointer arithmetic on ", "_or_null", " prohibited"],
        "a pointer that may be NULL takes part in arithmetic",
        "an offset would hide from later tests that the pointer is NULL", NULL_FIX),
    path(&["_or_null", " expected="], NULL, NULL_WHY, NULL_FIX),
    path(&["Possibly NULL pointer passed"], NULL,
        "the function asks for a pointer that is certain to point to something", NULL_FIX),
    path(&["dereference of modified ", "_or_null"], NULL, NULL_WHY, NULL_FIX),
    // Packets.
    path(&["offset is outside of the packet"],
        "the packet is read or written beyond what was compared with its end",
        "a packet may be shorter than the headers one hopes for; only bytes up to the last \
comparison with data_end are known to exist",
        "compare the end of the whole access first: `if (p + sizeof(*p) > data_end) return XDP_DROP;` \
and use the very pointer that was compared"),
    path(&["pointer arithmetic on pkt_end prohibited"],
        "data_end takes part in arithmetic",
        "the end of the packet can be compared with, not computed with",
        "turn the comparison round: `if (data + n > data_end)` in place of `data_end - n`"),
    path(&["cannot write into packet"],
        "programs of this type may only read packets",
        "direct writes are for types that own the packet, such as tc and XDP",
        "use bpf_skb_store_bytes, or another program type"),
    path(&["helper access to the packet is not allowed"],
        "this helper does not take pointers into the packet here",
        "not every helper is made for packet memory, nor every program type",
        "copy the bytes to the stack first"),
    // Ranges of map values and other memory.
    path(&["min value is negative, either use unsigned"],
        "the size or index may be negative",
        "a signed variable was bounded from above only, so that it may be below 0",
        "make the variable unsigned, or test `n >= 0` too"),
    path(&["unbounded memory access, use 'var &= const'"],
        "the size has no upper bound", "any size up to 4 GiB is possible for what the verifier knows",
        BOUND_FIX),
    path(&["min value is outside of the allowed memory range"],
        "the access begins outside of the memory that the pointer points to",
        "the offset may be negative, or the constant is", BOUND_FIX),
    path(&["max value is outside of the allowed memory range"],
        "the access may end outside of the memory that the pointer points to",
        "the largest possible offset lies beyond the end of the map value, buffer or stack object",
        BOUND_FIX),
    path(&["unbounded memory access, make sure to bounds check"],
        "the offset has no upper bound",
        "the index comes from outside (packet, map, argument) and was never compared", BOUND_FIX),
    path(&["math between ", " pointer and register with unbounded"],
        "a number without a bound is added to a pointer",
        "the sum could point anywhere", BOUND_FIX),
    path(&["math between ", " pointer and "],
        "a number far too large is added to a pointer",
        "pointers may be moved by less than 512 MiB",
        "look where the number comes from: a negative value in an unsigned variable is huge"),
    path(&["pointer be out of bounds"],
        "a pointer is moved too far", "pointers may be moved by less than 512 MiB", BOUND_FIX),
    path(&[" pointer offset ", " is not allowed"],
        "a pointer is moved too far", "pointers may be moved by less than 512 MiB", BOUND_FIX),
    path(&["invalid access to map value"],
        "the access lies outside of the map value", "offset and size exceed the value's size",
        BOUND_FIX),
    path(&["invalid zero-sized read"],
        "the size may be 0 or too large", "this helper needs at least one byte, and a size that fits the buffer; a signed size that was \
bounded from above only is huge where it is negative",
        "bound it on both sides in one unsigned variable: `if (n == 0 || n > sizeof(buffer)) return 0;`"),
    path(&["into map forbidden"],
        "the map does not allow this access",
        "it was created read-only or write-only for programs (.rodata, BPF_F_RDONLY_PROG, BPF_F_WRONLY_PROG)",
        "write to another map or a global variable without const"),
    path(&["from map forbidden"],
        "the map does not allow this access",
        "it was created write-only for programs (BPF_F_WRONLY_PROG)",
        "read from another map, or create it without that flag"),
    path(&["cannot write into "],
        "memory is written that may only be read",
        "the pointer came from a place that lends it for reading", "copy it and write the copy"),
    path(&["only read is supported"],
        "a kernel structure is written", "fields of kernel objects may only be read here",
        "keep the value in a map of your own, or call the helper or kfunc that sets the field"),
    // Registers and stack.
    path(&["R0 !read_ok"],
        "the program ends without a return value", "r0 is never set on this path", "return a value on every path"),
    path(&[" !read_ok"],
        "a register is read that nothing was written to",
        "it was never set on this path, or a call has destroyed it: calls keep r6 to r9 only",
        "initialise the variable at its declaration; let no path skip the assignment; \
a function must take no more arguments than are passed"),
    path(&["invalid read from stack"],
        "stack memory is read that was not written",
        "a variable or padding between members was never initialised on this path",
        "initialise the whole object: `struct key k = {};` or `__builtin_memset(&k, 0, sizeof(k));`"),
    path(&["invalid indirect read from stack"],
        "a helper would read stack memory that was not written",
        "a variable or padding between members was never initialised on this path",
        "initialise the whole object: `struct key k = {};` or `__builtin_memset(&k, 0, sizeof(k));`"),
    path(&["invalid write to stack"],
        "the write lies outside of the stack", "a stack has 512 bytes below the frame pointer", BOUND_FIX),
    path(&["invalid variable-offset ", " stack"],
        "the stack is accessed at a place that is not known",
        "an index of a local array has no bound that fits the array", BOUND_FIX),
    path(&["misaligned stack access"],
        "a stack access is not aligned to its size", "pointers are kept in slots of eight bytes",
        "align the object: `__attribute__((aligned(8)))`"),
    path(&["misaligned "],
        "an access is not aligned to its size", "the memory asks for natural alignment",
        "read byte by byte, or align the structure"),
    path(&["frame pointer is read only"],
        "r10 is written", "the frame pointer is set by the kernel", "use another register"),
    path(&["tried to subtract pointer from scalar"],
        "a pointer is subtracted from a number", "the result would be no pointer and no number",
        "subtract the number from the pointer, or two pointers into the packet"),
    path(&["pointer += pointer prohibited"],
        "two pointers are added", "the sum points nowhere",
        "subtract the base first; if the compiler rearranged the sum, compute the offset in a variable of its own"),
    path(&["pointer arithmetic on ", " prohibited"],
        "this pointer may not be moved", "only pointers to memory of known extent may be computed with",
        "access fields directly, or read them with bpf_probe_read_kernel"),
    path(&["invalid mem access 'scalar'"],
        "a number is used as an address",
        "the pointer lost its type on the way: it was read from memory, went through arithmetic, \
was destroyed by a call, or its reference was released",
        "use the pointer before it is released or stored; read kernel memory with bpf_probe_read_kernel, \
bpf_core_cast or a BTF-typed argument"),
    path(&["invalid mem access "],
        "memory is accessed through something that points to no memory",
        "the value is of a kind that cannot be dereferenced", "check which variable the address is made from"),
    path(&["dereference of modified ctx ptr"],
        "the context pointer was moved before it was used",
        "fields of the context are found at constant offsets of the original pointer only",
        "access `ctx->field` directly; if the compiler merged two accesses, copy ctx with a barrier \
or use bpf_core_read"),
    path(&["negative offset ctx ptr"],
        "the context is accessed before its beginning", "fields have offsets from 0 on",
        "access `ctx->field` directly"),
    path(&["variable ctx access"],
        "the context is accessed at an offset that is not constant",
        "each field is translated on its own", "select the field with if or switch instead of an index"),
    path(&["invalid bpf_context access"],
        "this field of the context cannot be accessed so",
        "the program type lacks the field, or does not let it be written or read in that size",
        "look the type's context structure up; read the whole field with its own type"),
    path(&["variable ", " access var_off=", " disallowed"],
        "a kernel object is accessed at an offset that is not constant",
        "types are known at constant offsets only", "use constant indexes, or copy with bpf_probe_read_kernel"),
    path(&["access beyond "],
        "the access lies beyond the end of a kernel structure or member",
        "the structure of the target kernel is smaller", "use the types of vmlinux.h, and CO-RE (preserve_access_index)"),
    path(&["div by zero"],
        "the divisor is the constant 0", "an immediate divisor must not be 0", "check the macro or constant behind it"),
    // References and locks.
    path(&[" would lead to reference leak"],
        "a reference is not released on this path",
        "what was acquired (a socket, a ring buffer record, an object) must be given back before \
the program or the section ends", RELEASE_FIX),
    path(&["must be referenced when passed to release function"],
        "what is released was not acquired",
        "only pointers that hold a reference may be released, and only once",
        "release what the acquiring function returned, unchanged, and once"),
    path(&["release kernel function ", " expects refcounted"],
        "what is released was not acquired", "only pointers that hold a reference may be released, and only once",
        "release what the acquiring function returned, unchanged, and once"),
    path(&["arg ", " is an unacquired reference"],
        "what is released was not acquired", "only pointers that hold a reference may be released, and only once",
        "release what the acquiring function returned, unchanged, and once"),
    path(&["must be referenced or trusted"],
        "the function asks for a pointer that is sure to stay valid",
        "the pointer was read from memory, so that the object may be gone",
        "acquire a reference first (bpf_task_acquire, bpf_cgroup_acquire …), or pass the program's argument itself"),
    path(&["must be a rcu pointer"],
        "the pointer is not protected by RCU", "the object may be freed at any time",
        "put the access between bpf_rcu_read_lock() and bpf_rcu_read_unlock()"),
    path(&["must be held for bpf_"],
        "the lock that guards this list or tree is not held",
        "lists and red-black trees may only be touched under the bpf_spin_lock beside them",
        "call bpf_spin_lock(&lock) before, with the lock of the same map value or object"),
    path(&["bpf_spin_unlock of different lock"],
        "another lock is released than was taken", "a section has one lock",
        "unlock the lock that was taken; look it up once and keep the pointer"),
    path(&["function calls are not allowed while holding a lock"],
        "a function is called under a spin lock", "the section must be short and cannot sleep or fail", LOCK_FIX),
    path(&["cannot be used inside bpf_", "-ed region"],
        "the program ends, or does something that is not allowed, inside of a locked section",
        "sections of spin locks, RCU, preemption and irq must end before", LOCK_FIX),
    path(&["cannot be accessed directly by load/store"],
        "a special field is read or written directly",
        "locks, timers, lists and the like belong to the kernel",
        "use the helpers; copy the other members one by one, not the whole structure"),
    path(&["direct access to ", " is disallowed"],
        "a special field is read or written directly", "locks, timers, lists and the like belong to the kernel",
        "use the helpers; copy the other members one by one, not the whole structure"),
    path(&["kptr"],
        "a kernel pointer in a map is used in a way that its type does not allow",
        "kptrs are stored by bpf_kptr_xchg and have one type each",
        "use bpf_kptr_xchg, and release what it returns"),
    // Calls.
    path(&["program of this type cannot use helper"],
        "programs of this type may not call this helper",
        "each program type has its own list of helpers", HELPER_FIX),
    path(&["cannot call GPL-restricted function"],
        "the helper is for programs under the GPL", "the license section says something else",
        "declare `char LICENSE[] SEC(\"license\") = \"GPL\";` if that is its licence"),
    path(&["calling kernel function ", " is not allowed"],
        "programs of this type may not call this kernel function",
        "each kfunc is registered for certain program types", HELPER_FIX),
    path(&["helper call might sleep in a non-sleepable prog"],
        "a helper that may sleep is called where sleeping is not allowed",
        "only sleepable programs may wait for memory or locks, and only outside of locked sections",
        "put `.s` behind the section's type (`fentry.s`, `lsm.s`, `iter.s`, `uprobe.s`), or use the variant that does not sleep"),
    path(&["sleepable"],
        "something that may sleep is used where sleeping is not allowed",
        "only sleepable programs may wait for memory or locks, and only outside of locked sections",
        "put `.s` behind the section's type (`fentry.s`, `lsm.s`, `iter.s`, `uprobe.s`), or use the variant that does not sleep"),
    path(&["tracing progs cannot use "],
        "tracing programs may not use this kind of map field",
        "they run in any context, also where the lock is held already", "use a map without that field, or atomics"),
    path(&["Expected an initialized dynptr"],
        "the dynptr is not initialised", "it was never made, or a call has invalidated it",
        "make it with bpf_dynptr_from_mem, bpf_ringbuf_reserve_dynptr … on every path, and let no copy of it be overwritten"),
    path(&["dynptr"],
        "a dynptr is used in a way that is not allowed",
        "dynptrs live on the stack, are made and ended by functions only, and are never copied",
        "pass the address of the same local variable to each function; end referenced dynptrs once"),
    path(&["expected an initialized iter"],
        "the iterator is not running", "next and destroy need an iterator that new has started",
        "call bpf_iter_*_new first, on every path, and destroy it once; bpf_for_each does both"),
    path(&["R", " type=", " expected="],
        "an argument has the wrong type",
        "the function asks for another kind of pointer than it is given",
        "pass what the function's documentation names: the address of a local variable, a map value, the context …"),
    path(&["cannot pass map_type "],
        "this function does not work on maps of that type", "each map type has its own operations",
        "use the functions that the map type's documentation names"),
    path(&["Caller passes invalid args into func#"],
        "arguments do not fit a global function",
        "global functions are verified apart, for any arguments of their declared types",
        "make the function static, or say in its declaration what it takes (__arg_nonnull, __arg_trusted, __arg_ctx)"),
    path(&["must be a known constant"],
        "an argument must be a constant", "the verifier needs its value to check the rest",
        "pass a constant, or branch on the value and pass a constant in each branch"),
    path(&["same insn cannot be used with different pointers"],
        "one instruction accesses different kinds of memory",
        "the compiler merged two branches that access through different pointers",
        "keep the branches apart with `asm volatile(\"\");` or access in functions of their own"),
    path(&["leaks addr"],
        "a kernel address would reach user space", "only privileged programs may hand addresses out",
        "return or store a number instead of a pointer"),
    path(&["At program exit the register R0 has"],
        "the program returns a value that its type does not allow",
        "the attach point gives a meaning to some values only",
        "return one of the values in the range that the message names, on every path"),
    path(&["At ", "the register R", "should have been in"],
        "a function returns a value that is not allowed", "what calls it gives a meaning to some values only",
        "return one of the values in the range that the message names, on every path"),
    // Size and shape.
    whole(&["BPF program is too large. Processed"],
        "verification takes more than a million instructions",
        "all paths together are too long: the values that differ from path to path keep them from being merged",
        SPLIT_FIX),
    whole(&["jumps is too complex"],
        "too many branches wait to be walked", "each branch that may go both ways is walked twice, \
and more than 8192 were open at a time", SPLIT_FIX),
    // Its last line shows the state that came back.
    path(&["old state: "],
        "a loop does not end", "the state was the same at the same place before: nothing counts towards an end",
        "count with a variable that is compared with a constant, or use bpf_loop or bpf_for"),
    path(&["infinite loop detected"],
        "a loop does not end", "the state was the same at the same place before: nothing counts towards an end",
        "count with a variable that is compared with a constant, or use bpf_loop or bpf_for"),
    path(&["back-edge from insn"],
        "the program has a loop", "unprivileged programs must not loop",
        "unroll it (`#pragma unroll`), or load with CAP_BPF"),
    whole(&["combined stack size of "],
        "a chain of calls needs more than 512 bytes of stack",
        "the stacks of all functions that are active at a time count together", STACK_FIX),
    path(&["the call stack of ", " is too deep"],
        "calls are nested more than eight deep", "a program has eight frames",
        "inline functions (`__always_inline`) or flatten the recursion"),
    whole(&["unreachable insn"],
        "instructions are never reached", "dead code would escape the checks", "remove the code, or compile with -O2"),
    path(&["jump out of range"],
        "a jump leaves its function", "each function is a closed piece of code", "end every path with exit"),
    path(&["last insn is not an exit or jmp"],
        "a function falls off its end", "the last instruction must return or jump",
        "return on every path; code after __builtin_unreachable() runs on"),
    path(&["invalid kernel function call not eliminated"],
        "a kernel function is called that this kernel does not have", "the weak symbol was not resolved",
        "guard the call: `if (bpf_ksym_exists(f))`"),
    path(&["failed to resolve CO-RE relocation"],
        "a type or member is missing in this kernel",
        "the field was renamed, moved or configured away",
        "guard the access: `if (bpf_core_field_exists(x->y))`"),
    path(&["REG INVARIANTS VIOLATION"],
        "bounds of a register contradict each other", "the path cannot be taken, though the verifier cannot see it",
        "test the same variable once"),
    // Arguments and fields of kernel functions.
    path(&["expected pointer to "],
        "an argument has the wrong type",
        "the function asks for another structure than it is given",
        "pass a pointer of the type that the message names; the types before and after initialisation differ (nf_conn___init)"),
    path(&[" is of type ", " is expected"],
        "an argument has the wrong type", "the function asks for another structure than it is given",
        "pass a pointer of the type that the message names"),
    path(&["pointer type ", " must point to "],
        "an argument points to a structure that cannot be passed so",
        "arguments of unknown kernel types must be plain memory: numbers, or structures of numbers",
        "pass a copy on the stack, or a pointer that the verifier knows as a kernel object"),
    path(&["memory, len pair leads to invalid memory access"],
        "the length does not fit the memory that is passed with it",
        "pointer and length are checked together", BOUND_FIX),
    path(&["must have zero offset when passed"],
        "a pointer into the middle of an object is passed",
        "what is released or trusted must be the object itself", "pass the pointer that the acquiring function returned, unchanged"),
    path(&["invalid ", "sock access off="],
        "this field of the socket cannot be accessed so",
        "only some fields may be read, in their own size", "look the field up in linux/bpf.h (struct bpf_sock), or take a full socket with bpf_sk_fullsock"),
    path(&["not found at offset="],
        "the argument is not the special field that the function asks for",
        "lists, trees and their nodes stand at fixed places of their structures",
        "pass the address of the field itself: `&object->node`"),
    path(&["has no valid bpf_spin_lock"],
        "the map value has no spin lock", "a lock must be a member of the value, known by BTF",
        "put a `struct bpf_spin_lock` into the value and give the map BTF types for it"),
    path(&["exception cb"],
        "the exception callback is not as it has to be", "it takes one number, returns one, and is named once",
        "declare it `__u64 cb(__u64 cookie)` and name it with one __exception_cb tag"),
    whole(&["multiple exception callback tags"],
        "the program names several exception callbacks", "an exception has one place to go to",
        "leave one __exception_cb tag"),
    path(&["bpf_throw"],
        "an exception is thrown where nothing could clean up", "callbacks and locked sections cannot be unwound",
        "return an error from the callback and throw in the program"),
    path(&["type ID argument must be"],
        "the type that is to be allocated or cast to does not suit",
        "it must be a structure of the program's own BTF, given by bpf_core_type_id_local", "pass typeof a structure that the program defines"),
    path(&["failed to find the address for kernel symbol"],
        "a kernel variable is used that this kernel does not export by BTF", "the symbol is missing or static here",
        "declare it `__weak` and test its address before use"),
    path(&["referenced but wasn't resolved"],
        "a kernel function is called that this kernel does not have", "the weak symbol was not resolved",
        "guard the call: `if (bpf_ksym_exists(f))`"),
    path(&["BPF_ATOMIC "],
        "an atomic operation is applied to memory that does not take it",
        "atomics work on map values, the stack and allocated objects only", "keep the counter in a map value"),
    path(&["At program exit the register R", "is not a known value"],
        "the program returns a pointer or an unknown value", "the attach point gives a meaning to some numbers only",
        "return a number in the range of the program type, on every path"),
    path(&["attach to unsupported member"],
        "programs cannot take the place of this operation", "the kernel structure leaves only some members to BPF",
        "remove the program, or implement another member"),
    path(&["GPL compatible license"],
        "the program must be under a licence compatible with the GPL", "the license section says something else",
        "declare `char LICENSE[] SEC(\"license\") = \"GPL\";` if that is its licence"),
    // Attaching.
    whole(&["is not a supported struct"],
        "the operation's structure is not one that this kernel lets programs implement",
        "a struct_ops program belongs to a member of a structure that the kernel has registered",
        "check the name and the kernel's version (`bpfkit btf` shows its types); load the map of the structure with the program"),
    whole(&["must provide btf_id"],
        "the program does not say which function of the kernel it attaches to",
        "the section names a function that the BTF of this kernel does not have, or names none",
        "check the name behind the slash of SEC(); functions of modules need the module's BTF; or set it with bpf_program__set_attach_target()"),
    whole(&["points to disabled hook"],
        "programs may not attach to this LSM hook", "the hook returns what the kernel would have to trust",
        "attach to another hook"),
    whole(&["void LSM hooks can't modify return value"],
        "the program returns a value from a hook that has none", "what a void hook returns is dropped, and must be 1",
        "return 1 on every path"),
    whole(&["is not modifiable"],
        "the return value of this function cannot be replaced",
        "fmod_ret programs attach to security hooks and to functions marked for error injection only",
        "use fentry or fexit, or another function"),
    whole(&["metadata kfuncs require device-bound program"],
        "packet metadata of a device is asked for without a device", "each driver brings its own functions",
        "bind the program to the device: BPF_F_XDP_DEV_BOUND_ONLY with its ifindex when it is loaded"),
    whole(&["helper call is not allowed in probe"],
        "a helper is called where it could call itself", "the program is attached inside of what the helper uses",
        "attach elsewhere, or keep the value in another map"),
    path(&["doesn't return scalar"],
        "a global function does not return a number", "global functions are verified apart, and only numbers cross their end",
        "make it `int f(...)`, or static"),
    path(&["use static function instead"],
        "a global function is called where only static ones may be",
        "global functions are verified apart from the lock that is held", "make the function static"),
    path(&["LD_ABS is only allowed in functions that return"],
        "a classic packet load stands in a function that returns no int",
        "the load ends the whole function with 0 where the packet is too short", "let the function return int, or use bpf_skb_load_bytes"),
    path(&["the prog does not allow writes to packet data"],
        "programs of this type may only read packets", "direct writes are for types that own the packet, such as tc and XDP",
        "ask for read access (bpf_dynptr_slice), or use another program type"),
    // Sections and iterators.
    path(&["unmatched rcu read unlock"],
        "an RCU section is ended that was not begun", "each unlock belongs to a lock on the same path",
        "call bpf_rcu_read_lock() before, on every path that comes here"),
    path(&["nested rcu read lock"],
        "an RCU section is begun inside of another", "sections of a program do not nest",
        "end the first with bpf_rcu_read_unlock() before"),
    path(&["requires RCU critical section protection"],
        "the iterator walks what RCU protects", "objects may be freed while it walks",
        "put the loop between bpf_rcu_read_lock() and bpf_rcu_read_unlock(), or use a program that does not sleep"),
    path(&["expected an RCU CS"],
        "the iterator walks what RCU protects", "the section was ended before the iterator",
        "end the RCU section after bpf_iter_*_destroy"),
    path(&["expected uninitialized iter"],
        "an iterator is started that runs already", "an iterator must end before its variable is used again",
        "call bpf_iter_*_destroy first, or use a second variable"),
    path(&["bpf_spin_unlock without taking a lock"],
        "a lock is released that is not held", "each unlock belongs to a lock on the same path",
        "call bpf_spin_lock before, on every path that comes here"),
    path(&[" in rbtree cb"],
        "the callback that compares nodes does more than that", "it runs while the tree is being changed",
        "compare the two nodes and return, nothing else"),
    path(&[" not allowed in rbtree cb"],
        "the callback that compares nodes does more than that", "it runs while the tree is being changed",
        "compare the two nodes and return, nothing else"),
    // Objects, lists and special fields.
    path(&["operation on ", " expects arg#"],
        "a node is put into a list or tree of another kind", "a list takes one member of one structure, as its __contains tag says",
        "pass the address of that member: `&object->node`"),
    path(&["offset=", ", but expected "],
        "the argument is not the special field that the function asks for", "a list takes one member of one structure, as its __contains tag says",
        "pass the address of that member: `&object->node`"),
    path(&["doesn't have constant offset"],
        "a special field is addressed at an offset that is not constant", "locks, lists and timers are known at constant offsets only",
        "select the field with if or switch instead of an index"),
    path(&["doesn't point to 'struct "],
        "the pointer does not lead to the special field", "an offset was added to it or left out",
        "pass the address of the field itself: `&value->lock`"),
    path(&["can only take non-owning or refcounted"],
        "the node is no longer known to be in the tree", "pointers to nodes that others own end with the locked section",
        "look the node up again in the same section, or use bpf_refcount_acquire"),
    path(&["expected for bpf_", "obj_drop_impl"],
        "an object is dropped by the wrong function", "per-CPU objects and plain ones are freed in different ways",
        "use bpf_obj_drop for bpf_obj_new, and bpf_percpu_obj_drop for bpf_percpu_obj_new"),
    path(&["bpf_percpu_obj_new type "],
        "this type cannot be allocated for each CPU", "it must be a structure of numbers of at most 512 bytes",
        "make it smaller, without pointers and special fields"),
    path(&["map_uid=", " doesn't match map pointer"],
        "a timer or work queue is initialised with the map of another value", "it keeps the map that its value belongs to alive",
        "pass the map in which the value was looked up; of inner maps, the pointer that the look-up gave"),
    path(&["pointer in R", " isn't map pointer"],
        "a map is wanted and something else is passed", "the function keeps the map that the value belongs to alive",
        "pass `&map`, the map in which the value was looked up"),
    path(&["no write support to "],
        "this field of a kernel object cannot be written", "only some fields are open to programs",
        "call the kfunc that sets the field, or keep the value in a map of your own"),
    path(&[" is bpf_array invalid negative access"],
        "a map's structure is read before its beginning", "fields have offsets from 0 on", "read a field of struct bpf_map or bpf_array"),
    path(&["only read from bpf_array is supported"],
        "a map's structure is written", "it belongs to the kernel", "use the map's functions to change it"),
    // Strings, buffers, other memory.
    path(&["does not point to a readonly map"],
        "a constant string is wanted", "the verifier reads the text, so that it must never change",
        "put it into .rodata: `static const char text[] = \"...\";`"),
    path(&["string is not zero-terminated"],
        "a string has no end", "its map value holds no zero byte behind it", "make the array one byte larger, ending in 0"),
    path(&["may write into memory pointed by"],
        "a helper would write to memory that may only be read", "the pointer leads to a kernel object",
        "pass a buffer on the stack or in a map value"),
    path(&["get_local_storage() doesn't support non-zero flags"],
        "flags are passed that this helper does not have", "they are kept for later and must be 0", "pass 0"),
    path(&["is not pointing to valid bpf_map"],
        "an instruction names a map that is not there", "the number in it is no open map", "load the program with its maps, through a loader"),
    path(&["buffer access"],
        "the buffer is accessed outside of its bounds", "its size is fixed where it is made, and it begins at offset 0",
        "use offsets from 0 on that are known to lie inside"),
    path(&["invalid variable buffer offset"],
        "the buffer is accessed at an offset that is not constant", "its bounds are checked when the program attaches",
        "use constant offsets"),
    path(&["invalid sock_common access"],
        "this field of the socket cannot be accessed so", "a socket that may be no full one has few fields",
        "take a full socket first: bpf_sk_fullsock, bpf_tcp_sock"),
    // Arithmetic on pointers.
    path(&["bitwise operator "],
        "bits of a pointer are changed", "the result would point nowhere that is known", "compute with the offset in a variable of its own, then add it"),
    path(&["32-bit pointer arithmetic prohibited"],
        "a pointer is computed with in 32 bits", "its upper half would be lost", "use a 64-bit variable (long, __u64) for the address"),
    path(&["pointer arithmetic with "],
        "a pointer takes part in an operation other than + and -", "the result would point nowhere that is known",
        "compute with the offset in a variable of its own, then add it"),
    path(&["subtraction from stack pointer prohibited"],
        "a number is subtracted from a pointer to the stack", "the compiler never does so, and the stack grows downwards from r10",
        "add the negative constant instead"),
    path(&["invalid size of register fill"],
        "part of a pointer is read back from the stack", "a stored pointer can only be read whole", "read eight bytes at its slot"),
    path(&["invalid unbounded variable-offset "],
        "the stack is accessed at a place that is not known", "an index of a local array has no bound", BOUND_FIX),
    path(&["R", " is invalid"],
        "an instruction names a register that does not exist", "programs have r0 to r10", "assemble the program again"),
    // Whatever else.
    path(&[],
        "the verifier cannot prove that the program is safe",
        "the message says what it could not prove",
        "look at the last line of the path and at the values that lead there"),
];

/// The rule that a message tells of.
pub fn find(message: &str) -> &'static Rule {
    let fits = |rule: &&Rule| {
        let mut rest = Some(message);
        for fragment in rule.fragments {
            rest = rest
                .and_then(|text| text.split_once(fragment))
                .map(|(_, after)| after);
        }
        rest.is_some()
    };
    // The last rule fits all.
    RULES.iter().find(fits).unwrap_or(&RULES[RULES.len() - 1])
}

#[cfg(test)]
mod tests {
    use super::{RULES, Scope, find};

    #[test]
    fn messages_find_their_rules() {
        for (message, rule) in [
            ("R0 invalid mem access 'map_value_or_null'", "may be NULL"),
            (
                "R8 pointer arithmetic on ptr_or_null_ prohibited, null-check it first",
                "may be NULL",
            ),
            ("R1 type=sock_or_null expected=sock", "may be NULL"),
            ("R1 type=ctx expected=fp", "wrong type"),
            (
                "R6 offset is outside of the packet",
                "compared with its end",
            ),
            (
                "math between fp pointer and register with unbounded min value is not allowed",
                "without a bound",
            ),
            (
                "math between fp pointer and 2147483647 is not allowed",
                "far too large",
            ),
            (
                "write into map forbidden, value_size=48 off=0 size=8",
                "does not allow",
            ),
            (
                "BPF_EXIT instruction in main prog would lead to reference leak",
                "not released",
            ),
            (
                "The sequence of 8193 jumps is too complex.",
                "too many branches",
            ),
            (
                "combined stack size of 2 calls is 544. Too large",
                "512 bytes of stack",
            ),
            (
                "At program exit the register R0 has smin=255 smax=255 should have been in [0, 3]",
                "returns a value",
            ),
            (
                "R2 is of type task_struct but cgroup is expected",
                "wrong type",
            ),
            (
                "At program exit the register R0 is not a known value (ctx)",
                "returns a pointer",
            ),
            (
                "R1 invalid rdwr buffer access: off=-4, size=4",
                "outside of its bounds",
            ),
            (
                "nested rcu read lock (kernel function bpf_rcu_read_lock)",
                "inside of another",
            ),
            ("R15 is invalid", "does not exist"),
            ("something else", "cannot prove"),
        ] {
            let found = find(message).rule;
            assert!(found.contains(rule), "{message}: {found}");
        }
    }

    /// Every message with which Linux refuses a program of its selftests.
    #[test]
    fn every_message_of_the_kernel_has_a_rule() {
        let file = "../../testdata/oracle/linux-6.18.44-selftests-6.12.jsonl";
        let text = std::fs::read_to_string(file).expect("the oracle is here");
        let mut refused = 0;
        for line in text.lines() {
            let row: serde_json::Value = serde_json::from_str(line).expect("a line is JSON");
            // Without a message the kernel could not read the program at all.
            let message = row["message"].as_str().unwrap_or_default();
            if row["verdict"] != "reject" || message.is_empty() {
                continue;
            }
            refused += 1;
            assert!(!find(message).fragments.is_empty(), "no rule: {message}");
        }
        assert!(refused > 900, "{refused}");
    }

    #[test]
    fn rules_are_sentences_without_a_period() {
        for rule in RULES {
            for text in [rule.rule, rule.why, rule.fix] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{text}");
            }
        }
        assert_eq!(
            find("The sequence of 8193 jumps is too complex.").scope,
            Scope::Program
        );
    }
}
