//! Merkle trees over the leaf hashes of a log: roots, inclusion and consistency proofs.
//!
//! As RFC 6962 section 2.1 has them; proofs are checked as RFC 9162 sections 2.1.3.2 and 2.1.4.2
//! have it. A [`Frontier`] grows with its log and keeps no more than one hash per level.
//!
//! Path: 9. Doc: records.md#tamper-evidence

use std::fmt;

use sha2::{Digest, Sha256};

use crate::digest::hex;

/// A node of a tree: SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash(pub [u8; 32]);

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl Hash {
    /// A hash that is written as 64 hex digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        crate::digest::unhex(text).map(Self)
    }
}

/// The hash of a leaf, `SHA-256(0x00 ‖ bytes)`.
#[must_use]
pub fn leaf_hash(bytes: &[u8]) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update([0]);
    hasher.update(bytes);
    Hash(hasher.finalize().into())
}

/// The hash of a node over two others, `SHA-256(0x01 ‖ left ‖ right)`.
#[must_use]
pub fn node_hash(left: Hash, right: Hash) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update([1]);
    hasher.update(left.0);
    hasher.update(right.0);
    Hash(hasher.finalize().into())
}

/// The root of a tree without leaves: the hash of nothing.
#[must_use]
pub fn empty_root() -> Hash {
    Hash(Sha256::digest([]).into())
}

/// Most leaves of a tree: no log comes near, and sums do not overflow.
pub const SIZE_MAX: u64 = 1 << 62;

/// The right edge of a growing tree: the roots of the full subtrees, largest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    peaks: Vec<Hash>,
}

impl Frontier {
    /// The edge of a tree that has `size` leaves, from the roots of its full subtrees; `None`
    /// where their number does not fit the size.
    #[must_use]
    pub fn restore(size: u64, peaks: Vec<Hash>) -> Option<Self> {
        let fits = size <= SIZE_MAX && peaks.len() == size.count_ones() as usize;
        fits.then_some(Self { size, peaks })
    }

    /// The roots of the full subtrees, largest first.
    #[must_use]
    pub fn peaks(&self) -> &[Hash] {
        &self.peaks
    }

    /// How many leaves there are.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf.
    pub fn push(&mut self, leaf: Hash) {
        self.push_tree(1, leaf);
    }

    /// Adds a full subtree of so many leaves; whether there is such a subtree at this place.
    pub fn push_tree(&mut self, leaves: u64, root: Hash) -> bool {
        let fits = leaves.is_power_of_two()
            && self.size.is_multiple_of(leaves)
            && self.size.checked_add(leaves).is_some_and(|size| size <= SIZE_MAX);
        if !fits {
            return false;
        }
        let mut node = root;
        // Each full subtree that this completes is merged into the next larger one.
        for _ in 0..(self.size / leaves).trailing_ones() {
            if let Some(left) = self.peaks.pop() {
                node = node_hash(left, node);
            }
        }
        self.peaks.push(node);
        self.size += leaves;
        true
    }

    /// The root of the tree.
    #[must_use]
    pub fn root(&self) -> Hash {
        let mut peaks = self.peaks.iter().rev();
        match peaks.next() {
            None => empty_root(),
            Some(last) => peaks.fold(*last, |right, left| node_hash(*left, right)),
        }
    }
}

/// The root over leaf hashes.
#[must_use]
pub fn root(leaves: &[Hash]) -> Hash {
    let mut frontier = Frontier::default();
    leaves.iter().for_each(|leaf| frontier.push(*leaf));
    frontier.root()
}

/// The largest power of two that is smaller than `n`, which is at least 2.
fn split(n: u64) -> u64 {
    1 << (u64::BITS - 1 - (n - 1).leading_zeros())
}

/// The leaves of a log, of which some are only known as full subtrees.
#[derive(Debug, Clone, Default)]
pub struct Leaves {
    /// The roots of subtrees with their first leaves, in order.
    parts: Vec<(u64, Hash)>,
    size: u64,
}

impl Leaves {
    /// Adds the next leaf, or the next so many as one subtree.
    pub fn push(&mut self, leaves: u64, root: Hash) {
        self.parts.push((self.size, root));
        self.size += leaves;
    }

