use proptest::prelude::*;

use super::*;

/// The inputs of the test tree that Certificate Transparency implementations share.
const INPUTS: [&str; 8] = [
    "",
    "00",
    "10",
    "2021",
    "3031",
    "40414243",
    "5051525354555657",
    "606162636465666768696a6b6c6d6e6f",
];
/// The roots over the first n inputs.
const ROOTS: [&str; 8] = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
];

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap()).collect()
}

fn leaves(count: usize) -> Vec<Hash> {
    (0..count).map(|n| leaf_hash(&n.to_be_bytes())).collect()
}

fn pieces(leaves: &[Hash]) -> Leaves {
    let mut all = Leaves::default();
    leaves.iter().for_each(|leaf| all.push(1, *leaf));
    all
}

#[test]
fn roots_and_proofs_follow_the_standard() {
    let leaves: Vec<Hash> = INPUTS.iter().map(|input| leaf_hash(&bytes(input))).collect();
    assert_eq!(
        empty_root().to_string(),
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    );
    for (n, expected) in (1..).zip(ROOTS) {
        assert_eq!(root(&leaves[..n]).to_string(), expected);
    }
    let path = |index: u64, size: u64| -> Vec<String> {
        pieces(&leaves).inclusion(index, size).unwrap().iter().map(Hash::to_string).collect()
    };
    assert_eq!(
        path(0, 8),
        [
            "96a296d224f285c67bee93c30f8a309157f0daa35dc5b87e410b78630a09cfc7",
            "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e",
            "6b47aaf29ee3c2af9af889bc1fb9254dabd31177f16232dd6aab035ca39bf6e4",
        ]
    );
    assert_eq!(path(2, 3), ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]);
    let proof: Vec<String> =
        pieces(&leaves).consistency(6, 8).unwrap().iter().map(Hash::to_string).collect();
    assert_eq!(
        proof,
        [
            "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
            "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0",
            "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
        ]
    );
}

proptest! {
    #[test]
    fn every_proof_holds_and_no_other(size in 1usize..70, index in 0usize..70, flip in 0usize..9) {
        let leaves = leaves(size);
        let index = index % size;
        let whole = root(&leaves);
        let all = pieces(&leaves);
        let proof = all.inclusion(index as u64, size as u64).unwrap();
        prop_assert!(includes(leaves[index], index as u64, size as u64, &proof, whole));
        let other = |hash: Hash| tlog_tiles::Hash(hash.0);
        let others: Vec<_> = proof.iter().copied().map(other).collect();
        let (n, at) = (size as u64, index as u64);
        prop_assert!(tlog_tiles::check_record(&others, n, other(whole), at, other(leaves[index])).is_ok());
        prop_assert!(size == 1 || !includes(leaves[index], ((index + 1) % size) as u64, size as u64, &proof, whole));
        let mut longer = proof.clone();
        longer.push(whole);
        prop_assert!(!includes(leaves[index], index as u64, size as u64, &longer, whole));
        if let Some(node) = proof.len().checked_sub(1).map(|most| flip % (most + 1)) {
            let mut wrong = proof;
            wrong[node].0[flip] ^= 1;
            prop_assert!(!includes(leaves[index], index as u64, size as u64, &wrong, whole));
        }
        let first = index + 1;
        let begin = root(&leaves[..first]);
        let proof = all.consistency(first as u64, size as u64).unwrap();
        prop_assert!(consistent(first as u64, begin, size as u64, whole, &proof));
        let others: Vec<_> = proof.iter().copied().map(other).collect();
        prop_assert!(tlog_tiles::check_tree(&others, n, other(whole), first as u64, other(begin)).is_ok());
        prop_assert!(!consistent(first as u64, empty_root(), size as u64, whole, &proof));
        let mut frontier = Frontier::default();
        leaves.iter().for_each(|leaf| frontier.push(*leaf));
        let again = Frontier::restore(size as u64, frontier.peaks().to_vec()).unwrap();
        prop_assert_eq!(again.root(), whole);
    }
}
