//! The known clusters: discovered in the local network, listed in a DNS domain, known by a request
//! for a peering, or named by a user; and when an entry expires.

mod address;
mod announced;
mod announcement;
mod backoff;
mod entry;
mod expiry;
mod exposure;
mod interfaces;
mod joining;
mod listed;
mod neighbours;
mod pin;
mod reachable;
mod records;
mod search;

pub use address::address;
pub use announced::{EntryChange, LocalCluster, MAX_DISCOVERED, announced, entry_announced};
pub use announcement::{Announcement, NotAnAnnouncement};
pub use backoff::connect_backoff;
pub use entry::{
    incoming, is_left_to_others, is_over, object_name, oldest_other, replaced_request, takes_over,
};
pub use expiry::{Expiries, expires_at};
pub use exposure::{Exposure, Unexposed, advertised_host, checked_url, is_host_name};
pub use interfaces::{Host, Interface, local_networks};
pub use joining::{is_undecided, may_be_joined};
pub use listed::{
    ListedCluster, SearchContext, UnusableRecord, entry_listed, is_found_in, is_identified,
    is_orphaned, is_superseded, listed,
};
pub use neighbours::{ANSWER_TIMEOUT, Neighbour, NeighbourChange, Neighbours};
pub use pin::PinnedBy;
pub use reachable::best_address;
pub use records::{Service, names, record_of};
pub use search::{Failure, Found, MAX_LISTED, Search, next_search};
