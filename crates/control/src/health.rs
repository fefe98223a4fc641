//! Watches over other clusters' API servers.
