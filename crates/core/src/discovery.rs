//! Which other clusters are known: those found in the local network, those that a DNS domain lists,
//! those that asked for a peering, those that somebody named; and when an entry goes again.

mod address;
mod announcement;
mod entry;
mod expiry;
mod exposure;
mod interfaces;
mod joining;
mod listed;
mod neighbours;
mod patience;
mod pin;
mod reach;
mod records;
mod search;
mod sighting;

pub use address::address;
pub use announcement::{Announcement, NotAnAnnouncement};
pub(crate) use entry::request_of;
pub use entry::{
    asked_again, incoming, is_left_to_others, is_over, kind, object_name, peered, senior,
    takes_over,
};
pub use expiry::{Sightings, expires_at};
pub use exposure::{Exposure, Unexposed, checked_url, is_host_name, told_host};
pub use interfaces::{Host, Interface, local_networks};
pub use joining::{is_undecided, may_be_joined};
pub use listed::{
    Listed, NotListed, Searcher, entry_listed, is_found_in, is_introduced, is_orphan, listed,
    superseded,
};
pub use neighbours::{ANSWER, Neighbour, Neighbours, News};
pub use patience::patience;
pub use pin::PinnedBy;
pub use reach::best_address;
pub use records::{Service, names, record_of};
pub use search::{Failure, Found, MOST_LISTED, Search, next_search};
pub use sighting::{Here, MOST_FOUND, Sighting, entry_seen, seen};
