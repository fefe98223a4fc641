//! Which other clusters are known: those found in the local network, those that a DNS domain lists,
//! those that asked for a peering, those that somebody named; and when an entry goes again.

mod address;
mod announcement;
mod entry;
mod listed;
mod records;
mod search;

pub use address::address;
pub use announcement::{Announcement, NotAnAnnouncement};
pub(crate) use entry::request_of;
pub use entry::{
    Sighting, asked_again, expires_at, incoming, is_left_to_others, is_over, kind, object_name,
    peered, seen, senior,
};
pub use listed::{Listed, NotListed, is_found_in, is_introduced, listed, superseded};
pub use records::{Service, names, record_of};
pub use search::{Failure, Found, MOST_LISTED, Search, next_search};
