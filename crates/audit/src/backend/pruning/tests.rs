use proptest::prelude::*;

use super::*;
use crate::backend::merkle::leaf_hash;

#[test]
fn a_part_that_ends_before_it_begins_is_empty() {
    let none = Remaining::of(5, 3, [(1, 9), (4, 4)]);
    assert_eq!(none, Remaining::of(5, 5, []));
    assert_ne!(none, Remaining::of(3, 5, []));
}

#[test]
fn a_log_is_pruned_up_to_a_checkpoint_that_fits() {
    let pieces = [0, 1, 2].map(|seq: u64| Piece::Event(seq, leaf_hash(&[7]), true));
    let root = root_of(&pieces).unwrap();
    assert!(Progress::default().compute(&pieces, (3, leaf_hash(&[9]))).is_err());
    assert!(Progress::default().compute(&pieces[1..], (3, root)).is_err(), "one is missing");
    let mut progress = Progress::default();
    assert!(progress.compute(&pieces[..2], (3, root)).is_err(), "the last one is missing");
    assert_eq!((progress.next_part(), progress.again(0)), (None, None), "on the way to it");
    progress.compute(&pieces, (3, root)).unwrap();
    assert_eq!((progress.next_part(), progress.next_part()), (Some((0, 3)), None));
    assert_eq!((progress.again(2), progress.again(BLOCK)), (Some((0, 3)), None));
}

#[test]
fn a_block_that_another_writer_has_pruned_meanwhile_still_fits() {
    let leaf = |seq: u64| leaf_hash(&seq.to_be_bytes());
    let all: Vec<Piece> = (0..BLOCK + 6).map(|seq| Piece::Event(seq, leaf(seq), false)).collect();
    let (size, end) = (BLOCK + 2, all.len());
    let mut progress = Progress::default();
    let root = root_of(&all[..size as usize]).unwrap();
    let (from, to) = progress.ahead(size);
    progress.compute(&all[from as usize..to as usize], (size, root)).unwrap();
    assert_eq!(progress.sound(), size);
    // Another writer knows a later checkpoint, and merges what it removes across the earlier one.
    let merged = cut(BLOCK, BLOCK + 6, &all[BLOCK as usize..]).gone;
    assert_eq!(merged.iter().map(|gone| (gone.seq, gone.size)).next(), Some((BLOCK, 4)));
    let root = root_of(&all).unwrap();
    let (from, to) = progress.ahead(end as u64);
    let pieces: Vec<Piece> = merged.into_iter().map(Piece::PrunedRange).collect();
    let there: Vec<Piece> =
        pieces.into_iter().filter(|piece| (from..to).contains(&piece.seq())).collect();
    progress.compute(&there, (end as u64, root)).unwrap();
    assert_eq!(progress.sound(), end as u64);
}

#[test]
fn a_tree_that_has_come_further_than_the_checkpoint_that_is_left_is_computed_anew() {
    let leaf = |seq: u64| leaf_hash(&seq.to_be_bytes());
    let all: Vec<Piece> = (0..9 * BLOCK).map(|seq| Piece::Event(seq, leaf(seq), true)).collect();
    let signed = |size: u64| (size, root_of(&all[..size as usize]).unwrap());
    let mut progress = Progress::default();
    let mut walk = |size: u64| {
        let (from, to) = progress.ahead(size);
        progress.compute(&all[from as usize..to as usize], signed(size)).unwrap();
        (from, progress.sound())
    };
    assert_eq!(walk(9 * BLOCK), (0, 0), "it takes two steps");
    // Another writer has removed that checkpoint meanwhile.
    assert_eq!(walk(BLOCK + 7), (0, BLOCK + 7));
    assert_eq!(walk(9 * BLOCK), (BLOCK, 9 * BLOCK));
}

fn root_of(pieces: &[Piece]) -> Option<Hash> {
    let mut frontier = Frontier::default();
    pieces.iter().all(|piece| piece.push_to(&mut frontier)).then(|| frontier.root())
}

proptest! {
    #[test]
    fn a_log_that_is_pruned_again_and_again_keeps_its_root(
        rounds in proptest::collection::vec(proptest::collection::vec(any::<bool>(), 1..90), 1..4),
    ) {
        let size = rounds.iter().map(Vec::len).max().unwrap() as u64;
        let leaf = |seq: u64| leaf_hash(&seq.to_be_bytes());
        let mut pieces: Vec<Piece> =
            (0..size).map(|seq| Piece::Event(seq, leaf(seq), true)).collect();
        let signed = root_of(&pieces);
        prop_assert!(signed.is_some());
        for round in &rounds {
            for piece in &mut pieces {
                if let Piece::Event(seq, _, stays) = piece {
                    *stays = *round.get(*seq as usize).unwrap_or(&true);
                }
            }
            let Cut { removed, gone, left } = cut(0, size, &pieces);
            pieces.retain(|piece| matches!(piece, Piece::Event(_, _, true)));
            prop_assert!(pieces.iter().all(|piece| !removed.contains(&piece.seq())));
            pieces.extend(gone.iter().copied().map(Piece::PrunedRange));
            pieces.sort_by_key(Piece::seq);
            prop_assert_eq!(root_of(&pieces), signed);
            let ranges = gone.iter().map(|part| (part.seq, part.seq + part.size));
            prop_assert_eq!(&Remaining::of(0, size, ranges), &left);
            // Only the remaining places count, not how the removed ones are stored.
            let single = gone.iter().flat_map(|part| part.seq..part.seq + part.size);
            prop_assert_eq!(&Remaining::of(0, size, single.map(|seq| (seq, seq + 1))), &left);
            if let Some(part) = gone.first() {
                let fewer = gone.iter().skip(1).map(|part| (part.seq, part.seq + part.size));
                prop_assert_ne!(Remaining::of(0, size, fewer).places, left.places, "{:?}", part);
            }
        }
    }
}
