//! The addresses in a peer of endpoints that are not pods of this cluster. The address service maps
//! each of them once; it is unmapped when no EndpointSlice uses it any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::{MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Mutex, time::timeout};
use tombolo_api::{
    ClusterId,
    ipam::{
        ListRequest, MAX_BATCH, MapBatchRequest, MapRequest, UnmapBatchRequest, UnmapRequest,
        ipam_client::IpamClient, map_result, unmap_result,
    },
};
use tombolo_core::translate::Networks;
use tonic::{Code, transport::Channel};

use crate::MANAGER;

/// Timeout of all requests to the address service for one EndpointSlice.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Why endpoints are not mapped, or unused ones not unmapped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A batch of map requests failed.
    #[error("map {0} endpoint addresses for cluster {1} at the address service")]
    Map(usize, ClusterId, #[source] Box<tonic::Status>),
    /// The address service refused to map an endpoint.
    #[error("the address service has not mapped endpoint {0} for cluster {1}: {2}")]
    NotMapped(IpAddr, ClusterId, String),
    /// A batch of unmap requests failed.
    #[error("unmap {0} endpoint addresses for cluster {1} at the address service")]
    Unmap(usize, ClusterId, #[source] Box<tonic::Status>),
    /// The address service refused to unmap an endpoint.
    #[error("the address service has not unmapped endpoint {0} for cluster {1}: {2}")]
    NotUnmapped(IpAddr, ClusterId, String),
    /// A list request failed.
    #[error("list the mapped endpoints of cluster {0} at the address service")]
    List(ClusterId, #[source] Box<tonic::Status>),
    /// A listed endpoint is not an address.
    #[error("the address service lists {1:?}, not an address, among the endpoints of cluster {0}")]
    Listed(ClusterId, String),
    /// The address service hangs or is unreachable.
    #[error("the address service does not answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

/// An EndpointSlice: its namespace and name.
pub type User = (String, String);

/// The mapped endpoints for one cluster.
#[derive(Debug)]
pub struct Addresses {
    cluster: ClusterId,
    service: IpamClient<Channel>,
    known: std::sync::Mutex<Known>,
    /// Held during requests to the service, so that unmapping and mapping again are in order.
    requests: Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// The networks of the peering when the addresses were mapped. Other networks invalidate them.
    networks: Option<Networks>,
    users: BTreeMap<IpAddr, BTreeSet<User>>,
    /// The addresses in the peer of endpoints with users.
    translated: BTreeMap<IpAddr, IpAddr>,
    /// Endpoints to unmap.
    unused: BTreeSet<IpAddr>,
}

impl Addresses {
    /// No endpoint is in use yet.
    pub fn new(cluster: ClusterId, service: Channel) -> Self {
        Self {
            cluster,
            service: IpamClient::new(service),
            known: std::sync::Mutex::default(),
            requests: Mutex::default(),
        }
    }

    /// Sets the endpoints that `user` uses, and returns their addresses in the peer. On error, the
    /// endpoints that are mapped are returned.
    pub async fn translate(
        &self,
        user: &User,
        wanted: &BTreeSet<IpAddr>,
        networks: Option<&Networks>,
    ) -> (BTreeMap<IpAddr, IpAddr>, Option<Error>) {
        self.known().set_used(user, wanted, networks);
        let error = self.settle(wanted).await.err();
        let known = self.known();
        let translated = known.translated.iter().filter(|(ip, _)| wanted.contains(ip));
        (translated.map(|(ip, translated)| (*ip, *translated)).collect(), error)
    }

    /// Removes all EndpointSlices of a namespace from the users.
    pub fn remove_namespace(&self, namespace: &str) {
        self.known().remove_namespace(namespace);
    }

    /// The endpoints that virtual kubelets have mapped for the cluster, including earlier
    /// processes, as listed by the address service.
    pub async fn mapped(&self) -> Result<BTreeSet<IpAddr>, Error> {
        timeout(TIMEOUT, self.list()).await.unwrap_or(Err(Error::Timeout))
    }

    async fn list(&self) -> Result<BTreeSet<IpAddr>, Error> {
        let (mut mapped, mut page_token) = (BTreeSet::new(), String::new());
        loop {
            let (cluster_id, owner) = (self.cluster.to_string(), Some(MANAGER.to_owned()));
            let request = ListRequest { cluster_id, owner, page_token };
            let answer = match self.service.clone().list_mapped_endpoints(request).await {
                Ok(answer) => answer.into_inner(),
                Err(status) if status.code() == Code::NotFound => return Ok(mapped),
                Err(status) => return Err(Error::List(self.cluster.clone(), Box::new(status))),
            };
            for ip in answer.ips {
                let ip = ip.parse().map_err(|_| Error::Listed(self.cluster.clone(), ip))?;
                mapped.insert(ip);
            }
            page_token = answer.next_page_token;
            if page_token.is_empty() {
                return Ok(mapped);
            }
        }
    }

    /// Adds endpoints that an earlier process mapped, to be unmapped unless they are in use.
    pub fn add_unused(&self, left: BTreeSet<IpAddr>) {
        self.known().add_unused(left);
    }

    /// Unmaps unused endpoints.
    pub async fn unmap_unused(&self) -> Result<(), Error> {
        self.settle(&BTreeSet::new()).await
    }

    /// Unmaps unused endpoints and maps the wanted ones that are not mapped.
    async fn settle(&self, wanted: &BTreeSet<IpAddr>) -> Result<(), Error> {
        if self.known().is_settled(wanted) {
            return Ok(());
        }
        let settle = async {
            let _requests = self.requests.lock().await;
            let unmapped = self.unmap().await;
            self.map(wanted).await.and(unmapped)
        };
        timeout(TIMEOUT, settle).await.unwrap_or(Err(Error::Timeout))
    }

    async fn map(&self, wanted: &BTreeSet<IpAddr>) -> Result<(), Error> {
        let (missing, networks) = {
            let known = self.known();
            (known.untranslated(wanted), known.networks)
        };
        let mut outcome = Ok(());
        for missing in missing.chunks(MAX_BATCH) {
            outcome = outcome.and(self.map_batch(missing, networks).await?);
        }
        outcome
    }

    /// The outer error is a failed request, the inner one a refused endpoint in the answer.
    async fn map_batch(
        &self,
        missing: &[IpAddr],
        networks: Option<Networks>,
    ) -> Result<Result<(), Error>, Error> {
        let request = |ip: &IpAddr| MapRequest {
            cluster_id: self.cluster.to_string(),
            ip: ip.to_string(),
            owner: Some(MANAGER.to_owned()),
        };
        let batch = MapBatchRequest { requests: missing.iter().map(request).collect() };
        let answer = self.service.clone().map_endpoint_ip_batch(batch).await;
        let answer = answer
            .map_err(|status| Error::Map(missing.len(), self.cluster.clone(), Box::new(status)))?;
        let mut outcome = Ok(());
        for (ip, result) in missing.iter().zip(answer.into_inner().results) {
            let why = match result.result {
                Some(map_result::Result::Response(response)) => match response.ip.parse() {
                    Ok(translated) => {
                        self.known().record(*ip, translated, networks);
                        continue;
                    }
                    Err(_) => format!("it answers {:?}", response.ip),
                },
                Some(map_result::Result::Failure(failure)) => failure.message,
                None => "it does not answer".to_owned(),
            };
            outcome = outcome.and(Err(Error::NotMapped(*ip, self.cluster.clone(), why)));
        }
        Ok(outcome)
    }

    async fn unmap(&self) -> Result<(), Error> {
        let unused: Vec<_> = self.known().unused.iter().copied().collect();
        let mut outcome = Ok(());
        for unused in unused.chunks(MAX_BATCH) {
            outcome = outcome.and(self.unmap_batch(unused).await?);
        }
        outcome
    }

    async fn unmap_batch(&self, unused: &[IpAddr]) -> Result<Result<(), Error>, Error> {
        let request = |ip: &IpAddr| UnmapRequest {
            cluster_id: self.cluster.to_string(),
            ip: ip.to_string(),
            owner: Some(MANAGER.to_owned()),
        };
        let batch = UnmapBatchRequest { requests: unused.iter().map(request).collect() };
        let answer = self.service.clone().unmap_endpoint_ip_batch(batch).await;
        let answer = answer
            .map_err(|status| Error::Unmap(unused.len(), self.cluster.clone(), Box::new(status)))?;
        let mut outcome = Ok(());
        for (ip, result) in unused.iter().zip(answer.into_inner().results) {
            match result.result {
                Some(unmap_result::Result::Failure(failure)) if !is_unmapped(failure.code) => {
                    let error = Error::NotUnmapped(*ip, self.cluster.clone(), failure.message);
                    outcome = outcome.and(Err(error));
                }
                _ => {
                    self.known().unused.remove(ip);
                }
            }
        }
        Ok(outcome)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a refused unmap request means that there is no mapping: the cluster is unknown, or the
/// address can't be mapped.
fn is_unmapped(code: i32) -> bool {
    matches!(Code::from_i32(code), Code::NotFound | Code::InvalidArgument)
}

impl Known {
    /// Sets the endpoints that an EndpointSlice uses.
    fn set_used(&mut self, user: &User, wanted: &BTreeSet<IpAddr>, networks: Option<&Networks>) {
        if networks.is_some() && self.networks.as_ref() != networks {
            self.networks = networks.copied();
            self.translated.clear();
        }
        for ip in wanted {
            self.users.entry(*ip).or_default().insert(user.clone());
            self.unused.remove(ip);
        }
        self.remove_users(|ip, other| other == user && !wanted.contains(ip));
    }

    fn remove_namespace(&mut self, namespace: &str) {
        self.remove_users(|_, (of, _)| of == namespace);
    }

    fn add_unused(&mut self, left: BTreeSet<IpAddr>) {
        let users = &self.users;
        self.unused.extend(left.into_iter().filter(|ip| !users.contains_key(ip)));
    }

    fn remove_users(&mut self, ends: impl Fn(&IpAddr, &User) -> bool) {
        for (ip, users) in &mut self.users {
            users.retain(|user| !ends(ip, user));
        }
        for (ip, _) in self.users.extract_if(.., |_, users| users.is_empty()) {
            self.translated.remove(&ip);
            self.unused.insert(ip);
        }
    }

    /// Records an address that was mapped with these networks, unless it is outdated.
    fn record(&mut self, ip: IpAddr, translated: IpAddr, networks: Option<Networks>) {
        if self.users.contains_key(&ip) && self.networks == networks {
            self.translated.insert(ip, translated);
        }
    }

    fn untranslated(&self, wanted: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        wanted.iter().filter(|ip| !self.translated.contains_key(ip)).copied().collect()
    }

    fn is_settled(&self, wanted: &BTreeSet<IpAddr>) -> bool {
        self.unused.is_empty() && self.untranslated(wanted).is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::{net::TcpListener, time::Instant};
    use tonic::transport::Endpoint;

    use super::*;

    fn set(all: &[&str]) -> BTreeSet<IpAddr> {
        all.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn user(namespace: &str, name: &str) -> User {
        (namespace.into(), name.into())
    }

    #[test]
    fn an_endpoint_is_unmapped_when_no_slice_uses_it() {
        let mut known = Known::default();
        let (a, b) = (user("shop", "a"), user("shop", "b"));
        known.set_used(&a, &set(&["10.0.0.1", "10.0.0.2"]), None);
        known.set_used(&b, &set(&["10.0.0.1"]), None);
        known.set_used(&a, &set(&[]), None);
        assert_eq!(known.unused, set(&["10.0.0.2"]));
        known.set_used(&b, &set(&[]), None);
        assert_eq!(known.unused, set(&["10.0.0.1", "10.0.0.2"]));
        assert!(known.users.is_empty());
        known.set_used(&a, &set(&["10.0.0.2"]), None);
        assert_eq!(known.unused, set(&["10.0.0.1"]), "endpoints in use are not unmapped");
    }

    #[test]
    fn a_removed_namespace_uses_no_endpoints() {
        let mut known = Known::default();
        known.set_used(&user("shop", "a"), &set(&["10.0.0.1", "10.0.0.2"]), None);
        known.set_used(&user("bank", "a"), &set(&["10.0.0.1"]), None);
        known.remove_namespace("shop");
        assert_eq!(known.unused, set(&["10.0.0.2"]));
    }

    #[test]
    fn an_outdated_answer_is_not_recorded() {
        let mut known = Known::default();
        let ip = Ipv4Addr::new(10, 0, 0, 1).into();
        let translated = Ipv4Addr::new(10, 72, 0, 4).into();
        known.set_used(&user("shop", "a"), &set(&["10.0.0.1"]), None);
        known.remove_namespace("shop");
        known.record(ip, translated, None);
        known.set_used(&user("shop", "a"), &set(&["10.0.0.1"]), None);
        assert_eq!(known.untranslated(&set(&["10.0.0.1"])), [ip], "it may have been unmapped");
    }

    #[test]
    fn unmapping_an_unknown_mapping_succeeds() {
        assert!(is_unmapped(Code::NotFound.into()), "the cluster is unknown");
        assert!(is_unmapped(Code::InvalidArgument.into()), "it can't be mapped");
        assert!(!is_unmapped(Code::Unavailable.into()));
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_requests_to_a_hanging_service_time_out_together() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let uri = format!("http://{}", silent.local_addr().unwrap());
        let channel = Endpoint::from_shared(uri).unwrap().connect_lazy();
        let addresses = Addresses::new("id-of-milan".parse().unwrap(), channel);
        let (wanted, begun) = (set(&["10.0.0.1"]), Instant::now());
        let (a, b) = (user("shop", "a"), user("shop", "b"));
        let ((_, first), (_, second)) = tokio::join!(
            addresses.translate(&a, &wanted, None),
            addresses.translate(&b, &wanted, None),
        );
        assert!(matches!(first, Some(Error::Timeout)), "{first:?}");
        assert!(matches!(second, Some(Error::Timeout)), "{second:?}");
        assert!(begun.elapsed() < TIMEOUT * 3 / 2, "they wait concurrently");
    }
}
