//! Limits concurrent connections, in total and per client.

use std::collections::BTreeMap;

/// The open connections.
#[derive(Clone, Debug)]
pub struct ConnectionLimit<K> {
    max: usize,
    max_per_key: usize,
    in_use: usize,
    per_key: BTreeMap<K, usize>,
}

impl<K: Ord> ConnectionLimit<K> {
    /// At most `max` in total and `max_per_key` per key.
    pub fn new(max: usize, max_per_key: usize) -> Self {
        Self { max, max_per_key, in_use: 0, per_key: BTreeMap::new() }
    }

    /// Takes a slot, if there is one. It has to be [released](Self::release).
    #[must_use]
    pub fn acquire(&mut self, key: K) -> bool {
        let current = self.per_key.get(&key).copied().unwrap_or_default();
        if self.in_use >= self.max || current >= self.max_per_key {
            return false;
        }
        self.in_use += 1;
        self.per_key.insert(key, current + 1);
        true
    }

    /// Gives a slot back.
    pub fn release(&mut self, key: &K) {
        let Some(current) = self.per_key.get_mut(key) else { return };
        self.in_use -= 1;
        *current -= 1;
        if *current == 0 {
            self.per_key.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_can_not_take_all_slots() {
        let mut limit = ConnectionLimit::new(5, 3);
        assert_eq!((0..9).filter(|_| limit.acquire("greedy")).count(), 3);
        assert!(limit.acquire("a") && limit.acquire("b") && !limit.acquire("c"));
        limit.release(&"greedy");
        assert!(limit.acquire("c") && !limit.acquire("greedy"));
    }

    #[test]
    fn clients_without_connections_are_forgotten() {
        let mut limit = ConnectionLimit::new(5, 3);
        for key in 0..1000 {
            assert!(limit.acquire(key) && limit.acquire(key));
            limit.release(&key);
            limit.release(&key);
            limit.release(&key);
        }
        assert_eq!((limit.in_use, limit.per_key.len()), (0, 0));
    }
}
