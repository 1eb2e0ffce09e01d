use std::collections::{HashMap, VecDeque};

/// A topic's name and a partition's number.
pub(crate) type Partition = (String, i32);

/// Where a record is, and in which stay of its partition with this process it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) partition: Partition,
    pub(crate) offset: i64,
    stay: u64,
}

/// What of each partition is under way, and how far everything before is done. Only that far may be committed.
#[derive(Debug, Default)]
pub(crate) struct Board {
    partitions: HashMap<Partition, Progress>,
    stays: u64,
    memberships: u64,
}

#[derive(Debug)]
struct Progress {
    stay: u64,
    /// Offsets that came, from the first that is not done, and whether they are.
    open: VecDeque<(i64, bool)>,
    /// The first offset that is not done.
    position: Option<i64>,
    committed: Option<i64>,
    paused: bool,
}

impl Board {
    /// Begins a membership, and forgets all partitions of the one before. Its number.
    pub(crate) fn begin(&mut self) -> u64 {
        self.partitions.clear();
        self.memberships += 1;
        self.memberships
    }

    /// Whether no other membership has begun since.
    pub(crate) fn is_in(&self, membership: u64) -> bool {
        self.memberships == membership
    }

    /// Notes a record that has come.
    pub(crate) fn arrive(&mut self, partition: Partition, offset: i64) -> Place {
        // Offsets fall when a topic was made anew: what is under way belongs to the one before.
        if self.partitions.get(&partition).is_some_and(|known| known.is_past(offset)) {
            self.partitions.remove(&partition);
        }
        let stays = &mut self.stays;
        let progress = self.partitions.entry(partition.clone()).or_insert_with(|| {
            *stays += 1;
            Progress::new(*stays)
        });
        progress.open.push_back((offset, false));
        Place { partition, offset, stay: progress.stay }
    }

    /// Whether the record's partition has been here ever since it came.
    pub(crate) fn has(&self, place: &Place) -> bool {
        self.partitions.get(&place.partition).is_some_and(|progress| progress.stay == place.stay)
    }

    pub(crate) fn done(&mut self, place: &Place) {
        let progress = self.partitions.get_mut(&place.partition);
        if let Some(progress) = progress.filter(|progress| progress.stay == place.stay) {
            progress.done(place.offset);
        }
    }

    /// Whether the partition is to be paused; it counts as paused from then on.
    pub(crate) fn pauses(&mut self, partition: &Partition, prefetch: usize) -> bool {
        let full =
            self.partitions.get_mut(partition).filter(|known| !known.paused && known.open.len() >= prefetch);
        full.map(|progress| progress.paused = true).is_some()
    }

    /// Whether a paused partition has room again; it counts as not paused from then on.
    pub(crate) fn resumes(&mut self, partition: &Partition, prefetch: usize) -> bool {
        let free = self
            .partitions
            .get_mut(partition)
            .filter(|known| known.paused && known.open.len() <= prefetch / 2);
        free.map(|progress| progress.paused = false).is_some()
    }

    /// What is to be committed and was not before; it counts as committed from then on.
    pub(crate) fn take_uncommitted(&mut self) -> Vec<(Partition, i64)> {
        self.partitions
            .iter_mut()
            .filter_map(|(partition, progress)| Some((partition.clone(), progress.take_uncommitted()?)))
            .collect()
    }

    /// The last commit of this partition failed.
    pub(crate) fn not_committed(&mut self, partition: &Partition) {
        if let Some(progress) = self.partitions.get_mut(partition) {
            progress.committed = None;
        }
    }

    /// The partition goes to another process; what is to be committed before.
    pub(crate) fn leave(&mut self, partition: &Partition) -> Option<i64> {
        self.partitions.remove(partition)?.take_uncommitted()
    }
}

impl Progress {
    fn new(stay: u64) -> Self {
        Self { stay, open: VecDeque::new(), position: None, committed: None, paused: false }
    }

    fn is_past(&self, offset: i64) -> bool {
        let last = self.open.back().map(|(last, _)| last + 1).or(self.position);
        last.is_some_and(|next| offset < next)
    }

    fn done(&mut self, offset: i64) {
        if let Ok(at) = self.open.binary_search_by_key(&offset, |(offset, _)| *offset) {
            self.open[at].1 = true;
        }
        while let Some((offset, true)) = self.open.front() {
            self.position = Some(offset + 1);
            self.open.pop_front();
        }
    }

    fn take_uncommitted(&mut self) -> Option<i64> {
        let position = self.position.filter(|position| self.committed != Some(*position))?;
        self.committed = Some(position);
        Some(position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partition() -> Partition {
        ("t".into(), 0)
    }

    fn arrive(board: &mut Board, offsets: impl IntoIterator<Item = i64>) -> Vec<Place> {
        offsets.into_iter().map(|offset| board.arrive(partition(), offset)).collect()
    }

    #[test]
    fn only_what_has_nothing_undone_before_it_is_committed_and_once() {
        let mut board = Board::default();
        let places = arrive(&mut board, [10, 11, 13, 14]);
        board.done(&places[1]);
        board.done(&places[3]);
        assert_eq!(board.take_uncommitted(), []);
        board.done(&places[0]);
        assert_eq!(board.take_uncommitted(), [(partition(), 12)]);
        assert_eq!(board.take_uncommitted(), []);
        board.not_committed(&partition());
        assert_eq!(board.take_uncommitted(), [(partition(), 12)]);
        board.done(&places[2]);
        assert_eq!(board.leave(&partition()), Some(15));
    }

    #[test]
    fn what_ends_after_its_partition_left_moves_nothing() {
        let mut board = Board::default();
        let old = arrive(&mut board, [1, 2]);
        board.leave(&partition());
        assert!(!board.has(&old[0]));
        let new = arrive(&mut board, [1]);
        board.done(&old[0]);
        board.done(&old[1]);
        assert_eq!(board.take_uncommitted(), []);
        assert!(board.has(&new[0]));
        board.done(&new[0]);
        assert_eq!(board.take_uncommitted(), [(partition(), 2)]);
    }

    #[test]
    fn a_membership_leaves_nothing_to_the_next() {
        let mut board = Board::default();
        let first = board.begin();
        let old = arrive(&mut board, [1]);
        let second = board.begin();
        assert!(!board.is_in(first) && board.is_in(second) && !board.has(&old[0]));
        let new = arrive(&mut board, [1]);
        assert_ne!(old, new);
    }

    #[test]
    fn offsets_that_fall_begin_a_new_stay() {
        let mut board = Board::default();
        let old = arrive(&mut board, [100, 101]);
        let new = arrive(&mut board, [0]);
        assert!(!board.has(&old[1]) && board.has(&new[0]));
        board.done(&old[0]);
        assert_eq!(board.take_uncommitted(), []);
    }

    #[test]
    fn a_full_partition_is_paused_once_and_resumed_at_half() {
        let mut board = Board::default();
        let places = arrive(&mut board, 0..4);
        assert!(!board.pauses(&partition(), 5));
        assert!(board.pauses(&partition(), 4));
        assert!(!board.pauses(&partition(), 4), "it is paused");
        board.done(&places[0]);
        assert!(!board.resumes(&partition(), 4));
        board.done(&places[1]);
        assert!(board.resumes(&partition(), 4));
        assert!(!board.resumes(&partition(), 4), "it is not paused");
    }
}
