//! Tunnels to other gateways. The interface is in the gateway's network namespace, the UDP socket
//! in the node's.

use std::{collections::BTreeMap, fmt, io, time::Duration};

use gotatun::{
    device::{Device, Peer},
    noise::TimerParams,
    udp::{
        UdpTransportFactory, UdpTransportFactoryParams,
        socket::{UdpSocket, UdpSocketFactory},
    },
    x25519,
};
use tombolo_core::plan::gateway::{PublicKey, Tunnel};

use super::{Result, netns::Netns, tun::Tun};

/// A driver of tunnels: WireGuard, in the kernel or not.
pub trait Tunnels: Send + Sync + fmt::Debug {
    /// Makes the tunnels what they should be; says how many had to be changed.
    fn apply(
        &mut self,
        want: &BTreeMap<PublicKey, Tunnel>,
    ) -> impl Future<Output = Result<usize>> + Send;

    /// Waits until the tunnels are broken for good and have to be made anew.
    fn broken(&mut self) -> impl Future<Output = ()> + Send;
}

/// A WireGuard private key. It shows nobody what it is.
#[derive(Clone)]
pub struct PrivateKey(x25519::StaticSecret);

impl PrivateKey {
    /// A new one.
    pub fn generate() -> io::Result<Self> {
        let mut bytes = [0; 32];
        aws_lc_rs::rand::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Self::from_bytes(bytes))
    }

    /// From its bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes.into())
    }

    /// Its bytes, to be kept secret.
    pub fn expose(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The key that others know it by.
    pub fn public(&self) -> PublicKey {
        PublicKey(x25519::PublicKey::from(&self.0).to_bytes())
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(…)")
    }
}

/// WireGuard in this process.
pub struct UserSpace {
    device: Device<(HostSockets, Tun, Tun)>,
    tunnels: BTreeMap<PublicKey, Tunnel>,
}

impl UserSpace {
    /// Makes the interface in one network namespace and the socket in another.
    pub async fn open(
        host: &Netns,
        inside: &Netns,
        interface: &str,
        key: &PrivateKey,
        port: u16,
    ) -> Result<Self> {
        let device = gotatun::device::build()
            .with_udp(HostSockets { host: host.clone() })
            .with_ip(Tun::open(inside, interface)?)
            .build()
            .await?;
        let key = key.0.clone();
        let configured = device.write(async |device| {
            device.set_private_key(key).await;
            device.set_listen_port(port);
        });
        configured.await?;
        Ok(Self { device, tunnels: BTreeMap::new() })
    }
}

impl Tunnels for UserSpace {
    async fn apply(&mut self, want: &BTreeMap<PublicKey, Tunnel>) -> Result<usize> {
        let gone: Vec<_> =
            self.tunnels.keys().filter(|key| !want.contains_key(key)).copied().collect();
        let new = want.iter().filter(|(key, tunnel)| self.tunnels.get(key) != Some(tunnel));
        let new: Vec<_> = new.map(|(key, tunnel)| peer(*key, tunnel)).collect();
        let changed = gone.len() + new.len();
        if changed > 0 {
            let written = self.device.write(async |device| {
                for key in gone {
                    device.remove_peer(&key.0.into()).await;
                }
                device.add_or_update_peers(new).await;
            });
            written.await?;
            self.tunnels.clone_from(want);
        }
        Ok(changed)
    }

    async fn broken(&mut self) {
        self.device.wait().await;
    }
}

impl fmt::Debug for UserSpace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserSpace").field("tunnels", &self.tunnels).finish_non_exhaustive()
    }
}

fn peer(key: PublicKey, tunnel: &Tunnel) -> Peer {
    let allowed = tunnel.allowed.iter().filter_map(|net| net.to_string().parse().ok());
    Peer::new(key.0.into())
        .with_endpoint(tunnel.endpoint)
        .with_allowed_ips(allowed)
        .dangerously_with_timer_params(timers())
}

/// A gateway that comes back asks again sooner than WireGuard's five seconds: probes go through
/// every tunnel all the time, so there is no silence to be kept.
fn timers() -> TimerParams {
    let second = Duration::from_secs(1);
    TimerParams {
        new_handshake_timeout: 3 * second..=3 * second,
        rekey_timeout: second..=second + Duration::from_millis(300),
        ..TimerParams::default()
    }
}

/// Opens UDP sockets in the node's network namespace.
struct HostSockets {
    host: Netns,
}

impl UdpTransportFactory for HostSockets {
    type Send = UdpSocket;
    type Recv = UdpSocket;

    async fn bind(
        &mut self,
        params: &UdpTransportFactoryParams,
    ) -> io::Result<(UdpSocket, UdpSocket)> {
        let runtime = tokio::runtime::Handle::current();
        let bound = self.host.run(|| {
            let mut factory = UdpSocketFactory {
                recv_buffer_size: Some(1 << 20),
                send_buffer_size: Some(1 << 20),
            };
            runtime.block_on(factory.bind(params))
        });
        bound.map_err(io::Error::other)?
    }
}
