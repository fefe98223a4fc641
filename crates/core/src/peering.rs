//! What a peering needs next.
