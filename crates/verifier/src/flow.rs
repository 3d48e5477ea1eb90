//! The control-flow graph within subprograms: successors, predecessors, bounds.

use bpfkit_isa::{Insn, code};

/// Successors and predecessors of each instruction within its subprogram.
#[derive(Default)]
pub struct Flow {
    starts: Vec<u32>,
    next: Vec<[u32; 2]>,
    next_count: Vec<u8>,
    before_start: Vec<u32>,
    before: Vec<u32>,
}

/// Distance of a jump: `gotol` has it in the immediate.
pub const fn jump_distance(insn: &Insn) -> i32 {
    if insn.code == code::JMP32 | code::JA {
        insn.imm
    } else {
        insn.off as i32
    }
}

/// Whether an instruction may jump, and whether it may go on to the next.
const fn edges(insn: &Insn) -> (bool, bool) {
    match (insn.class(), insn.code & 0xf0) {
        (code::JMP | code::JMP32, code::EXIT) => (false, false),
        (code::JMP | code::JMP32, code::JA) => (true, false),
        (code::JMP | code::JMP32, code::CALL | 0xf0) => (false, true),
        (code::JMP | code::JMP32, _) => (true, true),
        _ => (false, true),
    }
}

impl Flow {
    /// Of a program whose jumps stay in their subprogram; `starts` begins with 0 and has
    /// the program's length as sentinel.
    pub fn new(insns: &[Insn], starts: Vec<u32>) -> Flow {
        let len = insns.len() as u32;
        let mut flow = Flow {
            starts,
            ..Flow::default()
        };
        for (at, insn) in insns.iter().enumerate() {
            let (jumps, falls) = edges(insn);
            let mut next = [0; 2];
            let mut count = 0;
            if falls {
                let to = at as u32 + if insn.is_ld_imm64() { 2 } else { 1 };
                if to < len {
                    next[count] = to;
                    count += 1;
                }
            }
            if jumps {
                let to = (at as i64 + 1 + jump_distance(insn) as i64) as u32;
                if to < len {
                    next[count] = to;
                    count += 1;
                }
            }
            flow.next.push(next);
            flow.next_count.push(count as u8);
        }
        let mut counts = vec![0u32; insns.len() + 1];
        for at in 0..len {
            for &to in flow.successors(at) {
                counts[to as usize + 1] += 1;
            }
        }
        for at in 0..insns.len() {
            counts[at + 1] += counts[at];
        }
        flow.before = vec![0; counts[insns.len()] as usize];
        let mut fill = counts.clone();
        for at in 0..len {
            let (next, count) = (flow.next[at as usize], flow.next_count[at as usize]);
            for &to in &next[..count as usize] {
                flow.before[fill[to as usize] as usize] = at;
                fill[to as usize] += 1;
            }
        }
        flow.before_start = counts;
        flow
    }

    /// Instructions that may follow within the subprogram: first the next, then a jump's target.
    pub fn successors(&self, insn: u32) -> &[u32] {
        let at = insn as usize;
        &self.next[at][..self.next_count[at] as usize]
    }

    /// Instructions that it may follow.
    pub fn predecessors(&self, insn: u32) -> &[u32] {
        let at = insn as usize;
        &self.before[self.before_start[at] as usize..self.before_start[at + 1] as usize]
    }

    /// First instruction of a subprogram.
    pub fn subprog_start(&self, subprog: usize) -> u32 {
        self.starts[subprog]
    }

    /// The subprogram that holds an instruction.
    pub fn subprog_of(&self, insn: u32) -> usize {
        self.starts.partition_point(|&s| s <= insn) - 1
    }

    /// Number of instructions of the subprogram that starts there.
    pub fn subprog_len(&self, start: u32) -> usize {
        (self.starts[self.subprog_of(start) + 1] - start) as usize
    }

    /// Strongly connected components: 0 for an instruction in no loop, else the number of
    /// its component. Also the count of numbers given, plus one.
    pub fn components(&self) -> (Vec<u32>, u32) {
        const OFF_STACK: u32 = u32::MAX;
        let len = self.next.len();
        let mut component = vec![0u32; len];
        let (mut pre, mut low) = (vec![0u32; len], vec![0u32; len]);
        let (mut stack, mut path) = (Vec::new(), Vec::new());
        let (mut next_pre, mut next_component) = (1, 1);
        for root in 0..len as u32 {
            if pre[root as usize] != 0 {
                continue;
            }
            path.push(root);
            'walk: while let Some(&w) = path.last() {
                let at = w as usize;
                if pre[at] == 0 {
                    pre[at] = next_pre;
                    low[at] = next_pre;
                    next_pre += 1;
                    stack.push(w);
                }
                for &to in self.successors(w) {
                    if pre[to as usize] == 0 {
                        path.push(to);
                        continue 'walk;
                    }
                    low[at] = low[at].min(low[to as usize]);
                }
                path.pop();
                if low[at] < pre[at] {
                    continue;
                }
                let is_loop = stack.last() != Some(&w) || self.successors(w).contains(&w);
                while let Some(member) = stack.pop() {
                    low[member as usize] = OFF_STACK;
                    if is_loop {
                        component[member as usize] = next_component;
                    }
                    if member == w {
                        break;
                    }
                }
                next_component += u32::from(is_loop);
            }
        }
        (component, next_component)
    }

    /// Instructions of all subprograms in postorder, for backward analyses.
    pub fn postorder(&self) -> Vec<u32> {
        let mut order = Vec::with_capacity(self.next.len());
        let mut state = vec![0u8; self.next.len()];
        let mut stack = Vec::new();
        for &start in &self.starts[..self.starts.len() - 1] {
            stack.push(start);
            while let Some(&top) = stack.last() {
                if state[top as usize] == 2 {
                    order.push(top);
                    stack.pop();
                    state[top as usize] = 3;
                    continue;
                }
                if state[top as usize] == 3 {
                    stack.pop();
                    continue;
                }
                state[top as usize] = 2;
                for &to in self.successors(top) {
                    if state[to as usize] == 0 {
                        state[to as usize] = 1;
                        stack.push(to);
                    }
                }
            }
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn insn(code: u8, off: i16) -> Insn {
        Insn {
            code,
            off,
            ..Insn::default()
        }
    }

    #[test]
    fn loops_share_a_component_and_straight_code_has_none() {
        let program = [
            insn(code::ALU64 | code::MOV, 0),
            insn(code::ALU64 | code::ADD, 0),
            insn(code::JMP | code::JEQ, -2),
            insn(code::JMP | code::JA, -1),
            insn(code::JMP | code::EXIT, 0),
        ];
        let flow = Flow::new(&program, vec![0, 5]);
        let (component, _) = flow.components();
        assert_eq!(component[0], 0);
        assert_ne!(component[1], 0);
        assert_eq!(component[1], component[2]);
        assert_ne!(component[3], 0, "a jump to itself is a loop");
        assert_ne!(component[3], component[1]);
        assert_eq!(component[4], 0);
        assert_eq!(flow.predecessors(1), &[0, 2]);
        assert_eq!(flow.successors(2), &[3, 1]);
    }
}
