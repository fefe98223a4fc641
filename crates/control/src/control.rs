//! `tombolo control`: starts the controllers, in the one replica that leads.

use std::{net::Ipv4Addr, sync::Arc};

use anyhow::{Context as _, bail};
use tokio::{sync::watch, task::JoinSet};
use tombolo_api::names::{IPAM_PORT, NAMESPACE};
use tombolo_runtime::{
    chain::Chain, client, health, lease, settings::Settings, shutdown::Shutdown,
};

use crate::{
    context::{Context, MANAGER},
    foreign_cluster, identity,
    ipam::Ipam,
    namespace_map, namespace_offloading, network_config, offer, peering, replicator,
    shadow_endpoint_slice, shadow_pod, twin_namespace, webhook,
};

const HEALTH_PORT: u16 = 8080;

/// Runs until the end is asked for, or until another replica leads.
pub async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let client = client::local().await?;
    let (ready, is_ready) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let probes = health::serve(HEALTH_PORT, is_ready, shutdown.clone());
    tasks.spawn(async move {
        if let Err(error) = probes.await {
            tracing::error!("answer probes on port {HEALTH_PORT}: {error}");
        }
    });

    let context = Context::new(client.clone(), settings.clone(), shutdown.clone());
    // Every replica answers the API server.
    let listener = webhook::listen()?;
    tasks.spawn(webhook::run(Arc::new(context.clone()), listener));
    ready.send_replace(true);

    let leading = lease::lead(client, NAMESPACE, MANAGER, &settings.pod_name, &shutdown).await;
    let context = Arc::new(Context { shutdown: leading.clone(), ..context });
    let ipam = Ipam::start(&context).await?;
    start(&mut tasks, &context, ipam);
    tokio::select! {
        () = leading.asked() => {}
        Some(ended) = tasks.join_next() => {
            ended.context("a controller has failed")?;
            if !leading.is_asked() {
                bail!("a controller has ended by itself");
            }
        }
    }
    leading.ask();
    while tasks.join_next().await.is_some() {
        if !shutdown.is_asked() {
            bail!("another replica leads: starting again");
        }
    }
    Ok(())
}

/// Every controller, one task each.
fn start(tasks: &mut JoinSet<()>, context: &Arc<Context>, ipam: Ipam) {
    tasks.spawn(network_config::run(context.clone(), ipam.clone()));
    let addresses = ipam.serve((Ipv4Addr::UNSPECIFIED, IPAM_PORT).into(), context.shutdown.clone());
    tasks.spawn(async move {
        if let Err(error) = addresses.await {
            tracing::error!("{}", Chain(&error));
        }
    });
    tasks.spawn(crate::health::run(context.clone()));
    tasks.spawn(namespace_map::run(context.clone()));
    tasks.spawn(namespace_offloading::run(context.clone()));
    tasks.spawn(foreign_cluster::run(context.clone()));
    tasks.spawn(identity::run(context.clone()));
    tasks.spawn(offer::run(context.clone()));
    tasks.spawn(peering::run(context.clone()));
    tasks.spawn(replicator::run(context.clone()));
    tasks.spawn(shadow_endpoint_slice::run(context.clone()));
    tasks.spawn(shadow_pod::run(context.clone()));
    tasks.spawn(twin_namespace::run(context.clone()));
}
