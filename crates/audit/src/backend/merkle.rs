//! Merkle trees over the leaf hashes of a log: roots, inclusion and consistency proofs.
//!
//! Trees are as RFC 6962 section 2.1 defines. Proofs are checked as RFC 9162 sections 2.1.3.2 and
//! 2.1.4.2 define. A [`Frontier`] grows with its log and stores at most one hash per level.
//!
//! Path: 9. Doc: records.md#tamper-evidence

use std::fmt;

use crate::digest::hex;
use crate::sha256::Sha256;

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
    /// Parses a hash from 64 hex digits.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        crate::digest::unhex(text).map(Self)
    }
}

/// Returns the hash of a leaf, `SHA-256(0x00 ‖ bytes)`.
#[must_use]
pub fn leaf_hash(bytes: &[u8]) -> Hash {
    let mut hasher = Sha256::default();
    hasher.update(&[0]);
    hasher.update(bytes);
    Hash(hasher.finish())
}

/// Returns the hash of a node over two others, `SHA-256(0x01 ‖ left ‖ right)`.
#[must_use]
pub fn node_hash(left: Hash, right: Hash) -> Hash {
    let mut hasher = Sha256::default();
    hasher.update(&[1]);
    hasher.update(&left.0);
    hasher.update(&right.0);
    Hash(hasher.finish())
}

/// Returns the root of a tree without leaves: the hash of the empty input.
#[must_use]
pub fn empty_root() -> Hash {
    Hash(Sha256::of(&[]))
}

/// Maximum number of leaves of a tree: no log reaches it, and sums do not overflow.
pub const SIZE_MAX: u64 = 1 << 62;

/// The right edge of a growing tree: the roots of the full subtrees, largest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frontier {
    size: u64,
    peaks: Vec<Hash>,
}

impl Frontier {
    /// Restores the edge of a tree with `size` leaves from the roots of its full subtrees; `None`
    /// if their number does not match the size.
    #[must_use]
    pub fn restore(size: u64, peaks: Vec<Hash>) -> Option<Self> {
        let fits = size <= SIZE_MAX && peaks.len() == size.count_ones() as usize;
        fits.then_some(Self { size, peaks })
    }

    /// Returns the roots of the full subtrees, largest first.
    #[must_use]
    pub fn peaks(&self) -> &[Hash] {
        &self.peaks
    }

    /// Returns the number of leaves.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Adds a leaf.
    pub fn push(&mut self, leaf: Hash) {
        self.push_tree(1, leaf);
    }

    /// Adds a full subtree with `leaves` leaves; returns whether such a subtree is valid at this
    /// place.
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

    /// Returns the root of the tree.
    #[must_use]
    pub fn root(&self) -> Hash {
        let mut peaks = self.peaks.iter().rev();
        match peaks.next() {
            None => empty_root(),
            Some(last) => peaks.fold(*last, |right, left| node_hash(*left, right)),
        }
    }
}

/// Returns the root over leaf hashes.
#[must_use]
pub fn root(leaves: &[Hash]) -> Hash {
    let mut frontier = Frontier::default();
    leaves.iter().for_each(|leaf| frontier.push(*leaf));
    frontier.root()
}

/// Returns the largest power of two that is smaller than `n`, which is at least 2.
fn split(n: u64) -> u64 {
    1 << (u64::BITS - 1 - (n - 1).leading_zeros())
}

/// The leaves of a log, some of them known only as full subtrees.
#[derive(Debug, Clone, Default)]
pub struct Leaves {
    /// The first leaves and the roots of subtrees, in order.
    parts: Vec<(u64, Hash)>,
    size: u64,
}

impl Leaves {
    /// Adds the next leaf, or the next `leaves` leaves as one subtree.
    pub fn push(&mut self, leaves: u64, root: Hash) {
        self.parts.push((self.size, root));
        self.size += leaves;
    }

    /// Returns the number of leaves.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the root over the leaves from `from` to `to`; `None` if a boundary is within a
    /// subtree.
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

    /// Returns the path from the leaf at `index` to the root over the first `size` leaves, lowest
    /// node first; `None` if the leaf is unknown.
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

    /// Returns the proof that the tree over the first `first` leaves is the beginning of the tree
    /// over the first `size`. `None` if there are fewer leaves, or `first` is 0.
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
mod tests;
