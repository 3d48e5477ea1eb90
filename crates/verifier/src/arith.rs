//! Arithmetic on [`Range`]s, and what a comparison that came out true or false teaches.

use crate::range::Range;
use crate::tnum::Tnum;
use bpfkit_isa::code;

/// Whether the result range of an operation can be computed; if not, it is unknown.
///
/// Shifts need a known amount below the width; divisions are not followed.
pub fn computable(op: u8, wide: bool, src: &Range) -> bool {
    match op {
        code::ADD | code::SUB | code::NEG | code::AND | code::XOR | code::OR | code::MUL => true,
        code::LSH | code::RSH | code::ARSH => {
            let known = if wide {
                src.bits.is_const() && src.smin == src.smax && src.umin == src.umax
            } else {
                src.bits.is_const32() && src.smin32 == src.smax32 && src.umin32 == src.umax32
            };
            known && src.umax < if wide { 64 } else { 32 }
        }
        _ => false,
    }
}

/// `dst op= src` on scalars; `op` must be [`computable`].
pub fn apply(op: u8, wide: bool, dst: &mut Range, src: &Range) {
    match fold(op, wide, dst, src) {
        Some(value) => *dst = Range::known(value),
        None => apply_by_steps(op, wide, dst, src),
    }
}

fn apply_by_steps(op: u8, wide: bool, dst: &mut Range, src: &Range) {
    match op {
        code::ADD => add(dst, src),
        code::SUB => sub(dst, src),
        code::NEG => {
            let operand = *dst;
            *dst = Range::known(0);
            sub_bounds(dst, &operand);
            dst.bits = operand.bits.negated();
        }
        code::MUL => mul(dst, src),
        code::AND => bitwise(dst, src, op),
        code::OR => bitwise(dst, src, op),
        code::XOR => bitwise(dst, src, op),
        code::LSH => shift_left(dst, src, wide),
        code::RSH => shift_right(dst, src, wide),
        code::ARSH => shift_arithmetic(dst, src, wide),
        _ => *dst = Range::UNKNOWN,
    }
    if !wide {
        dst.zero_extend32();
    }
    dst.sync();
}

/// The result on two known numbers.
fn fold(op: u8, wide: bool, dst: &Range, src: &Range) -> Option<u64> {
    let (a, b) = (dst.bits.value, src.bits.value);
    let known = dst.is_const() && src.is_const();
    if !known || *dst != Range::known(a) || *src != Range::known(b) {
        return None;
    }
    let value = match op {
        code::ADD => a.wrapping_add(b),
        code::SUB => a.wrapping_sub(b),
        code::MUL => a.wrapping_mul(b),
        code::AND => a & b,
        code::OR => a | b,
        code::XOR => a ^ b,
        code::LSH => a.wrapping_shl(b as u32),
        code::RSH if wide => a.wrapping_shr(b as u32),
        code::RSH => (a as u32).wrapping_shr(b as u32).into(),
        code::ARSH if wide => (a as i64).wrapping_shr(b as u32) as u64,
        code::ARSH => (a as i32).wrapping_shr(b as u32) as u64,
        _ => return None,
    };
    Some(if wide { value } else { value as u32 as u64 })
}

/// `dst += src`, bounds and bits, without letting them sharpen each other.
pub fn add(dst: &mut Range, src: &Range) {
    add_bounds(dst, src);
    dst.bits = dst.bits.plus(src.bits);
}

fn sub(dst: &mut Range, src: &Range) {
    sub_bounds(dst, src);
    dst.bits = dst.bits.minus(src.bits);
}

