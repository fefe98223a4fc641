//! How many may be there at a time, in all and of each.

use std::collections::BTreeMap;

/// Who is there.
#[derive(Clone, Debug)]
pub struct Seats<K> {
    most: usize,
    most_of_each: usize,
    taken: usize,
    of_each: BTreeMap<K, usize>,
}

impl<K: Ord> Seats<K> {
    /// For so many in all, and so many of each.
    pub fn new(most: usize, most_of_each: usize) -> Self {
        Self { most, most_of_each, taken: 0, of_each: BTreeMap::new() }
    }

    /// Takes a seat, if there is one. Who gets it has to [`leave`](Self::leave) it.
    #[must_use]
    pub fn enter(&mut self, key: K) -> bool {
        let there = self.of_each.get(&key).copied().unwrap_or_default();
        if self.taken >= self.most || there >= self.most_of_each {
            return false;
        }
        self.taken += 1;
        self.of_each.insert(key, there + 1);
        true
    }

    /// Gives a seat back.
    pub fn leave(&mut self, key: &K) {
        let Some(there) = self.of_each.get_mut(key) else { return };
        self.taken -= 1;
        *there -= 1;
        if *there == 0 {
            self.of_each.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_alone_does_not_take_all_seats() {
        let mut seats = Seats::new(5, 3);
        assert_eq!((0..9).filter(|_| seats.enter("greedy")).count(), 3);
        assert!(seats.enter("a") && seats.enter("b") && !seats.enter("c"));
        seats.leave(&"greedy");
        assert!(seats.enter("c") && !seats.enter("greedy"));
    }

    #[test]
    fn nothing_is_remembered_of_who_has_left() {
        let mut seats = Seats::new(5, 3);
        for key in 0..1000 {
            assert!(seats.enter(key) && seats.enter(key));
            seats.leave(&key);
            seats.leave(&key);
            seats.leave(&key);
        }
        assert_eq!((seats.taken, seats.of_each.len()), (0, 0));
    }
}
