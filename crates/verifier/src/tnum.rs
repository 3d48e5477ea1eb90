//! Tristate numbers: 64-bit values of which some bits are known.

/// A set of 64-bit values: bits in `mask` may be anything, the others are as in `value`.
///
/// Invariant: `value & mask == 0`, except after an [`intersect`](Tnum::intersect) of
/// contradicting numbers, which stands for an impossible path.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tnum {
    /// Known bits.
    pub value: u64,
    /// Unknown bits.
    pub mask: u64,
}

impl Tnum {
    /// Any value.
    pub const UNKNOWN: Tnum = Tnum {
        value: 0,
        mask: u64::MAX,
    };

    /// Exactly `value`.
    pub const fn known(value: u64) -> Tnum {
        Tnum { value, mask: 0 }
    }

    /// The tightest number that holds all of `min..=max`: the common upper bits are known.
    pub const fn range(min: u64, max: u64) -> Tnum {
        let differing = 64 - (min ^ max).leading_zeros();
        if differing > 63 {
            return Tnum::UNKNOWN;
        }
        let low = (1u64 << differing) - 1;
        Tnum {
            value: min & !low,
            mask: low,
        }
    }

    /// Whether there is just one value.
    pub const fn is_const(self) -> bool {
        self.mask == 0
    }

    /// Whether nothing is known.
    pub const fn is_unknown(self) -> bool {
        self.mask == u64::MAX
    }

    /// Whether it is exactly `value`.
    pub const fn equals(self, value: u64) -> bool {
        self.mask == 0 && self.value == value
    }

    /// Whether the lower half is one value.
    pub const fn is_const32(self) -> bool {
        self.mask as u32 == 0
    }

    /// Shift left by a known amount below 64.
    pub const fn shl(self, by: u32) -> Tnum {
        Tnum {
            value: self.value << by,
            mask: self.mask << by,
        }
    }

    /// Logical shift right by a known amount below 64.
    pub const fn shr(self, by: u32) -> Tnum {
        Tnum {
            value: self.value >> by,
            mask: self.mask >> by,
        }
    }

    /// Arithmetic shift right by a known amount below the width.
    pub const fn sar(self, by: u32, bits32: bool) -> Tnum {
        if bits32 {
            Tnum {
                value: ((self.value as i32) >> by) as u32 as u64,
                mask: ((self.mask as i32) >> by) as u32 as u64,
            }
        } else {
            Tnum {
                value: ((self.value as i64) >> by) as u64,
                mask: ((self.mask as i64) >> by) as u64,
            }
        }
    }

    /// Sum: a bit is unknown where an operand's is, or where a carry may differ.
    pub const fn plus(self, other: Tnum) -> Tnum {
        let low = self.value.wrapping_add(other.value);
        let high = low.wrapping_add(self.mask.wrapping_add(other.mask));
        let unknown = (high ^ low) | self.mask | other.mask;
        Tnum {
            value: low & !unknown,
            mask: unknown,
        }
    }

    /// Difference.
    pub const fn minus(self, other: Tnum) -> Tnum {
        let middle = self.value.wrapping_sub(other.value);
        let high = middle.wrapping_add(self.mask);
        let low = middle.wrapping_sub(other.mask);
        let unknown = (high ^ low) | self.mask | other.mask;
        Tnum {
            value: middle & !unknown,
            mask: unknown,
        }
    }

    /// Two's complement negation.
    pub const fn negated(self) -> Tnum {
        Tnum::known(0).minus(self)
    }

    /// Bitwise and.
    pub const fn and(self, other: Tnum) -> Tnum {
        let possible = (self.value | self.mask) & (other.value | other.mask);
        let value = self.value & other.value;
        Tnum {
            value,
            mask: possible & !value,
        }
    }

    /// Bitwise or.
    pub const fn or(self, other: Tnum) -> Tnum {
        let value = self.value | other.value;
        Tnum {
            value,
            mask: (self.mask | other.mask) & !value,
        }
    }

    /// Bitwise exclusive or.
    pub const fn xor(self, other: Tnum) -> Tnum {
        let unknown = self.mask | other.mask;
        Tnum {
            value: (self.value ^ other.value) & !unknown,
            mask: unknown,
        }
    }

    /// Product, by long multiplication over the bits of `self`: where a bit is unknown,
    /// the sums with and without that bit are joined.
    pub const fn times(self, other: Tnum) -> Tnum {
        let (mut a, mut b) = (self, other);
        let mut sum = Tnum::known(0);
        while a.value != 0 || a.mask != 0 {
            if a.value & 1 != 0 {
                sum = sum.plus(b);
            } else if a.mask & 1 != 0 {
                sum = sum.join(sum.plus(b));
            }
            a = a.shr(1);
            b = b.shl(1);
        }
        sum
    }

    /// Values in either set (and possibly more).
    pub const fn join(self, other: Tnum) -> Tnum {
        let unknown = (self.value ^ other.value) | self.mask | other.mask;
        Tnum {
            value: self.value & other.value & !unknown,
            mask: unknown,
        }
    }

    /// Values in both sets. Where known bits contradict each other the result has the bit set.
    pub const fn intersect(self, other: Tnum) -> Tnum {
        let unknown = self.mask & other.mask;
        Tnum {
            value: (self.value | other.value) & !unknown,
            mask: unknown,
        }
    }