macro_rules! bounds_of_width {
    ($add:ident, $sub:ident, $mul:ident, $int:ty, $uint:ty, $smin:ident, $smax:ident, $umin:ident, $umax:ident) => {
        fn $add(dst: &mut Range, src: &Range) {
            match (
                dst.$smin.checked_add(src.$smin),
                dst.$smax.checked_add(src.$smax),
            ) {
                (Some(min), Some(max)) => (dst.$smin, dst.$smax) = (min, max),
                _ => (dst.$smin, dst.$smax) = (<$int>::MIN, <$int>::MAX),
            }
            // When both ends wrap the order is kept; when only the upper does, nothing is known.
            let (min, min_wraps) = dst.$umin.overflowing_add(src.$umin);
            let (max, max_wraps) = dst.$umax.overflowing_add(src.$umax);
            (dst.$umin, dst.$umax) = if !min_wraps && max_wraps {
                (0, <$uint>::MAX)
            } else {
                (min, max)
            };
        }

        fn $sub(dst: &mut Range, src: &Range) {
            match (
                dst.$smin.checked_sub(src.$smax),
                dst.$smax.checked_sub(src.$smin),
            ) {
                (Some(min), Some(max)) => (dst.$smin, dst.$smax) = (min, max),
                _ => (dst.$smin, dst.$smax) = (<$int>::MIN, <$int>::MAX),
            }
            let (min, min_wraps) = dst.$umin.overflowing_sub(src.$umax);
            let (max, max_wraps) = dst.$umax.overflowing_sub(src.$umin);
            (dst.$umin, dst.$umax) = if min_wraps && !max_wraps {
                (0, <$uint>::MAX)
            } else {
                (min, max)
            };
        }

        fn $mul(dst: &mut Range, src: &Range) {
            match (
                dst.$umax.checked_mul(src.$umax),
                dst.$umin.checked_mul(src.$umin),
            ) {
                (Some(max), Some(min)) => (dst.$umin, dst.$umax) = (min, max),
                _ => (dst.$umin, dst.$umax) = (0, <$uint>::MAX),
            }
            let corners = [
                dst.$smin.checked_mul(src.$smin),
                dst.$smin.checked_mul(src.$smax),
                dst.$smax.checked_mul(src.$smin),
                dst.$smax.checked_mul(src.$smax),
            ];
            (dst.$smin, dst.$smax) = if let [Some(a), Some(b), Some(c), Some(d)] = corners {
                (a.min(b).min(c).min(d), a.max(b).max(c).max(d))
            } else {
                (<$int>::MIN, <$int>::MAX)
            };
        }
    };
}

bounds_of_width!(add64, sub64, mul64, i64, u64, smin, smax, umin, umax);
bounds_of_width!(
    add32, sub32, mul32, i32, u32, smin32, smax32, umin32, umax32
);

/// Bounds of a sum; the bits stay.
pub fn add_bounds(dst: &mut Range, src: &Range) {
    add32(dst, src);
    add64(dst, src);
}

fn sub_bounds(dst: &mut Range, src: &Range) {
    sub32(dst, src);
    sub64(dst, src);
}

fn mul(dst: &mut Range, src: &Range) {
    dst.bits = dst.bits.times(src.bits);
    mul32(dst, src);
    mul64(dst, src);
}

fn bitwise(dst: &mut Range, src: &Range, op: u8) {
    dst.bits = match op {
        code::AND => dst.bits.and(src.bits),
        code::OR => dst.bits.or(src.bits),
        _ => dst.bits.xor(src.bits),
    };
    let Tnum { value, mask } = dst.bits;

    // Whether the operands were known is asked of the result's bits and the source's, as
    // Linux does: the destination's own bits are gone by now.
    if src.bits.is_const32() && dst.bits.is_const32() {
        dst.set_low32(value as u32);
    } else {
        (dst.umin32, dst.umax32) = match op {
            code::AND => (value as u32, dst.umax32.min(src.umax32)),
            code::OR => (dst.umin32.max(src.umin32), (value | mask) as u32),
            _ => (value as u32, (value | mask) as u32),
        };
        (dst.smin32, dst.smax32) = if dst.umin32 as i32 <= dst.umax32 as i32 {
            (dst.umin32 as i32, dst.umax32 as i32)
        } else {
            (i32::MIN, i32::MAX)
        };
    }

    if src.bits.is_const() && dst.bits.is_const() {
        *dst = Range::known(value);
        return;
    }
    (dst.umin, dst.umax) = match op {
        code::AND => (dst.bits.value, dst.umax.min(src.umax)),
        code::OR => (dst.umin.max(src.umin), dst.bits.value | dst.bits.mask),
        _ => (dst.bits.value, dst.bits.value | dst.bits.mask),
    };
    (dst.smin, dst.smax) = if dst.umin as i64 <= dst.umax as i64 {
        (dst.umin as i64, dst.umax as i64)
    } else {
        (i64::MIN, i64::MAX)
    };
    dst.bound_by_bits();
}

fn shift_left32_bounds(dst: &mut Range, min: u64, max: u64) {
    dst.smin32 = i32::MIN;
    dst.smax32 = i32::MAX;
    if max > 31 || u64::from(dst.umax32) > 1u64 << (31 - max) {
        dst.umin32 = 0;
        dst.umax32 = u32::MAX;
    } else {
        dst.umin32 <<= min;
        dst.umax32 <<= max;
    }
}

