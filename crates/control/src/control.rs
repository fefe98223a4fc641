//! `tombolo control`: starts the controllers in the leading replica.

use std::{net::Ipv6Addr, sync::Arc};

use anyhow::{Context as _, bail};
use tokio::sync::watch;
use tombolo_api::names::{IPAM_PORT, NAMESPACE};
use tombolo_runtime::{
    client, health,
    lease::{self, Leading},
    settings::Settings,
    shutdown::Shutdown,
    task::Tasks,
};

use crate::{
    context::{Context, MANAGER},
    foreign_cluster, identity,
    ipam::{AddressService, certificates},
    leader, namespace_map, namespace_offloading, network_config, offer, peering, replicator,
    shadow_endpoint_slice, shadow_pod, twin_namespace, webhook,
};

const HEALTH_PORT: u16 = 8080;

/// Runs until shutdown, or until another replica leads.
pub async fn run(settings: Settings, shutdown: Shutdown) -> anyhow::Result<()> {
    let client = client::local().await?;
    let (ready, is_ready) = watch::channel(false);
    let mut tasks = Tasks::new();
    let probes = health::serve(HEALTH_PORT, is_ready, shutdown.clone());
    tasks.spawn_fallible(health::TASK, probes);

    let context = Context::new(client.clone(), settings.clone(), shutdown.clone());
    // Every replica serves the webhook.
    let listener = webhook::listen()?;
    tasks.spawn("webhook", webhook::run(Arc::new(context.clone()), listener));
    ready.send_replace(true);

    let leading = lease::lead(client, NAMESPACE, MANAGER, &settings.pod_name, &shutdown).await;
    let end = leading.shutdown.clone();
    if end.is_triggered() {
        // This replica never led, so it must not write.
        tasks.join_all().await;
        leading.end().await;
        return Ok(());
    }
    let context = Arc::new(Context { shutdown: end.clone(), ..context });
    let ipam = AddressService::start(&context).await?;
    let mut addresses = serve_addresses(&mut tasks, &context, ipam.clone(), leading.clone());
    start(&mut tasks, &context, ipam, leading.clone());
    let ended = tokio::select! {
        () = end.triggered() => Ok(()),
        Some(ended) = addresses.join_next() => ended,
        Some(ended) = tasks.join_next() => ended,
    };
    ended.context("a controller failed")?;
    if !end.is_triggered() {
        bail!("a controller ended unexpectedly");
    }
    // Pending requests get a response, if only that another replica leads.
    addresses.join_all().await;
    while tasks.join_next().await.is_some() {
        if !shutdown.is_triggered() {
            bail!("lost the leadership to another replica: restart");
        }
    }
    leading.end().await;
    Ok(())
}

/// Starts the address service. It is the only task of the returned set.
fn serve_addresses(
    tasks: &mut Tasks,
    context: &Arc<Context>,
    ipam: AddressService,
    leading: Leading,
) -> Tasks {
    let tls = context.settings.ipam_mtls.then(|| {
        let (serving, tls) = watch::channel(None);
        let maintained = certificates::keep(context.clone(), serving);
        tasks.spawn("certificates of the address service", maintained);
        tls
    });
    let served = ipam.serve((Ipv6Addr::UNSPECIFIED, IPAM_PORT).into(), leading, tls);
    let mut addresses = Tasks::new();
    addresses.spawn_fallible("server of the address service", served);
    addresses
}

/// Starts the controllers, one task each.
fn start(tasks: &mut Tasks, context: &Arc<Context>, ipam: AddressService, leading: Leading) {
    tasks.spawn("leader", leader::run(context.clone(), leading));
    tasks.spawn("network_config", network_config::run(context.clone(), ipam));
    tasks.spawn("health", crate::health::run(context.clone()));
    tasks.spawn("namespace_map", namespace_map::run(context.clone()));
    tasks.spawn("namespace_offloading", namespace_offloading::run(context.clone()));
    tasks.spawn("foreign_cluster", foreign_cluster::run(context.clone()));
    tasks.spawn("identity", identity::run(context.clone()));
    tasks.spawn("offer", offer::run(context.clone()));
    tasks.spawn("peering", peering::run(context.clone()));
    tasks.spawn("replicator", replicator::run(context.clone()));
    tasks.spawn("shadow_endpoint_slice", shadow_endpoint_slice::run(context.clone()));
    tasks.spawn("shadow_pod", shadow_pod::run(context.clone()));
    tasks.spawn("twin_namespace", twin_namespace::run(context.clone()));
}
