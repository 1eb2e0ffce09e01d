use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// Lets one item of a key through at a time, in order.
#[derive(Debug)]
pub struct Lanes<K, T> {
    /// Whoever waits behind the one that is through; a key without an entry is free.
    waiting: HashMap<K, VecDeque<T>>,
}

impl<K, T> Default for Lanes<K, T> {
    fn default() -> Self {
        Self { waiting: HashMap::new() }
    }
}

impl<K: Eq + Hash, T> Lanes<K, T> {
    /// Gives `item` back if it may go at once.
    pub fn enter(&mut self, key: K, item: T) -> Option<T> {
        match self.waiting.get_mut(&key) {
            Some(queue) => {
                queue.push_back(item);
                None
            }
            None => {
                self.waiting.insert(key, VecDeque::new());
                Some(item)
            }
        }
    }

    /// The one that was through has left; the next of its key, if somebody waits.
    pub fn leave(&mut self, key: &K) -> Option<T> {
        let next = self.waiting.get_mut(key)?.pop_front();
        if next.is_none() {
            self.waiting.remove(key);
        }
        next
    }

    /// Everybody who waits.
    pub fn clear(&mut self) -> Vec<T> {
        self.waiting.values_mut().flat_map(std::mem::take).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_key_at_a_time_and_in_order() {
        let mut lanes = Lanes::default();
        assert_eq!(lanes.enter("a", 1), Some(1));
        assert_eq!(lanes.enter("a", 2), None);
        assert_eq!(lanes.enter("a", 3), None);
        assert_eq!(lanes.enter("b", 4), Some(4));
        assert_eq!(lanes.leave(&"a"), Some(2));
        assert_eq!(lanes.clear(), [3]);
        assert_eq!(lanes.enter("a", 5), None, "2 is still through");
        assert_eq!(lanes.leave(&"a"), Some(5));
        assert_eq!(lanes.leave(&"a"), None);
        assert_eq!(lanes.enter("a", 6), Some(6));
    }
}
