//! How long it takes until a cluster that was found in the local network has given an identity: once,
//! while both clusters are being installed.

use anyhow::Result;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::{Api, Client, ResourceExt};
use tombolo_api::discovery::{AuthStatus, ForeignCluster};
use tombolo_api::names::{AUTH_SERVICE, NAMESPACE, SERVICE_NAME_LABEL};
use tombolo_testbed::Cluster;

use crate::figures::{milliseconds, print, table};
use crate::moments::{Moments, Step};
use crate::round_trip;

const FOUND: Step = "found";
const SERVED: Step = "the other's auth service is ready";
const KNOWN: Step = "identity there";

/// Watches that wait for both clusters to find each other.
pub struct Discovery {
    sides: [Side; 2],
}

struct Side {
    name: String,
    client: Client,
    moments: Moments,
}

/// Begins before the clusters know what a ForeignCluster is.
pub async fn watch(rome: &Cluster, milan: &Cluster) -> Result<Discovery> {
    Ok(Discovery { sides: [Side::watch(rome, milan).await?, Side::watch(milan, rome).await?] })
}

impl Side {
    async fn watch(here: &Cluster, there: &Cluster) -> Result<Self> {
        let client = here.client().await?;
        let mut moments = Moments::new();
        moments.watch(Api::<ForeignCluster>::all(client.clone()), |cluster| {
            let status = cluster.status.as_ref().and_then(|status| status.auth_status);
            let known = status == Some(AuthStatus::Accepted);
            if known { vec![FOUND, KNOWN] } else { vec![FOUND] }
        });
        let slices: Api<EndpointSlice> = Api::namespaced(there.client().await?, NAMESPACE);
        moments.watch(slices, |slice| {
            let of_auth =
                slice.labels().get(SERVICE_NAME_LABEL).is_some_and(|it| it == AUTH_SERVICE);
            let mut conditions = slice.endpoints.iter().filter_map(|it| it.conditions.as_ref());
            let ready = conditions.any(|conditions| conditions.ready == Some(true));
            if of_auth && ready { vec![SERVED] } else { Vec::new() }
        });
        Ok(Self { name: here.name().to_owned(), client, moments })
    }
}

impl Discovery {
    /// Waits until both have an identity at the other.
    pub async fn print(self) -> Result<()> {
        let header = ["", "AFTER IT WAS FOUND", "AFTER IT COULD ANSWER", "WRITES"];
        let mut rows = table(1, &header);
        for mut side in self.sides {
            let seen = side.moments.of(&[FOUND, SERVED, KNOWN]).await?;
            let could = milliseconds(seen[KNOWN] - seen[FOUND].max(seen[SERVED]));
            let write = round_trip::of_a_write(&side.client).await?;
            rows.add_row([
                format!("{} has an identity at the other", side.name),
                format!("{:.0} ms", milliseconds(seen[KNOWN] - seen[FOUND])),
                format!("{could:.0} ms"),
                format!("{:.0} ×", could / write),
            ]);
        }
        print("Found in the local network → identity, once, while both are installed", &rows);
        Ok(())
    }
}
