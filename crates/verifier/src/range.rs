//! What is known of a 64-bit value: its bits and its bounds in four readings.

use crate::tnum::Tnum;

/// The lower half.
const LOW32: u64 = u32::MAX as u64;

/// Known bits, and bounds as unsigned and signed number of the whole and of its lower half.
///
/// The five parts are about the same value and sharpen each other ([`Range::sync`]).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Range {
    /// Known bits.
    pub bits: Tnum,
    /// Lowest value, unsigned.
    pub umin: u64,
    /// Highest value, unsigned.
    pub umax: u64,
    /// Lowest value, signed.
    pub smin: i64,
    /// Highest value, signed.
    pub smax: i64,
    /// Lowest lower half, unsigned.
    pub umin32: u32,
    /// Highest lower half, unsigned.
    pub umax32: u32,
    /// Lowest lower half, signed.
    pub smin32: i32,
    /// Highest lower half, signed.
    pub smax32: i32,
}

impl Range {
    /// Any value.
    pub const UNKNOWN: Range = Range {
        bits: Tnum::UNKNOWN,
        umin: 0,
        umax: u64::MAX,
        smin: i64::MIN,
        smax: i64::MAX,
        umin32: 0,
        umax32: u32::MAX,
        smin32: i32::MIN,
        smax32: i32::MAX,
    };

    /// Any value whose upper half is zero.
    pub const ANY_U32: Range = Range {
        bits: Tnum {
            value: 0,
            mask: LOW32,
        },
        umax: LOW32,
        smin: 0,
        smax: LOW32 as i64,
        ..Range::UNKNOWN
    };

    /// Exactly `value`.
    pub const fn known(value: u64) -> Range {
        Range {
            bits: Tnum::known(value),
            umin: value,
            umax: value,
            smin: value as i64,
            smax: value as i64,
            umin32: value as u32,
            umax32: value as u32,
            smin32: value as i32,
            smax32: value as i32,
        }
    }

    /// Whether there is one value only (by its bits).
    pub const fn is_const(&self) -> bool {
        self.bits.is_const()
    }

    /// The value, if there is one only (by its bits).
    pub const fn constant(&self) -> Option<u64> {
        match self.bits.is_const() {
            true => Some(self.bits.value),
            false => None,
        }
    }

    /// Sets the lower half to `value`.
    pub const fn set_low32(&mut self, value: u32) {
        self.bits = self.bits.with_low32(Tnum::known(value as u64));
        self.umin32 = value;
        self.umax32 = value;
        self.smin32 = value as i32;
        self.smax32 = value as i32;
    }

    /// Forgets all bounds, not the bits.
    pub const fn unbound(&mut self) {
        self.unbound64();
        self.unbound32();
    }

    /// Forgets the bounds of the whole.
    pub const fn unbound64(&mut self) {
        self.umin = 0;
        self.umax = u64::MAX;
        self.smin = i64::MIN;
        self.smax = i64::MAX;
    }

    /// Forgets the bounds of the lower half.
    pub const fn unbound32(&mut self) {
        self.umin32 = 0;
        self.umax32 = u32::MAX;
        self.smin32 = i32::MIN;
        self.smax32 = i32::MAX;
    }

    /// Sharpens the lower half's bounds by the known bits.
    pub fn bound32_by_bits(&mut self) {
        let (value, mask) = (self.bits.value as u32, self.bits.mask as u32);
        self.smin32 = self.smin32.max((value | (mask & 0x8000_0000)) as i32);
        self.smax32 = self.smax32.min((value | (mask & 0x7fff_ffff)) as i32);
        self.umin32 = self.umin32.max(value);
        self.umax32 = self.umax32.min(value | mask);
    }

    /// Sharpens the bounds of the whole by the known bits.
    pub fn bound64_by_bits(&mut self) {
        let Tnum { value, mask } = self.bits;
        self.smin = self.smin.max((value | (mask & (1 << 63))) as i64);
        self.smax = self.smax.min((value | (mask & !(1 << 63))) as i64);
        self.umin = self.umin.max(value);
        self.umax = self.umax.min(value | mask);
    }

    /// Sharpens all bounds by the known bits.
    pub fn bound_by_bits(&mut self) {
        self.bound32_by_bits();
        self.bound64_by_bits();
    }

