//! Objects of one kind that only one process writes, with the versions in which they were last seen.

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

/// The objects of a kind.
pub(super) struct Kept<K> {
    client: Client,
    known: BTreeMap<String, Seen>,
    kind: PhantomData<K>,
}

/// A kind that holds a specification and nothing else.
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
struct Seen {
    uid: Option<String>,
    resource_version: Option<String>,
}

const AT_A_TIME: usize = 16;
/// How many are read at once: they are all in memory twice for a moment.
const PAGE: u32 = 100;
/// The annotation that is changed where nothing but the version is to change.
const MARK: &str = "net.liqo.io/writer";
/// All that these objects say is the writer's: the API server does not have to find out, at every
/// write, which of their fields are.
const NOBODY_ELSE: ManagedFieldsEntry = ManagedFieldsEntry {
    api_version: None,
    fields_type: None,
    fields_v1: None,
    manager: None,
    operation: None,
    subresource: None,
    time: None,
};
/// Who writes an object knows what it says.
const ONLY_METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");

impl<K: Kind> Kept<K> {
    pub(super) fn new(client: Client) -> Self {
        Self { client, known: BTreeMap::new(), kind: PhantomData }
    }

    /// Whether there is one of this name, as far as this process knows.
    pub(super) fn knows(&self, name: &str) -> bool {
        self.known.contains_key(name)
    }

    /// The names of those that there are, as far as this process knows.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.known.keys().map(String::as_str)
    }

    /// Reads one.
    pub(super) async fn get(&mut self, name: &str) -> Result<Option<K>, StoreError> {
        let found = self.api().get_opt(name).await?;
        self.note(name.to_owned(), found.as_ref().map(|object| Seen::of(object.meta())));
        Ok(found)
    }

    /// Reads all.
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
        let seen = |object: &K| (object.name_any(), Seen::of(object.meta()));
        self.known = objects.iter().map(seen).collect();
        Ok(objects)
    }

    /// Makes each say what it should; nothing: it should not be there. All are tried, also when one
    /// fails.
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

    /// Gives those of these names a new version, so that writes to the old one fail; those that are
    /// not there are made, so that making them fails.
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
                let seen = self.known.get(&name).cloned();
                let client = self.client.clone();
                async move {
                    let seen = match (object, seen) {
                        (Some(object), seen) => put(&client, &name, object, seen).await.map(Some),
                        (None, Some(seen)) => delete::<K>(client, &name, seen).await.map(|()| None),
                        (None, None) => Ok(None),
                    };
                    (name, seen)
                }
            })
            .collect();
        let written: Vec<_> = stream::iter(writes).buffer_unordered(AT_A_TIME).collect().await;
        let mut outcome = Ok(());
        for (name, seen) in written {
            match seen {
                Ok(seen) => self.note(name, seen),
                Err(error) => outcome = outcome.and(Err(error.into())),
            }
        }
        outcome
    }

    fn note(&mut self, name: String, seen: Option<Seen>) {
        match seen {
            Some(seen) => self.known.insert(name, seen),
            None => self.known.remove(&name),
        };
    }

    fn api(&self) -> Api<K> {
        Api::all(self.client.clone())
    }
}

impl Seen {
    fn of(metadata: &ObjectMeta) -> Self {
        Self { uid: metadata.uid.clone(), resource_version: metadata.resource_version.clone() }
    }
}

async fn put<K: Kind>(
    client: &Client,
    name: &str,
    mut object: K,
    seen: Option<Seen>,
) -> kube::Result<Seen> {
    let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
    let request = Request::new(K::url_path(&(), None));
    let is_new = seen.is_none();
    if let Some(seen) = seen {
        object.meta_mut().resource_version = seen.resource_version;
        object.meta_mut().uid = seen.uid;
        object.meta_mut().managed_fields = Some(vec![NOBODY_ELSE]);
    }
    let body = serde_json::to_vec(&object).map_err(kube::Error::SerdeError)?;
    let request =
        if is_new { request.create(&params, body) } else { request.replace(name, &params, body) };
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    request.headers_mut().insert(ACCEPT, ONLY_METADATA);
    let written: PartialObjectMeta<K> = client.request(request).await?;
    Ok(Seen::of(written.meta()))
}

async fn delete<K: Kind>(client: Client, name: &str, seen: Seen) -> kube::Result<()> {
    let same = Preconditions { uid: seen.uid, resource_version: seen.resource_version };
    let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
    match Api::<K>::all(client).delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}
