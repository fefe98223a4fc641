//! Limits for callers that nobody knows: how often each may come, how many may be there at a time.
//! However many they are, little is remembered of them.

mod allowance;
mod seats;

use std::net::{IpAddr, Ipv6Addr};

pub use allowance::{Allowances, Rate};
pub use seats::Seats;

/// Whom an address stands for: who has one IPv6 address has all of its /64.
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
    fn all_addresses_of_one_ipv6_network_are_one_caller() {
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
