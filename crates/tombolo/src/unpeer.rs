//! `tombolo unpeer`: ends a peering and waits until its objects are gone.

use std::time::Duration;

use anyhow::{Result, bail};
use kube::{Client, ResourceExt};

use crate::bars::Bars;
use crate::connection::Target;
use crate::install;
use crate::peering::{Peering, View};
use crate::peers;
use crate::watching::Watches;

#[derive(Debug, clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Name or id of the other cluster
    cluster: String,
    /// Seconds to wait until the virtual node and the tunnel are gone
    #[arg(long, default_value_t = 120, value_name = "SECONDS")]
    timeout: u64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let connection = arguments.target.connect().await?;
        install::identity(&connection).await?;
        let cluster = peers::require(&connection.client, &arguments.cluster).await?;
        let bars = Bars::new();
        let timeout = Duration::from_secs(arguments.timeout);
        let name = cluster.name_any();
        let done = unpeer(&connection.client, &name, timeout, &bars).await;
        bars.finish();
        done?;
        println!(
            "The peering with {} has ended: no pod of this cluster runs there any more.",
            peers::display_name(&cluster)
        );
        Ok(())
    })
}

/// Ends the outgoing peering with the cluster of this ForeignCluster.
pub async fn unpeer(client: &Client, name: &str, timeout: Duration, bars: &Bars) -> Result<()> {
    peers::set_join(client, name, false).await?;
    let mut watches = Watches::default();
    let peering = Peering::watch(client, &mut watches, name);
    let gone = watches.until(timeout, || match left(&peering.view()) {
        Some(what) => {
            bars.say(name, format!("waiting until {what} is gone"));
            None
        }
        None => Some(()),
    });
    if gone.await?.is_some() {
        bars.say(name, "unpeered");
        return Ok(());
    }
    let view = peering.view();
    let what = left(&view).unwrap_or_default();
    let why = match view.unreachable() {
        Some(why) => format!("{why}. Once it answers,"),
        None => {
            "See `kubectl -n liqo logs deploy/liqo-control` and `deploy/liqo-kubelet`;".to_owned()
        }
    };
    bail!(
        "the peering with {name} has not ended after {} s: {what} still exists. {why} the \
         controllers continue",
        timeout.as_secs()
    )
}

/// The first remaining object of an outgoing peering, in the order of removal.
fn left(view: &View) -> Option<String> {
    if let Some(node) = &view.node {
        return Some(format!("node {}", node.name_any()));
    }
    if view.map.is_some() {
        return Some("the NamespaceMap".to_owned());
    }
    if view.request.is_some() {
        return Some("the ResourceRequest".to_owned());
    }
    if view.offer.is_some() {
        return Some("the ResourceOffer".to_owned());
    }
    // The other direction needs the tunnel too.
    if view.tunnel.is_some() && !view.is_incoming() {
        return Some("the tunnel".to_owned());
    }
    None
}
