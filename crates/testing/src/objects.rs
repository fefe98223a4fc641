//! Reading and changing objects of a cluster in tests.

use std::fmt::Debug;

use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
    core::{ClusterResourceScope, NamespaceResourceScope, Request},
};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tombolo_runtime::writer;
use tombolo_testbed::{answer_to, eventually};

use crate::Side;

const MANAGER: &str = "test";

/// A kind of object.
pub trait Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned {}

impl<K> Object for K where K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned {}

/// A namespaced kind.
pub trait Namespaced: Object + Resource<Scope = NamespaceResourceScope> {}

impl<K> Namespaced for K where K: Object + Resource<Scope = NamespaceResourceScope> {}

/// A cluster-wide kind.
pub trait Global: Object + Resource<Scope = ClusterResourceScope> {}

impl<K> Global for K where K: Object + Resource<Scope = ClusterResourceScope> {}

impl Side {
    /// The object with this name.
    pub async fn get<K: Global>(&self, name: &str) -> Option<K> {
        self.all::<K>().get_opt(name).await.expect("an answer")
    }

    /// The object with this name in a namespace.
    pub async fn get_in<K: Namespaced>(&self, namespace: &str, name: &str) -> Option<K> {
        self.within::<K>(namespace).get_opt(name).await.expect("an answer")
    }

    /// Applies the given fields of an object; kind and name are added.
    pub async fn put<K: Global>(&self, name: &str, object: Value) {
        put(&self.all::<K>(), name, object).await;
    }

    /// Like [`put`](Self::put), in a namespace.
    pub async fn put_in<K: Namespaced>(&self, namespace: &str, name: &str, object: Value) {
        put(&self.within::<K>(namespace), name, object).await;
    }

    /// Applies the status of an object.
    pub async fn put_status<K: Global>(&self, name: &str, status: Value) {
        let api = self.all::<K>();
        writer::apply_status(&api, MANAGER, name, &status).await.expect("a status");
    }

    /// Like [`put_status`](Self::put_status), in a namespace.
    pub async fn put_status_in<K: Namespaced>(&self, namespace: &str, name: &str, status: Value) {
        let api = self.within::<K>(namespace);
        writer::apply_status(&api, MANAGER, name, &status).await.expect("a status");
    }

    /// Deletes an object that exists.
    pub async fn delete<K: Global>(&self, name: &str) {
        self.all::<K>().delete(name, &DeleteParams::default()).await.expect("it can be deleted");
    }

    /// Like [`delete`](Self::delete), in a namespace.
    pub async fn delete_in<K: Namespaced>(&self, namespace: &str, name: &str) {
        let api = self.within::<K>(namespace);
        api.delete(name, &DeleteParams::default()).await.expect("it can be deleted");
    }

    /// Waits until the object exists and is as wanted.
    pub async fn until<K: Global>(&self, name: &str, is_as_wanted: impl Fn(&K) -> bool) -> K {
        let what = format!("{} {name} is as wanted", K::kind(&()));
        answer_to(&what, async || self.get::<K>(name).await.filter(&is_as_wanted)).await
    }

    /// Like [`until`](Self::until), in a namespace.
    pub async fn until_in<K: Namespaced>(
        &self,
        namespace: &str,
        name: &str,
        is_as_wanted: impl Fn(&K) -> bool,
    ) -> K {
        let what = format!("{} {namespace}/{name} is as wanted", K::kind(&()));
        let ask = async || self.get_in::<K>(namespace, name).await.filter(&is_as_wanted);
        answer_to(&what, ask).await
    }

    /// Waits until the object is gone.
    pub async fn until_gone<K: Global>(&self, name: &str) {
        let what = format!("{} {name} is gone", K::kind(&()));
        eventually(&what, async || self.get::<K>(name).await, Option::is_none).await;
    }

    /// Like [`until_gone`](Self::until_gone), in a namespace.
    pub async fn until_gone_in<K: Namespaced>(&self, namespace: &str, name: &str) {
        let what = format!("{} {namespace}/{name} is gone", K::kind(&()));
        eventually(&what, async || self.get_in::<K>(namespace, name).await, Option::is_none).await;
    }

    /// Waits until there is no object of a kind in any namespace.
    pub async fn none<K: Object>(&self) {
        let api = self.all::<K>();
        let ask = async || {
            let list = api.list(&ListParams::default()).await.expect("a list");
            list.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
        };
        eventually(&format!("no {}", K::kind(&())), ask, Vec::is_empty).await;
    }

    /// Deletes all objects of a kind in all namespaces.
    pub async fn clear<K: Object>(&self) {
        for object in self.all::<K>().list(&ListParams::default()).await.expect("a list") {
            let request = Request::new(K::url_path(&(), object.namespace().as_deref()));
            let request = request.delete(&object.name_any(), &DeleteParams::default());
            let request = request.expect("a request");
            self.client.request_text(request).await.expect("it can be deleted");
        }
    }

    /// Objects of a kind in all namespaces.
    pub fn all<K: Object>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    /// Objects of a kind in a namespace.
    pub fn within<K: Namespaced>(&self, namespace: &str) -> Api<K> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// Applies the given fields of an object; kind and name are added.
pub async fn put<K: Object>(api: &Api<K>, name: &str, mut object: Value) {
    object["apiVersion"] = K::api_version(&()).into();
    object["kind"] = K::kind(&()).into();
    object["metadata"]["name"] = name.into();
    let params = PatchParams::apply(MANAGER).force();
    api.patch(name, &params, &Patch::Apply(object)).await.expect("it can be applied");
}