    /// Whether some value may be in both sets.
    pub const fn overlaps(self, other: Tnum) -> bool {
        let known = !self.mask & !other.mask;
        self.value & known == other.value & known
    }

    /// Whether every value of `inner` is in `self`.
    pub const fn contains(self, inner: Tnum) -> bool {
        inner.mask & !self.mask == 0 && self.value == inner.value & !self.mask
    }

    /// The low `bytes` (1, 2 or 4) zero-extended.
    pub const fn truncated(self, bytes: u32) -> Tnum {
        let keep = (1u64 << (bytes * 8)) - 1;
        Tnum {
            value: self.value & keep,
            mask: self.mask & keep,
        }
    }

    /// The lower half, zero-extended.
    pub const fn low32(self) -> Tnum {
        self.truncated(4)
    }

    /// The upper half, lower half zero.
    pub const fn high32(self) -> Tnum {
        self.shr(32).shl(32)
    }

    /// The upper half of `self` with the lower half of `low`.
    pub const fn with_low32(self, low: Tnum) -> Tnum {
        self.high32().or(low.low32())
    }

    /// Whether every value is a multiple of `size`, a power of two.
    pub const fn is_aligned(self, size: u64) -> bool {
        size == 0 || (self.value | self.mask) & (size - 1) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BITS: u32 = 4;

    fn all() -> impl Iterator<Item = Tnum> {
        let top = 1u64 << BITS;
        (0..top).flat_map(move |mask| {
            (0..top)
                .filter(move |v| v & mask == 0)
                .map(move |value| Tnum { value, mask })
        })
    }

    fn members(t: Tnum) -> Vec<u64> {
        (0..1u64 << BITS)
            .filter(|v| v & !t.mask == t.value)
            .collect()
    }

    /// Every concrete result lies in the abstract one, over all numbers of four bits.
    fn sound(name: &str, abstracted: fn(Tnum, Tnum) -> Tnum, concrete: fn(u64, u64) -> u64) {
        for a in all() {
            for b in all() {
                let result = abstracted(a, b);
                assert_eq!(result.value & result.mask, 0, "{name}: {a:?} {b:?}");
                for x in members(a) {
                    for y in members(b) {
                        let v = concrete(x, y);
                        assert!(
                            result.contains(Tnum::known(v)),
                            "{name}: {x} and {y} give {v:#x} outside {result:x?}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn operators_hold_every_concrete_result() {
        sound("plus", Tnum::plus, u64::wrapping_add);
        sound("minus", Tnum::minus, u64::wrapping_sub);
        sound("times", Tnum::times, u64::wrapping_mul);
        sound("and", Tnum::and, |a, b| a & b);
        sound("or", Tnum::or, |a, b| a | b);
        sound("xor", Tnum::xor, |a, b| a ^ b);
        sound("join left", Tnum::join, |a, _| a);
        sound("join right", Tnum::join, |_, b| b);
        sound("negated", |a, _| a.negated(), |a, _| a.wrapping_neg());
        sound("shl", |a, _| a.shl(62), |a, _| a << 62);
        sound("shr", |a, _| a.shr(2), |a, _| a >> 2);
        // The sign is the highest of the four bits.
        sound(
            "sar",
            |a, _| a.shl(60).sar(61, false),
            |a, _| ((a << 60) as i64 >> 61) as u64,
        );
        sound(
            "sar of the lower half",
            |a, _| a.shl(28).sar(29, true),
            |a, _| u64::from(((a << 28) as i32 >> 29) as u32),
        );
        sound(
            "truncated",
            |a, _| a.shl(6).truncated(1),
            |a, _| (a << 6) & 0xff,
        );
        sound(
            "with_low32",
            |a, b| a.shl(30).with_low32(b.shl(30)),
            |a, b| (a << 30 >> 32 << 32) | (b << 30 & 0xffff_ffff),
        );
    }

    #[test]
    fn intersection_and_overlap_agree_with_the_sets() {
        for a in all() {
            for b in all() {
                let common: Vec<u64> = members(a)
                    .into_iter()
                    .filter(|v| members(b).contains(v))
                    .collect();
                assert_eq!(a.overlaps(b), !common.is_empty(), "{a:?} {b:?}");
                for v in common {
                    assert!(a.intersect(b).contains(Tnum::known(v)));
                }
            }
        }
    }

    #[test]
    fn range_is_tight_around_its_ends() {
        for min in 0..32u64 {
            for max in min..32 {
                let t = Tnum::range(min, max);
                assert!((min..=max).all(|v| t.contains(Tnum::known(v))));
            }
        }
        assert_eq!(Tnum::range(0, u64::MAX), Tnum::UNKNOWN);
        assert_eq!(Tnum::range(7, 7), Tnum::known(7));
    }

    #[test]
    fn shifts_keep_the_sign_of_either_width() {
        let negative = Tnum::known(0x8000_0000);
        assert_eq!(negative.sar(4, true), Tnum::known(0xf800_0000));
        assert_eq!(negative.sar(4, false), Tnum::known(0x0800_0000));
        assert_eq!(
            Tnum {
                value: 0,
                mask: 1 << 63
            }
            .sar(63, false),
            Tnum {
                value: 0,
                mask: u64::MAX
            }
        );
    }
}