fn shift_left(dst: &mut Range, src: &Range, wide: bool) {
    if !wide {
        let (min, max) = (src.umin32, src.umax32);
        let low = dst.bits.low32();
        shift_left32_bounds(dst, u64::from(min), u64::from(max));
        dst.bits = low.shl(min).low32();
        dst.unbound64();
        dst.bound32_by_bits();
        return;
    }
    let (min, max) = (src.umin, src.umax);
    // `<< 32` followed by `s>> 32` is how compilers extend the sign.
    let half = min == 32 && max == 32;
    dst.smax = if half && dst.smax32 >= 0 {
        i64::from(dst.smax32) << 32
    } else {
        i64::MAX
    };
    dst.smin = if half && dst.smin32 >= 0 {
        i64::from(dst.smin32) << 32
    } else {
        i64::MIN
    };
    if dst.umax > 1u64 << (63 - max) {
        dst.umin = 0;
        dst.umax = u64::MAX;
    } else {
        dst.umin <<= min;
        dst.umax <<= max;
    }
    shift_left32_bounds(dst, min, max);
    dst.bits = dst.bits.shl(min as u32);
    dst.bound_by_bits();
}

fn shift_right(dst: &mut Range, src: &Range, wide: bool) {
    if wide {
        let (min, max) = (src.umin as u32, src.umax as u32);
        dst.smin = i64::MIN;
        dst.smax = i64::MAX;
        dst.bits = dst.bits.shr(min);
        dst.umin >>= max;
        dst.umax >>= min;
        dst.unbound32();
        dst.bound_by_bits();
    } else {
        let (min, max) = (src.umin32, src.umax32);
        dst.smin32 = i32::MIN;
        dst.smax32 = i32::MAX;
        dst.bits = dst.bits.low32().shr(min);
        dst.umin32 >>= max;
        dst.umax32 >>= min;
        dst.unbound64();
        dst.bound32_by_bits();
    }
}

fn shift_arithmetic(dst: &mut Range, src: &Range, wide: bool) {
    if wide {
        let by = src.umin as u32;
        dst.smin >>= by;
        dst.smax >>= by;
        dst.bits = dst.bits.sar(by, false);
        dst.umin = 0;
        dst.umax = u64::MAX;
        dst.unbound32();
        dst.bound_by_bits();
    } else {
        let by = src.umin32;
        dst.smin32 >>= by;
        dst.smax32 >>= by;
        dst.bits = dst.bits.low32().sar(by, true);
        dst.umin32 = 0;
        dst.umax32 = u32::MAX;
        dst.unbound64();
        dst.bound32_by_bits();
    }
}

/// Comparison of a conditional jump, and the one that no instruction encodes: "and is zero".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compare {
    /// `==`
    Eq,
    /// `!=`
    Ne,
    /// Unsigned `>`
    Gt,
    /// Unsigned `>=`
    Ge,
    /// Unsigned `<`
    Lt,
    /// Unsigned `<=`
    Le,
    /// `a & b != 0`
    Set,
    /// `a & b == 0`
    Clear,
    /// Signed `>`
    Sgt,
    /// Signed `>=`
    Sge,
    /// Signed `<`
    Slt,
    /// Signed `<=`
    Sle,
}

impl Compare {
    /// By the operation bits of a jump opcode.
    pub const fn from_op(op: u8) -> Option<Compare> {
        Some(match op {
            code::JEQ => Compare::Eq,
            code::JNE => Compare::Ne,
            code::JGT => Compare::Gt,
            code::JGE => Compare::Ge,
            code::JLT => Compare::Lt,
            code::JLE => Compare::Le,
            code::JSET => Compare::Set,
            code::JSGT => Compare::Sgt,
            code::JSGE => Compare::Sge,
            code::JSLT => Compare::Slt,
            code::JSLE => Compare::Sle,
            _ => return None,
        })
    }

    /// What holds where this does not.
    pub const fn negated(self) -> Compare {
        match self {
            Compare::Eq => Compare::Ne,
            Compare::Ne => Compare::Eq,
            Compare::Gt => Compare::Le,
            Compare::Ge => Compare::Lt,
            Compare::Lt => Compare::Ge,
            Compare::Le => Compare::Gt,
            Compare::Set => Compare::Clear,
            Compare::Clear => Compare::Set,
            Compare::Sgt => Compare::Sle,
            Compare::Sge => Compare::Slt,
            Compare::Slt => Compare::Sge,
            Compare::Sle => Compare::Sgt,
        }
    }

