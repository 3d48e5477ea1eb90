//! Loads and stores of parts of a word, as one of the word.
//!
//! Both rules follow the bytes: which byte of memory, or of a register, lies where in the
//! registers that the instructions work on.

use bpfkit_isa::{AluOp, Op, Operand, Reg, Size, Swap, Width};

use super::{Combined, Match, View};
use crate::lower::{Mask, Rule};

/// Instructions looked at: eight bytes take four each.
const WINDOW: usize = 40;

/// A word by its bytes, lowest first: `T` says where one comes from, `None` is zero.
type Word<T> = [Option<T>; 8];

fn shifted_left<T: Copy>(word: Word<T>, by: usize) -> Word<T> {
    std::array::from_fn(|i| i.checked_sub(by).and_then(|i| word[i]))
}

fn shifted_right<T: Copy>(word: Word<T>, by: usize) -> Word<T> {
    std::array::from_fn(|i| word.get(i + by).copied().flatten())
}

/// The lowest bytes alone.
fn low<T: Copy>(word: Word<T>, bytes: usize) -> Word<T> {
    std::array::from_fn(|i| word[i].filter(|_| i < bytes))
}

/// Both, where at most one has something in each place.
fn joined<T: Copy>(a: Word<T>, b: Word<T>) -> Option<Word<T>> {
    let apart = a.iter().zip(&b).all(|(a, b)| a.is_none() || b.is_none());
    apart.then(|| std::array::from_fn(|i| a[i].or(b[i])))
}

fn bytes_of(width: Width) -> usize {
    match width {
        Width::W32 => 4,
        Width::W64 => 8,
    }
}

fn size_of(bytes: usize) -> Option<Size> {
    match bytes {
        2 => Some(Size::H),
        4 => Some(Size::W),
        8 => Some(Size::DW),
        _ => None,
    }
}

/// Bytes that a shift by that many bits moves by.
fn whole_bytes(imm: i32, width: Width) -> Option<usize> {
    let bytes = usize::try_from(imm).ok().filter(|bits| bits % 8 == 0)? / 8;
    (bytes < bytes_of(width)).then_some(bytes)
}

/// Whether the offsets count up from the first, or down to the last: first offset, reversed.
fn run(offsets: impl Iterator<Item = i32> + Clone) -> Option<(i32, bool)> {
    let pairs = || offsets.clone().zip(offsets.clone().skip(1));
    let (first, last) = (offsets.clone().next()?, offsets.clone().last()?);
    if pairs().all(|(a, b)| b == a + 1) {
        Some((first, false))
    } else {
        pairs().all(|(a, b)| b == a - 1).then_some((last, true))
    }
}

fn bit(reg: Reg) -> Mask {
    1 << reg.number()
}

impl View<'_, '_> {
    /// Loads of bytes or parts of a word, shifted and joined to the word, in either order.
    pub(super) fn wide_load(&self, slot: usize, first: &Op) -> Option<Match> {
        let Op::Load { base, size, .. } = *first else {
            return None;
        };
        // In checked code each access faults for itself.
        if size == Size::DW || self.plan.checked || !self.has(Rule::WideLoad) {
            return None;
        }
        if !matches!(self.next(slot + 1)?, Op::Load { .. } | Op::Alu { .. }) {
            return None;
        }
        let mut words: [Option<Word<i32>>; 11] = [None; 11];
        let (mut written, mut loads, mut best): (Mask, _, _) = (0, 0, None);
        for at in slot..slot + WINDOW {
            let op = if at == slot {
                first
            } else {
                match self.next(at) {
                    Some(op) => op,
                    None => break,
                }
            };
            let (dst, word) = match *op {
                Op::Load {
                    size,
                    signed: false,
                    dst,
                    base: from,
                    off,
                } if from == base && written & bit(base) == 0 && size != Size::DW => {
                    loads += 1;
                    let bytes = size.bytes() as usize;
                    let word =
                        std::array::from_fn(|i| (i < bytes).then_some(i32::from(off) + i as i32));
                    (dst, Some(word))
                }
                Op::Alu {
                    op,
                    width,
                    dst,
                    src,
                } => {
                    let old = words[dst.index()];
                    let word = match (op, src) {
                        (AluOp::Mov, Operand::Reg(src)) => words[src.index()],
                        (AluOp::Lsh, Operand::Imm(imm)) => {
                            whole_bytes(imm, width).and_then(|by| Some(shifted_left(old?, by)))
                        }
                        (AluOp::Or | AluOp::Add | AluOp::Xor, Operand::Reg(src)) => {
                            old.and_then(|old| joined(old, words[src.index()]?))
                        }
                        _ => None,
                    };
                    (dst, word.map(|word| low(word, bytes_of(width))))
                }
                _ => break,
            };
            let Some(word) = word else { break };
            words[dst.index()] = Some(word);
            written |= bit(dst);
            let others = written & !bit(dst);
            if loads < 2 || self.plan.live_out(at) & others != 0 {
                continue;
            }
            let bytes = word.iter().rposition(Option::is_some).map_or(0, |i| i + 1);
            let offsets = word[..bytes].iter().flatten().copied();
            let whole = size_of(bytes).filter(|_| offsets.clone().count() == bytes);
            if let (Some(size), Some((off, reversed))) = (whole, run(offsets)) {
                best = Some((at + 1, dst, size, off, reversed));
            }
        }
        let (end, dst, size, off, reversed) = best?;
        let load = Op::Load {
            size,
            signed: false,
            dst,
            base,
            off: i16::try_from(off).ok()?,
        };
        let combined = match load {
            Op::Load { off, .. } if reversed => Combined::LoadSwapped {
                size,
                dst,
                base,
                off,
            },
            load => Combined::Op(load),
        };
        Some(Match { combined, end })
    }

