//! CIDRs, and the CIDRs that they are remapped to.

use std::{fmt, str::FromStr};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::schema;

/// A network, IPv4 or IPv6, without host bits: `10.0.0.0/16`, not `10.0.0.1/16`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cidr(IpNet);

/// The translated CIDR of a network in the other cluster: `None` where it is not remapped,
/// otherwise a network of the same size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum NatCidr {
    /// Not remapped.
    #[default]
    None,
    /// Remapped to this network.
    Remapped(Cidr),
}

/// An invalid [`Cidr`] or [`NatCidr`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotACidr {
    /// Not in CIDR notation.
    #[error("{0:?} is not a network such as 10.0.0.0/16 or fd00::/48")]
    Unreadable(String),
    /// Has host bits set.
    #[error("{0} is an address in the network {net}: write {net}", net = .0.trunc())]
    HostBits(IpNet),
}

impl Cidr {
    /// The network, for arithmetic.
    pub fn net(self) -> IpNet {
        self.0
    }
}

impl NatCidr {
    /// The translated CIDR of `real`, which is `real` itself if not remapped.
    pub fn or(self, real: Cidr) -> Cidr {
        match self {
            NatCidr::None => real,
            NatCidr::Remapped(cidr) => cidr,
        }
    }
}

impl TryFrom<IpNet> for Cidr {
    type Error = NotACidr;

    fn try_from(net: IpNet) -> Result<Self, NotACidr> {
        if net == net.trunc() { Ok(Self(net)) } else { Err(NotACidr::HostBits(net)) }
    }
}

impl FromStr for Cidr {
    type Err = NotACidr;

    fn from_str(text: &str) -> Result<Self, NotACidr> {
        let net: IpNet = text.parse().map_err(|_| NotACidr::Unreadable(text.to_owned()))?;
        net.try_into()
    }
}

impl FromStr for NatCidr {
    type Err = NotACidr;

    fn from_str(text: &str) -> Result<Self, NotACidr> {
        match text {
            NONE => Ok(NatCidr::None),
            _ => text.parse().map(NatCidr::Remapped),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for NatCidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NatCidr::None => f.write_str(NONE),
            NatCidr::Remapped(cidr) => cidr.fmt(f),
        }
    }
}

const NONE: &str = "None";

macro_rules! as_text {
    ($type:ident, $schema:path) => {
        impl TryFrom<String> for $type {
            type Error = NotACidr;

            fn try_from(text: String) -> Result<Self, NotACidr> {
                text.parse()
            }
        }

        impl From<$type> for String {
            fn from(value: $type) -> Self {
                value.to_string()
            }
        }

        schema::checked_by!($type, $schema);
    };
}

as_text!(Cidr, schema::cidr);
as_text!(NatCidr, schema::nat_cidr);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_are_parsed() {
        for good in ["10.0.0.0/16", "0.0.0.0/0", "fd00::/48", "10.1.2.3/32"] {
            assert_eq!(good.parse::<Cidr>().unwrap().to_string(), good);
        }
    }

    #[test]
    fn every_notation_the_api_server_accepts_is_parsed() {
        for odd in ["1:2:3:4:5:6:7::/112", "::1.2.3.0/120", "FD00::/8", "0::0/0", "::/0"] {
            odd.parse::<Cidr>().unwrap();
        }
    }

    #[test]
    fn a_host_address_is_refused() {
        let error = "10.0.0.1/16".parse::<Cidr>().unwrap_err().to_string();
        assert_eq!(
            error,
            "10.0.0.1/16 is an address in the network 10.0.0.0/16: write 10.0.0.0/16"
        );
        assert!("10.0.0.0".parse::<Cidr>().is_err());
        assert!("10.0.0.0/33".parse::<Cidr>().is_err());
    }

    #[test]
    fn none_keeps_the_real_network() {
        let real = "10.0.0.0/16".parse().unwrap();
        assert_eq!("None".parse::<NatCidr>().unwrap().or(real), real);
        let nat: NatCidr = "10.9.0.0/16".parse().unwrap();
        assert_eq!(nat.or(real).to_string(), "10.9.0.0/16");
        assert!("none".parse::<NatCidr>().is_err());
    }

    #[test]
    fn json_is_a_string() {
        let nat: NatCidr = serde_json::from_str("\"None\"").unwrap();
        assert_eq!(serde_json::to_string(&nat).unwrap(), "\"None\"");
    }

    proptest::proptest! {
        #[test]
        fn display_and_parse_are_inverse(v6: bool, bits: u128, length in 0_u8..=128) {
            let net = network(v6, bits, length);
            let cidr = Cidr::try_from(net.trunc()).unwrap();
            assert_eq!(cidr.to_string().parse(), Ok(cidr));
            assert_eq!(NatCidr::Remapped(cidr).to_string().parse(), Ok(NatCidr::Remapped(cidr)));
        }

        #[test]
        fn the_error_for_an_address_names_its_network(
            v6: bool,
            bits: u128,
            length in 0_u8..=128,
        ) {
            let net = network(v6, bits, length);
            match net.to_string().parse::<Cidr>() {
                Ok(cidr) => assert_eq!(cidr.net(), net.trunc()),
                Err(error) => {
                    assert_ne!(net, net.trunc());
                    assert!(error.to_string().ends_with(&format!("write {}", net.trunc())));
                }
            }
        }

        #[test]
        fn parsing_never_panics(text: String) {
            let _ = text.parse::<Cidr>();
            let _ = text.parse::<NatCidr>();
        }
    }

    fn network(v6: bool, bits: u128, length: u8) -> IpNet {
        if v6 {
            return IpNet::new(std::net::Ipv6Addr::from(bits).into(), length).unwrap();
        }
        IpNet::new(std::net::Ipv4Addr::from(bits as u32).into(), length.min(32)).unwrap()
    }
}