    /// The same with the operands exchanged.
    pub const fn flipped(self) -> Compare {
        match self {
            Compare::Gt => Compare::Lt,
            Compare::Ge => Compare::Le,
            Compare::Lt => Compare::Gt,
            Compare::Le => Compare::Ge,
            Compare::Sgt => Compare::Slt,
            Compare::Sge => Compare::Sle,
            Compare::Slt => Compare::Sgt,
            Compare::Sle => Compare::Sge,
            same => same,
        }
    }
}

/// Both operands of a comparison, read at its width.
struct Operands {
    bits: Tnum,
    umin: u64,
    umax: u64,
    smin: i64,
    smax: i64,
}

fn operand(r: &Range, wide: bool) -> Operands {
    if wide {
        Operands {
            bits: r.bits,
            umin: r.umin,
            umax: r.umax,
            smin: r.smin,
            smax: r.smax,
        }
    } else {
        Operands {
            bits: r.bits.low32(),
            umin: u64::from(r.umin32),
            umax: u64::from(r.umax32),
            smin: i64::from(r.smin32),
            smax: i64::from(r.smax32),
        }
    }
}

/// The outcome of a comparison of two scalars, if their ranges decide it.
pub fn decide(cmp: Compare, wide: bool, left: &Range, right: &Range) -> Option<bool> {
    let (a, b) = (operand(left, wide), operand(right, wide));
    let order = |always: bool, never: bool| {
        if always {
            Some(true)
        } else if never {
            Some(false)
        } else {
            None
        }
    };
    match cmp {
        Compare::Eq => equal(&a, &b, left, right, wide),
        Compare::Ne => equal(&a, &b, left, right, wide).map(|eq| !eq),
        Compare::Set | Compare::Clear => {
            let (a, b) = if b.bits.is_const() { (a, b) } else { (b, a) };
            if !b.bits.is_const() {
                return None;
            }
            let set = if a.bits.value & !a.bits.mask & b.bits.value != 0 {
                true
            } else if (a.bits.value | a.bits.mask) & b.bits.value == 0 {
                false
            } else {
                return None;
            };
            Some(set == (cmp == Compare::Set))
        }
        Compare::Gt => order(a.umin > b.umax, a.umax <= b.umin),
        Compare::Ge => order(a.umin >= b.umax, a.umax < b.umin),
        Compare::Lt => order(a.umax < b.umin, a.umin >= b.umax),
        Compare::Le => order(a.umax <= b.umin, a.umin > b.umax),
        Compare::Sgt => order(a.smin > b.smax, a.smax <= b.smin),
        Compare::Sge => order(a.smin >= b.smax, a.smax < b.smin),
        Compare::Slt => order(a.smax < b.smin, a.smin >= b.smax),
        Compare::Sle => order(a.smax <= b.smin, a.smin > b.smax),
    }
}

fn equal(a: &Operands, b: &Operands, left: &Range, right: &Range, wide: bool) -> Option<bool> {
    if a.bits.is_const() && b.bits.is_const() {
        return Some(a.bits.value == b.bits.value);
    }
    let apart = !a.bits.overlaps(b.bits)
        || a.umin > b.umax
        || a.umax < b.umin
        || a.smin > b.smax
        || a.smax < b.smin
        || (wide
            && (left.umin32 > right.umax32
                || left.umax32 < right.umin32
                || left.smin32 > right.smax32
                || left.smax32 < right.smin32));
    apart.then_some(false)
}

