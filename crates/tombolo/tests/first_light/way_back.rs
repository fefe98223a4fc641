//! Uninstall after all other tests leaves nothing behind. Tests run in the order of their names,
//! and this one is the last.

use crate::common::way_back;
use crate::story::end;

#[tokio::test]
async fn both_clusters_are_as_they_were_before() {
    end(async |story| {
        for cluster in story.bed.clusters() {
            cluster.kubectl(&["delete", "namespace", "clients"]).await.expect("the clients go");
        }
        way_back::go(&story.bed, "milan").await;
        story.before.is_back().await;
    })
    .await;
}
