//! Writes the TunnelEndpoint from both clusters' NetworkConfigs, and the state of the network into
//! the ForeignCluster.

use jiff::Timestamp;
use kube::{Api, ResourceExt as _};
use tombolo_api::{
    discovery::ForeignCluster,
    net::{Subnets, TunnelEndpoint},
};
use tombolo_core::network::Action;
use tombolo_runtime::writer;
use tracing::info;

use crate::{
    context::MANAGER,
    network_config::{Error, Network, Tenant},
    object_error::{self, ObjectError},
};

/// Field manager of the network's part of a ForeignCluster's status.
const STATUS_MANAGER: &str = "liqo-control/network";

/// Writes or deletes the TunnelEndpoint. `names`: the peer's CIDRs as translated here.
pub(crate) async fn reconcile(
    network: &Network,
    tenant: &Tenant<'_>,
    names: Option<&Subnets>,
) -> Result<(), Error> {
    let settled = settle(network, tenant, names).await;
    // The status is written even after an error.
    settled.and(show(network, tenant).await.map_err(Error::from))
}

async fn settle(
    network: &Network,
    tenant: &Tenant<'_>,
    names: Option<&Subnets>,
) -> Result<(), Error> {
    note_local_names(network, tenant, names).await?;
    make(network, tenant, names).await?;
    if tenant.seen.is_over(&tenant.local) {
        network.ipam.release(tenant.peer.clone()).await?;
    }
    Ok(())
}

/// The peer's translation of this cluster's CIDRs is stored before it is used.
async fn note_local_names(
    network: &Network,
    tenant: &Tenant<'_>,
    names: Option<&Subnets>,
) -> Result<(), Error> {
    let (Some(_), Some(answer)) = (names, tenant.seen.answer(&tenant.local)) else { return Ok(()) };
    let (Some(pods), Some(external)) = (answer.pod_cidr_nat, answer.external_cidr_nat) else {
        return Ok(());
    };
    Ok(network.ipam.set_local_nat_cidrs(tenant.peer.clone(), pods, external).await?)
}

async fn make(
    network: &Network,
    tenant: &Tenant<'_>,
    names: Option<&Subnets>,
) -> Result<(), ObjectError> {
    let client = network.context.client.clone();
    let endpoints = Api::<TunnelEndpoint>::namespaced(client, tenant.namespace);
    let failed = |act, name: &str| object_error::failed(act, tenant.namespace, name);
    match tenant.seen.tunnel_endpoint(&tenant.local, tenant.peer, names) {
        Action::None => Ok(()),
        Action::Apply(endpoint) => {
            let name = endpoint.name_any();
            info!(peer = %tenant.peer, endpoint = %endpoint.spec.endpoint_ip, "applying the TunnelEndpoint");
            writer::apply(&endpoints, MANAGER, &endpoint)
                .await
                .map_err(failed("apply TunnelEndpoint", &name))?;
            writer::apply_status(&endpoints, MANAGER, &name, &endpoint.status)
                .await
                .map(drop)
                .map_err(failed("apply the status of TunnelEndpoint", &name))
        }
        Action::Delete { name, uid } => {
            info!(peer = %tenant.peer, "deleting the TunnelEndpoint: there is no peering");
            writer::delete_if_same(&endpoints, name, uid)
                .await
                .map_err(failed("delete TunnelEndpoint", name))
        }
    }
}

async fn show(network: &Network, tenant: &Tenant<'_>) -> Result<(), ObjectError> {
    let status = tenant.seen.foreign_cluster_status(&tenant.local, tenant.peer, Timestamp::now());
    let (Some(status), Some(cluster)) = (status, tenant.seen.foreign_cluster) else {
        return Ok(());
    };
    let clusters = Api::<ForeignCluster>::all(network.context.client.clone());
    let name = cluster.name_any();
    let shown = writer::apply_status(&clusters, STATUS_MANAGER, &name, &status).await;
    let failed = object_error::failed("apply the status of ForeignCluster", "", &name);
    writer::absent_is_fine(shown.map(drop)).map_err(failed)
}