    /// Bounds of the lower half from those of the whole and from each other.
    fn deduce32(&mut self) {
        // Where the upper half is the same throughout, the lower half runs from end to end.
        let same_top = |low: u64, high: u64| low >> 32 == high >> 32;
        // Where it is two successive numbers, the lower half may run through zero.
        let next_top = |low: u64, high: u64| {
            ((low >> 32) as u32).wrapping_add(1) == (high >> 32) as u32
                && (low as i32) < 0
                && high as i32 >= 0
        };
        if same_top(self.umin, self.umax) {
            self.meet_u32(self.umin as u32, self.umax as u32);
            if self.umin as i32 <= self.umax as i32 {
                self.meet_s32(self.umin as i32, self.umax as i32);
            }
        }
        if self.smin >> 32 == self.smax >> 32 {
            if self.smin as u32 <= self.smax as u32 {
                self.meet_u32(self.smin as u32, self.smax as u32);
            }
            if self.smin as i32 <= self.smax as i32 {
                self.meet_s32(self.smin as i32, self.smax as i32);
            }
        }
        if next_top(self.umin, self.umax) {
            self.meet_s32(self.umin as i32, self.umax as i32);
        }
        if next_top(self.smin as u64, self.smax as u64) {
            self.meet_s32(self.smin as i32, self.smax as i32);
        }
        if self.umin32 as i32 <= self.umax32 as i32 {
            self.meet_s32(self.umin32 as i32, self.umax32 as i32);
        }
        if self.smin32 as u32 <= self.smax32 as u32 {
            self.meet_u32(self.smin32 as u32, self.smax32 as u32);
        } else if self.umax32 < self.smin32 as u32 {
            // As in `deduce64`: only the non-negative part of the signed range is met ...
            self.smin32 = self.umin32 as i32;
            self.umax32 = self.umax32.min(self.smax32 as u32);
        } else if (self.smax32 as u32) < self.umin32 {
            // ... or only the negative one.
            self.smax32 = self.umax32 as i32;
            self.umin32 = self.umin32.max(self.smin32 as u32);
        }
    }

    fn meet_u32(&mut self, min: u32, max: u32) {
        self.umin32 = self.umin32.max(min);
        self.umax32 = self.umax32.min(max);
    }

    fn meet_s32(&mut self, min: i32, max: i32) {
        self.smin32 = self.smin32.max(min);
        self.smax32 = self.smax32.min(max);
    }

    /// Signed bounds of the whole from unsigned ones and the other way round.
    fn deduce64(&mut self) {
        if self.umin as i64 <= self.umax as i64 {
            self.smin = self.smin.max(self.umin as i64);
            self.smax = self.smax.min(self.umax as i64);
        }
        if self.smin as u64 <= self.smax as u64 {
            self.umin = self.umin.max(self.smin as u64);
            self.umax = self.umax.min(self.smax as u64);
        } else if self.umax < self.smin as u64 {
            // The signed range wraps round zero, and the unsigned one meets only its
            // non-negative part ...
            self.smin = self.umin as i64;
            self.umax = self.umax.min(self.smax as u64);
        } else if (self.smax as u64) < self.umin {
            // ... or only its negative part.
            self.smax = self.umax as i64;
            self.umin = self.umin.max(self.smin as u64);
        }
    }

    /// Bounds of the whole from those of the lower half.
    fn deduce_mixed(&mut self) {
        const TOP: u64 = 0xffff_ffff_0000_0000;
        self.umin = self.umin.max((self.umin & TOP) | u64::from(self.umin32));
        self.umax = self.umax.min((self.umax & TOP) | u64::from(self.umax32));
        self.smin = self
            .smin
            .max(((self.smin as u64 & TOP) | u64::from(self.umin32)) as i64);
        self.smax = self
            .smax
            .min(((self.smax as u64 & TOP) | u64::from(self.umax32)) as i64);
        // A sign-extended 32-bit value whose lower half is not negative.
        if self.smin32 >= 0 && self.smin >= i64::from(i32::MIN) && self.smax <= i64::from(i32::MAX)
        {
            self.smin = i64::from(self.smin32);
            self.smax = i64::from(self.smax32);
            self.umin = self.smin as u64;
            self.umax = self.smax as u64;
            self.bits = self
                .bits
                .intersect(Tnum::range(self.smin as u64, self.smax as u64));
        }
    }

