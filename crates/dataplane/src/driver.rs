//! The kernel's network interfaces, one file each. Each driver looks at what is there and changes
//! what differs from the plan; nobody remembers what was done before.

pub mod conntrack;
pub mod namespace;
pub mod netns;
pub mod nftables;
pub mod tunnel;

mod links;
mod neighbours;
mod netfilter;
mod routes;
mod rules;
mod sysctl;
mod tun;

use std::io;

/// Something that the kernel refused.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A network namespace could not be entered, made or removed.
    #[error("can't {action} the network namespace {name}: {source}; this needs CAP_SYS_ADMIN")]
    Netns {
        /// What was tried.
        action: &'static str,
        /// Which one.
        name: String,
        /// Why not.
        source: io::Error,
    },
    /// A netlink socket could not be opened.
    #[error("can't open a netlink socket: {0}")]
    Socket(#[source] io::Error),
    /// An interface, address, route, rule or neighbour could not be read or changed.
    #[error("can't {action}: {source}; this needs CAP_NET_ADMIN")]
    Netlink {
        /// What was tried.
        action: String,
        /// Why not.
        source: rtnetlink::Error,
    },
    /// The nftables table could not be read or replaced.
    #[error("can't {action} the nftables table {table}: {source}")]
    Nftables {
        /// What was tried.
        action: &'static str,
        /// Which one.
        table: String,
        /// Why not.
        source: io::Error,
    },
    /// A kernel parameter could not be set.
    #[error("can't set {key} to {value}: {source}; is /proc/sys writable?")]
    Sysctl {
        /// Which one.
        key: String,
        /// To what.
        value: String,
        /// Why not.
        source: io::Error,
    },
    /// The tunnel's interface could not be made.
    #[error("can't make the interface {name}: {source}; is /dev/net/tun there?")]
    Tun {
        /// Which one.
        name: String,
        /// Why not.
        source: io::Error,
    },
    /// The tunnels could not be set up.
    #[error("can't set up the tunnels: {0}")]
    Tunnel(#[from] gotatun::device::Error),
    /// Connections could not be forgotten.
    #[error("can't make the kernel forget connections: {0}")]
    Conntrack(#[source] io::Error),
    /// An interface that is needed is not there.
    #[error("the interface {0} is not there")]
    NoLink(String),
}

/// The result of a driver.
pub type Result<T> = std::result::Result<T, Error>;

fn netlink(action: impl Into<String>) -> impl FnOnce(rtnetlink::Error) -> Error {
    let action = action.into();
    move |source| Error::Netlink { action, source }
}
