//! How deep calls nest, and how much stack they take together.

use bpfkit_spec::{AttachType, ProgType};

use crate::checker::{Checker, is_call, is_func_ref, is_kfunc_call, is_may_goto};
use crate::fail::{Errno, Res, fail};
use crate::kfunc::Special;
use crate::state::{MAX_FRAMES, MAX_STACK};

/// Stack before a call with a tail call in it.
const MAX_BEFORE_TAIL_CALL: i32 = 256;
/// Least stack for which a function gets a stack of its own.
const PRIVATE_STACK_MIN: i32 = 64;

/// Whether the JIT gives a function a stack of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrivateStack {
    Unknown,
    No,
    Yes,
}

impl Checker<'_> {
    /// Takes the spills that the JIT drops off the stack's depth.
    pub fn drop_fastcall_spills(&mut self) {
        for sub in 0..self.subs.len() {
            let range = self.subs[sub].start as usize..self.sub_end(sub) as usize;
            let dropped = self.aux[range].iter().any(|a| a.fastcall_spills > 0);
            let known = &mut self.subs[sub];
            if dropped && !known.keep_fastcall_stack {
                known.stack_depth = -(known.fastcall_stack_off as i32) as u32;
            }
        }
    }

    /// A timed `may_goto` needs room for its count and its time; calls of `bpf_loop` that
    /// become loops need room for three registers.
    pub fn add_loop_stack(&mut self) {
        for sub in 0..self.subs.len() {
            let range = self.subs[sub].start as usize..self.sub_end(sub) as usize;
            if self.aux[range]
                .iter()
                .any(|a| matches!(a.loop_inline, Some(Some(_))))
            {
                let depth = &mut self.subs[sub].stack_depth;
                *depth = depth.next_multiple_of(8) + 24;
            }
            let range = self.subs[sub].start as usize..self.sub_end(sub) as usize;
            if self.insns[range].iter().any(is_may_goto) {
                let depth = &mut self.subs[sub].stack_depth;
                *depth = depth.next_multiple_of(8) + 16;
            }
        }
    }

    fn may_have_private_stack(&self) -> bool {
        if self.subs.iter().any(|s| s.has_tail_call) {
            return false;
        }
        match self.program.decl.prog_type {
            ProgType::Kprobe
            | ProgType::Tracepoint
            | ProgType::PerfEvent
            | ProgType::RawTracepoint => true,
            ProgType::Tracing => self.program.decl.attach_type != AttachType::TraceIter,
            _ => false,
        }
    }

    /// Checks the stack of every chain of calls, of callbacks that run later each on its own.
    pub fn check_stack_depth(&mut self) -> Res {
        let mut private = vec![PrivateStack::Unknown; self.subs.len()];
        let supported = self.may_have_private_stack();
        for sub in (0..self.subs.len()).rev() {
            if sub == 0 || self.subs[sub].is_async_callback {
                self.check_chain(sub, sub == 0 && supported, &mut private)?;
            }
        }
        Ok(())
    }

    fn rounded_depth(&self, sub: usize) -> i32 {
        (self.subs[sub].stack_depth as i32 + 15) / 16 * 16
    }

    fn check_chain(&mut self, root: usize, supported: bool, private: &mut [PrivateStack]) -> Res {
        let mut callers: Vec<(u32, usize)> = Vec::new();
        let (mut sub, mut depth) = (root, 0);
        let mut at = self.subs[root].start;
        let mut tail_call = false;
        let mut entering = true;
        loop {
            if entering {
                entering = false;
                if !supported {
                    private[sub] = PrivateStack::No;
                }
                if sub != 0 && self.subs[sub].has_tail_call && depth >= MAX_BEFORE_TAIL_CALL {
                    fail!(
                        self,
                        Acces,
                        "tail_calls are not allowed when call stack of previous frames is {depth} bytes. Too large\n"
                    );
                }
                let own = self.rounded_depth(sub);
                if supported && private[sub] == PrivateStack::Unknown && own >= PRIVATE_STACK_MIN {
                    private[sub] = PrivateStack::Yes;
                }
                if private[sub] == PrivateStack::Yes {
                    if own > MAX_STACK {
                        fail!(
                            self,
                            Acces,
                            "stack size of subprog {sub} is {own}. Too large\n"
                        );
                    }
                } else {
                    depth += own;
                    if depth > MAX_STACK {
                        let calls = callers.len() + 1;
                        fail!(
                            self,
                            Acces,
                            "combined stack size of {calls} calls is {depth}. Too large\n"
                        );
                    }
                }
            }
            if let Some(callee) = self.next_callee(&mut at, sub, &callers)? {
                callers.push((at + 1, sub));
                sub = callee;
                at = self.subs[callee].start;
                tail_call |= self.subs[callee].has_tail_call;
                if callers.len() >= MAX_FRAMES {
                    let frames = callers.len();
                    fail!(
                        self,
                        TooBig,
                        "the call stack of {frames} frames is too deep !\n"
                    );
                }
                entering = true;
                continue;
            }
            if tail_call {
                for &(_, caller) in &callers {
                    if self.subs[caller].is_exception_callback {
                        fail!(self, Inval, "cannot tail call within exception cb\n");
                    }
                    self.subs[caller].tail_call_reachable = true;
                }
            }
            let Some((back, caller)) = callers.pop() else {
                return Ok(());
            };
            if private[sub] != PrivateStack::Yes {
                depth -= self.rounded_depth(sub);
            }
            (at, sub) = (back, caller);
        }
    }

    /// Looks from `at` for the next call of a subprogram.
    fn next_callee(
        &mut self,
        at: &mut u32,
        sub: usize,
        callers: &[(u32, usize)],
    ) -> Res<Option<usize>> {
        while *at < self.sub_end(sub) {
            let insn = self.insns[*at as usize];
            if is_kfunc_call(&insn) && insn.off == 0 {
                let throws = self
                    .kfunc_of(&insn)
                    .is_some_and(|k| self.kfuncs[k].special == Special::Throw);
                let in_callback = self.subs[sub].is_callback
                    || callers.iter().any(|c| self.subs[c.1].is_callback);
                if throws && in_callback {
                    let at = *at;
                    fail!(
                        self,
                        Inval,
                        "bpf_throw kfunc (insn {at}) cannot be called from callback subprog {sub}\n"
                    );
                }
            } else if is_call(&insn) || is_func_ref(&insn) {
                let to = *at as i64 + insn.imm as i64 + 1;
                let callee = self.sub_at(to).ok_or(Errno::Fault)?;
                let known = &self.subs[callee];
                if !known.is_async_callback {
                    return Ok(Some(callee));
                }
                if is_call(&insn) {
                    if known.is_exception_callback {
                        let at = *at;
                        fail!(self, Inval, "insn {at} cannot call exception cb directly\n");
                    }
                    return Ok(Some(callee));
                }
            }
            *at += 1;
        }
        Ok(None)
    }
}