    /// Lets bits and bounds sharpen each other, in the steps (and as often) as Linux does.
    pub fn sync(&mut self) {
        // Most are of one of these kinds, on which the steps come to the same.
        let Tnum { value, mask } = self.bits;
        match mask {
            0 if self.bounds_contain(&Range::known(value)) => *self = Range::known(value),
            LOW32 if *self == Range::ANY_U32 => {}
            u64::MAX if *self == Range::UNKNOWN => {}
            _ => self.sync_by_steps(),
        }
    }

    fn sync_by_steps(&mut self) {
        self.bound_by_bits();
        for _ in 0..3 {
            let before = *self;
            self.deduce32();
            self.deduce64();
            self.deduce_mixed();
            if *self == before {
                break;
            }
        }
        let whole = self.bits.intersect(Tnum::range(self.umin, self.umax));
        let low = whole
            .low32()
            .intersect(Tnum::range(u64::from(self.umin32), u64::from(self.umax32)));
        self.bits = whole.high32().or(low);
        self.bound_by_bits();
    }

    /// Its known bits alone.
    pub const fn without_bounds(&self) -> Range {
        Range {
            bits: self.bits,
            ..Range::UNKNOWN
        }
    }

    /// What is wrong with it, if bits and bounds contradict each other.
    pub fn contradiction(&self) -> Option<&'static str> {
        if self.umin > self.umax
            || self.smin > self.smax
            || self.umin32 > self.umax32
            || self.smin32 > self.smax32
        {
            return Some("range bounds violation");
        }
        if self.bits.is_const() {
            let v = self.bits.value;
            if self.umin != v || self.umax != v || self.smin != v as i64 || self.smax != v as i64 {
                return Some("const tnum out of sync with range bounds");
            }
        }
        if self.bits.is_const32() {
            let v = self.bits.value as u32;
            if self.umin32 != v
                || self.umax32 != v
                || self.smin32 != v as i32
                || self.smax32 != v as i32
            {
                return Some("const subreg tnum out of sync with range bounds");
            }
        }
        None
    }

    /// Zero-extends the lower half.
    pub fn zero_extend32(&mut self) {
        self.bits = self.bits.low32();
        self.umin = u64::from(self.umin32);
        self.umax = u64::from(self.umax32);
        if self.smin32 >= 0 && self.smax32 >= 0 {
            self.smin = i64::from(self.smin32);
            self.smax = i64::from(self.smax32);
        } else {
            self.smin = 0;
            self.smax = i64::from(u32::MAX);
        }
    }

    /// Zero-extends the low `bytes` (1, 2 or 4).
    pub fn zero_extend(&mut self, bytes: u32) {
        self.bits = self.bits.truncated(bytes);
        let keep = (1u64 << (bytes * 8)) - 1;
        if self.umin & !keep == self.umax & !keep {
            self.umin &= keep;
            self.umax &= keep;
        } else {
            self.umin = 0;
            self.umax = keep;
        }
        self.smin = self.umin as i64;
        self.smax = self.umax as i64;
        if bytes < 4 {
            self.unbound32();
        }
        self.sync();
    }

    /// Sign-extends the low `bytes` (1, 2 or 4) to 64 bits.
    pub fn sign_extend(&mut self, bytes: u32) {
        if self.is_const() {
            *self = Range::known(sign_extended(self.bits.value, bytes) as u64);
            return;
        }
        let bits = bytes * 8;
        if (self.smax as u64) >> bits == (self.smin as u64) >> bits {
            let a = sign_extended(self.smax as u64, bytes);
            let b = sign_extended(self.smin as u64, bytes);
            let (min, max) = (a.min(b), a.max(b));
            if (max >= 0) == (min >= 0) {
                self.smin = min;
                self.smax = max;
                self.umin = min as u64;
                self.umax = max as u64;
                self.smin32 = min as i32;
                self.smax32 = max as i32;
                self.umin32 = min as u32;
                self.umax32 = max as u32;
                self.bits = Tnum::range(min as u64, max as u64);
                return;
            }
        }
        let limit = 1i64 << (bits - 1);
        *self = Range {
            smin: -limit,
            smax: limit - 1,
            smin32: (-limit) as i32,
            smax32: (limit - 1) as i32,
            ..Range::UNKNOWN
        };
    }

    /// Sign-extends the low `bytes` (1 or 2) to the lower half; the caller zero-extends that.
    pub fn sign_extend_low32(&mut self, bytes: u32) {
        if self.is_const() {
            let v = sign_extended(self.bits.value, bytes);
            self.bits = Tnum::known(v as u64);
            self.smin32 = v as i32;
            self.smax32 = v as i32;
            self.umin32 = v as u32;
            self.umax32 = v as u32;
            return;
        }
        let bits = bytes * 8;
        if (self.smax32 as u32) >> bits == (self.smin32 as u32) >> bits {
            let a = sign_extended(self.smax32 as u64, bytes) as i32;
            let b = sign_extended(self.smin32 as u64, bytes) as i32;
            let (min, max) = (a.min(b), a.max(b));
            if (max >= 0) == (min >= 0) {
                self.smin32 = min;
                self.smax32 = max;
                self.umin32 = min as u32;
                self.umax32 = max as u32;
                self.bits = Tnum::range(min as i64 as u64, max as i64 as u64).low32();
                return;
            }
        }
        let limit = 1i32 << (bits - 1);
        self.unbound32();
        self.smin32 = -limit;
        self.smax32 = limit - 1;
        self.bits = Tnum::UNKNOWN.low32();
    }

    /// Numbers in either.
    pub fn join(&self, other: &Range) -> Range {
        Range {
            bits: self.bits.join(other.bits),
            umin: self.umin.min(other.umin),
            umax: self.umax.max(other.umax),
            smin: self.smin.min(other.smin),
            smax: self.smax.max(other.smax),
            umin32: self.umin32.min(other.umin32),
            umax32: self.umax32.max(other.umax32),
            smin32: self.smin32.min(other.smin32),
            smax32: self.smax32.max(other.smax32),
        }
    }

    /// Whether every bound of `inner` lies within.
    pub fn bounds_contain(&self, inner: &Range) -> bool {
        self.umin <= inner.umin
            && self.umax >= inner.umax
            && self.smin <= inner.smin
            && self.smax >= inner.smax
            && self.umin32 <= inner.umin32
            && self.umax32 >= inner.umax32
            && self.smin32 <= inner.smin32
            && self.smax32 >= inner.smax32
    }

    /// Whether bounds and bits of `inner` lie within.
    pub fn contains(&self, inner: &Range) -> bool {
        self.bounds_contain(inner) && self.bits.contains(inner.bits)
    }

    /// Whether it holds that number.
    pub fn admits(&self, value: u64) -> bool {
        self.bits.contains(Tnum::known(value))
            && (self.umin..=self.umax).contains(&value)
            && (self.smin..=self.smax).contains(&(value as i64))
            && (self.umin32..=self.umax32).contains(&(value as u32))
            && (self.smin32..=self.smax32).contains(&(value as i32))
    }
}

