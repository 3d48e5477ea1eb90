//! Link types: those that files and libpcap number differently, and how long packets get.

/// `DLT_EN10MB`.
pub const ETHERNET: i32 = 1;

/// The bits of a file's link type that are the link type.
pub const TYPE: u32 = 0x03ff_ffff;

/// Link types with different numbers in files and in libpcap on Linux: ATM, raw IP, BSD/OS
/// SLIP and PPP, classical IP over ATM.
const DIFFERENT: &[(u32, i32)] = &[(100, 11), (101, 12), (102, 15), (103, 16), (106, 19)];

/// Link types whose packets begin with numbers in the byte order of the machine that captured
/// them: pflog, USB as Linux has it, nflog.
const IN_HOST_ORDER: &[i32] = &[117, 189, 220, 239];

/// Longest packets, where that is not [`LONGEST`]: D-Bus, USBPcap, EBHSCR.
const LONG: &[(i32, u32)] = &[(231, 128 << 20), (249, 1 << 20), (279, 8 << 20)];

/// Longest packet of other link types.
const LONGEST: u32 = 262_144;

/// libpcap's number (`DLT_*`) for a file's.
pub fn from_file(network: u32) -> i32 {
    let different = DIFFERENT.iter().find(|(file, _)| *file == network);
    different.map_or(network as i32, |(_, link)| *link)
}

/// A file's number for libpcap's.
pub fn to_file(link: i32) -> u32 {
    let different = DIFFERENT.iter().find(|(_, own)| *own == link);
    different.map_or(link as u32, |(file, _)| *file)
}

/// Whether packets begin with numbers in their machine's byte order.
pub fn has_host_order(link: i32) -> bool {
    IN_HOST_ORDER.contains(&link)
}

/// Longest packet that is taken for one.
pub fn longest(link: i32) -> u32 {
    let long = LONG.iter().find(|(own, _)| *own == link);
    long.map_or(LONGEST, |(_, longest)| *longest)
}

/// The snapshot length that a file's means: none, or a negative one, is the longest packet's.
pub fn snaplen(link: i32, given: u32) -> i32 {
    match i32::try_from(given) {
        Ok(given) if given > 0 => given,
        _ => longest(link) as i32,
    }
}
