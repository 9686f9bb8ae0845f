//! Ids of jobs: random ones, and those that follow from another id.

use pikake_traps::random;

/// A random UUID.
pub(crate) fn random() -> String {
    let mut bytes = [0; 16];
    random::fill(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}

/// A UUID (version 8) that follows from a text and a number: the same one each time, so that a job
/// which is sent twice has one id.
pub(crate) fn derived(seed: &str, number: u64) -> String {
    /// FNV-1a with 128 bits.
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let bytes = seed.bytes().chain(number.to_be_bytes());
    let hash = bytes.fold(OFFSET, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    uuid::Builder::from_custom_bytes(hash.to_be_bytes()).into_uuid().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_ids_are_stable() {
        let ids = [derived("a", 1), derived("a", 2), derived("b", 1)];
        assert_eq!(ids[0], derived("a", 1));
        assert!(ids[0] != ids[1] && ids[0] != ids[2] && ids[1] != ids[2], "{ids:?}");
        assert_eq!(&ids[0][14..15], "8");
    }
}
