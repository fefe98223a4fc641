//! Starts and ends outgoing peerings, in which other clusters run pods of this one, and shows the
//! status of outgoing and incoming peerings.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use kube::{
    Api, ResourceExt,
    api::{ListParams, ObjectMeta},
};
use tombolo_api::{
    ClusterIdentity, Reference,
    discovery::{
        ForeignCluster, ForeignClusterStatus, Peering, ResourceRequest, ResourceRequestSpec,
        condition,
    },
    names::REPLICATE_TO_LABEL,
    sharing::{OfferPhase, ResourceOffer},
    virtualkubelet::NamespaceMap,
};
use tombolo_core::{
    condition::now_is,
    peering::{self, Outgoing, Step},
    view::{Offer, Peer, Request},
};
use tombolo_runtime::{
    queue::{self, queue},
    writer,
};
use tracing::info;

use crate::{
    auth_url,
    by_tenant::ByTenant,
    context::Context,
    object_error::{ObjectError, failed},
};

const MANAGER: &str = "liqo-control/peering";

/// Runs until shutdown.
pub async fn run(context: Arc<Context>) {
    let (queue, receiver) = queue();
    ByTenant::enqueue(&context.watches, &queue)
        .and::<ResourceRequest>()
        .and::<ResourceOffer>()
        .and::<NamespaceMap>();
    let clusters = context.watches.of::<ForeignCluster>();
    let work =
        queue::run("peering", receiver, async |name: String| match clusters.get("", &name) {
            Some(cluster) => reconcile(&cluster, &context).await,
            None => Ok(()),
        });
    context.shutdown.or(work).await;
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    AuthUrl(#[from] auth_url::UnknownUrl),
}

async fn reconcile(cluster: &ForeignCluster, context: &Context) -> Result<(), Error> {
    let view = Peer::from_resource(cluster);
    let (Some(namespace), Some(peer)) = (view.tenant, view.identity) else { return Ok(()) };
    let us = context.settings.cluster();
    let tenant = Tenant::new(context, namespace);
    let (ours, theirs) = (us.cluster_name.as_str(), peer.cluster_name.as_str());
    let offer = tenant.find(&tenant.offers, theirs).await?;
    let our_offer = tenant.find(&tenant.offers, ours).await?;
    // Listed after our offer: the offer is created after its request, so an offer without a request
    // is really left over.
    let requests = tenant.requests.list(&ListParams::default()).await;
    let requests = requests.map_err(failed("list ResourceRequests", namespace, ""))?.items;
    let requests: Vec<_> = requests.iter().map(Request::from_resource).collect();
    let named = |name: &str| requests.iter().copied().find(|request| request.name == name);
    let (request, their_request) = (named(ours), named(theirs));
    let map = tenant.find(&tenant.maps, ours).await?;
    let offer = offer.as_ref().map(Offer::from_resource);
    let lent = our_offer.as_ref().map(Offer::from_resource);

    let before = cluster.status.clone().unwrap_or_default();
    let outgoing = Outgoing {
        join: cluster.spec.join && !view.is_deleted,
        authenticated: view.is_authenticated,
        request,
        offer,
        namespaces: map.is_some(),
    };
    let step = peering::next(&outgoing);
    if step != Step::Nothing {
        info!(cluster = theirs, ?step, "next step of the outgoing peering");
    }
    match step {
        Step::Request => tenant.request(&us, peer).await?,
        Step::Accept => tenant.answer(theirs, OfferPhase::Accepted).await?,
        Step::Refuse => tenant.answer(theirs, OfferPhase::Refused).await?,
        Step::Withdraw => tenant.withdraw(request).await?,
        Step::Nothing => {}
    }

    if let Some(offer) = &our_offer
        && lent.is_some_and(|lent| peering::is_orphaned(&lent, &requests))
    {
        writer::delete_if_same(&tenant.offers, ours, offer.uid().as_deref())
            .await
            .map_err(failed("delete ResourceOffer", namespace, ours))?;
    }

    let out = peering::state(&outgoing, theirs);
    let in_ = peering::incoming(their_request.as_ref(), lent.as_ref());
    let now = Timestamp::now();
    let new_condition = |type_, state: &peering::State| {
        now_is(&before.conditions, type_, state.established, state.reason, &state.message, now)
    };
    let status = ForeignClusterStatus {
        outgoing: Some(Peering {
            peered: out.established,
            peering_request: request.map(|_| reference(namespace, ours)),
        }),
        incoming: Some(Peering {
            peered: in_.established,
            peering_request: their_request.map(|_| reference(namespace, theirs)),
        }),
        conditions: vec![
            new_condition(condition::OUTGOING_PEERING, &out),
            new_condition(condition::INCOMING_PEERING, &in_),
        ],
        ..ForeignClusterStatus::default()
    };
    if !is_part_of(&status, &before) {
        let clusters = Api::<ForeignCluster>::all(context.client.clone());
        writer::apply_status(&clusters, MANAGER, &cluster.name_any(), &status)
            .await
            .map_err(failed("write the status of ForeignCluster", "", &cluster.name_any()))?;
    }
    Ok(())
}

fn is_part_of(status: &ForeignClusterStatus, before: &ForeignClusterStatus) -> bool {
    status.outgoing == before.outgoing
        && status.incoming == before.incoming
        && status.conditions.iter().all(|condition| before.conditions.contains(condition))
}

fn reference(namespace: &str, name: &str) -> Reference {
    Reference { name: name.to_owned(), namespace: namespace.to_owned() }
}

/// The tenant namespace of a peer, and the objects of the peering in it.
struct Tenant<'a> {
    context: &'a Context,
    namespace: &'a str,
    requests: Api<ResourceRequest>,
    offers: Api<ResourceOffer>,
    maps: Api<NamespaceMap>,
}

