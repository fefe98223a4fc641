//! What the address service knows, in the API server. Every write says which version it is about,
//! so that one from a process that is no longer the leader fails.

use std::collections::BTreeMap;

use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
};
use serde::{Serialize, de::DeserializeOwned};
use tombolo_api::net::{IpamStorage, NatMapping};
use tombolo_core::ipam::{Changes, Ipam as State};

use crate::context::MANAGER;

pub(super) struct Store {
    storages: Kept<IpamStorage>,
    mappings: Kept<NatMapping>,
}

impl Store {
    pub(super) fn new(client: Client) -> Self {
        Self {
            storages: Kept { api: Api::all(client.clone()), known: BTreeMap::new() },
            mappings: Kept { api: Api::all(client), known: BTreeMap::new() },
        }
    }

    pub(super) async fn read(&mut self) -> kube::Result<(Vec<IpamStorage>, Vec<NatMapping>)> {
        Ok((self.storages.read().await?, self.mappings.read().await?))
    }

    /// Writes what has changed in the state.
    pub(super) async fn write(&mut self, state: &mut State) -> kube::Result<()> {
        let Changes { storage, mappings } = state.take_changes();
        let storages = storage.into_iter().map(|shard| {
            let name = shard.to_string();
            let object = state.storage(shard).map(|spec| IpamStorage::new(&name, spec));
            (name, object)
        });
        let nat_mappings = mappings.into_iter().map(|shard| {
            let name = shard.to_string();
            let object = state.nat_mapping(&shard).map(|spec| NatMapping::new(&name, spec));
            (name, object)
        });
        let storages = self.storages.write(storages.collect());
        let nat_mappings = self.mappings.write(nat_mappings.collect());
        tokio::try_join!(storages, nat_mappings)?;
        Ok(())
    }
}

/// Objects of one kind, and the versions in which they were last seen.
struct Kept<K> {
    api: Api<K>,
    known: BTreeMap<String, Seen>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    uid: Option<String>,
    resource_version: Option<String>,
}

const AT_A_TIME: usize = 16;

impl<K> Kept<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    async fn read(&mut self) -> kube::Result<Vec<K>> {
        let objects = self.api.list(&ListParams::default()).await?.items;
        self.known = objects.iter().map(|object| (object.name_any(), Seen::of(object))).collect();
        Ok(objects)
    }

    async fn write(&mut self, changes: Vec<(String, Option<K>)>) -> kube::Result<()> {
        let writes = changes.into_iter().map(|(name, object)| {
            let seen = self.known.get(&name).cloned();
            let api = self.api.clone();
            async move {
                let seen = match (object, seen) {
                    (Some(object), seen) => Some(put(&api, &name, object, seen).await?),
                    (None, Some(seen)) => delete(&api, &name, seen).await.map(|()| None)?,
                    (None, None) => None,
                };
                Ok::<_, kube::Error>((name, seen))
            }
        });
        let written: Vec<_> = stream::iter(writes.collect::<Vec<_>>())
            .buffer_unordered(AT_A_TIME)
            .try_collect()
            .await?;
        for (name, seen) in written {
            match seen {
                Some(seen) => self.known.insert(name, seen),
                None => self.known.remove(&name),
            };
        }
        Ok(())
    }
}

impl Seen {
    fn of<K: Resource>(object: &K) -> Self {
        Self { uid: object.uid(), resource_version: object.resource_version() }
    }
}

async fn put<K>(api: &Api<K>, name: &str, mut object: K, seen: Option<Seen>) -> kube::Result<Seen>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let params = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
    let written = match seen {
        None => api.create(&params, &object).await?,
        Some(seen) => {
            object.meta_mut().resource_version = seen.resource_version;
            object.meta_mut().uid = seen.uid;
            api.replace(name, &params, &object).await?
        }
    };
    Ok(Seen::of(&written))
}

async fn delete<K>(api: &Api<K>, name: &str, seen: Seen) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let same = Preconditions { uid: seen.uid, resource_version: seen.resource_version };
    let params = DeleteParams { preconditions: Some(same), ..DeleteParams::default() };
    match api.delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}
