//! Limits for unauthenticated clients: request rates and open connections. Memory is bounded,
//! however many clients there are.

mod connection_limit;
mod rate_limiter;

use std::net::{IpAddr, Ipv6Addr};

pub use connection_limit::ConnectionLimit;
pub use rate_limiter::{Rate, RateLimiter};

/// The client that an address belongs to: the address itself, or the /64 of an IPv6 address, which
/// usually belongs to one client.
pub fn origin(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_addresses_of_an_ipv6_64_are_one_client() {
        for (address, stands_for) in [
            ("192.0.2.7", "192.0.2.7"),
            ("::ffff:192.0.2.7", "192.0.2.7"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
            ("2001:db8:1:3:3:4:5:6", "2001:db8:1:3::"),
        ] {
            assert_eq!(origin(address.parse().unwrap()).to_string(), stands_for);
        }
    }
}
