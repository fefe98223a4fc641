//! How long it takes until a cluster that was found in the local network has given an identity: once,
//! while both clusters are being installed.

use anyhow::Result;
use kube::{Api, Client};
use tombolo_api::discovery::{AuthStatus, ForeignCluster};
use tombolo_testbed::Cluster;

use crate::figures::{milliseconds, print, table};
use crate::moments::{Moments, Step};
use crate::round_trip;

const FOUND: Step = "found";
const KNOWN: Step = "identity there";

/// Watches that wait for both clusters to find each other.
pub struct Discovery {
    sides: Vec<Side>,
}

struct Side {
    name: String,
    client: Client,
    moments: Moments,
}

/// Begins before the clusters know what a ForeignCluster is.
pub async fn watch(rome: &Cluster, milan: &Cluster) -> Result<Discovery> {
    let mut sides = Vec::new();
    for cluster in [rome, milan] {
        let client = cluster.client().await?;
        let mut moments = Moments::new();
        moments.watch(Api::<ForeignCluster>::all(client.clone()), |cluster| {
            let status = cluster.status.as_ref().and_then(|status| status.auth_status);
            let known = status == Some(AuthStatus::Accepted);
            if known { vec![FOUND, KNOWN] } else { vec![FOUND] }
        });
        sides.push(Side { name: cluster.name().to_owned(), client, moments });
    }
    Ok(Discovery { sides })
}

impl Discovery {
    /// Waits until both have an identity at the other.
    pub async fn print(self) -> Result<()> {
        let mut rows = table(1, &["", "TIME", "WRITES"]);
        for mut side in self.sides {
            let seen = side.moments.of(&[FOUND, KNOWN]).await?;
            let took = milliseconds(seen[KNOWN] - seen[FOUND]);
            let write = round_trip::of_a_write(&side.client).await?;
            rows.add_row([
                format!("{} has an identity at the other", side.name),
                format!("{took:.0} ms"),
                format!("{:.0} ×", took / write),
            ]);
        }
        print("Found in the local network → identity, once, while both are installed", &rows);
        Ok(())
    }
}
