//! HMAC-SHA1, for the hashed names of `known_hosts` and for nothing else.
//!
//! These hashes hide names from a reader of the file; what is trusted is the key beside them. None of the crates that the
//! project names itself has SHA-1.

/// Length of a block of SHA-1, in bytes.
const BLOCK: usize = 64;

pub(super) type Digest = [u8; 20];

/// RFC 2104.
pub(super) fn hmac(key: &[u8], text: &[u8]) -> Digest {
    let mut block = [0; BLOCK];
    if key.len() > BLOCK {
        block[..20].copy_from_slice(&sha1(&[key]));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = sha1(&[&block.map(|byte| byte ^ 0x36), text]);
    sha1(&[&block.map(|byte| byte ^ 0x5c), &inner])
}

/// RFC 3174, of the parts in a row.
fn sha1(parts: &[&[u8]]) -> Digest {
    let mut text = parts.concat();
    let bits = text.len() as u64 * 8;
    text.push(0x80);
    let full = (text.len() + 8).next_multiple_of(BLOCK);
    text.resize(full - 8, 0);
    text.extend(bits.to_be_bytes());

    let mut state: [u32; 5] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
    for block in text.chunks_exact(BLOCK) {
        mix(&mut state, block);
    }
    let mut digest = [0; 20];
    for (bytes, word) in digest.chunks_exact_mut(4).zip(state) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    digest
}

#[expect(clippy::many_single_char_names, reason = "the names of the RFC")]
fn mix(state: &mut [u32; 5], block: &[u8]) {
    let mut w = [0_u32; 80];
    for (word, bytes) in w.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    }
    for t in 16..80 {
        w[t] = (w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16]).rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for (t, word) in w.iter().enumerate() {
        let (f, k) = match t / 20 {
            0 => ((b & c) | (!b & d), 0x5a82_7999),
            1 => (b ^ c ^ d, 0x6ed9_eba1),
            2 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6_u32),
        };
        let next = a.rotate_left(5).wrapping_add(f).wrapping_add(e).wrapping_add(k).wrapping_add(*word);
        (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
    }
    for (sum, part) in state.iter_mut().zip([a, b, c, d, e]) {
        *sum = sum.wrapping_add(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_2202_and_3174_come_out() {
        let hex = |digest: Digest| digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(hex(sha1(&[b"abc"])), "a9993e364706816aba3e25717850c26c9cd0d89d");
        assert_eq!(hex(sha1(&[b"01234567".repeat(80).as_slice()])), "dea356a2cddd90c7a7ecedc5ebb563934f460452");
        let rows: [(&[u8], &[u8], &str); 3] = [
            (&[0x0b; 20], b"Hi There", "b617318655057264e28bc0b6fb378c8ef146be00"),
            (b"Jefe", b"what do ya want for nothing?", "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79"),
            (
                &[0xaa; 80],
                b"Test Using Larger Than Block-Size Key - Hash Key First",
                "aa4ae5e15272d00e95705637ce8a3b55ed402112",
            ),
        ];
        for (key, text, digest) in rows {
            assert_eq!(hex(hmac(key, text)), digest);
        }
    }
}
