//! The heartbeat of a virtual node: its Lease in `kube-node-lease`.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference},
};
use kube::{Api, Client, api::ObjectMeta};
use tokio::{sync::watch, time::sleep};
use tombolo_runtime::{chain::Chain, shutdown::Shutdown, writer};
use tracing::warn;

use crate::MANAGER;

const NAMESPACE: &str = "kube-node-lease";
const DURATION_SECONDS: i32 = 40;
const RENEW: Duration = Duration::from_secs(10);
const RETRY: Duration = Duration::from_secs(1);

/// Renews the Lease of a node until shutdown. Its owner is the Node with this UID.
pub(crate) async fn keep(
    client: Client,
    node: &str,
    mut uid: watch::Receiver<Option<String>>,
    shutdown: &Shutdown,
) {
    let api: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let renewing = async {
        loop {
            let Ok(of) = uid.wait_for(Option::is_some).await.map(|uid| uid.clone()) else {
                return;
            };
            let lease = lease(node, &of.unwrap_or_default(), Timestamp::now());
            let wait = match writer::apply(&api, MANAGER, &lease).await {
                Ok(_) => RENEW,
                Err(error) => {
                    warn!(node, retry_in = ?RETRY, "can't renew the Lease: {}", Chain(&error));
                    RETRY
                }
            };
            sleep(wait).await;
        }
    };
    shutdown.or(renewing).await;
}

fn lease(node: &str, uid: &str, now: Timestamp) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(node.to_owned()),
            namespace: Some(NAMESPACE.to_owned()),
            owner_references: Some(vec![OwnerReference {
                api_version: "v1".into(),
                kind: "Node".into(),
                name: node.to_owned(),
                uid: uid.to_owned(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(node.to_owned()),
            lease_duration_seconds: Some(DURATION_SECONDS),
            renew_time: Some(MicroTime(now)),
            ..LeaseSpec::default()
        }),
    }
}