const fn sign_extended(value: u64, bytes: u32) -> i64 {
    match bytes {
        1 => value as i8 as i64,
        2 => value as i16 as i64,
        _ => value as i32 as i64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn short_ways_of_sharpening_come_to_what_the_steps_come_to(
            value in prop_oneof![any::<u64>(), 0..9u64, any::<i32>().prop_map(|v| v as i64 as u64)],
            loosened in any::<u8>(),
            kind in 0..3,
        ) {
            let mut range = match kind {
                0 => Range::known(value),
                1 => Range::ANY_U32,
                _ => Range::UNKNOWN,
            };
            let any = Range::UNKNOWN;
            if loosened & 1 != 0 { range.umin = any.umin; }
            if loosened & 2 != 0 { range.umax = any.umax; }
            if loosened & 4 != 0 { range.smin = any.smin; }
            if loosened & 8 != 0 { range.smax = any.smax; }
            if loosened & 16 != 0 { range.umin32 = any.umin32; }
            if loosened & 32 != 0 { range.umax32 = any.umax32; }
            if loosened & 64 != 0 { range.smin32 = any.smin32; }
            if loosened & 128 != 0 { range.smax32 = any.smax32; }
            let mut by_steps = range;
            by_steps.sync_by_steps();
            range.sync();
            prop_assert_eq!(range, by_steps);
        }
    }
}