impl<'a> Tenant<'a> {
    fn new(context: &'a Context, namespace: &'a str) -> Self {
        let client = &context.client;
        Self {
            context,
            namespace,
            requests: Api::namespaced(client.clone(), namespace),
            offers: Api::namespaced(client.clone(), namespace),
            maps: Api::namespaced(client.clone(), namespace),
        }
    }

    async fn find<K>(&self, api: &Api<K>, name: &str) -> Result<Option<K>, ObjectError>
    where
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        api.get_opt(name).await.map_err(failed("read", self.namespace, name))
    }

    async fn request(&self, us: &ClusterIdentity, peer: &ClusterIdentity) -> Result<(), Error> {
        let name = us.cluster_name.to_string();
        let labels = BTreeMap::from([(REPLICATE_TO_LABEL.to_owned(), peer.cluster_id.to_string())]);
        let request = ResourceRequest {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                labels: Some(labels),
                ..ObjectMeta::default()
            },
            spec: ResourceRequestSpec {
                cluster_identity: us.clone(),
                auth_url: auth_url::find(&self.context.client).await?,
            },
            status: None,
        };
        let applied = writer::apply(&self.requests, MANAGER, &request).await;
        applied.map_err(failed("apply ResourceRequest", self.namespace, &name))?;
        Ok(())
    }

    async fn answer(&self, name: &str, phase: OfferPhase) -> Result<(), ObjectError> {
        let status = serde_json::json!({ "phase": phase });
        let written = writer::apply_status(&self.offers, MANAGER, name, &status).await;
        written.map(drop).map_err(failed("write the status of ResourceOffer", self.namespace, name))
    }

    async fn withdraw(&self, request: Option<Request<'_>>) -> Result<(), ObjectError> {
        let Some(request) = request else { return Ok(()) };
        writer::delete_if_same(&self.requests, request.name, request.uid).await.map_err(failed(
            "delete ResourceRequest",
            self.namespace,
            request.name,
        ))
    }
}
