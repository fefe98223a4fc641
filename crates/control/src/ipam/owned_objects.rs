//! Objects of one kind with a single writer, and their last known versions. Every write has the
//! version as a precondition.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
    marker::PhantomData,
};

use futures::{StreamExt as _, stream};
use http::{HeaderValue, header::ACCEPT};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, ObjectMeta, PartialObjectMeta, PostParams, Preconditions},
    core::Request,
};
use serde::{Serialize, de::DeserializeOwned};

use super::store::StoreError;
use crate::context::MANAGER;

/// All objects of a kind.
pub(super) struct OwnedObjects<K> {
    client: Client,
    known: BTreeMap<String, Version>,
    kind: PhantomData<K>,
}

/// A kind with a spec and no status.
pub(super) trait Kind:
    Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
{
    type Spec: Send + Sync;
    fn with(name: &str, spec: Self::Spec) -> Self;
}

impl Kind for tombolo_api::net::IpamStorage {
    type Spec = tombolo_api::net::IpamStorageSpec;

    fn with(name: &str, spec: Self::Spec) -> Self {
        Self::new(name, spec)
    }
}

impl Kind for tombolo_api::net::NatMapping {
    type Spec = tombolo_api::net::NatMappingSpec;

    fn with(name: &str, spec: Self::Spec) -> Self {
        Self::new(name, spec)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    uid: Option<String>,
    resource_version: Option<String>,
}

const CONCURRENT_WRITES: usize = 16;
/// Objects per list request. A page is in memory twice while it is decoded.
const PAGE: u32 = 100;
/// The annotation that is changed to get a new version of an object.
const MARK: &str = "net.liqo.io/writer";
/// An empty entry resets `managedFields`, so that the API server does not compute the field
/// ownership of large objects at every write. There is only one writer.
const NO_MANAGED_FIELDS: ManagedFieldsEntry = ManagedFieldsEntry {
    api_version: None,
    fields_type: None,
    fields_v1: None,
    manager: None,
    operation: None,
    subresource: None,
    time: None,
};
/// Asks for the metadata only: the writer knows the spec.
const ONLY_METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");

impl<K: Kind> OwnedObjects<K> {
    pub(super) fn new(client: Client) -> Self {
        Self { client, known: BTreeMap::new(), kind: PhantomData }
    }

    /// Whether an object of this name exists, as far as this process knows.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// The names of the objects that exist, as far as this process knows.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }

    /// Reads one object.
    pub(super) async fn get(&mut self, name: &str) -> Result<Option<K>, StoreError> {
        let found = self.api().get_opt(name).await?;
        self.record(name.to_owned(), found.as_ref().map(|object| Version::of(object.meta())));
        Ok(found)
    }

    /// Reads all objects.
    pub(super) async fn read(&mut self) -> Result<Vec<K>, StoreError> {
        let api = self.api();
        let mut objects = Vec::new();
        let mut page = ListParams::default().limit(PAGE);
        loop {
            let list = api.list(&page).await?;
            objects.extend(list.items);
            match list.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => page = page.continue_token(&token),
                None => break,
            }
        }
        let version = |object: &K| (object.name_any(), Version::of(object.meta()));
        self.known = objects.iter().map(version).collect();
        Ok(objects)
    }

    /// Creates, replaces or, for `None`, deletes objects. A failure does not stop the other writes.
    pub(super) async fn write(
        &mut self,
        changes: Vec<(String, Option<K::Spec>)>,
    ) -> Result<(), StoreError> {
        let objects = changes.into_iter().map(|(name, spec)| {
            let object = spec.map(|spec| K::with(&name, spec));
            (name, object)
        });
        self.put_all(objects.collect()).await
    }

    /// Gives the objects with these names a new version, so that writes of a former writer to the
    /// old version fail. Missing objects are created, so that its create requests fail.
    pub(super) async fn touch(
        &mut self,
        objects: &[K],
        names: &BTreeSet<String>,
        mark: &str,
    ) -> Result<(), StoreError> {
        let touched =
            objects.iter().filter(|object| names.contains(&object.name_any())).map(|object| {
                let mut object = object.clone();
                object.annotations_mut().insert(MARK.to_owned(), mark.to_owned());
                (object.name_any(), Some(object))
            });
        self.put_all(touched.collect()).await
    }

    async fn put_all(&mut self, objects: Vec<(String, Option<K>)>) -> Result<(), StoreError> {
        let writes: Vec<_> = objects
            .into_iter()
            .map(|(name, object)| {
                let version = self.known.get(&name).cloned();
                let client = self.client.clone();
                async move {
                    let version = match (object, version) {
                        (Some(object), version) => {
                            put(&client, &name, object, version).await.map(Some)
                        }
                        (None, Some(version)) => {
                            delete::<K>(client, &name, version).await.map(|()| None)
                        }
                        (None, None) => Ok(None),
                    };
                    (name, version)
                }
            })
            .collect();
        let written: Vec<_> =
            stream::iter(writes).buffer_unordered(CONCURRENT_WRITES).collect().await;
        let mut outcome = Ok(());
        for (name, version) in written {
            match version {
                Ok(version) => self.record(name, version),
                Err(error) => outcome = outcome.and(Err(error.into())),
            }
        }
        outcome
    }

    fn record(&mut self, name: String, version: Option<Version>) {
        match version {
            Some(version) => self.known.insert(name, version),
            None => self.known.remove(&name),
        };
    }

    fn api(&self) -> Api<K> {
        Api::all(self.client.clone())
    }
}

impl Version {
    fn of(metadata: &ObjectMeta) -> Self {
        Self { uid: metadata.uid.clone(), resource_version: metadata.resource_version.clone() }
    }
}

async fn put<K: Kind>(
    client: &Client,
    name: &str,
    mut object: K,
    version: Option<Version>,
) -> kube::Result<Version> {
    let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
    let request = Request::new(K::url_path(&(), None));
    let is_new = version.is_none();
    if let Some(version) = version {
        object.meta_mut().resource_version = version.resource_version;
        object.meta_mut().uid = version.uid;
        object.meta_mut().managed_fields = Some(vec![NO_MANAGED_FIELDS]);
    }
    let body = serde_json::to_vec(&object).map_err(kube::Error::SerdeError)?;
    let request =
        if is_new { request.create(&params, body) } else { request.replace(name, &params, body) };
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    request.headers_mut().insert(ACCEPT, ONLY_METADATA);
    let written: PartialObjectMeta<K> = client.request(request).await?;
    Ok(Version::of(written.meta()))
}

async fn delete<K: Kind>(client: Client, name: &str, version: Version) -> kube::Result<()> {
    let same = Preconditions { uid: version.uid, resource_version: version.resource_version };
    let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
    match Api::<K>::all(client).delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}
