//! What endpoints that are no pods of this cluster are called in another one: asked of the address
//! service, once for each, and given back when no slice has it any more.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

use tokio::sync::Mutex;
use tombolo_api::{
    ClusterId,
    ipam::{
        MapBatchRequest, MapRequest, UnmapBatchRequest, UnmapRequest, ipam_client::IpamClient,
        map_result,
    },
};
use tombolo_core::translate::Networks;
use tonic::transport::Channel;
use tracing::debug;

/// Some endpoints have no address over there yet.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The address service does not answer.
    #[error("ask the address service what {0} addresses are called in cluster {1}")]
    Ask(usize, ClusterId, #[source] Box<tonic::Status>),
    /// The address service has none for it.
    #[error("the address service has no address for {0} in cluster {1}: {2}")]
    Refused(IpAddr, ClusterId, String),
}

/// A slice: its namespace and its name.
pub type User = (String, String);

/// The addresses in use towards one cluster.
#[derive(Debug)]
pub struct Addresses {
    cluster: ClusterId,
    service: IpamClient<Channel>,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    /// What they were asked under; with other networks they are others.
    networks: Option<Networks>,
    names: BTreeMap<IpAddr, IpAddr>,
    users: BTreeMap<IpAddr, BTreeSet<User>>,
}

impl Addresses {
    /// None in use yet.
    pub fn new(cluster: ClusterId, service: Channel) -> Self {
        Self { cluster, service: IpamClient::new(service), known: Mutex::default() }
    }

    /// What these addresses are called over there. From now on they are what `user` uses, and no
    /// others. With an error, those that could be named are named.
    pub async fn names(
        &self,
        user: &User,
        wanted: &BTreeSet<IpAddr>,
        networks: Option<&Networks>,
    ) -> (BTreeMap<IpAddr, IpAddr>, Option<Error>) {
        let mut known = self.known.lock().await;
        if networks.is_some() && known.networks.as_ref() != networks {
            known.networks = networks.copied();
            known.names.clear();
        }
        let left = known.use_only(user, wanted);
        if !left.is_empty() {
            self.give_back(&left).await;
        }
        let missing: Vec<_> =
            wanted.iter().filter(|ip| !known.names.contains_key(ip)).copied().collect();
        let error = self.ask(&missing, &mut known.names).await.err();
        let names = known.names.iter().filter(|(ip, _)| wanted.contains(ip));
        (names.map(|(ip, name)| (*ip, *name)).collect(), error)
    }

    async fn ask(
        &self,
        missing: &[IpAddr],
        names: &mut BTreeMap<IpAddr, IpAddr>,
    ) -> Result<(), Error> {
        if missing.is_empty() {
            return Ok(());
        }
        let request =
            |ip: &IpAddr| MapRequest { cluster_id: self.cluster.to_string(), ip: ip.to_string() };
        let batch = MapBatchRequest { requests: missing.iter().map(request).collect() };
        let answer = self.service.clone().map_endpoint_ip_batch(batch).await;
        let answer = answer
            .map_err(|status| Error::Ask(missing.len(), self.cluster.clone(), Box::new(status)))?;
        let mut outcome = Ok(());
        for (ip, result) in missing.iter().zip(answer.into_inner().results) {
            let why = match result.result {
                Some(map_result::Result::Response(response)) => match response.ip.parse() {
                    Ok(name) => {
                        names.insert(*ip, name);
                        continue;
                    }
                    Err(_) => format!("it answers {:?}", response.ip),
                },
                Some(map_result::Result::Failure(failure)) => failure.message,
                None => "it does not answer".to_owned(),
            };
            outcome = outcome.and(Err(Error::Refused(*ip, self.cluster.clone(), why)));
        }
        outcome
    }

    /// What is not given back now is when the peering ends.
    async fn give_back(&self, left: &[IpAddr]) {
        let request =
            |ip: &IpAddr| UnmapRequest { cluster_id: self.cluster.to_string(), ip: ip.to_string() };
        let batch = UnmapBatchRequest { requests: left.iter().map(request).collect() };
        if let Err(status) = self.service.clone().unmap_endpoint_ip_batch(batch).await {
            debug!(cluster = %self.cluster, "{} addresses are not given back: {status}", left.len());
        }
    }
}

impl Known {
    /// Notes what a slice uses; returns the addresses that nobody uses any more.
    fn use_only(&mut self, user: &User, wanted: &BTreeSet<IpAddr>) -> Vec<IpAddr> {
        let mut left = Vec::new();
        for (ip, users) in &mut self.users {
            if !wanted.contains(ip) && users.remove(user) && users.is_empty() {
                left.push(*ip);
            }
        }
        for ip in &left {
            self.users.remove(ip);
            self.names.remove(ip);
        }
        for ip in wanted {
            self.users.entry(*ip).or_default().insert(user.clone());
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_given_back_when_no_slice_has_it_any_more() {
        let mut known = Known::default();
        let ip = |text: &str| text.parse().unwrap();
        let set = |all: &[&str]| all.iter().map(|text| ip(text)).collect();
        let (a, b) = (("shop".into(), "a".into()), ("shop".into(), "b".into()));
        assert!(known.use_only(&a, &set(&["10.0.0.1", "10.0.0.2"])).is_empty());
        assert!(known.use_only(&b, &set(&["10.0.0.1"])).is_empty());
        assert_eq!(known.use_only(&a, &set(&[])), [ip("10.0.0.2")]);
        assert_eq!(known.use_only(&b, &set(&[])), [ip("10.0.0.1")]);
        assert!(known.users.is_empty());
    }
}