/// Narrows both operands by knowing that the comparison holds. The caller syncs them.
pub fn assume(cmp: Compare, wide: bool, left: &mut Range, right: &mut Range) {
    match cmp {
        Compare::Ge | Compare::Gt | Compare::Sge | Compare::Sgt => {
            assume(cmp.flipped(), wide, right, left);
        }
        Compare::Eq => assume_equal(wide, left, right),
        Compare::Ne | Compare::Set | Compare::Clear => {
            let known = |r: &Range| {
                if wide {
                    r.bits.is_const()
                } else {
                    r.bits.is_const32()
                }
            };
            let (reg, constant) = if known(right) {
                (left, right.bits.value)
            } else if known(left) {
                (right, left.bits.value)
            } else {
                return;
            };
            let constant = if wide {
                constant
            } else {
                u64::from(constant as u32)
            };
            assume_constant(cmp, wide, reg, constant);
        }
        Compare::Le if wide => {
            left.umax = left.umax.min(right.umax);
            right.umin = left.umin.max(right.umin);
        }
        Compare::Le => {
            left.umax32 = left.umax32.min(right.umax32);
            right.umin32 = left.umin32.max(right.umin32);
        }
        Compare::Lt if wide => {
            left.umax = left.umax.min(right.umax.wrapping_sub(1));
            right.umin = left.umin.wrapping_add(1).max(right.umin);
        }
        Compare::Lt => {
            left.umax32 = left.umax32.min(right.umax32.wrapping_sub(1));
            right.umin32 = left.umin32.wrapping_add(1).max(right.umin32);
        }
        Compare::Sle if wide => {
            left.smax = left.smax.min(right.smax);
            right.smin = left.smin.max(right.smin);
        }
        Compare::Sle => {
            left.smax32 = left.smax32.min(right.smax32);
            right.smin32 = left.smin32.max(right.smin32);
        }
        Compare::Slt if wide => {
            left.smax = left.smax.min(right.smax.wrapping_sub(1));
            right.smin = left.smin.wrapping_add(1).max(right.smin);
        }
        Compare::Slt => {
            left.smax32 = left.smax32.min(right.smax32.wrapping_sub(1));
            right.smin32 = left.smin32.wrapping_add(1).max(right.smin32);
        }
    }
}

fn assume_equal(wide: bool, left: &mut Range, right: &mut Range) {
    if wide {
        left.umin = left.umin.max(right.umin);
        left.umax = left.umax.min(right.umax);
        left.smin = left.smin.max(right.smin);
        left.smax = left.smax.min(right.smax);
        left.bits = left.bits.intersect(right.bits);
        right.umin = left.umin;
        right.umax = left.umax;
        right.smin = left.smin;
        right.smax = left.smax;
        right.bits = left.bits;
    } else {
        left.umin32 = left.umin32.max(right.umin32);
        left.umax32 = left.umax32.min(right.umax32);
        left.smin32 = left.smin32.max(right.smin32);
        left.smax32 = left.smax32.min(right.smax32);
        right.umin32 = left.umin32;
        right.umax32 = left.umax32;
        right.smin32 = left.smin32;
        right.smax32 = left.smax32;
        let low = left.bits.low32().intersect(right.bits.low32());
        left.bits = left.bits.with_low32(low);
        right.bits = right.bits.with_low32(low);
    }
}

fn assume_constant(cmp: Compare, wide: bool, reg: &mut Range, constant: u64) {
    let low = constant as u32;
    match cmp {
        Compare::Ne if wide => {
            // Both ends cannot be the constant: then the jump would have been decided.
            if reg.umin == constant {
                reg.umin = reg.umin.wrapping_add(1);
            }
            if reg.umax == constant {
                reg.umax = reg.umax.wrapping_sub(1);
            }
            if reg.smin == constant as i64 {
                reg.smin = reg.smin.wrapping_add(1);
            }
            if reg.smax == constant as i64 {
                reg.smax = reg.smax.wrapping_sub(1);
            }
        }
        Compare::Ne => {
            if reg.umin32 == low {
                reg.umin32 = reg.umin32.wrapping_add(1);
            }
            if reg.umax32 == low {
                reg.umax32 = reg.umax32.wrapping_sub(1);
            }
            if reg.smin32 == low as i32 {
                reg.smin32 = reg.smin32.wrapping_add(1);
            }
            if reg.smax32 == low as i32 {
                reg.smax32 = reg.smax32.wrapping_sub(1);
            }
        }
        // Only of a single bit is it known which one is set.
        Compare::Set if constant.is_power_of_two() => {
            let set = Tnum::known(constant);
            reg.bits = if wide {
                reg.bits.or(set)
            } else {
                reg.bits.with_low32(reg.bits.low32().or(set))
            };
        }
        Compare::Clear => {
            // The bounds go, so that a dead branch does not contradict itself.
            reg.unbound();
            let clear = Tnum::known(!constant);
            reg.bits = if wide {
                reg.bits.and(clear)
            } else {
                reg.bits.with_low32(reg.bits.low32().and(clear))
            };
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests;
