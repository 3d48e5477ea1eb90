//! Internet checksums: sums, differences, and replacing a field under a checksum.
//!
//! A sum is 32 bits of ones' complement arithmetic over 16-bit words in memory order
//! (`__wsum`); a checksum is its folded complement (`__sum16`).

/// Ones' complement sum of `bytes` on top of `seed`; an odd last byte counts as if a
/// zero followed.
pub fn partial(bytes: &[u8], seed: u32) -> u32 {
    let mut sum = 0u64;
    let mut chunks = bytes.chunks_exact(4);
    for chunk in &mut chunks {
        let word: [u8; 4] = chunk.try_into().unwrap_or_default();
        // 2^32 such words would be needed to overflow.
        sum += u64::from(u32::from_ne_bytes(word));
    }
    let rest = chunks.remainder();
    let mut word = [0u8; 4];
    word[..rest.len()].copy_from_slice(rest);
    sum += u64::from(u32::from_ne_bytes(word));
    add(fold64(sum), seed)
}

fn fold64(sum: u64) -> u32 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    ((sum & 0xffff_ffff) + (sum >> 32)) as u32
}

/// Sum of two sums.
pub fn add(a: u32, b: u32) -> u32 {
    let (sum, carry) = a.overflowing_add(b);
    sum.wrapping_add(u32::from(carry))
}

/// Difference of two sums.
pub fn sub(a: u32, b: u32) -> u32 {
    add(a, !b)
}

/// 32 to 16 bits, without complementing (`csum_from32to16`).
pub fn to16(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

/// The checksum field for a sum.
pub fn fold(sum: u32) -> u16 {
    !to16(sum)
}

/// `bpf_csum_diff`: the sum `seed` with the bytes `from` taken away and `to` added,
/// folded to 16 bits as Linux does since 6.13.
pub fn diff(from: &[u8], to: &[u8], seed: u32) -> u16 {
    let sum = match (from.is_empty(), to.is_empty()) {
        (false, false) => sub(partial(to, seed), partial(from, 0)),
        (true, false) => partial(to, seed),
        (false, true) => !partial(from, !seed),
        (true, true) => seed,
    };
    to16(sum)
}

/// A checksum after its data changed by `diff`.
pub fn replace_by_diff(check: u16, diff: u32) -> u16 {
    fold(add(diff, !u32::from(check)))
}

/// A checksum after 32 bits of its data changed (values in memory order).
pub fn replace4(check: u16, from: u32, to: u32) -> u16 {
    fold(add(sub(!u32::from(check), from), to))
}

/// A checksum after 16 bits of its data changed (values in memory order).
pub fn replace2(check: u16, from: u16, to: u16) -> u16 {
    let add16 = |a: u16, b: u16| {
        let (sum, carry) = a.overflowing_add(b);
        sum.wrapping_add(u16::from(carry))
    };
    !add16(add16(!check, !from), to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The textbook sum: 16 bits at a time.
    fn plain(bytes: &[u8]) -> u16 {
        let mut sum = 0u64;
        for pair in bytes.chunks(2) {
            sum += u64::from(u16::from_ne_bytes([
                pair[0],
                pair.get(1).copied().unwrap_or(0),
            ]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        sum as u16
    }

    #[test]
    fn header_of_rfc1071_and_ipv4() {
        let header = [
            0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0, 1, 0xc0, 0xa8, 0,
            0xc7,
        ];
        assert_eq!(
            fold(partial(&header, 0)),
            u16::from_be_bytes([0xb8, 0x61]).to_be()
        );
        assert_eq!(diff(&[], &[], 0x1_0002), 3);
    }

    proptest! {
        #[test]
        fn agrees_with_the_textbook(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(to16(partial(&bytes, 0)), plain(&bytes));
        }

        #[test]
        fn replacing_equals_recomputing(
            bytes in proptest::collection::vec(any::<u8>(), 8..64),
            new in any::<[u8; 4]>(),
            at in 0usize..16,
        ) {
            let mut bytes = bytes;
            bytes.truncate(bytes.len() & !3);
            let at = (at % (bytes.len() / 4)) * 4;
            let old: [u8; 4] = bytes[at..at + 4].try_into().unwrap();
            let check = fold(partial(&bytes, 0));
            bytes[at..at + 4].copy_from_slice(&new);
            let want = fold(partial(&bytes, 0));
            let same = |a: u16| a == want || (a | want == 0xffff && a & want == 0);
            prop_assert!(same(replace4(check, u32::from_ne_bytes(old), u32::from_ne_bytes(new))));
            let by_diff = diff(&old, &new, 0);
            prop_assert!(same(replace_by_diff(check, u32::from(by_diff))));
        }
    }

    #[test]
    fn sixteen_bits_replaced() {
        let mut bytes = [1u8, 2, 3, 4, 5, 6];
        let check = fold(partial(&bytes, 0));
        bytes[2..4].copy_from_slice(&[9, 200]);
        let got = replace2(
            check,
            u16::from_ne_bytes([3, 4]),
            u16::from_ne_bytes([9, 200]),
        );
        assert_eq!(got, fold(partial(&bytes, 0)));
    }
}