    /// How many leaves there are.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The root over the leaves from one to another; `None` where one of them is within a subtree.
    fn root(&self, from: u64, to: u64) -> Option<Hash> {
        let at = self.parts.binary_search_by_key(&from, |(seq, _)| *seq).ok()?;
        let end = self.parts.get(at + 1).map_or(self.size, |(seq, _)| *seq);
        if end == to {
            return self.parts.get(at).map(|(_, root)| *root);
        }
        if end > to {
            return None;
        }
        let middle = from + split(to - from);
        Some(node_hash(self.root(from, middle)?, self.root(middle, to)?))
    }

    /// The path from the leaf at `index` to the root over the first `size`, lowest node first; `None`
    /// where there is no such leaf.
    #[must_use]
    pub fn inclusion(&self, index: u64, size: u64) -> Option<Vec<Hash>> {
        (index < size && size <= self.size).then(|| self.path(index, 0, size))?
    }

    fn path(&self, index: u64, from: u64, to: u64) -> Option<Vec<Hash>> {
        if to - from == 1 {
            return Some(Vec::new());
        }
        let middle = from + split(to - from);
        let (mut path, other) = if index < middle {
            (self.path(index, from, middle)?, self.root(middle, to)?)
        } else {
            (self.path(index, middle, to)?, self.root(from, middle)?)
        };
        path.push(other);
        Some(path)
    }

    /// The proof that the tree over the first `first` leaves is the beginning of that over the first
    /// `size`; `None` where there are fewer leaves, or `first` is 0.
    #[must_use]
    pub fn consistency(&self, first: u64, size: u64) -> Option<Vec<Hash>> {
        (first > 0 && first <= size && size <= self.size)
            .then(|| self.subproof(first, 0, size, true))?
    }

    fn subproof(&self, first: u64, from: u64, to: u64, whole: bool) -> Option<Vec<Hash>> {
        if from + first == to {
            return Some(if whole { Vec::new() } else { vec![self.root(from, to)?] });
        }
        let half = split(to - from);
        let middle = from + half;
        let (mut proof, other) = if first <= half {
            (self.subproof(first, from, middle, whole)?, self.root(middle, to)?)
        } else {
            (self.subproof(first - half, middle, to, false)?, self.root(from, middle)?)
        };
        proof.push(other);
        Some(proof)
    }
}

/// Whether `proof` leads from `leaf` at `index` to the root of a tree with `size` leaves.
#[must_use]
pub fn includes(leaf: Hash, index: u64, size: u64, proof: &[Hash], root: Hash) -> bool {
    if index >= size {
        return false;
    }
    let (mut node, mut last, mut hash) = (index, size - 1, leaf);
    for next in proof {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            hash = node_hash(*next, hash);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            hash = node_hash(hash, *next);
        }
        node >>= 1;
        last >>= 1;
    }
    last == 0 && hash == root
}

/// Whether `proof` shows that the tree of size `first` with root `first_root` is the beginning of
/// the tree of size `second` with root `second_root`.
#[must_use]
pub fn consistent(
    first: u64,
    first_root: Hash,
    second: u64,
    second_root: Hash,
    proof: &[Hash],
) -> bool {
    if first == 0 || first > second {
        return false;
    }
    if first == second {
        return proof.is_empty() && first_root == second_root;
    }
    let mut nodes = proof.iter().copied();
    let begin = if first.is_power_of_two() { Some(first_root) } else { nodes.next() };
    let Some(begin) = begin else { return false };
    let (mut node, mut last) = (first - 1, second - 1);
    while node & 1 == 1 {
        node >>= 1;
        last >>= 1;
    }
    let (mut old, mut new) = (begin, begin);
    for next in nodes {
        if last == 0 {
            return false;
        }
        if node & 1 == 1 || node == last {
            old = node_hash(next, old);
            new = node_hash(next, new);
            while node & 1 == 0 && node != 0 {
                node >>= 1;
                last >>= 1;
            }
        } else {
            new = node_hash(new, next);
        }
        node >>= 1;
        last >>= 1;
    }
    last == 0 && old == first_root && new == second_root
}

#[cfg(test)]
mod tests {
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
    /// The roots over the first n of them.
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
        (0..hex.len() / 2)
            .map(|at| u8::from_str_radix(&hex[at * 2..at * 2 + 2], 16).unwrap())
            .collect()
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
        assert_eq!(
            path(2, 3),
            ["fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"]
        );
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
}
