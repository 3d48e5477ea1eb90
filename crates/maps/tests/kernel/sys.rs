//! Maps of the running kernel, through bpf(2).

use bpfkit_maps::{Errno, MapParams};
use bpfkit_spec::MapType;

/// `union bpf_attr`, as far as maps use it.
#[derive(Clone)]
pub struct Attr(pub [u8; 128]);

impl Attr {
    pub fn new() -> Attr {
        Attr([0; 128])
    }

    pub fn u32(mut self, at: usize, value: u32) -> Attr {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, at: usize, value: u64) -> Attr {
        self.0[at..at + 8].copy_from_slice(&value.to_ne_bytes());
        self
    }

    pub fn call(&mut self, command: i32) -> Result<i32, Errno> {
        // SAFETY: the attribute is 128 bytes; its pointers are to live buffers.
        let got = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), 128) };
        if got < 0 {
            Err(Errno(
                std::io::Error::last_os_error().raw_os_error().unwrap(),
            ))
        } else {
            Ok(got as i32)
        }
    }

    pub fn get_u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.0[at..at + 4].try_into().unwrap())
    }
}

pub struct KernelMap {
    pub fd: i32,
    pub key_size: usize,
    pub value_size: usize,
}

impl Drop for KernelMap {
    fn drop(&mut self) {
        // SAFETY: our descriptor.
        unsafe { libc::close(self.fd) };
    }
}

pub fn ptr(bytes: &[u8]) -> u64 {
    if bytes.is_empty() {
        0
    } else {
        bytes.as_ptr() as u64
    }
}

impl KernelMap {
    pub fn create(p: &MapParams, inner_fd: i32) -> Result<KernelMap, Errno> {
        let fd = Attr::new()
            .u32(0, p.map_type as u32)
            .u32(4, p.key_size)
            .u32(8, p.value_size)
            .u32(12, p.max_entries)
            .u32(16, p.flags)
            .u32(20, inner_fd as u32)
            .u64(64, p.extra)
            .call(0)?;
        let percpu = matches!(
            p.map_type,
            MapType::PercpuArray | MapType::PercpuHash | MapType::LruPercpuHash
        );
        let value_size = p.value_size as usize;
        Ok(KernelMap {
            fd,
            key_size: p.key_size as usize,
            value_size: if percpu {
                value_size.next_multiple_of(8) * p.cpus as usize
            } else {
                value_size
            },
        })
    }

    pub fn attr(&self, key: &[u8], value: &[u8], flags: u64) -> Attr {
        Attr::new()
            .u32(0, self.fd as u32)
            .u64(8, ptr(key))
            .u64(16, ptr(value))
            .u64(24, flags)
    }

    pub fn read(&self, key: &[u8], flags: u64) -> Result<Vec<u8>, Errno> {
        let value = vec![0; self.value_size];
        self.attr(key, &value, flags).call(1)?;
        Ok(value)
    }

    pub fn contains(&self, value: &[u8]) -> Result<(), Errno> {
        self.attr(&[], value, 0).call(1).map(drop)
    }

    pub fn write(&self, key: &[u8], value: &[u8], flags: u64) -> Result<(), Errno> {
        self.attr(key, value, flags).call(2).map(drop)
    }

    pub fn remove(&self, key: &[u8]) -> Result<(), Errno> {
        self.attr(key, &[], 0).call(3).map(drop)
    }

    pub fn next_key(&self, key: Option<&[u8]>) -> Result<Vec<u8>, Errno> {
        let next = vec![0; self.key_size];
        self.attr(key.unwrap_or(&[]), &next, 0).call(4)?;
        Ok(next)
    }

    pub fn take(&self, key: &[u8], flags: u64) -> Result<Vec<u8>, Errno> {
        let value = vec![0; self.value_size];
        self.attr(key, &value, flags).call(21)?;
        Ok(value)
    }

    pub fn freeze(&self) -> Result<(), Errno> {
        Attr::new().u32(0, self.fd as u32).call(22).map(drop)
    }

    /// A batch of all elements: keys, values and the error beside them.
    pub fn batch(&self, command: i32, max: u32) -> (Vec<u8>, Vec<u8>, Result<(), Errno>) {
        let token = [0u8; 512];
        let (keys, values) = (
            vec![0; max as usize * self.key_size],
            vec![0; max as usize * self.value_size],
        );
        let mut attr = Attr::new()
            .u64(8, ptr(&token))
            .u64(16, ptr(&keys))
            .u64(24, ptr(&values))
            .u32(32, max)
            .u32(36, self.fd as u32);
        let result = attr.call(command).map(drop);
        let n = attr.get_u32(32) as usize;
        (
            keys[..n * self.key_size].to_vec(),
            values[..n * self.value_size].to_vec(),
            result,
        )
    }
}

/// A BTF with an `int` (type 1) and an array of `size` chars (type 3).
pub fn load_btf(size: u32) -> i32 {
    let types: [u32; 14] = [
        1,
        1 << 24,
        4,
        1 << 24 | 32, // int, signed, 32 bits
        5,
        1 << 24,
        1,
        8, // char
        0,
        3 << 24,
        0,
        2,
        1,
        size, // char[size]
    ];
    let strings = b"\0int\0char\0";
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    for word in [
        24,
        0,
        size_of_val(&types) as u32,
        size_of_val(&types) as u32,
        strings.len() as u32,
    ]
    .into_iter()
    .chain(types)
    {
        blob.extend_from_slice(&word.to_ne_bytes());
    }
    blob.extend_from_slice(strings);
    Attr::new()
        .u64(0, ptr(&blob))
        .u32(16, blob.len() as u32)
        .call(18)
        .unwrap()
}
