//! What endpoints that are no pods of this cluster are called in another one: asked of the address
//! service, once for each, and given back when no slice has it any more.

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

/// How long the address service is waited for.
const LIMIT: Duration = Duration::from_secs(10);

/// Some endpoints have no address over there yet, or have one that nobody uses any more.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address service does not say.
    #[error("ask the address service what {0} addresses are called in cluster {1}")]
    Ask(usize, ClusterId, #[source] Box<tonic::Status>),
    /// The address service has none for it.
    #[error("the address service has no address for {0} in cluster {1}: {2}")]
    Refused(IpAddr, ClusterId, String),
    /// The address service does not take them.
    #[error("give {0} addresses in cluster {1} back to the address service")]
    GiveBack(usize, ClusterId, #[source] Box<tonic::Status>),
    /// The address service does not take one of them.
    #[error("the address service does not take {0} in cluster {1} back: {2}")]
    Kept(IpAddr, ClusterId, String),
    /// The address service does not list them.
    #[error("ask the address service which endpoints are mapped in cluster {0}")]
    List(ClusterId, #[source] Box<tonic::Status>),
    /// The address service lists what is none.
    #[error("the address service lists {1:?}, which is no address, in cluster {0}")]
    Listed(ClusterId, String),
    /// The address service hangs, or is out of reach.
    #[error("the address service does not answer within {} s", LIMIT.as_secs())]
    Late,
}

/// A slice: its namespace and its name.
pub type User = (String, String);

/// The addresses in use towards one cluster.
#[derive(Debug)]
pub struct Addresses {
    cluster: ClusterId,
    service: IpamClient<Channel>,
    known: std::sync::Mutex<Known>,
    /// Whoever has it speaks to the service: what is given back and asked for again is so in this
    /// order.
    turn: Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// What they were asked under; with other networks they are others.
    networks: Option<Networks>,
    users: BTreeMap<IpAddr, BTreeSet<User>>,
    /// Of those that have users.
    names: BTreeMap<IpAddr, IpAddr>,
    /// To be given back.
    unused: BTreeSet<IpAddr>,
}

impl Addresses {
    /// None in use yet.
    pub fn new(cluster: ClusterId, service: Channel) -> Self {
        Self {
            cluster,
            service: IpamClient::new(service),
            known: std::sync::Mutex::default(),
            turn: Mutex::default(),
        }
    }

    /// What these addresses are called over there. From now on they are what `user` uses, and no
    /// others. With an error, those that could be named are named.
    pub async fn names(
        &self,
        user: &User,
        wanted: &BTreeSet<IpAddr>,
        networks: Option<&Networks>,
    ) -> (BTreeMap<IpAddr, IpAddr>, Option<Error>) {
        self.known().use_only(user, wanted, networks);
        let error = self.settle(wanted).await.err();
        let known = self.known();
        let names = known.names.iter().filter(|(ip, _)| wanted.contains(ip));
        (names.map(|(ip, name)| (*ip, *name)).collect(), error)
    }

    /// No slice of a namespace uses any address any more.
    pub fn leave(&self, namespace: &str) {
        self.known().leave(namespace);
    }

    /// What this kubelet has mapped for the cluster, by the address service's word: also what an
    /// earlier process has.
    pub async fn mapped(&self) -> Result<BTreeSet<IpAddr>, Error> {
        timeout(LIMIT, self.list()).await.unwrap_or(Err(Error::Late))
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

    /// These were asked for by an earlier process, and are to be given back unless they are in use.
    pub fn are_left(&self, left: BTreeSet<IpAddr>) {
        self.known().are_left(left);
    }

    /// Gives back what nobody uses any more.
    pub async fn give_back(&self) -> Result<(), Error> {
        self.settle(&BTreeSet::new()).await
    }

    /// Gives back what nobody uses any more, and asks for names that are wanted and not known.
    async fn settle(&self, wanted: &BTreeSet<IpAddr>) -> Result<(), Error> {
        if self.known().is_settled(wanted) {
            return Ok(());
        }
        let settling = async {
            let _turn = self.turn.lock().await;
            let given_back = self.unmap().await;
            self.map(wanted).await.and(given_back)
        };
        timeout(LIMIT, settling).await.unwrap_or(Err(Error::Late))
    }

    async fn map(&self, wanted: &BTreeSet<IpAddr>) -> Result<(), Error> {
        let (missing, networks) = {
            let known = self.known();
            (known.unnamed(wanted), known.networks)
        };
        let mut outcome = Ok(());
        for missing in missing.chunks(MAX_BATCH) {
            outcome = outcome.and(self.map_batch(missing, networks).await?);
        }
        outcome
    }

    /// Fails when there is no answer; the answer may hold failures.
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
            .map_err(|status| Error::Ask(missing.len(), self.cluster.clone(), Box::new(status)))?;
        let mut outcome = Ok(());
        for (ip, result) in missing.iter().zip(answer.into_inner().results) {
            let why = match result.result {
                Some(map_result::Result::Response(response)) => match response.ip.parse() {
                    Ok(name) => {
                        self.known().name(*ip, name, networks);
                        continue;
                    }
                    Err(_) => format!("it answers {:?}", response.ip),
                },
                Some(map_result::Result::Failure(failure)) => failure.message,
                None => "it does not answer".to_owned(),
            };
            outcome = outcome.and(Err(Error::Refused(*ip, self.cluster.clone(), why)));
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
        let answer = answer.map_err(|status| {
            Error::GiveBack(unused.len(), self.cluster.clone(), Box::new(status))
        })?;
        let mut outcome = Ok(());
        for (ip, result) in unused.iter().zip(answer.into_inner().results) {
            match result.result {
                Some(unmap_result::Result::Failure(failure)) if !is_unmapped(failure.code) => {
                    let error = Error::Kept(*ip, self.cluster.clone(), failure.message);
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

/// Whether a refusal says that there is no mapping: none in a cluster that is not known, none of
/// what can't be mapped.
fn is_unmapped(code: i32) -> bool {
    matches!(Code::from_i32(code), Code::NotFound | Code::InvalidArgument)
}

impl Known {
    /// Notes what a slice uses.
    fn use_only(&mut self, user: &User, wanted: &BTreeSet<IpAddr>, networks: Option<&Networks>) {
        if networks.is_some() && self.networks.as_ref() != networks {
            self.networks = networks.copied();
            self.names.clear();
        }
        for ip in wanted {
            self.users.entry(*ip).or_default().insert(user.clone());
            self.unused.remove(ip);
        }
        self.end_use(|ip, other| other == user && !wanted.contains(ip));
    }

    /// Notes that the slices of a namespace use nothing any more.
    fn leave(&mut self, namespace: &str) {
        self.end_use(|_, (of, _)| of == namespace);
    }

    fn are_left(&mut self, left: BTreeSet<IpAddr>) {
        let users = &self.users;
        self.unused.extend(left.into_iter().filter(|ip| !users.contains_key(ip)));
    }

    fn end_use(&mut self, ends: impl Fn(&IpAddr, &User) -> bool) {
        for (ip, users) in &mut self.users {
            users.retain(|user| !ends(ip, user));
        }
        for (ip, _) in self.users.extract_if(.., |_, users| users.is_empty()) {
            self.names.remove(&ip);
            self.unused.insert(ip);
        }
    }

    /// Notes a name that was asked for under these networks.
    fn name(&mut self, ip: IpAddr, name: IpAddr, networks: Option<Networks>) {
        if self.users.contains_key(&ip) && self.networks == networks {
            self.names.insert(ip, name);
        }
    }

    fn unnamed(&self, wanted: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        wanted.iter().filter(|ip| !self.names.contains_key(ip)).copied().collect()
    }

    fn is_settled(&self, wanted: &BTreeSet<IpAddr>) -> bool {
        self.unused.is_empty() && self.unnamed(wanted).is_empty()
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
    fn an_address_is_given_back_when_no_slice_has_it_any_more() {
        let mut known = Known::default();
        let (a, b) = (user("shop", "a"), user("shop", "b"));
        known.use_only(&a, &set(&["10.0.0.1", "10.0.0.2"]), None);
        known.use_only(&b, &set(&["10.0.0.1"]), None);
        known.use_only(&a, &set(&[]), None);
        assert_eq!(known.unused, set(&["10.0.0.2"]));
        known.use_only(&b, &set(&[]), None);
        assert_eq!(known.unused, set(&["10.0.0.1", "10.0.0.2"]));
        assert!(known.users.is_empty());
        known.use_only(&a, &set(&["10.0.0.2"]), None);
        assert_eq!(known.unused, set(&["10.0.0.1"]), "what is used again stays");
    }

    #[test]
    fn a_namespace_that_leaves_uses_nothing() {
        let mut known = Known::default();
        known.use_only(&user("shop", "a"), &set(&["10.0.0.1", "10.0.0.2"]), None);
        known.use_only(&user("bank", "a"), &set(&["10.0.0.1"]), None);
        known.leave("shop");
        assert_eq!(known.unused, set(&["10.0.0.2"]));
    }

    #[test]
    fn a_name_that_comes_too_late_is_not_kept() {
        let mut known = Known::default();
        let (ip, name) = (Ipv4Addr::new(10, 0, 0, 1).into(), Ipv4Addr::new(10, 72, 0, 4).into());
        known.use_only(&user("shop", "a"), &set(&["10.0.0.1"]), None);
        known.leave("shop");
        known.name(ip, name, None);
        known.use_only(&user("shop", "a"), &set(&["10.0.0.1"]), None);
        assert_eq!(known.unnamed(&set(&["10.0.0.1"])), [ip], "it may have been given back");
    }

    #[test]
    fn what_is_not_mapped_there_is_given_back() {
        assert!(is_unmapped(Code::NotFound.into()), "nobody knows that cluster any more");
        assert!(is_unmapped(Code::InvalidArgument.into()), "it could not be mapped either");
        assert!(!is_unmapped(Code::Unavailable.into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_service_that_does_not_answer_holds_nobody_up() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let uri = format!("http://{}", silent.local_addr().unwrap());
        let channel = Endpoint::from_shared(uri).unwrap().connect_lazy();
        let addresses = Addresses::new("id-of-milan".parse().unwrap(), channel);
        let (wanted, begun) = (set(&["10.0.0.1"]), Instant::now());
        let (a, b) = (user("shop", "a"), user("shop", "b"));
        let ((_, first), (_, second)) =
            tokio::join!(addresses.names(&a, &wanted, None), addresses.names(&b, &wanted, None),);
        assert!(matches!(first, Some(Error::Late)), "{first:?}");
        assert!(matches!(second, Some(Error::Late)), "{second:?}");
        assert!(begun.elapsed() < LIMIT * 3 / 2, "they wait side by side");
    }
}