    /// A load, and a byte swap of all that was loaded.
    pub(super) fn swapped_load(&self, slot: usize, load: &Op) -> Option<Match> {
        let Op::Load {
            size,
            signed: false,
            dst,
            base,
            off,
        } = *load
        else {
            return None;
        };
        let Op::Swap {
            kind: Swap::ToBe | Swap::Always,
            bits,
            dst: swapped,
        } = *self.next(slot + 1)?
        else {
            return None;
        };
        let same = swapped == dst && u32::from(bits) == size.bytes() * 8;
        (same && self.has(Rule::SwappedLoad)).then_some(Match {
            combined: Combined::LoadSwapped {
                size,
                dst,
                base,
                off,
            },
            end: slot + 2,
        })
    }

    /// Stores of all bytes or parts of a register, in either order, and neighbouring stores
    /// of zero.
    pub(super) fn wide_store(&self, slot: usize) -> Option<Match> {
        let &Op::Store { base, size, .. } = self.plan.op(slot)? else {
            return None;
        };
        if size == Size::DW || self.plan.checked || !self.has(Rule::WideStore) {
            return None;
        }
        if !matches!(self.next(slot + 1)?, Op::Store { .. } | Op::Alu { .. }) {
            return None;
        }
        let mut stored = Stored::default();
        // Where each byte of the registers comes from: a register before the first store.
        let mut words: [Option<Word<(Reg, u8)>>; 11] = [None; 11];
        let word_of = |words: &[Option<Word<(Reg, u8)>>; 11], reg: Reg| {
            words[reg.index()].unwrap_or_else(|| {
                let zero = self.zeros.is_zero(reg);
                std::array::from_fn(|i| (!zero).then_some((reg, i as u8)))
            })
        };
        let (mut written, mut best): (Mask, _) = (0, None);
        for at in slot..slot + WINDOW {
            let op = if at == slot {
                self.plan.op(at)?
            } else {
                match self.next(at) {
                    Some(op) => op,
                    None => break,
                }
            };
            match *op {
                Op::Store {
                    size,
                    base: to,
                    off,
                    src,
                } if to == base && size != Size::DW => {
                    let word = match src {
                        Operand::Reg(src) => {
                            stored.zero = stored.zero.or(Some(src)
                                .filter(|&r| self.zeros.is_zero(r) && written & bit(r) == 0));
                            word_of(&words, src)
                        }
                        Operand::Imm(0) => [None; 8],
                        Operand::Imm(_) => break,
                    };
                    if !stored.put(off.into(), &word[..size.bytes() as usize]) {
                        break;
                    }
                    if self.plan.live_out(at) & written == 0
                        && let Some(combined) = stored.whole(base)
                    {
                        best = Some(Match {
                            combined,
                            end: at + 1,
                        });
                    }
                }
                Op::Alu {
                    op,
                    width,
                    dst,
                    src,
                } if dst != base => {
                    let word = match (op, src) {
                        (AluOp::Mov, Operand::Reg(src)) => word_of(&words, src),
                        (AluOp::Rsh, Operand::Imm(imm)) => match whole_bytes(imm, width) {
                            Some(by) => {
                                let word = low(word_of(&words, dst), bytes_of(width));
                                shifted_right(word, by)
                            }
                            None => break,
                        },
                        _ => break,
                    };
                    words[dst.index()] = Some(low(word, bytes_of(width)));
                    written |= bit(dst);
                }
                _ => break,
            }
        }
        best
    }
}

/// What a row of stores leaves in memory.
#[derive(Default)]
struct Stored {
    /// Offset of the lowest byte, and the bytes from there on that are known.
    start: i32,
    word: Word<(Reg, u8)>,
    len: usize,
    stores: u32,
    /// A register that holds zero.
    zero: Option<Reg>,
}

impl Stored {
    /// Takes a store in, if it is next to the others.
    fn put(&mut self, off: i32, bytes: &[Option<(Reg, u8)>]) -> bool {
        self.stores += 1;
        let (before, len) = (self.len, self.len + bytes.len());
        let below = off + bytes.len() as i32 == self.start;
        if len > 8 {
            return false;
        }
        let at = if before == 0 || off == self.start + before as i32 {
            before
        } else if below {
            self.word.copy_within(..before, bytes.len());
            0
        } else {
            return false;
        };
        if at == 0 {
            self.start = off;
        }
        self.word[at..at + bytes.len()].copy_from_slice(bytes);
        self.len = len;
        true
    }

    /// One store of all of it.
    fn whole(&self, base: Reg) -> Option<Combined> {
        let bytes = &self.word[..self.len];
        let size = size_of(self.len).filter(|_| self.stores > 1)?;
        let off = i16::try_from(self.start).ok()?;
        let store = |src| {
            let store = Op::Store {
                size,
                base,
                off,
                src,
            };
            Some(Combined::Op(store))
        };
        if bytes.iter().all(Option::is_none) {
            return store(self.zero.map_or(Operand::Imm(0), Operand::Reg));
        }
        let (src, _) = (*bytes.first()?)?;
        let of_one = |byte: &Option<(Reg, u8)>| byte.is_some_and(|(reg, _)| reg == src);
        if !bytes.iter().all(of_one) {
            return None;
        }
        match run(bytes.iter().flatten().map(|b| b.1.into()))? {
            (0, false) => store(Operand::Reg(src)),
            (0, true) => Some(Combined::StoreSwapped {
                size,
                base,
                off,
                src,
            }),
            _ => None,
        }
    }
}
