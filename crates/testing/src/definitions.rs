//! The CRDs of Tombolo.

use kube::{
    Api, Client, ResourceExt,
    api::PostParams,
    runtime::{conditions::is_crd_established, wait::await_condition},
};

/// Creates all CRDs and waits until they are served.
pub async fn define(client: &Client) {
    let definitions = Api::all(client.clone());
    for definition in tombolo_api::crds() {
        let name = definition.name_any();
        definitions.create(&PostParams::default(), &definition).await.expect("it is valid");
        let established = await_condition(definitions.clone(), &name, is_crd_established());
        established.await.expect("it is established");
    }
}
